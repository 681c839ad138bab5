"""Reads that end at the confirmed end of the log: what is seen, who is woken, and what a restart keeps."""

import os
from functools import partial
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import make_settings
from rmqha.store import readlimit
from rmqha.store.derived import consumequeue
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.reading import GetMessageStatus
from rmqha.store.readlimit import NO_LIMIT, LimitFile, ReadLimit
from tests import examples
from tests.broker.brokerstore import BrokerStoreTestCase


class WaitTests(SynchronousTestCase):
    """Who is called, and when."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.saved: list[int] = []
        self.limit = ReadLimit(self.clock, 100, self.saved.append)
        self.called: list[int] = []

    def wait(self, offset: int) -> readlimit.Wait:
        return self.limit.wait(offset, lambda: self.called.append(offset))

    def test_each_is_called_once_when_its_offset_is_reached(self) -> None:
        for offset in (300, 101, 200):
            self.wait(offset)
        self.limit.grow(200)
        self.assertEqual((self.called, self.saved), ([], [200]))
        self.clock.advance(0)
        self.assertEqual(self.called, [101, 200])
        self.limit.grow(400)
        self.clock.advance(0)
        self.assertEqual((self.called, len(self.limit)), ([101, 200, 300], 0))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_lower_offset_changes_nothing(self) -> None:
        self.limit.grow(100)
        self.limit.grow(99)
        self.assertEqual((self.limit.offset, self.saved), (100, []))

    def test_what_was_cut_may_come_again(self) -> None:
        self.limit.take_back(150)
        self.limit.take_back(40)
        self.assertEqual((self.limit.offset, self.saved), (40, [40]))

    def test_one_that_is_reached_already_is_called_in_the_next_turn(self) -> None:
        self.wait(100)
        self.assertEqual(self.called, [])
        self.clock.advance(0)
        self.assertEqual(self.called, [100])

    def test_cancelled_waits_are_not_called_and_take_no_memory(self) -> None:
        waits = [self.wait(200 + number) for number in range(readlimit.MIN_DEAD_WAITS * 3)]
        for wait in waits[1:]:
            wait.cancel()
            wait.cancel()
        self.assertEqual(len(self.limit), 1)
        self.assertLess(len(self.limit._waits), readlimit.MIN_DEAD_WAITS + 2)
        self.limit.grow(10**6)
        self.clock.advance(0)
        self.assertEqual((self.called, len(self.limit)), ([200], 0))

    def test_many_share_turns(self) -> None:
        self.patch(readlimit, "TURN_SECONDS", -1.0)
        for _ in range(3):
            self.wait(200)
        self.limit.grow(200)
        self.clock.callLater(0, self.called.append, 0)
        self.clock.advance(0)
        self.assertEqual(self.called, [200, 0, 200, 200])

    def test_a_deferred_fires_or_is_cancelled(self) -> None:
        self.successResultOf(self.limit.reached(100))
        fired, cancelled = self.limit.reached(101), self.limit.reached(101)
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.limit.grow(101)
        self.clock.advance(0)
        self.successResultOf(fired)

    def test_nobody_is_called_after_the_stop(self) -> None:
        self.wait(200)
        self.limit.grow(200)
        self.limit.stop()
        self.clock.advance(1)
        self.assertEqual((self.called, self.clock.getDelayedCalls()), ([], []))

    @given(st.lists(st.tuples(st.sampled_from("wcg"), st.integers(0, 50)), max_size=60))
    @settings(deadline=None)
    def test_exactly_those_reached_and_not_cancelled_are_called(self, steps: list[tuple[str, int]]) -> None:
        clock = Clock()
        called: list[int] = []
        limit = ReadLimit(clock, 0)
        waits: list[tuple[int, readlimit.Wait]] = []
        cancelled = set()
        for step, value in steps:
            if step == "w":
                number = len(waits)
                waits.append((value, limit.wait(value, partial(called.append, number))))
            elif step == "c" and waits:
                number = value % len(waits)
                if number not in called:
                    cancelled.add(number)
                waits[number][1].cancel()
            elif step == "g":
                limit.grow(value)
            clock.advance(0)
            due = {number for number, (offset, _) in enumerate(waits) if offset <= limit.offset} - cancelled
            self.assertEqual(set(called), due)
            self.assertEqual(len(limit), len(waits) - len(due) - len(cancelled))
        self.assertEqual(len(called), len(set(called)))


class FileTests(SynchronousTestCase):
    """The number outlives the process."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp())

    def test_the_last_number_is_read(self) -> None:
        file = LimitFile(self.root)
        self.assertIsNone(file.read())
        for offset in (5, NO_LIMIT - 1, 7):
            file.write(offset)
            self.assertEqual(LimitFile(self.root).read(), offset)
        file.remove()
        self.assertIsNone(file.read())

    def test_a_damaged_number_lets_nobody_read_on(self) -> None:
        file = LimitFile(self.root)
        file.write(5)
        file.close()
        path = self.root / "rmqha" / "read-limit"
        for content in (b"", b"\0" * 21, b"abc", b"9" * 30):
            path.write_bytes(content)
            self.assertEqual(file.read(), 0)


class LimitedStoreTestCase(BrokerStoreTestCase):
    """A store whose reads have a limit."""

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.limit = self.store.limit_reads(self.clock)

    def queue_ends(self) -> tuple[int, int]:
        return self.store.reader.max_offset("T", 0), self.store.reader.next_offset("T", 0)


class ReadingTests(LimitedStoreTestCase):
    """A consumer sees a store that ends at the limit."""

    def test_nothing_is_seen_before_it_is_confirmed(self) -> None:
        first, second = self.put(b"1", b"2", KEYS="k")
        reader = self.store.reader
        waits = reader.get_message("T", 0, 0, 32)
        self.assertEqual(waits.status, GetMessageStatus.WAITS_FOR_A_SLAVE)
        self.assertEqual((waits.next_begin_offset, waits.max_offset, waits.records), (0, 0, ()))
        self.limit.grow(second.physical_offset)
        found = reader.get_message("T", 0, 0, 32)
        self.assertEqual((len(found.records), found.next_begin_offset, found.max_offset), (1, 1, 1))
        self.assertEqual(reader.get_message("T", 0, 1, 32).status, GetMessageStatus.WAITS_FOR_A_SLAVE)
        self.assertEqual(self.queue_ends(), (1, 2))
        self.assertEqual([one.physical_offset for one in reader.query_message("T", "k", 32, 0, 2**62)], [0])
        self.assertIsNone(reader.record_at(second.physical_offset))
        self.assertIsNotNone(reader.record_at(first.physical_offset))
        self.assertIsNotNone(reader.message_at(second.physical_offset))
        self.assertEqual(reader.offset_by_time("T", 0, 2**62), 1)
        self.assertEqual(reader.message_store_timestamp("T", 0, 1), -1)

    def test_half_of_a_message_is_not_confirmed(self) -> None:
        (record,) = self.put(b"1")
        self.limit.grow(record.physical_offset + record.total_size - 1)
        self.assertEqual(self.queue_ends(), (0, 1))
        self.limit.grow(record.physical_offset + record.total_size)
        self.assertEqual(self.queue_ends(), (1, 1))

    def test_a_consumer_that_is_further_than_the_limit_waits_and_is_not_set_back(self) -> None:
        """For example after it was sent to a slave that knows less."""
        self.put(b"1", b"2", b"3")
        for offset in (1, 2, 3):
            found = self.store.reader.get_message("T", 0, offset, 32)
            self.assertEqual((found.status, found.next_begin_offset), (GetMessageStatus.WAITS_FOR_A_SLAVE, offset))
        beyond = self.store.reader.get_message("T", 0, 4, 32)
        self.assertEqual((beyond.status, beyond.next_begin_offset), (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 0))

    def test_at_the_end_of_the_queue_nothing_waits(self) -> None:
        (record,) = self.put(b"1")
        self.put(b"2", queue_id=1)
        self.limit.grow(record.physical_offset + record.total_size)
        self.assertEqual(self.store.reader.get_message("T", 0, 1, 32).status, GetMessageStatus.OFFSET_OVERFLOW_ONE)

    def test_an_emptied_log_is_confirmed_anew(self) -> None:
        (record,) = self.put(b"1")
        self.limit.grow(record.total_size)
        self.store.set_aside(1)
        self.assertEqual(self.limit.offset, 0)

    @given(
        st.lists(st.integers(0, 2), min_size=1, max_size=40),
        st.lists(st.integers(0, 2000), min_size=1, max_size=8),
        st.integers(1, 20),
    )
    @settings(deadline=None, max_examples=examples(15))
    def test_each_queue_ends_at_the_first_message_that_is_not_confirmed(
        self, queues: list[int], permilles: list[int], looked_at: int
    ) -> None:
        """However many units are looked at together; messages and limits in any order."""
        records = [self.put(b"x" * (number % 50), topic="H", queue_id=q)[0] for number, q in enumerate(queues)]
        start, end = records[0].physical_offset, records[-1].physical_offset + records[-1].total_size
        with patch.object(consumequeue, "UNITS_LOOKED_AT", looked_at):
            for permille in sorted(permilles):
                self.limit.grow(start + (end - start) * permille // 1000)
                for queue_id in set(queues):
                    ours = [record for record in records if record.queue_id == queue_id]
                    late = [one for one in ours if one.physical_offset + one.total_size > self.limit.offset]
                    expected = late[0].queue_offset if late else ours[-1].queue_offset + 1
                    for _ in range(2):
                        self.assertEqual(self.store.reader.max_offset("H", queue_id), expected)
        self.limit.grow(end)


class RestartTests(SynchronousTestCase):
    """Where the limit starts."""

    def setUp(self) -> None:
        for name in ("fsync", "fdatasync"):
            self.patch(os, name, lambda fd: None)
        self.clock = Clock()
        self.settings = make_settings({"storePathRootDir": self.mktemp(), "mappedFileSizeCommitLog": "65536"})
        self.open()
        self.addCleanup(lambda: self.store.close_now())
        self.end = self.put(3)

    def open(self) -> MessageStore:
        self.store = MessageStore(self.settings)
        self.store.start_flushing(self.clock, execute, lambda failure: failure.raiseException())
        return self.store

    def put(self, count: int) -> int:
        for _ in range(count):
            self.successResultOf(self.store.put_message(Message("T", b"x")))
        self.store.derived.dispatcher.catch_up()
        return self.store.commit_log.verified_offset

    def again(self, died: bool = False) -> MessageStore:
        """The store opened again, after a clean stop or a death of the process."""
        if died:
            self.store.abandon()
        else:
            self.store.close_now()
        return self.open()

    def test_at_first_it_is_the_end_of_what_consumers_have_seen(self) -> None:
        self.assertEqual(self.store.limit_reads(self.clock).offset, self.end)

    def test_a_process_that_dies_served_no_more_than_its_successor(self) -> None:
        limit = self.store.limit_reads(self.clock)
        served = self.put(1)
        limit.grow(served)
        end = self.put(1)
        self.assertEqual(self.again(died=True).limit_reads(self.clock).offset, served)
        self.assertEqual(self.store.commit_log.verified_offset, end)

    def test_without_the_file_state_json_counts(self) -> None:
        """After a loss of power the file may be older, or gone."""
        self.store.limit_reads(self.clock)
        self.put(2)
        self.store.node_state = NodeState.new()
        store = self.again()
        LimitFile(store.root).write(1)
        store.node_state = NodeState(store_id="s", read_limit=self.end)
        self.assertEqual(store.limit_reads(self.clock).offset, self.end)

    def test_after_a_cut_other_bytes_are_confirmed_anew(self) -> None:
        self.store.limit_reads(self.clock)
        LimitFile(self.store.root).write(self.end + 500)
        store = self.again()
        store.node_state = NodeState(store_id="s", read_limit=self.end + 700)
        self.assertEqual(store.limit_reads(self.clock).offset, self.end)
        self.assertEqual(LimitFile(store.root).read(), self.end)
        known = NodeState.read(store.root)
        assert known is not None
        self.assertEqual(known.read_limit, self.end)

    def test_a_run_without_the_setting_serves_all(self) -> None:
        self.store.limit_reads(self.clock)
        self.put(1)
        store = self.again()
        store.lift_read_limit()
        self.assertIsNone(store.read_limit)
        store = self.again()
        self.assertEqual(store.limit_reads(self.clock).offset, store.commit_log.verified_offset)

    def test_an_operator_lifts_it(self) -> None:
        self.store.limit_reads(self.clock)
        self.put(1)
        self.store.lift_read_limit()
        limit = self.store.read_limit
        assert limit is not None
        self.assertTrue(limit.is_lifted)
        self.assertEqual(self.store.reader.max_offset("T", 0), 4)
        self.assertIsNone(LimitFile(self.store.root).read())
