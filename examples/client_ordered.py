"""Keeps the order of each account's messages: ``python examples/client_ordered.py NAME_SERVER``."""

import asyncio
import sys
from collections import defaultdict

from rmqha.client import ConsumerOptions, Edge, Message, ReceivedMessage, by_key
from rmqha.client.aio import Client

ACCOUNTS, STEPS = ("anna", "bert", "carl"), 5


async def main(name_servers: str) -> None:
    all_came = asyncio.Event()
    steps: dict[str, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> None:
        account, step = message.keys, int(message.body)
        if step not in steps[account]:
            steps[account].append(step)
        if sum(map(len, steps.values())) == len(ACCOUNTS) * STEPS:
            all_came.set()

    async with Client(name_servers) as client:
        producer = client.producer("ordered-producers")
        for step in range(STEPS):
            for account in ACCOUNTS:  # one after the other: the order of sending is the order of the queue
                await producer.send_ordered(Message("OrderedTopic", b"%d" % step, keys=account), by_key(account))
        options = ConsumerOptions(start=Edge.MIN, is_ordered=True)
        async with client.push_consumer("ordered-consumers", handle, ["OrderedTopic"], options):
            await all_came.wait()
    for account in ACCOUNTS:
        print(account, steps[account])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
