"""Parses the options of ``format("rmqha")``."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from rmqha.confkeys import with_nearest
from rmqha.pipeline.errors import OptionError
from rmqha.settings import Settings
from rmqha.times import parse_time

DEFAULT_BATCH_BYTES = 4 << 20
DEFAULT_MAX_TRIGGER_DELAY_SECONDS = 15 * 60.0
MAX_BATCH_BYTES = 1 << 30
"""The limit of a batch: Arrow's offsets inside a batch have 31 bits."""

SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
DURATION_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
EARLIEST, LATEST = "earliest", "latest"


class View(Enum):
    """What the rows are."""

    RECORDS = "records"
    SPLITS = "splits"
    STATS = "stats"
    VERIFY = "verify"
    COMPARE = "compare"
    QUEUES = "queues"


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


@dataclass(frozen=True, slots=True)
class Options:
    """The options, with their defaults. Offsets are numbers, or None for earliest and latest. Times are in
    milliseconds.

    ``settings`` are the settings of the store's node, if they are known: where its log is, and how its files are made.

    ``drop_behind`` is for a long scan next to a busy broker: pages of the log that were not in the page cache before
    are removed from it after they were read, except for the last two segments. A second query then reads from the disk
    again, so the option is off by default.
    """

    path: Path
    view: View = View.RECORDS
    columns: tuple[str, ...] = ()
    properties: Properties = Properties.RAW
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
    pushdown: bool = True
    replica: Path | None = None
    output: Path | None = None
    compression: Compression = Compression.ZSTD
    settings: Settings = Settings()


Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=Enum)


def parse_size(text: str) -> int:
    """Parse a number of bytes such as ``4096``, ``64m`` or ``1g``. Raises ValueError."""
    return _measured(text, SIZE_UNITS, int)


def parse_duration(text: str) -> float:
    """Parse a duration such as ``500ms``, ``10s`` or ``15m``; returns seconds. Raises ValueError."""
    return _measured(text, DURATION_UNITS, float)


def _measured(text: str, units: Mapping[str, int | float], kind: Callable[[float], Value]) -> Value:
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*?)\s*", text.lower())
    unit = units.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError(f"it is not a number with one of the units {' '.join(unit for unit in units if unit)}")
    return kind(int(match[1]) * unit)


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


def _choice(choices: type[Choice]) -> Callable[[str], Choice]:
    def parse(text: str) -> Choice:
        try:
            return choices(text.strip().lower())
        except ValueError:
            raise ValueError(f"it must be one of {', '.join(choice.value for choice in choices)}") from None

    return parse


def _local_path(text: str) -> Path:
    """An absolute path, because executors may have another working folder."""
    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        text = unquote(url.path)
    elif "://" in text:
        raise ValueError("it must be a folder that driver and executors see by the same path, or a file:// URL of it")
    return Path(os.path.abspath(text))


def _pushdown(text: str) -> bool:
    return text.strip().lower() == "auto" or _flag(text)


PARSERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "path": ("path", _local_path),
    "view": ("view", _choice(View)),
    "columns": ("columns", _words),
    "properties": ("properties", _choice(Properties)),
    "startingOffset": ("starting_offset", _offset),
    "endingOffset": ("ending_offset", _offset),
    "startingTimestamp": ("starting_timestamp", parse_time),
    "endingTimestamp": ("ending_timestamp", parse_time),
    "startingOffsetsByTimestampStrategy": ("timestamp_strategy", _choice(TimestampStrategy)),
    "readUpTo": ("read_up_to", _choice(ReadUpTo)),
    "splitBytes": ("split_bytes", _positive_size),
    "minPartitions": ("min_partitions", _count),
    "batchBytes": ("batch_bytes", _batch_size),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _positive_size),
    "maxRecordsPerTrigger": ("max_records_per_trigger", _count),
    "maxFilesPerTrigger": ("max_files_per_trigger", _count),
    "minBytesPerTrigger": ("min_bytes_per_trigger", parse_size),
    "maxTriggerDelay": ("max_trigger_delay", parse_duration),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "verifyBody": ("verify_body", _flag),
    "decompress": ("decompress", _flag),
    "onCorrupt": ("on_corrupt", _choice(OnCorrupt)),
    "dropBehind": ("drop_behind", _flag),
    "boundaries": ("boundaries", _choice(Boundaries)),
    "pushdown": ("pushdown", _pushdown),
    "replica": ("replica", _local_path),
    "output": ("output", _local_path),
    "compression": ("compression", _choice(Compression)),
}
SELECTIONS: dict[str, tuple[str, Callable[[str], object]]] = {
    "topic": ("topics", _texts),
    "topicPattern": ("topic_pattern", _pattern),
    "queueId": ("queue_ids", _numbers),
    "tags": ("tags", _texts),
}


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
    if texts:
        strange = [name for name in given if name.lower() in texts]
        known = PARSERS | SELECTIONS
        raise OptionError(f"there is no option {with_nearest(strange, known)}; the options are {', '.join(known)}")
    return Options(selection=selection, **values)  # type: ignore[arg-type]


def _parsed(texts: dict[str, str], parsers: Mapping[str, tuple[str, Callable[[str], object]]]) -> dict[str, object]:
    values = {}
    for option, (name, parse) in parsers.items():
        text = texts.pop(option.lower(), None)
        if text is None:
            continue
        try:
            values[name] = parse(text)
        except (ValueError, re.error) as error:
            raise OptionError(f"{option}={text}: {error}") from error
    return values
