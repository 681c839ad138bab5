"""A store whose writers are killed at random moments: what was acknowledged is never gone (docs/faults.md P1)."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import GetMessageStatus
from rmqha.wire.record import Blank, Record, check_record, decode_record
from tests.store.crash_writer import NO_QUEUE, body_of, settings_of

pytestmark = pytest.mark.process

CHECKOUT = Path(__file__).parents[2]
KILLS_A_STORE = int(os.environ.get("RMQHA_CRASH_KILLS", "26"))
MAX_ROUND_SECONDS = 0.06
PATIENCE_SECONDS = 30.0
CLEAN_STOPS = 0.1
"""How many of the rounds end by SIGTERM."""


class Acknowledged(NamedTuple):
    """A message that its writer was told is stored."""

    offset: int
    topic: str
    queue_id: int
    queue_offset: int
    key: str


class Writers:
    """The process that forks writers, and what it says."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._buffer = b""
        self._kill_at = 0.0
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.store.crash_writer"],
                cwd=CHECKOUT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )

    def round(self, root: Path, seed: int, after_first_ack: bool, seconds: float, number: int) -> list[Acknowledged]:
        """Let one writer write, send it the signal after ``seconds``, and give what it says was acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed} {root}\n".encode())
        self._process.stdin.flush()
        acknowledged: list[Acknowledged] = []
        pid, self._kill_at = 0, time.monotonic() + PATIENCE_SECONDS
        for words in self._lines():
            if words is None and time.monotonic() > self._kill_at:
                assert pid, self.errors()
                os.kill(pid, number)
                self._kill_at = time.monotonic() + PATIENCE_SECONDS
            elif words is not None and words[0] == "pid":
                pid = int(words[1])
                if not after_first_ack:
                    self._kill_at = time.monotonic() + seconds
            elif words is not None and words[0] == "ack":
                if after_first_ack and not acknowledged:
                    self._kill_at = time.monotonic() + seconds
                offset, topic, queue_id, queue_offset, key = words[1:]
                acknowledged.append(Acknowledged(int(offset), topic, int(queue_id), int(queue_offset), key))
            elif words is not None:
                status = int(words[1])
                assert status in (-number, 0 if number == signal.SIGTERM else -number), self.errors()
                return acknowledged
        raise AssertionError("the lines never end")

    def _lines(self) -> Iterator[list[str] | None]:
        """Each line's words; None whenever there was none until the time to kill, and between any two."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while True:
            ready, _, _ = select.select([fd], [], [], max(0.0, self._kill_at - time.monotonic()))
            if ready:
                data = os.read(fd, 1 << 16)
                assert data, self.errors()
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    yield line.decode().split(" ")
            yield None

    def errors(self) -> str:
        """What the process and its writers wrote to stderr."""
        return self._errors.read_text()

    def end(self) -> None:
        """No more rounds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)
        self._process.stdout.close()


@contextmanager
def opened(root: Path) -> Iterator[MessageStore]:
    """The store, recovered here, and left as a killed process leaves it."""
    store = MessageStore(settings_of(root))
    try:
        yield store
    finally:
        store._release(None)


def records_from(store: MessageStore, start: int) -> Iterator[Record]:
    """The log's messages, each proved."""
    log = store.commit_log
    at = start
    while at < log.max_offset:
        room = log.segment_size - at % log.segment_size
        data = log.get_data(at, room)
        assert data is not None
        record = check_record(data, 0, at, room)
        if isinstance(record, Blank):
            at += record.size
        else:
            yield record
            at += record.total_size


def check_acknowledged(store: MessageStore, messages: list[Acknowledged]) -> None:
    """Each is where its writer was told, whole, and is found by its key."""
    for message in messages:
        if message.queue_id == NO_QUEUE:
            record = store.reader.message_at(message.offset)
        else:
            found = store.reader.get_message(message.topic, message.queue_id, message.queue_offset, 1)
            assert found.status is GetMessageStatus.FOUND, (message, found)
            decoded = decode_record(found.records[0])
            assert isinstance(decoded, Record)
            record = decoded
            assert (record.queue_id, record.queue_offset) == (message.queue_id, message.queue_offset)
        assert record is not None, message
        assert record.physical_offset == message.offset, (message, record)
        assert (record.topic, record.properties["KEYS"]) == (message.topic, message.key)
        assert record.body == body_of(message.key), message
        by_key = store.reader.query_message(message.topic, message.key, 10, 0, 2**62)
        assert [found.physical_offset for found in by_key] == [message.offset], message


def check_agreement(store: MessageStore, start: int) -> int:
    """From ``start`` on, log, queues and index tell of the same messages; gives the log's end."""
    log, queues = store.commit_log, store.derived.queues
    assert store.derived.dispatcher.behind_bytes == 0
    assert log.verified_offset == log.max_offset
    assert log.stale_end(log.max_offset) == log.max_offset, "bytes behind the end"
    next_offsets: dict[tuple[str, int], int] = {}
    for record in records_from(store, start):
        assert record.body == body_of(record.properties["KEYS"]), record
        assert store.reader.query_message(record.topic, record.properties["KEYS"], 10, 0, 2**62) == [record]
        if record.sys_flag & 0xC in (0x4, 0xC):
            assert record.queue_offset == 0
            continue
        key = (record.topic, record.queue_id)
        unit = queues.queues[key].unit(record.queue_offset)
        assert unit is not None, record
        assert (unit.physical_offset, unit.size) == (record.physical_offset, record.total_size)
        assert record.queue_offset == next_offsets.get(key, record.queue_offset), "no gap, no offset twice"
        next_offsets[key] = record.queue_offset + 1
    for key, queue in queues.queues.items():
        assert queue.order_breaches == 0
        assert queue.max_offset == next_offsets.get(key, queue.max_offset), key
        assert store.puts.appender.queue_offsets[key] == queue.max_offset
    if start == 0:
        assert sorted(next_offsets) == sorted(key for key, queue in queues.queues.items() if queue.max_offset)
        assert all(queue.min_offset == 0 for queue in queues.queues.values())
    return log.max_offset


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    writers = Writers(tmp_path_factory.mktemp("writers") / "errors")
    yield writers
    writers.end()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_what_was_acknowledged_survives_any_number_of_kills(tmp_path: Path, writers: Writers, seed: int) -> None:
    rng = random.Random(seed)
    root = tmp_path / "store"
    acknowledged: list[Acknowledged] = []
    unchecked: list[Acknowledged] = []
    checked_until = kills = number = sure = 0
    while kills < KILLS_A_STORE:
        number += 1
        stops = rng.random() < CLEAN_STOPS
        seconds = rng.random() ** 2 * MAX_ROUND_SECONDS
        after_first_ack = stops or rng.random() < 0.7  # else it may still be opening the store
        sure += after_first_ack
        found = writers.round(
            root,
            seed * 1_000_000 + number,
            after_first_ack=after_first_ack,
            seconds=seconds,
            number=signal.SIGTERM if stops else signal.SIGKILL,
        )
        kills += not stops
        unchecked += found
        if rng.random() < 0.5:  # else the next writer recovers
            with opened(root) as store:
                check_acknowledged(store, unchecked)
                checked_until = check_agreement(store, checked_until)
            acknowledged += unchecked
            unchecked = []
    acknowledged += unchecked
    with opened(root) as store:
        check_acknowledged(store, acknowledged)
        check_agreement(store, 0)
        print(f"{seed=} {kills=} rounds={number} acknowledged={len(acknowledged)} log={store.commit_log.max_offset}")
    assert len(acknowledged) >= sure > kills / 2
