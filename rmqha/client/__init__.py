"""A client: sends messages and consumes them. It speaks to Java's brokers and to ours (docs/client.md).

There are two faces: this one, on Deferreds, and ``rmqha.client.aio`` for asyncio.

In reading order:

- ``errors``: the errors, a type for each cause.
- ``together``: several coroutines at the same time.
- ``message``: what is sent, and the result of sending it.
- ``inflating``: decompresses bodies.
- ``received``: what a handler gets.
- ``route``: where the queues of a topic are.
- ``membership``: the groups of a client, and its heartbeats.
- ``instance``: ``MQClient``: connections to brokers and name servers, shared by all producers and consumers.
- ``producer``: ``Producer``: sends to the queues of all masters in turn, and tries another one if a master fails.
- ``transaction``: ``TransactionProducer``: messages that are delivered only if a local transaction succeeds.
- ``pull``: ``PullConsumer``: reads from a master, or from its slave if the master is unreachable.

A push consumer, which calls a handler for each message:

- ``consuming``: its options, its states.
- ``caching``: the messages that are not finished, and the limits for them.
- ``offsets``: where it goes on after a restart.
- ``reading``: reads one queue.
- ``retrying``: gives messages back to the broker.
- ``handling``: calls the handler.
- ``allocation``: which queues are its own.
- ``locks``: the locks of an ordered consumer.
- ``runninginfo``: what it tells operators about itself.
- ``pushconsumer``: ``PushConsumer``: all of this together.

For asyncio:

- ``loops``: a reactor for a running loop.
- ``aio``: ``Client``, and producers and consumers whose methods are coroutines.

What the ``rmqha`` command needs:

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

from rmqha.acl.credentials import read_credentials
from rmqha.acl.signing import Credentials
from rmqha.client.bulk import Edge, StoredSince
from rmqha.client.caching import CacheLimits
from rmqha.client.consuming import ConsumerOptions, ConsumerState, RetryLater
from rmqha.client.errors import (
    AccessDenied,
    BrokerBusy,
    ClientError,
    ClientStopped,
    GroupMissing,
    InvalidAnswer,
    MessageRefused,
    MessageTooLarge,
    MQBrokerError,
    MQClientError,
    NoAnswer,
    NoMaster,
    NoPermission,
    OffsetFileError,
    TooManyWaiting,
    TopicMissing,
    TopicNotFound,
    Unreachable,
)
from rmqha.client.instance import MQClient
from rmqha.client.message import Message, MessageQueue, SendResult, SendStatus
from rmqha.client.producer import Producer, Retries, SendLimits, by_key
from rmqha.client.pull import PullConsumer, PullResult, PullStatus
from rmqha.client.pushconsumer import PushConsumer
from rmqha.client.received import ReceivedMessage
from rmqha.client.transaction import TransactionOutcome, TransactionProducer, TransactionResult
from rmqha.net.tls.endpoints import TLSFiles
from rmqha.wire.heartbeat import MessageModel
from rmqha.wire.subscription import SqlExpression

__all__ = [
    "AccessDenied",
    "BrokerBusy",
    "CacheLimits",
    "ClientError",
    "ClientStopped",
    "ConsumerOptions",
    "ConsumerState",
    "Credentials",
    "Edge",
    "GroupMissing",
    "InvalidAnswer",
    "MQBrokerError",
    "MQClient",
    "MQClientError",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageRefused",
    "MessageTooLarge",
    "NoAnswer",
    "NoMaster",
    "NoPermission",
    "OffsetFileError",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReceivedMessage",
    "Retries",
    "RetryLater",
    "SendLimits",
    "SendResult",
    "SendStatus",
    "SqlExpression",
    "StoredSince",
    "TLSFiles",
    "TooManyWaiting",
    "TopicMissing",
    "TopicNotFound",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
    "Unreachable",
    "by_key",
    "read_credentials",
]
