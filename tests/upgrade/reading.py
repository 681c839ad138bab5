"""Reads a topic from its start as a consumer of a group, until its standard input ends.

``python -m tests.upgrade.reading SERVERS TOPIC`` prints the body of each message on a line.
"""

import asyncio
import sys

from rmqha.client import ConsumerOptions, Edge, ReceivedMessage
from rmqha.client.aio import Client


async def show(message: ReceivedMessage) -> None:
    sys.stdout.write(f"{message.body.decode()}\n")
    sys.stdout.flush()


async def main(name_servers: str, topic: str) -> None:
    options = ConsumerOptions(start=Edge.MIN)
    async with Client(name_servers) as client, client.push_consumer("reading", show, [topic], options):
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
