"""An archive folder: Parquet files, and the manifests that say which of them count.

::

    _manifest/<start>-<end>.json                          what one batch archived: a range of the log, and its files
    date=2026-11-21/hour=01/<start>-<end>.parquet         messages of one range of the log
    date=2026-11-21/hour=01/.<start>-<end>.parquet.staged the same before its manifest is written

A worker stages files; ``commit`` writes the manifest, which is the moment a batch is archived, and then gives the
staged files their names. A file with its name is thus always in a manifest, so that whoever lists the folder sees no
message twice; what a death between the two left undone is done by whoever opens the archive next.
"""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from rmqha.store.errors import StoreError, StoreInUse
from rmqha.store.mappedfile import sync_folder
from rmqha.store.nodestate import NodeState, replace_file

MANIFEST_FOLDER = "_manifest"
LOCK_NAME = ".lock"
OFFSET_DIGITS = 20
STAGED_SUFFIX, TEMPORARY_SUFFIX = ".staged", ".tmp"
HIDDEN_NAME = re.compile(r"\.(\d+)-(\d+)\.parquet\.")


class ArchiveError(StoreError):
    """The archive is not this store's, or not as its manifests say."""


def range_name(start: int, end: int) -> str:
    """How files and manifests are named by the range of the log they hold."""
    return f"{start:0{OFFSET_DIGITS}d}-{end:0{OFFSET_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file, its path relative to the archive: messages between two offsets of the log. Times in ms."""

    path: str
    start: int
    end: int
    rows: int
    bytes: int
    min_store_timestamp: int
    max_store_timestamp: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one batch archived: all of the log from ``start`` to before ``end``.

    ``store_id`` and ``epoch`` are those of state.json, None and 0 for a store that no node of ours has run; ``skipped``
    counts stretches that were no records.
    """

    start: int
    end: int
    store_id: str | None
    epoch: int
    files: tuple[ArchivedFile, ...]
    skipped: int = 0

    @property
    def rows(self) -> int:
        """How many messages."""
        return sum(file.rows for file in self.files)

    def to_json(self) -> bytes:
        """The manifest's file."""
        return orjson.dumps({**asdict(self), "rows": self.rows}, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        """From what ``to_json`` gave. Raises ValueError."""
        try:
            content: dict[str, Any] = orjson.loads(text)
            files = tuple(ArchivedFile(**file) for file in content["files"])
            return cls(
                content["start"], content["end"], content["store_id"], content["epoch"], files, content["skipped"]
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks or misuses {error}") from error


class Archive:
    """The folder. One process at a time commits to it: see ``locked``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root / MANIFEST_FOLDER

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from committing meanwhile. Raises StoreInUse, OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise StoreInUse(f"{self.root}: another process archives to it") from None
        finally:
            os.close(fd)

    def manifests(self) -> list[Manifest]:
        """All manifests, by their ranges. Raises ArchiveError, OSError."""
        return [self._read(path) for path in self._manifest_paths()]

    def _manifest_paths(self) -> list[Path]:
        return sorted(self._folder.glob("*-*.json"))

    @staticmethod
    def _read(path: Path) -> Manifest:
        try:
            return Manifest.from_json(path.read_bytes())
        except ValueError as error:
            raise ArchiveError(f"{path} is no manifest ({error}): move it elsewhere") from error

    def covered(self) -> list[tuple[int, int]]:
        """The ranges of the log that are archived: ascending, as long as they can be. By the manifests' names."""
        ranges: list[tuple[int, int]] = []
        for path in self._manifest_paths():
            start, end = (int(part) for part in path.stem.split("-"))
            if ranges and start <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return ranges

    def commit(self, manifest: Manifest) -> bool:
        """Archive the batch, whose files are staged; False if all of its range is archived already.

        Raises ArchiveError where a part of it is, or a file is missing; OSError. To be called under ``locked``.
        """
        left = uncovered(manifest.start, manifest.end, self.covered())
        if not left:
            return False
        if left != [(manifest.start, manifest.end)]:
            raise ArchiveError(
                f"a part of {manifest.start} to {manifest.end} was archived meanwhile: run it again, it goes on behind"
            )
        for file in manifest.files:
            if not staged_path(self.root / file.path).is_file():
                raise ArchiveError(f"{self.root / file.path} was removed before its manifest was written: run it again")
        replace_file(self._folder / f"{range_name(manifest.start, manifest.end)}.json", manifest.to_json())
        self._publish(manifest)
        return True

    def _publish(self, manifest: Manifest) -> None:
        folders = set()
        for file in manifest.files:
            path = self.root / file.path
            if staged_path(path).exists():
                staged_path(path).rename(path)
                folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)

    def complete(self) -> None:
        """Do what the death of an earlier process left undone: a committed file gets its name. Under ``locked``."""
        for manifest in self.manifests():
            self._publish(manifest)

    def clean(self) -> int:
        """Remove files of what is archived in other files; gives their number. Under ``locked``. Raises OSError.

        What lies in no manifest's range yet may be somebody's who is at work.
        """
        covered = self.covered()
        removed = 0
        for path in self.root.rglob(".*.parquet.*"):
            match = HIDDEN_NAME.match(path.name)
            if match is not None and uncovered(*(whole := (int(match[1]), int(match[2]))), covered) != [whole]:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def check_state(self, state: NodeState | None) -> None:
        """Raises ArchiveError if a store of this state is another one, or took back what is archived."""
        manifests = self.manifests()
        last = manifests[-1] if manifests else None
        if last is None or last.store_id is None:
            return
        store_id = None if state is None else state.store_id
        if state is None or state.store_id != last.store_id:
            raise ArchiveError(f"{self.root} is the archive of store {last.store_id}, not of {store_id}")
        if state.epoch > last.epoch and state.epoch_start < last.end:
            raise ArchiveError(
                f"the store took back what follows {state.epoch_start} (epoch {state.epoch}), but up to {last.end} was "
                f"archived in epoch {last.epoch}: archive to a new folder"
            )


def staged_path(path: Path) -> Path:
    """Where a file lies before it is committed: hidden from all who list the folder."""
    return path.with_name(f".{path.name}{STAGED_SUFFIX}")


def temporary_path(path: Path) -> Path:
    """Where it is written: each writer its own."""
    return path.with_name(f".{path.name}.{os.getpid()}.parquet{TEMPORARY_SUFFIX}")


def uncovered(start: int, end: int, covered: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of a range lies in none of the ascending ranges ``covered``."""
    left = []
    for low, high in covered:
        if start < low and start < end:
            left.append((start, min(low, end)))
        start = max(start, high)
    if start < end:
        left.append((start, end))
    return left


def archived_paths(root: Path) -> Sequence[Path]:
    """The files that count, in the order of the log: what a reader that must miss nothing opens. Raises OSError."""
    paths = []
    for manifest in Archive(root).manifests():
        for file in manifest.files:
            path = root / file.path
            paths.append(path if path.exists() else staged_path(path))
    return paths
