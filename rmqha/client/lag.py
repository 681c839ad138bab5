"""How far consumer groups are behind, as brokers know it (spec/remoting.md 2.16)."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rmqha.client.errors import MQBrokerError, MQClientError
from rmqha.client.lookup import Brokers, Place
from rmqha.store.metadata import ConsumerOffsetTable
from rmqha.wire.beans import INT_BITS, LONG_BITS, read_integer, read_mapping, read_text
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient

TOPIC_GROUP_SEPARATOR = "@"


class QueueLag(NamedTuple):
    """The progress of a group in one queue. ``last_consumed`` is when the last consumed message was stored.

    It is in milliseconds since 1970, and 0 if it is not known.
    """

    group: str
    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    last_consumed: int

    @property
    def difference(self) -> int:
        """The messages that are not consumed yet."""
        return max(0, self.broker_offset - self.consumer_offset)


class TopicLag(NamedTuple):
    """The progress of a group in all queues of a topic: sums, and the latest time."""

    group: str
    topic: str
    queues: int
    broker_offset: int
    consumer_offset: int
    difference: int
    last_consumed: int


def by_topic(queues: Iterable[QueueLag]) -> list[TopicLag]:
    """Sums by group and topic, ordered by them."""
    found: dict[tuple[str, str], list[QueueLag]] = {}
    for queue in queues:
        found.setdefault((queue.group, queue.topic), []).append(queue)
    return [
        TopicLag(
            group,
            topic,
            len(rows),
            sum(row.broker_offset for row in rows),
            sum(row.consumer_offset for row in rows),
            sum(row.difference for row in rows),
            max(row.last_consumed for row in rows),
        )
        for (group, topic), rows in sorted(found.items())
    ]


async def lag_of_brokers(brokers: Brokers, group: str | None = None, topic: str | None = None) -> list[QueueLag]:
    """The lag of one group, or of all groups that have offsets. Raises MQClientError, MQBrokerError."""

    async def ask(place: Place) -> list[QueueLag]:
        groups = [group] if group is not None else await _groups(brokers, place)
        return [row for each in groups for row in await _lag(brokers, place, each, topic)]

    return sorted(await brokers.from_each(await brokers.places(), ask))


async def _groups(brokers: Brokers, place: Place) -> list[str]:
    answer = await brokers.ask(place, RequestCode.GET_ALL_CONSUMER_OFFSET, {})
    try:
        table = ConsumerOffsetTable.from_json(_content(answer))
    except ValueError as error:
        raise MQClientError(f"the offsets of {place.broker_name} cannot be read: {error}") from error
    return groups_in(table)


def groups_in(table: ConsumerOffsetTable) -> list[str]:
    """The groups that have offsets."""
    return sorted({split_key(key)[1] for key in table.offset_table})


def split_key(key: str) -> tuple[str, str]:
    """Topic and group of a row, ``topic@group``."""
    topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
    return topic, group


async def _lag(brokers: Brokers, place: Place, group: str, topic: str | None) -> list[QueueLag]:
    fields = {"consumerGroup": group, "topic": topic or ""}
    answer = await brokers.ask(place, RequestCode.GET_CONSUME_STATS, fields)
    try:
        return list(_rows(_content(answer), place, group))
    except ValueError as error:
        raise MQClientError(f"the progress of {group} on {place.broker_name} cannot be read: {error}") from error


def _rows(content: Any, place: Place, group: str) -> Iterator[QueueLag]:
    for key, row in read_mapping(content, "offsetTable").items():
        queue = loads_lenient(str(key))
        if not isinstance(queue, dict) or not isinstance(row, dict):
            raise ValueError("a row is not an object")
        yield QueueLag(
            group,
            read_text(queue.get("topic", "")),
            place.broker_name,
            read_integer(queue.get("queueId", 0), INT_BITS),
            read_integer(row.get("brokerOffset", 0), LONG_BITS),
            read_integer(row.get("consumerOffset", 0), LONG_BITS),
            read_integer(row.get("lastTimestamp", 0), LONG_BITS),
        )


def _content(answer: RemotingCommand) -> Any:
    """Raises MQBrokerError, ValueError."""
    if answer.code != ResponseCode.SUCCESS:
        raise MQBrokerError.of(answer)
    return loads_lenient(answer.body)
