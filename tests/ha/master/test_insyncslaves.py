"""What slaves confirm, so that consumers may read it: which slaves count, and who holds it up."""

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.admission.limits import HALimits
from rmqha.ha.master.followers import Copies, Followers
from rmqha.ha.master.insyncslaves import InSyncSlaves
from rmqha.ha.master.progress import SlaveProgress
from rmqha.ha.master.protocol import HAMasterFactory, HAMasterProtocol, MasterOptions
from rmqha.settings.settings import make_settings
from rmqha.store.interfaces import ICommitLog
from rmqha.store.readlimit import ReadLimit
from rmqha.wire.transfer import encode_report
from tests.ha.doubles import LineTransport, make_image, memory_log

IMAGE = make_image([300] * 30)
END = IMAGE.end
START = IMAGE.messages[10]
"""What was confirmed before."""


def follow(log: ICommitLog, confirmed: list[int], **properties: str) -> tuple[InSyncSlaves, Followers]:
    """A table whose confirmed end is START. Each later one is appended to ``confirmed``."""
    settings, clock = make_settings(properties), Clock()
    policy = InSyncSlaves(Copies(log, START), settings)
    return policy, Followers(policy, settings, clock, ReadLimit(clock, START, confirmed.append))


class InSyncTestCase(SynchronousTestCase):
    """Slaves by name, of a master whose log ends at END."""

    def setUp(self) -> None:
        self.begin()

    def begin(self, **properties: str) -> None:
        self.confirmed: list[int] = []
        self.log = memory_log(IMAGE)
        self.policy, self.followers = follow(self.log, self.confirmed, **properties)
        self.slaves: dict[str, SlaveProgress] = {}

    def join(self, name: str, request: int) -> None:
        """The slave's first report."""
        self.slaves[name] = SlaveProgress(name, request, request, request % self.log.segment_size == 0)
        self.followers.joined(self.slaves[name])

    def report(self, name: str, offset: int) -> None:
        """A further report."""
        slave = self.slaves[name]
        slave.send(max(slave.sent, offset))
        if slave.report(offset):
            self.followers.reported(slave)

    def in_sync(self) -> set[str]:
        return {name for name, slave in self.slaves.items() if self.policy.is_in_sync(slave)}


class WhoCountsTests(InSyncTestCase):
    """A slave counts when it holds all that is confirmed."""

    def test_without_slaves_nothing_is_confirmed(self) -> None:
        self.assertEqual((self.confirmed, self.policy.why()), ([], "no slave is connected"))

    def test_a_slave_confirms_what_it_acknowledges(self) -> None:
        self.join("a", START)
        self.assertEqual((self.confirmed, self.in_sync()), ([], set()))
        self.report("a", START + 100)
        self.report("a", END)
        self.assertEqual(self.confirmed, [START + 100, END])

    def test_a_first_report_proves_nothing(self) -> None:
        """An observer, or a slave with another log, sends one too."""
        self.join("a", START + 400)
        self.assertEqual((self.confirmed, self.in_sync()), ([], set()))
        self.assertIn("0 of 1 connected slaves", self.policy.why())

    def test_a_first_report_of_the_log_s_end_counts(self) -> None:
        """A Java slave that holds everything acknowledges nothing else until the log grows."""
        self.join("java", END)
        self.assertEqual((self.confirmed, self.in_sync()), ([END], {"java"}))

    def test_the_slowest_slave_in_sync_decides(self) -> None:
        """Any of them may be promoted."""
        for name in "ab":
            self.join(name, START - 300)
            self.report(name, START)
        self.report("a", END)
        self.assertEqual(self.confirmed, [])
        self.assertEqual(self.policy.why(), f"slave b holds the log only up to {START}")
        self.report("b", END - 300)
        self.assertEqual(self.confirmed, [END - 300])

    def test_a_new_slave_holds_up_nobody_while_it_copies(self) -> None:
        self.join("a", START)
        self.report("a", END - 600)
        self.join("new", 1)
        self.report("new", 300)
        self.report("a", END - 300)
        self.assertEqual((self.confirmed, self.in_sync()), ([END - 600, END - 300], {"a"}))
        self.report("new", END - 300)
        self.assertEqual(self.in_sync(), {"a", "new"})
        self.report("a", END)
        self.assertEqual(self.confirmed[-1], END - 300)

    def test_a_slave_that_leaves_holds_up_nobody(self) -> None:
        for name in "ab":
            self.join(name, START - 300)
            self.report(name, START)
        self.report("a", END)
        self.followers.forget(self.slaves.pop("b"))
        self.assertEqual(self.confirmed, [END])
        self.followers.forget(self.slaves.pop("a"))
        self.assertEqual(self.policy.why(), "no slave is connected")

    def test_in_sync_replicas_asks_for_more_slaves(self) -> None:
        self.begin(inSyncReplicas="3")
        self.join("a", START)
        self.report("a", END)
        self.assertEqual(self.confirmed, [])
        self.assertIn("1 of 1 connected slaves hold all that consumers have read, and 2 must", self.policy.why())
        self.join("b", START)
        self.report("b", END - 300)
        self.assertEqual(self.confirmed, [END - 300])

    def test_without_in_sync_replicas_one_slave_must_still_hold_it(self) -> None:
        self.begin(inSyncReplicas="1")
        self.assertEqual(self.confirmed, [])
        self.join("a", START)
        self.report("a", END)
        self.assertEqual(self.confirmed, [END])

    def test_a_slave_far_from_the_end_holds_up_nobody_if_there_are_others(self) -> None:
        self.begin(haSlaveFallbehindMax="1000")
        self.join("far", START)
        self.report("far", START + 300)
        self.assertEqual((self.confirmed, self.in_sync()), ([START + 300], {"far"}))
        self.join("near", START)
        self.report("near", END)
        self.assertEqual((self.confirmed[-1], self.in_sync()), (END, {"near"}))

    @given(
        st.lists(st.tuples(st.sampled_from("jrg"), st.sampled_from("abc"), st.integers(0, len(IMAGE.messages) - 1))),
        st.integers(1, 3),
    )
    @settings(deadline=None)
    def test_all_in_sync_hold_all_that_is_confirmed(self, steps: list[tuple[str, str, int]], replicas: int) -> None:
        """Whoever joins, reports and leaves: it grows only, and only to what enough slaves hold."""
        self.begin(inSyncReplicas=str(replicas))
        for step, name, number in steps:
            at = IMAGE.messages[number]
            if step == "j" and name not in self.slaves:
                self.join(name, at or 1)
            elif step == "r" and name in self.slaves and at > self.slaves[name].reported:
                self.report(name, at)
            elif step == "g" and name in self.slaves:
                self.followers.forget(self.slaves.pop(name))
            confirmed = self.followers.confirmed_offset
            held = {name: slave.acknowledged or -1 for name, slave in self.slaves.items()}
            self.assertEqual(self.confirmed, sorted(set(self.confirmed)))
            self.assertTrue(all(held[name] >= confirmed for name in self.in_sync()))
            self.assertEqual(self.in_sync(), {name for name in held if held[name] >= confirmed})
            enough = len(self.in_sync()) >= max(replicas, 2) - 1
            if enough:
                self.assertEqual(confirmed, max(START, min(held[name] for name in self.in_sync())))


class ConnectionTests(SynchronousTestCase):
    """A master's port tells what its connections say."""

    def test_reports_of_a_connection_count_until_it_ends(self) -> None:
        clock, log = Clock(), memory_log(IMAGE)
        confirmed: list[int] = []
        options = MasterOptions.of(make_settings({}))
        self.assertIsInstance(options.limits, HALimits)
        policy, followers = follow(log, confirmed)
        factory = HAMasterFactory(log, clock, options, [followers])
        factory.read_policy = policy
        factory.startFactory()
        self.addCleanup(factory.stopFactory)
        connection = factory.buildProtocol(None)
        assert isinstance(connection, HAMasterProtocol)
        line = LineTransport(clock)
        line.attach(connection)
        self.assertIs(connection.facts()["inSync"], False)
        line.deliver(encode_report(START))
        clock.advance(0)
        line.take()
        line.deliver(encode_report(END))
        self.assertEqual(confirmed, [END])
        self.assertIs(connection.facts()["inSync"], True)
        line.lose()
        self.assertEqual(policy.why(), "no slave is connected")
