"""The kernel's pass over the log gives what its messages say, and dispatch makes the same of a log without it."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.deletions import DeletedTopicTable, Deletion
from rmqha.store.derived import dispatch
from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.derived.index import KeyIndex
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.log.commitlog import CommitLog
from rmqha.testing.records import make_record
from rmqha.wire.compiled import KERNEL
from rmqha.wire.delay import SCHEDULE_TOPIC, DelayLevels
from rmqha.wire.logunits import OrdinaryUnits, ordinary_units_plain
from rmqha.wire.record import TRANSACTION_COMMIT_TYPE, TRANSACTION_PREPARED_TYPE, Host, Record, encode_blank
from tests.fixtures import new_folder
from tests.pipeline.test_decode import laid
from tests.store.derived.ordinaryunits import BASES, ComparedLogs, a_log, compare
from tests.store.derived.test_bulk import TELLING
from tests.store.queues import Writer
from tests.strategies import records
from tests.twins import need_kernel

LARGE = 1 << 30
V6 = Host(bytes(range(16)), 1)


def content_of(*some: Record) -> bytes:
    """Of a log that begins with these messages."""
    return bytes(laid(some)[1])


class OrdinaryUnitsTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_kernel()
        super().setUp()
        self.kernel: Any = KERNEL

    def units(self, data: bytes, limit: int = LARGE, most: int = LARGE, most_keys: int = LARGE) -> OrdinaryUnits | None:
        """From a buffer that ends with the data: the sanitizers see a read behind it."""
        compare(self.kernel, data, 0, (limit, most, most_keys), ComparedLogs())
        found: OrdinaryUnits | None = self.kernel.ordinary_units(data, 0, limit, most, most_keys)
        return found

    def taken(self, *some: Record, **limits: int) -> int:
        """How many of these messages are ordinary, from the first on."""
        found = self.units(content_of(*some), **limits)
        return 0 if found is None else found.messages

    def test_messages_of_a_usual_log_are_all_ordinary(self) -> None:
        data = a_log(Random(7), 0, oddness=0)
        some = [make_record(number, b"b") for number in range(100)]
        self.assertEqual(self.taken(*some), 100)
        self.assertEqual(self.taken(*[replace(one, born_host=V6, store_host=V6) for one in some]), 100)
        self.assertEqual(self.taken(*[replace(one, sys_flag=TRANSACTION_COMMIT_TYPE) for one in some]), 100)
        self.assertEqual(self.taken(*[replace(one, properties_stored="") for one in some]), 100)
        self.units(data)

    def test_limits_are_kept(self) -> None:
        some = [make_record(number, b"b") for number in range(10)]
        size = len(content_of(some[0]))
        self.assertEqual(self.taken(*some, most=3), 3)
        self.assertEqual(self.taken(*some, most_keys=3), 2, "each has two keys")
        self.assertEqual(self.taken(*some, limit=3 * size), 3)
        self.assertEqual(self.taken(*some, limit=3 * size - 1), 2)
        for nothing in ("limit", "most", "most_keys"):
            self.assertEqual(self.taken(*some, **{nothing: 0}), 0)

    def test_it_stops_at_the_first_odd_message(self) -> None:
        some = [make_record(number, b"b") for number in range(10)]
        for odd in (
            {"queue_id": -1},
            {"queue_offset": -1},
            {"queue_offset": 1 << 40},
            {"sys_flag": TRANSACTION_PREPARED_TYPE},
            {"topic": SCHEDULE_TOPIC},
            {"topic": ".."},
            {"topic": "a/b"},
            {"topic": "é"},
            {"properties_stored": "TAGS\x01é"},
            {"properties_stored": "KEYS\x01a\x02KEYS\x01b"},
            {"properties_stored": "UNIQ_KEY\x01"},
            {"properties_stored": "\x02TAGS\x01a"},
        ):
            self.assertEqual(self.taken(*some[:5], replace(some[5], **odd), *some[6:]), 5, odd)
        self.assertEqual(self.taken(*some[:4], *some[5:]), 7, "the next one of the queue does not follow")

    def test_it_stops_before_a_blank(self) -> None:
        record = make_record(0, b"b")
        found = self.units(content_of(record) + encode_blank(200) + bytes(192))
        self.assertEqual(found and found.messages, 1)

    def test_a_message_with_very_many_keys_is_taken_whole(self) -> None:
        keys = "KEYS\x01" + " ".join("k" * 16_000)
        some = [make_record(number, b"b") for number in range(4)]
        self.assertEqual(self.taken(*[replace(one, properties_stored=keys) for one in some], most_keys=16_001), 2)

    def test_messages_of_very_many_queues_are_left_alone(self) -> None:
        some = [replace(make_record(0, b"b"), queue_id=number) for number in range(129)]
        self.assertEqual(self.taken(*some[:128]), 128)
        self.assertEqual(self.taken(*some), 0)

    @settings(deadline=None)
    @given(st.lists(records() | TELLING | st.integers(0, 9).map(lambda n: make_record(n, b"b")), max_size=6))
    def test_what_it_says_of_any_messages_is_what_they_say(self, some: list[Record]) -> None:
        self.units(content_of(*some))

    @settings(deadline=None)
    @given(st.randoms(use_true_random=False), st.sampled_from(BASES))
    def test_what_it_says_of_any_log_is_what_its_messages_say(self, rng: Random, base: int) -> None:
        data, compared = a_log(rng, base), ComparedLogs()
        for limit in (LARGE, len(data), rng.randrange(len(data) + 1)):
            compare(self.kernel, data, base, (limit, rng.choice((1, 100, LARGE)), rng.choice((1, 9, LARGE))), compared)

    def test_a_base_that_is_no_offset_is_refused(self) -> None:
        data = content_of(make_record(0, b"b"))
        for base in (-1, (1 << 63) - 1, 1 << 70):
            self.assertIsNone(self.kernel.ordinary_units(data, base, LARGE, LARGE, LARGE))


class Side:
    """Queues and index that one of the ways makes of a log."""

    def __init__(self, log: CommitLog, root: Path, way: Any) -> None:
        self.root, self.way = root, way
        self.queues, self.index = QueueTable(root / "consumequeue", 1000), KeyIndex(root / "index", 50, 100_000)
        self.dispatcher = Dispatcher(log, self.queues, self.index, DelayLevels(), 0)
        self.heard: dict[tuple[str, int, int], int] = {}
        self.dispatcher.subscribe(
            lambda request, tags_code: self.heard.update(
                {(request.topic, request.queue_id, tags_code): request.queue_offset}
            )
        )

    def catch_up(self, test: SynchronousTestCase) -> None:
        """Dispatch all there is."""
        test.patch(dispatch, "ordinary_units", self.way)
        self.dispatcher.catch_up()
        self.dispatcher.write_pending()

    def outcome(self) -> Any:
        """All that it made."""
        files = [path for path in sorted(self.root.rglob("*")) if path.is_file()]
        queues = {path.relative_to(self.root): path.read_bytes() for path in files if path.parent.name != "index"}
        index = [path.read_bytes() for path in files if path.parent.name == "index"]
        return queues, index, self.dispatcher.last_store_timestamp, self.dispatcher.reput_offset, self.heard

    def close(self) -> None:
        """Close all files."""
        self.dispatcher.stop()
        self.queues.close()
        self.index.close()


class EqualTests(SynchronousTestCase):
    """Dispatch with the kernel's pass and without it."""

    def setUp(self) -> None:
        need_kernel()
        super().setUp()
        self.patch(dispatch, "MIN_BULK_BYTES", 1)
        self.patch(dispatch, "MIN_BULK_MESSAGES", 2)
        self.taken = 0

    def counted(self, *where: Any) -> OrdinaryUnits | None:
        """The kernel's pass."""
        kernel: Any = KERNEL
        found: OrdinaryUnits | None = kernel.ordinary_units(*where)
        self.taken += found.messages if found is not None else 0
        return found

    def sides(self) -> tuple[CommitLog, list[Side]]:
        """An empty log, and what is made of it without the kernel's pass and with it."""
        root = new_folder(self)
        log = CommitLog(root / "commitlog", 64 * 1024)
        ways = {"plain": ordinary_units_plain, "kernel": self.counted}
        return log, [Side(log, root / name, way) for name, way in ways.items()]

    def check(self, log: CommitLog, sides: list[Side]) -> None:
        """Both have the same. Closes them."""
        plain, kernel = (side.outcome() for side in sides)
        for side in sides:
            side.close()
        log.close()
        self.assertEqual(kernel, plain)

    @pytest.mark.long
    @settings(deadline=None, max_examples=40)
    @given(st.randoms(use_true_random=False))
    def test_both_make_the_same_of_any_log(self, rng: Random) -> None:
        log, sides = self.sides()
        if rng.random() < 0.5:  # nobody waits for dispatch
            for side in sides:
                side.dispatcher.start(Clock(), lambda failure: failure.raiseException())
        writer = Writer(log)
        for _ in range(rng.randrange(1, 6)):
            for _ in range(rng.choice((3, 40, 200))):
                put_any(rng, writer)
            step = rng.random()
            for side in sides:
                if step < 0.1:
                    side.dispatcher.go_back_to(0)
                elif step > 0.9:
                    side.dispatcher.deleted = DeletedTopicTable((Deletion("T0", log.verified_offset),))
                side.catch_up(self)
        self.check(log, sides)

    def test_messages_before_those_of_a_queue_are_not_put_behind_them(self) -> None:
        """They were deleted with their topic, and nobody remembers that."""
        log, sides = self.sides()
        writer = Writer(log)
        before = [writer.put() for _ in range(10)]
        mark = log.verified_offset
        after = [writer.put(queue_offset=number) for number in range(3)]
        self.taken = 0
        for side in sides:
            side.dispatcher.deleted = DeletedTopicTable((Deletion("T", mark),))
            side.catch_up(self)
            self.assertEqual(side.queues.queues["T", 0].max_offset, len(after))
            side.dispatcher.deleted = DeletedTopicTable()
            side.dispatcher.go_back_to(before[len(after)].physical_offset)
            side.catch_up(self)
            self.assertEqual(side.queues.queues["T", 0].max_offset, len(after))
        self.assertGreater(self.taken, 0)
        self.check(log, sides)

    def test_most_messages_of_a_usual_log_are_taken_by_the_kernel(self) -> None:
        root = new_folder(self)
        log = CommitLog(root / "commitlog", 1 << 20)
        self.addCleanup(log.close)
        side, writer = Side(log, root, self.counted), Writer(log)
        self.addCleanup(side.close)
        writer.put_many(30)
        side.catch_up(self)
        self.taken = 0
        writer.put_many(500)
        side.catch_up(self)
        self.assertEqual(self.taken, 500)


def put_any(rng: Random, writer: Writer) -> None:
    """A message: mostly an ordinary one."""
    fields: dict[str, Any] = {"UNIQ_KEY": f"u{writer.number}"} if rng.random() < 0.8 else {}
    fields |= {"TAGS": rng.choice(("a", "b", "c"))} if rng.random() < 0.8 else {}
    fields |= {"KEYS": rng.choice(("k", "k l", "a  b"))} if rng.random() < 0.3 else {}
    topic = f"T{rng.randrange(2)}"
    if rng.random() < 0.01:
        topic = rng.choice((SCHEDULE_TOPIC, "é", "a/b"))
    if rng.random() < 0.01:
        fields |= rng.choice(
            (
                {"TAGS": "é"},
                {"DELAY": "3"},
                {"sys_flag": TRANSACTION_PREPARED_TYPE},
                {"queue_offset": 1 << 40},
                {"queue_offset": 0},
                {"store_host": V6},
            )
        )
    writer.put(topic, rng.randrange(3), bytes(rng.choice((0, 30))), **fields)
