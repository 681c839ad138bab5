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

        await producer.send(Message("BatchTopic", b"a second later", delay_level=1), result.queue)

        puller = client.pull_consumer("batch-consumers")
        offset = result.queue_offset
        while offset < result.queue_offset + 6:
            found = await puller.pull(result.queue, offset, suspend_seconds=15)
            for record in found.messages:
                print(record.body.decode())
            offset = found.next_begin_offset


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
