"""Compares the store with a model in plain Python, over any sequence of puts, reads, stops and kills."""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock

from rmqha.settings.settings import FlushDiskType, Settings
from rmqha.store.message import AppendMessageStatus, Message, MessageBatch, PutMessageResult, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import GetMessageStatus
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.properties import format_properties
from rmqha.wire.record import (
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    Host,
    Record,
    encode_blank,
    encode_record,
)
from tests import examples

pytestmark = pytest.mark.long
EXAMPLES = int(os.environ.get("RMQHA_MODEL_EXAMPLES", "60"))
SEGMENT_SIZE = 4096
QUEUE_FILE_UNITS = 7
MAX_READ = 5
NOW_MS = 1_795_000_000_000
TYPES = (0, 0, 0, TRANSACTION_COMMIT_TYPE, TRANSACTION_PREPARED_TYPE, TRANSACTION_ROLLBACK_TYPE)
TOPICS = st.sampled_from(("A", "B漢", "%RETRY%C"))
QUEUE_IDS = st.integers(0, 1)
KEYS = st.sampled_from(("k1", "k2", "k3", "é😀"))
HOSTS = st.sampled_from((Host(b"\x7f\0\0\x01", 10911), Host(bytes(range(16)), 1)))
BODY_SIZES = st.integers(0, 40) | st.integers(300, 1500) | st.sampled_from((SEGMENT_SIZE - 300, SEGMENT_SIZE))


@st.composite
def properties(draw: st.DrawFn) -> dict[str, str]:
    """Keys of both kinds, and what else matters or does not."""
    found = {"KEYS": " ".join(draw(st.lists(KEYS, min_size=1, max_size=3)))} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        found["UNIQ_KEY"] = draw(KEYS)
    if draw(st.booleans()):
        found["TAGS"] = draw(st.sampled_from(("TagA", "é")))
    return found


@dataclass
class Item:
    """A record or a blank in the model's log: where it begins, its bytes that count, and where the next one begins."""

    offset: int
    data: bytes
    end: int
    record: Record | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it is a message with a place in a queue."""
        return self.record is not None and self.record.sys_flag & 0xC in (0, TRANSACTION_COMMIT_TYPE)

    @property
    def is_indexed(self) -> bool:
        return self.record is not None and self.record.sys_flag & 0xC != TRANSACTION_ROLLBACK_TYPE


@dataclass
class Model:
    """What a store must hold."""

    items: list[Item] = field(default_factory=list)
    last_store_timestamp: int = 0

    @property
    def end(self) -> int:
        return self.items[-1].end if self.items else 0

    @property
    def records(self) -> list[Record]:
        return [item.record for item in self.items if item.record is not None]

    def queue(self, topic: str, queue_id: int) -> list[Record]:
        """The messages of a queue, in order."""
        counted = [item.record for item in self.items if item.is_counted]
        return [found for found in counted if found is not None and (found.topic, found.queue_id) == (topic, queue_id)]

    def queues(self) -> set[tuple[str, int]]:
        return {(record.topic, record.queue_id) for record in self.records}

    def with_key(self, topic: str, key: str) -> list[Record]:
        """Messages found by a key, oldest first."""
        found = []
        for item in self.items:
            if item.record is not None and item.is_indexed and item.record.topic == topic:
                values = item.record.properties
                if key == values.get("UNIQ_KEY") or key in values.get("KEYS", "").split(" "):
                    found.append(item.record)
        return found

    def append(self, records: list[Record]) -> list[int]:
        """Place records, one behind the other in one segment; gives where they lie."""
        room = SEGMENT_SIZE - self.end % SEGMENT_SIZE
        if sum(record.total_size for record in records) + 8 > room:
            self.items.append(Item(self.end, encode_blank(room), self.end + room))
        offsets = []
        for record in records:
            placed = replace(record, physical_offset=self.end)
            offsets.append(self.end)
            self.items.append(Item(self.end, encode_record(placed), self.end + record.total_size, placed))
        return offsets

    def cut(self, offset: int) -> None:
        """Keep what was written before ``offset`` as a whole."""
        while self.items and self.items[-1].offset + len(self.items[-1].data.rstrip(b"\0")) > offset:
            self.items.pop()


class StoreMachine(RuleBasedStateMachine):
    """Puts, reads and stops in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="rmqha-model-"))
        self.model = Model()
        self.now_ms = NOW_MS
        self.copies = 0
        self.root = self.folder / "0"
        self.store: MessageStore | None = None

    def time_of_day(self) -> int:
        return self.now_ms * 1_000_000

    @initialize(kind=st.sampled_from(FlushDiskType), thorough_ms=st.sampled_from((1, 10_000)))
    def begin(self, kind: FlushDiskType, thorough_ms: int) -> None:
        self.settings = Settings(
            mapped_file_size_commit_log=SEGMENT_SIZE,
            mapped_file_size_consume_queue=QUEUE_FILE_UNITS * 20,
            max_hash_slot_num=3,
            max_index_num=20,
            flush_disk_type=kind,
            flush_commit_log_thorough_interval_ms=thorough_ms,
            max_message_size_bytes=2**20,
        )
        clock = patch.object(time, "time_ns", self.time_of_day)
        clock.start()
        self.stop_clock = clock.stop
        self.open()

    def open(self) -> None:
        self.clock = Clock()
        self.store = MessageStore(replace(self.settings, store_path_root_dir=self.root))
        self.flusher = self.store.start_flushing(self.clock, execute, self.fail)
        self.store.start_dispatching(self.clock, self.fail)
        self.model.last_store_timestamp = self.model.records[-1].store_timestamp if self.model.records else 0

    @property
    def opened(self) -> MessageStore:
        assert self.store is not None, "begin() opened it"
        return self.store

    def fail(self, failure: Any) -> None:
        raise AssertionError(f"the store gave up: {failure}")

    def teardown(self) -> None:
        if self.store is not None:
            self.store._release(None)
            self.stop_clock()
        shutil.rmtree(self.folder)

    def stamp(self) -> int:
        self.model.last_store_timestamp = max(self.model.last_store_timestamp, self.now_ms)
        return self.model.last_store_timestamp

    def result_of(self, putting: "Deferred[PutMessageResult]") -> PutMessageResult:
        results: list[PutMessageResult] = []
        putting.addCallback(results.append)
        assert results, "flushes run at once here"
        return results[0]

    def check_put(self, result: PutMessageResult, records: list[Record]) -> None:
        """The store's answer, and what the model makes of these records."""
        too_large = sum(record.total_size for record in records) + 8 > SEGMENT_SIZE
        assert result.append is not None
        if too_large:
            assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
            assert result.append.status is AppendMessageStatus.MESSAGE_SIZE_EXCEEDED
            self.stamp()
            return
        assert result.status is PutMessageStatus.PUT_OK, result
        stamp, first = self.stamp(), records[0]
        is_counted = first.sys_flag & 0xC in (0, TRANSACTION_COMMIT_TYPE)
        queue_offset = len(self.model.queue(first.topic, first.queue_id)) if is_counted else 0
        offsets = self.model.append(
            [
                replace(record, queue_offset=queue_offset + number, store_timestamp=stamp)
                for number, record in enumerate(records)
            ]
        )
        append = result.append
        assert list(append.message_offsets) == offsets
        assert (append.wrote_offset, append.logics_offset, append.store_timestamp) == (offsets[0], queue_offset, stamp)
        assert append.wrote_offset + append.wrote_bytes == self.model.end

    @rule(
        topic=TOPICS,
        queue_id=QUEUE_IDS,
        size=BODY_SIZES,
        stored=properties(),
        kind=st.sampled_from(TYPES),
        born=HOSTS,
        kept=HOSTS,
    )
    def put(
        self, topic: str, queue_id: int, size: int, stored: dict[str, str], kind: int, born: Host, kept: Host
    ) -> None:
        message = Message(topic, b"b" * size, stored, queue_id, 5, kind, 7, born, kept, 1, 2)
        result = self.result_of(self.opened.put_message(message))
        record = Record(
            topic=topic,
            body=message.body,
            properties_stored=format_properties(stored),
            queue_id=queue_id,
            flag=5,
            sys_flag=kind,
            born_timestamp=7,
            born_host=born,
            store_host=kept,
            reconsume_times=1,
            prepared_transaction_offset=2,
        )
        self.check_put(result, [record])

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, level=st.sampled_from((1, 2, 18, 30)))
    def put_delayed(self, topic: str, queue_id: int, level: int) -> None:
        message = Message(topic, b"later", {"KEYS": "k1", "DELAY": str(level)}, queue_id)
        result = self.result_of(self.opened.put_message(message))
        level = min(level, 18)
        stored = {"KEYS": "k1", "DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        self.check_put(result, [Record(SCHEDULE_TOPIC, b"later", format_properties(stored), queue_id=level - 1)])

    @rule(
        topic=TOPICS,
        queue_id=QUEUE_IDS,
        parts=st.lists(st.tuples(st.integers(0, 700), properties()), min_size=1, max_size=8),
        cluster=st.booleans(),
    )
    def put_batch(self, topic: str, queue_id: int, parts: list[tuple[int, dict[str, str]]], cluster: bool) -> None:
        added = {"CLUSTER": "c"} if cluster else {}
        messages = [Message("", b"b" * size, stored, flag=3) for size, stored in parts]
        result = self.result_of(self.opened.put_messages(MessageBatch(topic, messages, added, queue_id)))
        records = [
            Record(topic, message.body, format_properties({**message.properties, **added}), queue_id, flag=3)
            for message in messages
        ]
        self.check_put(result, records)

    @rule(step=st.sampled_from((1, 900, 5000, -7000)))
    def let_time_pass(self, step: int) -> None:
        self.now_ms += step

    @rule(seconds=st.sampled_from((0.0, 0.5, 11.0)))
    def let_the_reactor_run(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def dispatch(self) -> None:
        while self.opened.derived.dispatcher.behind_bytes:
            self.clock.advance(0.01)

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, data=st.data())
    def read_by_queue_offset(self, topic: str, queue_id: int, data: st.DataObject) -> None:
        self.dispatch()
        queue = self.model.queue(topic, queue_id)
        offset = data.draw(st.integers(0, len(queue) + 1))
        found = self.opened.reader.get_message(topic, queue_id, offset, MAX_READ)
        if not queue:
            assert found.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
        elif offset < len(queue):
            file_end = offset - offset % QUEUE_FILE_UNITS + QUEUE_FILE_UNITS
            expected = queue[offset : min(offset + MAX_READ, file_end)]
            assert found.status is GetMessageStatus.FOUND
            assert list(found.records) == [encode_record(record) for record in expected]
            assert found.next_begin_offset == offset + len(expected)
        elif offset == len(queue):
            assert found.status is GetMessageStatus.OFFSET_OVERFLOW_ONE
        else:
            assert found.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
            assert found.next_begin_offset == len(queue)
        assert (found.min_offset, found.max_offset) == (0, len(queue))

    @rule(topic=TOPICS | st.just(SCHEDULE_TOPIC), key=KEYS | st.just("k9"), most=st.sampled_from((1, 2, 64)))
    def read_by_key(self, topic: str, key: str, most: int) -> None:
        self.dispatch()
        found = self.opened.reader.query_message(topic, key, most, 0, 2**62)
        expected = self.model.with_key(topic, key)
        if most == 64 and len(expected) <= 20:
            assert found == expected
        else:  # each entry counts, and a message has one for each of its keys: some of the newest
            assert all(record in expected for record in found)
            assert len(found) <= most
            assert bool(found) == bool(expected)
            assert not found or found[-1] == expected[-1]

    @rule(data=st.data())
    def read_by_offset_and_id(self, data: st.DataObject) -> None:
        if self.model.records:
            record = data.draw(st.sampled_from(self.model.records))
            assert self.opened.reader.message_at(record.physical_offset) == record
            assert self.opened.reader.message_by_id(record.msg_id) == record
        assert self.opened.reader.message_at(self.model.end) is None

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, ahead_ms=st.integers(-10_000, 10_000))
    def read_by_time(self, topic: str, queue_id: int, ahead_ms: int) -> None:
        self.dispatch()
        wanted = self.now_ms + ahead_ms
        times = [record.store_timestamp for record in self.model.queue(topic, queue_id)]
        found = self.opened.reader.offset_by_time(topic, queue_id, wanted)
        assert found == sum(stored < wanted for stored in times)

    @rule()
    def stop_and_start(self) -> None:
        closed: list[None] = []
        self.opened.close(self.flusher).addCallback(closed.append)
        assert closed == [None]
        assert not (self.root / "abort").exists()
        self.open()
        assert self.opened.recovery.clean_stop
        assert self.opened.recovery.cut_bytes == 0

    @rule()
    def die_and_start(self) -> None:
        self.copy()
        self.open()
        assert not self.opened.recovery.clean_stop
        assert self.opened.recovery.cut_bytes == 0

    @rule(torn_bytes=st.integers(1, 60) | st.integers(1, 6000), data=st.data())
    def lose_the_log_s_end_and_start(self, torn_bytes: int, data: st.DataObject) -> None:
        """The last bytes were never written: they read as zero, or their segments are not there."""
        at = max(0, self.model.end - torn_bytes)
        self.copy()
        whole_segments = data.draw(st.booleans())
        for path in sorted((self.root / "commitlog").glob("*")):
            base = int(path.name)
            if base > at and whole_segments:
                path.unlink()
            elif base + SEGMENT_SIZE > at:
                with path.open("r+b") as file:
                    file.truncate(max(0, at - base))
                    file.truncate(SEGMENT_SIZE)
        self.model.cut(at)
        self.open()

    def copy(self) -> None:
        """Go on with a copy of the store as it lies on the disk while it is in use."""
        self.copies += 1
        copied = self.folder / str(self.copies)
        shutil.copytree(self.root, copied)
        self.opened._release(None)
        shutil.rmtree(self.root)
        self.root = copied

    @invariant()
    def both_end_at_the_same_offset(self) -> None:
        if self.store is not None:
            log = self.store.commit_log
            assert (log.max_offset, log.verified_offset) == (self.model.end, self.model.end)

    @rule()
    def read_everything(self) -> None:
        self.dispatch()
        log, reader = self.opened.commit_log, self.opened.reader
        for item in self.model.items:
            data = log.select(item.offset, len(item.data))
            assert data is not None
            assert bytes(data) == item.data
        for topic, queue_id in self.model.queues():
            queue = self.model.queue(topic, queue_id)
            assert reader.max_offset(topic, queue_id) == len(queue)
            for offset, record in enumerate(queue):
                assert reader.get_message(topic, queue_id, offset, 1).records == (encode_record(record),)
        assert log.stale_end(log.max_offset) == log.max_offset


StoreMachine.TestCase.settings = settings(
    max_examples=examples(EXAMPLES), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
StoreModelTests = StoreMachine.TestCase
