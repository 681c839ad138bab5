"""An archive folder: Parquet files, and the manifests that say which of them count.

::

    _manifest/<start>-<end>.json                  what one batch archived: a range of the log, and its files
    _manifest/tables.json                         topics, groups and offsets, as of the end of the archive or soon after
    _manifest/selection.json                      which messages the archive holds, if not all
    date=2026-11-21/hour=01/<start>-<end>.parquet messages of one range of the log
    _staged/.<start>-<end>.<writer>.parquet.staged the same before its manifest is written
    _staged/.<start>-<end>.<writer>.parquet.tmp    the same while it is written: its writer holds a lock on it
    _staged/.<start>-<end>.<writer>.compacted      made of archived files, before its manifest is written
    _staged/.<start>-<end>.<writer>.compacting     the same while it is written
    _manifest/replacing/<start>-<end>.json        what the manifest of this name replaces, until that is done

A manifest may take the place of others: it contains their ranges, and they do not count any more. ``replacing`` says
how that is done.

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
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from rmqha.pipeline.jobs.manifestfields import (
    MAX_NUMBER,
    MAX_SEGMENT_BYTES,
    field_of,
    file_name,
    items,
    mapping,
    number,
    number_of,
    path_in_archive,
    range_in,
    text,
)
from rmqha.store.errors import NoStore, StoreError, StoreInUse
from rmqha.store.log.mappedfile import DISK, sync_folder
from rmqha.store.nodestate import NodeState
from rmqha.store.smallfiles import write_small
from rmqha.wire.layout import BLANK_HEADER
from rmqha.wire.record import encode_blank

MANIFEST_FOLDER = "_manifest"
STAGING_FOLDER = "_staged"
TABLES_NAME, SELECTION_NAME = "tables.json", "selection.json"
LOCK_NAME, JOB_LOCK_NAME = ".lock", ".job"
LOCK_PATIENCE_SECONDS = 300.0
"""How long a commit waits for another one, which is short unless two have staged the same message in different
files.
"""
LOCK_POLL_SECONDS = 0.05
OFFSET_DIGITS = 20
STAGED_SUFFIX, TEMPORARY_SUFFIX = ".staged", ".tmp"
COMPACTED_SUFFIX, COMPACTING_SUFFIX = ".compacted", ".compacting"
RANGE_NAME = re.compile(r"\.?(\d{1,20})-(\d{1,20})\..*")
SHA256 = re.compile(r"[0-9a-f]{64}")
LOWEST = -(2**63)


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

    ``staged`` is its name before the commit. ``merged`` are the ranges of the files that it was made from, if
    `rmqha job compact` made it; its rows are then sorted by topic and time.
    """

    path: str
    start: int
    end: int
    rows: int
    bytes: int
    min_store_timestamp: int
    max_store_timestamp: int
    staged: str = field(compare=False)
    merged: tuple[tuple[int, int], ...] = ()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of the log whose messages it holds, ascending."""
        return self.merged or ((self.start, self.end),)

    def as_json(self) -> dict[str, Any]:
        """The fields in a manifest's file."""
        content = asdict(self)
        if not self.merged:  # older versions of rmqha do not know the field
            del content["merged"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ArchivedFile":
        """Parse the fields of a manifest's file. Raises ValueError."""
        start, end = range_in(field_of(content, "start"), field_of(content, "end"), "a file")
        merged = tuple(
            range_in(*_pair(one), "a merged range", start, end) for one in items(content.get("merged", []), "merged")
        )
        return cls(
            path_in_archive(field_of(content, "path"), "path"),
            start,
            end,
            number_of(content, "rows"),
            number_of(content, "bytes"),
            number_of(content, "min_store_timestamp", LOWEST),
            number_of(content, "max_store_timestamp", LOWEST),
            file_name(field_of(content, "staged"), "staged"),
            merged,
        )


def _pair(value: Any) -> tuple[Any, Any]:
    start, end = items(value, "a range") if len(items(value, "a range")) == 2 else (None, None)
    return start, end


@dataclass(frozen=True, slots=True)
class RangeHash:
    """The SHA-256 of the log's bytes from ``start`` to before ``end``."""

    start: int
    end: int
    sha256: str

    @classmethod
    def from_json(cls, content: Mapping[str, Any], low: int, high: int) -> "RangeHash":
        """Parse one of a manifest's hashes, of a range between two offsets. Raises ValueError."""
        start, end = range_in(field_of(content, "start"), field_of(content, "end"), "a hash", low, high)
        sha256 = text(field_of(content, "sha256"), "sha256")
        if not SHA256.fullmatch(sha256):
            raise ValueError(f"sha256 is {sha256!a}, not 64 hexadecimal digits")
        return cls(start, end, sha256)


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
    def from_json(cls, content: Mapping[str, Any], low: int, high: int) -> "ArchivedBlank":
        """Parse one of a manifest's blanks, between two offsets. Raises ValueError."""
        start, end = range_in(field_of(content, "start"), field_of(content, "end"), "a blank", low, high)
        number(end - start, "the size of a blank", BLANK_HEADER.size, MAX_SEGMENT_BYTES)
        return cls(start, end, text(content.get("filler", ""), "filler"))

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
    def from_json(cls, content: Mapping[str, Any], low: int, high: int) -> "RestoreFacts":
        """Parse these fields of a manifest of the log between two offsets. Raises ValueError."""
        size = content.get("segment_size")
        return cls(
            lossless=content.get("lossless") is True,
            segment_size=None if size is None else number(size, "segment_size", 1, MAX_SEGMENT_BYTES),
            blanks=tuple(
                ArchivedBlank.from_json(mapping(one, "a blank"), low, high)
                for one in items(content.get("blanks", []), "blanks")
            ),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one batch archived: the log from ``start`` to before ``end``.

    ``hashes`` are those of its splits. They prove that the log of another store is the same; older manifests have none.

    ``store_id`` and ``epoch`` are those of state.json, None and 0 if no node of ours has run. ``skipped`` counts
    stretches that were not records. ``restore`` is what a store made from the archive needs besides. `rmqha job expire`
    removed the messages before the offset ``expired``, if it is not None.
    """

    start: int
    end: int
    store_id: str | None
    epoch: int
    files: tuple[ArchivedFile, ...]
    skipped: int = 0
    hashes: tuple[RangeHash, ...] = ()
    restore: RestoreFacts = RestoreFacts()
    expired: int | None = None

    @property
    def name(self) -> str:
        """The name of the manifest's file."""
        return f"{range_name(self.start, self.end)}.json"

    @property
    def rows(self) -> int:
        """The number of messages."""
        return sum(file.rows for file in self.files)

    def to_json(self) -> bytes:
        """The content of the manifest's file."""
        content = {**asdict(replace(self, restore=RestoreFacts())), **self.restore.as_json(), "rows": self.rows}
        content["files"] = [file.as_json() for file in self.files]
        del content["restore"]
        if self.expired is None:  # older versions of rmqha do not know the field
            del content["expired"]
        return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> "Manifest":
        """Parse the content of a manifest's file. All that reads one relies on what is checked here.

        Raises ValueError.
        """
        fields = mapping(orjson.loads(content), "it")
        start, end = range_in(field_of(fields, "start"), field_of(fields, "end"), "the manifest")
        files = tuple(
            ArchivedFile.from_json(mapping(one, "a file")) for one in items(field_of(fields, "files"), "files")
        )
        for file in files:
            range_in(file.start, file.end, f"the file {file.path}", start, end)
        store_id, expired = field_of(fields, "store_id"), fields.get("expired")
        return cls(
            start=start,
            end=end,
            store_id=None if store_id is None else text(store_id, "store_id"),
            epoch=number_of(fields, "epoch", LOWEST),
            files=files,
            skipped=number_of(fields, "skipped"),
            hashes=tuple(
                RangeHash.from_json(mapping(one, "a hash"), start, end)
                for one in items(fields.get("hashes", []), "hashes")
            ),
            restore=RestoreFacts.from_json(fields, start, end),
            expired=None if expired is None else number(expired, "expired", start, end),
        )


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
        """All manifests that count, ordered by range. Raises ArchiveError, OSError."""
        paths = self._manifest_paths()
        while True:
            try:
                return [self._read(path) for path in paths]
            except FileNotFoundError:  # another one took its place meanwhile
                before, paths = paths, self._manifest_paths()
                if paths == before:
                    raise

    def names(self) -> list[str]:
        """The names of the manifests that count, ordered by range."""
        return [path.name for path in self._manifest_paths()]

    def manifest(self, name: str) -> Manifest | None:
        """The manifest in the file of this name; None if there is none. Raises ArchiveError, OSError."""
        with suppress(FileNotFoundError):
            return self._read(self._folder / name)
        return None

    def _manifest_paths(self) -> list[Path]:
        """The manifests that count: not those that lie within the range of another one."""
        found: list[Path] = []
        reached = -1
        ranges = [(*range_of(path), path) for path in self._folder.glob("*-*.json")]
        for _, end, path in sorted(ranges, key=lambda one: (one[0], -one[1])):
            if end > reached:
                found.append(path)
                reached = end
        return found

    def put(self, manifest: Manifest) -> None:
        """Write a manifest, in place of an older one of the same range. Call it under ``locked``. Raises OSError."""
        DISK.replace(self._folder / manifest.name, manifest.to_json())

    @staticmethod
    def _read(path: Path) -> Manifest:
        try:
            manifest = Manifest.from_json(path.read_bytes())
            if manifest.name != path.name:
                raise ValueError(f"it is of the range {range_name(manifest.start, manifest.end)}")
            return manifest
        except ValueError as error:
            raise ArchiveError(f"{path} is not a manifest ({error}): move it elsewhere") from error

    def covered(self) -> list[tuple[int, int]]:
        """The archived ranges of the log, ascending and as long as possible. The names of the manifests give them."""
        ranges: list[tuple[int, int]] = []
        for start, end in map(range_of, self._manifest_paths()):
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
            content = mapping(orjson.loads(path.read_bytes()), "it")
            tables = mapping(field_of(content, "tables"), "tables")
            return {file_name(name, "a table"): str(table) for name, table in tables.items()}
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ArchiveError(f"{path} does not hold tables ({error}): move it elsewhere") from error

    def selection(self) -> dict[str, str]:
        """The options that select the messages of the archive, such as ``topic``; empty if it holds all.

        Raises ArchiveError, OSError.
        """
        path = self._folder / SELECTION_NAME
        try:
            return {str(name): str(text) for name, text in orjson.loads(path.read_bytes()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            raise ArchiveError(f"{path} does not say what is selected ({error}): move the archive elsewhere") from error

    def select(self, selection: Mapping[str, str]) -> None:
        """Archive only messages that these options select; the selection of an archive never changes.

        Call it under ``locked``. Raises WrongArchive if it holds another one, ArchiveError, OSError.
        """
        found = self.selection()
        if dict(selection) == found:
            return
        if found or self._manifest_paths():
            raise WrongArchive(
                f"{self.root} holds {selection_words(found)}, and not {selection_words(selection)}: archive to a new "
                "folder"
            )
        write_small(self._folder / SELECTION_NAME, dict(selection))

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
            write_small(self._folder / TABLES_NAME, content)
        self.put(manifest)
        self.publish(manifest)
        return True

    def _check_strangers(self, manifest: Manifest) -> None:
        """Raises ArchiveError if files of this range exist without a manifest, which somebody must have removed."""
        whole = (manifest.start, manifest.end)
        paths = {self.root / file.path for file in manifest.files}
        for folder in {path.parent for path in paths}:
            for path in set(folder.glob("*-*.parquet")) - paths:
                if RANGE_NAME.fullmatch(path.name) and uncovered(*range_of(path), [whole]) != [range_of(path)]:
                    raise ArchiveError(
                        f"{path} exists, but no manifest contains it: restore the manifest, or remove the file"
                    )

    def publish(self, manifest: Manifest) -> None:
        """Give the staged files of a manifest their names. Call it under ``locked``. Raises OSError."""
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
        manifests = [(*range_of(path), path) for path in self._manifest_paths()]
        staged = [range_of(path) for path in self._staging.glob(f".*{STAGED_SUFFIX}")]
        for begin, end, path in manifests:
            if any(begin <= start < end for start, _ in staged):
                self.publish(self._read(path))

    def clean(self) -> int:
        """Remove staged files of ranges that other files hold; returns their number. Call it under ``locked``. Raises
        OSError.

        Files outside the range of every manifest may belong to a writer at work, as do files that a writer has locked.
        """
        covered = self.covered()
        removed = 0
        for path in self._staging.glob(".*.parquet.*"):
            whole = range_of(path)
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
                return found or [_last_part(manifest)]
            if state is not None and state.store_id == manifest.store_id:
                if state.took_back(manifest.epoch, manifest.end):
                    raise ArchiveError(
                        f"the store took back messages after {state.epoch_start} (epoch {state.epoch}), but the "
                        f"archive reaches to {manifest.end} (epoch {manifest.epoch}): archive to a new folder"
                    )
                return found
            found.append(manifest)
        return found


def _last_part(manifest: Manifest) -> Manifest:
    """The manifest with its last file and its last hash only."""
    files = tuple(replace(file, merged=file.merged[-1:]) for file in manifest.files[-1:])
    return replace(manifest, files=files, hashes=manifest.hashes[-1:])


def selection_words(selection: Mapping[str, str]) -> str:
    """Which messages options select."""
    if not selection:
        return "all messages"
    return f"only messages with {' and '.join(f'{name}={text}' for name, text in selection.items())}"


def range_of(path: Path) -> tuple[int, int]:
    """The range of the log that the name of a file or a manifest says. Raises ArchiveError."""
    match = RANGE_NAME.fullmatch(path.name)
    if match is None:
        raise ArchiveError(f"the name of {path} is not a range of the log: move it elsewhere")
    start, end = int(match[1]), int(match[2])
    if not start <= end <= MAX_NUMBER:
        raise ArchiveError(f"the name of {path} is not a range of the log: move it elsewhere")
    return start, end


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


def stage(path: Path, suffix: str = STAGED_SUFFIX) -> str:
    """Mark a file of ``open_staging`` as complete; returns its new name. Raises OSError."""
    staged = path.with_suffix(suffix)
    path.rename(staged)
    sync_folder(path.parent)
    return staged.name


def open_compacted(root: Path, start: int, end: int) -> tuple[Path, BinaryIO]:
    """A new file for archived messages of this range. Only the job that compacts removes such files. Raises OSError."""
    folder = root / STAGING_FOLDER
    make_folder(folder)
    path = folder / f".{range_name(start, end)}.{uuid.uuid4().hex}{COMPACTING_SUFFIX}"
    return path, path.open("w+b")


def remove_compacted(root: Path) -> None:
    """Remove what a job left that died. Call it under ``job_locked``, when all commits are complete. Raises OSError."""
    for suffix in (COMPACTED_SUFFIX, COMPACTING_SUFFIX):
        for path in (root / STAGING_FOLDER).glob(f".*{suffix}"):
            path.unlink(missing_ok=True)


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


def existing_archive(root: Path) -> Archive:
    """The archive in this folder. Raises NoStore if it has no manifest, ArchiveError, OSError."""
    archive = Archive(root)
    if not root.is_dir() or not archive.names():
        raise NoStore(f"{root} is not an archive: it has no manifest")
    return archive


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
