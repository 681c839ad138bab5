"""Puts rebuilt queues and index in place of the old ones, or removes those that no longer match the log.

Keeps their file sizes, also if a rebuild is interrupted.

Uses no reactor: ``rmqha rebuild`` and the job of this name do this.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from rmqha.settings.settings import Settings
from rmqha.store.derived.batchqueue import BATCH_QUEUE_FOLDER, BATCH_UNIT_SIZE
from rmqha.store.derived.consumequeue import CONSUME_QUEUE_FOLDER, new_queue_size
from rmqha.store.derived.dispatchmark import DispatchMark, remove_mark
from rmqha.store.derived.geometry import Geometry
from rmqha.store.derived.index import INDEX_FOLDER, new_geometry
from rmqha.store.derived.queueends import ends_path
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodestate import NODE_FOLDER

SIZES_FILE = "derived-sizes.json"
"""In ``rmqha`` during a rebuild: the file sizes of queues and index, which the old files had."""
DOUBTED_FILE = "derived-doubted"
"""In ``rmqha`` while bytes of the log are replaced, and until queues and index are removed if they do not match."""
STAGING_FOLDER = "rebuild"
"""In ``rmqha`` during a rebuild: the new queues and index, and later the old ones.

Also those of a log set aside, and of deleted topics.
"""
FOLDERS = (CONSUME_QUEUE_FOLDER, BATCH_QUEUE_FOLDER, INDEX_FOLDER)
RETIRED = "old"
"""How the names of folders in it begin that hold what is to be removed."""
NOTED_SIZES = (
    "mapped_file_size_consume_queue",
    "mapper_file_size_batch_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
)


def settings_for_rebuild(root: Path, settings: Settings, disk: Disk = DISK) -> Settings:
    """The settings with the file sizes for a rebuild: as configured, else as the files are. Raises OSError."""
    made = index_geometry(root, settings, disk)
    size = new_queue_size(root / CONSUME_QUEUE_FOLDER, settings.mapped_file_size_consume_queue, disk)
    batch_size = settings.mapper_file_size_batch_consume_queue
    return replace(
        settings,
        mapped_file_size_consume_queue=size,
        mapper_file_size_batch_consume_queue=new_queue_size(
            root / BATCH_QUEUE_FOLDER, batch_size, disk, BATCH_UNIT_SIZE
        ),
        max_hash_slot_num=made.slots,
        max_index_num=made.entries,
    )


def note_sizes(root: Path, settings: Settings, disk: Disk = DISK) -> None:
    """Write the sizes for a rebuild to a file, before the files that show them are removed. Raises OSError."""
    sizes = {name: getattr(settings, name) for name in NOTED_SIZES}
    disk.replace(root / NODE_FOLDER / SIZES_FILE, orjson.dumps(sizes))


def noted_sizes(root: Path, settings: Settings, disk: Disk = DISK) -> Settings:
    """The settings. Sizes that are not configured are those of a rebuild that did not end. Raises OSError."""
    try:
        noted = orjson.loads(disk.read(root / NODE_FOLDER / SIZES_FILE))
        wanted = [name for name in NOTED_SIZES if name in noted and getattr(settings, name) is None]
        sizes: dict[str, Any] = {name: int(noted[name]) for name in wanted}
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # no rebuild was interrupted, or the file is damaged
        return settings
    return replace(settings, **sizes) if all(size > 0 for size in sizes.values()) else settings


def forget_sizes(root: Path, disk: Disk = DISK) -> None:
    """Remove the written sizes, once the new files show them. Raises OSError."""
    if disk.exists(root / NODE_FOLDER / SIZES_FILE):
        disk.remove(root / NODE_FOLDER / SIZES_FILE)
    disk.remove_if_empty(root / NODE_FOLDER)


def doubt(root: Path, disk: Disk = DISK) -> None:
    """Note durably that queues and index may not match the log: the next start removes them. Raises OSError."""
    disk.replace(root / NODE_FOLDER / DOUBTED_FILE, b"")


def is_doubted(root: Path, disk: Disk = DISK) -> bool:
    """Whether queues and index may not match the log."""
    return disk.exists(root / NODE_FOLDER / DOUBTED_FILE)


def trust(root: Path, disk: Disk = DISK) -> None:
    """Take ``doubt`` back. Raises OSError."""
    disk.remove_durably(root / NODE_FOLDER / DOUBTED_FILE)


def retire_derived(root: Path, disk: Disk = DISK) -> Path:
    """Move queues and index to a new folder, which is returned. However many there are, this takes no time.

    Remove the folder with ``remove_retired``. The next start does it, too (``remove_staging``). Raises OSError.
    """
    folder = new_retired_folder(root, disk)
    for name in FOLDERS:
        if disk.exists(root / name):
            disk.rename(root / name, folder / name)
        else:  # there may be a link that leads nowhere
            disk.remove(root / name, missing_ok=True)
    disk.remove(ends_path(root), missing_ok=True)
    return folder


def retire_topic(root: Path, topic: str, folder: Path, disk: Disk = DISK) -> Iterator[Path]:
    """Move the queues of a topic to a ``new_retired_folder``. Raises OSError.

    Gives the folders that it has changed. Flush them: before that, the queues may come back when power is lost.
    """
    for name in (CONSUME_QUEUE_FOLDER, BATCH_QUEUE_FOLDER):
        if disk.is_folder(root / name / topic):
            disk.make_folder(folder / name)
            disk.rename(root / name / topic, folder / name / topic)
            yield root / name


def new_retired_folder(root: Path, disk: Disk) -> Path:
    """A new folder for what is to be removed with ``remove_retired``. Raises OSError."""
    staging = root / NODE_FOLDER / STAGING_FOLDER
    folder = next(path for number in count() if not disk.exists(path := staging / f"{RETIRED}-{number}"))
    disk.make_folder(folder)
    return folder


def remove_retired(folder: Path, disk: Disk = DISK) -> None:
    """Remove what ``retire_derived`` or ``retire_topic`` has moved. Raises OSError."""
    disk.remove_tree(folder)
    disk.remove_if_empty(folder.parent)


def remove_if_doubted(root: Path, settings: Settings, disk: Disk = DISK) -> bool:
    """Remove queues and index that may not match the log; dispatch builds them again, with the same sizes.

    The caller has locked the store. Returns whether they were removed. Raises OSError.
    """
    if not is_doubted(root, disk):
        return False
    note_sizes(root, settings_for_rebuild(root, settings, disk), disk)
    DispatchMark(0).write(root, disk)
    for name in FOLDERS:
        disk.remove_tree(root / name)
    disk.remove(ends_path(root), missing_ok=True)
    disk.sync_folder(root)
    trust(root, disk)
    return True


def remove_staging(root: Path, disk: Disk = DISK) -> bool:
    """Remove what a killed rebuild or reseed left: queues and index that a node builds again from the log.

    The caller has locked the store. Returns whether there was something. Raises OSError.
    """
    folder = root / NODE_FOLDER / STAGING_FOLDER
    if not disk.exists(folder):
        return False
    disk.remove_tree(folder)
    disk.remove_if_empty(folder.parent)
    return True


def index_geometry(root: Path, settings: Settings, disk: Disk = DISK) -> Geometry:
    """The geometry of new index files. Raises OSError."""
    return new_geometry(root / INDEX_FOLDER, settings.max_hash_slot_num, settings.max_index_num, disk)


def swap(staged: Path, root: Path, settings: Settings) -> None:
    """Move queues and index from ``staged``, where they are on the disk, to ``root``. The old ones go to ``staged``.

    ``settings`` have the sizes of the new files. If the process is killed in between, the next start of the node builds
    all of them. Raises OSError.
    """
    note_sizes(root, settings)
    DispatchMark(0).write(root)
    DISK.remove(ends_path(root), missing_ok=True)
    for name in FOLDERS:
        if os.path.lexists(root / name):  # also a link that leads nowhere
            DISK.rename(root / name, staged / f"old-{name}")
    DISK.sync_folder(root)
    for name in (INDEX_FOLDER, BATCH_QUEUE_FOLDER, CONSUME_QUEUE_FOLDER):
        if DISK.exists(staged / name):
            DISK.rename(staged / name, root / name)
    DISK.sync_folder(root)
    remove_mark(root)
    forget_sizes(root)
