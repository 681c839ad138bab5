"""The client for asyncio programs: in ``asyncio.run``, under Twisted's reactor, with TLS, and when it is stopped."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.client import ClientStopped, ConsumerOptions, Edge, Message, NoAnswer, ReceivedMessage, SendStatus
from rmqha.client.aio import Client
from rmqha.client.loops import INSTALLED, _guests
from rmqha.net.tls.endpoints import TLSFiles
from rmqha.testing.nodes import TwistdNode
from tests.net.tls.authority import Authority
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process

UNDER_TWISTED = """
import asyncio, sys
from twisted.internet import asyncioreactor
loop = asyncio.new_event_loop()
asyncioreactor.install(loop)
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from rmqha.client import Message
from rmqha.client.aio import Client

async def main():
    async with Client(broker=sys.argv[1]) as client:
        assert client.instance.clock is reactor
        print((await client.producer("PG").send(Message("T", b"x"))).status.name)

react(lambda _: Deferred.fromFuture(asyncio.ensure_future(main(), loop=loop)))
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master."""
    with TwistdNode(tmp_path_factory.mktemp("aio"), ["--role=async-master", "--port=0"], name="master") as node:
        yield f"127.0.0.1:{node.port('remoting')}"


def test_a_program_may_run_one_loop_after_another(broker: str) -> None:
    async def main(number: int) -> SendStatus:
        async with Client(broker=broker) as client, Client(broker=broker) as other:
            assert client.instance.clock is other.instance.clock
            return (await client.producer("PG").send(Message("TLoops", b"%d" % number))).status

    before = sys.modules.get(INSTALLED)
    assert [asyncio.run(main(number)) for number in range(3)] == [SendStatus.SEND_OK] * 3
    assert not _guests
    assert sys.modules.get(INSTALLED) is before


def test_under_twisteds_asyncio_reactor_it_uses_that_one(broker: str) -> None:
    command = [sys.executable, "-c", UNDER_TWISTED, broker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "SEND_OK\n", "")


def test_a_handler_that_does_not_end_is_cancelled_as_a_task(broker: str) -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        started = asyncio.Event()

        async def hangs(_: ReceivedMessage) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body.decode())
            started.set()

        options = ConsumerOptions(start=Edge.MIN)
        async with Client(broker=broker) as client:
            await client.producer("PG").send(Message("THang", b"again"))
            consumer = client.push_consumer("GHang", hangs, ["THang"], options)
            await consumer.start()
            await started.wait()
            await consumer.stop(grace_seconds=0.01)
            started.clear()
            async with client.push_consumer("GHang", handle, ["THang"], options):
                await started.wait()
        return seen

    assert asyncio.run(main()) == ["cancelled", "again"]


def test_a_cancelled_send_is_given_up_and_the_client_goes_on(broker: str) -> None:
    async def main() -> SendStatus:
        async with Client(broker=broker) as client:
            producer = client.producer("PG")
            sending = asyncio.ensure_future(producer.send(Message("TCancel", b"x")))
            await asyncio.sleep(0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            return (await producer.send(Message("TCancel", b"y"))).status

    assert asyncio.run(main()) is SendStatus.SEND_OK


def test_errors_are_those_of_the_client() -> None:
    async def main() -> None:
        client = Client(broker="127.0.0.1:1")
        with pytest.raises(ClientStopped):
            client.producer("PG")
        async with client:
            producer = client.producer("PG", timeout=1)
            with pytest.raises(NoAnswer, match=r"127\.0\.0\.1:1 does not answer"):
                await producer.send(Message("T", b"x"))
        with pytest.raises(ValueError, match="either"):
            Client()
        with pytest.raises(ValueError, match="no address"):
            async with Client(broker="no address"):
                pass

    asyncio.run(main())
    assert not _guests


def test_it_uses_tls_as_a_guest_of_the_loop(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    options = ["--role=async-master", "--port=0", f"--tls-cert={authority.issue('localhost')}"]
    with TwistdNode(tmp_path, options, name="master") as node:
        address = f"tls:localhost:{node.port('remoting')}"
        tls = TLSFiles.load(None, None, str(authority.path)).client()

        async def main() -> SendStatus:
            async with Client(broker=address, tls=tls) as client:
                return (await client.producer("PG").send(Message("TTls", bytes(1_000_000)))).status

        assert asyncio.run(main()) is SendStatus.SEND_OK


def test_it_is_typed() -> None:
    assert (Path(__file__).parents[2] / "rmqha" / "py.typed").exists()
