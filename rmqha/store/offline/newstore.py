"""Makes a new store in a folder of its own, which gets its name when the store is complete.

The store is made in ``.NAME.incomplete`` next to the output. If the process is killed before it is complete, the output
stays as it was. The next run recognizes the folder by a marker file, removes what is in it, and starts again.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from rmqha.store.errors import NoStore, StoreError
from rmqha.store.log.lockfile import LockFile
from rmqha.store.log.mappedfile import has_segments, sync_file_system, sync_folder
from rmqha.store.nodestate import NODE_FOLDER, state_path

INCOMPLETE_FILE = "incomplete.json"
"""In ``rmqha`` of a store that is being made. It says what is made, and shows that the folder may be removed."""
LOG_FOLDER, ARCHIVE_MARK = "commitlog", "_manifest"
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")
"""What is left of ``s3://bucket`` as the name of a folder."""
ROOM_LEFT_BYTES = 64 << 20
"""What a new store leaves free on the disk."""


class NoRoom(StoreError):
    """The disk is too small for the new store."""


class OutputExists(NoStore):
    """The output exists already. It is never overwritten."""


class WrongPlace(NoStore):
    """The output is inside a store or an archive, which it would damage, or an address instead of a folder."""


def check_output(source: Path, output: Path) -> None:
    """Raises OutputExists if the output is not empty, or inside the source; WrongPlace; OSError."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise OutputExists(f"{output} exists and is not empty: name a new folder")
    if source.resolve() == output.resolve() or source.resolve() in output.resolve().parents:
        raise OutputExists(f"{output} is inside the source {source}: name a folder outside it")
    check_place(output)


def check_place(output: Path) -> None:
    """Call it before a file or a folder is written where the user says. Links are followed.

    Raises WrongPlace if it is a store, or inside a store, a folder of segments or an archive, whether or not that is
    the source, or if it is an address; OSError.
    """
    place = output.resolve()
    for folder in (place, *place.parents):
        if SCHEME.fullmatch(folder.name) and not folder.exists():
            raise WrongPlace(f"{output} is an address, and this writes to folders: mount it, or copy the files to it")
        if (what := _what_is(folder)) and not (what == "archive" and folder == place):
            inside = "is" if folder == place else "is inside"
            raise WrongPlace(f"{output} {inside} the {what} {folder}: name a place outside it")


def _what_is(folder: Path) -> str | None:
    """What sort of folder of ours, or of Java's, it is."""
    if state_path(folder).exists() or has_segments(folder / LOG_FOLDER):
        return "store"
    if has_segments(folder):
        return "folder of segments"
    return "archive" if (folder / ARCHIVE_MARK).is_dir() else None


@contextmanager
def new_store(output: Path, facts: Mapping[str, object]) -> Iterator[Path]:
    """The folder in which to make the store. It becomes ``output``, durably, if nothing fails; else it is removed.

    ``facts`` say what is made. Raises OutputExists, StoreInUse if another process makes it, OSError.
    """
    output = output.absolute()
    with _marked_folder(output, facts) as folder:
        yield folder
        sync_file_system(folder)
        with suppress(FileNotFoundError):
            output.rmdir()  # it is empty: ``check_output`` has seen to that
        folder.rename(output)
        sync_folder(output.parent)
        (output / NODE_FOLDER / INCOMPLETE_FILE).unlink()


@contextmanager
def _marked_folder(output: Path, facts: Mapping[str, object]) -> Iterator[Path]:
    folder = output.with_name(f".{output.name}.incomplete")
    output.parent.mkdir(parents=True, exist_ok=True)
    marker = folder / NODE_FOLDER / INCOMPLETE_FILE
    if not marker.exists() and any(path.is_file() for path in folder.rglob("*")):
        raise OutputExists(f"{folder} exists, but rmqha did not create it: move it away")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_bytes(orjson.dumps(dict(facts)))
    lock = LockFile(marker)
    try:
        _empty(folder, marker)
        yield folder
    except BaseException:  # of any kind: an incomplete store is useless
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        lock.release()


def _empty(folder: Path, marker: Path) -> None:
    """Remove the leftovers of a process that was killed."""
    for path in [*folder.iterdir(), *marker.parent.iterdir()]:
        if path.is_dir() and path != marker.parent:
            shutil.rmtree(path)
        elif not path.is_dir() and path != marker:
            path.unlink()
