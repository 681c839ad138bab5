"""``config/deletedTopics.json``: which topics were deleted, and where the log ended then (spec/store.md 13.5).

A deletion takes the queues of a topic, and its messages stay in the log until retention. Queues are built from the log,
so each build must know what was deleted: a record of the topic before its mark gets no place in a queue. A topic of the
same name starts again after the mark, with queue offset 0. Java brokers do not know the file, and leave it alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from rmqha.kit.steps import Steps
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.metadata import CONFIG_FOLDER, TOPIC_GROUP_SEPARATOR, ConfigTable
from rmqha.wire.beans import LONG_BITS, read_integer, read_mapping, shorten, unknown_fields, with_unknown
from rmqha.wire.fastjson import ROWS_AT_ONCE, Document, Rows
from rmqha.wire.topics import RETRY_PREFIX

DELETED_TOPICS = "deletedTopics"
MAX_MARKS = 20_000
"""Beyond this the oldest marks go: first those of topics that were deleted again."""


class Deletion(NamedTuple):
    """A topic that was deleted when the log ended at ``offset``. ``time_ms`` is in milliseconds since 1970."""

    topic: str
    offset: int
    time_ms: int = 0


@dataclass(slots=True)
class DeletedTopicTable(ConfigTable):
    """The deletions of a store, in the order of their offsets. It is never changed in place."""

    FILE_NAME = "deletedTopics.json"
    KNOWN = frozenset({DELETED_TOPICS})

    deletions: tuple[Deletion, ...] = ()
    unknown: Mapping[Any, Any] = field(default_factory=dict, hash=False, repr=False, kw_only=True)
    marks: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """By topic, where the log ended at its last deletion."""
    end: int = field(init=False, repr=False, compare=False)
    """From here on, the log has no deleted message; 0 without deletions."""
    forgotten: int = field(init=False, repr=False, compare=False)
    """Up to here deletions may be missing because there were too many; 0 if none is."""

    def __post_init__(self) -> None:
        marks: dict[str, int] = {}
        for deletion in self.deletions:
            marks[deletion.topic] = max(deletion.offset, marks.get(deletion.topic, 0))
        self.marks = marks
        self.end = max(marks.values(), default=0)
        self.forgotten = self.deletions[0].offset if len(self.deletions) >= MAX_MARKS else 0

    def is_deleted(self, topic: str, physical_offset: int) -> bool:
        """Whether the message of this topic at an offset of the log was deleted with its topic."""
        return physical_offset < self.end and physical_offset < self.marks.get(topic, 0)

    def of(self, deletions: Iterable[Deletion]) -> Self:
        """This table with other deletions."""
        return replace(self, deletions=tuple(deletions))

    def adding(self, new: Iterable[Deletion], min_offset: int) -> Self:
        """With more deletions, and without those that the log, which starts at ``min_offset``, does not need."""
        return self.of(_bounded([*self.deletions, *new], min_offset))

    def up_to(self, end: int) -> Self:
        """The deletions that were made when the log did not go beyond ``end``."""
        return self.of(deletion for deletion in self.deletions if deletion.offset <= end)

    def before(self, end: int, before_ms: int | None) -> Self:
        """The deletions that a store has which goes back to ``end``.

        Of those at ``end`` itself it has the ones that were made before the time ``before_ms``; None: none of them.
        """
        latest = 0 if before_ms is None else before_ms
        return self.of(each for each in self.up_to(end).deletions if each.offset < end or each.time_ms < latest)

    def lowered_to(self, end: int) -> Self:
        """All deletions, in a log that ends at ``end``: those beyond it count from there."""
        return self.of(deletion._replace(offset=min(deletion.offset, end)) for deletion in self.deletions)

    def without(self, other: "DeletedTopicTable") -> tuple[Deletion, ...]:
        """The deletions that ``other`` does not have."""
        known = set(other.deletions)
        return tuple(deletion for deletion in self.deletions if deletion not in known)

    def following(self, masters: "DeletedTopicTable", masters_min: int, min_offset: int) -> Self:
        """What a slave, whose log starts at ``min_offset``, takes from its master, whose log starts at ``masters_min``.

        The master has dropped the deletions before that. They still count in a longer log.
        """
        known = set(masters.deletions)
        older = (each for each in self.deletions if each.offset <= masters_min and each not in known)
        return self.of(_bounded([*older, *masters.deletions], min_offset))

    @classmethod
    def reading(cls, content: Any) -> Steps[Self]:
        """From JSON, in steps. Raises ValueError."""
        deletions: list[Deletion] = []
        for count, (topic, rows) in enumerate(read_mapping(content, DELETED_TOPICS).items(), 1):
            deletions += _read_deletions(str(topic), rows)
            if count % ROWS_AT_ONCE == 0:
                yield
        deletions.sort(key=_order)
        return cls(tuple(deletions), unknown=unknown_fields(cls.KNOWN, content))

    def document(self) -> Document:
        """As in the file: the deletions of each topic."""
        rows: dict[str, list[Deletion]] = {}
        for deletion in self.deletions:
            rows.setdefault(deletion.topic, []).append(deletion)
        return with_unknown({DELETED_TOPICS: Rows(rows, _written_deletions)}, self.unknown)

    def snapshot(self) -> Self:
        """The table itself, because it is never changed."""
        return self


NOTHING_DELETED = DeletedTopicTable()


def _written_deletions(deletions: list[Deletion]) -> Any:
    return [{"offset": deletion.offset, "time": deletion.time_ms} for deletion in deletions]


def _read_deletions(topic: str, rows: Any) -> Iterator[Deletion]:
    """The deletions of a topic. Raises ValueError."""
    if not isinstance(rows, list):
        raise ValueError(f"the deletions of {shorten(topic)} are not a list")
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError(f"a deletion of {shorten(topic)} is not an object")
        offset = read_integer(row.get("offset"), LONG_BITS)
        if offset < 0:
            raise ValueError(f"{shorten(topic)} was deleted at {offset}, which is not an offset")
        yield Deletion(topic, offset, read_integer(row.get("time", 0), LONG_BITS))


def _order(deletion: Deletion) -> tuple[int, int]:
    return deletion.offset, deletion.time_ms


def _bounded(deletions: list[Deletion], min_offset: int) -> Iterator[Deletion]:
    """Those that the log needs, at most ``MAX_MARKS``."""
    needed = sorted((deletion for deletion in deletions if deletion.offset > min_offset), key=_order)
    excess = len(needed) - MAX_MARKS
    if excess > 0:
        last = {deletion.topic: number for number, deletion in enumerate(needed)}
        repeated = [number for number, deletion in enumerate(needed) if last[deletion.topic] != number]
        left_out = set([*repeated, *sorted(last.values())][:excess])
        needed = [deletion for number, deletion in enumerate(needed) if number not in left_out]
    return iter(needed)


def read_deletions(root: Path, disk: Disk = DISK) -> DeletedTopicTable:
    """The deletions of a store. Raises StoreError, OSError."""
    return DeletedTopicTable.read(root / CONFIG_FOLDER, disk)


def drop_offsets(offsets: dict[str, dict[int, int]], topics: Iterable[str]) -> None:
    """Drop what groups have read of these topics. With the retry topic of a group its offsets go everywhere."""
    gone = frozenset(topics)
    groups = frozenset(topic.removeprefix(RETRY_PREFIX) for topic in gone if topic.startswith(RETRY_PREFIX))
    for key in list(offsets):
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        if topic in gone or group in groups:
            del offsets[key]
