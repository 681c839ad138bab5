"""A handler fails, and the message comes again later: ``python examples/client_retry.py NAME_SERVER``."""

import asyncio
import sys

from rmqha.client import ConsumerOptions, Edge, Message, ReceivedMessage, RetryLater
from rmqha.client.aio import Client


async def main(name_servers: str) -> None:
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        print("try", message.reconsume_times)
        if message.reconsume_times == 0:
            raise RetryLater("the database is away", delay_level=1)  # again in a second
        done.set()

    async with Client(name_servers) as client:
        await client.producer("retry-producers").send(Message("RetryTopic", b"work"))
        options = ConsumerOptions(start=Edge.MIN, concurrency=8, max_reconsume_times=5)
        async with client.push_consumer("retry-consumers", handle, ["RetryTopic"], options):
            await done.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
