"""A small client: sends messages and pulls them, on Deferreds. It speaks to Java's brokers and to ours.

In reading order:

- ``message``: what is sent, and the result of sending it.
- ``route``: where the queues of a topic are.
- ``instance``: ``MQClient``: connections to brokers and name servers, shared by all producers and consumers.
- ``producer``: ``Producer``: sends to the queues of all masters in turn, and tries another one if a master fails.
- ``pull``: ``PullConsumer``: reads from a master, or from its slave if the master is unreachable.
- ``bulk``: sends and pulls many messages at once.
- ``replay``: sends stored messages again.
- ``follow``: ``Follower``: the last messages of a topic, and the new ones.
- ``lookup``: ``Brokers``: finds single messages by key, id or offset.
- ``lag``: how far consumer groups are behind.

::

    client = MQClient.of_name_servers(reactor, "ns-a:9876;ns-b:9876")
    producer = Producer(client, "PG")
    producer.send(Message("TopicTest", b"hello", keys="k1")).addCallback(print)
"""

from rmqha.client.instance import MQBrokerError, MQClient, MQClientError, TopicNotFound
from rmqha.client.message import Message, MessageQueue, SendResult, SendStatus
from rmqha.client.producer import Producer
from rmqha.client.pull import PullConsumer, PullResult, PullStatus

__all__ = [
    "MQBrokerError",
    "MQClient",
    "MQClientError",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "SendResult",
    "SendStatus",
    "TopicNotFound",
]
