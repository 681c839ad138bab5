"""Sends messages only if a local change succeeds: ``python examples/client_transaction.py NAME_SERVER``."""

import asyncio
import sys

from rmqha.client import ConsumerOptions, Edge, Message, ReceivedMessage, TransactionOutcome
from rmqha.client.aio import Client

paid: set[str] = set()
"""The program's database."""


async def pay(message: Message) -> TransactionOutcome:
    """The local transaction: the order is paid, or the message is dropped."""
    if message.keys == "order-2":
        return TransactionOutcome.ROLLBACK
    paid.add(message.keys)
    return TransactionOutcome.COMMIT


async def check(message: ReceivedMessage) -> TransactionOutcome:
    """The broker asks this if it does not know how a transaction has ended: after a crash, for example."""
    return TransactionOutcome.COMMIT if message.keys in paid else TransactionOutcome.ROLLBACK


async def main(name_servers: str) -> None:
    both_came = asyncio.Event()
    delivered: set[str] = set()

    async def handle(message: ReceivedMessage) -> None:
        delivered.add(message.keys)
        if len(delivered) == 2:
            both_came.set()

    async with Client(name_servers) as client:
        async with client.transaction_producer("payments", check) as producer:
            for number in (1, 2, 3):
                result = await producer.send(Message("PaidTopic", b"", keys=f"order-{number}"), pay)
                print(f"order-{number}", result.outcome.name)
        async with client.push_consumer("shipping", handle, ["PaidTopic"], ConsumerOptions(start=Edge.MIN)):
            await both_came.wait()
    print("delivered", sorted(delivered))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
