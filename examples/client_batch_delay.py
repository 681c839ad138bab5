"""Sends a batch, and a message that comes later; reads with a pull consumer.

``python examples/client_batch_delay.py NAME_SERVER``
"""

import asyncio
import sys

from rmqha.client import Message
from rmqha.client.aio import Client


async def main(name_servers: str) -> None:
    async with Client(name_servers) as client:
        producer = client.producer("batch-producers")
        batch = [Message("BatchTopic", b"%d" % number) for number in range(5)]
        result = await producer.send_batch(batch)  # one request, one queue, all or none
        print(result.status.name, result.queue_offset)

        puller = client.pull_consumer("batch-consumers")
        found = await puller.pull(result.queue, result.queue_offset)
        print([record.body.decode() for record in found.messages])

        await producer.send(Message("BatchTopic", b"a second later", delay_level=1), result.queue)
        while not (found := await puller.pull(result.queue, found.next_begin_offset, suspend_seconds=15)).messages:
            pass
        print([record.body.decode() for record in found.messages])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
