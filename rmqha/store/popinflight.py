"""Messages that POP consumers of RocketMQ 5.x hold: handed out, and not acknowledged.

A 5.x master notes each hand-out in a checkpoint, and each acknowledgement, as messages of the topic
``rmq_sys_REVIVE_LOG_<cluster>``. They wait in the timer topic first. What a checkpoint names and no acknowledgement
does, the master gives to the group again. Our master does not serve POP: nobody gets these messages after a promotion.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from rmqha.store.deletions import DeletedTopicTable
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.metadata import topic_at_group
from rmqha.store.timers import ReadMessage
from rmqha.wire.record import Record
from rmqha.wire.timers import REAL_TOPIC

REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
CHECKPOINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
"""The tags of the messages in the revive topic."""
MOST_LOOKED_AT = 200_000
MAX_MESSAGES = 128
"""Of one checkpoint. Java hands out 32 at once."""
MOST_GROUPS_NAMED = 20


class _Key(NamedTuple):
    """What a checkpoint and its acknowledgements have in common."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time: int


@dataclass(frozen=True, slots=True)
class PopInFlight:
    """How many messages POP consumers hold, by group and topic. Not ``is_all`` if there may be more."""

    groups: Counter[tuple[str, str]]
    is_all: bool = True

    @property
    def count(self) -> int:
        """How many messages."""
        return self.groups.total()

    def as_json(self) -> dict[str, Any]:
        """For the answer to ``rmqha promote --json``."""
        groups = [
            {"group": group, "topic": topic, "messages": count}
            for (group, topic), count in self.groups.most_common(MOST_GROUPS_NAMED)
        ]
        return {"poppedMessages": self.count, "poppedGroups": groups, "poppedAreAll": self.is_all}


def popped_in_words(found: Mapping[str, Any]) -> str:
    """What ``PopInFlight.as_json`` says, in a sentence without an end."""
    groups = [f"{each['messages']} of {each['topic']} by {each['group']}" for each in found["poppedGroups"]]
    least = "" if found["poppedAreAll"] else "at least "
    return (
        f"{least}{found['poppedMessages']} messages are with POP consumers of RocketMQ 5.x, and not acknowledged "
        f"({', '.join(groups)}). A master of ours does not give them to their groups again. They stay in the log, and "
        "a Java 5.x broker that opens this store gives them again"
    )


class PopNotes:
    """Collects checkpoints and acknowledgements, in any order. Notes of a ``deleted`` topic do not count."""

    def __init__(self, deleted: DeletedTopicTable) -> None:
        self._deleted = deleted
        self._held: dict[_Key, set[int]] = {}
        self._acknowledged: list[tuple[_Key, list[int]]] = []
        self._left = MOST_LOOKED_AT

    def add(self, record: Record) -> None:
        """Look at a message of the revive topic, or at one that waits to come there. Others are ignored."""
        if not record.properties.get(REAL_TOPIC, record.topic).startswith(REVIVE_TOPIC_PREFIX):
            return
        self._left -= 1
        content = _content_of(record) if self._left >= 0 else None
        key = None if content is None else _key_of(content)
        if content is None or key is None:
            return
        tag = record.properties.get("TAGS")
        if tag == CHECKPOINT and not self._deleted.is_deleted(key.topic, record.physical_offset):
            self._held.setdefault(key, set()).update(_handed_out(key, content))
        elif tag in (ACK, BATCH_ACK):
            self._acknowledged.append((key, _acknowledged(content)))

    def add_revived(self, queues: QueueTable, read: ReadMessage, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Look at all that came to the revive topic, and that the former master has not dealt with.

        ``offsets`` are those of consumer groups. Raises OSError.
        """
        for (topic, queue_id), queue in queues.queues.items():
            if not topic.startswith(REVIVE_TOPIC_PREFIX):
                continue
            done = offsets.get(topic_at_group(topic, REVIVE_GROUP), {}).get(queue_id, -1)
            for offset in range(max(done + 1, queue.min_offset), queue.max_offset):
                if self._left < 0:
                    return
                unit = queue.unit(offset)
                record = None if unit is None or unit.is_blank else read(unit.physical_offset)
                if record is not None:
                    self.add(record)

    def in_flight(self) -> PopInFlight:
        """The messages that consumers hold by these notes."""
        for key, some in self._acknowledged:
            self._held.get(key, set()).difference_update(some)
        held = {(key.group, key.topic, key.queue_id, offset) for key, some in self._held.items() for offset in some}
        return PopInFlight(Counter((group, topic) for group, topic, _, _ in held), self._left >= 0)


def _content_of(record: Record) -> dict[str, Any] | None:
    try:
        content = orjson.loads(bytes(record.body))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _key_of(content: Mapping[str, Any]) -> _Key | None:
    """None for what is neither a checkpoint nor an acknowledgement."""

    def found(kind: type, *names: str) -> Any:
        value = next((content[name] for name in names if name in content), None)
        return value if isinstance(value, kind) else None

    topic, group = found(str, "t", "topic"), found(str, "c", "consumerGroup")
    queue_id, start = found(int, "q", "queueId"), found(int, "so", "startOffset")
    pop_time = found(int, "pt", "popTime")
    if topic is None or group is None or queue_id is None or start is None or pop_time is None:
        return None
    return _Key(topic, group, queue_id, start, pop_time)


def _handed_out(key: _Key, content: Mapping[str, Any]) -> Iterator[int]:
    """The queue offsets that a checkpoint names, without those that it calls acknowledged."""
    count, differences, bits = content.get("n", 0), content.get("d"), content.get("bm", 0)
    if not isinstance(count, int) or not isinstance(bits, int):
        return
    if not isinstance(differences, list) or not differences:
        differences = list(range(min(max(count, 0), MAX_MESSAGES)))
    for number, difference in enumerate(differences[: min(max(count, 0), MAX_MESSAGES)]):
        if isinstance(difference, int) and not bits >> number & 1:
            yield key.start_offset + difference


def _acknowledged(content: Mapping[str, Any]) -> list[int]:
    offsets = content.get("aol")
    if isinstance(offsets, list):
        return [offset for offset in offsets[:MAX_MESSAGES] if isinstance(offset, int)]
    offset = content.get("ao", content.get("ackOffset"))
    return [offset] if isinstance(offset, int) else []
