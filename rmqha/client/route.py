"""Where the queues of a topic are: a name server's TopicRouteData, or the topics of one broker."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from rmqha.client.message import MessageQueue
from rmqha.store.metadata import PERM_READ, PERM_WRITE, TopicConfig
from rmqha.wire.beans import LONG_BITS, java, read_bean, read_integer, read_objects, read_text, shorten

MASTER_ID = 0
MAX_QUEUES = 1 << 17
"""A route with more queues than this is not believed: a client would never be done with it."""


def _addresses(content: Any, _: Any) -> dict[int, str]:
    if not isinstance(content, Mapping):
        raise ValueError(f"{shorten(content)} is not an object")
    return {read_integer(broker_id, LONG_BITS): read_text(address) for broker_id, address in content.items()}


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker name, by broker id."""

    broker_name: str
    broker_addrs: dict[int, str] = java(read=_addresses)


class QueueData(NamedTuple):
    """A broker's share of a topic."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers that carry a topic: their addresses by broker name and broker id, and the number of queues of
    each.
    """

    addresses: dict[str, dict[int, str]]
    queues: tuple[QueueData, ...]

    def __post_init__(self) -> None:
        """Raises ValueError if the topic has a number of queues that no topic has."""
        count = 0
        for data in self.queues:
            if min(data.read_queue_nums, data.write_queue_nums) < 0:
                raise ValueError(f"{data.read_queue_nums} and {data.write_queue_nums} are not numbers of queues")
            count += max(data.read_queue_nums, data.write_queue_nums)
        if count > MAX_QUEUES:
            raise ValueError(f"the topic has {count} queues, more than {MAX_QUEUES}")

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read TopicRouteData. Raises ValueError."""
        brokers = (read_bean(BrokerData, broker) for broker in read_objects(content, "brokerDatas"))
        queues = (read_bean(QueueData, data) for data in read_objects(content, "queueDatas"))
        return cls({broker.broker_name: broker.broker_addrs for broker in brokers}, tuple(queues))

    @classmethod
    def of_broker(cls, address: str, config: TopicConfig) -> Self:
        """A route to one broker of which only the address is known."""
        queues = QueueData(address, config.read_queue_nums, config.write_queue_nums, config.perm)
        return cls({address: {MASTER_ID: address}}, (queues,))

    @property
    def lacks_master(self) -> bool:
        """Whether a broker of the topic has no master now."""
        return any(MASTER_ID not in addresses for addresses in self.addresses.values())

    def as_template(self, most_queues: int) -> Self:
        """The queues that a new topic gets if this route is that of its template."""
        queues = []
        for data in self.queues:
            count = min(most_queues, data.read_queue_nums)
            queues.append(data._replace(read_queue_nums=count, write_queue_nums=count))
        return replace(self, queues=tuple(queues))

    def queues_to_write(self, topic: str) -> list[MessageQueue]:
        """The queues of masters, ordered so that a caller who takes them one after another visits the masters in
        turn.
        """
        queues = [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in self.queues
            if data.perm & PERM_WRITE and MASTER_ID in self.addresses.get(data.broker_name, {})
            for queue_id in range(data.write_queue_nums)
        ]
        return sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))

    def queues_to_read(self, topic: str) -> list[MessageQueue]:
        """The queues of all brokers, one broker after another."""
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in sorted(self.queues)
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_nums)
        ]
