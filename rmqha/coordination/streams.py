"""The connections of the client: how it connects, and how it reads answers of limited size."""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IConsumer, IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from rmqha.coordination.gateway import NothingDone
from rmqha.coordination.interface import CoordinatorUnavailable
from rmqha.kit.connecting import reason_of

MAX_ANSWER_BYTES = 16 * 1024**2
MAX_LINE_BYTES = 16 * 1024**2
"""A line of a watch: the changes of up to a thousand revisions."""


@implementer(IStreamClientEndpoint)
class Connecting:
    """Connects within a time of its own, so that a request knows whether it was sent."""

    def __init__(self, endpoint: IStreamClientEndpoint, seconds: float, clock: IReactorTime) -> None:
        self._endpoint = endpoint
        self._seconds = seconds
        self._clock = clock

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return self._endpoint.connect(protocolFactory).addTimeout(self._seconds, self._clock).addErrback(self._failed)

    def _failed(self, failure: Failure) -> Failure:
        if failure.check(CancelledError):
            return failure
        return Failure(NothingDone(f"No connection: {reason_of(failure.value)}."))


@implementer(IBodyProducer)
class Content:
    """The body of a request, written at once. Twisted's own producer would take further turns."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)

    def startProducing(self, consumer: IConsumer) -> Deferred[None]:
        consumer.write(self._data)
        return succeed(None)

    def pauseProducing(self) -> None:
        """There is nothing left to pause."""

    def resumeProducing(self) -> None:
        """There is nothing left to write."""

    def stopProducing(self) -> None:
        """There is nothing left to stop."""


class Body(Protocol):
    """Collects an answer of a limited size."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self.collected: Deferred[bytes] = Deferred(lambda _: self._abort())

    def _abort(self) -> None:
        transport: Any = self.transport  # Twisted's stand-in for the connection, which cannot abort it
        if transport is not None:
            transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            self._end(Failure(CoordinatorUnavailable(f"An answer is larger than {MAX_ANSWER_BYTES} bytes.")))
            self._abort()
        elif not self.collected.called:
            self._pieces.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        from twisted.web.client import ResponseDone

        if reason.check(ResponseDone):
            self._end(b"".join(self._pieces))
        else:
            self._end(Failure(CoordinatorUnavailable(f"The answer broke off: {reason_of(reason.value)}.")))

    def _end(self, result: Any) -> None:
        if not self.collected.called:
            self.collected.callback(result)


class Lines(Protocol):
    """Splits the stream of a watch into lines of a limited length."""

    def __init__(self, received: Callable[[bytes], None], ended: Callable[[str], None]) -> None:
        self._received = received
        self._ended = ended
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_closed = False

    def dataReceived(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._is_closed:
                return
            complete = b"".join((*self._pieces, line))
            self._pieces, self._size = [], 0
            if complete.strip():
                self._received(complete)
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > MAX_LINE_BYTES and not self._is_closed:
            self._end(f"a line is longer than {MAX_LINE_BYTES} bytes")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._end(reason_of(reason.value))

    def _end(self, reason: str) -> None:
        if not self._is_closed:
            self.close()
            self._ended(reason)

    def close(self) -> None:
        """Close the connection. Nothing is called any more."""
        self._is_closed = True
        transport: Any = self.transport
        if transport is not None:
            transport.loseConnection()


def cause_of(error: BaseException) -> BaseException:
    """The first cause in Twisted's errors of requests, which have a list of failures."""
    while reasons := getattr(error, "reasons", None):
        error = reasons[0].value
    return error
