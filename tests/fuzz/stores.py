"""Fuzzing whole stores: damage anywhere on the disk, then what a person at night would type.

::

    python -m tests.fuzz.stores --cases 20000 --jobs 2      so many cases, or fail
    python -m tests.fuzz.stores --seconds 600               until the time is over
    python -m tests.fuzz.stores --replay 123456             one case once more, with what it does

A case is a number. It picks a sound store, damages it (bit flips, zeroed pages, cut, missing and foreign files; in the
log, queues, index, ``state.json``, tables, checkpoint), and runs commands and node starts on it. After each of them:

- nothing but an exit code and one line comes out: no traceback, no hang;
- every sound record that was confirmed still lies where it lay (a forced cut may move it, but keeps its bytes);
- a command that only looks has changed no byte;
- the disk does not fill;
- if the log is sound, a node starts on it, and after ``rebuild`` the store verifies.
"""

import argparse
import atexit
import gc
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from functools import cache, cached_property
from itertools import count, groupby
from multiprocessing import get_context
from pathlib import Path
from random import Random
from stat import S_ISDIR
from types import FrameType
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner
from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.logger import globalLogBeginner
from twisted.python.failure import Failure

from rmqha.cli import main as command
from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import make_settings
from rmqha.store.derived import derived
from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import file_name
from rmqha.store.message import Message, MessageBatch
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConfigTable,
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from rmqha.store.nodestate import NodeState
from rmqha.wire.record import Blank, Host, check_record
from tests.fuzz.target import Broken, require

TEMPLATES = 24
SEGMENT_BYTES = (4096, 4096, 8192, 65536)
MESSAGES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 80)
MADE_AT_SECONDS = 1_795_000_000.0
PAGE_BYTES = 4096
SMALL_FILE_BYTES = 64 << 10
HANGS_AFTER_SECONDS = 120.0
"""Far beyond what any command takes on such a store, also on a busy machine."""
GROWTH_AT_MOST_BYTES = 64 << 20
"""How much a command may add to the disk: an index file of default size reserves 20 MB of slots."""
TABLES: tuple[type[ConfigTable], ...] = (
    TopicConfigTable,
    SubscriptionGroupTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
)
PIECE_CASES = 50
PIECES_A_PROCESS = 200
SECONDS_BETWEEN_LINES = 60.0
FOUND, TOO_FEW = 1, 3
"""Exit codes: a case fails; the time was over first."""
HOST = Host.parse("10.1.2.3", 40_000)
HOST_V6 = Host.parse("2001:db8::1:2", 40_001)


@dataclass(frozen=True)
class SoundRecord:
    """A record of a store before it is damaged."""

    offset: int
    content: bytes


@dataclass(frozen=True)
class Template:
    """A sound store: its files by name, their sizes, and the settings that it was made with."""

    files: Mapping[str, bytes]
    sizes: Mapping[str, int]
    settings: Mapping[str, str]
    records: tuple[SoundRecord, ...]
    confirmed: int
    end: int

    @property
    def segment_size(self) -> int:
        return int(self.settings["mappedFileSizeCommitLog"])

    @cached_property
    def folders(self) -> list[str]:
        """The folders that its files are in, each after the one that holds it."""
        return sorted({str(folder) for name in self.files for folder in Path(name).parents if folder.name})

    def write(self, folder: str) -> None:
        """Write the store to a folder that is not there yet."""
        os.mkdir(folder)
        for name in self.folders:
            os.mkdir(f"{folder}/{name}")
        for name, content in self.files.items():
            fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                if content:
                    os.write(fd, content)
                if self.sizes[name] != len(content):
                    os.ftruncate(fd, self.sizes[name])
            finally:
                os.close(fd)


@cache
def template(number: int) -> Template:
    """The sound store of this number: the same at every call, byte for byte."""
    rng = Random(f"template {number}")
    folder = Path(tempfile.mkdtemp(prefix="rmqha-fuzz-template-", dir=fast_folder()))
    try:
        with _standing_clock():
            return _make_template(rng, folder / "store", is_clean=number % 2 == 0)
    finally:
        shutil.rmtree(folder)


@contextmanager
def _standing_clock() -> Iterator[None]:
    """Let the wall clock tell the same times at every run, and each call a millisecond later."""

    class Standing(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Standing":
            return cls.fromtimestamp(next(seconds), tz)

    seconds = (MADE_AT_SECONDS + number / 1000 for number in count())
    with patch("time.time", lambda: next(seconds)), patch("rmqha.store.derived.index.datetime", Standing):
        yield


def _make_template(rng: Random, folder: Path, is_clean: bool) -> Template:
    settings = {
        "mappedFileSizeCommitLog": str(rng.choice(SEGMENT_BYTES)),
        "mappedFileSizeConsumeQueue": str(20 * rng.choice((3, 10, 50, 300))),
        "maxHashSlotNum": str(rng.choice((3, 7, 20, 100))),
        "maxIndexNum": str(rng.choice((5, 20, 90, 400))),
        "messageDelayLevel": "1s 2s 3s",
        "messageIndexEnable": rng.choice(("true", "true", "true", "false")),
    }
    topics = rng.sample(("TPlain", "T2", "%RETRY%g"), rng.choice((1, 1, 2, 3)))
    queues = rng.choice((1, 2, 3))
    clock = Clock()
    store = MessageStore(make_settings({"storePathRootDir": str(folder), **settings}))
    flusher = store.start_flushing(clock, execute, Failure.raiseException)
    store.start_dispatching(clock, Failure.raiseException)
    for number in range(rng.choice(MESSAGES)):
        message = _message(rng, number, topics, queues)
        put = store.put_messages if isinstance(message, MessageBatch) else store.put_message
        put(message)  # type: ignore[arg-type]  # the method that takes this kind
    for _ in range(200):
        clock.advance(0.05)
    end = store.commit_log.verified_offset
    confirmed = end if rng.random() < 0.5 else rng.randrange(end + 1)

    def final_state() -> NodeState:
        offsets = store.offsets(confirmed)
        return replace(store.node_state, store_id="f" * 32, role="ASYNC_MASTER", state="STOPPED", offsets=offsets)

    _write_tables(folder / CONFIG_FOLDER)
    if is_clean:
        store.close(flusher, final_state).addErrback(Failure.raiseException)
        files, sizes = _read_all(folder)
    else:
        final_state().write(folder)
        files, sizes = _read_all(folder)
        store.close(flusher).addErrback(Failure.raiseException)
    records = tuple(_records(files, int(settings["mappedFileSizeCommitLog"]), end))
    return Template(files, sizes, settings, records, confirmed, end)


def _message(rng: Random, number: int, topics: Sequence[str], queues: int) -> Message | MessageBatch:
    def one(topic: str, **properties: str) -> Message:
        return Message(
            topic=topic,
            body=rng.randbytes(rng.choice((0, 1, 10, 100, 1000, 2000))),
            queue_id=rng.randrange(queues),
            properties={"KEYS": f"k{number}", "UNIQ_KEY": f"U{number:030X}", **properties},
            born_timestamp=int(time.time() * 1000),
            born_host=rng.choice((HOST, HOST_V6)),
            store_host=HOST,
        )

    kind = rng.randrange(8)
    if kind == 0:
        return one("TDelayed", DELAY=str(rng.randrange(1, 4)))
    if kind == 1:
        messages = [one("TBatch") for _ in range(rng.randrange(1, 5))]
        first = messages[0]
        return MessageBatch(
            topic="TBatch",
            messages=messages,
            properties={},
            queue_id=0,
            born_timestamp=first.born_timestamp,
            born_host=HOST,
            store_host=HOST,
        )
    if kind == 2:
        return one("TTagged", TAGS=rng.choice(("A", "B")), KEYS=f"k{number} l{number} m{number}")
    return one(rng.choice(topics))


def _write_tables(folder: Path) -> None:
    version = DataVersion(1, 1_700_000_000_000)
    TopicConfigTable(version, {name: TopicConfig(name, 3, 3) for name in ("TPlain", "T2")}).write(folder)
    SubscriptionGroupTable(version, {"g": SubscriptionGroupConfig("g")}).write(folder)
    ConsumerOffsetTable({"TPlain@g": {0: 1, 1: 2}}).write(folder)
    DelayOffsetTable({1: 1}).write(folder)


def _read_all(folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    files: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            content = path.read_bytes()
            files[name], sizes[name] = content.rstrip(b"\0"), len(content)
    return files, sizes


def _records(files: Mapping[str, bytes], segment_size: int, end: int) -> Iterator[SoundRecord]:
    at = 0
    while at < end:
        base = at - at % segment_size
        content = files[f"commitlog/{file_name(base)}"].ljust(segment_size, b"\0")
        record = check_record(content, at - base, at, segment_size - (at - base))
        if isinstance(record, Blank):
            at += record.size
            continue
        yield SoundRecord(at, content[at - base : at - base + record.total_size])
        at += record.total_size


def fast_folder() -> str | None:
    """A folder in memory, if there is one: most of a case is files made and deleted."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# ---- damage


@dataclass
class Store:
    """A damaged store on the disk, and what is known of it."""

    root: Path
    template: Template
    told: list[str] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    """Parts of the store that were damaged: the first part of each path."""
    sound: list[SoundRecord] = field(default_factory=list)
    """The records that the damage has left as they were."""

    def path(self, name: str) -> Path:
        return self.root / name

    @cached_property
    def sound_copy(self) -> Path:
        """The store as it was before the damage, in another folder."""
        folder = self.root.parent / "sound"
        self.template.write(str(folder))
        return folder


Damage = Callable[[Store, Random, str], str]


def _flip_bits(store: Store, rng: Random, name: str) -> str:
    path = store.path(name)
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0")) or 1
    if not content:
        return "nothing"
    places = [rng.randrange(min(len(content), used + 20)) for _ in range(rng.choice((1, 1, 1, 3)))]
    for at in places:
        content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bits flipped at {places}"


def _overwrite(store: Store, rng: Random, name: str) -> str:
    path = store.path(name)
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0")) or 1
    start = rng.randrange(min(len(content), used) or 1)
    size = min(rng.choice((1, 4, 8, 20, 100, 512, 4096)), len(content) - start)
    kind = rng.choice(("zeros", "ones", "noise", "old bytes"))
    made = {
        "zeros": bytes(size),
        "ones": b"\xff" * size,
        "noise": rng.randbytes(size),
        "old bytes": bytes(content[:size]),
    }[kind]
    content[start : start + size] = made
    path.write_bytes(content)
    return f"{size} bytes of {kind} at {start}"


def _set_number(store: Store, rng: Random, name: str) -> str:
    path = store.path(name)
    content = bytearray(path.read_bytes())
    width = rng.choice((4, 8))
    if len(content) < width:
        return "nothing"
    used = len(content.rstrip(b"\0")) or 1
    at = rng.randrange(min(used, len(content) - width + 1))
    value = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**30, 2**40, 2**62, 2**63, len(content), 91))
    content[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "big")
    path.write_bytes(content)
    return f"{value} in {width} bytes at {at}"


def _resize(store: Store, rng: Random, name: str) -> str:
    path = store.path(name)
    size = path.stat().st_size
    new = rng.choice((0, 1, size // 2, max(0, size - 1), size + 1, size + 4096, rng.randrange(size + 1)))
    os.truncate(path, new)
    return f"{size} bytes become {new}"


def _delete(store: Store, rng: Random, name: str) -> str:
    store.path(name).unlink()
    return "deleted"


def _add_stranger(store: Store, rng: Random, name: str) -> str:
    kind = rng.choice(("tmp", "digits", "minus", "folder"))
    path = store.path(name)
    names = {
        "tmp": path.with_name(path.name + ".tmp"),
        "digits": path.with_name(file_name(rng.randrange(10**12))),
        "minus": path.with_name("-0000000000006000000"),
        "folder": path.with_name(rng.choice(("lost+found", "00000000000000000000x", "7"))),
    }
    target = names[kind]
    if target.exists():
        return "nothing"
    if kind == "folder":
        target.mkdir()
    else:
        target.write_bytes(rng.choice((b"", b"x", bytes(100), path.read_bytes())))
    return f"{target.name} added"


def _replace_by_other(store: Store, rng: Random, name: str) -> str:
    others = [other for other in store.template.files if other.split("/")[0] == name.split("/")[0] and other != name]
    if not others or not store.path(other := rng.choice(others)).is_file():
        return "nothing"
    shutil.copyfile(store.path(other), store.path(name))
    return f"replaced by {other}"


CONTENT_DAMAGE: tuple[Damage, ...] = (_flip_bits, _flip_bits, _flip_bits, _overwrite, _overwrite, _set_number)
FILE_DAMAGE: tuple[Damage, ...] = (_resize, _delete, _add_stranger, _replace_by_other)
PARTS = {"commitlog": 8, "consumequeue": 4, "index": 3, "rmqha": 2, "config": 2, "checkpoint": 2, "abort": 1}


def damage(store: Store, rng: Random) -> None:
    """Spoil one to three places, and note what stays sound."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        by_part: dict[str, list[str]] = {}
        for name in store.template.files:
            if os.path.isfile(f"{store.root}/{name}"):
                by_part.setdefault(name.split("/")[0], []).append(name)
        parts = [part for part in PARTS if part in by_part]
        part = rng.choices(parts, [PARTS[part] for part in parts])[0]
        name = rng.choice(by_part[part])
        how = rng.choice(CONTENT_DAMAGE if rng.random() < 0.85 else FILE_DAMAGE)
        store.told.append(f"{name}: {how(store, rng, name)}")
        store.touched.add(part)
    store.sound = in_place(store, store.template.records)


def in_place(store: Store, records: Sequence[SoundRecord]) -> list[SoundRecord]:
    """The records whose bytes are in the segments where they belong."""
    size = store.template.segment_size
    found: list[SoundRecord] = []
    for base, some in groupby(records, lambda record: record.offset - record.offset % size):
        segment = _read(f"{store.root}/commitlog/{file_name(base)}")
        found += [record for record in some if segment.startswith(record.content, record.offset - base)]
    return found


def _read(path: str) -> bytes:
    """The file's bytes, none if there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        status = os.fstat(fd)
        return b"" if S_ISDIR(status.st_mode) else os.pread(fd, status.st_size, 0)
    finally:
        os.close(fd)


def log_is_as_it_was(store: Store) -> bool:
    """Whether every byte of the log's files is that of the sound store."""
    chosen = store.template
    expected = {name for name in chosen.files if name.startswith("commitlog/")}
    names = {f"commitlog/{name}" for name in os.listdir(f"{store.root}/commitlog")}
    return names == expected and all(
        _read(f"{store.root}/{name}") == chosen.files[name].ljust(chosen.sizes[name], b"\0") for name in names
    )


# ---- what is done to it


def _run_command(store: Store, *arguments: str) -> int:
    """Run the command; returns its exit code. Raises Broken for a traceback, or for more than a line of reasons."""
    result = CliRunner().invoke(command, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise Broken(f"rmqha {' '.join(arguments[:1])} ends in a traceback") from result.exception
    require(result.exit_code in {int(code) for code in ExitCode}, "the exit code is a documented one", result.exit_code)
    if result.exit_code:
        require(bool(result.stderr.strip()), "a failure says why", arguments)
    require("Traceback" not in result.output, "there is no traceback", result.output)
    require("No such" not in result.stderr.split("Error:")[-1][:20], "the command is there", result.stderr)
    store.told.append(f"rmqha {' '.join(arguments)}: {result.exit_code} {result.stderr.strip()[-300:]}")
    return result.exit_code


def _settings_options(store: Store) -> list[str]:
    return [word for key, value in store.template.settings.items() for word in ("--set", f"{key}={value}")]


def _start(store: Store, rng: Random, role: str) -> bool:
    """Open the store as a node does, let it work a little, and close it. Whether it opened."""
    texts = {"storePathRootDir": str(store.root), "brokerRole": role, "brokerId": "0" if role != "SLAVE" else "1"}
    if rng.random() < 0.5:
        texts |= store.template.settings
    clock = Clock()
    problems: list[Failure] = []
    try:
        opened = MessageStore(make_settings(texts))
    except (StoreError, OSError) as error:
        store.told.append(f"start as {role}: refused: {error}")
        require("\n" not in str(error), "a refusal is one line", str(error))
        return False
    flusher = opened.start_flushing(clock, execute, problems.append)
    opened.start_dispatching(clock, problems.append)
    for _ in range(20):
        clock.advance(0.05)
    if role != "SLAVE":
        opened.put_message(Message(topic="TNew", body=b"new", queue_id=0, born_host=HOST, store_host=HOST))
        clock.advance(1.0)
    opened.close(flusher).addErrback(problems.append)
    require(not problems, "a node that has started works", [str(problem.value) for problem in problems])
    store.told.append(f"start as {role}: works")
    return True


def _read_tables(store: Store) -> None:
    for table in TABLES:
        try:
            table.read(store.root / CONFIG_FOLDER)
        except (StoreError, OSError) as error:
            store.told.append(f"{table.__name__}: {error}")


LOOKS: dict[str, Callable[[Store], list[str]]] = {
    "verify": lambda store: ["verify", str(store.root)],
    "verify --json": lambda store: ["verify", str(store.root), "--json"],
    "verify --set": lambda store: ["verify", str(store.root), *_settings_options(store)],
    "recover": lambda store: ["recover", str(store.root)],
    "queues": lambda store: ["queues", str(store.root)],
    "status": lambda store: ["status", str(store.root)],
    "dump": lambda store: ["dump", str(store.root)],
    "repair dry": lambda store: ["repair", str(store.root), "--from", str(store.sound_copy), "--dry-run"],
}


def contents(root: Path) -> dict[str, tuple[int, bytes | dict[int, bytes]]]:
    """All files but the lock: their sizes, and their bytes; of large files the pages that are not zero."""
    return {entry.path: _data_of(entry.path) for entry in _files(str(root)) if entry.name != "lock"}


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry


def _data_of(path: str) -> tuple[int, bytes | dict[int, bytes]]:
    """A file's size, and its bytes or its pages that are not zero: a hole that was only read may count as data."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size <= SMALL_FILE_BYTES:
            return size, os.pread(fd, size, 0)
        end, pages = 0, {}
        while end < size:
            try:
                start = os.lseek(fd, end, os.SEEK_DATA)
            except OSError:  # only a hole follows
                break
            end = os.lseek(fd, start, os.SEEK_HOLE)
            for at in range(start, end, PAGE_BYTES):
                page = os.pread(fd, min(PAGE_BYTES, end - at), at)
                if page.strip(b"\0"):
                    pages[at] = page
        return size, pages
    finally:
        os.close(fd)


def disk_bytes(root: Path) -> int:
    """What the files of the store take on the disk."""
    return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in _files(str(root)))


def _remove(folder: str) -> None:
    """Delete a folder and all in it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
            else:
                os.unlink(entry.path)
    os.rmdir(folder)


def _look(store: Store, name: str) -> None:
    before = contents(store.root)
    _run_command(store, *LOOKS[name](store))
    require(contents(store.root) == before, f"{name} changes nothing")


def _check_kept(store: Store, confirmed: list[SoundRecord], may_be_cut: bool) -> None:
    there = {record.offset for record in in_place(store, confirmed)}
    lost = [record for record in confirmed if record.offset not in there]
    if may_be_cut and lost:
        kept_files = sorted(path for path in (store.root / "rmqha" / "cut").rglob("*") if path.is_file())
        kept = b"".join(path.read_bytes() for path in kept_files)
        lost = [record for record in lost if record.content not in kept]
    require(not lost, "sound confirmed records stay where they are", [record.offset for record in lost])


def _steps(rng: Random) -> list[str]:
    acts = ["start master", "start slave", "recover --apply", "rebuild", "recover --apply --force", "repair"]
    return [rng.choice(list(LOOKS) + acts * 2) for _ in range(rng.choice((1, 1, 2, 3)))]


def run_case(number: int, root: Path, tell: Callable[[str], None] = lambda _: None) -> Counter[str]:
    """Damage a store and use it. Raises Broken, or what no command may raise. What it came to, for the tally."""
    rng = Random(number)
    chosen = template(rng.randrange(TEMPLATES))
    store = Store(root / "store", chosen)
    chosen.write(str(store.root))
    damage(store, rng)
    try:
        _use(store, rng)
    except Exception as error:
        error.add_note("\n".join(store.told))
        raise
    finally:
        for line in store.told:
            tell(line)
    return Counter(line.split(":")[0].replace(str(store.root), "STORE")[:40] for line in store.told)


def _use(store: Store, rng: Random) -> None:
    confirmed = [record for record in store.sound if record.offset + len(record.content) <= store.template.confirmed]
    log_sound = log_is_as_it_was(store)
    cut = False
    taken = disk_bytes(store.root)
    for step in _steps(rng):
        cut = cut or "--force" in step
        _do(store, rng, step, log_sound)
        if step in LOOKS:  # no byte of any file has changed
            continue
        before, taken = taken, disk_bytes(store.root)
        require(taken - before <= GROWTH_AT_MOST_BYTES, "the disk does not fill", step, taken - before)
        _check_kept(store, confirmed, cut)
    if log_sound and not store.touched & {"commitlog", "rmqha"} and rng.random() < 0.5:
        _end_well(store, rng)
        _check_kept(store, confirmed, cut)


def _do(store: Store, rng: Random, step: str, log_sound: bool) -> None:
    store.told.append(f"step {step}:")
    options = _settings_options(store) if rng.random() < 0.5 else []
    if step in LOOKS:
        _look(store, step)
    elif step.startswith("start"):
        started = _start(store, rng, "SLAVE" if "slave" in step else "ASYNC_MASTER")
        require(started or not log_sound or "rmqha" in store.touched, "a node starts on a sound log")
        _read_tables(store)
    elif step == "repair":
        _run_command(store, "repair", str(store.root), "--from", str(store.sound_copy), *options)
    else:
        name, *rest = step.split()
        _run_command(store, name, str(store.root), *rest, *options)


def _end_well(store: Store, rng: Random) -> None:
    """Whatever happened to queues, index and tables of a sound log: rebuild mends it."""
    options = _settings_options(store)
    code = _run_command(store, "rebuild", str(store.root), *options)
    require(code == 0, "rebuild works on a sound log", code)
    code = _run_command(store, "verify", str(store.root), *options)
    require(code == 0, "a store that was rebuilt verifies", code)


# ---- the loop


@contextmanager
def _no_hanging(seconds: float) -> Iterator[None]:
    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Broken(f"a case takes no longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def run_one(number: int, tell: Callable[[str], None] = lambda _: None) -> Counter[str]:
    """One case, in a folder of its own. Raises what ``run_case`` raises."""
    root = tempfile.mkdtemp(dir=work_folder())
    try:
        with _no_hanging(HANGS_AFTER_SECONDS), _as_delivered(number):
            return run_case(number, Path(root), tell)
    finally:
        _remove(root)


@cache
def work_folder() -> str:
    """Where all stores of this run are, a worker's too: who ends early leaves some."""
    folder = tempfile.mkdtemp(prefix="rmqha-fuzz-", dir=fast_folder())
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # and no worker
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


class _OneThread:
    """Stands in for ThreadPoolExecutor: the caller does the work, in the order that it asks for."""

    def __init__(self, threads: int) -> None:
        pass

    def __enter__(self) -> "_OneThread":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)


def prepare() -> None:
    """Make this process fast.

    No power is lost here: what is written is there for the next step without waiting for a disk. Log lines that nobody
    reads are not kept. Cyclic garbage is collected between pieces of the run.
    """
    os.fsync = os.fdatasync = lambda fd: None  # of file objects too
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    gc.disable()


@contextmanager
def _as_delivered(number: int) -> Iterator[None]:
    """Use threads and progress bars, as users have them, in one case of 50: starting them takes longer than a case."""
    if number % 50 == 0:
        yield
        return
    with patch.object(derived, "ThreadPoolExecutor", _OneThread):
        yield


@dataclass
class Done:
    """What a part of a run, or all of it, came to."""

    cases: int = 0
    cpu_seconds: float = 0.0
    tally: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str]] = field(default_factory=list)
    """The cases that failed, with their tracebacks."""

    def add(self, other: "Done") -> None:
        """Count the other's cases here too."""
        self.cases += other.cases
        self.cpu_seconds += other.cpu_seconds
        self.tally += other.tally
        self.findings += other.findings

    def line(self, seed: int) -> str:
        """The sum in one line."""
        each = 1000 * self.cpu_seconds / max(1, self.cases)
        return (
            f"stores {self.cases} cases from {seed} on, {len(self.findings)} failed, "
            f"{self.cpu_seconds:.0f} s of processor time, {each:.1f} ms a case"
        )


def _worker(piece: tuple[int, int, float, int]) -> Done:
    """Cases from the first number on, until there are enough, or enough findings, or the time is over."""
    start, cases, deadline, most_findings = piece
    done, began = Done(), time.process_time()
    for number in range(start, start + cases):
        if time.monotonic() >= deadline:
            break
        try:
            done.tally += run_one(number)
        except Exception:  # anything at all is what is looked for
            done.findings.append((number, traceback.format_exc()))
        done.cases += 1
        if len(done.findings) >= most_findings:
            break
    gc.collect()
    done.cpu_seconds = time.process_time() - began
    return done


@dataclass(frozen=True)
class Progress:
    """How far a long run has come, in a file: the next start goes on from there."""

    path: Path | None

    def read(self, seed: int) -> Done:
        """What was done from this seed on. Raises ValueError for another run's file."""
        if self.path is None or not self.path.exists():
            return Done()
        found = json.loads(self.path.read_text())
        if found["seed"] != seed:
            raise ValueError(f"{self.path} is of a run from {found['seed']} on, not from {seed}")
        failed = [(number, "") for number in found["failed"]]
        return Done(found["cases"], found["cpu_seconds"], Counter(found["tally"]), failed)

    def write(self, seed: int, done: Done) -> None:
        """Replace the file."""
        if self.path is None:
            return
        failed = [number for number, _ in done.findings]
        found = {"seed": seed, "cases": done.cases, "cpu_seconds": done.cpu_seconds, "failed": failed}
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(json.dumps({**found, "tally": done.tally}))
        new.replace(self.path)


def run(cases: int, seconds: float, jobs: int, seed: int, most_findings: int, progress: Progress) -> int:
    """The exit code; prints what was done."""
    now = time.monotonic()
    deadline, next_line = now + seconds, now + SECONDS_BETWEEN_LINES
    done = progress.read(seed)
    starts = range(seed + done.cases, seed + cases, PIECE_CASES)
    pieces = ((start, min(PIECE_CASES, seed + cases - start), deadline, most_findings) for start in starts)
    prepare()
    work_folder()
    for number in range(TEMPLATES):  # once, before there are more processes
        template(number)
    gc.collect()
    gc.freeze()
    with get_context("fork").Pool(jobs, maxtasksperchild=PIECES_A_PROCESS) as pool:
        for some in pool.imap(_worker, pieces):
            done.add(some)
            for number, text in some.findings:
                print(f"case {number} fails:\n{text}\nagain: python -m tests.fuzz.stores --replay {number}", flush=True)
            if time.monotonic() >= next_line:
                next_line += SECONDS_BETWEEN_LINES
                progress.write(seed, done)
                print(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {done.line(seed)}", flush=True)
            if len(done.findings) >= most_findings or (some.cases < PIECE_CASES and time.monotonic() >= deadline):
                pool.terminate()
                break
    progress.write(seed, done)
    print(done.line(seed))
    for name, times in done.tally.most_common(12):
        print(f"  {times:>8} {name}")
    if done.findings:
        return FOUND
    return 0 if done.cases >= cases or seconds == float("inf") else TOO_FEW


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.stores", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=float, default=1e9, help="how many; fails if --seconds are over before")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    parser.add_argument("--seed", type=int, help="the first case; a random one by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--findings", type=int, default=5, help="end after so many")
    parser.add_argument("--replay", type=int, help="only this case, with what it does")
    parser.add_argument(
        "--progress",
        type=Path,
        help="a file that says how far the run has come; the next run goes on there; with --seed",
    )
    options = parser.parse_args(arguments)
    if options.replay is not None:
        prepare()
        run_one(options.replay, print)
        return 0
    if options.progress is not None and options.seed is None:
        parser.error("--progress wants --seed")
    seed = secrets.randbelow(2**40) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    progress = Progress(options.progress)
    return run(int(options.cases), options.seconds, options.jobs, seed, options.findings, progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
