"""Automatic failover by chance: one seed decides what there is, what is put, and what fails when.

Each seed knows only some of the faults, and has a rate of its own for each step, so that in some seeds the lines are
slow, in others the coordinator, and in others neither. In a third of the seeds faults come at any moment only. In the
others they also come in ambush: as soon as a line of the trace says what was waited for, such as the second answer to a
renewal. Each manner finds bugs that the other does not.
"""

from collections.abc import Callable
from enum import Enum
from random import Random

from rmqha.coordination.interface import Put as PutKey
from rmqha.failover.keys import CONFIG, Order, encode
from rmqha.testing.sim.cluster import CONFIG_OF_CLUSTER, PREFIX, Ambush, Cluster
from rmqha.testing.sim.clusternodes import ClusterNode
from rmqha.testing.sim.coordinator import COORDINATOR
from rmqha.testing.sim.kinds import Kind
from rmqha.testing.sim.simulation import FLUSH_TYPES, MASTER, Config, SlaveConfig
from rmqha.testing.sim.steps import Steps
from rmqha.testing.sim.violation import Violation

LEADER_SECONDS = 120.0
"""After the faults: longer than a lease, a node's first pause, and the reconnects of all, together."""
EQUAL_SECONDS = 900.0
RATES = (0.5, 1.0, 2.0)
"""How often a seed takes a step, or lets a fault happen, compared with what is usual."""
REQUESTS = ("keep_alive", "range", "transaction", "transaction of leader", "transaction of sync")
COORDINATED = tuple(f"{way} {request}" for way in ("sends", "gets", "is answered") for request in REQUESTS)
MOMENTS = (
    COORDINATED,
    COORDINATED,
    ("is given put", "answers put", "answers put", "asks for", "reports", "is connected to", "is asked by"),
    ("is fenced", "is to follow", "follows nobody", "is to lead", "leads from", "starts"),
)
"""How a line of the trace begins at which faults wait in ambush: the coordinator's part, the log's, and the roles."""


Weights = dict[Callable[[], None], float]


class Manner(Enum):
    """How a seed goes about it. The value says how many steps it may take."""

    HASTY = (40, 100, 250)
    """Steps follow each other at once, and faults come at any moment."""
    HASTY_IN_AMBUSH = (20, 50, 120)
    CALM_IN_AMBUSH = (10, 20, 40)
    """All that can gets through between two steps."""


class ClusterWalk(Steps):
    """One run: puts, faults, and then peace, in which a leader must be found that has all that was promised."""

    simulation: Cluster

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        rates = {name: random.choice((1.0, 1.0, 0.96, 1.04)) for name in (MASTER, "slave-1", "slave-2")}
        if random.random() < 0.3:
            rates[random.choice(list(rates))] = random.choice((0.2, 5.0))
        self.simulation = Cluster(_config(random), random.getrandbits(32), rates)
        self._what_is_put = random.choice(((Kind.PLAIN,), (Kind.PLAIN, Kind.TAGGED), (Kind.PLAIN, Kind.BATCH)))
        self._body_bytes = random.choice((None, 100))
        """None: of any size. With equal sizes the records of two logs begin and end at the same offsets."""
        self._named = ""
        """The node that has sprung an ambush, while its faults happen."""
        self._is_sprung = False
        """Whether faults have come out of an ambush, and nothing has been done about them."""
        kinds = self._all_faults()
        helps: Weights = {self._heal: 2.0, self._go_on: 1.5, self._coordinator_up: 2.0}
        rare = [step for steps in (*kinds, helps) for step in steps]
        chosen = frozenset(random.sample(rare, random.randint(0, len(rare))))
        self._faults = [found for kind in kinds if (found := _only(kind, chosen))]
        """Those that this seed knows, by their kinds."""
        self._manner = random.choice(list(Manner)) if self._faults else Manner.HASTY
        steps = self._usual_steps() | _only(helps, chosen)
        for kind in self._faults:
            steps |= kind
        self._weights = {step: weight * random.choice(RATES) for step, weight in steps.items()}

    def _all_faults(self) -> list[Weights]:
        return [
            {self._kill: 1.0, self._kill_within: 0.5, self._stop: 0.7},
            {self._lose_power: 1.0, self._lose_all_power: 0.2},
            {self._freeze: 1.0},
            {self._cut: 1.0, self._block: 2.0, self._isolate: 1.0, self._mute: 0.7},
            {self._coordinator_down: 0.7, self._break_watches: 0.5, self._roll_back: 0.1, self._go_back: 0.2},
            {self._switch_over: 1.0, self._set_wall_clock: 0.3, self._fill_disk: 0.5, self._save: 0.3},
        ]

    def _usual_steps(self) -> Weights:
        steps: Weights = {self._put: 12.0, self._start: 3.0}
        if self._manner is Manner.CALM_IN_AMBUSH:
            steps |= {self._let_run: 12.0, self._pause: 1.0}
        else:
            steps |= {
                self._deliver: 30.0,
                self._resolve: 8.0,
                self._flush: 10.0,
                self._coordinate: 25.0,
                self._pause: 6.0,
                self._settle: 3.0,
            }
        if self._manner is not Manner.HASTY:
            steps |= {self._lie_in_ambush: 5.0, self._put_many: 0.5, self._fall_behind: 1.0}
        return steps

    def run(self) -> None:
        """All steps, and the end. Raises Violation."""
        simulation = self.simulation
        simulation.start()
        if self.random.random() < 0.8 and not simulation.wait(lambda: simulation.leading is not None, LEADER_SECONDS):
            raise Violation(f"no node leads at first: {simulation.standing()}")
        actions, weights = list(self._weights), list(self._weights.values())
        for _ in range(self.random.choice(self._manner.value)):
            self.random.choices(actions, weights)[0]()
            simulation.advance(0.001)
            if self._is_sprung:
                self._after_ambush()
        self._end()

    # Ambushes

    def _lie_in_ambush(self) -> None:
        """The next time that this happens, or a later time, something fails."""
        if self.simulation.ambush is None and not self._is_sprung:
            times = self.random.choice((1, 1, 2, 5))
            self.simulation.ambush = Ambush(self.random.choice(self.random.choice(MOMENTS)), times, self._break_out)

    def _break_out(self, name: str) -> None:
        """One fault, mostly of the node of which the trace speaks, and at times one more."""
        self._is_sprung = True
        self._named = name if self.random.random() < 0.7 else ""
        for _ in range(self.random.choice((1, 1, 2))):
            kind = self.random.choice(self._faults)
            self.random.choices(list(kind), list(kind.values()))[0]()
        self._named = ""

    def _after_ambush(self) -> None:
        """The faults last for some time, while all others go on."""
        self._is_sprung = False
        self._let_run_for(self.random.choice((0.0, 1.0, 5.0, 14.0, 20.0, 20.0, 40.0)))
        if self.random.random() < 0.5:
            self._heal()
            self._go_on()
            self._coordinator_up()
        if self.random.random() < 0.3:
            self.simulation.start()

    # Steps

    def _nodes_that_run(self) -> list[ClusterNode]:
        return [
            node
            for node in self.simulation.members
            if node.process is not None
            and node.runs
            and not node.is_changing
            and not node.stopping
            and not node.process.is_stopped
        ]

    def _put(self) -> None:
        self._put_some(self.random.choice((1, 1, 3)))

    def _put_many(self) -> None:
        """A node that joins has to catch up with that."""
        self._put_some(12)

    def _fall_behind(self) -> None:
        """A node is away for some time, comes back, and meets a log that has grown, and grows on."""
        name = self._any().name
        is_killed = self.random.random() < 0.5
        if is_killed:
            self.simulation.kill(name)
        else:
            self._block_some(name, [other for other in self._all_names() if other != name])
        self._let_run_for(6.0)
        self._put_many()
        if is_killed:
            self.simulation.start(name)
        else:
            self._heal()
        for _ in range(self.random.choice((0, 4, 16))):
            self._let_run_for(0.25)
            self._put()

    def _put_some(self, number: int) -> None:
        nodes = [node for node in self._nodes_that_run() if node.is_master]
        for _ in range(number):
            nodes = [node for node in nodes if node.runs and node.is_master and not node.is_changing]
            if nodes:
                self.simulation.put(
                    self._size(), True, self.random.choice(self._what_is_put), self.random.choice(nodes)
                )

    def _size(self) -> int:
        return self.random.randint(0, 900) if self._body_bytes is None else self._body_bytes

    def _coordinate(self) -> None:
        for _ in range(self.random.choice((1, 3, 8))):
            self.simulation.coordinate(self.random.randrange(1000))

    def _settle(self) -> None:
        self.simulation.settle()

    def _pause(self) -> None:
        """Time passes, and nothing gets through."""
        self.simulation.advance(self.random.choice((0.01, 0.3, 1.0, 3.0, 8.0, 16.0)))

    def _let_run(self) -> None:
        """Time passes, and all that can gets through."""
        self._let_run_for(self.random.choice((0.1, 0.5, 2.0, 6.0, 20.0, 20.0)))

    def _let_run_for(self, seconds: float) -> None:
        """Or until an ambush is sprung."""
        self.simulation.wait(lambda: self._is_sprung, seconds)

    def _start(self) -> None:
        self.simulation.start(self.random.choice(self.simulation.members).name)

    def _heal(self) -> None:
        self.simulation.unblock()

    def _go_on(self) -> None:
        for name in self.simulation.nodes:
            self.simulation.go_on(name)

    def _coordinator_up(self) -> None:
        self.simulation.coordinator.start()

    # Faults

    def _any(self) -> ClusterNode:
        """The node of which an ambush speaks; else any, the leader more often than others."""
        simulation = self.simulation
        if self._named in simulation.nodes:
            return next(node for node in simulation.members if node.name == self._named)
        leader = simulation.leading if self.random.random() < 0.3 else None
        return leader or self.random.choice(simulation.members)

    def _cut(self) -> None:
        self.simulation.cut(self._any().name)

    def _block(self) -> None:
        """Between a node and the coordinator, or another node."""
        one = self._any().name
        others = [name for name in self.simulation.nodes if name != one]
        self._block_some(one, [self.random.choice((COORDINATOR, self.random.choice(others)))])

    def _isolate(self) -> None:
        """A node from all others."""
        one = self._any().name
        self._block_some(one, [name for name in self._all_names() if name != one])

    def _mute(self) -> None:
        self.simulation.mute(self._any().name)

    def _all_names(self) -> list[str]:
        return [*self.simulation.nodes, COORDINATOR]

    def _block_some(self, one: str, others: list[str]) -> None:
        """What it sends, what is sent to it, or both."""
        sends, gets = self.random.choice(((True, False), (False, True), (True, True)))
        for other in others:
            if sends:
                self.simulation.block(one, other)
            if gets:
                self.simulation.block(other, one)

    def _kill(self) -> None:
        name = self._any().name
        self.simulation.kill(name)
        self._start_perhaps(name)

    def _kill_within(self) -> None:
        self.simulation.kill(self._any().name, self.random.randint(1, 25))

    def _lose_power(self) -> None:
        name = self._any().name
        self.simulation.lose_power(name)
        self._start_perhaps(name)

    def _lose_all_power(self) -> None:
        for node in self.simulation.members:
            self.simulation.lose_power(node.name)
        for node in self.simulation.members:
            self._start_perhaps(node.name)

    def _start_perhaps(self, name: str) -> None:
        """As systemd does at once; else somebody starts it later."""
        if self.random.random() < 0.5:
            self.simulation.start(name)

    def _stop(self) -> None:
        self.simulation.stop(self._any().name)

    def _freeze(self) -> None:
        self.simulation.freeze(self._any().name)

    def _coordinator_down(self) -> None:
        self.simulation.coordinator.stop()

    def _break_watches(self) -> None:
        self.simulation.coordinator.break_watches()

    def _switch_over(self) -> None:
        to = self.random.choice(["", self._any().name])
        self.simulation.order(self.random.choice((Order.SWITCHOVER, Order.SWITCHOVER, Order.FAILOVER)), to)

    def _fill_disk(self) -> None:
        """Or somebody makes room."""
        node = self._any()
        node.is_full = not node.is_full
        node.say(f"its disk is full: {node.is_full}")

    def _set_wall_clock(self) -> None:
        self.simulation.set_wall_clock(self.random.choice((-3_600_000, -5000, 5000, 3_600_000)))

    def _save(self) -> None:
        self.simulation.coordinator.save()

    def _roll_back(self) -> None:
        if self.random.random() < 0.3:
            self.simulation.coordinator.lose_all()
            self.simulation.coordinator.transact([], [PutKey(PREFIX + CONFIG, encode(CONFIG_OF_CLUSTER))])
        else:
            self.simulation.coordinator.roll_back()

    def _go_back(self) -> None:
        """Under the same id. Nodes start again before, meanwhile and after, or not."""
        coordinator, members = self.simulation.coordinator, self.simulation.members
        for node in members:
            if self.random.random() < 0.3:
                self.simulation.kill(node.name)
        if self.random.random() < 0.3:
            self.simulation.start(self._any().name)
        coordinator.roll_back(is_same=True)
        for node in self.random.sample(members, len(members)):
            self._start_perhaps(node.name)
            if self.random.random() < 0.3:
                self._let_run_for(self.random.choice((1.0, 5.0, 20.0)))

    # The end

    def _end(self) -> None:
        """Without faults a node leads, all others follow, and have its log."""
        simulation = self.simulation
        simulation.ambush = None
        simulation.say("all", "faults end")
        simulation.unblock()
        simulation.coordinator.start()
        for node in simulation.members:
            node.disk.heal()
            node.is_full = False
            node.mend_clock()
            if node.process is not None:
                node.process.disarm()
                simulation.go_on(node.name)
        simulation.wait(lambda: not any(node.stopping for node in simulation.members if node.process), 120.0)
        simulation.start()
        if not simulation.wait(self._is_led, LEADER_SECONDS):
            self._help()
        if not simulation.wait(lambda: not self._doubtful(), LEADER_SECONDS):
            self._decide()
        for _ in range(3):
            leader = simulation.leading
            if leader is not None:
                simulation.put(100, True, Kind.PLAIN, leader)
                simulation.settle()
        if not simulation.wait(self._all_equal, EQUAL_SECONDS):
            raise Violation(f"{EQUAL_SECONDS:g} s after the faults: {simulation.standing()}")
        leader = simulation.leading
        assert leader is not None
        simulation.wait(simulation.is_dispatched, 60.0)
        for node in simulation.members:
            simulation.oracle.check_at_rest(node, clock_is_true=False)
        simulation.judge.check_end(leader)
        simulation.read_all(leader)

    def _is_led(self) -> bool:
        """A node leads, and the coordinator says so: it may have lost its keys while the node led by promises."""
        self.simulation.start()
        leader, key = self.simulation.leading, self.simulation.view().leader
        return leader is not None and key is not None and key.node == leader.name

    def _help(self) -> None:
        """An operator must name the leader if the coordinator has lost its keys; else a node must have been found."""
        simulation = self.simulation
        view = simulation.view()
        known = max(node.agent.known.epoch for node in simulation.members if node.agent is not None)
        if known <= view.epoch and not self._doubtful():
            raise Violation(f"no node leads {LEADER_SECONDS:g} s after the faults: {simulation.standing()}")
        best = max((node for node in simulation.members if node.runs), key=lambda node: node.log.verified_offset)
        simulation.order(Order.FAILOVER, best.name, force=True)
        if not simulation.wait(self._is_led, LEADER_SECONDS):
            raise Violation(f"the operator's order leads to nothing: {simulation.standing()}")

    def _doubtful(self) -> list[ClusterNode]:
        """The nodes that know more than the coordinator's keys say."""
        return [node for node in self.simulation.members if node.agent is not None and node.agent.doubts_keys]

    def _decide(self) -> None:
        """A node leads without what another one knows: an operator says that its messages count, and all follow it."""
        simulation = self.simulation
        if not simulation.judge.is_unseen and not simulation.forced:
            raise Violation(f"a node doubts, and nobody has led from keys that were too old: {simulation.standing()}")
        leader = simulation.leading
        assert leader is not None
        simulation.order(Order.FAILOVER, leader.name, force=True)
        if not simulation.wait(lambda: not self._doubtful() and self._is_led(), LEADER_SECONDS):
            raise Violation(f"the operator's order does not end the doubt: {simulation.standing()}")

    def _all_equal(self) -> bool:
        simulation = self.simulation
        simulation.start()
        leader = simulation.leading
        if leader is None:
            return False
        for node in simulation.members:
            if node.runs and node.verdict is not None and simulation.judge.has_nothing_in_common(node, leader):
                simulation.wipe(node.name)  # what the operator does when a rewind finds nothing
        return all(
            node.runs and not node.is_changing and simulation.oracle.equal(node, leader) for node in simulation.members
        )


def _only(weights: Weights, chosen: frozenset[Callable[[], None]]) -> Weights:
    return {step: weight for step, weight in weights.items() if step in chosen}


def _config(random: Random) -> Config:
    slaves = [SlaveConfig({"flushDiskType": random.choice(FLUSH_TYPES)}) for _ in range(random.choice((1, 1, 2)))]
    common = {
        "inSyncReplicas": "1",
        "readUpTo": "confirmed",
        "flushCommitLogLeastPages": str(random.choice((0, 4))),
        "flushCommitLogThoroughInterval": str(random.choice((50, 500, 10_000))),
        "haTransferBatchSize": str(random.choice((300, 3000, 32_768))),
        "haFlowControlEnable": random.choice(("false", "false", "true")),  # members then take seconds to catch up
        "maxHaTransferByteInSecond": "4096",
    }
    master = {"brokerRole": "SLAVE", "flushDiskType": random.choice(FLUSH_TYPES)}
    return Config(master, slaves, common, random.choice((500, 65_536)))
