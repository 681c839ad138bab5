"""A small HTTP server for a few pages that are only read, on twisted.web.

Anyone who reaches the port may ask, so each limit is small: connections, requests a second, bytes of headers, and the
time that a request and the reading of its answer may take. No request has a body.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IPullProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site
from zope.interface import implementer

from rmqha.kit.events import Event
from rmqha.kit.httpchannel import LimitedChannel
from rmqha.kit.rates import Rate, TokenBucket

MAX_CONNECTIONS = 64
REQUEST_SECONDS = 15.0
"""A connection without a complete request is closed after this time."""
ANSWER_SECONDS = 30.0
"""An answer that is not ready and handed to the system by then is given up."""
REQUESTS_PER_SECOND = 100
REQUESTS_AT_ONCE = 200
RETRY_SECONDS = 2
PIECE_BYTES = 64 * 1024
"""This many bytes of an answer wait for a slow client at a time."""
TEXT = "text/plain; charset=utf-8"
HEADERS = {
    "Server": "rmqha",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
"""In every answer."""


class Query(NamedTuple):
    """What a client asks for: the last value of each parameter, and two of its headers."""

    parameters: Mapping[str, str]
    accept: str
    takes_gzip: bool


class Page(NamedTuple):
    """An answer."""

    code: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


Handler = Callable[[Query], Page | Deferred[Page]]


def text_page(code: int, line: str, **headers: str) -> Page:
    """One line of text."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Page(code, TEXT, f"{line}\n".encode("utf-8", "backslashreplace"), named)


BUSY = text_page(503, "busy: try again soon", Retry_After=str(RETRY_SECONDS))


class Pages(Resource):
    """Answers each path by its handler. Only GET and HEAD are allowed."""

    isLeaf = True
    _log = Logger()

    def __init__(self, handlers: Mapping[str, Handler], clock: IReactorTime) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Twisted's
        self._handlers = dict(handlers)
        self._clock = clock
        self._bucket = TokenBucket(Rate(REQUESTS_AT_ONCE, REQUESTS_PER_SECOND), clock.seconds())
        self.refused: Counter[str] = Counter()
        """How many requests were refused, by reason."""

    def add(self, handlers: Mapping[str, Handler]) -> None:
        """Answer more paths."""
        self._handlers |= handlers

    def render(self, request: Any) -> Any:
        """Answer a request, now or later."""
        page = self._page(request)
        if isinstance(page, Page):
            _send(request, page)
            return NOT_DONE_YET
        gone: list[Failure] = []
        request.notifyFinish().addErrback(gone.append)
        page.addErrback(self._failed).addCallback(lambda ready: None if gone else _send(request, ready))
        return NOT_DONE_YET

    def _page(self, request: Any) -> Page | Deferred[Page]:
        if request.method not in (b"GET", b"HEAD"):
            return text_page(405, "this port only answers GET and HEAD", Allow="GET, HEAD")
        if not self._bucket.take_one(self._clock.seconds()):
            self.refused["too many requests"] += 1
            return BUSY
        path = request.path.decode("ascii", "replace")
        handler = self._handlers.get(path)
        if handler is None:
            return text_page(404, f"there is nothing here. Try {', '.join(self._handlers)}")
        try:
            return handler(_query_of(request))
        except Exception:  # the client gets an answer to any error
            return self._failed(Failure())

    def _failed(self, failure: Failure) -> Page:
        self._log.failure("an HTTP request failed", failure, event=Event.HTTP_REQUEST_FAILED)
        return text_page(500, "this page failed: the log says why")


def _query_of(request: Any) -> Query:
    parameters = {
        name.decode("utf-8", "replace"): values[-1].decode("utf-8", "replace") for name, values in request.args.items()
    }
    accept = request.getHeader(b"accept") or b""
    encodings = request.getHeader(b"accept-encoding") or b""
    return Query(parameters, accept.decode("latin-1"), b"gzip" in encodings)


def _send(request: Any, page: Page) -> None:
    request.setResponseCode(page.code)
    for name, value in {**HEADERS, **page.headers, "Content-Type": page.content_type}.items():
        request.setHeader(name, value)
    request.setHeader("Content-Length", str(len(page.body)))
    if request.method == b"HEAD" or len(page.body) <= PIECE_BYTES:
        request.write(page.body if request.method != b"HEAD" else b"")
        request.finish()
    else:
        BodyProducer(request, page.body).start()


@implementer(IPullProducer)
class BodyProducer:
    """Writes a long answer piece by piece, as its client reads it."""

    def __init__(self, request: Any, body: bytes) -> None:
        self._request = request
        self._rest = memoryview(body)

    def start(self) -> None:
        """Write the first piece when the transport is ready."""
        self._request.registerProducer(self, False)

    def resumeProducing(self) -> None:
        piece, self._rest = self._rest[:PIECE_BYTES], self._rest[PIECE_BYTES:]
        self._request.write(bytes(piece))
        if not self._rest:
            self._request.unregisterProducer()
            self._request.finish()

    def stopProducing(self) -> None:
        self._rest = memoryview(b"")


class BodilessRequest(Request):
    """A request that may not have a body."""

    def gotLength(self, length: int | None) -> None:
        """The headers are complete. ``length`` is the body's, None for one in chunks."""
        super().gotLength(0)  # type: ignore[no-untyped-call]  # Twisted's
        if length != 0:
            channel: Any = self.channel
            channel.refuse("413 Content Too Large")


class Channel(LimitedChannel):
    """One connection."""

    requestFactory = BodilessRequest
    request_seconds = REQUEST_SECONDS
    answer_seconds = ANSWER_SECONDS
    site: "Server"

    def too_late(self) -> None:
        self.site.pages.refused["too slow"] += 1
        self.abort()

    def gone(self) -> None:
        self.site.gone(self)


class Server(Site):
    """Builds connections. A new one takes the place of the oldest connection without a request if all are taken."""

    noisy = False
    _log = Logger()

    def __init__(self, handlers: Mapping[str, Handler], clock: IReactorTime) -> None:
        self.pages = Pages(handlers, clock)
        super().__init__(self.pages, reactor=clock)  # type: ignore[no-untyped-call]  # Twisted's
        self.channels: dict[Channel, None] = {}
        """The open connections, the oldest first."""

    def startFactory(self) -> None:
        """Twisted would start a timer for its log of requests. There is no such log."""

    def stopFactory(self) -> None:
        """See ``startFactory``."""

    def log(self, request: Any) -> None:
        """Log nothing: anyone could fill the disk."""

    def buildProtocol(self, addr: IAddress | None) -> Channel | None:  # type: ignore[override]  # no HTTP/2
        """A connection; None, which closes it, if all places are taken by connections that wait for their answers."""
        if len(self.channels) >= MAX_CONNECTIONS and not self._free_a_place():
            self.pages.refused["too many connections"] += 1
            return None
        channel = Channel()
        channel.factory = self
        channel.site = self
        channel.clock = self.reactor
        self.channels[channel] = None
        return channel

    def _free_a_place(self) -> bool:
        idle = next((channel for channel in self.channels if not channel.is_answering), None)
        if idle is None:
            return False
        self.pages.refused["displaced by a new connection"] += 1
        self.gone(idle)
        idle.abort()
        return True

    def gone(self, channel: Channel) -> None:
        """The connection has ended, or has lost its place."""
        self.channels.pop(channel, None)

    def close_connections(self) -> None:
        """Close all connections."""
        for channel in list(self.channels):
            channel.abort()
