"""A master, its slaves, their disks and lines: scripted step by step, or by chance (``walk``).

Every step is a line of the trace, and is followed by the oracle's look at every node that runs.
"""

import os
import random as global_random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, cast

from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.ha.admission.allowlist import AllowList
from rmqha.ha.slave.slaveservice import SlaveOptions
from rmqha.node.core import RoleChanger
from rmqha.settings.settings import FlushDiskType
from rmqha.store.examining import CHECKPOINT_FILE
from rmqha.store.message import Message, MessageBatch, PutMessageResult
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.promote import Promotion
from rmqha.testing.sim.audit import undelivered
from rmqha.testing.sim.histories import Recorder
from rmqha.testing.sim.kinds import Kind, make_message
from rmqha.testing.sim.network import Attempt, Connecting, End, Network, Question
from rmqha.testing.sim.nodes import CORRUPT, SimNode, SimSlave, World
from rmqha.testing.sim.oracle import Oracle, Put
from rmqha.testing.sim.process import Process, ProcessDied, SortedClock
from rmqha.testing.sim.rest import Rest
from rmqha.testing.sim.rotting import rot_a_message
from rmqha.testing.sim.strangers import IStage, Strangers
from rmqha.testing.sim.violation import Violation
from rmqha.wire.transfer import REPORT_HEADER

SEGMENT_SIZE = 4096
WALL_CLOCK_BEGIN_MS = 1_795_000_000_000
CONVERGENCE_SECONDS = 300.0
"""Longer than the longest retry, a connection's silence and a connection attempt that nobody answers, together."""
DELIVERED_SECONDS = 30.0
"""Longer than the longest delay, and than a delivery that failed is waited for."""
MASTER = "master"
FLUSH_TYPES = tuple(one.value for one in FlushDiskType)


def memory_folder() -> str | None:
    """A folder in memory, if there is one, for the files of queues and index."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class SlaveConfig:
    """A slave: settings by RocketMQ's keys that are added to the common ones, and what its command line says.

    ``master`` may be another slave, which is configured before this one.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    options: SlaveOptions = SlaveOptions()
    remoting: bool = True
    master: str = MASTER


@dataclass(frozen=True)
class Config:
    """What is simulated. ``common`` settings are those of all nodes; ``buffer_bytes`` is a line's send buffer.

    ``allow_list`` says whose slaves all nodes take, None for all.
    """

    master: Mapping[str, str] = field(default_factory=lambda: {"brokerRole": "SYNC_MASTER"})
    slaves: Sequence[SlaveConfig] = (SlaveConfig(),)
    common: Mapping[str, str] = field(default_factory=dict)
    buffer_bytes: int = 64 * 1024
    allow_list: AllowList | None = None


@implementer(IStage)
class Simulation:
    """``trace`` has a line for each step. Nodes are ``master`` and ``slaves``; ``nodes`` has all by their names."""

    def __init__(self, config: Config | None = None, seed: int = 0) -> None:
        """All nodes are down."""
        config = config or Config()
        self.random = Random(seed)
        self.clock = SortedClock()
        self.network = Network(config.buffer_bytes)
        self.trace: list[str] = []
        self._wall_clock_step_ms = 0
        self._wall_clock_is_true = True
        self.listener: Callable[[SimNode, str], None] | None = None
        """Hears each line of the trace that speaks of a node, if somebody wants to know."""
        self.history: Recorder | None = None
        """What clients do, if somebody wants to know."""
        self.puts: list[Put] = []
        self._waiting: list[Put] = []
        self.strangers = Strangers(self, are_refused=config.allow_list is not None)
        self._bugs: list[str] = []
        self._allow_list = config.allow_list
        common = {"mappedFileSizeCommitLog": str(SEGMENT_SIZE), **config.common}
        world = World(
            self.clock,
            self.network,
            self.random,
            self._now_ms,
            self.say,
            self.note,
            self._not_repaired,
            self._opened,
            self._closed,
            self._planned,
            self._promoted,
            self._rewinding,
            self._rewound,
            self._down,
        )
        self._folder = Path(mkdtemp(prefix="rmqha-sim-", dir=memory_folder()))
        self.master = self._make_master({**common, **config.master}, world)
        self.slaves = [
            self._make_slave(f"slave-{number}", {**common, "brokerRole": "SLAVE", **slave.properties}, world, slave)
            for number, slave in enumerate(config.slaves, 1)
        ]
        self.nodes: dict[str, SimNode] = {node.name: node for node in (self.master, *self.slaves)}
        self.oracle = self._make_oracle()
        self._rest = Rest(self.oracle, self.nodes)

    def _make_oracle(self) -> Oracle:
        return Oracle()

    def _make_master(self, properties: Mapping[str, str], world: World) -> SimNode:
        return SimNode(MASTER, self._folder / MASTER, properties, world, self._allow_list)

    def _make_slave(self, name: str, properties: Mapping[str, str], world: World, slave: SlaveConfig) -> SimSlave:
        return SimSlave(
            name,
            self._folder / name,
            properties,
            world,
            self._allow_list,
            master_name=slave.master,
            options=slave.options,
            remoting=slave.remoting,
        )

    @contextmanager
    def running(self) -> Iterator["Simulation"]:
        """Run steps in this context: it seeds all random numbers. A failure in the log is a violation."""
        state, observer = global_random.getstate(), cast(ILogObserver, self._look_at_log)
        global_random.seed(self.random.random())  # backoffPolicy's jitter
        globalLogPublisher.addObserver(observer)
        try:
            yield self
        finally:
            for node in self.nodes.values():
                if node.process is not None:
                    node.process.die("the simulation is over")
            shutil.rmtree(self._folder, ignore_errors=True)
            globalLogPublisher.removeObserver(observer)
            global_random.setstate(state)

    def _look_at_log(self, event: LogEvent) -> None:
        source = event.get("log_source")
        if isinstance(source, RoleChanger) and all(node.core is not source for node in self.nodes.values()):
            return  # its process is dead: what its code still does on its way out is nobody's bug
        failure = event.get("log_failure")
        if isinstance(failure, Failure) and failure.check(ProcessDied, OSError) is None:
            self.note(f"{formatEvent(event)}: {failure.getTraceback()}")
        for slave in self.slaves:
            sources = () if slave.service is None else (slave.service, slave.service.verdicts)
            if "state" in event and event.get("log_source") in sources:
                slave.say(formatEvent(event))

    def _now_ms(self) -> int:
        return WALL_CLOCK_BEGIN_MS + self._wall_clock_step_ms + int(self.clock.seconds() * 1000)

    def set_wall_clock(self, step_ms: int) -> None:
        """An operator, or NTP, sets the wall clock of all machines; no other clock changes."""
        self._wall_clock_step_ms += step_ms
        self._wall_clock_is_true = False

    def say(self, name: str, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.clock.seconds():10.3f} {name:8} {text.replace(str(self._folder), '')}")
        if self.listener is not None and name in self.nodes:
            self.listener(self.nodes[name], text)

    def note(self, problem: str) -> None:
        """Something is wrong that was seen in the midst of the code's own work; the next check raises it."""
        self._bugs.append(problem)

    def check(self) -> None:
        """Whether all holds that must. Raises Violation: for the first that was noted, which may have led to others."""
        if self._bugs:
            raise Violation(self._bugs[0])
        for node in self.nodes.values():
            if node.runs:
                self.oracle.check(node)
        self._waiting = [put for put in self._waiting if put.result is None and put.node.runs]
        for put in self._waiting:
            self.oracle.check_unanswered(put, self.clock.seconds())

    # Nodes

    def start(self, *names: str, system_calls_until_death: int | None = None) -> None:
        """Start these nodes, or all that are down; ``system_calls_until_death`` lets them die at that call."""
        for node in [self.nodes[name] for name in names or self.nodes]:
            if node.process is None:
                node.say("starts")
                self.oracle.starting(node)
                node.start(system_calls_until_death)
                self.check()

    def _opened(self, node: SimNode) -> None:
        self._look(self.oracle.opened, node)

    def _closed(self, node: SimNode) -> None:
        self.oracle.down(node)

    def _planned(self, node: SimNode, planned: Promotion, state: NodeState | None) -> None:
        """A promotion is planned: see ``failover``."""

    def _promoted(self, node: SimNode, promotion: Promotion) -> None:
        """A node was promoted: see ``failover``."""

    def _rewinding(self, node: SimSlave, fork: Fork) -> None:
        """A log is about to be cut: see ``failover``."""

    def _rewound(self, node: SimSlave) -> None:
        """That is done."""

    def _not_repaired(self, node: SimNode) -> None:
        self._look(self.oracle.not_repaired, node)

    def _look(self, look: Callable[[SimNode], None], node: SimNode) -> None:
        try:
            look(node)
        except Violation as violation:  # not into the code that has opened it
            self.note(str(violation))

    def kill(self, name: str, system_calls: int = 0) -> None:
        """kill -9, at once or before that system call from now."""
        process = self.nodes[name].process
        if process is not None and system_calls:
            process.system_calls_until_death = system_calls
        elif process is not None:
            process.die("killed")
        self.check()

    def lose_power_within(self, name: str, system_calls: int | None = None) -> None:
        """Without power before that system call from now, or right after the checkpoint was flushed the next time."""
        process = self.nodes[name].process
        if process is not None:
            process.takes_power = True
            process.system_calls_until_death = system_calls
            process.dies_after = CHECKPOINT_FILE if system_calls is None else None

    def lose_power(self, name: str) -> None:
        """The machine is off, whether a process ran or not: what was not durable is lost, or partly not."""
        node = self.nodes[name]
        node.power = False
        if node.process is not None:
            node.process.die("power is lost")
        else:
            node.say("power is lost")
        self._without_power(node)
        self.check()

    def stop(self, name: str) -> None:
        """As SIGTERM does."""
        node = self.nodes[name]
        if (node.runs or node.repairs) and not node.stopping:
            node.say("gets a signal to stop")
            node.stop()
        self.check()

    def wipe(self, name: str) -> None:
        """An operator gives the node an empty disk."""
        node = self.nodes[name]
        if node.process is not None:
            node.process.die("killed, for its disk to be emptied")
        node.disk.wipe()
        self.oracle.wiped(node, self.clock.seconds())
        self.check()

    def rot(self, name: str) -> None:
        """A message on the disk of a slave that is down rots, where its next start looks: one bit, or all of it."""
        node = self.nodes[name]
        assert node.process is None, "a node that runs may never read that again"
        rotten = rot_a_message(node, self.random)
        if rotten is not None:
            node.say(f"the message at {rotten} on its disk rots")
            self.oracle.rotted(node, rotten, self.clock.seconds())

    def _down(self, node: SimNode, process: Process, reason: str) -> None:
        node.say(f"is down: {reason}")
        if process.takes_power:
            node.power = False
        if reason.startswith(CORRUPT):
            self.note(f"{node.name} cannot be started: {reason}")
        self.oracle.down(node)
        self.network.process_died(process, not node.power, lambda size: self.random.randint(0, size))
        if process.takes_power:
            process.takes_power = False
            self._without_power(node)

    def _without_power(self, node: SimNode) -> None:
        node.say("its power is lost")
        node.disk.lose_power()
        self.oracle.lost_power(node, self.clock.seconds())

    # Messages

    def put(
        self, body_bytes: int = 100, waits: bool = True, kind: Kind = Kind.PLAIN, node: SimNode | None = None
    ) -> Put:
        """A producer puts a message, or a batch of them, into the master, or into this node."""
        master = self.master if node is None else node
        assert master.process is not None
        put = Put(len(self.puts), master, waits, self.clock.seconds())
        self.puts.append(put)
        self._waiting.append(put)
        message = make_message(put, body_bytes, kind, self.random)
        master.process.call(self._put, put, message, master.process)
        self.check()
        return put

    def _put(self, put: Put, message: Message | MessageBatch, process: Process) -> None:
        master, store = put.node, put.node.store
        assert store is not None
        operation = None if self.history is None else self.history.put(message)

        def answered(result: PutMessageResult) -> None:
            if not process.alive:
                return
            put.result = result
            if operation is not None:
                operation.answered(result)
            place = f", {result.append.wrote_offset}..{put.end}" if result.is_stored and result.append else ""
            master.say(f"answers put {put.number}: {result.status.name}{place}")
            direct: list[SimNode] = [slave for slave in self.slaves if slave.master_name == master.name]
            self.oracle.put_answered(put, direct, self.strangers.acknowledged(), self.clock.seconds())

        what = "a batch" if isinstance(message, MessageBatch) else f"{len(message.body)} bytes for {message.topic}"
        master.say(f"is given put {put.number} of {what}{'' if put.waits else ', which waits for nothing'}")
        stored = store.put_messages(message) if isinstance(message, MessageBatch) else store.put_message(message)
        stored.addCallback(answered).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if failure.check(ProcessDied) is None:
            self.note(failure.getErrorMessage() if failure.check(Violation) else failure.getTraceback())

    # Lines

    def cut(self, name: str, one_side: bool = False) -> None:
        """The node's connections are reset, or only its own ends for now."""
        for end in self.network.ends:
            if end.name == name and not end.closed:
                end.reset()
                if end.peer is not None and not one_side:
                    end.peer.reset()
        self.say(name, "its connections are reset" + (" at its end" if one_side else ""))
        self.check()

    def drop(self, source: str, target: str) -> None:
        """What is on its way is lost, and with it the connections: TCP loses nothing else."""
        for end in self.network.ends:
            if end.name == target and end.peer_name == source and not end.closed:
                lost_bytes = len(end.inbound)
                end.reset()
                if end.peer is not None:
                    end.peer.reset()
                self.say(target, f"{lost_bytes} bytes from {source} are lost, and the connection")
        self.check()

    def block(self, source: str, target: str) -> None:
        """Nothing gets through in this direction until ``unblock``; what is sent waits."""
        self.network.blocked.add((source, target))
        self.say(target, f"gets nothing from {source} any more")

    def mute(self, name: str) -> None:
        """The node's remoting port answers nobody until ``unblock``."""
        self.network.mute.add(name)
        self.say(name, "its remoting port does not answer any more")

    def unblock(self) -> None:
        """All lines and ports work."""
        if self.network.blocked or self.network.mute:
            self.network.blocked.clear()
            self.network.mute.clear()
            self.say("all", "lines work again")

    def deliver(self, end: End, limit_bytes: int | None = None) -> None:
        """Some bytes arrive, or the connection's end."""
        had = len(end.inbound)
        size = had if limit_bytes is None else min(had, limit_bytes)
        if size:
            self.say(end.name, f"gets {size} of {had} bytes from {end.peer_name}")
        elif not had and end.ending is not None:
            self.say(end.name, f"gets the {end.ending.value} of {end.peer_name}")
        end.deliver(limit_bytes)
        self.check()

    def deliver_between(self, source: str, target: str, limit_bytes: int | None = None) -> None:
        """Bytes arrive on all connections in this direction, those too that wait for a reactor's next turn."""
        self.advance(0)
        for end in self.network.news():
            if end.name == target and end.peer_name == source:
                self.deliver(end, limit_bytes)

    def resolve(self, attempt: Attempt) -> None:
        """An attempt to connect, or a question, gets on a step, if anything gets through."""
        if not self.network.reachable(attempt):
            return
        node = self.nodes[attempt.target]
        if isinstance(attempt, Question) and attempt.view is not None:
            self.say(
                attempt.process.name,
                f"learns that {attempt.target} has {attempt.view.min_offset}..{attempt.view.max_offset}",
            )
            attempt.process.call(attempt.succeed, attempt.view)
        elif not node.runs or node.stopping:
            if node.power:
                self.say(attempt.process.name, f"is refused by {attempt.target}")
                attempt.process.call(attempt.refuse)
        elif isinstance(attempt, Question):
            attempt.view = node.view()
            self.say(node.name, f"is asked by {attempt.process.name}")
        elif isinstance(attempt, Connecting):
            self._connect(attempt, node)
        self.check()

    def _connect(self, attempt: Connecting, node: SimNode) -> None:
        process = attempt.process
        assert node.process is not None
        near, far = self.network.make_line(process, node.process)
        self.say(process.name, f"is connected to {node.name}")
        near.watch = ReportWatch(self, self.nodes[process.name]) if process.name in self.nodes else None

        def connected() -> None:
            protocol = attempt.factory.buildProtocol(near.getPeer())
            assert protocol is not None
            near.attach(protocol)
            attempt.succeed(protocol)

        node.process.call(node.accept, far)
        process.call(connected)

    # Threads and time

    def flush_step(self, name: str) -> bool:
        """The node's flush thread does a job, or its reactor gets the result of one; returns whether there was any."""
        process = self.nodes[name].process
        if process is None or not (process.has_job or process.has_done):
            return False
        if process.has_done:
            process.hear_done()
            node = self.nodes[name]
            self.say(name, f"learns of a flush, flushed to {node.log.flushed_offset}" if node.runs else "")
        else:
            self.say(name, f"flush thread: {process.do_job()}")
        self.check()
        return True

    def advance(self, seconds: float) -> None:
        """Time passes, from one delayed call to the next."""
        end = self.clock.seconds() + seconds
        while (upcoming := self.clock.next_time) is not None and upcoming <= end:
            self.clock.advance(max(0.0, upcoming - self.clock.seconds()))
            self.check()
            if upcoming >= end:
                break
        if end > self.clock.seconds():
            self.clock.advance(end - self.clock.seconds())
            self.check()

    def settle(self) -> None:
        """All that can be delivered and flushed without time passing."""
        self.advance(0)
        while self._settle_some():
            self.advance(0)

    def _settle_some(self) -> bool:
        busy = False
        for end in self.network.news():
            if end.has_news():
                self.deliver(end)
                busy = True
        for attempt in list(self.network.attempts):
            if attempt in self.network.attempts and self._would_resolve(attempt):
                self.resolve(attempt)
                busy = True
        for name in self.nodes:
            busy |= self.flush_step(name)
        return busy

    def _would_resolve(self, attempt: Attempt) -> bool:
        is_answer = isinstance(attempt, Question) and attempt.view is not None
        return self.network.reachable(attempt) and (self.nodes[attempt.target].power or is_answer)

    # The end

    def stop_faults(self) -> None:
        """Lines work, disks work, and all nodes run; what they had armed is disarmed."""
        self.say("all", "faults end")
        self.unblock()
        self.strangers.end()
        for node in self.nodes.values():
            node.disk.heal()
            if node.process is not None:
                node.process.disarm()
        self.start()

    def converge(self, seconds: float = CONVERGENCE_SECONDS) -> None:
        """Without faults all become equal, or say truly why not. Those get empty disks, and then are equal.

        Raises Violation.
        """
        self.stop_faults()
        if not self._wait_until(self._are_at_rest, seconds):
            raise Violation(f"after {seconds:g} s without faults: {self.standing()}")
        lost = [slave for slave in self.slaves if not self.oracle.equal(slave, self.master)]
        for slave in lost:
            self.wipe(slave.name)
        self.start()
        if lost and not self._wait_until(lambda: all(map(self._rest.is_equal, self.slaves)), seconds):
            raise Violation(f"{seconds:g} s after the lost ones started again: {self.standing()}")
        self.say("all", f"are equal at {self.master.log.verified_offset}")
        self._wait_until(self.is_delivered, DELIVERED_SECONDS)
        self._wait_until(self.is_dispatched, DELIVERED_SECONDS)
        for node in self.nodes.values():
            if node.runs:
                self.oracle.check_at_rest(node, self._wall_clock_is_true)

    def is_delivered(self) -> bool:
        """Whether the master has delivered all delayed messages."""
        return self.master.runs and not undelivered(self.master.log, clock_is_true=False)

    def is_dispatched(self) -> bool:
        """Whether the queues and indexes of all nodes have all that their logs have."""
        stores = [node.store for node in self.nodes.values() if node.store is not None]
        return not any(store.derived.dispatcher.behind_bytes for store in stores)

    def _wait_until(self, done: Any, seconds: float) -> bool:
        deadline = self.clock.seconds() + seconds
        while self.clock.seconds() < deadline:
            self.settle()
            self.start()  # one whose disk failed before the faults ended stops now
            if done():
                return True
            upcoming = self.clock.next_time
            self.advance(max(0.0, min(deadline if upcoming is None else upcoming, deadline) - self.clock.seconds()))
        return False

    def _are_at_rest(self) -> bool:
        wanted = max(slave.options.start_from.offset or 0 for slave in self.slaves)
        if self.master.runs and self.master.log.verified_offset <= wanted:  # else slaves that start there wait forever
            self.put(body_bytes=SEGMENT_SIZE // 4, waits=False)
            return False
        return all(self._rest.is_at_rest(slave) for slave in self.slaves)

    def standing(self) -> str:
        """What each node does."""
        found = []
        for node in self.nodes.values():
            state = node.service.replica.state.name if isinstance(node, SimSlave) and node.service else ""
            ends = f"{node.log.min_offset}..{node.log.verified_offset}" if node.runs else "down"
            found.append(f"{node.name} {ends} {state}".strip())
        return ", ".join(found)


class ReportWatch:
    """Hears what a slave writes to its master. The first report of a connection is a request."""

    def __init__(self, simulation: Simulation, node: SimNode) -> None:
        self._simulation = simulation
        self._node = node
        self._requested = False

    def __call__(self, data: bytes) -> None:
        if len(data) != REPORT_HEADER.size:
            return  # a member's hello
        (offset,) = REPORT_HEADER.unpack(data)
        self._simulation.say(self._node.name, f"{'reports' if self._requested else 'asks for'} {offset}")
        if self._node.is_changing:
            return  # it looks for the place where two logs part
        try:
            self._simulation.oracle.reported(self._node, offset)
        except Violation as violation:  # not into the code that is watched
            self._simulation.note(str(violation))
        self._requested = True


def wait_for_checkpoint(simulation: Simulation, name: str = MASTER) -> None:
    """Time passes, and the node's flush thread works, until a checkpoint vouches for its queues."""
    settings = simulation.nodes[name].settings
    simulation.advance((settings.flush_commit_log_thorough_interval_ms + settings.flush_interval_commit_log_ms) / 1000)
    while simulation.flush_step(name):
        pass


def delete_first_segment(simulation: Simulation, name: str = MASTER) -> None:
    """Retention. The node keeps its first segment if the product's rule says so."""
    node = simulation.nodes[name]
    assert node.process is not None
    if node.log.needs_first_segment:
        node.say("keeps its first segment, whose queues are not on the disk")
        return
    node.process.call(node.log.delete_first_segment)
    if node.runs:
        node.say(f"deletes its first segment, the log begins at {node.log.min_offset}")
    simulation.check()
