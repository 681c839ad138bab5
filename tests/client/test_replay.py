"""Stored messages sent again: what becomes of each kind, in which order, and where a replay continues."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.client import MQClientError, Producer, SendStatus
from rmqha.client.message import Message
from rmqha.client.replay import (
    BROKER_MADE,
    IN_FLIGHT,
    Delayed,
    Fate,
    IReplayMemory,
    Outgoing,
    Planner,
    Progress,
    Replay,
    ReplayOptions,
    Stored,
    TooManyFailures,
    Wanted,
)
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.properties import format_properties, parse_properties
from rmqha.wire.record import TRANSACTION_COMMIT_TYPE, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE, Record
from rmqha.wire.timers import TIMER_TOPIC
from tests.client.cluster import ClusterTestCase, broker_data, queue_data
from tests.store.damages import UNHURRIED

NOW = 1_795_000_000_000
EVERYTHING = Wanted()


def message(topic: str = "T", queue_id: int = 0, **fields: Any) -> Record:
    properties = fields.pop("properties", {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "U1", "own": "1"})
    return Record(
        topic=topic,
        body=fields.pop("body", b"body"),
        properties_stored=format_properties(properties),
        queue_id=queue_id,
        store_timestamp=fields.pop("store_timestamp", NOW),
        **fields,
    )


def delayed(level: int, key: str, stored_at: int = NOW, topic: str = "T") -> Record:
    """A delayed message as a broker keeps it."""
    properties = {
        "DELAY": str(level),
        "REAL_TOPIC": topic,
        "REAL_QID": "2",
        "UNIQ_KEY": key,
        "WAIT": "true",
        "own": "1",
    }
    return message(SCHEDULE_TOPIC, level - 1, store_timestamp=stored_at, properties=properties)


def timer(key: str, due_ms: int, topic: str = "T", **more: str) -> Record:
    """A timer message of RocketMQ 5 as a broker keeps it."""
    properties = {
        "TIMER_OUT_MS": str(due_ms),
        "REAL_TOPIC": topic,
        "REAL_QID": "2",
        "UNIQ_KEY": key,
        "own": "1",
        **more,
    }
    return message(TIMER_TOPIC, properties=properties)


def delivered(level: int, key: str, topic: str = "T") -> Record:
    """The same when it was delivered: its stored properties stay."""
    properties = {
        "DELAY": str(level),
        "REAL_TOPIC": topic,
        "REAL_QID": "2",
        "UNIQ_KEY": key,
        "WAIT": "true",
        "own": "1",
    }
    return message(topic, 2, properties=properties)


def stored(records: Iterable[Record]) -> list[Stored]:
    return [Stored(number * 10, record) for number, record in enumerate(records)]


def planned(records: Iterable[Record], wanted: Wanted = EVERYTHING, how: Delayed = Delayed.REMAINING) -> list[Outgoing]:
    """What becomes of each message, after a look at all of them. The counts of that look must be right."""
    planner = Planner(wanted, how, now_ms=lambda: NOW)
    source = stored(records)
    survey = planner.survey(source)
    found = [planner.plan(one) for one in source]
    assert survey.to_send == Counter(one.target.topic for one in found if one.fate is Fate.SENT)
    others = Counter(one.fate for one in found if one.fate not in (Fate.SENT, Fate.OTHER))
    assert survey.others == others
    return found


class PlannerTests(SynchronousTestCase):
    def test_a_message_keeps_what_its_producer_gave_it(self) -> None:
        properties = {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "U1", "own": "1", "SHARDING": "x"}
        record = message(properties={**properties, "CLUSTER": "C", "MSG_REGION": "R"}, flag=7, sys_flag=1)
        (one,) = planned([record])
        assert one.message is not None
        self.assertEqual((one.message.topic, one.message.body, one.message.flag), ("T", b"body", 7))
        self.assertEqual(
            parse_properties(one.message.stored_properties(one.message.unique_key)), {**properties, "WAIT": "true"}
        )
        self.assertEqual((one.message.sys_flag, one.message.delay_level), (1, 0))

    def test_no_property_that_a_broker_makes_is_sent(self) -> None:
        (one,) = planned([message(properties={**dict.fromkeys(BROKER_MADE, "1"), "RETRY_TOPIC": "R"})])
        assert one.message is not None
        self.assertEqual(set(one.message.properties), set())

    def test_a_retry_keeps_what_its_consumers_need(self) -> None:
        properties = {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "AB", "UNIQ_KEY": "U"}
        (one,) = planned([message("%RETRY%G", properties=properties, reconsume_times=3)])
        assert one.message is not None
        self.assertEqual((dict(one.message.properties), one.message.reconsume_times), (properties, 3))

    def test_transactions(self) -> None:
        half = {"REAL_TOPIC": "T", "REAL_QID": "1", "TRAN_MSG": "true", "PGROUP": "G", "UNIQ_KEY": "U"}
        found = planned(
            [
                message("RMQ_SYS_TRANS_HALF_TOPIC", properties=half),
                message("RMQ_SYS_TRANS_OP_HALF_TOPIC", properties={"TAGS": "d"}),
                message("T", 1, properties=half, sys_flag=TRANSACTION_COMMIT_TYPE),
                message("T", sys_flag=TRANSACTION_PREPARED_TYPE),
                message("T", sys_flag=TRANSACTION_ROLLBACK_TYPE),
            ]
        )
        self.assertEqual([one.fate for one in found], [Fate.HALF, Fate.OPERATION, Fate.SENT, Fate.HALF, Fate.HALF])
        sent = found[2].message
        assert sent is not None
        self.assertEqual((dict(sent.properties), sent.sys_flag), ({"UNIQ_KEY": "U"}, 0))

    def test_a_delayed_message_waits_for_the_rest_of_its_time(self) -> None:
        minute = 60_000
        for stored_at, how, level in (
            (NOW, Delayed.REMAINING, 5),  # all of its minute is left
            (NOW - 45_000, Delayed.REMAINING, 4),  # 15 s are left: the next level is 30 s
            (NOW - minute, Delayed.REMAINING, 0),
            (NOW - minute, Delayed.LEVEL, 5),
            (NOW, Delayed.NOW, 0),
        ):
            (one,) = planned([delayed(5, "U", stored_at)], how=how)
            assert one.message is not None
            self.assertEqual((one.target.topic, one.target.queue_id), ("T", 2))
            self.assertEqual(one.message.delay_level, level, how)
            self.assertEqual(dict(one.message.properties), {"UNIQ_KEY": "U", "own": "1"})

    def test_a_delayed_message_that_was_delivered_is_sent_once(self) -> None:
        found = planned([delayed(3, "U1"), delayed(3, "U2"), delivered(3, "U1"), delayed(3, "U1", topic="other")])
        self.assertEqual([one.fate for one in found], [Fate.DELIVERED, Fate.SENT, Fate.SENT, Fate.SENT])
        self.assertEqual([one.message.delay_level for one in found if one.message is not None], [3, 0, 3])

    def test_a_timer_message_waits_for_the_rest_of_its_time(self) -> None:
        for due, how, deliver in (
            (NOW + 3_000_000, Delayed.REMAINING, str(NOW + 3_000_001)),
            (NOW + 3_000_000, Delayed.LEVEL, str(NOW + 3_000_001)),
            (NOW + 3_000_000, Delayed.NOW, None),
            (NOW - 1000, Delayed.REMAINING, None),
        ):
            (one,) = planned([timer("U", due, TIMER_ROLL_TIMES="1", TIMER_DELAY_MS="5")], how=how)
            assert one.message is not None
            self.assertEqual((one.target.topic, one.target.queue_id, one.message.delay_level), ("T", 2, 0))
            expected = {"UNIQ_KEY": "U", "own": "1", **({} if deliver is None else {"TIMER_DELIVER_MS": deliver})}
            self.assertEqual(dict(one.message.properties), expected)

    def test_of_timer_messages_those_are_sent_that_were_neither_delivered_nor_cancelled(self) -> None:
        later = NOW + 60_000
        gone = replace(timer("U1", later), topic="T", queue_id=2)  # as a broker has delivered it
        records = [
            timer("U1", later),
            timer("U2", later),
            timer("U3", later),
            timer("U3", later + 1000),
            gone,
            timer("C", later, TIMER_DEL_UNIQKEY="T+U3"),
            timer("U2", later, TIMER_ROLL_TIMES="1"),  # put again while it waited
            timer("U4", later, TIMER_ROLL_TIMES="1"),  # the same, but its first copy is not in this source
        ]
        fates = [Fate.DELIVERED, Fate.SENT, Fate.DELIVERED, Fate.SENT, Fate.SENT, Fate.DELIVERED]
        fates += [Fate.DELIVERED, Fate.SENT]
        found = planned(records)
        self.assertEqual([one.fate for one in found], fates)
        self.assertEqual(
            dict(found[4].message.properties) if found[4].message else None, {"UNIQ_KEY": "U1", "own": "1"}
        )

    def test_what_cancels_counts_whatever_is_selected(self) -> None:
        later = NOW + 60_000
        records = [
            timer("U1", later, TAGS="a"),
            timer("C", later, TIMER_DEL_UNIQKEY="U1", TAGS="_RECALL_TAG_", REAL_QID="0"),
        ]
        for wanted in (Wanted(tags=frozenset({"a"})), Wanted(queue_ids=frozenset({2}))):
            self.assertIs(planned(records, wanted)[0].fate, Fate.DELIVERED)

    def test_each_retry_of_a_delivered_timer_message_is_one_of_its_own(self) -> None:
        retry = {
            "TIMER_OUT_MS": str(NOW - 9000),
            "UNIQ_KEY": "U1",
            "DELAY": "3",
            "REAL_TOPIC": "%RETRY%G",
            "REAL_QID": "0",
        }
        records = [
            message(SCHEDULE_TOPIC, 2, properties=retry, reconsume_times=1),
            message("%RETRY%G", properties=retry, reconsume_times=1),
            message(SCHEDULE_TOPIC, 2, properties=retry, reconsume_times=2),
        ]
        self.assertEqual([one.fate for one in planned(records)], [Fate.DELIVERED, Fate.SENT, Fate.SENT])

    def test_a_copy_is_sent_if_the_first_message_cannot_be(self) -> None:
        planner = Planner(Wanted(), now_ms=lambda: NOW)
        first, copy = timer("U1", NOW + 60_000), timer("U1", NOW + 60_000, TIMER_ROLL_TIMES="1")
        source = [Stored(0, first, "its body is damaged"), Stored(1, copy)]
        planner.survey(source)
        self.assertEqual([planner.plan(one).fate for one in source], [Fate.UNSENDABLE, Fate.SENT])

    def test_system_topics_are_not_sent(self) -> None:
        (one,) = planned([message("TBW102")])
        self.assertIs(one.fate, Fate.SYSTEM)

    def test_what_a_request_cannot_hold_is_named(self) -> None:
        bad = Record("T", b"", "a\x01\udcff")
        (one,) = planned([bad])
        self.assertIs(one.fate, Fate.UNSENDABLE)
        self.assertIn("UTF-8", one.problem or "")

    def test_filters(self) -> None:
        records = [
            message("A", 0, properties={"KEYS": "x y", "TAGS": "t", "UNIQ_KEY": "U1"}),
            message("B", 1, properties={"KEYS": "yy"}, store_timestamp=NOW + 5),
            delayed(1, "U2", topic="A"),
            message("RMQ_SYS_TRANS_HALF_TOPIC", properties={"REAL_TOPIC": "A", "REAL_QID": "1"}),
        ]
        for wanted, rows in (
            (Wanted(topics=frozenset({"A"})), [0, 2, 3]),
            (Wanted(keys=frozenset({"y"})), [0]),
            (Wanted(keys=frozenset({"U2"})), [2]),
            (Wanted(tags=frozenset({"t"})), [0]),
            (Wanted(queue_ids=frozenset({1})), [1, 3]),
            (Wanted(start=10, end=30), [1, 2]),
            (Wanted(start_time=NOW + 1), [1]),
            (Wanted(end_time=NOW + 1), [0, 2, 3]),
        ):
            found = [row for row, one in enumerate(planned(records, wanted)) if one.fate is not Fate.OTHER]
            self.assertEqual(found, rows, wanted)

    @UNHURRIED
    @given(st.data())
    def test_every_message_has_one_fate_and_each_delayed_one_arrives_once(self, data: st.DataObject) -> None:
        kinds = st.sampled_from(["plain", "delayed", "both", "half", "op"])
        records: list[Record] = []
        expected = 0
        for number, kind in enumerate(data.draw(st.lists(kinds, max_size=30))):
            key = f"U{number}"
            made = {
                "plain": [message(properties={"UNIQ_KEY": key})],
                "delayed": [delayed(4, key)],
                "both": [delayed(4, key), delivered(4, key)],
                "half": [message("RMQ_SYS_TRANS_HALF_TOPIC", properties={"UNIQ_KEY": key})],
                "op": [message("RMQ_SYS_TRANS_OP_HALF_TOPIC", properties={"TAGS": "d"})],
            }[kind]
            records += made
            expected += kind in ("plain", "delayed", "both")
        sent = [one.message for one in planned(records) if one.message is not None]
        self.assertEqual(len(sent), expected)
        self.assertEqual(len({one.unique_key for one in sent}), expected)


@implementer(IReplayMemory)
class Positions:
    """Notes the positions of the progress, and remembers nothing else."""

    def __init__(self, seen: list[int]) -> None:
        self._seen = seen

    def sends(self, position: int) -> None:
        pass

    def has_result(self, position: int, status: SendStatus | None) -> None:
        pass

    def changed(self, progress: Progress) -> None:
        self._seen.append(progress.position)

    async def is_there(self, message: Message) -> bool:
        return False


class ReplayTests(ClusterTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.answers: list[tuple[RemotingCommand, Deferred[RemotingCommand]]] = []
        self.seen: list[int] = []
        self.serve("a:1", {RequestCode.SEND_MESSAGE_V2: self.take})
        self.routes["T"] = [broker_data("a", master="a:1")], [queue_data("a", 64, 64)]
        self.replay = self.make_replay()

    def make_replay(self, progress: Progress | None = None, **options: Any) -> Replay:
        return Replay(Producer(self.client, "PG"), self.clock, Positions(self.seen), ReplayOptions(**options), progress)

    def take(self, _: RemotingProtocol, request: RemotingCommand) -> Deferred[RemotingCommand]:
        self.answers.append((request, Deferred()))
        return self.answers[-1][1]

    def run_replay(self, records: Iterable[Record], replay: Replay | None = None) -> Deferred[None]:
        planner = Planner(Wanted())
        running = Deferred.fromCoroutine((replay or self.replay).run([planner.plan(one) for one in stored(records)]))
        self.addCleanup(running.addErrback, lambda _: None)  # hypothesis may give an example up in the middle
        self.carry()
        return running

    def bodies(self) -> list[bytes]:
        return [request.body for request, _ in self.answers]

    def answer(self, number: int, code: int = 0) -> None:
        fields = {"msgId": "ABC", "queueId": "0", "queueOffset": "0"}
        self.answers[number][1].callback(RemotingCommand(code, ext_fields=fields))
        self.carry()

    def test_messages_keep_their_queues_and_the_order_in_each(self) -> None:
        running = self.run_replay(
            [message(queue_id=3, body=b"1"), message(queue_id=5, body=b"2"), message(queue_id=3, body=b"3")]
        )
        self.assertEqual(self.bodies(), [b"1", b"2"])  # 3 waits for 1, which is of its queue
        self.assertEqual([request.ext_fields["e"] for request, _ in self.answers], ["3", "5"])
        self.answer(1)
        self.assertEqual(self.bodies(), [b"1", b"2"])
        self.answer(0)
        self.assertEqual(self.bodies(), [b"1", b"2", b"3"])
        self.answer(2)
        self.successResultOf(running)
        self.assertEqual(self.replay.progress.statuses, {SendStatus.SEND_OK: 3})
        self.assertEqual(self.replay.progress.position, 21)

    def test_so_many_are_under_way(self) -> None:
        running = self.run_replay(message(queue_id=number) for number in range(IN_FLIGHT + 5))
        self.assertEqual(len(self.answers), IN_FLIGHT)
        for number in count():
            if number == len(self.answers):
                break
            self.answer(number)
        self.successResultOf(running)
        self.assertEqual(len(self.answers), IN_FLIGHT + 5)

    def test_a_refused_message_is_named_and_the_others_are_sent(self) -> None:
        running = self.run_replay(message(queue_id=number) for number in range(3))
        self.answer(1, 13)
        self.answer(0)
        self.answer(2)
        self.successResultOf(running)
        progress = self.replay.progress
        self.assertEqual([failure.position for failure in progress.failures], [10])
        self.assertEqual((progress.statuses.total(), progress.results, progress.position), (2, 3, 21))

    def test_after_many_refused_messages_it_ends(self) -> None:
        replay = self.make_replay(max_failures=2)
        running = self.run_replay((message(queue_id=7) for _ in range(5)), replay)
        self.answer(0, 13)
        self.answer(1, 13)
        self.failureResultOf(running, TooManyFailures)
        self.assertEqual((len(self.answers), replay.progress.position), (2, 20 - 9))

    def test_a_broker_that_is_gone_ends_it_and_the_place_is_known(self) -> None:
        running = self.run_replay(message(queue_id=number, body=b"%d" % number) for number in range(3))
        self.answer(0)
        self.answer(2)
        self.servers["a:1"].go_down()
        for _ in range(40):
            self.clock.advance(0.5)
            self.carry()
        self.failureResultOf(running, MQClientError)
        progress = self.replay.progress
        self.assertEqual((progress.position, progress.reached), (10, 21))  # the one without an answer comes again
        self.assertEqual(progress.statuses, {SendStatus.SEND_OK: 2})

    def test_interrupting_waits_for_what_is_under_way(self) -> None:
        running = self.run_replay(message(queue_id=7, body=b"%d" % number) for number in range(3))
        running.cancel()
        self.carry()
        self.assertNoResult(running)
        self.answer(0)
        self.failureResultOf(running, CancelledError)
        self.assertEqual((self.replay.progress.position, self.replay.progress.reached), (1, 1))

    def test_the_rate_is_kept(self) -> None:
        replay = self.make_replay(rate=2)
        running = self.run_replay((message(queue_id=number) for number in range(3)), replay)
        self.assertEqual(len(self.answers), 1)
        self.clock.advance(0.5)
        self.carry()
        self.assertEqual(len(self.answers), 2)
        self.clock.advance(0.5)
        self.carry()
        for number in range(3):
            self.answer(number)
        self.successResultOf(running)

    def test_a_new_topic_gets_messages_in_their_queues_too(self) -> None:
        self.routes["TBW102"] = [broker_data("a", master="a:1")], [queue_data("a", 8, 8)]
        running = self.run_replay([message("New", 2)])
        self.assertEqual(self.answers[0][0].ext_fields["e"], "2")
        self.answer(0)
        self.successResultOf(running)

    def test_a_message_that_cannot_be_sent_does_not_hold_up_the_others(self) -> None:
        running = self.run_replay([Record("T", b"", "a\x01\udcff"), message()])
        self.answer(0)
        self.successResultOf(running)
        self.assertEqual([failure.position for failure in self.replay.progress.failures], [0])

    @UNHURRIED
    @given(
        st.lists(st.sampled_from(["sent", "sent", "unsendable", "system"]), max_size=12),
        st.sets(st.integers(0, 11)),
        st.randoms(use_true_random=False),
    )
    def test_done_is_all_from_the_place_on_that_has_a_result(
        self, kinds: list[str], sent_before: set[int], random: Random
    ) -> None:
        records = {
            "sent": [message(queue_id=number) for number in range(len(kinds))],
            "unsendable": [Record("T", b"", "a\x01\udcff")] * len(kinds),
            "system": [message("TBW102")] * len(kinds),
        }
        before = {number * 10 for number, kind in enumerate(kinds) if kind == "sent" and number in sent_before}
        results = set(before)

        class Checking(Positions):
            def has_result(_, position: int, status: SendStatus | None) -> None:
                results.add(position)

            def changed(_, progress: Progress) -> None:
                refused = {failure.position for failure in progress.failures}
                self.assertEqual(progress.done, {one for one in results | refused if one >= progress.position})

        replay = Replay(Producer(self.client, "PG"), self.clock, Checking([]), progress=Progress(done=set(before)))
        self.answers.clear()
        running = self.run_replay([records[kind][number] for number, kind in enumerate(kinds)], replay)
        while left := [number for number, (_, answer) in enumerate(self.answers) if not answer.called]:
            self.answer(random.choice(left), random.choice((0, 13)))
        self.successResultOf(running)
        self.assertEqual(replay.progress.results, len(kinds) - kinds.count("system") - len(before))
        self.assertEqual(replay.progress.position, len(kinds) * 10 - 9 if kinds else 0)

    def test_the_place_never_goes_back(self) -> None:
        running = self.run_replay(message(queue_id=number) for number in range(6))
        for number in (5, 0, 3, 2, 1, 4):
            self.answer(number)
        self.successResultOf(running)
        self.assertEqual(self.seen, sorted(self.seen))
