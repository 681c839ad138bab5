"""One connection of a small HTTP server that anyone may reach: its headers are limited, and it has deadlines."""

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel

MAX_HEADER_BYTES = 8 * 1024
MAX_HEADERS = 64


class LimitedChannel(HTTPChannel):
    """A connection. Its deadlines do not move when a client sends single bytes."""

    maxHeaders = MAX_HEADERS
    totalHeadersSize = MAX_HEADER_BYTES
    MAX_LENGTH = 2 * MAX_HEADER_BYTES
    timeOut: int | None = None
    clock: IReactorTime
    request_seconds: float
    """A connection without a complete request is closed after this time."""
    answer_seconds: float | None = None
    """An answer that is not given by then is given up; None: never."""
    is_answering = False
    _deadline: IDelayedCall | None = None
    _is_refused = False

    def callLater(self, period: float, func: Callable[[], None]) -> IDelayedCall:
        return self.clock.callLater(period, func)

    def connectionMade(self) -> None:
        super().connectionMade()  # type: ignore[no-untyped-call]  # Twisted's
        self._set_deadline(self.request_seconds)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = self.clock.callLater(seconds, self._end_of_time)

    def _end_of_time(self) -> None:
        self._deadline = None
        self.too_late()

    def too_late(self) -> None:
        """A deadline is over."""
        self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        transport: Any = self.transport
        if transport is not None:
            transport.abortConnection()

    def allContentReceived(self) -> None:
        if self._is_refused:
            return
        self.is_answering = True
        self._set_deadline(self.answer_seconds)
        super().allContentReceived()  # type: ignore[no-untyped-call]  # Twisted's

    def requestDone(self, request: Any) -> None:
        self.is_answering = False
        self._set_deadline(self.request_seconds)
        super().requestDone(request)  # type: ignore[no-untyped-call]  # Twisted's

    def refuse(self, status: str) -> None:
        """Answer with this status, and close."""
        self._is_refused = True
        transport: Any = self.transport
        transport.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        self.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if not self._is_refused:
            super().dataReceived(data)  # type: ignore[no-untyped-call]  # Twisted's

    def gone(self) -> None:
        """The connection has ended. Each kind of channel says what that means."""
        raise NotImplementedError

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._set_deadline(None)
        self.gone()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]  # Twisted's
