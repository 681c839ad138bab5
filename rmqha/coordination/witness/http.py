"""The witness's port: HTTP, with limits. Each connection has one request at a time, and a watch keeps its connection.

Anyone who reaches the port may send anything. So bodies, connections of an address, and requests on their way are
limited, a connection without a request is closed after a while, and a client that does not read its watch loses it.
"""

from collections import Counter
from io import BytesIO
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPFactory, Request
from zope.interface import Interface, implementer

from rmqha.coordination.interface import Change, CoordinatorError
from rmqha.coordination.witness.calls import UNIMPLEMENTED, Answer, CallRefused, WitnessCalls, read_object, refusal
from rmqha.coordination.witness.witnessservice import Watch
from rmqha.kit.events import Event
from rmqha.kit.httpchannel import LimitedChannel

MAX_CONNECTIONS = 1024
MAX_CONNECTIONS_OF_ADDRESS = 64
MAX_BODY_BYTES = 256 * 1024
MAX_BODIES_BYTES = 32 * 1024**2
"""The bodies that are on their way, of all connections together."""
IDLE_SECONDS = 120.0
"""A connection without a complete request is closed after this time. Our client gives one up after 60 s."""
UNREAD_SECONDS = 30.0
"""A client that does not read its watch for this long loses it."""
WRONG_LOGIN_SECONDS = 1.0
LOGIN, WATCH = "/v3/auth/authenticate", "/v3/watch"


class IPeers(Interface):
    """Which peers may connect, and which of them count as one."""

    def may_connect(host: str) -> bool:
        """Whether this host may connect."""

    def network_of(host: str) -> str:
        """What hosts have in common that count as one."""

    def wrong_login(host: str) -> None:
        """This host tried to log in, and may not."""


class WitnessRequest(Request):
    """A request whose body is limited, stays in memory and is not parsed as a form."""

    channel: Any

    def gotLength(self, length: int | None) -> None:
        """The headers are complete. ``length`` is the body's, None for one in chunks."""
        self.content = BytesIO()
        factory: WitnessFactory = self.channel.witness
        if length is None:
            self.channel.refuse("411 Length Required")
        elif length > MAX_BODY_BYTES:
            self.channel.refuse("413 Content Too Large")
        elif factory.bodies_bytes + length > MAX_BODIES_BYTES:
            self.channel.refuse("503 Service Unavailable")
        else:
            self.channel.holds(length)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The body is complete."""
        self.method, self.uri, self.clientproto = command, path, version
        self.path = path.partition(b"?")[0]
        self.process()

    @property
    def body(self) -> bytes:
        """The body that has come."""
        content: Any = self.content
        content.seek(0)
        found: bytes = content.read()
        return found

    def process(self) -> None:
        self.channel.witness.handle(self)

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended."""
        return self.channel is None or bool(self._disconnected)


class WitnessChannel(LimitedChannel):
    """One connection."""

    requestFactory = WitnessRequest
    request_seconds = IDLE_SECONDS
    witness: "WitnessFactory"
    network = ""
    _held_bytes = 0

    def holds(self, size: int) -> None:
        """The body of the request that comes has this size."""
        self.witness.bodies_bytes += size - self._held_bytes
        self._held_bytes = size

    def requestDone(self, request: Any) -> None:
        self.holds(0)
        super().requestDone(request)

    def refuse(self, status: str) -> None:
        self.witness.refused[status] += 1
        super().refuse(status)

    def gone(self) -> None:
        self.holds(0)
        self.witness.gone(self)


@implementer(IPushProducer)
class WatchStream:
    """The answer to a watch: lines, as far as its client reads them."""

    def __init__(self, request: WitnessRequest, calls: WitnessCalls, clock: IReactorTime) -> None:
        self._request = request
        self._calls = calls
        self._clock = clock
        self._watch: Watch | None = None
        self._unread: IDelayedCall | None = None
        self._is_over = False

    def start(self, prefix: str, revision: int) -> None:
        """Begin. Raises CoordinatorError."""
        service, request = self._calls.service, self._request
        self._watch = service.watch(prefix, revision, self)
        request.notifyFinish().addBoth(lambda _: self._gone())
        request.setHeader(b"Content-Type", b"application/json")
        request.registerProducer(self, True)
        request.write(self._calls.line(service.revision, created=True))
        service.pump(self._watch)

    @property
    def is_ready(self) -> bool:
        return self._unread is None and not self._is_over

    def changed(self, revision: int, changes: tuple[Change, ...]) -> None:
        self._request.write(self._calls.changes_line(revision, changes))

    def progress(self, revision: int) -> None:
        self._request.write(self._calls.line(revision))

    def ended(self, compacted: int) -> None:
        if not self._is_over and compacted:
            line = self._calls.line(self._calls.service.revision, canceled=True, compact_revision=str(compacted))
            self._request.write(line)
        self._finish()

    def _finish(self) -> None:
        if not self._is_over:
            self._gone()
            self._request.unregisterProducer()
            self._request.finish()

    def _gone(self) -> None:
        self._is_over = True
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self._watch is not None:
            self._calls.service.forget(self._watch)

    def pauseProducing(self) -> None:
        if self._unread is None and not self._is_over:
            self._unread = self._clock.callLater(UNREAD_SECONDS, self._not_read)

    def _not_read(self) -> None:
        self._unread = None
        self._request.channel.abort()

    def resumeProducing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self._watch is not None and not self._is_over:
            self._calls.service.pump(self._watch)

    def stopProducing(self) -> None:
        self._gone()


class WitnessFactory(HTTPFactory):
    """Builds connections, and answers their requests."""

    noisy = False
    _log = Logger()

    def __init__(self, calls: WitnessCalls, clock: IReactorTime, peers: IPeers) -> None:
        super().__init__(reactor=clock)
        self.clock = clock
        self.calls = calls
        self._peers = peers
        self.channels: dict[WitnessChannel, None] = {}
        """The open connections, the oldest first."""
        self._of_networks: Counter[str] = Counter()
        self.bodies_bytes = 0
        """The bodies that are on their way."""
        self.refused: Counter[str] = Counter()
        """What was refused, by reason."""

    @property
    def counts(self) -> tuple[int, Counter[str]]:
        """How many connections are open, and what was refused, by reason."""
        return len(self.channels), self.refused

    def startFactory(self) -> None:
        """Twisted would start a timer for its log of requests. There is no such log."""

    def stopFactory(self) -> None:
        """See ``startFactory``."""

    def log(self, request: Any) -> None:
        """Log nothing: anyone could fill the disk."""

    def buildProtocol(self, addr: IAddress | None) -> WitnessChannel | None:  # type: ignore[override]  # no HTTP/2
        """A connection; None, which closes it, if its address may not connect, or has too many."""
        host = str(getattr(addr, "host", ""))
        if not self._peers.may_connect(host):
            self.refused["not allowed"] += 1
            return None
        network = self._peers.network_of(host)
        if not self._has_place(network):
            self.refused["too many connections"] += 1
            return None
        channel = WitnessChannel()
        channel.factory = self
        channel.witness = self
        channel.clock = self.clock
        channel.network = network
        self.channels[channel] = None
        self._of_networks[network] += 1
        return channel

    def _has_place(self, network: str) -> bool:
        """Whether there is room for a connection. The oldest one without a request may have to go: of this address, if
        it has too many, else of any.
        """
        is_full = self._of_networks[network] >= MAX_CONNECTIONS_OF_ADDRESS
        if not is_full and len(self.channels) < MAX_CONNECTIONS:
            return True
        for channel in self.channels:
            if not channel.is_answering and (not is_full or channel.network == network):
                self.gone(channel)
                channel.abort()
                return True
        return False

    def gone(self, channel: WitnessChannel) -> None:
        """The connection has ended, or has lost its place."""
        if channel in self.channels:
            del self.channels[channel]
            self._of_networks[channel.network] -= 1
            if not self._of_networks[channel.network]:
                del self._of_networks[channel.network]

    def close_connections(self) -> None:
        """Close all connections."""
        for channel in list(self.channels):
            channel.abort()

    def handle(self, request: WitnessRequest) -> None:
        """Answer a request, now or later."""
        try:
            answering = self._answer(request)
        except (CallRefused, CoordinatorError) as error:
            _send(request, refusal(error))
            return
        if answering is not None:
            answered = answering.addCallbacks(lambda body: Answer(200, body), self._failed)
            answered.addCallback(lambda answer: None if request.is_gone else _send(request, answer))

    def _failed(self, failure: Failure) -> Answer:
        if isinstance(failure.value, CallRefused | CoordinatorError):
            return refusal(failure.value)
        self._log.failure("a request to the witness failed", failure, event=Event.HTTP_REQUEST_FAILED)
        return Answer(500, b'{"error":"a bug","code":13,"message":"a bug: the log of the witness says why"}')

    def _answer(self, request: WitnessRequest) -> Deferred[bytes] | None:
        """The body of the answer; None for a watch. Raises CallRefused, CoordinatorError."""
        path = request.path.decode("ascii", "replace")
        is_call = path in self.calls.by_path
        if not is_call and path not in (LOGIN, WATCH):
            raise CallRefused(UNIMPLEMENTED, "the witness does not know this call")
        if request.method != b"POST":
            raise CallRefused(UNIMPLEMENTED, "calls of the witness are POST requests")
        fields = read_object(request.body)
        if path == LOGIN:
            return self._log_in(request, fields)
        token = request.getHeader(b"authorization")
        self.calls.logins.check(None if token is None else token.decode("latin-1"))
        if is_call:
            return self.calls.call(path, fields, request.channel.network)
        WatchStream(request, self.calls, self.clock).start(*self.calls.read_watch(fields))
        return None

    def _log_in(self, request: WitnessRequest, fields: dict[str, Any]) -> Deferred[bytes]:
        """A wrong login is answered late: nobody can try many."""
        answered: Deferred[bytes] = Deferred()
        try:
            answered.callback(self.calls.log_in(fields))
        except CallRefused as error:
            if self.calls.logins.login is None:
                raise
            self.refused["wrong login"] += 1
            self._peers.wrong_login(str(getattr(request.getClientAddress(), "host", "")))
            self.clock.callLater(WRONG_LOGIN_SECONDS, answered.errback, error)
        return answered


def _send(request: WitnessRequest, answer: Answer) -> None:
    request.setResponseCode(answer.status)
    request.setHeader(b"Content-Type", b"application/json")
    request.setHeader(b"Content-Length", str(len(answer.body)).encode())
    request.write(answer.body)
    request.finish()
