"""A small client of our own: sends messages and pulls them, on Deferreds. Speaks to Java's brokers as to ours.

::

    instance.py  MQClient: the way to brokers and name servers, shared by all producers and consumers of a process
    route.py     where the queues of a topic are
    message.py   what is sent, and what became of it
    producer.py  Producer: to the queues of all masters in turn, and elsewhere where one fails
    pull.py      PullConsumer: from a master, or from its slave where the master is gone

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
