"""The same client for Twisted programs, on Deferreds: ``python examples/client_deferred.py NAME_SERVER``."""

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from rmqha.client import ConsumerOptions, Edge, Message, MQClient, Producer, PushConsumer, ReceivedMessage


async def main(reactor: Any, name_servers: str) -> None:
    client = MQClient.of_name_servers(reactor, name_servers)
    came: Deferred[bytes] = Deferred()

    def handle(message: ReceivedMessage) -> None:  # or return a Deferred, or be a coroutine
        if not came.called:
            came.callback(message.body)

    consumer = PushConsumer(client, "deferred-consumers", handle, ConsumerOptions(start=Edge.MIN))
    consumer.subscribe("DeferredTopic")
    try:
        result = await Producer(client, "deferred-producers").send(Message("DeferredTopic", b"hello"))
        print(result.status.name)
        await consumer.start()
        print((await came).decode())
    finally:
        await consumer.stop()
        await client.stop()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, sys.argv[1])))
