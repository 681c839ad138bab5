"""A master dies or is cut off, a slave is promoted, the old master is rewound and follows: and once more.

An operator promotes and rewinds by the product's own code, on nodes that run or on stores; both may die, or lose power,
before any system call. Each seed decides how. The oracle knows what each master has written and promised.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from rmqha.ha.slave.replica import StartFrom
from rmqha.ha.slave.slaveservice import OnFork, OnGap, SlaveOptions
from rmqha.ha.slave.states import ReplicaState
from rmqha.settings.settings import BrokerRole
from rmqha.store.epochs import promoted_role, read_epochs
from rmqha.store.examining import CUT_FOLDER
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, DelayOffsetTable
from rmqha.store.nodestate import NODE_FOLDER, NodeState
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.promote import Promotion
from rmqha.store.readlimit import LIMIT_FILE
from rmqha.testing.sim.audit import TRANSACTION_TYPE_MASK, TRANSACTION_TYPES, messages
from rmqha.testing.sim.kinds import Kind
from rmqha.testing.sim.network import address_of
from rmqha.testing.sim.nodes import SimNode, SimSlave, Work, World
from rmqha.testing.sim.oracle import Oracle, Put, content
from rmqha.testing.sim.process import Process
from rmqha.testing.sim.simulation import DELIVERED_SECONDS, FLUSH_TYPES, MASTER, Config, Simulation, SlaveConfig
from rmqha.testing.sim.steps import Steps
from rmqha.testing.sim.violation import Violation
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.layout import BLANK_MAGIC_CODE

CONVERGENCE_SECONDS = 900.0
"""Longer than two attempts of a slave to rewind itself, and the longest time between two connections, together."""
MAX_SYSTEM_CALLS = 60
"""More than a promotion or a rewind of such a small store makes."""
MAX_ATTEMPTS = 8
FAULTS = {"cut": 1.0, "kill": 0.7, "kill_within": 0.5, "lose_power": 0.5, "block": 0.7}
"""Steps, and how often they are taken."""
FEATURES = ("consume", "die_in_a_command", "cut_a_command")
"""Consumers commit offsets; nodes die within promotions and rewinds, or their lines are cut."""
REWINDING = SlaveOptions(on_diverged=OnFork.REWIND, on_ahead=OnFork.REWIND)


@dataclass(frozen=True, slots=True)
class Promised:
    """A put that was answered PUT_OK by the leader: its bytes, and the slaves that held it then."""

    put: Put
    start: int
    written: bytes
    holders: frozenset[str]
    time: float


@dataclass(frozen=True, slots=True)
class CutTail:
    """What a node's rewind has cut from ``start`` on; it must be kept."""

    node: SimSlave
    start: int
    written: bytes


class FailoverOracle(Oracle):
    """Knows who leads, what the leader has promised, and what rewinds have cut."""

    def __init__(self) -> None:
        super().__init__()
        self.leader: SimNode | None = None
        self.promised: list[Promised] = []
        self.cut_tails: list[CutTail] = []
        self.served = bytearray()
        """What consumers may have read of the leader's log with ``readUpTo=confirmed``."""
        self.fit: set[str] = set()
        """The addresses of slaves that were in sync when the leader was lost, and have lost nothing since."""
        self._lost_since_in_sync: set[str] = set()
        self.promotions = self.rewinds = 0
        self._cuts: dict[str, Fork] = {}
        """Where the logs of nodes are being cut."""
        self._half_rewound: set[str] = set()
        """Masters whose logs are cut already."""

    def opened(self, node: SimNode) -> None:
        if node.is_master and node.name in self._half_rewound:
            raise Violation(f"{node.name} runs as a master, on a log that a rewind has cut")
        self._half_rewound.discard(node.name)
        super().opened(node)

    def down(self, node: SimNode) -> None:
        super().down(node)
        self._lower_promise(node)

    def _lower_promise(self, node: SimNode) -> None:
        promise, fork = self.seen(node).promise, self._cuts.get(node.name)
        if fork is not None:
            kept = min(promise.after_kill, fork.offset), min(promise.after_power_loss, fork.offset)
            self.seen(node).promise = type(promise)(*kept)

    def acknowledged(self, put: Put, slaves: list[SimNode], needed: int) -> None:
        if put.node is self.leader:
            assert put.result is not None
            assert put.result.append is not None
            start = put.result.append.wrote_offset
            holders = frozenset(slave.name for slave in slaves if self.has_put(slave, put))
            written = bytes(self.written_by(put.node)[start : put.end])
            self.promised.append(Promised(put, start, written, holders, put.put_time))

    def check(self, node: SimNode) -> None:
        super().check(node)
        if node is self.leader:
            self._note_served(node)

    def _note_served(self, leader: SimNode) -> None:
        limit = None if leader.store is None else leader.store.read_limit
        if limit is None or limit.is_lifted or not leader.is_master:
            return
        self._lost_since_in_sync &= _in_sync(leader)
        end = min(limit.offset, leader.log.verified_offset)
        if end > len(self.served):
            self.fit &= _in_sync(leader)  # it was started again, or some slaves are still connected
            self.served += content(leader.log, len(self.served), end)

    def leader_lost(self) -> None:
        """The leader is about to die, or is cut off: an operator promotes a slave that it said to be in sync."""
        leader = self.leader
        assert leader is not None
        self.fit = _in_sync(leader) - self._lost_since_in_sync

    def _check_served(self, node: SimNode, log_end: int) -> None:
        """What consumers have read is in the log of a new leader that was in sync."""
        end = len(self.served)
        size = node.settings.mapped_file_size_commit_log
        assert size is not None
        found = node.disk.bytes_at(node.settings.commit_log_folder, size, 0, min(end, log_end), durable=False)
        common = _common_end(found, bytes(self.served))
        if self.is_fit(node) and common < end:
            raise Violation(
                f"consumers have read up to {end}; {node.name} was in sync, and is promoted with {common} bytes"
            )
        del self.served[common:]
        self.fit.clear()
        self._lost_since_in_sync.clear()

    def is_fit(self, node: SimNode) -> bool:
        """Whether an operator should promote this slave: it has all that consumers have read."""
        return address_of(node.name) in self.fit

    def _lost(self, node: SimNode) -> None:
        self.fit.discard(address_of(node.name))
        self._lost_since_in_sync.add(address_of(node.name))

    def lost_power(self, node: SimNode, now: float) -> None:
        super().lost_power(node, now)
        self._forget_lost(node, now)
        self._lost(node)

    def wiped(self, node: SimNode, now: float) -> None:
        super().wiped(node, now)
        self._lost(node)
        self._half_rewound.discard(node.name)
        self.cut_tails = [tail for tail in self.cut_tails if tail.node is not node]

    def _forget_lost(self, node: SimNode, now: float) -> None:
        """The disk of the leader has lost what it did not flush: ``opened`` judges what it must have again."""
        if node is self.leader:
            kept = self.seen(node).promise.after_kill
            self.promised = [promised for promised in self.promised if promised.put.end <= kept]
            del self.served[kept:]

    def promoted(self, node: SimNode, promotion: Promotion) -> None:
        """The operator has made a leader of this node."""
        if promotion.epoch <= self._epochs.get(node.name, 0):
            raise Violation(f"{node.name} is promoted in epoch {promotion.epoch}, in which it has acted")
        last = read_epochs(node.configured.store_path_root_dir, node.disk)[-1]
        if (last.epoch, last.start) != (promotion.epoch, promotion.end):
            raise Violation(f"{node.name} is promoted in epoch {promotion.epoch}, its list ends with {last}")
        self._check_notes(node)
        self.took_over(node, promotion.role.value)

    def took_over(self, node: SimNode, role: str) -> None:
        """The node leads from now on. What it held when the old leader promised must be there."""
        root = node.configured.store_path_root_dir
        log_end = read_epochs(root, node.disk)[-1].start
        lost_at = self.seen(node).data_lost_at
        kept = []
        for promised in self.promised:
            size = node.settings.mapped_file_size_commit_log
            assert size is not None
            folder, end = node.settings.commit_log_folder, promised.start + len(promised.written)
            found = node.disk.bytes_at(folder, size, promised.start, end, durable=False)
            if found == promised.written and end <= log_end:
                kept.append(promised)
            elif node.name in promised.holders and lost_at < promised.time:
                raise Violation(
                    f"put {promised.put.number} is PUT_OK and was on {node.name}, which is promoted without it"
                )
        self.promised = kept
        self._check_served(node, log_end)
        self.promotions += 1
        self.leader = node
        if promoted_role(root, node.disk) != role:
            raise Violation(f"{node.name} is promoted to {role}, and its note does not say so")
        self._check_tables(node)

    def _check_notes(self, node: SimNode) -> None:
        """All that says that the node leads is durable before it acts."""
        root = node.configured.store_path_root_dir
        for path, name in (
            (root / NODE_FOLDER / "epochs.json", "list"),
            (root / NODE_FOLDER / "promoted.json", "note"),
        ):
            if node.disk.durable_file(path) != (node.disk.read(path) if node.disk.exists(path) else b""):
                raise Violation(f"{node.name} is promoted, and the {name} of that is not durable")
        state = NodeState.read(root, node.disk)
        if state is None or state.epoch < read_epochs(root, node.disk)[-1].epoch:
            raise Violation(f"{node.name} is promoted, and its state.json has an older epoch than its list")

    def _check_tables(self, node: SimNode) -> None:
        """No consumer, and no delay level, goes on after the end of its queue. The log says where that is."""
        config, ends = node.configured.store_path_root_dir / CONFIG_FOLDER, _queue_ends(node)
        for key, queues in ConsumerOffsetTable.read(config, node.disk).offset_table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                if offset > ends.get((topic, queue_id), 0):
                    raise Violation(f"{node.name} is promoted, and {key} goes on at {offset} of queue {queue_id}")
        for level, offset in DelayOffsetTable.read(config, node.disk).offset_table.items():
            if offset > ends.get((SCHEDULE_TOPIC, level - 1), 0):
                raise Violation(f"{node.name} is promoted, and delay level {level} goes on at {offset}")

    def planned(self, node: SimNode, planned: Promotion, state: NodeState | None) -> None:
        """A dry run tells at least what the slave itself knew to be missing."""
        if state is None or planned.lag_bytes is None:
            return
        known = state.offsets.verified + (state.lag_bytes or 0)
        if planned.end + planned.lag_bytes < known:
            raise Violation(
                f"{node.name} has heard of bytes up to {known}; a promotion at {planned.end} tells of "
                f"{planned.lag_bytes} lost bytes"
            )

    # Rewinds

    def rewinding(self, node: SimSlave, fork: Fork, leader: SimNode | None) -> None:
        """The node is about to cut its log at the fork. All before it must be the master's, and no record more."""
        self._check_fork(node, fork, leader)
        self._cuts[node.name] = fork
        self._lower_promise(node)
        self._found.pop(node.name, None)
        node.disk.cutting = partial(self._cutting, node)
        self.rewinds += 1

    def rewound(self, node: SimSlave) -> None:
        """The cut is done, or its process is gone."""
        node.disk.cutting = lambda path, position: None
        self._cuts.pop(node.name, None)

    def _check_fork(self, node: SimSlave, fork: Fork, leader: SimNode | None) -> None:
        if leader is None or not leader.runs or leader.log.min_offset:
            return
        ours = self._log_bytes(node)[: fork.our_end]
        theirs = content(leader.log, 0, leader.log.verified_offset)
        if ours[: fork.offset] != theirs[: fork.offset]:
            raise Violation(f"{node.name} is rewound to {fork.offset}, and its log and {leader.name}'s differ before")
        common = _common_end(ours, theirs)
        start = fork.offset
        if fork.is_theirs_shorter and _is_blank(ours, start):  # written since it was asked: it is the same as all are
            start += int.from_bytes(ours[start : start + 4], "big")
        if leader.is_master and _records_between(ours, start, common):
            raise Violation(f"{node.name} is rewound to {fork.offset}, and {leader.name} has the same up to {common}")

    def has_nothing_in_common(self, slave: SimSlave, leader: SimSlave) -> bool:
        """Whether not even the first record of both logs is the same."""
        ours, theirs = self._log_bytes(slave), content(leader.log, 0, leader.log.verified_offset)
        return any(ours) and not _records_between(ours, 0, _common_end(ours, theirs))

    def _cutting(self, node: SimSlave, path: Path, position: int) -> None:
        """Bytes of the log are about to go: they are kept, durably, and state.json takes back what was confirmed."""
        if path.parent != node.configured.commit_log_folder:
            return
        start = int(path.name) + position
        written = self._log_bytes(node)[start:].rstrip(b"\0")
        if not written:
            return
        fork = self._cuts[node.name]
        if start <= fork.offset < fork.our_end:  # else no message goes, only what follows the last one
            self._half_rewound.add(node.name)
        if not _is_kept(node, start, written):
            raise Violation(f"{node.name} cuts its log at {start}, and has not kept {len(written)} bytes before")
        state = NodeState.from_json(
            node.disk.durable_file(node.configured.store_path_root_dir / NODE_FOLDER / "state.json") or b""
        )
        if state.confirmed_offset > start:
            raise Violation(
                f"{node.name} cuts its log at {start}, and its state.json confirms {state.confirmed_offset}"
            )
        self.cut_tails.append(CutTail(node, start, written))

    def check_kept(self) -> None:
        """At the end all that was promised is on the leader, and all that was cut is in a file."""
        assert self.leader is not None
        for promised in self.promised:
            end = promised.start + len(promised.written)
            if (
                end > self.leader.log.verified_offset
                or content(self.leader.log, promised.start, end) != promised.written
            ):
                raise Violation(f"put {promised.put.number} was PUT_OK, and {self.leader.name} does not have it")
        if content(self.leader.log, 0, len(self.served)) != self.served:
            raise Violation(f"consumers have read up to {len(self.served)}, and {self.leader.name} has other bytes")
        self.check_tails_are_kept()

    def check_tails_are_kept(self) -> None:
        """All that was cut is in a file."""
        for tail in self.cut_tails:
            if not _is_kept(tail.node, tail.start, tail.written):
                raise Violation(f"{tail.node.name} has not kept what it has cut at {tail.start}")


def _in_sync(leader: SimNode) -> set[str]:
    """The addresses of the slaves that the leader itself calls in sync."""
    policy = None if leader.serving is None else leader.serving.factory.read_policy
    return set() if policy is None else {slave.identity for slave in policy.in_sync}


def _is_kept(node: SimNode, start: int, written: bytes) -> bool:
    """Whether a durable file has these bytes of the log, which begin at ``start``."""
    folder = node.configured.store_path_root_dir / NODE_FOLDER / CUT_FOLDER
    for path in node.disk.durable_files_in(folder):
        base, kept = int(path.name.partition(".")[0]), node.disk.durable_file(path) or b""
        if base <= start and kept[start - base :][: len(written)] == written:
            return True
    return False


def _common_end(ours: bytes, theirs: bytes) -> int:
    size = min(len(ours), len(theirs))
    if ours[:size] == theirs[:size]:
        return size
    return next(at for at in range(size) if ours[at] != theirs[at])


def _records_between(written: bytes, start: int, end: int) -> bool:
    """Whether a whole record, or a blank, of these bytes lies there."""
    size = int.from_bytes(written[start : start + 4], "big")
    return 0 < size <= end - start


def _is_blank(written: bytes, start: int) -> bool:
    """Whether the end of a segment is there, after its last record."""
    return written[start + 4 : start + 8] == BLANK_MAGIC_CODE.to_bytes(4, "big", signed=True)


def _queue_ends(node: SimNode) -> dict[tuple[str, int], int]:
    """The next offset of each queue, as the records of the node's log say."""
    settings, disk = node.settings, node.disk
    assert settings.mapped_file_size_commit_log is not None
    log = CommitLog(settings.commit_log_folder, settings.mapped_file_size_commit_log, owned=False, disk=disk)
    ends: dict[tuple[str, int], int] = {}
    try:
        end = log.scan(log.segment_bases[-1]).end if log.segment_bases else 0
        for stored in messages(log, log.min_offset, end):
            record = stored.record
            if record.sys_flag & TRANSACTION_TYPE_MASK not in TRANSACTION_TYPES:
                key = record.topic, record.queue_id
                ends[key] = max(ends.get(key, 0), record.queue_offset + 1)
    finally:
        log.close()
    return ends


class Failover(Simulation):
    """``master`` is the node that leads. All nodes can lead and follow; ``slaves`` has all of them."""

    def __init__(self, config: Config, seed: int) -> None:
        self.judge = self._make_judge()
        super().__init__(config, seed)
        assert isinstance(self.master, SimSlave)
        self.slaves = [self.master, *self.slaves]
        self.judge.leader = self.master

    def _make_judge(self) -> FailoverOracle:
        return FailoverOracle()

    def _make_oracle(self) -> FailoverOracle:
        return self.judge

    def _make_master(self, properties: Mapping[str, str], world: World) -> SimNode:
        return SimSlave(
            MASTER,
            self._folder / MASTER,
            properties,
            world,
            self._allow_list,
            master_name="",
            options=SlaveOptions(),
            remoting=True,
        )

    @property
    def leader(self) -> SimSlave:
        """The node that the operator has made the master."""
        assert isinstance(self.master, SimSlave)
        return self.master

    def _planned(self, node: SimNode, planned: Promotion, state: NodeState | None) -> None:
        self._look(lambda node: self.judge.planned(node, planned, state), node)

    def _promoted(self, node: SimNode, promotion: Promotion) -> None:
        assert isinstance(node, SimSlave)
        node.say(f"is promoted to {promotion.role.value} at {promotion.end}, epoch {promotion.epoch}")
        self.master = node
        self._look(lambda node: self.judge.promoted(node, promotion), node)

    def _rewinding(self, node: SimSlave, fork: Fork) -> None:
        node.say(f"is to be rewound from {fork.our_end} to {fork.offset}")
        leader = self.nodes.get(node.master_name)
        self._look(lambda _: self.judge.rewinding(node, fork, leader), node)

    def _rewound(self, node: SimSlave) -> None:
        self.judge.rewound(node)

    def _down(self, node: SimNode, process: Process, reason: str) -> None:
        super()._down(node, process, reason)
        if isinstance(node, SimSlave):
            self.judge.rewound(node)  # a rewind that was interrupted is over too: the next start may cut other bytes

    def _without_power(self, node: SimNode) -> None:
        limit = node.configured.store_path_root_dir / NODE_FOLDER / LIMIT_FILE  # a real file, which has no sync
        if limit.exists() and self.random.random() < 0.5:
            limit.unlink()
        super()._without_power(node)

    def take_over(self, node: SimSlave) -> None:
        """Go on with a node whose promotion was noted, although the command was killed after that."""
        root = node.configured.store_path_root_dir
        role = None if node.is_changing else promoted_role(root, node.disk)
        if role is not None and self.master is not node:
            node.say("was promoted before its command died")
            self.master = node
            self._look(lambda node: self.judge.took_over(node, role), node)

    def follow(self, slave: SimSlave, leader: SimSlave, options: SlaveOptions) -> None:
        """The operator changes a node's configuration: its next start is as this slave."""
        slave.master_name, slave.options = leader.name, options
        slave.configure_role(BrokerRole.SLAVE)

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Whether it comes true, while all gets through, before this time has passed."""
        deadline = self.clock.seconds() + seconds
        while not done() and self.clock.seconds() < deadline:
            self.settle()
            if done():
                return True
            upcoming = self.clock.next_time
            self.advance(max(0.0, min(deadline if upcoming is None else upcoming, deadline) - self.clock.seconds()))
        return done()


class FailoverWalk(Steps):
    """One run: twice around. Half of the seeds know only some of the faults: each is seen without others too."""

    simulation: Failover

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.simulation = Failover(_config(random, seed % 3 == 0), random.getrandbits(32))
        self._body_bytes = random.choice((100, 900, 2500))
        self._kinds = random.choice(((Kind.PLAIN,), (Kind.PLAIN, Kind.TAGGED), tuple(Kind)))
        self._known = _swarm(seed) if random.random() < 0.8 else frozenset({"consume"})
        """What may happen in this seed, of ``FAULTS`` and ``FEATURES``."""

    def run(self) -> None:
        """All steps, and the end. Raises Violation."""
        simulation = self.simulation
        simulation.start()
        simulation.settle()
        for _ in range(self.random.choice((1, 2, 2))):
            for _ in range(self.random.choice((2, 5, 12))):
                self._put()
                simulation.settle()
            self._some_steps(self.random.choice((0, 10, 30)))
            self._fail_over()
        self._end()

    def _some_steps(self, number: int) -> None:
        """What goes on meanwhile."""
        weights: dict[Callable[[], None], float] = {
            self._put: 10.0,
            self._deliver: 30.0,
            self._resolve: 8.0,
            self._flush: 12.0,
            self._pause: 5.0,
            **({self._consume: 3.0} if "consume" in self._known else {}),
            self._start: 3.0,
            **{getattr(self, f"_{fault}"): weight for fault, weight in FAULTS.items() if fault in self._known},
        }
        for _ in range(number):
            self.random.choices(list(weights), list(weights.values()))[0]()
            self.simulation.advance(0.001)

    # The story

    def _fail_over(self) -> None:
        """The leader is gone, one of the others leads, and the old one comes back."""
        simulation, random = self.simulation, self.random
        old = simulation.leader
        candidates = [slave for slave in simulation.slaves if slave is not old and not self._is_unfit(slave)]
        if not candidates:
            return
        is_cut_off = random.random() < 0.3
        self._lose(old, is_cut_off)
        chosen = random.choice([slave for slave in candidates if simulation.judge.is_fit(slave)] or candidates)
        self._some_steps(random.choice((0, 8)))
        self._promote(chosen)
        if simulation.leader is not chosen:  # it is of no use: the old master comes back as it was
            simulation.unblock()
            simulation.start()
            return
        for slave in simulation.slaves:
            if slave not in (old, chosen):
                self._point(slave, chosen)
        for _ in range(random.choice((0, 1, 4))):
            self._put()
            self._put(old)
            simulation.settle()
        self._some_steps(random.choice((0, 8)))
        simulation.unblock()
        self._bring_back(old, chosen)
        self._some_steps(random.choice((0, 15)))

    def _is_unfit(self, slave: SimSlave) -> bool:
        """Whether a promotion is refused: the operator chooses another one."""
        return slave.verdict is not None or not slave.disk.exists(slave.configured.commit_log_folder)

    def _lose(self, old: SimSlave, is_cut_off: bool) -> None:
        """The leader dies, loses power, is stopped, or is cut off and goes on."""
        simulation = self.simulation
        simulation.judge.leader_lost()
        if is_cut_off:
            for other in simulation.slaves:
                if other is not old:
                    simulation.block(old.name, other.name)
                    simulation.block(other.name, old.name)
        else:
            self.random.choice((simulation.kill, simulation.lose_power, simulation.stop))(old.name)
            simulation.advance(0.01)
            simulation.kill(old.name)
        simulation.advance(self.random.choice((0.5, 25.0)))

    def _calls(self) -> int | None:
        """After how many system calls the next thing dies, None for never."""
        dies = "die_in_a_command" in self._known and self.random.random() < 0.5
        return self.random.randint(0, MAX_SYSTEM_CALLS) if dies else None

    def _arm(self, node: SimSlave, calls: int | None) -> None:
        if node.process is not None and calls is not None:
            node.process.system_calls_until_death = calls
            node.process.takes_power = self.random.random() < 0.5

    def _promote(self, chosen: SimSlave) -> None:
        """Until it is done, or refused: a command that was interrupted is given again."""
        root, disk = chosen.configured.store_path_root_dir, chosen.disk
        for attempt in range(MAX_ATTEMPTS):
            if chosen.process is None and promoted_role(root, disk) is None:
                state = NodeState.read(root, disk)
                chosen.is_promotable |= state is not None and state.role == BrokerRole.SLAVE.value
            calls = None if attempt == MAX_ATTEMPTS - 1 else self._calls()
            role = self.random.choice((BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER))
            if chosen.runs and not chosen.is_changing and not chosen.stopping and self.random.random() < 0.6:
                self._promote_running(chosen, role, calls)
            else:
                self._promote_store(chosen, role, calls)
            self.simulation.take_over(chosen)
            self.simulation.check()
            if self.simulation.leader is chosen:
                break
        chosen.is_promotable = False
        if self.simulation.leader is chosen:
            self.simulation.start(chosen.name)
            self.simulation.settle()

    def _promote_running(self, chosen: SimSlave, role: BrokerRole, calls: int | None) -> None:
        self.simulation.advance(0.1)
        if not chosen.runs or chosen.service is None or chosen.is_changing:
            return
        if chosen.service.replica.state is not ReplicaState.CONNECTING and self.random.random() < 0.5:
            self.simulation.advance(25.0)  # until it sees that its master is gone
        if chosen.runs and chosen.service is not None and chosen.verdict is None and not chosen.is_changing:
            self._arm(chosen, calls)
            chosen.promote(role)
            self._finish(chosen, lambda: not chosen.is_changing)

    def _promote_store(self, chosen: SimSlave, role: BrokerRole, calls: int | None) -> None:
        if chosen.process is not None:
            self.simulation.stop(chosen.name)
            self._finish(chosen, lambda: chosen.process is None)
            self.simulation.kill(chosen.name)

        async def work(_: Process) -> str:
            return await chosen.promote_offline(role, force=False)

        self._command(chosen, "promote", work, calls)

    def _command(self, node: SimSlave, name: str, work: Work, calls: int | None) -> None:
        node.command(name, work, calls)
        self._arm(node, calls)
        self._finish(node, lambda: node.process is None)

    def _finish(self, node: SimSlave, done: Callable[[], bool]) -> None:
        """Go on until it is done, cutting its lines at times."""
        if "cut_a_command" in self._known and self.random.random() < 0.3:
            for _ in range(self.random.randint(1, 12)):
                self.random.choice((self._deliver, self._resolve, self._flush, self._deliver))()
                self.simulation.advance(0.001)
            self.simulation.cut(node.name)
        if not self.simulation.wait(lambda: node.process is None or done(), 200.0):
            raise Violation(f"{node.name} has not come to an end")

    def _point(self, slave: SimSlave, leader: SimSlave) -> None:
        """A slave of the old master gets the new one, at once or late."""
        if self.random.random() < 0.7:
            self.simulation.kill(slave.name)
            self.simulation.follow(slave, leader, REWINDING)
            self.simulation.start(slave.name)

    def _bring_back(self, old: SimSlave, leader: SimSlave) -> None:
        """The old master is rewound by a command, or by itself, and follows."""
        simulation = self.simulation
        simulation.kill(old.name)
        if self.random.random() < 0.6:
            self._rewind(old, leader)
        simulation.follow(old, leader, REWINDING)
        if promoted_role(old.configured.store_path_root_dir, old.disk) is not None and self.random.random() < 0.7:
            self._rewind(old, leader, for_sure=True)
        simulation.start(old.name, system_calls_until_death=self._calls())

    def _rewind(self, node: SimSlave, leader: SimSlave, for_sure: bool = False) -> None:
        simulation = self.simulation
        node.master_name = leader.name
        for attempt in range(MAX_ATTEMPTS):
            simulation.start(leader.name)
            calls = None if attempt == MAX_ATTEMPTS - 1 else self._calls()
            self._command(node, "rewind", node.rewind_offline, calls)
            simulation.check()
            if calls is not None and not for_sure and self.random.random() < 0.3:
                break  # the operator does not care why it ended
            if calls is None and not for_sure:
                break
            if promoted_role(node.configured.store_path_root_dir, node.disk) is None and calls is None:
                break
        else:
            if for_sure and leader.runs and self.simulation.judge.has_nothing_in_common(node, leader):
                simulation.wipe(node.name)  # what the operator does when a rewind finds nothing

    # Steps

    def _put(self, node: SimSlave | None = None) -> None:
        node = self.simulation.leader if node is None else node
        if node.runs and node.is_master and not node.stopping and not node.is_changing:
            size = self.random.randint(0, self._body_bytes)
            self.simulation.put(size, self.random.random() < 0.9, self.random.choice(self._kinds), node)

    def _pause(self) -> None:
        self.simulation.advance(self.random.choice((0.01, 0.5, 3.0, 21.0)))

    def _start(self) -> None:
        """Of a slave that is down, or the leader."""
        node = self.random.choice(self.simulation.slaves)
        if node is self.simulation.leader or not node.is_master:
            self.simulation.start(node.name)

    def _consume(self) -> None:
        """Consumers commit offsets on the leader; its slaves copy its tables, which may be newer than their logs."""
        leader = self.simulation.leader
        if not leader.runs or leader.is_changing:
            return
        assert leader.store is not None
        config = leader.store.root / CONFIG_FOLDER
        table = ConsumerOffsetTable.read(config, leader.disk)
        for (topic, queue_id), queue in leader.store.derived.queues.queues.items():
            if topic != SCHEDULE_TOPIC:
                offsets = table.offset_table.setdefault(f"{topic}@group", {})
                offsets[queue_id] = self.random.randint(
                    min(offsets.get(queue_id, 0), queue.max_offset), queue.max_offset
                )
        self._write(leader, table)
        if not leader.runs:
            return
        assert leader.schedule is not None
        for slave in self.simulation.slaves:
            if slave.runs and slave.master_name == leader.name and not slave.is_master and self.random.random() < 0.8:
                self._write(slave, table)
                self._copy_delays(slave, leader.schedule.table.snapshot(), leader.log.verified_offset)

    @staticmethod
    def _copy_delays(slave: SimSlave, delays: DelayOffsetTable, log_end: int) -> None:
        if slave.process is not None and slave.schedule is not None:
            slave.process.call(slave.schedule.replace, delays, log_end)

    @staticmethod
    def _write(node: SimSlave, *tables: ConsumerOffsetTable | DelayOffsetTable) -> None:
        """The node writes these tables; it may die of that."""
        for table in tables:
            if node.process is not None:
                config = node.configured.store_path_root_dir / CONFIG_FOLDER
                node.process.call(table.write, config, node.disk)

    def _cut(self) -> None:
        self.simulation.cut(self.random.choice(self.simulation.slaves).name)

    def _block(self) -> None:
        slave = self.random.choice(self.simulation.slaves)
        if not slave.is_master:
            self.simulation.block(slave.master_name, slave.name)
            self.simulation.block(slave.name, slave.master_name)
        if self.random.random() < 0.5:
            self.simulation.unblock()

    def _kill(self) -> None:
        self.simulation.kill(self.random.choice(self.simulation.slaves).name)

    def _kill_within(self) -> None:
        self._arm(self.random.choice(self.simulation.slaves), self.random.randint(0, 20))

    def _lose_power(self) -> None:
        self.simulation.lose_power(self.random.choice(self.simulation.slaves).name)

    # The end

    def _end(self) -> None:
        """Without faults all follow the leader, and have its log."""
        simulation = self.simulation
        simulation.say("all", "faults end")
        simulation.unblock()
        leader = simulation.leader
        for node in simulation.slaves:
            node.disk.heal()
            if node.process is not None:
                node.process.disarm()
        for node in simulation.slaves:
            is_pointed = node.master_name == leader.name and node.options == REWINDING
            if node is not leader and (node.is_master or not is_pointed):
                simulation.kill(node.name)
                self._rewind_back(node, leader)
        for _ in range(self.random.choice((0, 3))):
            simulation.start()
            self._put()
        if not simulation.wait(self._all_follow, CONVERGENCE_SECONDS):
            raise Violation(f"after {CONVERGENCE_SECONDS:g} s without faults: {simulation.standing()}")
        simulation.wait(simulation.is_delivered, DELIVERED_SECONDS)
        simulation.wait(simulation.is_dispatched, DELIVERED_SECONDS)
        for node in simulation.slaves:
            if node.runs:
                simulation.oracle.check_at_rest(node, clock_is_true=True)
        simulation.judge.check_kept()

    def _rewind_back(self, node: SimSlave, leader: SimSlave) -> None:
        self.simulation.follow(node, leader, REWINDING)
        if promoted_role(node.configured.store_path_root_dir, node.disk) is not None:
            self._known = frozenset()
            self._rewind(node, leader, for_sure=True)

    def _all_follow(self) -> bool:
        simulation, leader = self.simulation, self.simulation.leader
        simulation.start()
        if not leader.runs:
            return False
        for slave in simulation.slaves:
            if slave is leader:
                continue
            if not slave.runs or slave.is_changing or slave.service is None:
                return False
            if not simulation.oracle.equal(slave, leader):
                self._rewind_one_that_cannot_know(slave, leader)
                if slave.verdict is not None and simulation.judge.has_nothing_in_common(slave, leader):
                    simulation.wipe(slave.name)  # what the operator does when a rewind finds nothing
                return False
        return True

    def _rewind_one_that_cannot_know(self, slave: SimSlave, leader: SimSlave) -> None:
        """Without the remoting port a slave does not learn that its master's log is shorter: the operator does."""
        if slave.remoting or slave.verdict is not None or self.simulation.oracle.fits(slave, leader):
            return
        self._known = frozenset()
        self.simulation.kill(slave.name)
        self._rewind(slave, leader)
        if self.simulation.judge.has_nothing_in_common(slave, leader):
            self.simulation.wipe(slave.name)
        self.simulation.start(slave.name)


def _swarm(seed: int) -> frozenset[str]:
    """Everything in half of the seeds, and some of it in the others. A generator of its own: the walk draws as ever."""
    random, everything = Random(f"swarm {seed}"), (*FAULTS, *FEATURES)
    known = everything if random.random() < 0.5 else random.sample(everything, random.randint(0, len(everything)))
    return frozenset(known)


def _config(random: Random, reads_confirmed: bool) -> Config:
    slaves = [_slave(random) for _ in range(random.choice((1, 1, 2)))]
    master = {
        "brokerRole": random.choice(("SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER")),
        "flushDiskType": random.choice(FLUSH_TYPES),
    }
    common = {
        "inSyncReplicas": str(random.choice((2, 1 + len(slaves)))),
        "flushCommitLogLeastPages": str(random.choice((0, 4))),
        "flushCommitLogThoroughInterval": str(random.choice((50, 500, 10_000))),
        "haTransferBatchSize": str(random.choice((100, 1000, 32_768))),
    }
    if reads_confirmed:
        common["readUpTo"] = "confirmed"
    return Config(master, slaves, common, random.choice((500, 65_536)))


def _slave(random: Random) -> SlaveConfig:
    options = SlaveOptions(start_from=StartFrom(), on_gap=random.choice(tuple(OnGap)))
    return SlaveConfig({"flushDiskType": random.choice(FLUSH_TYPES)}, options, remoting=random.random() < 0.8)
