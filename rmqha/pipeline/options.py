"""Parses the options of ``format("rmqha")``."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from rmqha.kit.times import parse_time
from rmqha.pipeline.address import Access, TLSPaths, is_network, parse_address
from rmqha.pipeline.bodyformats import (
    DEFAULT_MAX_BODY_BYTES,
    KEYS,
    BodyFormat,
    Format,
    body_format,
    chosen,
    formats_by_topic,
)
from rmqha.pipeline.errors import OptionError
from rmqha.settings.confkeys import with_nearest
from rmqha.settings.settings import Settings

DEFAULT_BATCH_BYTES = 4 << 20
DEFAULT_MAX_TRIGGER_DELAY_SECONDS = 15 * 60.0
MAX_BATCH_BYTES = 1 << 30
"""The limit of a batch: Arrow's offsets inside a batch have 31 bits."""

SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
DURATION_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
EARLIEST, LATEST = "earliest", "latest"
INT64_RANGE = (-(1 << 63), 1 << 63)
RANGE_MARK = ".."


class View(Enum):
    """What the rows are."""

    RECORDS = "records"
    SPLITS = "splits"
    STATS = "stats"
    VERIFY = "verify"
    COMPARE = "compare"
    QUEUES = "queues"
    QUEUE_OFFSETS = "queueOffsets"
    CONSUMERS = "consumers"


class ReadUpTo(Enum):
    """Which offset of state.json is the end of the log."""

    CONFIRMED = "confirmed"
    FLUSHED = "flushed"
    WRITTEN = "written"


class OnCorrupt(Enum):
    """What to do with bytes that are not a record."""

    FAIL = "fail"
    SKIP = "skip"


class Boundaries(Enum):
    """How splits inside a file are found: with queues and plausible record starts, or by the sizes of all records."""

    AUTO = "auto"
    HOP = "hop"


class Properties(Enum):
    """What the column ``properties`` contains."""

    NONE = "none"
    RAW = "raw"
    MAP = "map"


class Compression(Enum):
    """The codec of Parquet files."""

    ZSTD = "zstd"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    GZIP = "gzip"
    NONE = "none"


class TimestampStrategy(Enum):
    """What to do if a starting timestamp is later than the last record."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are selected. None selects all. Ranges are half open; timestamps are in milliseconds."""

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    queue_offsets: tuple[int, int] | None = None
    born_timestamps: tuple[int, int] | None = None
    store_timestamps: tuple[int, int] | None = None

    def as_texts(self) -> dict[str, str]:
        """The options that select so."""
        texts = {
            "topic": _joined(self.topics),
            "topicPattern": self.topic_pattern,
            "queueId": _joined(self.queue_ids),
            "tags": _joined(self.tags),
            "queueOffset": range_text(self.queue_offsets),
            "bornTimestamp": range_text(self.born_timestamps),
            "storeTimestamp": range_text(self.store_timestamps),
        }
        return {name: text for name, text in texts.items() if text is not None}


def _joined(values: Iterable[object] | None) -> str | None:
    return None if values is None else ",".join(sorted(map(str, values)))


def range_text(limits: tuple[int, int] | None) -> str | None:
    """A half-open range as an option gives it; a limit that no number exceeds is left out."""
    if limits is None:
        return None
    return RANGE_MARK.join(
        "" if limit == bound else str(limit) for limit, bound in zip(limits, INT64_RANGE, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Options:
    """The options, with their defaults. Offsets are numbers, or None for earliest and latest. Times are in
    milliseconds.

    ``properties`` is None if it was not given: readers get a map, and archives what is stored. ``bodies`` says what the
    bodies of all messages are, ``body_schemas`` those of each topic; a body longer than ``max_body_bytes`` is not
    decoded.

    ``settings`` are the settings of the store's node, if they are known: where its log is, and how its files are made.

    ``pushdown`` lets Spark's filters select messages here. It is off by default: Spark 4.3 keeps what the last filter
    has selected for all other queries of the same DataFrame (spec/pipeline.md 2).

    ``drop_behind`` is for a long scan next to a busy broker: pages of the log that were not in the page cache before
    are removed from it after they were read, except for the last two segments. A second query then reads from the disk
    again, so the option is off by default.
    """

    path: Path
    view: View = View.RECORDS
    columns: tuple[str, ...] = ()
    properties: Properties | None = None
    bodies: BodyFormat | None = None
    body_schemas: tuple[tuple[str, BodyFormat], ...] = ()
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    selection: Selection = Selection()
    starting_offset: int | str = EARLIEST
    ending_offset: int | str = LATEST
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    timestamp_strategy: TimestampStrategy = TimestampStrategy.ERROR
    read_up_to: ReadUpTo = ReadUpTo.CONFIRMED
    split_bytes: int | None = None
    min_partitions: int = 1
    batch_bytes: int = DEFAULT_BATCH_BYTES
    max_bytes_per_trigger: int | None = None
    max_records_per_trigger: int | None = None
    max_files_per_trigger: int | None = None
    min_bytes_per_trigger: int = 0
    max_trigger_delay: float = DEFAULT_MAX_TRIGGER_DELAY_SECONDS
    fail_on_data_loss: bool = True
    verify_body: bool = False
    decompress: bool = False
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    drop_behind: bool = False
    boundaries: Boundaries = Boundaries.AUTO
    pushdown: bool = False
    replica: Path | None = None
    output: Path | None = None
    compression: Compression = Compression.ZSTD
    settings: Settings = Settings()
    access: Access = Access()
    acl_file: Path | None = None

    @property
    def is_remote(self) -> bool:
        """Whether the log is that of brokers, read over the network, and not the one of a folder."""
        return is_network(self.path)


def parse_size(text: str) -> int:
    """Parse a number of bytes such as ``4096``, ``64m`` or ``1g``. Raises ValueError."""
    return int(_measured(text, SIZE_UNITS))


def parse_duration(text: str) -> float:
    """Parse a duration such as ``500ms``, ``10s`` or ``15m``; returns seconds. Raises ValueError."""
    return float(_measured(text, DURATION_UNITS))


def _measured(text: str, units: Mapping[str, int | float]) -> int | float:
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*?)\s*", text.lower())
    unit = units.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError(f"it is not a number with one of the units {' '.join(unit for unit in units if unit)}")
    return int(match[1]) * unit


def _positive_size(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ValueError("it must be more than 0")
    return size


def _batch_size(text: str) -> int:
    size = _positive_size(text)
    if size > MAX_BATCH_BYTES:
        raise ValueError("it must not be more than 1g")
    return size


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("it must be at least 1")
    return number


def _flag(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("it must be true or false") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in (word.strip() for word in text.split(",")) if word)


def _texts(text: str) -> frozenset[str]:
    return frozenset(_words(text))


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(word) for word in _words(text))


def _range(parse: Callable[[str], int]) -> Callable[[str], tuple[int, int]]:
    def parse_range(text: str) -> tuple[int, int]:
        limits = text.split(RANGE_MARK)
        if len(limits) != 2:
            raise ValueError("it must be two limits, of which one may be left out: FROM..BEFORE")
        low, high = (parse(limit) if limit.strip() else bound for limit, bound in zip(limits, INT64_RANGE, strict=True))
        return low, high

    return parse_range


def _time(text: str) -> int:
    """A time of a message. Its number may be below 0, as a producer may have made it up."""
    return int(text) if text.strip().removeprefix("-").isdecimal() else parse_time(text)


def _pattern(text: str) -> str:
    re.compile(text)
    return text


def _offset(text: str) -> int | str:
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if not word.isdecimal():
        raise ValueError("it must be earliest, latest or an offset in the log")
    return int(word)


def _local_path(text: str) -> Path:
    """An absolute path, because executors may have another working folder."""
    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        text = unquote(url.path)
    elif "://" in text:
        raise ValueError("it must be a folder that driver and executors see by the same path, or a file:// URL of it")
    return Path(os.path.abspath(text))


def _store(text: str) -> Path:
    """The path of a store, or the address of brokers."""
    if is_network(text):
        parse_address(text)
        return Path(text)
    return _local_path(text)


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if not seconds:
        raise ValueError("it must be more than 0")
    return seconds


class Parser(NamedTuple):
    """How the text of an option is read, and the field that has the value."""

    field: str
    parse: Callable[[str], object]
    """Raises ValueError, re.error."""


PARSERS: dict[str, Parser] = {
    "path": Parser("path", _store),
    "view": Parser("view", partial(chosen, View)),
    "columns": Parser("columns", _words),
    "properties": Parser("properties", partial(chosen, Properties)),
    "startingOffset": Parser("starting_offset", _offset),
    "endingOffset": Parser("ending_offset", _offset),
    "startingTimestamp": Parser("starting_timestamp", parse_time),
    "endingTimestamp": Parser("ending_timestamp", parse_time),
    "startingOffsetsByTimestampStrategy": Parser("timestamp_strategy", partial(chosen, TimestampStrategy)),
    "readUpTo": Parser("read_up_to", partial(chosen, ReadUpTo)),
    "splitBytes": Parser("split_bytes", _positive_size),
    "minPartitions": Parser("min_partitions", _count),
    "batchBytes": Parser("batch_bytes", _batch_size),
    "maxBytesPerTrigger": Parser("max_bytes_per_trigger", _positive_size),
    "maxRecordsPerTrigger": Parser("max_records_per_trigger", _count),
    "maxFilesPerTrigger": Parser("max_files_per_trigger", _count),
    "minBytesPerTrigger": Parser("min_bytes_per_trigger", parse_size),
    "maxTriggerDelay": Parser("max_trigger_delay", parse_duration),
    "failOnDataLoss": Parser("fail_on_data_loss", _flag),
    "verifyBody": Parser("verify_body", _flag),
    "bodySchemas": Parser("body_schemas", formats_by_topic),
    "bodyMaxBytes": Parser("max_body_bytes", _positive_size),
    "decompress": Parser("decompress", _flag),
    "onCorrupt": Parser("on_corrupt", partial(chosen, OnCorrupt)),
    "dropBehind": Parser("drop_behind", _flag),
    "boundaries": Parser("boundaries", partial(chosen, Boundaries)),
    "pushdown": Parser("pushdown", _flag),
    "replica": Parser("replica", _local_path),
    "output": Parser("output", _local_path),
    "compression": Parser("compression", partial(chosen, Compression)),
    "aclFile": Parser("acl_file", _local_path),
}
ACCESS: dict[str, Parser] = {
    "maxRate": Parser("max_rate", _positive_size),
    "nodeTimeout": Parser("silence_seconds", _seconds),
}
USES_TLS: dict[str, Parser] = {"tls": Parser("tls", _flag)}
TLS: dict[str, Parser] = {
    "tlsCa": Parser("authorities", str),
    "tlsCert": Parser("certificate", str),
    "tlsKey": Parser("key", str),
}
"""Paths on each executor."""
SELECTIONS: dict[str, Parser] = {
    "topic": Parser("topics", _texts),
    "topicPattern": Parser("topic_pattern", _pattern),
    "queueId": Parser("queue_ids", _numbers),
    "tags": Parser("tags", _texts),
    "queueOffset": Parser("queue_offsets", _range(int)),
    "bornTimestamp": Parser("born_timestamps", _range(_time)),
    "storeTimestamp": Parser("store_timestamps", _range(_time)),
}
BODIES = dict(zip(("bodyFormat", "bodySchema", "bodyDescriptor", "bodyMessage"), KEYS, strict=True))
"""Options that describe bodies, with their names in ``bodyformats``."""
KNOWN = (*PARSERS, *SELECTIONS, *BODIES, *ACCESS, *USES_TLS, *TLS)
"""All options."""


KAFKA_NAMES = {
    "subscribe": "topic",
    "assign": "topic and queueId",
    "subscribePattern": "topicPattern",
    "startingOffsets": "startingOffset",
    "endingOffsets": "endingOffset",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "minBytesPerTrigger",
    "kafka.bootstrap.servers": "load('namesrv://HOST:PORT')",
}
"""Options of Spark's Kafka source, and ours with the same meaning."""
TABLE_REMEDY = (
    "a table of the catalog keeps no options for a Python data source (Spark 4.3): "
    "CREATE TEMPORARY VIEW ... USING rmqha OPTIONS (path '...') does"
)


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse options from their names, in upper or lower case, and texts. Raises OptionError for an unknown option or an
    invalid value.
    """
    texts = {name.lower(): text for name, text in given.items()}
    if "provider" in texts:  # so Spark asks when it makes a table
        raise OptionError(TABLE_REMEDY)
    if "paths" in texts:
        raise OptionError("one store at a time: load() takes one path")
    if "dir" in texts:
        texts["path"] = texts.pop("dir")  # where both are there, path is where Spark would keep a table's files
    if not texts.get("path"):
        raise OptionError(f"load() needs the path of a store, or of its commitlog; {TABLE_REMEDY}")
    # What the parsers give has the types of the fields that they are named by; mypy cannot know that.
    values = _parsed(texts, PARSERS)
    selection = Selection(**_parsed(texts, SELECTIONS))  # type: ignore[arg-type]
    bodies = _body_format(texts)
    if bodies is not None and "body_schemas" in values:
        raise OptionError("bodyFormat is for the messages of all topics, bodySchemas for each topic: give one of them")
    access = _access(texts)
    if texts:
        kafka = {name.lower(): ours for name, ours in KAFKA_NAMES.items()}
        strange = [name for name in given if name.lower() in texts]
        hints = (
            f"{name} of Kafka's source (use {kafka[name.lower()]})"
            if name.lower() in kafka
            else with_nearest([name], KNOWN)
            for name in strange
        )
        raise OptionError(f"there is no option {', '.join(hints)}; the options are {', '.join(KNOWN)}")
    return Options(selection=selection, bodies=bodies, access=access, **values)  # type: ignore[arg-type]


def _body_format(texts: dict[str, str]) -> BodyFormat | None:
    """What the options say of bodies; takes them from ``texts``. Raises OptionError."""
    given = {key: texts.pop(option.lower()) for option, key in BODIES.items() if option.lower() in texts}
    if not given:
        return None
    if "format" not in given:
        raise OptionError(f"bodyFormat is not given: it must be one of {', '.join(one.value for one in Format)}")
    try:
        return body_format(given)
    except ValueError as error:
        said = " ".join(f"{option}={given[key][:100]}" for option, key in BODIES.items() if key in given)
        raise OptionError(f"{said}: {error}") from error


def _access(texts: dict[str, str]) -> Access:
    """How nodes are reached over the network. A PEM file means TLS."""
    uses_tls = _parsed(texts, USES_TLS).get("tls")
    files = _parsed(texts, TLS)
    if files and uses_tls is False:
        raise OptionError(
            f"tls=false: {', '.join(name for name, parser in TLS.items() if parser.field in files)} need TLS"
        )
    tls = TLSPaths(**files) if files or uses_tls else None  # type: ignore[arg-type]  # as above
    return Access(tls=tls, **_parsed(texts, ACCESS))  # type: ignore[arg-type]  # as above


def _parsed(texts: dict[str, str], parsers: Mapping[str, Parser]) -> dict[str, object]:
    values = {}
    for option, parser in parsers.items():
        text = texts.pop(option.lower(), None)
        if text is None:
            continue
        try:
            values[parser.field] = parser.parse(text)
        except (ValueError, re.error) as error:
            raise OptionError(f"{option}={text}: {error}") from error
    return values
