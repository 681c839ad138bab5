"""A read copies parts of the log; it gives what reading one record after another gives, whatever the queue names."""

from collections.abc import Mapping, Sequence
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.store.derived.consumequeue import PRE_BLANK_SIZE, UNIT_DTYPE
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.reading import GetMessageResult, GetMessageStatus, PropertyFilter, TagFilter
from tests import examples
from tests.store.logs import SEGMENT_SIZE
from tests.store.test_reading import ReadingTestCase

Places = Sequence[tuple[int, int, int]]
LIMIT_BYTES, LIMIT_COUNT = 1500, 6
IN_DISK_BYTES, IN_DISK_COUNT = 700, 3
IN_MEMORY = 2000
"""The last bytes of the log, whose limits are greater."""


class WithoutKeys(PropertyFilter):
    """Wants messages that have no keys."""

    cost = 1

    def matches(self, properties: Mapping[str, str]) -> bool:
        return "KEYS" not in properties


def even(tags_code: int) -> bool:
    """Wants every other tag."""
    return tags_code % 2 == 0


def one_by_one(
    log: CommitLog, units: Places, most: int, wanted: TagFilter | None, keyless: bool
) -> tuple[GetMessageStatus, int, list[bytes]]:
    """The status, how many units were examined, and the records, each selected and copied by itself."""
    status, records, examined, removed_until = GetMessageStatus.NO_MATCHED_MESSAGE, list[bytes](), 0, 0

    def unless_found(other: GetMessageStatus) -> GetMessageStatus:
        return status if status is GetMessageStatus.FOUND else other

    for offset, size, tags_code in units:
        if offset < removed_until or (offset == 0 and size in (0, PRE_BLANK_SIZE)):
            status, examined = unless_found(GetMessageStatus.MESSAGE_WAS_REMOVING), examined + 1
            continue
        is_in_disk = log.verified_offset - offset > IN_MEMORY
        limit_bytes, limit_count = (IN_DISK_BYTES, IN_DISK_COUNT) if is_in_disk else (LIMIT_BYTES, LIMIT_COUNT)
        has_room = len(records) < min(most, limit_count) and sum(map(len, records)) + size <= limit_bytes
        if records and not has_room:
            break
        examined += 1
        if wanted is not None and not wanted(tags_code):
            status = unless_found(GetMessageStatus.NO_MATCHED_MESSAGE)
            continue
        record = log.select(offset, size)
        if record is None:
            status = unless_found(GetMessageStatus.MESSAGE_WAS_REMOVING)
            removed_until = offset - offset % SEGMENT_SIZE + SEGMENT_SIZE
            continue
        if keyless and b"KEYS\1" in bytes(record):
            status = unless_found(GetMessageStatus.NO_MATCHED_MESSAGE)
            continue
        records.append(bytes(record))
        status = GetMessageStatus.FOUND
    return status, examined, records


class PartsTests(ReadingTestCase):
    """One log of several segments, of which the first is gone."""

    def setUp(self) -> None:
        super().setUp()
        bodies = [bytes([number]) * (37 * number % 400) for number in range(40)]
        self.records = [
            self.writer.put(body=body, KEYS=f"k{number}") if number % 3 else self.writer.put(body=body)
            for number, body in enumerate(bodies)
        ]
        self.made = self.reader(
            memory_bytes=IN_MEMORY,
            max_transfer_bytes_on_message_in_memory=LIMIT_BYTES,
            max_transfer_count_on_message_in_memory=LIMIT_COUNT,
            max_transfer_bytes_on_message_in_disk=IN_DISK_BYTES,
            max_transfer_count_on_message_in_disk=IN_DISK_COUNT,
        )
        self.log.delete_first_segment()
        self.assertGreater(self.records[-1].physical_offset, 2 * SEGMENT_SIZE)

    def read(self, units: Places, most: int, wanted: TagFilter | PropertyFilter | None) -> GetMessageResult:
        queue = self.queues.get("T", 0)
        assert queue is not None
        with patch.object(queue, "units", lambda offset, limit: np.array(units, dtype=UNIT_DTYPE)):
            return self.made.get_message("T", 0, 0, most, wanted)

    def compare(self, units: Places, most: int, tags: TagFilter | None, keyless: bool) -> None:
        status, examined, records = one_by_one(self.log, units, most, tags, keyless)
        found = self.read(units, most, WithoutKeys() if keyless else tags)
        self.assertEqual((found.status, found.next_begin_offset), (status, examined))
        self.assertEqual(found.records, tuple(records))
        self.assertEqual(found.body, b"".join(records))

    @given(
        st.lists(st.tuples(st.integers(-2, 45), st.sampled_from((-1, 0, 1, 50, 400)), st.integers(0, 3)), min_size=1),
        st.integers(0, 40),
        st.booleans(),
    )
    @settings(max_examples=examples(200), deadline=None)
    def test_any_units(self, drawn: Places, most: int, by_tags: bool) -> None:
        """Also those that name no message, parts of one, or what is not in the log."""
        end = self.log.max_offset
        places = [each.physical_offset for each in self.records]
        units = [
            (places[at] if 0 <= at < len(places) else end + 10 * (at - 43), size, tags) for at, size, tags in drawn
        ]
        self.compare(units, most, even if by_tags else None, keyless=False)

    @given(st.lists(st.integers(0, 39), min_size=1), st.booleans(), st.integers(0, 40), st.sampled_from("ntk"))
    @settings(max_examples=examples(200), deadline=None)
    def test_units_of_messages(self, drawn: list[int], in_order: bool, most: int, kind: str) -> None:
        """In the log's order, as a queue has them, or in another one."""
        chosen = [self.records[number] for number in (sorted(set(drawn)) if in_order else drawn)]
        units = [(each.physical_offset, each.total_size, each.queue_offset) for each in chosen]
        self.compare(units, most, even if kind == "t" else None, keyless=kind == "k")

    def test_messages_one_after_another_are_one_part(self) -> None:
        run = [each for each in self.records if each.physical_offset >= 2 * SEGMENT_SIZE][:3]
        found = self.read([(each.physical_offset, each.total_size, 0) for each in run], 3, None)
        self.assertEqual(found.sizes, tuple(each.total_size for each in run[: len(found.sizes)]))
        self.assertEqual(found.body, self.log.select(run[0].physical_offset, len(found.body)))
