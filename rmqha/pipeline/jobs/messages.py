"""Reads the messages of an archive one by one, to send them again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rmqha.pipeline.encode import host_of, milliseconds_of
from rmqha.pipeline.errors import one_line
from rmqha.pipeline.jobs.logorder import ROWS_BYTES, batches_in_log_order
from rmqha.pipeline.jobs.manifest import Archive, ArchivedFile, archived_path, existing_archive
from rmqha.pipeline.jobs.restore import NotRestorable
from rmqha.pipeline.schema import RAW_RECORD
from rmqha.pipeline.sqltypes import STRING_MAP
from rmqha.store.errors import StoreError
from rmqha.wire.properties import format_properties
from rmqha.wire.record import (
    COMPRESSED_FLAG,
    COMPRESSION_TYPE_MASK,
    LOOPBACK,
    Blank,
    Record,
    RecordError,
    body_crc,
    decode_record,
)

COLUMNS = (
    "topic",
    "body",
    "physicalOffset",
    "queueId",
    "queueOffset",
    "flag",
    "sysFlag",
    "bodyCRC",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "reconsumeTimes",
    "tags",
    "keys",
    "properties",
    "totalSize",
    RAW_RECORD,
)
MIN_COLUMNS = COLUMNS[:3]
NOT_EXACT = "the archive does not keep its topic or properties exactly: they are not UTF-8"


def is_archive(root: Path) -> bool:
    """Whether the folder is an archive."""
    return any(Archive(root).covered()) if root.is_dir() else False


def archived_messages(root: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[int, Record, str | None]]:
    """The messages of an archive from ``start`` to before ``end``, in the order of the log, with their offsets.

    The third value says why a message is not known exactly. Columns that the archive does not have count as empty. The
    archive may have gaps. Raises NoStore, NotRestorable without the columns topic, body and physicalOffset, StoreError,
    OSError.
    """
    for manifest in existing_archive(root).manifests():
        for file in manifest.files:
            if file.end > start and (end is None or file.start < end):
                for message in _messages(root, file):
                    if message[0] >= start and (end is None or message[0] < end):
                        yield message


def _messages(root: Path, file: ArchivedFile) -> Iterator[tuple[int, Record, str | None]]:
    path = archived_path(root, file)
    try:
        with pq.ParquetFile(path) as opened:
            names = [name for name in COLUMNS if name in opened.schema_arrow.names]
            missing = set(MIN_COLUMNS) - set(names)
            if missing:
                raise NotRestorable(f"{path} has no column {sorted(missing)[0]}: its messages cannot be sent")
            is_map = "properties" in names and opened.schema_arrow.field("properties").type == STRING_MAP
            for batch in batches_in_log_order(opened, names, ROWS_BYTES):
                for row in range(len(batch)):
                    yield _message({name: batch[name][row].as_py() for name in names}, is_map)
    except (pa.ArrowException, RecordError) as error:
        raise StoreError(f"{path} is damaged: {one_line(error)}") from error


def _message(row: dict[str, Any], is_map: bool) -> tuple[int, Record, str | None]:
    raw = row.get(RAW_RECORD)
    if raw is not None:
        record = decode_record(raw)
        assert not isinstance(record, Blank), "a row is a message"
        return row["physicalOffset"], record, None
    flags, body = row.get("sysFlag") or 0, row["body"]
    is_decompressed = bool(flags & COMPRESSED_FLAG) and row.get("bodyCRC") != body_crc(body)
    if is_decompressed:
        flags &= ~(COMPRESSED_FLAG | COMPRESSION_TYPE_MASK)
    born_host = host_of(row["bornHost"]) if row.get("bornHost") else None
    record = Record(
        topic=row["topic"],
        body=body,
        properties_stored=_properties(row, is_map),
        queue_id=row.get("queueId") or 0,
        flag=row.get("flag") or 0,
        queue_offset=row.get("queueOffset") or 0,
        physical_offset=row["physicalOffset"],
        sys_flag=flags,
        born_timestamp=milliseconds_of(row.get("bornTimestamp")),
        born_host=born_host or LOOPBACK,
        store_timestamp=milliseconds_of(row.get("storeTimestamp")),
        reconsume_times=row.get("reconsumeTimes") or 0,
    )
    text = record.topic + record.properties_stored
    return row["physicalOffset"], record, NOT_EXACT if "\ufffd" in text and RAW_RECORD not in row else None


def _properties(row: dict[str, Any], is_map: bool) -> str:
    stored = row.get("properties")
    if isinstance(stored, str):
        return stored
    known = dict(stored) if is_map and stored is not None else {"TAGS": row.get("tags"), "KEYS": row.get("keys")}
    return format_properties({name: value for name, value in known.items() if name and value})
