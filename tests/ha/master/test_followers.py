"""The table of followers: what may deceive it, and its three policies against what each of them was before."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.master.enoughslaves import EnoughSlaves
from rmqha.ha.master.followers import Copies, FollowerPolicy, Followers
from rmqha.ha.master.insyncslaves import InSyncSlaves
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.progress import SlaveProgress
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.settings.settings import Settings, make_settings
from rmqha.store.message import PutMessageStatus
from rmqha.store.readlimit import ReadLimit
from rmqha.testing.memory import MemoryCommitLog
from tests import examples
from tests.ha.doubles import append, make_image, memory_log

IMAGE = make_image([300] * 30)
SEGMENT = IMAGE.segment_size
HELD = 20
"""So many messages the log has as a test begins."""
TIMEOUT = 3.0
FAR_BYTES = 1500
OK, TIMED_OUT, NOT_AVAILABLE = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)


class Unflushed(MemoryCommitLog):
    """A log of which only a part is on the disk."""

    flushed = 0

    @property
    def flushed_offset(self) -> int:
        return self.flushed


class TableCase(SynchronousTestCase):
    """A master's table of slaves. Its log holds the first messages of IMAGE."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.log = memory_log(IMAGE.prefix(IMAGE.messages[HELD]))
        self.leadership = Leadership(1, self.clock.seconds, until=1000.0)

    def follow(self, kind: type[FollowerPolicy], limit: ReadLimit | None = None, **properties: str) -> None:
        configured = make_settings({"slaveTimeout": str(int(1000 * TIMEOUT)), **properties})
        copies = Copies(self.log, 0)
        is_of_members = kind is SyncMembers
        self.policy: Any = (
            SyncMembers(copies, configured, self.leadership) if is_of_members else kind(copies, configured)
        )
        self.followers = Followers(self.policy, configured, self.clock, limit)
        if isinstance(self.policy, SyncMembers):
            self.policy.heed(self.followers)

    def join(self, name: str, request: int | None = None) -> SlaveProgress:
        """A slave connects and asks for this offset, or for the log's end. With a request of 0 it has no log."""
        asks = self.log.verified_offset if request is None else request
        start = asks or self.log.verified_offset - self.log.verified_offset % SEGMENT
        slave = SlaveProgress(name, asks, start, asks % SEGMENT == 0, name, f"session-{name}")
        self.followers.joined(slave)
        return slave

    def report(self, slave: SlaveProgress, offset: int) -> None:
        """The slave was sent the log up to there, and reports it."""
        slave.send(max(slave.sent, offset))
        if slave.report(offset):
            self.followers.reported(slave)

    def grow(self) -> int:
        """The log has one message more. Returns its end."""
        append(self.log, IMAGE.prefix(next(at for at in IMAGE.messages if at > self.log.max_offset)))
        return self.log.verified_offset

    def put(self) -> list[PutMessageStatus]:
        """The log has one message more, and a put waits for it. Returns its answer, once there is one."""
        answers: list[PutMessageStatus] = []
        self.followers.wait(self.grow()).addCallback(answers.append)
        return answers

    def tearDown(self) -> None:
        self.followers.give_up()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class CounterExampleTests(TableCase):
    """What looks like a copy, and is none; and what is one although it does not look like it."""

    def test_a_first_report_proves_nothing_unless_it_is_the_logs_end(self) -> None:
        self.follow(InSyncSlaves)
        self.join("observer", IMAGE.messages[HELD - 1])
        self.assertEqual((self.followers.confirmed_offset, self.policy.in_sync), (0, []))
        self.join("java")
        self.assertEqual(self.followers.confirmed_offset, self.log.verified_offset)

    def test_a_java_slave_that_holds_the_whole_log_acknowledges_nothing_more(self) -> None:
        """Until the log grows: then what it acknowledges counts."""
        self.follow(InSyncSlaves)
        java, end = self.join("java"), self.log.verified_offset
        self.report(java, end)
        self.assertEqual((self.followers.confirmed_offset, java.acknowledged), (end, None))
        self.report(java, self.grow())
        self.assertEqual(self.followers.confirmed_offset, self.log.verified_offset)

    def test_a_slave_with_an_unnoticed_lost_connection_does_not_count_as_two(self) -> None:
        self.follow(EnoughSlaves, inSyncReplicas="3")
        earlier = self.join("a")
        self.join("silent")
        answers, end = self.put(), self.log.verified_offset
        self.report(earlier, end)
        self.report(self.join("a", IMAGE.messages[HELD]), end)
        self.assertEqual((answers, self.followers.confirmed_offset), ([], 0))
        self.clock.advance(TIMEOUT)
        self.assertEqual(answers, [TIMED_OUT])

    def test_an_earlier_connection_is_doubted_only_if_several_slaves_must_hold_a_message(self) -> None:
        """With one that is needed, it is the same slave that holds it, whichever connection says so."""
        self.follow(EnoughSlaves)
        earlier = self.join("a")
        self.report(earlier, self.grow())
        self.join("a")
        self.assertEqual(earlier.acknowledged, self.log.verified_offset)

    def test_a_slave_that_asks_for_a_segments_start_may_be_empty_below_it(self) -> None:
        """It has acknowledged what follows, and not the message before, for which a put still waits."""
        self.follow(EnoughSlaves)
        self.join("silent")
        start = next(at for at in IMAGE.messages[HELD:] if at % SEGMENT == 0)
        answers = self.put()
        while self.log.verified_offset < start:
            last = self.put()
        empty = self.join("empty", start)
        self.report(empty, self.grow())
        self.assertEqual((answers, last, self.followers.confirmed_offset), ([], [], 0))
        self.clock.advance(TIMEOUT)
        self.assertEqual((answers, last), ([TIMED_OUT], [TIMED_OUT]))
        answers = self.put()
        self.report(empty, self.log.verified_offset)
        self.assertEqual(answers, [OK])

    def test_an_observer_neither_acknowledges_nor_reports_the_logs_end(self) -> None:
        self.follow(EnoughSlaves, minInSyncReplicas="2")
        observer = self.join("observer", IMAGE.messages[HELD - 1])
        self.report(observer, IMAGE.messages[HELD - 1])
        self.assertFalse(self.followers.enough_for_puts())
        self.join("slave")
        self.assertTrue(self.followers.enough_for_puts())

    def test_a_member_that_begins_at_the_logs_end_may_have_other_bytes_before(self) -> None:
        self.leadership.require(frozenset("b"))
        self.follow(SyncMembers)
        member = self.join("b")
        self.assertEqual((self.followers.confirmed_offset, self.policy.held("b")), (0, None))
        self.assertIn("is not connected", self.policy.why())
        self.report(member, self.grow())
        self.assertEqual(self.followers.confirmed_offset, self.log.verified_offset)

    def test_connections_that_began_while_the_log_had_no_message_hold_it(self) -> None:
        self.log = MemoryCommitLog(SEGMENT)
        self.follow(SyncMembers)
        self.join("b")
        self.assertEqual(self.policy.held("b"), 0)
        self.grow()
        self.assertEqual(self.policy.held("b"), 0)
        self.join("c", 0)
        self.assertIsNone(self.policy.held("c"))
        self.join("b", 0)
        self.assertIsNone(self.policy.held("b"), "the latest connection speaks")

    def test_a_members_earlier_connection_does_not_count_any_more(self) -> None:
        self.leadership.require(frozenset("b"))
        self.follow(SyncMembers)
        earlier = self.join("b")
        self.join("b", 1)
        self.report(earlier, self.grow())
        self.assertEqual((self.followers.confirmed_offset, self.policy.held("b")), (0, None))
        self.followers.forget(earlier)
        self.assertEqual(self.policy.connected, {"b"})

    def test_a_member_that_is_gone_delays_puts_until_the_coordinator_has_left_it_out(self) -> None:
        self.leadership.require(frozenset("bc"))
        self.follow(SyncMembers)
        b, c = self.join("b"), self.join("c")
        answers = self.put()
        self.report(b, self.log.verified_offset)
        self.followers.forget(c)
        self.assertEqual(answers, [])
        self.leadership.require(frozenset("b"))
        self.assertEqual(answers, [OK])

    def test_any_slave_is_not_enough_if_another_one_may_lead_next(self) -> None:
        self.leadership.require(frozenset("bc"))
        self.follow(SyncMembers)
        b, c, d = (self.join(name) for name in "bcd")
        answers = self.put()
        for slave in (b, d):
            self.report(slave, self.log.verified_offset)
        self.assertEqual(answers, [])
        self.report(c, self.log.verified_offset)
        self.assertEqual(answers, [OK])

    def test_a_new_slave_which_copies_for_hours_holds_up_nobody(self) -> None:
        self.follow(InSyncSlaves)
        self.join("a")
        new = self.join("new", 1)
        self.report(new, IMAGE.messages[1])
        self.assertEqual(self.followers.confirmed_offset, self.log.verified_offset)
        self.assertEqual([slave.identity for slave in self.policy.in_sync], ["a"])

    def test_a_slave_far_behind_holds_up_nobody_if_there_are_enough_others(self) -> None:
        self.follow(InSyncSlaves, haSlaveFallbehindMax=str(FAR_BYTES))
        far, near = self.join("far"), self.join("near")
        for _ in range(5):
            self.report(near, self.grow())
        self.assertEqual(self.followers.confirmed_offset, self.log.verified_offset)
        self.assertEqual(self.policy.in_sync, [near])
        self.followers.forget(near)
        self.assertEqual(self.policy.in_sync, [], "it does not hold what consumers have read")
        self.report(far, self.log.verified_offset)
        self.assertEqual(self.policy.in_sync, [far])


class InvariantTests(TableCase):
    """``min of what counts <= confirmed <= verified``, and reads end at what is flushed too, with SYNC_FLUSH."""

    def test_nothing_is_confirmed_after_the_logs_end(self) -> None:
        for kind in (EnoughSlaves, InSyncSlaves, SyncMembers):
            self.leadership.require(frozenset("b"))
            self.follow(kind)
            slave = self.join("b")
            with self.assertRaises(AssertionError):
                self.report(slave, self.log.verified_offset + 1)

    def test_with_sync_flush_reads_end_at_the_flushed_offset_although_more_is_confirmed(self) -> None:
        self.log = log = Unflushed(SEGMENT)
        append(log, IMAGE.prefix(IMAGE.messages[HELD]))
        for flush_disk_type, first in (("SYNC_FLUSH", 100), ("ASYNC_FLUSH", log.verified_offset)):
            log.flushed = 100
            limit = ReadLimit(self.clock, 0)
            self.follow(InSyncSlaves, limit, flushDiskType=flush_disk_type)
            self.join("a")
            self.assertEqual((self.followers.confirmed_offset, limit.offset), (log.verified_offset, first))
            log.flushed = log.verified_offset
            self.followers.let_read()
            self.assertEqual(limit.offset, log.verified_offset)

    @given(
        st.sampled_from([InSyncSlaves, SyncMembers]),
        st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"]),
        st.lists(st.sampled_from(["put", "report", "flush a part", "flush"]), max_size=20),
    )
    @settings(deadline=None, max_examples=examples(60))
    def test_reads_end_where_the_log_was_confirmed_and_if_need_be_flushed(
        self, kind: type[FollowerPolicy], flush_disk_type: str, steps: list[str]
    ) -> None:
        self.setUp()
        self.log = log = Unflushed(SEGMENT)
        append(log, IMAGE.prefix(IMAGE.messages[2]))
        self.leadership.require(frozenset("a"))
        limit = ReadLimit(self.clock, 0)
        self.follow(kind, limit, flushDiskType=flush_disk_type)
        slave, expected = self.join("a"), 0
        for step in steps:
            if step == "put" and log.verified_offset < IMAGE.messages[-1]:
                self.grow()
            elif step == "report" and slave.reported < log.verified_offset:
                self.report(slave, log.verified_offset)
            elif step.startswith("flush"):
                log.flushed += (log.max_offset - log.flushed) // (2 if step == "flush a part" else 1)
                self.followers.let_read()
            flushed = log.flushed if flush_disk_type == "SYNC_FLUSH" else log.max_offset
            expected = max(expected, min(self.followers.confirmed_offset, flushed))
            self.assertEqual(limit.offset, expected)

    def test_reads_that_go_on_after_what_is_confirmed_or_flushed_are_noticed(self) -> None:
        class TooFar(ReadLimit):
            def grow(self, offset: int) -> None:
                super().grow(offset + 1)

        self.log = log = Unflushed(SEGMENT)
        append(log, IMAGE.prefix(IMAGE.messages[HELD]))
        for flush_disk_type, flushed, what in (("SYNC_FLUSH", 100, "flushed"), ("ASYNC_FLUSH", 0, "confirmed")):
            log.flushed = flushed
            self.follow(InSyncSlaves, TooFar(self.clock, 0), flushDiskType=flush_disk_type)
            with self.assertRaisesRegex(AssertionError, f"log is {what} up to"):
                self.join("a")


# What the table was before: three mechanisms, each with slaves, an end and waits of its own. Here they are as short as
# their definitions in docs/spec/ha.md 7 and ARCHITECTURE.md allow.


@dataclass
class Model:
    """Slaves by the order of their connections, puts by name, and all that was answered or confirmed."""

    log: MemoryCommitLog
    configured: Settings
    clock: Clock
    required: frozenset[str] = frozenset()
    slaves: list[SlaveProgress] = field(default_factory=list)
    confirmed: int = 0
    waits: list[tuple[int, float, int]] = field(default_factory=list)
    """The offset, the deadline and the number of each put that waits."""
    answers: dict[int, PutMessageStatus] = field(default_factory=dict)
    is_ended = False

    def grown(self, offset: int) -> None:
        self.confirmed = max(self.confirmed, offset)
        for wait in [wait for wait in self.waits if wait[0] <= self.confirmed]:
            self.waits.remove(wait)
            self.answers[wait[2]] = OK

    def expired(self, at: float | None = None) -> None:
        for wait in [wait for wait in self.waits if at is None or wait[1] <= at]:
            self.waits.remove(wait)
            self.answers[wait[2]] = TIMED_OUT

    def wait(self, number: int, offset: int) -> None:
        if offset <= self.confirmed:
            self.answers[number] = OK
        else:
            self.waits.append((offset, self.clock.seconds() + TIMEOUT, number))

    def changed(self) -> None:
        """The log has grown, or other members are required."""


class TransferModel(Model):
    """The end that the needed number of slaves have acknowledged. A slave that comes again is doubted."""

    @property
    def needed(self) -> int:
        return self.configured.in_sync_replicas - 1

    def joined(self, slave: SlaveProgress) -> None:
        for other in self.slaves:
            if other.identity == slave.identity and self.needed > 1:
                other.doubt()
        self.slaves.append(slave)

    def reported(self, slave: SlaveProgress) -> None:
        first = min((wait[0] for wait in self.waits), default=None)
        sure = [each.acknowledged or 0 for each in self.slaves if each.holds_from(first)]
        if self.needed and slave.acknowledged is not None and slave.acknowledged > self.confirmed:
            self.grown(([0] * self.needed + sorted(sure))[-self.needed])

    def gone(self, slave: SlaveProgress) -> None:
        self.slaves.remove(slave)

    def wait(self, number: int, offset: int) -> None:
        near = sum(offset - slave.reported < FAR_BYTES for slave in self.slaves)
        if not self.needed or near < self.needed:
            self.answers[number] = NOT_AVAILABLE if self.needed else OK
        else:
            super().wait(number, offset)

    def enough(self) -> bool:
        end = self.log.verified_offset
        near = [slave for slave in self.slaves if end - slave.reported < FAR_BYTES]
        shown = [slave for slave in near if slave.acknowledged is not None or slave.reported == end]
        return len(shown) >= self.configured.min_in_sync_replicas - 1

    def in_sync(self) -> set[SlaveProgress] | None:
        return None


class ReadsModel(Model):
    """The end that all hold who held what was confirmed before."""

    def joined(self, slave: SlaveProgress) -> None:
        self.slaves.append(slave)
        if slave.request == self.log.verified_offset:
            self.had_all = self.had_all | {slave}
        self.look()

    had_all: frozenset[SlaveProgress] = frozenset()
    synced: frozenset[SlaveProgress] = frozenset()

    def held(self, slave: SlaveProgress) -> int:
        return slave.acknowledged or (slave.request if slave in self.had_all else -1)

    def look(self) -> None:
        end, needed = self.log.verified_offset, max(self.configured.in_sync_replicas, 2) - 1
        holding = frozenset(slave for slave in self.slaves if self.held(slave) >= self.confirmed)
        near = frozenset(slave for slave in holding if end - self.held(slave) <= FAR_BYTES)
        self.synced = near if len(near) >= needed else holding
        if len(self.synced) >= needed:
            self.grown(min(map(self.held, self.synced)))

    def reported(self, slave: SlaveProgress) -> None:
        self.look()

    def gone(self, slave: SlaveProgress) -> None:
        self.slaves.remove(slave)
        self.look()

    def enough(self) -> bool:
        return True

    def in_sync(self) -> set[SlaveProgress] | None:
        return set(self.synced)


class MembersModel(Model):
    """The end that the latest connections of all required members have acknowledged."""

    when_empty: frozenset[SlaveProgress] = frozenset()

    def latest(self) -> dict[str, SlaveProgress]:
        """By member. An earlier connection is out for good, even if the latest one ends."""
        return {slave.identity: slave for slave in self.slaves}

    def joined(self, slave: SlaveProgress) -> None:
        self.slaves = [other for other in self.slaves if other.identity != slave.identity] + [slave]
        if self.log.verified_offset == 0:
            self.when_empty = self.when_empty | {slave}
        self.changed()

    def held(self, slave: SlaveProgress | None) -> int:
        if slave is None:
            return -1
        return slave.acknowledged or (slave.request if slave in self.when_empty else -1)

    def changed(self) -> None:
        latest = self.latest()
        if not self.is_ended:
            self.grown(min([self.log.verified_offset, *(self.held(latest.get(name)) for name in self.required)]))

    def reported(self, slave: SlaveProgress) -> None:
        self.changed()

    def gone(self, slave: SlaveProgress) -> None:
        self.slaves = [other for other in self.slaves if other is not slave]

    def wait(self, number: int, offset: int) -> None:
        if not self.required and not self.is_ended:
            self.answers[number] = OK
        else:
            super().wait(number, offset)

    def enough(self) -> bool:
        latest, end = self.latest(), self.log.verified_offset
        held = [self.held(latest.get(name)) for name in self.required]
        near = [offset for offset in held if 0 <= offset > end - FAR_BYTES]
        return len(near) >= self.configured.min_in_sync_replicas - 1

    def in_sync(self) -> set[SlaveProgress] | None:
        return {slave for name, slave in self.latest().items() if name in self.required}


MODELS: dict[type[FollowerPolicy], type[Any]] = {
    EnoughSlaves: TransferModel,
    InSyncSlaves: ReadsModel,
    SyncMembers: MembersModel,
}
NAMES = st.sampled_from("abc")
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "join": st.tuples(NAMES, st.integers(0, len(IMAGE.messages) - 1)),
    "report": st.tuples(st.integers(0, 5), st.integers(1, 4) | st.just(30)),
    "put": st.tuples(st.integers(1, 3)),
    "gone": st.tuples(st.integers(0, 5)),
    "require": st.tuples(st.frozensets(NAMES)),
    "wait": st.tuples(st.sampled_from([0.5, 1.0, TIMEOUT])),
    "end": st.just(()),
}
STEPS = st.sampled_from(["join", "report", "report", "report", "put", "put", "gone", "require", "wait", "end"]).flatmap(
    lambda step: st.tuples(st.just(step), ARGUMENTS[step])
)


CASES = st.lists(STEPS, min_size=5, max_size=40), st.integers(1, 3), st.integers(1, 3), st.booleans()


@pytest.mark.long
class AsBeforeTests(TableCase):
    """Whatever happens, one table does what three mechanisms did."""

    @given(*CASES)
    @settings(deadline=None, max_examples=examples(150))
    def test_puts_wait_for_enough_slaves_as_before(
        self, steps: list[Any], replicas: int, least: int, starts_empty: bool
    ) -> None:
        self.compare(EnoughSlaves, steps, replicas, least, starts_empty)

    @given(*CASES)
    @settings(deadline=None, max_examples=examples(150))
    def test_reads_end_where_slaves_in_sync_are_as_before(
        self, steps: list[Any], replicas: int, least: int, starts_empty: bool
    ) -> None:
        self.compare(InSyncSlaves, steps, replicas, least, starts_empty)

    @given(*CASES)
    @settings(deadline=None, max_examples=examples(150))
    def test_a_leaders_puts_wait_for_required_members_as_before(
        self, steps: list[Any], replicas: int, least: int, starts_empty: bool
    ) -> None:
        self.compare(SyncMembers, steps, replicas, least, starts_empty)

    def compare(
        self, kind: type[FollowerPolicy], steps: list[Any], replicas: int, least: int, starts_empty: bool
    ) -> None:
        self.setUp()
        if starts_empty:
            self.log = MemoryCommitLog(SEGMENT)
        replicas = max(replicas, least)
        properties = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": str(replicas), "minInSyncReplicas": str(least)}
        self.follow(kind, None, haSlaveFallbehindMax=str(FAR_BYTES), **properties)
        self.model = MODELS[kind](self.log, make_settings(properties), self.clock)
        self.model.changed()
        self.lines: list[tuple[SlaveProgress, SlaveProgress]] = []
        self.answers: dict[int, PutMessageStatus] = {}
        self.puts = 0
        for name, arguments in steps:
            getattr(self, f"do_{name}")(*arguments)
            self.check()
        self.followers.give_up()
        self.model.expired()
        self.check()

    def check(self) -> None:
        self.assertEqual(self.followers.confirmed_offset, self.model.confirmed)
        self.assertEqual(self.answers, self.model.answers)
        self.assertEqual(self.followers.enough_for_puts(), self.model.enough())
        self.assertLessEqual(self.model.confirmed, self.log.verified_offset)
        in_sync = self.model.in_sync()
        if in_sync is not None:
            ours = {theirs for mine, theirs in self.lines if self.policy.is_in_sync(mine)}
            self.assertEqual(ours, in_sync)
            self.assertEqual({theirs for mine, theirs in self.lines if mine in self.policy.in_sync}, in_sync)

    def do_join(self, name: str, message: int) -> None:
        asks = min(IMAGE.messages[message], self.log.verified_offset)
        start = asks or self.log.verified_offset - self.log.verified_offset % SEGMENT
        mine, theirs = (SlaveProgress(name, asks, start, asks % SEGMENT == 0, name, "session") for _ in range(2))
        self.lines.append((mine, theirs))
        self.followers.joined(mine)
        self.model.joined(theirs)

    def do_report(self, line: int, messages: int) -> None:
        if not self.lines:
            return
        mine, theirs = self.lines[line % len(self.lines)]
        later = [at for at in IMAGE.messages if mine.reported < at <= self.log.verified_offset]
        offset = later[:messages][-1] if later else self.log.verified_offset
        if offset > mine.reported:
            for slave in (mine, theirs):
                slave.send(max(slave.sent, offset))
                slave.report(offset)
            self.followers.reported(mine)
            self.model.reported(theirs)

    def do_gone(self, line: int) -> None:
        if self.lines:
            mine, theirs = self.lines.pop(line % len(self.lines))
            self.followers.forget(mine)
            self.model.gone(theirs)

    def do_put(self, count: int) -> None:
        for _ in range(count):
            if self.log.verified_offset < IMAGE.messages[-1]:
                self.puts += 1
                number, end = self.puts, self.grow()
                self.model.changed()
                self.followers.wait(end).addCallback(partial(self.answers.__setitem__, number))
                self.model.wait(number, end)

    def do_require(self, names: frozenset[str]) -> None:
        if self.model.is_ended and names != self.model.required:
            self.model.expired()
        self.leadership.require(names)
        self.model.required = names
        self.model.changed()

    def do_wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.expired(self.clock.seconds())

    def do_end(self) -> None:
        if isinstance(self.policy, SyncMembers):
            self.leadership.end()
            self.model.is_ended = True
            self.model.expired()
