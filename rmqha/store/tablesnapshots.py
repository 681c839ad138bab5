"""``<store>/rmqha/tables``: topics, groups, consumer and delay offsets as they were, by the log offset they belong to.

The log alone cannot tell them: a restore to an earlier place takes the last snapshot at or before it. A file is named
by its offset, 20 digits. Its content is JSON: ``offset``, ``time`` (ISO 8601, UTC), ``tables``, the texts of the files
of ``config`` by their names, and ``topicsUpTo``. The texts stay as they are: Java does not write strict JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from rmqha.kit.times import iso_time
from rmqha.store.deletions import DeletedTopicTable
from rmqha.store.log.mappedfile import DISK, FILE_NAME_DIGITS, Disk, file_name
from rmqha.store.metadata import (
    CONFIG_FOLDER,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from rmqha.store.nodestate import NODE_FOLDER

TABLES_FOLDER = "tables"
TABLES = (TopicConfigTable, SubscriptionGroupTable, ConsumerOffsetTable, DelayOffsetTable, DeletedTopicTable)
TOPICS_UP_TO = "topicsUpTo"


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The tables as they were when the log ended at ``offset``. ``time`` is ISO 8601.

    The table of topics has those of all messages before ``topics_up_to``: a slave's may be a little older than its log.
    """

    offset: int
    time: str
    tables: Mapping[str, str]
    topics_up_to: int


def snapshot_offsets(store: Path, disk: Disk = DISK) -> list[int]:
    """The offsets of the snapshots of a store, ascending. Raises OSError."""
    files = [Path(name) for name, _ in disk.files_in(store / NODE_FOLDER / TABLES_FOLDER)]
    names = [file.stem for file in files if file.suffix == ".json"]
    return sorted(int(name) for name in names if len(name) == FILE_NAME_DIGITS and name.isdecimal())


def snapshot_path(store: Path, offset: int) -> Path:
    """Where the snapshot of this offset is."""
    return store / NODE_FOLDER / TABLES_FOLDER / f"{file_name(offset)}.json"


def read_snapshot(store: Path, end: int) -> TableSnapshot | None:
    """The last snapshot at or before ``end``; None if there is none that can be read. Raises OSError."""
    for offset in reversed([offset for offset in snapshot_offsets(store) if offset <= end]):
        try:
            content = orjson.loads(snapshot_path(store, offset).read_bytes())
            tables = {str(name): str(text) for name, text in content["tables"].items()}
            up_to = content.get(TOPICS_UP_TO, offset)
            return TableSnapshot(offset, str(content["time"]), tables, up_to if isinstance(up_to, int) else offset)
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):  # the one before is as good
            continue
    return None


def read_tables(store: Path) -> dict[str, str]:
    """The texts of the table files of ``store`` that are there and can be parsed, by name. Raises OSError."""
    found: dict[str, str] = {}
    for kind in TABLES:
        try:
            raw = (store / CONFIG_FOLDER / kind.FILE_NAME).read_bytes()
            kind.parse(raw)
            found[kind.FILE_NAME] = raw.decode()
        except (FileNotFoundError, ValueError):
            continue
    return found


def write_snapshot(
    store: Path, offset: int, now_ms: int, tables: Mapping[str, str], topics_up_to: int | None = None
) -> None:
    """Write a snapshot durably. Without ``topics_up_to`` its topics are those of all messages. Raises OSError."""
    up_to = offset if topics_up_to is None else topics_up_to
    content = {"offset": offset, "time": iso_time(now_ms), "tables": dict(tables), TOPICS_UP_TO: up_to}
    DISK.replace(snapshot_path(store, offset), orjson.dumps(content))


def delete_old_snapshots(store: Path, min_offset: int) -> None:
    """Delete the snapshots that no restore needs: the log starts after them, and a later one is not after its start.

    Raises OSError.
    """
    before = [offset for offset in snapshot_offsets(store) if offset <= min_offset]
    for offset in before[:-1]:
        snapshot_path(store, offset).unlink(missing_ok=True)
