"""The log in memory keeps the contract of the log on disk: the same calls give the same answers."""

import os
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyClass, verifyObject

from rmqha.store.errors import StoreError
from rmqha.store.interfaces import ICommitLog
from rmqha.store.log.commitlog import CommitLog
from rmqha.testing.memory import MemoryCommitLog
from rmqha.testing.records import make_segments
from rmqha.wire.scanned import Scan
from tests import examples
from tests.fixtures import new_folder

SEGMENT_SIZE = 4096
CONTENT = b"".join(content for _, content in make_segments(6 * SEGMENT_SIZE, 700, SEGMENT_SIZE))
"""A log for others to grow along."""

OFFSETS = st.integers(-1, len(CONTENT)) | st.sampled_from([n * SEGMENT_SIZE + d for n in range(4) for d in (-1, 0, 1)])
GROWTH = st.integers(0, 3000) | st.just(SEGMENT_SIZE)
OPERATIONS = st.one_of(
    st.tuples(st.just("grow"), GROWTH),
    st.tuples(st.just("grow"), GROWTH),
    st.tuples(st.just("fill"), st.integers(0, 1)),
    st.tuples(st.just("garbage"), st.integers(1, 50)),
    st.tuples(st.just("append_elsewhere"), st.integers(-2, 2)),
    st.tuples(st.just("verify"), st.just(0)),
    st.tuples(st.just("verify"), st.just(0)),
    st.tuples(st.just("truncate"), OFFSETS),
    st.tuples(st.just("truncate_verified"), st.just(0)),
    st.tuples(st.just("begin_at"), OFFSETS.filter(lambda offset: offset >= 0)),
    st.tuples(st.just("get_data"), OFFSETS),
    st.tuples(st.just("leave"), st.just(0)),
)


class Log(Protocol):
    """``ICommitLog`` as mypy sees it."""

    segment_size: int
    max_offset: int
    verified_offset: int
    last_message_offset: int | None
    last_store_timestamp: int

    @property
    def min_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    def begin_at(self, offset: int) -> None: ...
    def append_data(self, offset: int, *pieces: bytes | memoryview) -> None: ...
    def verify(self) -> Scan: ...
    def get_data(self, offset: int, limit_bytes: int) -> memoryview | None: ...
    def truncate(self, offset: int) -> None: ...
    def subscribe(self, log_grew: Callable[[], None]) -> Callable[[], None]: ...


class Driver:
    """Does things to a log, and notes all that can be seen of it."""

    def __init__(self, log: Any) -> None:
        self.log: Log = log
        self.heard: list[int] = []
        self._leave: Callable[[], None] | None = self.log.subscribe(lambda: self.heard.append(self.log.verified_offset))

    def do(self, operation: str, argument: int) -> object:
        """What came of it, and what the log then says of itself."""
        try:
            result: object = getattr(self, operation)(argument)
        except StoreError:
            result = StoreError
        log = self.log
        return (
            result,
            (log.min_offset, log.verified_offset, log.max_offset),
            (log.last_message_offset, log.last_store_timestamp),
            list(self.heard),
        )

    def grow(self, size: int) -> None:
        start = self.log.max_offset
        data = CONTENT[start : start + size]
        self.log.append_data(start, data[: size // 3], b"", memoryview(data)[size // 3 :])

    def fill(self, less: int) -> None:
        """Up to the segment's end."""
        self.grow(SEGMENT_SIZE - self.log.max_offset % SEGMENT_SIZE - less)

    def garbage(self, size: int) -> None:
        self.log.append_data(self.log.max_offset, b"\xa5" * size)

    def append_elsewhere(self, distance: int) -> None:
        self.log.append_data(self.log.max_offset + distance, b"\0")

    def verify(self, _: int) -> Scan:
        return self.log.verify()

    def truncate(self, offset: int) -> None:
        self.log.truncate(offset)

    def truncate_verified(self, _: int) -> None:
        self.log.truncate(self.log.verified_offset)

    def begin_at(self, offset: int) -> None:
        self.log.begin_at(offset)

    def get_data(self, offset: int) -> list[bytes | None]:
        views = [self.log.get_data(offset, limit) for limit in (1, 100, 2 * SEGMENT_SIZE)]
        return [None if view is None else bytes(view) for view in views]

    def leave(self, _: int) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None

    def content(self) -> bytes:
        """All that the log holds."""
        found, at = b"", self.log.min_offset
        while (data := self.log.get_data(at, SEGMENT_SIZE)) is not None:
            found += data
            at += len(data)
        return found


class MemoryCommitLogTests(SynchronousTestCase):
    def test_it_provides_the_interface(self) -> None:
        verifyObject(ICommitLog, MemoryCommitLog())
        verifyClass(ICommitLog, MemoryCommitLog)

    def test_what_is_written_counts_as_flushed(self) -> None:
        log = MemoryCommitLog()
        log.append_data(0, b"abc")
        self.assertEqual(log.flushed_offset, 3)

    def test_memory_handed_out_is_a_copy(self) -> None:
        log = MemoryCommitLog()
        log.append_data(0, b"abc")
        data = log.get_data(0, 3)
        log.truncate(0)
        log.append_data(0, b"xyz")
        self.assertEqual(data, b"abc")


class ContractTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patch(os, "fdatasync", lambda fd: None)  # hundreds of them; that they come is for other tests

    def drivers(self) -> tuple[Driver, Driver]:
        on_disk = CommitLog(new_folder(self), SEGMENT_SIZE)
        self.addCleanup(on_disk.close)
        return Driver(on_disk), Driver(MemoryCommitLog(SEGMENT_SIZE))

    def check(self, operations: list[tuple[str, int]]) -> Driver:
        on_disk, in_memory = self.drivers()
        for step, (operation, argument) in enumerate(operations):
            expected = on_disk.do(operation, argument)
            self.assertEqual(in_memory.do(operation, argument), expected, f"{operation}({argument}), step {step}")
            for log in (on_disk.log, in_memory.log):
                self.assertTrue(log.min_offset <= log.verified_offset <= log.max_offset)
                self.assertTrue(log.min_offset <= log.flushed_offset <= log.max_offset)
        self.assertEqual(in_memory.content(), on_disk.content())
        self.assertEqual(in_memory.log.segment_size, on_disk.log.segment_size)
        return on_disk

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(250))
    @given(st.lists(OPERATIONS, max_size=25))
    def test_any_sequence_of_calls_gives_the_same_answers(self, operations: list[tuple[str, int]]) -> None:
        self.check(operations)

    def test_a_slave_s_life(self) -> None:
        """One sequence that certainly reaches a long, proved log, a refusal, a cut and a new beginning."""
        grow = [("grow", 1000), ("verify", 0)]
        log = self.check(
            [
                ("begin_at", 1),
                *grow * 3,
                ("fill", 0),
                ("verify", 0),
                *grow * 2,
                ("get_data", 0),
                ("get_data", SEGMENT_SIZE),
                ("begin_at", 0),
                ("garbage", 30),
                ("verify", 0),
                ("truncate_verified", 0),
                ("truncate", -1),
                ("truncate", SEGMENT_SIZE),
                ("leave", 0),
                *grow,
                ("append_elsewhere", 1),
                ("truncate", 0),
                ("begin_at", 2 * SEGMENT_SIZE),
                *grow,
            ]
        )
        self.assertEqual(log.log.min_offset, 2 * SEGMENT_SIZE)
        self.assertGreater(log.log.verified_offset, 2 * SEGMENT_SIZE)
        self.assertGreater(len(log.heard), 3)
