"""Which topics have batch consume queues, the others have simple ones. Uses no reactor.

The topics' table says so (``queue.type`` of RocketMQ 5.x), as it does for a Java broker. A slave may get messages of a
topic before its master's table. If the table does not have the topic, the first batch in its messages says so
(INNER_BATCH): a Java broker writes batches only for such topics.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.metadata import CONFIG_FOLDER, TopicConfig, TopicConfigTable, is_batch_queue
from rmqha.wire.record import INNER_BATCH_FLAG


@dataclass(frozen=True, slots=True)
class QueueTypes:
    """What is known. ``batch`` are the topics with batch consume queues in the table, ``known`` all of its topics.

    ``seen`` are topics that have batches in the log. They count only as long as the table does not have them.
    """

    batch: frozenset[str] = frozenset()
    known: Container[str] = frozenset()
    seen: frozenset[str] = field(default=frozenset())

    def is_batch(self, topic: str, sys_flag: int = 0) -> bool:
        """Whether a topic, of which there is a message with this SYSFLAG, has batch consume queues."""
        if topic in self.batch:
            return True
        return (topic in self.seen or bool(sys_flag & INNER_BATCH_FLAG)) and topic not in self.known

    @property
    def has_any(self) -> bool:
        """Whether any topic has batch consume queues."""
        return bool(self.batch or self.seen)

    def with_seen(self, topic: str) -> "QueueTypes":
        """With one more topic that has batches in the log."""
        return replace(self, seen=self.seen | {topic})


def queue_types_of(topics: Mapping[str, TopicConfig]) -> QueueTypes:
    """What the rows of the topics' table say."""
    return QueueTypes(frozenset(name for name, topic in topics.items() if is_batch_queue(topic)), frozenset(topics))


def read_queue_types(root: Path, disk: Disk = DISK) -> QueueTypes:
    """What topics.json of a store says; nothing if it is invalid. Raises OSError."""
    try:
        return queue_types_of(TopicConfigTable.read(root / CONFIG_FOLDER, disk).rows)
    except StoreError:
        return QueueTypes()
