"""What disks do to a store, row by row of docs/faults.md K.

==== ============================================ =====================================================================
row  fault                                        where it is staged
==== ============================================ =====================================================================
K1   no room: create, write, sparse page          here (a real full disk); store/test_put.py ``FullDiskTests``;
                                                  test_node.py (a full disk, a quota, no room at the start)
K2   EIO on write, fdatasync, open                here (commands); store/test_put.py (puts); store/log/test_flush.py
K3   read-only remount                            test_node.py
K4   torn 512-byte sector or 4 KiB page           here; at every byte: store/log/test_torn_write.py,
                                                  store/log/test_recovery.py
K5   a flipped bit                                here (what only queues and index can tell);
                                                  test_cli.py ``CorruptTests``, store/log/test_recovery.py
K6   files cut short, too long, missing, foreign  here (queues and index); segments: test_cli.py ``FolderTests``
K7   checkpoint old, new, corrupt; files left     here; JSON: store/test_metadata.py, store/test_nodestate.py
K8   500 ms a flush                               here
K9   a name that was never on the disk            here (segments); store/test_nodestate.py, store/test_metadata.py
K10  permissions, symbolic link, other disk       test_node.py
K11  another segment size                         test_node.py, store/test_messagestore.py
==== ============================================ =====================================================================

A page of the log that cannot be *read* is a signal, not an error, and is not staged.
"""

import errno
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from rmqha.cli import main
from rmqha.settings.settings import FlushDiskType, Settings
from rmqha.store.derived.consumequeue import PRE_BLANK, ConsumeQueue, Unit
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.message import AppendMessageResult, Message, PutMessageResult, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import GetMessageStatus
from rmqha.wire.record import Record, decode_record
from tests.store.logs import file_bytes

SEGMENT_SIZE = 65536
SETTINGS = Settings(
    mapped_file_size_commit_log=SEGMENT_SIZE,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=16,
    max_index_num=64,
    flush_disk_type=FlushDiskType.SYNC_FLUSH,
)
QUEUES = 3


class OpenStore:
    """A store that takes puts, with a clock, and a thread that does at once what it is given."""

    def __init__(self, root: Path, run_in_thread: Any = execute, **changed: Any) -> None:
        self.clock = Clock()
        self.failures: list[Failure] = []
        self.is_open = True
        self.store = MessageStore(replace(SETTINGS, store_path_root_dir=root, **changed))
        self.flusher = self.store.start_flushing(self.clock, run_in_thread, self.failures.append)
        self.store.start_dispatching(self.clock, self.failures.append)

    def start_put(self, number: int, body: bytes = b"some body") -> "Deferred[PutMessageResult]":
        properties = {"KEYS": f"k{number}", "TAGS": f"Tag{number % 2}"}
        return self.store.put_message(Message("Topic", body, properties, queue_id=number % QUEUES))

    def put(self, number: int, body: bytes = b"some body") -> PutMessageResult:
        results: list[PutMessageResult] = []
        self.start_put(number, body).addCallback(results.append)
        return results[0]

    def put_some(self, count: int, body: bytes = b"some body") -> list[AppendMessageResult]:
        """Messages numbered from 0, all stored, and dispatched."""
        appended = []
        for number in range(count):
            result = self.put(number, body)
            assert result.status is PutMessageStatus.PUT_OK
            assert result.append is not None
            appended.append(result.append)
        self.dispatch()
        return appended

    def dispatch(self) -> None:
        derived = self.store.derived
        while derived.dispatcher.behind_bytes or (derived.index is not None and derived.index.pending):
            self.clock.advance(0.01)

    def die(self) -> None:
        if self.is_open:
            self.is_open = False
            self.store._release(None)

    def close(self) -> None:
        closed: list[Any] = []
        self.is_open = False
        self.store.close(self.flusher).addBoth(closed.append)
        assert closed == [None]


@contextmanager
def reopened(root: Path) -> Iterator[OpenStore]:
    found = OpenStore(root)
    try:
        yield found
    finally:
        found.die()


def check_readable(opened: OpenStore, numbers: list[int]) -> None:
    """Messages with these numbers, put in this order, are all there: by queue, in order, and by key."""
    reader = opened.store.reader
    next_offsets = dict.fromkeys(range(QUEUES), 0)
    for number in numbers:
        queue_id = number % QUEUES
        found = reader.get_message("Topic", queue_id, next_offsets[queue_id], 1)
        assert found.status is GetMessageStatus.FOUND, (number, found)
        record = decode_record(found.records[0])
        assert isinstance(record, Record)
        assert (record.properties["KEYS"], record.queue_offset) == (f"k{number}", next_offsets[queue_id])
        by_key = reader.query_message("Topic", f"k{number}", 10, 0, 2**62)
        assert [each.physical_offset for each in by_key] == [record.physical_offset], number
        next_offsets[queue_id] += 1
    for queue_id, offset in next_offsets.items():
        assert reader.max_offset("Topic", queue_id) == offset


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def complaint(result: Result, status: int) -> str:
    """The one line on stderr of a command that ended with this status."""
    assert result.exit_code == status, result.output
    assert result.stderr.startswith("rmqha: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def dead_store(root: Path, count: int = 300) -> list[AppendMessageResult]:
    """A store of several files of each kind, left as a killed process leaves it."""
    opened = OpenStore(root)
    appended = opened.put_some(count, bytes(range(1, 256)) * 3)
    opened.die()
    return appended


def clean_store(root: Path, count: int = 300) -> list[AppendMessageResult]:
    opened = OpenStore(root)
    appended = opened.put_some(count, bytes(range(1, 256)) * 3)
    opened.close()
    return appended


# K1


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A disk in memory of this size, which sparse files fill up as a real one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small disk here: {getattr(error, 'stderr', error)}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # mappings live a little longer


@pytest.mark.process
@pytest.mark.parametrize("body_bytes", [10, 3000])
def test_a_full_disk_refuses_puts_and_room_lets_them_go_on(tmp_path: Path, body_bytes: int) -> None:
    with small_disk(tmp_path / "disk", 600_000) as disk:
        opened = OpenStore(disk / "store")
        stored: list[int] = []
        refused = number = 0
        for room_made in (False, True):
            refused = 0
            while refused < 20 and len(stored) < 5000:
                number += 1
                result = opened.put(number, b"b" * body_bytes)
                if result.is_stored:
                    assert result.status is PutMessageStatus.PUT_OK
                    stored.append(number)
                else:
                    assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
                    refused += 1
                opened.clock.advance(0.3)
                assert opened.failures == []
            if not room_made:
                held = len(stored)
                subprocess.run(["mount", "-o", "remount,size=900000", str(disk)], check=True)
        assert refused == 20, "the disk filled up again"
        assert len(stored) > held > 50
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        opened.clock.advance(1.0)
        opened.dispatch()
        assert opened.failures == []
        check_readable(opened, stored)
        opened.die()
        with reopened(disk / "store") as again:
            assert again.store.recovery.cut_bytes == 0
            check_readable(again, stored)
            again.close()
        assert run("verify", disk / "store").exit_code == 0
        shutil.rmtree(disk / "store")


# K2


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("name", ["fdatasync", "fsync", "open"])
def test_recover_on_a_disk_with_errors_is_status_8_and_the_store_stays_unclean(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_store(tmp_path / "store", 20)
    with monkeypatch.context() as broken:
        broken.setattr(os, name, refuse)
        assert os.strerror(errno.EIO) in complaint(run("recover", tmp_path / "store", "--apply"), 8)
    assert (tmp_path / "store" / "abort").exists()
    with reopened(tmp_path / "store") as opened:
        check_readable(opened, list(range(20)))


def test_verify_on_a_disk_with_errors_is_status_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean_store(tmp_path / "store", 20)
    monkeypatch.setattr(os, "open", refuse)
    assert os.strerror(errno.EIO) in complaint(run("verify", tmp_path / "store"), 8)


# K4


@pytest.mark.long
@pytest.mark.parametrize("piece_bytes", [512, 4096])
def test_any_sectors_of_the_tail_lost_leave_a_prefix_of_whole_messages(tmp_path: Path, piece_bytes: int) -> None:
    opened = OpenStore(tmp_path / "whole")
    appended = opened.put_some(40, bytes(range(1, 256)) * 5)
    end = opened.store.commit_log.max_offset
    opened.die()
    content = file_bytes(tmp_path / "whole" / "commitlog")
    rng = random.Random(piece_bytes)
    first = appended[25].wrote_offset
    pieces = range(first - first % piece_bytes, end, piece_bytes)
    for number in range(60):
        lost = [piece for piece in pieces if rng.random() < 0.15] or [pieces[-1]]
        root = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(number)))
        (segment,) = (root / "commitlog").iterdir()
        with segment.open("r+b") as file:
            for piece in lost:
                file.seek(piece)
                file.write(bytes(piece_bytes))
        sound = next(index for index, each in enumerate(appended) if each.wrote_offset + each.wrote_bytes > lost[0])
        whole = appended[sound].wrote_offset
        if lost != [pieces[-1]] or whole < pieces[-1]:
            assert f"at {whole}: " in run("verify", root).stdout
        assert run("recover", root, "--apply", "--force").exit_code == 0
        (kept,) = (root / "rmqha" / "cut").iterdir()
        assert kept.name == f"{whole:020d}"
        assert segment.read_bytes() == content[:whole].ljust(SEGMENT_SIZE, b"\0")
        assert run("verify", root).exit_code == 0
        with reopened(root) as again:
            check_readable(again, list(range(sound)))
            assert again.put(sound).is_stored
            again.dispatch()
            check_readable(again, list(range(sound + 1)))
        shutil.rmtree(root)


# K5


@pytest.mark.parametrize("number", [5, 299], ids=["sealed", "last"])
@pytest.mark.parametrize(
    ("position", "bit", "status", "words"),
    [
        pytest.param(15, 1, 1, "has no unit|is .*, not ", id="QUEUEID"),
        pytest.param(20, 0x80, 1, "QUEUEOFFSET -.* is impossible", id="QUEUEOFFSET's sign"),
        pytest.param(23, 8, 1, "QUEUEOFFSET .* is impossible.*unit .* leads to|ends at", id="bit 35 of QUEUEOFFSET"),
        pytest.param(27, 1, 1, "has no unit|is .*, not ", id="QUEUEOFFSET"),
        pytest.param(39, 4, 1, "belongs to no queue, by its SYSFLAG|ends at", id="a prepared message by SYSFLAG"),
        pytest.param(88 + 765 + 1, 1, 1, "has no unit|is .*, not ", id="topic"),
        pytest.param(-1, 1, 1, "queue . of Topic: unit .* is .*, not ", id="TAGS"),
        pytest.param(
            -11, 1, 0, "1 keys are missing in the index", id="KEYS"
        ),  # as many a store does that Java has recovered
    ],
)
def test_a_flipped_bit_that_no_crc_covers_is_told_by_queues_and_index(
    tmp_path: Path, position: int, bit: int, status: int, words: str, number: int
) -> None:
    appended = clean_store(tmp_path / "store")
    assert "lacks" not in run("verify", tmp_path / "store").output
    offset = appended[number].wrote_offset
    at = offset + (position if position >= 0 else appended[number].wrote_bytes + position)
    segment = tmp_path / "store" / "commitlog" / f"{at - at % SEGMENT_SIZE:020d}"
    with segment.open("r+b") as file:
        file.seek(at % SEGMENT_SIZE)
        (old,) = file.read(1)
        file.seek(at % SEGMENT_SIZE)
        file.write(bytes([old ^ bit]))
    result = run("verify", tmp_path / "store")
    assert result.exit_code == status, result.output
    assert re.search(words, result.output), result.output
    if "impossible" in words:
        assert "1 messages fit no queue" in run("rebuild", tmp_path / "store").output
        result = run("verify", tmp_path / "store", "--json")
        assert result.exit_code == 1
        assert json.loads(result.stdout)["messagesInNoQueue"] == 1


# K6


@pytest.mark.parametrize("size", [1, 39, 2000])
def test_an_index_file_cut_short_by_a_crash_is_built_anew_with_all_keys(tmp_path: Path, size: int) -> None:
    dead_store(tmp_path / "store")
    files = sorted((tmp_path / "store" / "index").iterdir())
    assert len(files) > 3
    Checkpoint(2**62, 2**62, 2**62).write(tmp_path / "store" / "checkpoint")  # only the last segment is looked at
    for path in files[1:3]:
        os.truncate(path, size)
    with reopened(tmp_path / "store") as opened:
        check_readable(opened, list(range(300)))


def test_an_index_file_that_a_dying_process_had_just_made_hides_no_key(tmp_path: Path) -> None:
    dead_store(tmp_path / "store")
    first, last = min((tmp_path / "store" / "index").iterdir()), max((tmp_path / "store" / "index").iterdir())
    for content in (b"", bytes(last.stat().st_size)):
        Checkpoint(2**62, 2**62, 2**62).write(tmp_path / "store" / "checkpoint")  # only the last segment is looked at
        path = last.with_name("99991231235959999")
        path.write_bytes(content)
        with reopened(tmp_path / "store") as opened:
            check_readable(opened, list(range(300)))
        assert not path.exists()
        assert first.exists(), "the others need not be built anew"


def test_a_queue_that_begins_late_and_lost_its_first_unit_begins_there_again(tmp_path: Path) -> None:
    """As of a slave that copies from the middle of a log, or of a topic whose first messages are deleted."""
    for lost in (b"", bytes(400), PRE_BLANK * 3, PRE_BLANK * 5):
        shutil.rmtree(tmp_path / "queue", ignore_errors=True)
        (tmp_path / "queue").mkdir()
        (tmp_path / "queue" / f"{400:020d}").write_bytes(lost.ljust(400 if lost else 0, b"\0"))
        queue = ConsumeQueue(tmp_path / "queue", "Topic", 0, 400)
        queue.recover()
        queue.put(25, Unit(1000, 100, 7))
        queue.write_pending()
        assert (queue.min_offset, queue.max_offset, queue.order_breaches) == (25, 26, 0)
        queue.close()


def test_a_queue_file_that_a_dying_process_had_just_made_shifts_no_message(tmp_path: Path) -> None:
    dead_store(tmp_path / "store")
    queue = tmp_path / "store" / "consumequeue" / "Topic" / "1"
    path = queue / f"{int(max(queue.iterdir()).name) + 400:020d}"
    for content in (b"", bytes(400)):
        path.write_bytes(content)
        with reopened(tmp_path / "store") as opened:
            check_readable(opened, list(range(300)))
            assert [each.order_breaches for each in opened.store.derived.queues.queues.values()] == [0] * QUEUES


def test_an_index_file_of_another_size_after_a_clean_stop_is_kept_and_rebuilt(tmp_path: Path) -> None:
    store = tmp_path / "store"
    clean_store(store)
    path = sorted((store / "index").iterdir())[1]
    os.truncate(path, 1000)
    assert str(path) in complaint(run("verify", store), 1)
    with reopened(store) as opened:
        check_readable(opened, list(range(300)))
    (kept,) = (store / "rmqha").glob(f"index-aside-*/{path.name}")
    assert kept.stat().st_size == 1000
    assert run("verify", store).exit_code == 0


def change_length(path: Path) -> Path:
    os.truncate(path, 399)
    return path


def take_away(path: Path) -> Path:
    path.unlink()
    return path


def put_beside(path: Path) -> Path:
    beside = path.with_name("core.1234")
    beside.write_bytes(b"x")
    return beside


def rename_wrongly(path: Path) -> Path:
    return path.rename(path.with_name(f"{int(path.name) + 1:020d}"))


@pytest.mark.parametrize("change", [change_length, take_away, put_beside, rename_wrongly])
@pytest.mark.parametrize("make", [clean_store, dead_store])
def test_a_queue_folder_after_an_accident_is_named_kept_and_made_anew(
    tmp_path: Path, make: Callable[[Path], object], change: Callable[[Path], Path]
) -> None:
    make(tmp_path / "store")
    queue = tmp_path / "store" / "consumequeue" / "Topic" / "1"
    changed = change(sorted(queue.iterdir())[2])
    before, kept = file_bytes(tmp_path / "store" / "commitlog"), file_bytes(queue)
    assert str(changed) in complaint(run("verify", tmp_path / "store"), 1)
    with reopened(tmp_path / "store") as opened:
        check_readable(opened, list(range(300)))
    assert file_bytes(tmp_path / "store" / "commitlog") == before
    (aside,) = (tmp_path / "store" / "rmqha").glob("consumequeue-aside-*/Topic/1")
    assert file_bytes(aside) == kept
    assert run("verify", tmp_path / "store").exit_code == 0


# K7


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\0" * 4096,
        b"\xff" * 4096,
        b"\x7f" * 24,
        b"\0\0\1\xa1\0\0\0\0" * 3,
        bytes(range(256)) * 16,
        (2**63 - 1).to_bytes(8, "big") * 3,
        (1_795_000_000_000).to_bytes(8, "big") * 3 + bytes(8000),
    ],
)
def test_whatever_the_checkpoint_says_every_message_is_there_after_a_crash(
    tmp_path: Path, content: bytes | None
) -> None:
    dead_store(tmp_path / "store")
    path = tmp_path / "store" / "checkpoint"
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    with reopened(tmp_path / "store") as opened:
        check_readable(opened, list(range(300)))
        assert opened.put(300).is_stored
        opened.dispatch()
        check_readable(opened, list(range(301)))
        opened.close()
    assert path.stat().st_size == 4096
    assert run("verify", tmp_path / "store").exit_code == 0


def test_temporary_files_that_were_left_do_no_harm(tmp_path: Path) -> None:
    dead_store(tmp_path / "store")
    for name in ("rmqha/state.json.tmp", "config/topics.json.tmp", "index/tmp", "consumequeue/Topic/tmp/x"):
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{half")
    with reopened(tmp_path / "store") as opened:
        check_readable(opened, list(range(300)))
        opened.close()
    assert run("verify", tmp_path / "store").exit_code == 0


def test_a_process_that_dies_while_it_opens_a_clean_store_did_not_stop_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues are written one after another: between two of them they do not agree."""
    opened = OpenStore(tmp_path / "store")
    opened.put_some(30)
    for number in range(30, 60):
        opened.put(number)
    with monkeypatch.context() as hurried:
        hurried.setattr("rmqha.store.messagestore.LAST_DISPATCH_SECONDS", 0.0)  # dispatch does not see these
        opened.close()
    pwritev, writes = os.pwritev, [1]

    def die_after_one(fd: int, pieces: Any, at: int) -> int:
        if not writes:
            raise OSError(errno.EIO, "died here")
        writes.pop()
        return pwritev(fd, pieces, at)

    with monkeypatch.context() as dying:
        dying.setattr(os, "pwritev", die_after_one)
        with pytest.raises(OSError, match="died here"):
            OpenStore(tmp_path / "store")
    assert (tmp_path / "store" / "abort").exists()
    with reopened(tmp_path / "store") as again:
        assert not again.store.recovery.clean_stop
        check_readable(again, list(range(60)))


# K8


class SlowThread:
    """Does what it is given half a second later."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.calls = 0

    def __call__(self, function: Callable[[], None]) -> "Deferred[None]":
        assert self.clock is not None
        self.calls += 1
        done: Deferred[None] = Deferred()
        self.clock.callLater(0.5, lambda: execute(function).chainDeferred(done))
        return done


def test_a_slow_disk_delays_each_put_by_two_flushes_at_most_and_refuses_none(tmp_path: Path) -> None:
    thread = SlowThread()
    opened = OpenStore(tmp_path / "store", thread)
    thread.clock = opened.clock
    waits: list[float] = []
    for number in range(500):
        started = opened.clock.seconds()

        def answered(result: PutMessageResult, started: float = started) -> None:
            assert result.status is PutMessageStatus.PUT_OK
            waits.append(opened.clock.seconds() - started)

        opened.start_put(number).addCallback(answered)
        opened.clock.advance(0.01)
    opened.clock.pump([0.01] * 101)
    assert len(waits) == 500
    assert max(waits) < 1.02
    assert thread.calls <= 12
    opened.dispatch()
    check_readable(opened, list(range(500)))
    opened.die()


# K9


def test_names_of_folder_and_segments_are_on_the_disk_before_a_put_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what an fsync of its folder has seen is sure to have its name after a power failure."""
    durable: set[Path] = set()
    fsync = os.fsync

    def remember(fd: int) -> None:
        folder = Path(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)
        if folder.is_dir():
            durable.update(folder.iterdir())

    monkeypatch.setattr(os, "fsync", remember)
    opened = OpenStore(tmp_path / "store")
    for number in range(200):
        assert opened.put(number, b"x" * 1000).status is PutMessageStatus.PUT_OK
        log = opened.store.commit_log
        needed = {log.folder, *(log.folder / f"{base:020d}" for base in log.segment_bases if base < log.max_offset)}
        assert needed <= durable, needed - durable
    assert len(needed) > 3
    opened.die()
