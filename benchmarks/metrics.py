"""What the counting for metrics costs a put: ``make bench-metrics``.

The cost is a ratio. Short rounds of puts with and without the counting take turns in one process, and the fastest round
of each side counts: other processes can only make a round slower. A put is measured twice: alone, and as the
request of a client, from its bytes to the bytes of the answer.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from zope.interface import implementer

from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.ha.master.serving import LogServing
from rmqha.node.replicating import state_of_log
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.settings.settings import make_settings
from rmqha.store.message import Message, PutMessageResult, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.putfigures import PutFigures
from rmqha.web.exposition import TextFormat
from rmqha.web.interfaces import ILiveNode, IShownNode
from rmqha.web.nodemetrics import NodeMetrics
from rmqha.web.sampling import RecentWarnings, Sampler
from rmqha.web.server import Server
from rmqha.web.watchednode import WatchedNode
from rmqha.wire.command import RemotingCommand, RequestCode, encode_head

PAIRS = 100
PUTS = 300
ROUND = 20
TOPICS, QUEUES = 3000, 16
SCRAPES = 20
BODY = b"x" * 1024
FIELDS = {"a": "PG", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}


class Uncounted(PutFigures):
    """Counts nothing, and asks for no time. Its calls remain, and are no part of what the counting costs."""

    def timed_of(self, puts: int) -> int:
        return 0

    def answered(self, result: PutMessageResult, started: float | None) -> PutMessageResult:
        return result

    def answered_run(self, status: PutMessageStatus, count: int, started: float | None, timed: int) -> None:
        pass


class Side:
    """A store, and a client's connection to its broker. One store for both sides: two would differ by some percent."""

    def __init__(self, folder: Path) -> None:
        settings = make_settings({"brokerRole": "ASYNC_MASTER", "storePathRootDir": str(folder)})
        self.store = MessageStore(settings)
        clock = Clock()
        self.store.start_flushing(clock, execute, lambda failure: None)
        self.figures = self.store.put_figures
        self.figures.seconds = time.monotonic  # as in a node
        broker = BrokerService(settings, self.store, clock, execute, Surroundings("127.0.0.1"))
        self.transport = StringTransport()
        self.connection = RemotingProtocol(broker.processors(), clock, request_pass=broker.ordinary_sends(None))
        self.connection.makeConnection(self.transport)
        self.connection.setTimeout(None)
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=FIELDS, body=BODY)
        self.request = encode_head(request) + BODY
        self.clock = clock
        self.broker = broker

    def count(self, counts: bool) -> None:
        """From now on puts are counted, or are not."""
        figures, waits = self.figures if counts else Uncounted(time.monotonic), self.store.puts.waits
        assert waits is not None, "the store takes puts"
        self.store.put_figures = self.store.puts.figures = waits._figures = figures
        waits._answered = figures.answered

    def put_alone(self) -> None:
        """One message, to the store."""
        self.store.put_message(Message("TopicTest", BODY))

    def put_as_client(self) -> None:
        """One message, as a request."""
        self.connection.dataReceived(self.request)

    def settle(self) -> None:
        """Between rounds: the answers are read, and the reactor's turn is over."""
        assert b'"code":0' in self.transport.value() or not self.transport.value()
        self.transport.clear()
        self.clock.advance(0)


def compare(what: str, side: Side, put: Callable[[], None]) -> None:
    """Print the cost of a put, and the share of the counting."""
    least = {True: float("inf"), False: float("inf")}
    for number in range(PAIRS):
        for counts in (number % 2 == 0, number % 2 == 1):
            side.count(counts)
            for _ in range(PUTS // ROUND):  # a reactor turn takes a limited number of requests
                started = time.process_time()
                for _ in range(ROUND):
                    put()
                least[counts] = min(least[counts], time.process_time() - started)
                side.settle()
    share = 100 * (least[True] / least[False] - 1)
    print(f"{what}: {least[True] / ROUND * 1e6:.1f} µs of CPU, counting is {share:.2f} % of it")


class Queue:
    """A queue without files, whose end is computed as a real one's."""

    def __init__(self) -> None:
        self._end = 20_000
        self._pending = bytearray(40)

    @property
    def max_offset(self) -> int:
        """The queue offset that comes next."""
        return (self._end + len(self._pending)) // 20


@implementer(ILiveNode)
@dataclass
class OpenSide:
    """What a scrape reads of an open node."""

    store: MessageStore
    broker: BrokerService
    serving: LogServing | None = None
    slave: None = None
    factories: dict[str, Any] = field(default_factory=dict)

    def state(self) -> NodeState:
        """Of the log."""
        return state_of_log(self.store, self.store.settings, None)


@implementer(IShownNode)
class ShownSide:
    """A node whose store is open."""

    def __init__(self, node: OpenSide) -> None:
        self._node = node
        self.settings = node.store.settings

    def shown_phase(self) -> str:
        return "RUNNING"

    def live_node(self) -> OpenSide:
        return self._node

    def how_far(self) -> None:
        return None

    def cluster(self, changes: int) -> None:
        return None

    def run_in_table_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        return execute(function)

    def cannot_listen(self, reason: str) -> None:
        raise SystemExit(reason)


def scrape(side: Side) -> None:
    """Print how long a scrape of many topics takes, and its longest step, which is a part of a reactor turn."""
    clock, store, broker = side.clock, side.store, side.broker
    queues: Any = store.derived.queues.queues
    for topic in range(TOPICS):
        broker.stats.messages_put(f"Topic-number-{topic}", 1, 100)
        broker.stats.messages_got(f"Group-number-{topic}", f"Topic-number-{topic}", 1, 100)
        key = f"Topic-number-{topic}@Group-number-{topic}"
        broker.consumer_offsets.table.offset_table[key] = dict.fromkeys(range(QUEUES), 0)
        for queue in range(QUEUES):
            queues[f"Topic-number-{topic}", queue] = Queue()
    node = OpenSide(store, broker)
    shown = ShownSide(node)
    facts = WatchedNode(shown, None, RecentWarnings(), None, Sampler(shown, clock))
    metrics = NodeMetrics(facts, Server({}, clock))
    times: list[float] = []
    longest: list[float] = []
    size = 0
    for _ in range(SCRAPES):
        steps, spent = metrics.text(TextFormat(False, True)), list[float]()
        while True:
            started = time.thread_time()
            try:
                next(steps)
            except StopIteration as done:
                size = len(done.value)
                break
            finally:
                spent.append(time.thread_time() - started)
        times.append(sum(spent))
        longest.append(max(spent))
    print(
        f"a scrape of {TOPICS} topics and groups with {QUEUES} queues each: {statistics.median(times) * 1e3:.1f} ms of "
        f"CPU in {len(spent)} steps, the longest {statistics.median(longest) * 1e3:.1f} ms; {size} bytes compressed"
    )
    queues.clear()
    side.store.abandon()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rmqha-bench-") as folder:
        side = Side(Path(folder))
        compare("a put to the store alone   ", side, side.put_alone)
        compare("a put as a client's request", side, side.put_as_client)
        assert side.figures.by_status()[PutMessageStatus.PUT_OK] == 2 * PAIRS * PUTS  # the counted half
        assert side.store.commit_log.max_offset > 4 * PAIRS * PUTS * len(BODY)
        side.store.abandon()
    with tempfile.TemporaryDirectory(prefix="rmqha-bench-") as folder:
        scrape(Side(Path(folder)))


if __name__ == "__main__":
    main()
