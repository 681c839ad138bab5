"""An archive folder: Parquet files, and the manifests that say which of them count.

::

    _manifest/<start>-<end>.json                  what one batch archived: a range of the log, and its files
    _manifest/tables.json                         topics, groups and offsets, as of the end of the archive or soon after
    date=2026-11-21/hour=01/<start>-<end>.parquet messages of one range of the log
    _staged/.<start>-<end>.<writer>.parquet.staged the same before its manifest is written
    _staged/.<start>-<end>.<writer>.parquet.tmp    the same while it is written: its writer holds a lock on it

A worker stages files. ``commit`` writes the manifest, which is the moment at which a batch is archived, and then gives
the staged files their names. A file with its final name is therefore always in a manifest, and a reader who lists the
folder sees no message twice. If a process dies between the two steps, the next commit completes them. Several writers
may stage the same range at a time, for example two attempts of one task. Each writes its own file, and a manifest names
one of them.
"""

import fcntl
import os
import re
import time
import uuid
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from rmqha.store.errors import StoreError, StoreInUse
from rmqha.store.log.mappedfile import sync_folder
from rmqha.store.nodestate import NodeState, replace_file
from rmqha.wire.layout import BLANK_HEADER
from rmqha.wire.record import encode_blank

MANIFEST_FOLDER = "_manifest"
STAGING_FOLDER = "_staged"
TABLES_NAME = "tables.json"
LOCK_NAME, JOB_LOCK_NAME = ".lock", ".job"
LOCK_PATIENCE_SECONDS = 300.0
"""How long a commit waits for another one, which is short unless two have staged the same message in different
files.
"""
LOCK_POLL_SECONDS = 0.05
OFFSET_DIGITS = 20
STAGED_SUFFIX, TEMPORARY_SUFFIX = ".staged", ".tmp"
RANGE_NAME = re.compile(r"\.?(\d+)-(\d+)\..*")


class ArchiveError(StoreError):
    """The archive belongs to another store, or differs from its manifests."""


class WrongArchive(ArchiveError):
    """The archive belongs to another log than the one to be archived. Nothing was changed."""


def range_name(start: int, end: int) -> str:
    """The name of files and manifests that hold this range of the log."""
    return f"{start:0{OFFSET_DIGITS}d}-{end:0{OFFSET_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A Parquet file with the messages between two offsets of the log. Its path is relative to the archive. Times in
    milliseconds.

    ``staged`` is its name before the commit.
    """

    path: str
    start: int
    end: int
    rows: int
    bytes: int
    min_store_timestamp: int
    max_store_timestamp: int
    staged: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class RangeHash:
    """The SHA-256 of the log's bytes from ``start`` to before ``end``."""

    start: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchivedBlank:
    """The end of a segment without a message, from ``start`` to before ``end``.

    ``filler`` holds the bytes after its header, without the zeros at their end: compressed by zlib, in base64. It is
    empty if they are all zeros, as usual.
    """

    start: int
    end: int
    filler: str = ""

    @classmethod
    def of(cls, start: int, content: bytes) -> "ArchivedBlank":
        """The blank with this content, which starts with its header."""
        filler = content[BLANK_HEADER.size :].rstrip(b"\0")
        return cls(start, start + len(content), b64encode(zlib.compress(filler)).decode() if filler else "")

    def content(self) -> bytes:
        """All bytes of the blank but for the zeros at its end. Raises ValueError if the filler is damaged."""
        size = self.end - self.start
        try:
            filler = zlib.decompressobj().decompress(b64decode(self.filler), size) if self.filler else b""
        except zlib.error as error:
            raise ValueError(f"the filler of the blank at {self.start} is damaged: {error}") from error
        return encode_blank(size) + filler[: size - BLANK_HEADER.size]


@dataclass(frozen=True, slots=True)
class RestoreFacts:
    """What a store made from the archive needs besides the messages. Older manifests have none of it.

    ``lossless`` says that the files keep every record exactly. ``segment_size`` is in bytes, None if it is not known.
    """

    lossless: bool = False
    segment_size: int | None = None
    blanks: tuple[ArchivedBlank, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The fields in a manifest's file."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RestoreFacts":
        """Parse the fields of a manifest's file. Raises ValueError, TypeError."""
        size = content.get("segment_size")
        return cls(
            lossless=bool(content.get("lossless", False)),
            segment_size=None if size is None else int(size),
            blanks=tuple(ArchivedBlank(**blank) for blank in content.get("blanks", ())),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one batch archived: the log from ``start`` to before ``end``.

    ``hashes`` are those of its splits. They prove that the log of another store is the same; older manifests have none.

    ``store_id`` and ``epoch`` are those of state.json, None and 0 if no node of ours has run. ``skipped`` counts
    stretches that were not records. ``restore`` is what a store made from the archive needs besides.
    """

    start: int
    end: int
    store_id: str | None
    epoch: int
    files: tuple[ArchivedFile, ...]
    skipped: int = 0
    hashes: tuple[RangeHash, ...] = ()
    restore: RestoreFacts = RestoreFacts()

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(file.rows for file in self.files)

    def to_json(self) -> bytes:
        """The content of the manifest's file."""
        content = {**asdict(replace(self, restore=RestoreFacts())), **self.restore.as_json(), "rows": self.rows}
        del content["restore"]
        return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        """Parse the content of a manifest's file. Raises ValueError."""
        try:
            content: dict[str, Any] = orjson.loads(text)
            files = tuple(ArchivedFile(**file) for file in content["files"])
            hashes = tuple(RangeHash(**one) for one in content.get("hashes", ()))
            return cls(
                start=content["start"],
                end=content["end"],
                store_id=content["store_id"],
                epoch=content["epoch"],
                files=files,
                skipped=content["skipped"],
                hashes=hashes,
                restore=RestoreFacts.from_json(content),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or invalid: {error}") from error


class Archive:
    """An archive folder. One process at a time commits to it: see ``locked``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root / MANIFEST_FOLDER
        self._staging = root / STAGING_FOLDER

    def locked(self, patience_seconds: float = LOCK_PATIENCE_SECONDS) -> AbstractContextManager[None]:
        """Keep others from committing meanwhile. Waits for a commit in progress. Raises StoreInUse, OSError."""
        return self._hold(LOCK_NAME, patience_seconds)

    def job_locked(self) -> AbstractContextManager[None]:
        """Keep other jobs from the same work; streams and queries may commit. Does not wait. Raises StoreInUse,
        OSError.
        """
        return self._hold(JOB_LOCK_NAME, 0)

    @contextmanager
    def _hold(self, name: str, patience_seconds: float) -> Iterator[None]:
        make_folder(self._folder)
        fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            give_up = time.monotonic() + patience_seconds
            while not _lock(fd):
                if time.monotonic() >= give_up:
                    raise StoreInUse(f"{self.root}: another process archives to it")
                time.sleep(LOCK_POLL_SECONDS)  # a lock on a file cannot be waited for with an end
            yield
        finally:
            os.close(fd)

    def manifests(self) -> list[Manifest]:
        """All manifests, ordered by range. Raises ArchiveError, OSError."""
        return [self._read(path) for path in self._manifest_paths()]

    def _manifest_paths(self) -> list[Path]:
        return sorted(self._folder.glob("*-*.json"))

    @staticmethod
    def _read(path: Path) -> Manifest:
        try:
            return Manifest.from_json(path.read_bytes())
        except ValueError as error:
            raise ArchiveError(f"{path} is not a manifest ({error}): move it elsewhere") from error

    def covered(self) -> list[tuple[int, int]]:
        """The archived ranges of the log, ascending and as long as possible. The names of the manifests give them."""
        ranges: list[tuple[int, int]] = []
        for start, end in map(_range_of, self._manifest_paths()):
            if ranges and start <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return ranges

    def tables(self) -> dict[str, str]:
        """The texts of the store's tables by the names of their files, as of the end of the archive or soon after it.

        Empty if the archive has none. Raises ArchiveError, OSError.
        """
        path = self._folder / TABLES_NAME
        try:
            return {str(name): str(text) for name, text in orjson.loads(path.read_bytes())["tables"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(f"{path} does not hold tables ({error}): move it elsewhere") from error

    def commit(self, manifest: Manifest, tables: Mapping[str, str] | None = None) -> bool:
        """Archive a batch whose files are staged. Returns False, and does nothing, if a part of its range is archived
        already. ``tables`` are those of the store at the end of the batch; only the last ones are kept.

        Call it under ``locked``. Raises ArchiveError if a file is missing or unexpected, and OSError.
        """
        whole = (manifest.start, manifest.end)
        if uncovered(*whole, self.covered()) != [whole]:
            return False
        for file in manifest.files:
            if not (self._staging / file.staged).is_file():
                raise ArchiveError(
                    f"{self._staging / file.staged} was removed before it was archived: run the job again"
                )
        self._check_strangers(manifest)
        if tables and (not (covered := self.covered()) or manifest.end > covered[-1][1]):
            content = {"offset": manifest.end, "tables": dict(tables)}
            replace_file(self._folder / TABLES_NAME, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
        replace_file(self._folder / f"{range_name(*whole)}.json", manifest.to_json())
        self._publish(manifest)
        return True

    def _check_strangers(self, manifest: Manifest) -> None:
        """Raises ArchiveError if files of this range exist without a manifest, which somebody must have removed."""
        whole = (manifest.start, manifest.end)
        paths = {self.root / file.path for file in manifest.files}
        for folder in {path.parent for path in paths}:
            for path in set(folder.glob("*-*.parquet")) - paths:
                if RANGE_NAME.fullmatch(path.name) and uncovered(*_range_of(path), [whole]) != [_range_of(path)]:
                    raise ArchiveError(
                        f"{path} exists, but no manifest contains it: restore the manifest, or remove the file"
                    )

    def _publish(self, manifest: Manifest) -> None:
        folders = set()
        for file in manifest.files:
            staged, path = self._staging / file.staged, self.root / file.path
            if staged.exists():
                make_folder(path.parent)
                staged.rename(path)
                folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)

    def complete(self) -> None:
        """Complete the commit of a process that died: a committed file gets its name. Call it under ``locked``."""
        manifests = [(*_range_of(path), path) for path in self._manifest_paths()]
        staged = [_range_of(path) for path in self._staging.glob(f".*{STAGED_SUFFIX}")]
        for begin, end, path in manifests:
            if any(begin <= start < end for start, _ in staged):
                self._publish(self._read(path))

    def clean(self) -> int:
        """Remove staged files of ranges that other files hold; returns their number. Call it under ``locked``. Raises
        OSError.

        Files outside the range of every manifest may belong to a writer at work, as do files that a writer has locked.
        """
        covered = self.covered()
        removed = 0
        for path in self._staging.glob(".*.parquet.*"):
            whole = _range_of(path)
            removed += uncovered(*whole, covered) != [whole] and _remove_unheld(path)
        return removed

    @staticmethod
    def check_confirmed(state: NodeState | None, end: int) -> None:
        """Raises ArchiveError if a store in this state may still take back bytes before ``end``."""
        if state is not None and end > state.offsets.confirmed:
            raise ArchiveError(
                f"only confirmed messages can be archived, up to {state.offsets.confirmed} and not to {end}: the store "
                "may take back later ones and write others in their place (readUpTo=confirmed)"
            )

    def strangers(self, state: NodeState | None) -> list[Manifest]:
        """The last manifests that do not belong to the store in this state, the last one first.

        Their content must be proved against its log before it may be archived here. Stores without an id all look the
        same; for them it is the last range of the last manifest. Raises ArchiveError if the store took back archived
        messages, and OSError.
        """
        found: list[Manifest] = []
        for path in reversed(self._manifest_paths()):
            manifest = self._read(path)
            if state is None and manifest.store_id is None:
                return found or [replace(manifest, files=manifest.files[-1:], hashes=manifest.hashes[-1:])]
            if state is not None and state.store_id == manifest.store_id:
                if state.took_back(manifest.epoch, manifest.end):
                    raise ArchiveError(
                        f"the store took back messages after {state.epoch_start} (epoch {state.epoch}), but the "
                        f"archive reaches to {manifest.end} (epoch {manifest.epoch}): archive to a new folder"
                    )
                return found
            found.append(manifest)
        return found


def _range_of(path: Path) -> tuple[int, int]:
    match = RANGE_NAME.fullmatch(path.name)
    if match is None:
        raise ArchiveError(f"the name of {path} is not a range of the log: move it elsewhere")
    return int(match[1]), int(match[2])


def open_staging(root: Path, start: int, end: int) -> tuple[Path, BinaryIO]:
    """A new file for messages of this range, which nobody removes while it is open. Raises OSError."""
    folder = root / STAGING_FOLDER
    make_folder(folder)
    while True:
        path = folder / f".{range_name(start, end)}.{uuid.uuid4().hex}.parquet{TEMPORARY_SUFFIX}"
        file = path.open("wb")
        if _lock(file.fileno()) and os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()  # another process has cleaned up already


def stage(path: Path) -> str:
    """Mark a file of ``open_staging`` as complete; returns its new name. Raises OSError."""
    staged = path.with_suffix(STAGED_SUFFIX)
    path.rename(staged)
    sync_folder(path.parent)
    return staged.name


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, so that they survive a power failure. Raises OSError."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _lock(fd: int) -> bool:
    """Lock a file while it is open, if nobody else has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_unheld(path: Path) -> bool:
    """Remove a file, unless its writer is at work."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        is_ours = _lock(fd)
        if is_ours:
            path.unlink(missing_ok=True)
        return is_ours
    finally:
        os.close(fd)


def uncovered(start: int, end: int, covered: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of a range outside of the ascending ranges ``covered``."""
    left = []
    for low, high in covered:
        if start < low and start < end:
            left.append((start, min(low, end)))
        start = max(start, high)
    if start < end:
        left.append((start, end))
    return left


def archived_paths(root: Path) -> Sequence[Path]:
    """The files that count, in the order of the log: a reader that must miss nothing opens these.

    Raises ArchiveError if one of them is missing, and OSError.
    """
    return [archived_path(root, file) for manifest in Archive(root).manifests() for file in manifest.files]


def archived_path(root: Path, file: ArchivedFile) -> Path:
    """The path of a file that a manifest names. Raises ArchiveError if it is missing."""
    path = root / file.path
    for place in (path, root / STAGING_FOLDER / file.staged, path):  # it may get its name meanwhile
        if place.exists():
            return place
    raise ArchiveError(f"{path} is in a manifest, but the file is missing: somebody has removed it")
