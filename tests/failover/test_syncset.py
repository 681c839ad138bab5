"""How a member is added to the sync set, and left out: in which order puts wait and the key is written."""

from dataclasses import replace

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.failover.agent import seen_members
from rmqha.failover.keys import ClusterConfig, Mode, SyncSet
from rmqha.failover.step.syncset import LookAtMembers, SyncSetKeeper
from rmqha.ha.master.followers import Copies, Followers
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.progress import SlaveProgress
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.settings.settings import make_settings
from rmqha.store.message import PutMessageStatus
from rmqha.testing.memory import MemoryCommitLog
from rmqha.testing.records import make_record
from rmqha.wire.record import encode_record
from tests.failover.test_eligible import member

CONFIG = ClusterConfig()


class SyncSetTest(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.log = MemoryCommitLog(1 << 20)
        self.leadership = Leadership(3, self.clock.seconds, until=1000.0)
        self.begin()
        self.a, self.b = member("a"), member("b")
        self.written = SyncSet(3, "a", {"a": self.a.holder()})
        self.use(SyncSetKeeper("a", self.written, 0))
        self.grow()

    def use(self, keeper: SyncSetKeeper) -> None:
        """Puts wait for those that it says."""
        self.keeper = keeper
        self.leadership.require(keeper.required)

    def attempt(self, new: SyncSet) -> None:
        self.use(self.keeper.attempt(new))

    def settled(self, written: SyncSet) -> None:
        self.use(self.keeper.settled(written))

    def begin(self) -> None:
        settings = make_settings({})
        self.members = SyncMembers(Copies(self.log, 0), settings, self.leadership)
        self.followers = Followers(self.members, settings, self.clock)
        self.members.heed(self.followers)

    def grow(self) -> int:
        """One more message. Returns the log's end."""
        offset = self.log.max_offset
        self.log.append_data(offset, encode_record(make_record(offset, b"x" * 50, physical_offset=offset)))
        self.log.verify()
        return self.log.verified_offset

    def connect(self, name: str = "b", request: int = 0) -> SlaveProgress:
        slave = SlaveProgress(name, request, request, False, name, f"session-{name}")
        self.followers.joined(slave)
        return slave

    def report(self, slave: SlaveProgress, offset: int) -> None:
        slave.send(max(slave.sent, offset))
        slave.report(offset)
        self.followers.reported(slave)

    def look(self, config: ClusterConfig = CONFIG) -> SyncSet | None:
        known, members = {"a": self.a, "b": self.b}, seen_members(self.members)
        keeper, new = self.keeper.look(
            LookAtMembers(self.clock.seconds(), self.log.verified_offset, members, known, config)
        )
        self.use(keeper)
        return new

    def status(self) -> PutMessageStatus | None:
        """How a put ended whose message is the last of the log; None while it waits."""
        found: list[PutMessageStatus] = []
        self.followers.wait(self.log.verified_offset).addCallback(found.append)
        return found[0] if found else None

    def add_b(self) -> SlaveProgress:
        slave = self.connect()
        self.report(slave, self.log.verified_offset)
        new = self.look()
        assert new is not None
        self.attempt(new)
        self.settled(new)
        return slave

    def test_alone_a_put_waits_for_nobody(self) -> None:
        self.assertIs(self.status(), PutMessageStatus.PUT_OK)
        self.assertEqual(self.members.confirmed_offset, self.log.verified_offset)

    def test_a_first_report_shows_nothing_even_at_the_logs_end(self) -> None:
        """A member with one message more than the leader asks for that message, which begins at the leader's end."""
        self.connect(request=self.log.verified_offset)
        self.assertIsNone(self.members.held("b"))
        self.assertIsNone(self.look())
        self.assertEqual(self.leadership.required, frozenset())

    def test_what_an_earlier_process_of_a_member_held_says_nothing_of_the_next(self) -> None:
        """Its machine has lost power, and is back. The connection from before has not ended yet for the leader."""
        self.add_b()
        self.b = replace(self.b, session="session-2", boot="boot-2")
        self.assertIsNone(self.look())
        self.assertEqual(self.keeper.written.holders["b"].boot, "boot-1")
        slave = SlaveProgress("b", 0, 0, False, "b", "session-2")
        self.followers.joined(slave)
        self.report(slave, self.log.verified_offset)
        new = self.look()
        assert new is not None
        self.assertEqual(new.holders["b"], self.b.holder())

    def test_a_growing_member_need_not_hold_what_was_put_before(self) -> None:
        """A put that waits only for the flush when the growth begins is answered: ``sync`` does not name the member."""
        end = self.log.verified_offset
        slave = self.connect()
        self.report(slave, 1)
        self.assertIsNone(self.look())
        self.assertEqual((self.leadership.required, self.keeper.counts_from("b")), (frozenset({"b"}), end))
        self.report(slave, end)
        new = self.look()
        assert new is not None
        self.attempt(new)
        self.assertEqual(self.keeper.counts_from("b"), 0)
        self.settled(new)
        self.assertEqual(self.keeper.counts_from("b"), 0)

    def test_puts_wait_for_no_member_that_lacks_more_than_the_lag_that_is_allowed(self) -> None:
        slave, config = self.connect(), ClusterConfig(maximum_lag=10)
        self.report(slave, self.log.verified_offset - 11)
        self.assertIsNone(self.look(config))
        self.assertEqual(self.leadership.required, frozenset())
        self.report(slave, self.log.verified_offset - 10)
        self.assertIsNone(self.look(config))
        self.assertEqual(self.leadership.required, frozenset({"b"}))

    def test_puts_wait_no_longer_than_its_time_for_a_member_that_grows(self) -> None:
        slave = self.connect()
        self.report(slave, self.log.verified_offset - 1)
        self.look()
        self.grow()
        self.assertIsNone(self.status())
        self.clock.advance(CONFIG.member_timeout / 2)
        self.look()
        self.assertEqual(self.leadership.required, frozenset({"b"}))
        self.clock.advance(CONFIG.member_timeout / 2)
        self.look()
        self.assertEqual(self.leadership.required, frozenset())
        self.assertIs(self.status(), PutMessageStatus.PUT_OK)
        self.grow()
        self.assertIsNone(self.look())
        self.assertEqual(self.leadership.required, frozenset(), "it still hangs")
        self.report(slave, self.log.verified_offset - 1)
        self.assertIsNone(self.look())
        self.assertEqual(self.leadership.required, frozenset({"b"}), "it goes on")

    def test_a_member_that_connects_while_the_log_is_empty_holds_it(self) -> None:
        self.log = MemoryCommitLog(1 << 20)
        self.begin()
        self.connect()
        self.assertEqual(self.members.held("b"), 0)

    def test_puts_wait_for_a_member_before_the_key_names_it(self) -> None:
        slave = self.connect()
        self.report(slave, self.log.verified_offset - 1)
        self.assertIsNone(self.look(), "it does not hold everything yet")
        self.assertEqual(self.leadership.required, {"b"})
        end = self.grow()
        self.assertIsNone(self.status())
        self.report(slave, end)
        new = self.look()
        assert new is not None
        self.assertEqual(new.members, {"b"})

    def test_the_key_is_written_before_puts_stop_waiting(self) -> None:
        slave = self.add_b()
        self.followers.forget(slave)
        self.assertIsNone(self.look())
        self.grow()
        self.clock.advance(CONFIG.member_timeout)
        new = self.look()
        assert new is not None
        self.assertEqual(new.members, frozenset())
        self.attempt(new)
        self.assertIsNone(self.status(), "it is not known whether the key was written")
        self.settled(new)
        self.assertIs(self.status(), PutMessageStatus.PUT_OK)

    def test_after_an_unknown_outcome_puts_wait_for_all_that_the_key_may_name(self) -> None:
        slave = self.connect()
        self.report(slave, self.log.verified_offset)
        new = self.look()
        assert new is not None
        self.attempt(new)
        self.followers.forget(slave)
        self.assertIsNone(self.look(), "nothing is written before the outcome is known")
        self.assertEqual(self.leadership.required, {"b"})
        self.settled(self.written)
        self.clock.advance(CONFIG.member_timeout)
        self.look()
        self.assertEqual(self.leadership.required, frozenset())

    def test_a_member_whose_machine_was_started_again_is_written_again(self) -> None:
        slave = self.add_b()
        self.b = replace(self.b, boot="boot-2")
        self.grow()
        self.assertIsNone(self.look(), "it does not hold the newest message yet")
        self.report(slave, self.log.verified_offset)
        new = self.look()
        assert new is not None
        self.assertEqual(new.holders["b"], self.b.holder())

    def test_a_member_that_falls_behind_is_left_out(self) -> None:
        slave = self.add_b()
        for _ in range(3):
            self.report(slave, slave.reported + 1 if slave.reported < self.log.verified_offset else slave.reported)
            self.grow()
            self.assertIsNone(self.look())
            self.clock.advance(CONFIG.member_timeout * 0.9)
            self.report(slave, slave.reported + 1)
        self.assertIsNone(self.look(), "it comes nearer")
        self.clock.advance(CONFIG.member_timeout)
        self.assertEqual(getattr(self.look(), "members", None), frozenset())

    def test_nofailover_is_in_no_sync_set(self) -> None:
        self.b = replace(self.b, no_failover=True)
        self.report(self.connect(), self.log.verified_offset)
        self.assertIsNone(self.look())
        self.assertEqual(self.leadership.required, frozenset())

    def test_a_member_with_another_store_is_left_out_at_once(self) -> None:
        slave = self.add_b()
        self.b = replace(self.b, store="an empty one")
        self.followers.forget(slave)
        again = self.connect()
        self.report(again, 0)
        new = self.look()
        assert new is not None
        self.assertEqual(new.members, frozenset(), "else puts would wait until it has copied the whole log")

    def test_in_mode_async_puts_wait_for_nobody(self) -> None:
        self.add_b()
        new = self.look(ClusterConfig(mode=Mode.ASYNC.value))
        assert new is not None
        self.assertEqual(new.members, frozenset())

    def test_a_leader_without_the_right_to_lead_completes_nothing(self) -> None:
        slave = self.add_b()
        end = self.grow()
        found: list[PutMessageStatus] = []
        self.followers.wait(end).addCallback(found.append)
        self.leadership.end()
        self.assertEqual(found, [PutMessageStatus.FLUSH_SLAVE_TIMEOUT])
        before = self.members.confirmed_offset
        self.report(slave, end)
        self.assertEqual(self.members.confirmed_offset, before)
