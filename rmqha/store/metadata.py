"""``config/*.json``: what a broker knows besides its messages (spec/store.md 13, spec/remoting.md 5).

Each file is a table, and the answers to requests for whole tables have the same content (spec/remoting.md 9.1). A
table's ``from_json`` and ``to_json`` take and return what ``rmqha.wire.fastjson`` reads and writes.

Fields that we do not know, such as the attributes of 5.x, are kept as they are: of a table, of its version and of each
row (``unknown``). A table that is read and written again loses none of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

from rmqha.kit.steps import Steps, at_once
from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.wire.beans import (
    LONG_BITS,
    Long,
    field_names,
    java,
    read_bean,
    read_integer,
    read_mapping,
    read_text,
    shorten,
    unknown_fields,
    with_default,
    with_unknown,
)
from rmqha.wire.fastjson import (
    ROWS_AT_ONCE,
    Document,
    Rows,
    dumps_pretty_by_rows,
    dumps_strict,
    loads_lenient,
    whole,
)

CONFIG_FOLDER = "config"
BACKUP_SUFFIX = ".bak"
TOPIC_GROUP_SEPARATOR = "@"

DATA_VERSION: Final = "dataVersion"
TOPIC_TABLE: Final = "topicConfigTable"
GROUP_TABLE: Final = "subscriptionGroupTable"
OFFSET_TABLE: Final = "offsetTable"

ATTRIBUTES: Final = "attributes"
"""The unknown field of topics and groups that has a map of texts, in 5.x."""
QUEUE_TYPE: Final = "queue.type"
BATCH_CQ: Final = "BatchCQ"

PERM_PRIORITY = 8
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


class TopicFilterType(Enum):
    """Whether a message of the topic has one tag or several."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


Value = TypeVar("Value")


def _unknown() -> Any:
    """A dataclass field for the unknown fields of a bean."""
    return java(omit=True, default_factory=dict, hash=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a table's content (spec/store.md 13.3).

    Versions are equal if both numbers and all unknown fields are equal. One of these is the stateVersion of 5.x.

    In Java a new version, and one whose timestamp is missing, has the current time. Here the timestamp is 0, which no
    Java broker has.
    """

    counter: Long = 0
    timestamp: Long = 0
    """Milliseconds since the epoch."""
    unknown: Mapping[Any, Any] = _unknown()

    @property
    def state_version(self) -> int:
        """The epoch of the master that sent it; 0 if it sent none."""
        found = self.unknown.get("stateVersion", 0)
        return found if isinstance(found, int) else 0

    def next(self, now_ms: int) -> "DataVersion":
        """The version after a change: Java's nextVersion."""
        return replace(self, counter=self.counter + 1, timestamp=now_ms)

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """From Java's form. None and missing fields give the defaults. Raises ValueError."""
        return _read_row(cls, {} if content is None else content)

    @classmethod
    def from_stranger(cls, content: Any) -> Self:
        """As ``from_json``, without unknown fields except a stateVersion, because a stranger could send a lot."""
        content = {} if content is None else content
        version = read_bean(cls, content)
        state_version = content.get("stateVersion")
        return replace(version, unknown={"stateVersion": state_version}) if isinstance(state_version, int) else version

    def to_json(self) -> dict[str, Any]:
        """In Java's form."""
        return with_unknown({"counter": self.counter, "timestamp": self.timestamp}, self.unknown)


def _filter_type(value: Any, _: Any) -> TopicFilterType:
    """An unknown filter type counts as SINGLE_TAG. Java reads it as null, and makes no use of it."""
    return TopicFilterType.__members__.get(read_text(value), TopicFilterType.SINGLE_TAG)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic (spec/remoting.md 5.1); ``perm`` is made of the PERM bits."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = java(read=_filter_type, default=TopicFilterType.SINGLE_TAG)
    topic_sys_flag: int = 0
    order: bool = False
    unknown: Mapping[Any, Any] = _unknown()
    """The fields that we do not know, such as ``attributes``."""

    @classmethod
    def from_json(cls, content: Any, topic_name: str = "") -> Self:
        """From Java's form. A missing name is ``topic_name``. Other missing fields get Java's defaults.

        Raises ValueError.
        """
        return _read_row(cls, with_default(content, "topicName", topic_name))

    def to_json(self) -> dict[str, Any]:
        """In Java's form and order."""
        known = {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type.name,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }
        return with_unknown(known, self.unknown)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """A consumer group (spec/remoting.md 2.13)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    unknown: Mapping[Any, Any] = _unknown()
    """The fields that we do not know, such as ``attributes`` and ``consumeMessageOrderly``."""

    @classmethod
    def from_json(cls, content: Any, group_name: str = "") -> Self:
        """From Java's form. A missing name is ``group_name``. Other missing fields get Java's defaults.

        Raises ValueError.
        """
        return _read_row(cls, with_default(content, "groupName", group_name))

    def to_json(self) -> dict[str, Any]:
        """In Java's form and order."""
        known = {
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "groupName": self.group_name,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        return with_unknown(known, self.unknown)


def _read_row(kind: type[Value], content: Any) -> Value:
    """Read a bean and its unknown fields. Raises ValueError."""
    row, of_kind = read_bean(kind, content), cast(Hashable, kind)
    unknown = unknown_fields(field_names(of_kind), content)
    return replace(cast(Any, row), unknown=unknown) if unknown else row


def is_batch_queue(topic: TopicConfig) -> bool:
    """Whether this topic's queues are batch consume queues of 5.x, in ``batchconsumequeue/``."""
    attributes = topic.unknown.get(ATTRIBUTES)
    return isinstance(attributes, dict) and attributes.get(QUEUE_TYPE) == BATCH_CQ


def unknown_bytes(row: TopicConfig | SubscriptionGroupConfig) -> int:
    """How many bytes the row's unknown fields take as JSON."""
    return len(dumps_strict(row.unknown)) if row.unknown else 0


class ConfigTable(ABC):
    """A table that is a file of the config folder (spec/store.md 13.4)."""

    FILE_NAME: ClassVar[str]
    KNOWN: ClassVar[frozenset[str]]
    """Java's names of the fields that we know."""
    unknown: Mapping[Any, Any]
    """The other fields."""

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """From Java's form. Raises ValueError."""
        return at_once(cls.reading(content))

    @classmethod
    @abstractmethod
    def reading(cls, content: Any) -> Steps[Self]:
        """As ``from_json``, in steps."""

    @abstractmethod
    def document(self) -> Document:
        """In Java's form and order, with the rows of a table made one by one."""

    @abstractmethod
    def snapshot(self) -> Self:
        """A copy of the table for another thread: later changes do not reach it. Frozen rows are shared."""

    def to_json(self) -> dict[str, Any]:
        """In Java's form and order."""
        return whole(self.document())

    @classmethod
    def read(cls, folder: Path, disk: Disk = DISK) -> Self:
        """The table of this config folder. It is empty if the folder has no file of it.

        If the file is missing, empty or invalid, the backup is read, as Java does. Raises StoreError if the backup is
        invalid too, OSError.
        """
        return TableFile(folder, cls, disk).read()

    def write(self, folder: Path, disk: Disk = DISK) -> None:
        """Replace the file of this config folder, durably. A reader finds a whole file at any moment.

        The previous file becomes the backup. If that file is invalid, the backup stays as it is. Raises OSError.
        """
        TableFile(folder, type(self), disk).write(self)

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """From a file's content. Raises ValueError."""
        return cls.from_json(loads_lenient(raw))


Row = TypeVar("Row", bound=TopicConfig | SubscriptionGroupConfig)


class NamedTable(ConfigTable, Generic[Row]):
    """A table of named rows, whose content has a version."""

    data_version: DataVersion
    unknown_bytes: int
    """How many bytes the unknown fields of all rows took as JSON when the table was read."""

    @abstractmethod
    def changed(self, data_version: DataVersion, rows: dict[str, Row]) -> Self:
        """This table with another version and these rows."""

    @property
    @abstractmethod
    def rows(self) -> dict[str, Row]:
        """The rows by name."""


Table = TypeVar("Table", bound=ConfigTable)


class TableFile(Generic[Table]):
    """A table's file in a config folder, and its backup. Read and written by one thread at a time.

    If the file has not changed since it was read or written here, it is sound. It can become the backup unread.
    """

    def __init__(self, folder: Path, kind: type[Table], disk: Disk = DISK) -> None:
        self._kind = kind
        self._disk = disk
        self._path = folder / kind.FILE_NAME
        self._backup = folder / (kind.FILE_NAME + BACKUP_SUFFIX)
        self._sound: tuple[int, ...] | None = None

    @property
    def is_there(self) -> bool:
        """Whether there is a file, sound or not."""
        return self._disk.exists(self._path)

    def read(self) -> Table:
        """As ``ConfigTable.read``."""
        try:
            table = self._kind.parse(self._disk.read(self._path))
        except (FileNotFoundError, ValueError):
            return self._read_backup()
        self._sound = self._identity()
        return table

    def _read_backup(self) -> Table:
        try:
            raw = self._disk.read(self._backup)
            return self._kind.parse(raw) if raw else self._kind.from_json({})
        except FileNotFoundError:
            return self._kind.from_json({})
        except ValueError as error:
            reason = f"is not a valid {self._kind.FILE_NAME} ({error})"
            raise StoreError(f"{self._backup} {reason}, and {self._path} is missing or invalid too") from error

    def write(self, table: Table, breathe: Callable[[], object] = lambda: None) -> None:
        """As ``ConfigTable.write``. ``breathe`` is called every few rows, so that another thread can run."""
        content = dumps_pretty_by_rows(table.document(), breathe)
        disk = self._disk
        disk.make_folder(self._path.parent)
        temporary = self._path.with_name(self._path.name + ".tmp")
        disk.remove(temporary, missing_ok=True)
        disk.write_new(temporary, [content])
        if self._has_sound_file():
            self._keep_previous()
        disk.rename(temporary, self._path)
        disk.sync_folder(self._path.parent)
        self._sound = self._identity()

    def _has_sound_file(self) -> bool:
        """Whether the present file is sound, so that it can become the backup."""
        try:
            if self._sound is not None and self._identity() == self._sound:
                return True
            self._kind.parse(self._disk.read(self._path))
        except (FileNotFoundError, ValueError):
            return False
        return True

    def _keep_previous(self) -> None:
        """Make the present file the backup. It has both names until the new file replaces it under the first."""
        temporary = self._backup.with_name(self._backup.name + ".tmp")
        self._disk.remove(temporary, missing_ok=True)
        try:
            self._disk.link(self._path, temporary)
        except OSError:  # a file system without links
            self._disk.replace(self._backup, self._disk.read(self._path))
        else:
            self._disk.rename(temporary, self._backup)

    def _identity(self) -> tuple[int, ...]:
        return self._disk.identity(self._path)


@dataclass(slots=True)
class TopicConfigTable(NamedTable[TopicConfig]):
    """All topics by name; the answer to GET_ALL_TOPIC_CONFIG."""

    FILE_NAME = "topics.json"
    KNOWN = frozenset({DATA_VERSION, TOPIC_TABLE})

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    unknown: Mapping[Any, Any] = _unknown()
    unknown_bytes: int = field(default=0, compare=False, repr=False, kw_only=True)

    def changed(self, data_version: DataVersion, rows: dict[str, TopicConfig]) -> Self:
        """This table with another version and these topics."""
        return replace(self, data_version=data_version, topic_config_table=rows)

    @property
    def rows(self) -> dict[str, TopicConfig]:
        """The topics by name."""
        return self.topic_config_table

    @classmethod
    def reading(cls, content: Any) -> Steps[Self]:
        """From Java's form, in steps. Raises ValueError."""
        topics = yield from _rows(read_mapping(content, TOPIC_TABLE), TopicConfig.from_json)
        return cls(
            DataVersion.from_json(content.get(DATA_VERSION)),
            topics,
            unknown=unknown_fields(cls.KNOWN, content),
            unknown_bytes=(yield from _unknown_bytes(topics)),
        )

    def document(self) -> Document:
        """In Java's form and order."""
        rows = Rows(self.topic_config_table, TopicConfig.to_json)
        return with_unknown({DATA_VERSION: self.data_version.to_json(), TOPIC_TABLE: rows}, self.unknown)

    def snapshot(self) -> Self:
        """The table as it is now."""
        return replace(self, topic_config_table=dict(self.topic_config_table))


@dataclass(slots=True)
class SubscriptionGroupTable(NamedTable[SubscriptionGroupConfig]):
    """All consumer groups by name; the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    FILE_NAME = "subscriptionGroup.json"
    KNOWN = frozenset({DATA_VERSION, GROUP_TABLE})

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    unknown: Mapping[Any, Any] = _unknown()
    unknown_bytes: int = field(default=0, compare=False, repr=False, kw_only=True)

    def changed(self, data_version: DataVersion, rows: dict[str, SubscriptionGroupConfig]) -> Self:
        """This table with another version and these groups."""
        return replace(self, data_version=data_version, subscription_group_table=rows)

    @property
    def rows(self) -> dict[str, SubscriptionGroupConfig]:
        """The groups by name."""
        return self.subscription_group_table

    @classmethod
    def reading(cls, content: Any) -> Steps[Self]:
        """From Java's form, in steps. Raises ValueError."""
        groups = yield from _rows(read_mapping(content, GROUP_TABLE), SubscriptionGroupConfig.from_json)
        return cls(
            DataVersion.from_json(content.get(DATA_VERSION)),
            groups,
            unknown=unknown_fields(cls.KNOWN, content),
            unknown_bytes=(yield from _unknown_bytes(groups)),
        )

    def document(self) -> Document:
        """In Java's form and order."""
        rows = Rows(self.subscription_group_table, SubscriptionGroupConfig.to_json)
        return with_unknown({DATA_VERSION: self.data_version.to_json(), GROUP_TABLE: rows}, self.unknown)

    def snapshot(self) -> Self:
        """The table as it is now."""
        return replace(self, subscription_group_table=dict(self.subscription_group_table))


@dataclass(slots=True)
class ConsumerOffsetTable(ConfigTable):
    """The next offset that each group reads in each queue: by ``topic_at_group``, then queueId.

    The answer to GET_ALL_CONSUMER_OFFSET. A 5.x slave wants a dataVersion in it too (spec/remoting.md 9.1). That of a
    5.x master is among the unknown fields.
    """

    FILE_NAME = "consumerOffset.json"
    KNOWN = frozenset({OFFSET_TABLE})

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    unknown: Mapping[Any, Any] = _unknown()

    @classmethod
    def reading(cls, content: Any) -> Steps[Self]:
        """From Java's form, in steps. Its integer keys may be quoted. Raises ValueError."""
        queues = yield from _rows(read_mapping(content, OFFSET_TABLE), lambda offsets, _: _offsets(offsets))
        return cls(queues, unknown=unknown_fields(cls.KNOWN, content))

    def document(self) -> Document:
        """In Java's form."""
        return with_unknown({OFFSET_TABLE: Rows(self.offset_table, dict)}, self.unknown)

    def snapshot(self) -> Self:
        """The table as it is now. With many queues this is slow: ``some`` copies a part of them."""
        return replace(self, offset_table={key: dict(offsets) for key, offsets in self.offset_table.items()})

    def some(self, keys: Iterable[str]) -> dict[str, dict[int, int]]:
        """Copies of the offsets at these keys. Unknown keys are left out."""
        return {key: dict(self.offset_table[key]) for key in keys if key in self.offset_table}


@dataclass(slots=True)
class DelayOffsetTable(ConfigTable):
    """The next queue offset to deliver of each delay level; the answer to GET_ALL_DELAY_OFFSET."""

    FILE_NAME = "delayOffset.json"
    KNOWN = frozenset({OFFSET_TABLE})

    offset_table: dict[int, int] = field(default_factory=dict)
    unknown: Mapping[Any, Any] = _unknown()

    @classmethod
    def reading(cls, content: Any) -> Steps[Self]:
        """From Java's form, in one step, because it is small. Its integer keys may be quoted. Raises ValueError."""
        yield from ()
        return cls(_offsets(read_mapping(content, OFFSET_TABLE)), unknown=unknown_fields(cls.KNOWN, content))

    def document(self) -> Document:
        """In Java's form."""
        return with_unknown({OFFSET_TABLE: Rows(self.offset_table, _same)}, self.unknown)

    def snapshot(self) -> Self:
        """The table as it is now."""
        return replace(self, offset_table=dict(self.offset_table))


def _rows(content: Mapping[Any, Any], read: Callable[[Any, str], Value]) -> Steps[dict[str, Value]]:
    rows: dict[str, Value] = {}
    for name, value in content.items():
        rows[str(name)] = read(value, str(name))
        if len(rows) % ROWS_AT_ONCE == 0:
            yield
    return rows


def _unknown_bytes(rows: Mapping[str, TopicConfig | SubscriptionGroupConfig]) -> Steps[int]:
    total = 0
    for count, row in enumerate(rows.values(), 1):
        total += unknown_bytes(row)
        if count % ROWS_AT_ONCE == 0:
            yield
    return total


def _same(value: Any) -> Any:
    return value


def topic_at_group(topic: str, group: str) -> str:
    """The key of a group's offsets in a topic."""
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"


def _offsets(content: Any) -> dict[int, int]:
    if not isinstance(content, Mapping):
        raise ValueError(f"{shorten(content)} is not a map of offsets")
    return {read_integer(key): read_integer(offset, LONG_BITS) for key, offset in content.items()}
