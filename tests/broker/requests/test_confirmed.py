"""Pulls, delayed messages and transactions while messages wait for a slave (readUpTo=confirmed)."""

from collections.abc import Callable
from typing import Any

from rmqha.broker.background.schedule import ScheduleMessageService
from rmqha.broker.background.waitingreads import STALL_SECONDS, WaitingReads
from rmqha.broker.requests.confirmed import ConfirmedProcessor
from rmqha.remoting.turns import Turns
from rmqha.store import reading
from rmqha.store.messagestore import MessageStore
from rmqha.store.readlimit import ReadLimit
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.record import TRANSACTION_COMMIT_TYPE, Record
from rmqha.wire.slavefields import CONFIRMED_HOLD_SECONDS
from tests.broker.brokerstore import BrokerStoreTestCase, bodies_in
from tests.broker.requests.test_pull import HOLD_SECONDS as PULL_SECONDS
from tests.broker.requests.test_pull import LITE_PULL, PullTestCase
from tests.broker.requests.test_transaction import TransactionTestCase
from tests.ha.doubles import log_lines

WAITS = "WAITS_FOR_A_SLAVE"


def end_of(record: Record) -> int:
    return record.physical_offset + record.total_size


class LimitedPullTests(PullTestCase):
    """Pulls end at what is confirmed."""

    def open(self, role: str = "ASYNC_MASTER", **properties: str) -> MessageStore:
        store = super().open(role, **properties)
        self.limit = store.limit_reads(self.clock)
        return store

    def grow(self, record: Record) -> None:
        """Slaves hold this message now."""
        self.limit.grow(end_of(record))
        self.clock.advance(0)
        self.clock.advance(0)

    def test_a_pull_ends_at_the_last_confirmed_message(self) -> None:
        first, second = self.put(b"1", b"2")
        self.grow(first)
        self.assert_found(self.pull(), [first], 1, 1)
        answer = self.pull(queueOffset=1)
        self.assertEqual(answer.code, ResponseCode.PULL_NOT_FOUND)
        self.assertEqual((answer.remark or "").split(":")[0], WAITS)
        self.assert_header(answer, 1, 0, 1)
        self.grow(second)
        self.assert_found(self.pull(queueOffset=1), [second], 2, 2)

    def test_a_held_pull_is_woken_by_the_slave_and_not_by_the_message(self) -> None:
        self.hold()
        (record,) = self.put(b"1")
        self.clock.advance(1)
        self.assertEqual(self.peer.answers(), [])
        self.grow(record)
        self.assert_found(self.answer(), [record], 1, 1)
        self.assertEqual((self.held.count, len(self.limit)), (0, 0))

    def test_a_pull_that_comes_while_messages_wait_is_woken_too(self) -> None:
        records = self.put(b"1", b"2")
        self.hold()
        self.grow(records[0])
        self.assert_found(self.answer(), records[:1], 1, 1)

    def test_only_matching_messages_wake(self) -> None:
        self.hold(subscription="B")
        first, second = *self.put(b"1", TAGS="A"), *self.put(b"2", TAGS="B")
        self.grow(first)
        self.grow(second)
        answer = self.answer()
        self.assertEqual(answer.remark, "FOUND")
        self.assertEqual(bodies_in(answer.body), [b"2"])

    def test_at_its_deadline_it_is_answered_as_not_found(self) -> None:
        self.hold()
        self.put(b"1")
        self.clock.advance(PULL_SECONDS)
        self.clock.advance(0)
        answer = self.answer()
        self.assertEqual(answer.code, ResponseCode.PULL_NOT_FOUND)
        self.assertEqual((answer.remark or "").split(":")[0], WAITS)
        self.assert_header(answer, 0, 0, 0)
        self.assertEqual((self.held.count, len(self.limit)), (0, 0))

    def test_a_client_that_disconnects_leaves_nothing(self) -> None:
        self.put(b"1")
        self.hold()
        self.peer.line.lose()
        self.assertEqual((self.held.count, len(self.limit)), (0, 0))

    def test_a_stop_leaves_nothing(self) -> None:
        self.put(b"1")
        self.hold()
        self.held.stopService()
        self.assertEqual((self.held.count, len(self.limit)), (0, 0))

    def test_a_slave_serves_what_its_master_has_confirmed(self) -> None:
        records = self.put(b"1", b"2")
        self.copy_to_slave()
        self.serve()
        self.assertEqual((self.pull().remark or "").split(":")[0], WAITS)
        self.grow(records[0])
        self.assertEqual(bodies_in(self.pull().body), [b"1"])
        ahead = self.pull(queueOffset=2)
        self.assertEqual((ahead.code, ahead.ext_fields["nextBeginOffset"]), (ResponseCode.PULL_NOT_FOUND, "2"))

    def test_messages_that_wait_cost_held_pulls_nothing(self) -> None:
        """While they wait, a further message costs the same with one held pull and with 500."""
        self.put(b"first")
        for _ in range(500):
            self.peer.send(RequestCode.PULL_MESSAGE, self.fields(sysFlag=LITE_PULL))
        self.clock.advance(0)
        self.assertEqual(self.held.count, 500)
        asked = []
        reader = self.store.reader
        self.patch(reader, "confirmed_at", lambda *place: asked.append(place))
        self.patch(self.held, "_wake", asked.append)
        self.put(*[b"x"] * 50)
        self.held.check()
        self.assertEqual(asked, [])
        self.assertEqual(len(self.limit), 500)

    def test_very_many_tags_that_nobody_wants_are_passed(self) -> None:
        """A pull goes on after those that were looked at."""
        self.patch(reading, "MIN_UNITS_EXAMINED", 3)
        records = self.put(*[b"x"] * 5, TAGS="A")
        self.hold(subscription="B")
        self.grow(records[1])
        self.assertEqual(self.peer.answers(), [])
        self.grow(records[2])
        answer = self.answer()
        self.assertEqual(answer.code, ResponseCode.PULL_RETRY_IMMEDIATELY)
        self.assert_header(answer, 3, 0, 3)


class LimitedDelayTests(BrokerStoreTestCase):
    """Only confirmed messages are delivered."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.limit = self.store.limit_reads(self.clock)
        self.service = ScheduleMessageService(self.folder, self.store, self.settings, self.clock, self.wall)
        self.service.startService()
        self.addCleanup(self.service.stopService)

    def delivered(self) -> int:
        return self.store.reader.next_offset("T", 0)

    def test_a_message_is_delivered_when_it_is_due_and_confirmed(self) -> None:
        first, second = self.put(b"1", b"2", DELAY="1")
        self.clock.pump([0.1] * 50)
        self.assertEqual(self.delivered(), 0)
        self.limit.grow(end_of(first))
        self.clock.pump([0.1] * 5)
        self.assertEqual((self.delivered(), self.service.table.offset_table[1]), (1, 1))
        self.limit.grow(end_of(second))
        self.clock.pump([0.1] * 5)
        self.assertEqual((self.delivered(), len(self.limit)), (2, 0))

    def test_messages_that_wait_are_not_looked_for_again_and_again(self) -> None:
        self.put(b"1", DELAY="1")
        self.clock.pump([0.1] * 20)
        self.assertEqual(len(self.limit), 1)
        looks: list[Any] = []
        self.patch(self.service._levels[0], "_look_in", looks.append)
        self.put(b"2", DELAY="1")
        self.clock.pump([0.1] * 20)
        self.assertEqual(looks, [])


class LimitedTransactionTests(TransactionTestCase):
    """Half messages are checked when they, and all operations, are confirmed."""

    def setUp(self) -> None:
        super().setUp()
        self.limit: ReadLimit = self.store.limit_reads(self.clock)

    def asked(self) -> list[RemotingCommand]:
        """The questions to the producer since the last call."""
        found = self.producer.answers()
        return [one for one in found if one.code == RequestCode.CHECK_TRANSACTION_STATE]

    def test_a_producer_is_asked_about_a_confirmed_half_message_only(self) -> None:
        self.prepare()
        self.dispatch()
        self.start()
        self.clock.pump([1.0] * 65)
        self.assertEqual(self.asked(), [])
        self.limit.grow(self.store.commit_log.verified_offset)
        self.clock.pump([1.0] * 5)
        self.assertEqual(len(self.asked()), 1)

    def test_an_end_that_is_not_confirmed_is_accepted_and_not_asked_about(self) -> None:
        half = self.prepare()
        self.dispatch()
        self.limit.grow(self.store.commit_log.verified_offset)
        self.assert_ends(half, TRANSACTION_COMMIT_TYPE)
        self.dispatch()
        self.start()
        self.clock.pump([1.0] * 65)
        self.assertEqual(self.asked(), [])
        self.assertEqual(self.consumer_offsets.query("CID_RMQ_SYS_TRANS", half.topic, 0), 0)
        self.limit.grow(self.store.commit_log.verified_offset)
        self.clock.pump([1.0] * 5)
        self.assertEqual(self.asked(), [])
        self.assertEqual(self.consumer_offsets.query("CID_RMQ_SYS_TRANS", half.topic, 0), 1)

    def test_a_late_commit_that_is_not_confirmed_yet_counts_for_the_next(self) -> None:
        self.put(b"at offset 0")
        half = self.prepare()
        self.dispatch()
        self.limit.grow(self.store.commit_log.verified_offset)
        self.start()
        self.clock.pump([1.0] * 65)
        (question,) = self.asked()
        self.assert_ends(half, TRANSACTION_COMMIT_TYPE)
        self.reply(question, TRANSACTION_COMMIT_TYPE)
        self.dispatch()
        self.assertEqual(self.store.reader.next_offset("T", 3), 1)


class QuestionTests(BrokerStoreTestCase):
    """A slave asks what is confirmed."""

    def setUp(self) -> None:
        super().setUp()
        self.open()

    def serve(self) -> None:
        self.peer = self.client(ConfirmedProcessor(self.store.read_limit, self.clock).processors())

    def test_it_is_answered_when_more_is_confirmed(self) -> None:
        self.limit = self.store.limit_reads(self.clock)
        self.serve()
        self.limit.grow(100)
        self.assert_answer(self.peer.ask(RequestCode.GET_CONFIRMED_OFFSET, after=-1), 0, {"offset": 100})
        self.assert_answer(self.peer.ask(RequestCode.GET_CONFIRMED_OFFSET), 0, {"offset": 100})
        self.peer.send(RequestCode.GET_CONFIRMED_OFFSET, {"after": 100})
        self.clock.advance(1)
        self.assertEqual(self.peer.answers(), [])
        self.limit.grow(101)
        self.clock.advance(0)
        (answer,) = self.peer.answers()
        self.assert_answer(answer, 0, {"offset": 101})

    def test_after_some_seconds_it_is_answered_anyway(self) -> None:
        self.limit = self.store.limit_reads(self.clock)
        self.serve()
        self.peer.send(RequestCode.GET_CONFIRMED_OFFSET, {"after": 100})
        self.clock.advance(CONFIRMED_HOLD_SECONDS)
        (answer,) = self.peer.answers()
        self.assert_answer(answer, 0, {"offset": 0})
        self.assertEqual(len(self.limit), 0)

    def test_a_node_without_the_setting_answers_as_a_java_broker(self) -> None:
        self.serve()
        answer = self.peer.ask(RequestCode.GET_CONFIRMED_OFFSET, after=-1)
        self.assertEqual(answer.code, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def test_a_lifted_limit_says_nothing(self) -> None:
        self.store.limit_reads(self.clock)
        self.store.lift_read_limit()
        self.serve()
        answer = self.peer.ask(RequestCode.GET_CONFIRMED_OFFSET, after=-1)
        self.assertEqual(answer.code, ResponseCode.SERVICE_NOT_AVAILABLE)


class WaitingTests(BrokerStoreTestCase):
    """Operators are told what waits."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.limit = self.store.limit_reads(self.clock)
        self.limit.why = lambda: "no slave is connected"
        self.start()

    def start(self) -> None:
        self.waiting = WaitingReads(self.store, self.limit, Turns(self.clock), self.clock, self.wall)
        self.waiting.startService()
        self.addCleanup(self.waiting.stopService)

    def look(self, seconds: float, lines: Callable[[], str] | None = None) -> None:
        self.clock.pump([0.5] * round(seconds / 0.5))

    def test_a_stall_is_told_once_and_its_end_too(self) -> None:
        with log_lines() as lines:
            records = [*self.put(b"1", b"2"), *self.put(b"3", queue_id=1)]
            size = end_of(records[-1])
            self.look(STALL_SECONDS - 1.0)
            self.assertEqual(lines(), "")
            self.assertIsNone(self.waiting.warning)
            self.assertEqual(self.waiting.facts()["waitingBytes"], size)
            self.look(3.0)
            self.put(*[b"4"] * 3, queue_id=2)
            self.look(60.0)
            self.assertEqual(lines().count("wait for a slave"), 1)
            self.assertIn(f"messages wait for a slave, and consumers for them: 3 ({size} bytes)", lines())
            self.assertIn("no slave is connected", lines())
            facts = self.waiting.facts()
            self.assertEqual((facts["waitingMessages"], facts["reason"]), (6, "no slave is connected"))
            self.assertIn("for them: 6 (", str(self.waiting.warning))
            self.assertNotIn("consumers read on", lines())
            self.limit.grow(self.store.commit_log.verified_offset)
            self.look(2.0)
            self.assertEqual(lines().count("consumers read on"), 1)
        self.assertEqual(self.waiting.facts()["waitingBytes"], 0)
        self.assertIsNone(self.waiting.warning)

    def test_the_time_is_that_of_the_first_message_that_waits(self) -> None:
        self.look(100.0)
        self.put(b"1")
        self.look(STALL_SECONDS + 2.0)
        since = str(self.waiting.facts()["stalledSince"])
        self.look(30.0)
        self.assertEqual(self.waiting.facts()["stalledSince"], since)
        self.assertGreaterEqual(since, "2026-11-18T11:08:18")

    def test_what_waited_before_the_start_is_counted(self) -> None:
        self.put(*[b"1"] * 4)
        self.waiting.stopService()
        self.start()
        self.look(STALL_SECONDS + 2.0)
        self.assertEqual(self.waiting.facts()["waitingMessages"], 4)

    def test_a_slow_slave_is_no_stall(self) -> None:
        records = self.put(*[b"1"] * 30)
        with log_lines() as lines:
            for record in records:
                self.limit.grow(end_of(record))
                self.look(2.0)
            self.assertEqual(lines(), "")

    def test_a_lifted_limit_waits_for_nobody(self) -> None:
        self.put(b"1")
        self.look(STALL_SECONDS + 2.0)
        with log_lines() as lines:
            self.store.lift_read_limit()
            self.look(2.0)
            self.assertIn("the limit is lifted", lines())
        self.assertIsNone(self.waiting.warning)
