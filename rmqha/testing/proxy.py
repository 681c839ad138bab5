"""A TCP proxy that stages the faults of networks: ``python -m rmqha.testing.proxy --target HOST:PORT``.

It runs in a process of its own; ``FaultProxy`` starts one and controls it. A command is a line on standard input. The
answer is a line of JSON: the facts after the command, or ``{"error": …}``. WAY is ``down`` (from the target to the
clients: the master's log), ``up`` (from the clients: the slaves' reports) or ``both``. Rules apply to existing and to
new connections.

::

    WAY pass                      as without a proxy: ends every rule of this way, and sends what was held
    WAY hold                      nothing passes and nothing is lost, and no peer notices an end: a partition
    WAY strand                    the same, without end, for existing connections; new ones pass
    WAY swallow                   takes all bytes and passes none on, nor the ends of peers
    WAY delay SECONDS [JITTER]    each read waits this long, and up to JITTER more
    WAY pace BYTES SECONDS        this many bytes, then a pause, again and again: a dribble, or a limited bandwidth
    WAY allow BYTES hold|rst|fin  this many more bytes pass, counted over all connections, and then this happens
    WAY banner HEX                new connections start with these bytes
    cut rst|fin                   all connections end now, at both ends
    accept relay|silence|refuse   new clients are served, or accepted and ignored, or the port is closed
    target HOST:PORT              where new connections go
    facts                         changes nothing
    reports FROM                  the reports of slaves, from this number on: [time, connection, offset]

``fin`` closes after the bytes that have passed, without a reset. Later bytes are taken and dropped. A second ``allow``
adds to what the first one has left.
"""

import argparse
import json
import math
import os
import random
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import connectProtocol
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IHalfCloseableProtocol,
    IPushProducer,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.stdio import StandardIO
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.net.endpoints import make_endpoint
from rmqha.testing.forkserver import ForkedProcess, start_with_pipes
from rmqha.wire.transfer import ReportDecoder

LOCALHOST = "127.0.0.1"
QUEUE_BYTES = 4 << 20
"""What may wait in the proxy for one way of one connection. If a source has sent this much, it is not read."""
BACKLOG = 1024
POLL_SECONDS = 0.01
ANSWER_SECONDS = 300.0


class Flow(Enum):
    """What happens to bytes that arrive."""

    PASS = "pass"
    HOLD = "hold"
    SWALLOW = "swallow"


class Ending(Enum):
    """How a connection ends."""

    RST = "rst"
    FIN = "fin"


class Welcome(Enum):
    """What happens to new clients."""

    RELAY = "relay"
    SILENCE = "silence"
    REFUSE = "refuse"


class SeenReport(NamedTuple):
    """A report of a slave: its time (monotonic seconds), its connection (from 0), and the offset."""

    time: float
    connection: int
    offset: int


@dataclass
class Way:
    """The rules of one direction. ``allowed_bytes`` may pass before ``then`` happens. None means no limit, and to
    hold.
    """

    rng: random.Random
    flow: Flow = Flow.PASS
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    piece_bytes: int | None = None
    pause_seconds: float = 0.0
    allowed_bytes: int | None = None
    then: Ending | None = None
    banner: bytes = b""
    passed_bytes: int = 0

    def clear(self) -> None:
        """Behave as without a proxy."""
        self.flow = Flow.PASS
        self.delay_seconds = self.jitter_seconds = self.pause_seconds = 0.0
        self.piece_bytes = self.allowed_bytes = self.then = None
        self.banner = b""

    def delay(self, seconds: str, jitter: str = "0") -> None:
        """Let each read wait, as the command says."""
        self.delay_seconds, self.jitter_seconds = float(seconds), float(jitter)

    def pace(self, size: int, pause_seconds: float) -> None:
        """Pause after each ``size`` bytes. Raises ValueError if that is 0."""
        if size < 1:
            raise ValueError(f"a pace of {size} bytes is not possible")
        self.piece_bytes, self.pause_seconds = size, pause_seconds

    def begin_with(self, banner: bytes) -> None:
        """Send these bytes first on new connections."""
        self.banner = banner

    def allow(self, size: int, then: Ending | None) -> None:
        """Let this many more bytes pass."""
        self.flow = Flow.PASS
        self.allowed_bytes = (self.allowed_bytes or 0) + size
        self.then = then

    def wait_seconds(self) -> float:
        """How long new bytes must wait."""
        return self.delay_seconds + self.rng.uniform(0, self.jitter_seconds)

    def room(self, size: int) -> int:
        """How many of this many bytes may pass together."""
        return min([size, *(limit for limit in (self.piece_bytes, self.allowed_bytes) if limit is not None)])

    def passed(self, size: int) -> None:
        """Count bytes that have passed."""
        self.passed_bytes += size
        if self.allowed_bytes is not None:
            self.allowed_bytes -= size

    def end_allowance(self) -> Ending | None:
        """What happens now that all allowed bytes have passed; None means to hold."""
        ending, self.then = self.then, None
        if ending is None:
            self.flow = Flow.HOLD
        else:
            self.allowed_bytes = None
        return ending


@implementer(IPushProducer)
class Pipe:
    """Carries bytes from ``source`` to ``sink`` by the rules of its way. ``received`` sees them first."""

    def __init__(self, way: Way, link: "Link", clock: Any, received: Callable[[bytes], None]) -> None:
        self._way = way
        self._link = link
        self._clock = clock
        self._received = received
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._due = self._not_before = 0.0
        self._timer: IDelayedCall | None = None
        self._reading = True
        self._sink_is_full = False
        self._stranded = False
        self._source_ending: Ending | None = None
        self.closed = False
        self.source: Side | None = None
        self.sink: Side | None = None

    def begin(self) -> None:
        """Both ends are connected."""
        assert self.sink is not None, "it has joined"
        self.sink.line.registerProducer(self, True)
        if self._way.banner:
            self._put(self._way.banner)
        self.move()

    def take(self, data: bytes) -> None:
        """The source has sent bytes."""
        self._received(data)
        if not self.closed:
            self._put(data)
            self.move()

    def _put(self, data: bytes) -> None:
        self._due = max(self._due, self._clock.seconds() + self._way.wait_seconds())
        self._queue.append((self._due, data))
        self._queued_bytes += len(data)

    def source_ended(self, ending: Ending) -> None:
        """The source sends no more. The sink notices a close after all bytes, and a reset at once."""
        self._source_ending = ending
        self.move()

    def strand(self) -> None:
        """Let nothing pass any more."""
        self._stranded = True
        self.move()

    @property
    def _held(self) -> bool:
        return self._stranded or self._way.flow is Flow.HOLD

    def move(self) -> None:
        """Carry what may pass now. Called whenever something has changed."""
        self._forget_timer()
        if self.closed:
            return
        while self._queue and self.sink is not None and not self._held and not self._sink_is_full and self._carry():
            pass
        if self._source_ending is not None and not self._stranded and self._way.flow is Flow.PASS:
            self._pass_ending(self._source_ending)
        if self.source is not None and self._source_ending is None and not self.closed:
            self._read(self.sink is not None and not self._held and self._queued_bytes < QUEUE_BYTES)

    def _carry(self) -> bool:
        """Carry one piece; False if no other may follow now."""
        due, data = self._queue[0]
        wait = max(due, self._not_before) - self._clock.seconds()
        if wait > 0:
            self._timer = self._clock.callLater(wait, self._timed_out)
            return False
        size = self._way.room(len(data))
        if size:
            self._carry_bytes(due, data, size)
        if self._way.allowed_bytes == 0:
            self._link.allowance_ended(self._way.end_allowance())
        return not self.closed

    def _carry_bytes(self, due: float, data: bytes, size: int) -> None:
        assert self.sink is not None, "there is a sink before anything moves"
        self._queue.popleft()
        self._queued_bytes -= size
        if size < len(data):
            self._queue.appendleft((due, data[size:]))
        if self._way.flow is Flow.PASS:
            self.sink.line.write(data[:size])
        if self._way.piece_bytes is not None:
            self._not_before = self._clock.seconds() + self._way.pause_seconds
        self._way.passed(size)

    def _timed_out(self) -> None:
        self._timer = None
        self.move()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pass_ending(self, ending: Ending) -> None:
        if ending is Ending.RST:
            self._link.abort()
        elif not self._queue:
            self.close()

    def _read(self, wanted: bool) -> None:
        if self.source is not None and self.source.is_there and wanted is not self._reading:
            self._reading = wanted
            (self.source.line.resumeProducing if wanted else self.source.line.pauseProducing)()

    def close(self) -> None:
        """Close after the bytes that have passed. Later bytes are taken and dropped."""
        if not self.closed:
            self.drop()
            if self.sink is not None and self.sink.is_there:
                self.sink.line.unregisterProducer()
                self.sink.line.loseWriteConnection()
            self._link.closed()

    def drop(self) -> None:
        """The sink takes nothing any more."""
        self.closed = True
        self._queue.clear()
        self._forget_timer()
        if self._source_ending is None:
            self._read(True)

    def pauseProducing(self) -> None:
        self._sink_is_full = True

    def resumeProducing(self) -> None:
        self._sink_is_full = False
        self.move()

    def stopProducing(self) -> None:
        self._sink_is_full = True


@implementer(IHalfCloseableProtocol)
class Side(Protocol):
    """One end of a link: ``outgoing`` carries what it sends, ``incoming`` brings what it receives."""

    def __init__(self, link: "Link", outgoing: Pipe, incoming: Pipe) -> None:
        self._link = link
        self._outgoing = outgoing
        self._incoming = incoming
        self.is_there = self.read_ended = False

    @property
    def line(self) -> Any:
        """The transport of this end."""
        return self.transport

    def connectionMade(self) -> None:
        self.is_there = True
        self.line.setTcpNoDelay(True)
        self._outgoing.source = self._incoming.sink = self
        self._link.joined()

    def dataReceived(self, data: bytes) -> None:
        self._outgoing.take(data)

    def readConnectionLost(self) -> None:
        self.read_ended = True
        self._outgoing.source_ended(Ending.FIN)
        self._link.closed()

    def writeConnectionLost(self) -> None:
        """All bytes have been passed on."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_there = False
        self._incoming.drop()
        if not self.read_ended:
            self.read_ended = True
            self._outgoing.source_ended(Ending.RST)
        self._link.closed()
        self._link.side_gone()


class Link:
    """A client's connection, and its connection to the target."""

    def __init__(self, proxy: "Proxy", number: int) -> None:
        self._proxy = proxy
        self._number = number
        self._reports = ReportDecoder()
        self._connecting: Deferred[Any] | None = None
        self.down = Pipe(proxy.ways["down"], self, proxy.reactor, lambda data: None)
        self.up = Pipe(proxy.ways["up"], self, proxy.reactor, self._note_reports)
        self.client = Side(self, self.up, self.down)
        self.target = Side(self, self.down, self.up)

    @property
    def _sides(self) -> list[Side]:
        return [side for side in (self.client, self.target) if side.is_there]

    def connect(self, address: str) -> None:
        """Connect to the target."""
        self._connecting = connectProtocol(make_endpoint(self._proxy.reactor, address), self.target)
        self._connecting.addErrback(lambda _: self.abort())

    def _note_reports(self, data: bytes) -> None:
        now = time.monotonic()
        self._proxy.reports += [SeenReport(now, self._number, offset) for offset in self._reports.feed(data)]

    def joined(self) -> None:
        """A side is connected."""
        if len(self._sides) == 2:
            self.up.begin()
            self.down.begin()
        else:
            self.up.move()  # this stops reading: the client keeps its bytes until there is a target

    def move(self) -> None:
        """A rule has changed."""
        self.up.move()
        self.down.move()

    def strand(self, way: str) -> None:
        """Let nothing pass this way any more."""
        (self.up if way == "up" else self.down).strand()

    def allowance_ended(self, ending: Ending | None) -> None:
        """The last allowed byte has passed here."""
        if ending is not None:
            self.end(ending)
        else:
            self._proxy.move()

    def end(self, ending: Ending) -> None:
        """End the link at both sides."""
        if ending is Ending.FIN and len(self._sides) == 2:
            self.up.close()
            self.down.close()
        else:
            self.abort()

    def closed(self) -> None:
        """Something has closed. The link is over when both sides are closed and each has noticed it."""
        if self.up.closed and self.down.closed and all(side.read_ended for side in self._sides):
            for side in self._sides:
                side.line.loseConnection()

    def abort(self) -> None:
        """Reset both sides."""
        self.up.drop()
        self.down.drop()
        if self._connecting is not None:
            self._connecting.cancel()
        for side in self._sides:
            side.line.abortConnection()

    def side_gone(self) -> None:
        """A side is disconnected."""
        if not self._sides:
            self.abort()
            self._proxy.links.discard(self)


class ClientFactory(Factory[Side]):
    """Makes a link for each client."""

    noisy = False

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy

    def buildProtocol(self, addr: IAddress | None) -> Side:
        return self._proxy.new_link().client


class Proxy:
    """What outlives connections: rules, counters and the listening port."""

    def __init__(self, target: str, seed: int, reactor: Any) -> None:
        """Raises ValueError if the target is not an address."""
        self.reactor = reactor
        self._go_to(target)
        self._welcome = Welcome.RELAY
        self._port: Any = None
        self._address = (LOCALHOST, 0)
        self._accepted = 0
        self.links: set[Link] = set()
        self.reports: list[SeenReport] = []
        self.ways = {name: Way(random.Random(f"{seed} {name}")) for name in ("down", "up")}

    def listen(self, host: str, port: int) -> None:
        """Raises CannotListenError."""
        self._port = self.reactor.listenTCP(port, ClientFactory(self), backlog=BACKLOG, interface=host)
        self._address = (host, self._port.getHost().port)

    def new_link(self) -> Link:
        """A client has connected."""
        link = Link(self, self._accepted)
        self._accepted += 1
        self.links.add(link)
        if self._welcome is Welcome.RELAY:
            link.connect(self._target)
        return link

    def move(self) -> None:
        """A rule has changed."""
        for link in list(self.links):
            link.move()

    async def obey(self, words: list[str]) -> dict[str, Any]:
        """Execute a command; returns its answer. Raises KeyError, TypeError, IndexError, ValueError, OSError."""
        name, *arguments = words
        if name == "reports":
            (first,) = arguments
            return {"reports": self.reports[int(first) :]}
        if name in ("up", "down", "both"):
            for way in self.ways if name == "both" else (name,):
                self._rule(way, *arguments)
            self.move()
        elif name == "accept":
            await self._accept(Welcome(*arguments))
        elif name != "facts":
            {"cut": self._cut, "target": self._go_to}[name](*arguments)
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """The fields of ``Facts``."""
        up, down = self.ways["up"], self.ways["down"]
        return {
            "port": self._address[1],
            "accepted": self._accepted,
            "open": sum(not link.client.read_ended for link in self.links),
            "up": up.passed_bytes,
            "down": down.passed_bytes,
            "reported": max((report.offset for report in self.reports), default=None),
            "up_allowed": up.allowed_bytes,
            "down_allowed": down.allowed_bytes,
        }

    def _rule(self, name: str, verb: str, *arguments: str) -> None:
        way = self.ways[name]
        rules: dict[str, Callable[..., None]] = {
            "pass": way.clear,
            "delay": way.delay,
            "pace": lambda size, pause: way.pace(int(size), float(pause)),
            "allow": lambda size, then: way.allow(int(size), None if then == Flow.HOLD.value else Ending(then)),
            "banner": lambda data: way.begin_with(bytes.fromhex(data)),
            "strand": lambda: self._strand(name),
        }
        if verb in rules:
            rules[verb](*arguments)
        else:
            way.flow = Flow(verb, *arguments)

    def _strand(self, way: str) -> None:
        for link in self.links:
            link.strand(way)

    def _cut(self, ending: str) -> None:
        for link in list(self.links):
            link.end(Ending(ending))

    async def _accept(self, welcome: Welcome) -> None:
        self._welcome = welcome
        if welcome is Welcome.REFUSE and self._port is not None:
            port, self._port = self._port, None
            await port.stopListening()
        elif welcome is not Welcome.REFUSE and self._port is None:
            self.listen(*self._address)

    def _go_to(self, target: str) -> None:
        make_endpoint(self.reactor, target)
        self._target = target


class Commands(LineOnlyReceiver):
    """Standard input and output."""

    delimiter = b"\n"

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def connectionMade(self) -> None:
        self._tell(self._proxy.facts())

    def lineReceived(self, line: bytes) -> None:
        obeyed = Deferred.fromCoroutine(self._proxy.obey(line.decode().split()))
        obeyed.addErrback(lambda failure: {"error": repr(failure.value)}).addCallback(self._tell)

    def _tell(self, facts: dict[str, Any]) -> None:
        self.sendLine(json.dumps(facts).encode())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        with suppress(ReactorNotRunning):
            self._proxy.reactor.stop()


def main(arguments: list[str]) -> None:
    """Run until standard input ends."""
    from twisted.internet import reactor

    parser = argparse.ArgumentParser(prog="python -m rmqha.testing.proxy")
    parser.add_argument("--target", required=True, help="HOST:PORT")
    parser.add_argument("--listen", default=f"{LOCALHOST}:0", help="HOST:PORT, port 0 for any free one")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter")
    options = parser.parse_args(arguments)
    host, _, port = options.listen.rpartition(":")
    proxy = Proxy(options.target, options.seed, reactor)
    proxy.listen(host, int(port))
    StandardIO(Commands(proxy))
    reactor.run()


class ProxyError(Exception):
    """A proxy did not obey a command, or an awaited event did not happen."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a proxy has done: its port, the connections ever accepted, the bytes passed each way.

    ``open`` counts the connections whose client has not closed its side, as far as the proxy has read. ``reported`` is
    the greatest offset that a slave has reported, None before the first. ``up_allowed`` and ``down_allowed`` are the
    bytes that may still pass, None without a limit.
    """

    port: int
    accepted: int
    open: int
    up: int
    down: int
    reported: int | None
    up_allowed: int | None
    down_allowed: int | None


class FaultProxy:
    """Starts a proxy process and controls it. Every call blocks and has a deadline. A context manager."""

    def __init__(self, target: str, listen: str = f"{LOCALHOST}:0", seed: int = 0) -> None:
        self._arguments = [f"--target={target}", f"--listen={listen}", f"--seed={seed}"]
        self._host = listen.rpartition(":")[0]
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._unread = b""
        self._port = 0

    def start(self) -> "FaultProxy":
        """Start the proxy. It listens when this returns. Raises ProxyError."""
        with open(2, "wb", closefd=False) as errors:
            self._process = start_with_pipes("rmqha.testing.proxy", self._arguments, errors)
        self._port = Facts(**self._answer()).port
        return self

    def close(self) -> None:
        """Stop the proxy, and all its connections."""
        if self._process is not None:
            with self._process:  # which closes its files, and waits
                self._process.kill()
            self._process = None

    def __enter__(self) -> "FaultProxy":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Its address, host:port."""
        return f"{self._host}:{self._port}"

    def command(self, text: str) -> Facts:
        """Send a command and wait for its answer. Raises ProxyError."""
        return Facts(**self._ask(text))

    def facts(self) -> Facts:
        """What the proxy has done so far."""
        return self.command("facts")

    @property
    def reports(self) -> list[SeenReport]:
        """All reports of slaves, whether they have passed or not."""
        return [SeenReport(*report) for report in self._ask("reports 0")["reports"]]

    def let_through(self, count: float) -> None:
        """Pass this many more bytes on to slaves, then hold back the rest. ``math.inf`` passes all."""
        self.command("down pass" if count == math.inf else f"down allow {int(count)} hold")

    def cut(self) -> None:
        """Drop the existing connections. Held bytes are lost."""
        self.command("cut rst")

    def wait_until_passed(self) -> None:
        """Wait until all allowed bytes have passed."""
        self.wait_until(lambda facts: not facts.down_allowed, "the bytes to pass to a slave")

    def wait_until_quiet(self) -> None:
        """Wait until no connection is left, so that ``reports`` contains every report made on one."""
        self.wait_until(lambda facts: not facts.open, "the end of the connections")

    def wait_until(self, reached: Callable[[Facts], bool], what: str, seconds: float = ANSWER_SECONDS) -> Facts:
        """The first facts that ``reached`` accepts. Raises ProxyError."""
        deadline = time.monotonic() + seconds
        while not reached(facts := self.facts()):
            if time.monotonic() > deadline:
                raise ProxyError(f"waited {seconds:g} s for {what}: {facts}")
            time.sleep(POLL_SECONDS)
        return facts

    def _ask(self, text: str) -> dict[str, Any]:
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise ProxyError(f"{text}: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None, "it was started"
        assert self._process.stdout is not None, "it is a pipe"
        fd, deadline, poll = self._process.stdout.fileno(), time.monotonic() + ANSWER_SECONDS, select.poll()
        poll.register(fd, select.POLLIN)
        while b"\n" not in self._unread:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            data = os.read(fd, 1 << 16) if ready else b""
            if not data:
                raise ProxyError("the proxy does not answer")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


if __name__ == "__main__":
    main(sys.argv[1:])
