"""An honest producer in a process of its own: ``python -m tests.attacks.honest HOST:PORT [--only-pings]``.

It puts a small message every 20 ms, and between two puts asks for a queue's end, which costs the broker next to
nothing: how long that takes is how long the reactor's turns take. Each answer is a line: ``put`` or ``ping``, the time
it was asked at (the machine's monotonic clock, in seconds) and how long it took. It ends when its input is closed.
"""

import sys
import threading
import time

from twisted.internet import reactor as default_reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorCore, IReactorTime
from twisted.internet.task import deferLater

from rmqha.acl.credentials import make_signer
from rmqha.client.instance import Connector, MQClient, OneBroker
from rmqha.client.message import Message
from rmqha.client.producer import Producer
from rmqha.client.route import TopicRoute
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.store.metadata import TopicConfig
from rmqha.wire.command import RequestCode
from tests.waiting import WAIT_SECONDS

EVERY_SECONDS = 0.02
TOPIC = "BenchmarkTest"
PINGED = {"topic": TOPIC, "queueId": "0"}


class Ways(OneBroker):
    """A broker that is not asked for its topics."""

    async def find_route(self, client: MQClient, topic: str) -> TopicRoute:
        return TopicRoute.of_broker(self._address, TopicConfig(TOPIC, 1, 1))


async def run(address: str, only_pings: bool, ended: threading.Event) -> None:
    """Put and ping until the input ends."""
    clock = IReactorTime(default_reactor)
    ways = Ways(address, Connector(default_reactor, ClientTLS(sign=make_signer(None))))
    client = MQClient(ways, clock)
    producer = Producer(client, "honest", timeout=WAIT_SECONDS)
    message = Message(TOPIC, b"x" * 100)
    code = RequestCode.GET_BROKER_CLUSTER_INFO if only_pings else RequestCode.GET_MAX_OFFSET
    await client.ask(address, code, PINGED, timeout=WAIT_SECONDS)
    print("ready", flush=True)
    while not ended.is_set():
        if not only_pings:
            begun = time.monotonic()
            await producer.send(message)
            _tell("put", begun)
        await deferLater(clock, EVERY_SECONDS / 2)
        begun = time.monotonic()
        await client.ask(address, code, PINGED, timeout=WAIT_SECONDS)
        _tell("ping", begun)
        await deferLater(clock, EVERY_SECONDS / 2)


def _tell(what: str, begun: float) -> None:
    print(what, begun, time.monotonic() - begun, flush=True)


def main() -> None:
    """Run until the input is closed."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    def stop(_: object) -> None:
        IReactorTime(default_reactor).callLater(0, core.stop)

    threading.Thread(target=wait_for_end, daemon=True).start()
    core = IReactorCore(default_reactor)
    done = Deferred.fromCoroutine(run(sys.argv[1], "--only-pings" in sys.argv[2:], ended))
    done.addErrback(lambda failure: print("failed", failure.getErrorMessage(), flush=True)).addBoth(stop)
    core.run()


if __name__ == "__main__":
    main()
