"""Sends messages one after the other until its standard input ends: ``python -m tests.failover.load SERVERS TOPIC``.

Each message has its number as body. A line says what became of it: the number, and OK, another status, or FAILED. The
options are those of ``rmqha put``. With ``--once`` no message is sent a second time.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from rmqha.cli.access import client_tls
from rmqha.client.aio import Client
from rmqha.client.errors import ClientError
from rmqha.client.message import Message
from rmqha.client.producer import Retries

PAUSE_SECONDS = 0.005


async def send(client: Client, topic: str, retries: Retries) -> None:
    """Send until the task is cancelled."""
    async with client:
        producer = client.producer("LoadGroup", retries=retries)
        number = 0
        while True:
            try:
                result = await producer.send(Message(topic, str(number).encode()))
                outcome = result.status.name
            except ClientError as error:
                outcome = f"FAILED {error}"
            sys.stdout.write(f"{number} {outcome}\n")
            sys.stdout.flush()
            number += 1
            await asyncio.sleep(PAUSE_SECONDS)


async def main() -> None:
    """Send until the standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover.load", description=__doc__)
    parser.add_argument("name_servers")
    parser.add_argument("topic")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--tls-ca")
    parser.add_argument("--tls-cert")
    parser.add_argument("--acl-file", type=Path)
    given = parser.parse_args()
    tls = client_tls(given.tls_cert, None, given.tls_ca, given.acl_file)
    client = Client(given.name_servers, tls=tls, secure=given.tls)
    retries = Retries(times=0) if given.once else Retries()
    sending = asyncio.ensure_future(send(client, given.topic, retries))
    await asyncio.to_thread(sys.stdin.read)
    sending.cancel()
    await asyncio.wait([sending])


if __name__ == "__main__":
    asyncio.run(main())
