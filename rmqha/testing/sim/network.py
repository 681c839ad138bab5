"""A network in memory: bytes wait on their way until a step delivers some of them, or cuts the line.

What a dead process had written is still delivered, as a kernel would; of a machine without power nothing comes any
more, not even the end of its connections.
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import (
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
    TimeoutError,
)
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IPushProducer, IStreamClientEndpoint, ITransport
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.ha.slave.replica import MasterView
from rmqha.testing.sim.process import Process

CONNECT_TIMEOUT_SECONDS = 30.0
QUESTION_TIMEOUT_SECONDS = 5.0


OUR_NETWORK = "10.0.0.0/24"
"""Where all nodes are, and no stranger is."""


def address_of(name: str) -> str:
    """The IP address of a node, or of a stranger."""
    if name == "master":
        return "10.0.0.1"
    kind, _, number = name.partition("-")
    return f"10.0.0.{1 + int(number)}" if kind == "slave" else "192.0.2.1"


class Ending(Enum):
    """How an end learns that the other is gone: behind the bytes on their way, or instead of them."""

    FIN = "FIN"
    RESET = "RST"


@implementer(ITransport)
class End:
    """One end of a connection, and a transport to its protocol. ``inbound`` is on its way to it."""

    def __init__(self, process: Process, peer_name: str, port: int, buffer_bytes: int) -> None:
        self.process = process
        self.peer_name = peer_name
        self.protocol: IProtocol | None = None
        self.peer: End | None = None
        self.inbound = bytearray()
        self.ending: Ending | None = None
        self.closed = False  # no more calls go in, no bytes come out
        self.silent = False  # its machine lost power
        self.paused = False  # its protocol reads nothing for now
        self.watch: Callable[[bytes], None] | None = None
        self._port = port
        self._buffer_bytes = buffer_bytes
        self._producer: IPushProducer | None = None
        self._producer_paused = False

    @property
    def name(self) -> str:
        """The node it belongs to."""
        return self.process.name

    def has_news(self) -> bool:
        """Whether a step could deliver something here."""
        is_heard = not self.closed and not self.paused and not self.process.is_stopped
        return is_heard and bool(self.inbound or self.ending)

    def attach(self, protocol: IProtocol) -> None:
        """Connect the protocol."""
        self.protocol = protocol
        protocol.makeConnection(self)

    # What Twisted calls

    def write(self, data: bytes) -> None:
        if self.closed or not self.process.alive:
            return
        if self.watch is not None:
            self.watch(data)
        peer = self.peer
        assert peer is not None
        if peer.closed:
            if not peer.silent or peer.process.machine_has_power():
                self.ending = Ending.RESET  # nobody there knows this connection
            return
        if peer.ending is Ending.RESET:
            return
        peer.inbound += data
        if self._producer is not None and len(peer.inbound) > self._buffer_bytes and not self._producer_paused:
            self._producer_paused = True
            self._producer.pauseProducing()

    def writeSequence(self, data: Any) -> None:
        self.write(b"".join(data))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False

    def stopProducing(self) -> None:
        self.loseConnection()

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", address_of(self.peer_name), self._port)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", address_of(self.name), self._port)

    def loseConnection(self) -> None:
        self._close(Ending.FIN, ConnectionDone())

    def abortConnection(self) -> None:
        self._close(Ending.RESET, ConnectionAborted())

    def _close(self, ending: Ending, reason: Exception) -> None:
        if not self.closed:
            self.closed = True
            self.tell_peer(ending)
            self.process.clock.callLater(0, self.lost, reason)

    def tell_peer(self, ending: Ending) -> None:
        """The other end will hear that this one is gone."""
        if self.peer is not None and self.peer.ending is None:
            self.peer.ending = ending

    # What the simulation calls

    def deliver(self, limit_bytes: int | None = None) -> None:
        """Bytes come in, or the end where no bytes are left."""
        assert self.protocol is not None
        assert self.peer is not None
        data = bytes(self.inbound[:limit_bytes])
        del self.inbound[: len(data)]
        if data:
            self.process.call(self.protocol.dataReceived, data)
            if not self.inbound:
                self.peer.drained()
        elif not self.inbound and self.ending is not None:
            self.closed = True
            self.tell_peer(Ending.FIN)
            reason = ConnectionDone() if self.ending is Ending.FIN else ConnectionLost()
            self.process.call(self.lost, reason)

    def reset(self) -> None:
        """The connection is gone, with all that was on its way here."""
        self.inbound.clear()
        self.ending = Ending.RESET

    def drained(self) -> None:
        """What this end wrote has been taken."""
        if self._producer_paused:
            self._producer_paused = False
            if self._producer is not None and not self.closed:
                self.process.call(self._producer.resumeProducing)

    def lost(self, reason: Exception) -> None:
        """Tell the protocol, once."""
        protocol, self.protocol = self.protocol, None
        self.inbound.clear()
        if protocol is not None:
            protocol.connectionLost(Failure(reason))


class Attempt:
    """A process connects, or asks: it waits for a step to answer, or for its own deadline."""

    def __init__(self, process: Process, target: str, timeout: float, over: Callable[["Attempt"], None]) -> None:
        self.process = process
        self.target = target
        self._tell_over = over
        self.answer: Deferred[Any] = Deferred(lambda _: self._end())
        self._timer = process.clock.callLater(timeout, self.refuse, TimeoutError())

    def _end(self) -> None:
        if self._timer.active():
            self._timer.cancel()
        self._tell_over(self)

    def succeed(self, result: Any) -> None:
        """It has worked."""
        self._end()
        self.answer.callback(result)

    def refuse(self, reason: Exception | None = None) -> None:
        """It has not."""
        self._end()
        self.answer.errback(Failure(reason or ConnectionRefusedError()))


class Connecting(Attempt):
    """A connection is wanted, to be made by this factory."""

    def __init__(
        self, process: Process, target: str, factory: IProtocolFactory, over: Callable[[Attempt], None]
    ) -> None:
        super().__init__(process, target, CONNECT_TIMEOUT_SECONDS, over)
        self.factory = factory


class Question(Attempt):
    """A slave asks its master's remoting port. ``view`` is the answer on its way."""

    def __init__(self, process: Process, target: str, over: Callable[[Attempt], None]) -> None:
        super().__init__(process, target, QUESTION_TIMEOUT_SECONDS, over)
        self.view: MasterView | None = None


class Network:
    """All lines between nodes. Each direction between two can be blocked: what is sent there waits."""

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._last_port = 40000
        self.ends: list[End] = []
        self.attempts: list[Attempt] = []
        self.blocked: set[tuple[str, str]] = set()
        self.mute: set[str] = set()
        """The nodes whose remoting port answers nobody; their HA port works."""

    def endpoint(self, process: Process, target: str) -> IStreamClientEndpoint:
        """The way to a node, for this process."""
        return SimEndpoint(process, target, self)

    def ask(self, process: Process, target: str) -> Awaitable[MasterView]:
        """What a node's remoting port says."""
        question = Question(process, target, self.over)
        self.attempts.append(question)
        return question.answer

    def connecting(self, process: Process, target: str, factory: IProtocolFactory) -> Deferred[IProtocol]:
        """A process connects to a node."""
        attempt = Connecting(process, target, factory, self.over)
        self.attempts.append(attempt)
        return attempt.answer

    def over(self, attempt: Attempt) -> None:
        """The attempt has been answered, or was given up."""
        if attempt in self.attempts:
            self.attempts.remove(attempt)

    def passes(self, source: str, target: str) -> bool:
        """Whether anything gets through in this direction."""
        return (source, target) not in self.blocked

    def reachable(self, attempt: Attempt) -> bool:
        """Whether packets go both ways, and the port answers."""
        name = attempt.process.name
        if attempt.target in self.mute and not isinstance(attempt, Connecting):
            return False
        return self.passes(name, attempt.target) and self.passes(attempt.target, name)

    def make_line(self, process: Process, target: Process) -> tuple[End, End]:
        """Both ends of a new connection, without protocols."""
        self._last_port += 1
        near = End(process, target.name, self._last_port, self._buffer_bytes)
        far = End(target, process.name, self._last_port, self._buffer_bytes)
        near.peer, far.peer = far, near
        self.ends = [end for end in self.ends if not (end.closed and end.protocol is None)]
        self.ends += [near, far]
        return near, far

    def news(self) -> list[End]:
        """The ends that a step could deliver something to."""
        return [end for end in self.ends if end.has_news() and self.passes(end.peer_name, end.name)]

    def process_died(self, process: Process, power_lost: bool, keep_on_way: Callable[[int], int]) -> None:
        """The kernel closes what the process had open, or is itself gone: then only part of what it sent may come."""
        for end in self.ends:
            if end.process is process:
                was_closed, end.closed, end.protocol, end.silent = end.closed, True, None, power_lost
                end.inbound.clear()
                if power_lost and end.peer is not None:
                    del end.peer.inbound[keep_on_way(len(end.peer.inbound)) :]
                elif not was_closed:
                    end.tell_peer(Ending.FIN)
        self.attempts = [attempt for attempt in self.attempts if attempt.process is not process]


@implementer(IStreamClientEndpoint)
class SimEndpoint:
    """A node, to a process that connects."""

    def __init__(self, process: Process, target: str, network: Network) -> None:
        self._process = process
        self._target = target
        self._network = network

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:
        return self._network.connecting(self._process, self._target, factory)
