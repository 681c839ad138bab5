"""Sends ten messages and consumes them, under asyncio: ``python examples/client_hello.py NAME_SERVER``."""

import asyncio
import sys

from rmqha.client import ConsumerOptions, Edge, Message, ReceivedMessage
from rmqha.client.aio import Client


async def main(name_servers: str) -> None:
    all_came = asyncio.Event()
    bodies: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        print(message.tags, message.body.decode())
        bodies.add(message.body)  # a message may come twice: a set does not mind
        if len(bodies) == 10:
            all_came.set()

    async with Client(name_servers) as client:
        producer = client.producer("hello-producers")
        for number in range(10):
            result = await producer.send(Message("HelloTopic", b"hello %d" % number, tags="greeting"))
            print(result.status.name, result.queue, result.queue_offset)
        options = ConsumerOptions(start=Edge.MIN)
        async with client.push_consumer("hello-consumers", handle, {"HelloTopic": "greeting"}, options):
            await all_came.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
