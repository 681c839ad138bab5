"""Two or three nodes with automatic failover, and a coordinator: nobody but the nodes themselves decides who leads.

The faults of other stories, and more: processes stop and go on (SIGSTOP), clocks go at different rates, the coordinator
is gone, cut off, or set back to an older copy of its keys, requests to it come late.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from twisted.logger import LogEvent

from rmqha.coordination.interface import KeyValue
from rmqha.coordination.interface import Put as PutKey
from rmqha.failover.agent import FailoverAgent
from rmqha.failover.keys import (
    CONFIG,
    REQUEST,
    SYNC,
    ClusterConfig,
    Holder,
    Order,
    Request,
    SyncSet,
    decode,
    encode,
    prefix_of,
)
from rmqha.failover.states import FailoverState
from rmqha.failover.view import ClusterView
from rmqha.ha.slave.slaveservice import SlaveOptions
from rmqha.store.epochs import read_epochs
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.offline.promote import Promotion
from rmqha.testing.sim.audit import TRANSACTION_TYPE_MASK, TRANSACTION_TYPES, messages
from rmqha.testing.sim.clusternodes import BROKER, CLUSTER, ClusterNode, PromiseQuestion
from rmqha.testing.sim.coordinator import COORDINATOR, SimCoordinator
from rmqha.testing.sim.failover import Failover, FailoverOracle
from rmqha.testing.sim.histories import Recorder
from rmqha.testing.sim.network import Attempt
from rmqha.testing.sim.nodes import SimNode, World
from rmqha.testing.sim.oracle import Put, content
from rmqha.testing.sim.simulation import MASTER, Config, SlaveConfig
from rmqha.testing.sim.violation import Violation

CONFIG_OF_CLUSTER = ClusterConfig(ttl=15, renew=3.0, timeout=2.0, margin=2.0, failover_pause=0.0)
TRUE_RATES = (0.95, 1.05)
"""With clocks that go wrong more than that two nodes can hold the right to lead. Still no SEND_OK is lost."""
PREFIX = prefix_of(CLUSTER, BROKER)


@dataclass(slots=True)
class Promised:
    """Bytes of the log that a producer may count on, or that a consumer may have read.

    ``holders`` are the nodes that ``sync`` names, without those that have lost these bytes with the power since.
    """

    what: str
    start: int
    written: bytes
    holders: frozenset[str]

    @property
    def end(self) -> int:
        """The offset that follows."""
        return self.start + len(self.written)


class Ambush:
    """Waits until the trace has a line that begins with ``words`` for this time, and then lets ``spring`` happen.

    ``spring`` is called with the name of the node that the line is about, once the step that led to it is over.
    """

    def __init__(self, words: str, times: int, spring: Callable[[str], None]) -> None:
        self._words = words
        self._times = times
        self._spring = spring
        self._name = ""
        self.is_due = False

    def hear(self, name: str, text: str) -> None:
        """A line of the trace."""
        if not self.is_due and text.startswith(self._words):
            self._times -= 1
            self.is_due = self._times == 0
            self._name = text.rpartition(" ")[2] if name == COORDINATOR else name

    def spring(self) -> None:
        """It is due."""
        self._spring(self._name)


class ClusterOracle(FailoverOracle):
    """Knows what leaders have promised, and that a new one must have it."""

    def __init__(self, simulation: "Cluster") -> None:
        super().__init__()
        self._simulation = simulation
        self.safe: list[Promised] = []
        """What each later leader must have: without what all have lost that were to hold it."""
        self.leaders: dict[int, str] = {}
        """Who has answered PUT_OK in each epoch."""
        self.takeovers = 0
        self.is_unseen = False
        """Whether a node has led from keys of which nobody who was there knew that they were too old."""
        self._lost_at: dict[str, float] = {}
        self._sync = SyncSet(0, "")
        """What it holds, as far as a leader of that epoch has written it."""
        self._begun = 0
        """The epoch of the newest leader."""
        self._leads = ""
        """Who that is."""
        self._served: dict[tuple[str, int], int] = {}
        """Up to where consumers may have read of a node's log in an epoch."""

    def lost_power(self, node: SimNode, now: float) -> None:
        super().lost_power(node, now)
        if node.settings.flush_disk_type.value != "SYNC_FLUSH":
            self._has_only(node, self.seen(node).promise.after_kill, now)

    def wiped(self, node: SimNode, now: float) -> None:
        super().wiped(node, now)
        self._has_only(node, 0, now)

    def _has_only(self, node: SimNode, end: int, now: float) -> None:
        """The node's log may have lost what follows ``end``. What no node is left to hold is forgiven."""
        self._lost_at[node.name] = now
        for promised in self.safe:
            if promised.end > end:
                promised.holders -= {node.name}
        self._forgive()

    def _forgive(self) -> None:
        held = [promised for promised in self.safe if promised.holders]
        if len(held) < len(self.safe) and self._simulation.history is not None:
            self._simulation.history.note("forgiven")
        self.safe = held

    def _check_timeout(self, put: Put, now: float) -> None:
        """A wait may end early: the leader has lost the lead."""

    def check_unanswered(self, put: Put, now: float) -> None:
        if put.node.process is not None and not put.node.process.is_stopped and now - put.put_time > 600:
            raise Violation(f"put {put.number} is not answered after {now - put.put_time:g} s")

    def acknowledged(self, put: Put, slaves: list[SimNode], needed: int) -> None:
        node = put.node
        assert isinstance(node, ClusterNode)
        assert node.leadership is not None, "only a leader answers PUT_OK"
        epoch = node.leadership.epoch
        first = self.leaders.setdefault(epoch, node.name)
        if first != node.name:
            raise Violation(f"{first} and {node.name} have both answered PUT_OK in epoch {epoch}")
        if not node.leadership.is_held():
            raise Violation(f"{node.name} has answered PUT_OK after its right to lead had ended")
        assert put.result is not None
        assert put.result.append is not None
        start = put.result.append.wrote_offset
        self._promise(node, f"put {put.number}", start, put.end)

    def _promise(self, node: ClusterNode, what: str, start: int, end: int) -> None:
        """These bytes are on each node of the sync set.

        A node that puts wait for only since then may get them later: ``sync`` names it when it has them.
        """
        assert node.leadership is not None
        assert node.agent is not None
        keeper = node.agent.sync_set
        now = self._simulation.clock.seconds()
        written = bytes(self.written_by(node)[start:end])
        if self._begun > node.leadership.epoch and not self.is_unseen and not self._simulation.forced:
            newest = self._simulation.nodes[self._leads]
            if self._bytes(newest, start, end) != written:
                raise Violation(f"{node.name} promises {what}, and {newest.name} leads already, without it")
        for name in node.leadership.required:
            assert keeper is not None, "it says who is required"
            other = self._simulation.nodes[name]
            is_to_hold = end > keeper.counts_from(name) and self._lost_at.get(name, -1.0) < now - 60
            if is_to_hold and self._bytes(other, start, end) != written:
                raise Violation(f"{what} is promised, and {name}, which is in the sync set, does not have it")
        sync = self._simulation.view().sync
        named = frozenset() if sync is None or sync.epoch != node.leadership.epoch else frozenset(sync.holders)
        if not named <= {node.name, *node.leadership.required}:
            raise Violation(f"{what} is promised, and {sorted(named)} are in the sync set, but are not waited for")
        holders = named | {node.name}  # of others nobody knows that they have it
        kept = frozenset(name for name in holders if self._bytes(self._simulation.nodes[name], start, end) == written)
        self.safe.append(Promised(what, start, written, kept))

    @staticmethod
    def _bytes(node: SimNode, start: int, end: int) -> bytes:
        size = node.settings.mapped_file_size_commit_log
        assert size is not None
        return node.disk.bytes_at(node.settings.commit_log_folder, size, start, end, durable=False)

    def check(self, node: SimNode) -> None:
        super().check(node)
        if isinstance(node, ClusterNode) and node.is_master and node.leadership is not None and node.store is not None:
            self._note_reads(node)

    def _note_reads(self, node: ClusterNode) -> None:
        assert node.store is not None
        assert node.leadership is not None
        limit, members = node.store.read_limit, node.members
        if limit is None or limit.is_lifted or members is None or node.leadership.is_ended:
            return
        end = min(limit.offset, node.log.verified_offset)
        if end > members.confirmed_offset:
            raise Violation(f"{node.name} lets consumers read up to {end}, and {members.confirmed_offset} is confirmed")
        key = node.name, node.leadership.epoch
        start = self._served.get(key)
        self._served[key] = end
        if start is not None and start < end:
            self._promise(node, f"what consumers have read from {start} to {end}", start, end)
            if self._simulation.history is not None:
                self._simulation.history.read(stored.record for stored in messages(node.log, start, end))

    def begins_to_lead(self, node: ClusterNode, promotion: Promotion) -> None:
        """The node leads from now on, with this log, unless its lease ended while it made its store a master's."""
        if node.leadership is None or not node.leadership.is_held():
            return
        self.takeovers += 1
        end = promotion.end
        for promised in self.safe:
            if promised.end > end or self._bytes(node, promised.start, promised.end) != promised.written:
                if self._simulation.forced != node.name and not self._nobody_knew():
                    raise Violation(
                        f"{promised.what} was safe on {sorted(promised.holders)}; {node.name} leads without it"
                    )
                promised.holders = frozenset()
        self._forgive()
        known = node.disk.durable_file(node.configured.store_path_root_dir / NODE_FOLDER / "cluster.json") or b"{}"
        if orjson.loads(known).get("epoch", 0) < promotion.epoch:
            raise Violation(f"{node.name} leads in epoch {promotion.epoch}, and has not noted that durably")
        last_epoch = read_epochs(node.configured.store_path_root_dir, node.disk)[-1]
        if (last_epoch.epoch, last_epoch.start) != (promotion.epoch, end):
            raise Violation(f"{node.name} leads in epoch {promotion.epoch}, and its list ends with {last_epoch}")
        self._begun, self._leads = promotion.epoch, node.name
        self.look_at_sync(self._simulation.view().sync)

    def _nobody_knew(self) -> bool:
        """Whether the coordinator had gone back, and neither the new leader nor a node that was there could tell it."""
        truth = self._simulation.coordinator.truth
        self.is_unseen |= truth.has_lost and not truth.knowers
        return truth.has_lost and not truth.knowers

    def look_at_sync(self, sync: SyncSet | None) -> None:
        """Who holds every message from now on, if the leader has begun to lead whose word that is.

        A takeover writes ``sync`` before that: then it is not known yet that the node has all that was promised.
        """
        if sync is None or sync == self._sync or sync.epoch != self._begun:
            return
        new = frozenset(
            name
            for name, holder in sync.holders.items()
            if self._sync.holders.get(name) != holder and self._is_intact(name, holder)
        )
        for promised in self.safe:
            for name in new:
                if self._bytes(self._simulation.nodes[name], promised.start, promised.end) != promised.written:
                    raise Violation(f"{promised.what} is promised, and {name}, which sync names now, does not have it")
            promised.holders = promised.holders & frozenset(sync.holders) | new
        self._sync = sync
        self._forgive()

    def _is_intact(self, name: str, holder: Holder) -> bool:
        """Whether it has lost nothing since the leader heard of it."""
        node = self._simulation.nodes[name]
        assert isinstance(node, ClusterNode)
        return not holder.boot or node.is_whole_since(holder.boot)

    def check_end(self, leader: ClusterNode) -> None:
        """At the end the leader has all that was promised, and each queue's offsets follow each other."""
        for promised in self.safe:
            end = promised.end
            if end > leader.log.verified_offset or content(leader.log, promised.start, end) != promised.written:
                raise Violation(f"{promised.what} was safe, and {leader.name} does not have it")
        self.check_tails_are_kept()
        self._check_offsets(leader.log)

    @staticmethod
    def _check_offsets(log: CommitLog) -> None:
        ends: dict[tuple[str, int], int] = {}
        for stored in messages(log, log.min_offset, log.verified_offset):
            record = stored.record
            if record.sys_flag & TRANSACTION_TYPE_MASK in TRANSACTION_TYPES:
                continue
            key = record.topic, record.queue_id
            if record.queue_offset != ends.get(key, 0):
                raise Violation(f"queue {key} goes from offset {ends.get(key, 0)} to {record.queue_offset}")
            ends[key] = record.queue_offset + 1


class Cluster(Failover):
    """``slaves`` has all nodes: each can lead, and follow."""

    judge: ClusterOracle

    def __init__(self, config: Config, seed: int, rates: Mapping[str, float]) -> None:
        self._rates = rates
        self.forced = ""
        """The node that an operator has made the leader, even with a shorter log."""
        self.ambush: Ambush | None = None
        self._seen_sync: tuple[int, KeyValue | None] = 0, None
        """How often the coordinator had gone back, and ``sync``, when they were last looked at."""
        super().__init__(config, seed)
        self.coordinator = SimCoordinator(self.clock, self.network, self.random, self.say)
        self.members = [node for node in self.slaves if isinstance(node, ClusterNode)]
        self.judge.leader = None  # the nodes decide, and it changes
        for member in self.members:
            member.coordinator = self.coordinator
        self.coordinator.transact([], [PutKey(PREFIX + CONFIG, encode(CONFIG_OF_CLUSTER))])

    def record(self) -> None:
        """Take down what clients do: the histories are complete when ``read_all`` was called."""
        self.history = Recorder(self.clock)
        self.coordinator.record()

    def write_histories(self, folder: Path, name: str) -> None:
        """Write ``NAME-queues.jsonl`` and ``NAME-keys.jsonl``."""
        for history, what in ((self.history, "queues"), (self.coordinator.history, "keys")):
            assert history is not None, "it was taken down"
            history.end()
            history.write(folder / f"{name}-{what}.jsonl")

    def read_all(self, node: ClusterNode) -> None:
        """At the end a consumer reads all queues of this node."""
        if self.history is None or node.store is None:
            return
        store = node.store
        for queue in store.derived.queues.queues.values():
            units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
            found = [None if unit is None else store.reader.message_at(unit[0]) for unit in units]
            self.history.read((record for record in found if record is not None), "read-all")

    def _make_judge(self) -> ClusterOracle:
        return ClusterOracle(self)

    def _make_master(self, properties: Mapping[str, str], world: World) -> SimNode:
        return self._make_slave(MASTER, properties, world, SlaveConfig())

    def _make_slave(self, name: str, properties: Mapping[str, str], world: World, slave: SlaveConfig) -> ClusterNode:
        rate = self._rates.get(name, 1.0)
        folder = self._folder / name
        return ClusterNode(
            name, folder, properties, world, master_name="", options=SlaveOptions(), remoting=True, rate=rate
        )

    def _promoted(self, node: SimNode, promotion: Promotion) -> None:
        assert isinstance(node, ClusterNode)
        node.say(f"leads from {promotion.end} on, epoch {promotion.epoch}")

        def look(_: SimNode) -> None:
            self.judge.begins_to_lead(node, promotion)

        self._look(look, node)

    def _look_at_log(self, event: LogEvent) -> None:
        source = event.get("log_source")
        if isinstance(source, FailoverAgent) and all(node.agent is not source for node in self.members):
            return  # its process is dead: what its code still does on its way out is nobody's bug
        super()._look_at_log(event)

    def say(self, name: str, text: str) -> None:
        super().say(name, text)
        if self.ambush is not None:
            self.ambush.hear(name, text)

    def check(self) -> None:
        super().check()
        self._check_holders()
        self._look_at_sync()
        ambush = self.ambush
        if ambush is not None and ambush.is_due:
            self.ambush = None
            ambush.spring()

    def _look_at_sync(self) -> None:
        before, id_ = self._seen_sync, self.coordinator.truth.times_back
        held = self.coordinator.state.keys.get(PREFIX + SYNC)
        if before == (id_, held):
            return
        self._seen_sync = id_, held
        if held is not None and id_ == before[0]:  # else no leader has written it, it was set back
            self.judge.look_at_sync(decode(SyncSet, held.key, held.value))

    def _check_holders(self) -> None:
        """Only one node holds the right to lead. Raises Violation."""
        leaderships = [(node, node.leadership) for node in self.members if node.leadership is not None]
        if len(leaderships) < 2:
            return
        holders = [
            node.name
            for node, leadership in leaderships
            if node.runs
            and node.is_master
            and node.process is not None
            and not node.process.is_stopped
            and leadership.is_held()
        ]
        is_true = all(TRUE_RATES[0] <= rate <= TRUE_RATES[1] for rate in self._rates.values())
        if len(holders) > 1 and is_true and not self.forced and not self.coordinator.truth.times_back:
            raise Violation(f"{' and '.join(holders)} hold the right to lead at the same time")

    def _without_power(self, node: SimNode) -> None:
        assert isinstance(node, ClusterNode)
        node.lost_power()
        super()._without_power(node)

    # Steps

    def resolve(self, attempt: Attempt) -> None:
        if attempt.process.is_stopped:
            return
        if isinstance(attempt, PromiseQuestion):
            self._resolve_promise(attempt)
        else:
            super().resolve(attempt)

    def _resolve_promise(self, question: PromiseQuestion) -> None:
        node, name = self.nodes[question.target], question.process.name
        assert isinstance(node, ClusterNode)
        if question.answer_on_way is not None:
            if self.network.passes(node.name, name):
                self.say(name, f"{node.name} promises: {question.answer_on_way}")
                question.process.call(question.succeed, question.answer_on_way)
        elif node.process is None or node.agent is None:
            if node.power:
                question.process.call(question.refuse)
        elif (
            self.network.passes(name, node.name) and not node.process.is_stopped and node.name not in self.network.mute
        ):
            question.answer_on_way = node.agent is not None and node.agent.promise(question.promise)
        self.check()

    def coordinate(self, number: int | None = None) -> bool:
        """One of the coordinator's requests, answers or changes gets on; the first, or this one."""
        news = self.coordinator.news()
        if not news:
            return False
        self.coordinator.step(news[0 if number is None else number % len(news)])
        self.check()
        return True

    def _settle_some(self) -> bool:
        busy = super()._settle_some()
        while self.coordinate():
            busy = True
        return busy

    def _would_resolve(self, attempt: Attempt) -> bool:
        target = self.nodes[attempt.target].process if attempt.target in self.nodes else None
        if attempt.process.is_stopped or (target is not None and target.is_stopped):
            return False
        return super()._would_resolve(attempt)

    def flush_step(self, name: str) -> bool:
        process = self.nodes[name].process
        return False if process is not None and process.is_stopped else super().flush_step(name)

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        process = self.nodes[name].process
        if process is not None and not process.is_stopped:
            self.say(name, "is stopped by SIGSTOP")
            process.freeze()

    def go_on(self, name: str) -> None:
        """SIGCONT."""
        process = self.nodes[name].process
        if process is not None and process.is_stopped:
            self.say(name, "goes on after SIGCONT")
            process.go_on()
            self.check()

    # What an operator sees and does

    def view(self) -> ClusterView:
        """The coordinator's keys."""
        return ClusterView.read(PREFIX, self.coordinator.state.range(PREFIX))

    def order(self, order: Order, to: str = "", force: bool = False) -> None:
        """An operator gives an order."""
        request = Request(f"r{self.random.getrandbits(32)}", order.value, to, force)
        self.say("operator", f"orders {order.value} {to}{' by force' if force else ''}")
        if force:
            self.forced = to
            self.coordinator.truth.settled()
        self.coordinator.write_as_operator(PutKey(PREFIX + REQUEST, encode(request)))

    @property
    def leading(self) -> ClusterNode | None:
        """The node that leads, and knows it."""
        found = [
            node
            for node in self.members
            if node.agent is not None
            and node.runs
            and node.agent.state is FailoverState.LEADER
            and node.leadership is not None
            and node.leadership.is_held()
            and not node.is_changing
        ]
        return found[0] if len(found) == 1 else None

    def standing(self) -> str:
        found = [super().standing()]
        for node in self.members:
            agent = node.agent
            if agent is not None:
                found.append(f"{node.name} {agent.state.name} ({agent.reason}; {agent.problem})")
        view = self.view()
        return "; ".join([*found, f"leader {view.leader}", f"sync {view.sync}"])
