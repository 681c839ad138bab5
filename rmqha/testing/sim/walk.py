"""A simulation by chance: one seed decides what there is, what is done, and what fails."""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random

from rmqha.ha.admission.allowlist import AllowList
from rmqha.ha.slave.replica import StartFrom
from rmqha.ha.slave.slaveservice import OnGap, SlaveOptions
from rmqha.testing.sim.clusterwalk import ClusterWalk
from rmqha.testing.sim.coverage import Counts, note
from rmqha.testing.sim.failover import FailoverWalk
from rmqha.testing.sim.kinds import Kind
from rmqha.testing.sim.network import OUR_NETWORK, Connecting
from rmqha.testing.sim.nodes import SimSlave
from rmqha.testing.sim.simulation import (
    FLUSH_TYPES,
    MASTER,
    SEGMENT_SIZE,
    Config,
    Simulation,
    SlaveConfig,
    delete_first_segment,
    wait_for_checkpoint,
)
from rmqha.testing.sim.steps import Steps
from rmqha.testing.sim.violation import Violation
from rmqha.wire.transfer import TRANSFER_HEADER, encode_report

FAULTS = (
    "cut",
    "block",
    "kill",
    "kill_within",
    "lose_power",
    "lose_power_within",
    "lose_power_after_checkpoint",
    "rot",
    "stop",
    "disk_full",
    "disk_error",
    "intrude",
    "impersonate",
    "pretend",
    "slow_slave",
    "delete",
    "wall_clock",
)
STEPS = (20, 40, 80, 160)
MAX_SYSTEM_CALLS = 12
RETRY_SECONDS = 2.75
"""After that a slave whose connection was cut tries the next one."""
PAUSES = (0.001, 0.01, 0.1, 0.5, 1.0, 3.0, 6.0, 21.0)


@dataclass(frozen=True)
class Outcome:
    """What a seed led to; ``violation`` is None where all held."""

    seed: int
    trace: list[str]
    violation: str | None
    puts: int
    put_ok: int
    steps: int
    coverage: Counts = field(default_factory=Counter)
    """What happened to nodes in which state, if somebody wants to know."""

    def without_trace(self) -> "Outcome":
        """The same, which another process gets faster."""
        return replace(self, trace=[])


class Story(Enum):
    """What is simulated."""

    REPLICATION = "replication"
    """One master, its slaves and all faults."""
    FAILOVER = "failover"
    """Slaves are promoted, old masters rewound."""
    CLUSTER = "cluster"
    """Automatic failover: the nodes themselves find their leader, with a coordinator."""

    def __str__(self) -> str:
        return self.value


def run_seed(
    seed: int, story: Story = Story.REPLICATION, histories: Path | None = None, counts: bool = False
) -> Outcome:
    """Simulate what this seed decides, to the end or to the first violation.

    A story with a coordinator writes its histories into that folder. With ``counts`` the outcome has its coverage.
    """
    walks: dict[Story, Callable[[int], Walk | FailoverWalk | ClusterWalk]] = {
        Story.REPLICATION: Walk,
        Story.FAILOVER: FailoverWalk,
        Story.CLUSTER: ClusterWalk,
    }
    walk = walks[story](seed)
    violation = None
    if histories is not None and isinstance(walk, ClusterWalk):
        walk.simulation.record()
    coverage: Counts = Counter()
    if counts:
        walk.simulation.listener = partial(note, coverage)
    with walk.simulation.running():
        try:
            walk.run()
        except Violation as found:
            violation = str(found)
        except Exception:  # a reactor would have had to deal with it
            violation = traceback.format_exc()
    if histories is not None and isinstance(walk, ClusterWalk):
        walk.simulation.write_histories(histories, f"seed-{seed}")
    puts = walk.simulation.puts
    ok = sum(put.status is not None and put.status.name == "PUT_OK" for put in puts)
    return Outcome(seed, walk.simulation.trace, violation, len(puts), ok, len(walk.simulation.trace), coverage)


class Walk(Steps):
    """One run. Each seed knows only some of the faults, so that each is seen with and without the others."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.simulation = Simulation(_config(random), random.getrandbits(32))
        self._body_bytes = random.choice((100, 900, 3000))
        self._steps = random.choice(STEPS)
        self._kinds = random.choice(((Kind.PLAIN,), (Kind.PLAIN, Kind.TAGGED), tuple(Kind), tuple(Kind)))
        faults = random.sample(FAULTS, random.randint(0, len(FAULTS)))
        weights = {
            self._put: 10.0,
            self._deliver: 40.0,
            self._resolve: 10.0,
            self._flush: 12.0,
            self._pause: 8.0,
            self._start: 4.0,
            self._heal: 2.0,
            **{getattr(self, f"_{fault}"): random.choice((0.3, 1.0, 3.0)) for fault in FAULTS if fault in faults},
        }
        self._actions: list[Callable[[], None]] = list(weights)
        self._weights = list(weights.values())

    def run(self) -> None:
        """All steps, and the end. Raises Violation."""
        self.simulation.start()
        for _ in range(self.random.choice((0, 0, 4, 16, 16))):  # so that faults meet nodes that have something to lose
            self._put()
            self.simulation.settle()
        for _ in range(self._steps):
            self.random.choices(self._actions, self._weights)[0]()
            self.simulation.advance(0.001)
        self.simulation.stop_faults()
        for _ in range(self.random.choice((0, 0, 3, 12))):  # a log that has lost its tail grows another
            self._put()
        self.simulation.converge()

    def _node(self) -> str:
        return self.random.choice(list(self.simulation.nodes))

    def _running(self) -> str | None:
        names = [node.name for node in self.simulation.nodes.values() if node.process is not None]
        return self.random.choice(names) if names else None

    def _put(self) -> None:
        if self.simulation.master.runs and not self.simulation.master.stopping:
            size = self.random.randint(0, self._body_bytes)
            self.simulation.put(size, self.random.random() < 0.9, self.random.choice(self._kinds))

    def _pause(self) -> None:
        seconds = self.random.choice(PAUSES)
        self.simulation.say("all", f"{seconds:g} s go by")
        self.simulation.advance(seconds)

    def _start(self) -> None:
        dies = self.random.random() < 0.1
        calls = self.random.randint(1, MAX_SYSTEM_CALLS) if dies else None
        self.simulation.start(self._node(), system_calls_until_death=calls)

    def _heal(self) -> None:
        self.simulation.unblock()
        for node in self.simulation.nodes.values():
            node.disk.heal()

    # Faults

    def _cut(self) -> None:
        self.simulation.cut(self._node(), one_side=self.random.random() < 0.3)

    def _block(self) -> None:
        node = self.random.choice(self.simulation.slaves)
        slave, master = node.name, node.master_name
        ways = self.random.choice((((slave, master),), ((master, slave),), ((slave, master), (master, slave))))
        for source, target in ways:
            self.simulation.block(source, target)

    def _kill(self) -> None:
        name = self._running()
        if name is not None:
            self.simulation.kill(name)

    def _kill_within(self) -> None:
        name = self._running()
        if name is not None:
            self.simulation.kill(name, self.random.randint(1, MAX_SYSTEM_CALLS))

    def _lose_power(self) -> None:
        self.simulation.lose_power(self._node())

    def _lose_power_within(self) -> None:
        name = self._running()
        if name is not None:
            self.simulation.lose_power_within(name, self.random.randint(1, MAX_SYSTEM_CALLS))

    def _lose_power_after_checkpoint(self) -> None:
        """What the checkpoint vouches for must be on the disk: new messages make new files of queues and index."""
        name = self._running()
        if name is not None:
            self.simulation.lose_power_within(name)
            for _ in range(self.random.choice((1, 4))):
                self._put()
                self.simulation.settle()
                self.simulation.advance(0.6)

    def _rot(self) -> None:
        """Of a slave: what rots on a master without one that has the bytes is lost."""
        slave = self.random.choice(self.simulation.slaves)
        if not slave.runs or slave.log.verified_offset > slave.log.min_offset:
            self.simulation.kill(slave.name)
            self.simulation.rot(slave.name)
            if self.random.random() < 0.5:
                self.simulation.start(slave.name)
                self._lie_to_who_repairs(slave)

    def _lie_to_who_repairs(self, slave: SimSlave) -> None:
        attempts = [found for found in self.simulation.network.attempts if found.process is slave.process]
        if slave.repairs and attempts and self.random.random() < 0.5:
            self.simulation.strangers.pretend_to_be(attempts[0])

    def _stop(self) -> None:
        name = self._running()
        if name is not None:
            self.simulation.stop(name)

    def _disk_full(self) -> None:
        node = self.simulation.nodes[self._node()]
        node.disk.full = True
        node.say("its disk is full")

    def _disk_error(self) -> None:
        node = self.simulation.nodes[self._node()]
        if self.random.random() < 0.5:
            node.disk.broken_writes = 1
            node.say("its next write will fail")
        else:
            node.disk.broken_syncs = 1
            node.say("its next sync will fail")

    def _intrude(self) -> None:
        if self.simulation.master.runs and not self.simulation.master.stopping:
            self._put()
            if self.simulation.master.runs:  # the put may be the last thing that it does
                first, *others = self._lies()
                stranger = self.simulation.strangers.intrude(MASTER, first)
                for (
                    lie
                ) in others:  # what comes with the first report is refused, so the second one is a test of its own
                    if self.random.random() < 0.5:
                        self.simulation.deliver_between("bogus", MASTER)
                    stranger.write(lie)
                self._settle_sometimes()

    def _settle_sometimes(self) -> None:
        """What a stranger sends has an effect only if it arrives before the line is cut, and before the rest."""
        if self.random.random() < 0.8:
            self.simulation.deliver_between("bogus", MASTER)
        if self.random.random() < 0.5:
            self.simulation.settle()

    def _lies(self) -> list[bytes]:
        """What no slave would say."""
        end = self.simulation.master.log.verified_offset
        far = end + self.random.choice((1_000_000, 2**40, 2**62))
        return self.random.choice(
            (
                [encode_report(far)],
                [encode_report(0), encode_report(far)],
                [encode_report(-1)],
                [encode_report(0), encode_report(-(2**63))],
                [b"GET / HTTP/1.1\r\n\r\n"],
                [self.random.randbytes(self.random.randint(1, 40))],
                [b"\0" * self.random.randint(1, 7)],
            )
        )

    def _impersonate(self) -> None:
        attempts = [found for found in self.simulation.network.attempts if isinstance(found, Connecting)]
        if attempts:
            attempt = self.random.choice(attempts)
            self.simulation.strangers.impersonate(attempt, self._garbage(attempt.process.name))

    def _pretend(self) -> None:
        """Another master answers a slave that connects, one that has something to compare if there is one."""
        slaves = [slave for slave in self.simulation.slaves if slave.runs and slave.log.last_message_offset is not None]
        if slaves:
            slave = self.random.choice(slaves)
            self.simulation.cut(slave.name)
            self.simulation.advance(RETRY_SECONDS)
            attempts = [found for found in self.simulation.network.attempts if found.process is slave.process]
        else:
            attempts = list(self.simulation.network.attempts)
        connecting = [found for found in attempts if isinstance(found, Connecting)]
        if connecting:
            self.simulation.strangers.pretend_to_be(self.random.choice(connecting))
            self._settle_sometimes()

    def _slow_slave(self) -> None:
        """A slave of somebody else comes, or acknowledges something."""
        master, slaves = self.simulation.master, self.simulation.strangers.slow
        if not master.runs or master.stopping:
            return
        if slaves and self.random.random() < 0.8:
            slave = self.random.choice(slaves)
            if self.random.random() < 0.5:
                self._put()
            self.simulation.advance(0)
            for end in self.simulation.network.news():
                if end.protocol is slave:
                    self.simulation.deliver(end)
            offset = slave.acknowledge(self.random)
            if offset is not None:
                self.simulation.say("bogus", f"acknowledges {offset}")
        else:
            self.simulation.strangers.join_slowly(MASTER, max(1, master.log.verified_offset))

    def _garbage(self, name: str) -> bytes:
        """What no master would send."""
        node = self.simulation.nodes[name]
        end = node.log.verified_offset if node.runs else 0
        noise = self.random.randbytes(self.random.randint(1, 300))
        return self.random.choice(
            (
                noise,
                b"220 mail.example.com ESMTP\r\n",
                TRANSFER_HEADER.pack(end, -1),
                TRANSFER_HEADER.pack(end, 2**31 - 1),
                TRANSFER_HEADER.pack(end, len(noise)) + noise,
                TRANSFER_HEADER.pack(end + SEGMENT_SIZE, len(noise)) + noise,
                TRANSFER_HEADER.pack(-1, 0),
                TRANSFER_HEADER.pack(end, 0) * 3,
            )
        )

    def _delete(self) -> None:
        if self._has_old_segment():
            if self.simulation.master.log.needs_first_segment and self.random.random() < 0.9:
                wait_for_checkpoint(self.simulation)
            if self._has_old_segment():
                delete_first_segment(self.simulation)

    def _has_old_segment(self) -> bool:
        master = self.simulation.master
        return master.runs and not master.stopping and len(master.log.segment_bases) > 2

    def _wall_clock(self) -> None:
        step_ms = self.random.choice((-3_600_000, -5_000, 5_000, 3_600_000, 10 * 365 * 86_400_000))
        self.simulation.set_wall_clock(step_ms)
        self.simulation.say("all", f"the wall clock steps by {step_ms} ms")


def _config(random: Random) -> Config:
    role = random.choice(("SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER"))
    slaves = [_slave(random) for _ in range(random.choice((1, 1, 2, 2, 3)))]
    if len(slaves) > 1 and random.random() < 0.3:
        slaves[-1] = replace(slaves[-1], master="slave-1")
    master = {
        "brokerRole": role,
        "flushDiskType": random.choice(FLUSH_TYPES),
        "inSyncReplicas": str(random.randint(2, 1 + len(slaves))),
        "minInSyncReplicas": str(random.choice((1, 1, 2))),
        "haSlaveFallbehindMax": str(random.choice((1000, 20_000, 268_435_456))),
        "haTransferBatchSize": str(random.choice((100, 1000, 32_768))),
        "haFlowControlEnable": random.choice(("false", "false", "true")),
        "maxHaTransferByteInSecond": str(random.choice((4096, 100_000))),
    }
    common = {
        "flushCommitLogLeastPages": str(random.choice((0, 4))),
        "flushCommitLogThoroughInterval": str(random.choice((50, 500, 10_000))),  # how often checkpoints are written
    }
    allow_list = random.choice((None, None, AllowList.parse(OUR_NETWORK)))
    return Config(master, slaves, common, random.choice((500, 4000, 65_536)), allow_list)


def _slave(random: Random) -> SlaveConfig:
    start_from = random.choice((StartFrom(), StartFrom(), StartFrom(last=True), StartFrom(offset=SEGMENT_SIZE)))
    options = SlaveOptions(start_from=start_from, on_gap=random.choice(tuple(OnGap)))
    properties = {"flushDiskType": random.choice(FLUSH_TYPES)}
    if random.random() < 0.2:
        properties["maxHaReceiveByteInSecond"] = "4096"
    return SlaveConfig(properties, options, remoting=random.random() < 0.7)
