"""Remoting: requests and answers over one connection, from either end (spec/remoting.md 1).

Each end may ask the other. A request is answered by its processor, at once or later; answers go out in the order in
which they become known, and match their requests by ``opaque``.

What one peer can make us keep is bounded: the frame it is sending, the requests that are not answered yet, and the
answers that it does not read; ``budgets`` bounds what all of a port can. A request whose body is longer than its code
allows is refused as soon as its header is there, and its body is passed over, not kept. How long requests keep the
reactor is bounded too: of one connection so many are taken in a turn, and a long one is a coroutine that takes turns.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from struct import Struct
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IPushProducer,
    IReactorTime,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import Int32StringReceiver
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.connecting import connect_protocol
from rmqha.remoting.budgets import SMALL_FRAME_BYTES, PortBudget
from rmqha.remoting.turns import COST_OF_LONG_REQUEST, Pace, Turns
from rmqha.tls.gate import looks_like_tls
from rmqha.wire.command import (
    FRAME_MAX_LENGTH,
    HEADER_LENGTH,
    ONEWAY_FLAG,
    TOTAL_LENGTH_BYTES,
    CommandError,
    RemotingCommand,
    ResponseCode,
    answer_to,
    decode_command,
    encode_head,
)

SERVER_CHANNEL_MAX_IDLE_SECONDS = 120
CALL_TIMEOUT_SECONDS = 3.0
MAX_OPAQUE = 2**31 - 1
PIECE_BYTES = 64 * 1024
"""Pieces of a frame that are smaller are put together."""
TOTAL_LENGTH = Struct(">I")
assert TOTAL_LENGTH.size == TOTAL_LENGTH_BYTES


class BodyLimit(NamedTuple):
    """How long the body of a request may be, and the code of the answer to a longer one."""

    bytes: int
    code: int = ResponseCode.SYSTEM_ERROR


MAX_HEADER_BYTES = 256 * 1024
"""Of a request. The longest that clients send has 32 KiB of properties, each of whose characters JSON may escape."""
NO_BODY_LIMIT = BodyLimit(FRAME_MAX_LENGTH)


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """What a port takes. ``connections`` are a port's, the others are of one connection.

    A request beyond ``requests_in_progress`` is answered SYSTEM_BUSY. While the bodies of requests in progress have
    more than ``bytes_in_progress`` nothing is read. Whoever lets more than ``bytes_unread`` wait is dropped.
    ``header`` is how many bytes a request's header may have. ``bodies`` has limits by request code, ``body`` is that
    of all other codes.
    """

    connections: int = 10_000
    requests_in_progress: int = 10_000
    bytes_in_progress: int = 64 * 1024 * 1024
    bytes_unread: int = 64 * 1024 * 1024
    header: int = FRAME_MAX_LENGTH
    bodies: Mapping[int, BodyLimit] = field(default_factory=dict)
    body: BodyLimit = NO_BODY_LIMIT


DEFAULT_LIMITS = RemotingLimits()


class HoldUp(Enum):
    """Why nothing is read from a connection just now."""

    ANSWERS_UNREAD = "the peer does not take what waits for it"
    REQUESTS_IN_PROGRESS = "its requests in progress are too many bytes"
    NO_ROOM = "the port has no room for its frame, or its next request"
    OTHERS_TURN = "many of its requests were taken in this turn"
    OTHERS_PIECES = "many bytes of large frames were read in this turn"
    LONG_REQUEST = "it has asked for something that takes several turns"


class RemotingError(Exception):
    """A call was answered with an error, or cannot be answered any more. ``answer`` is the answer, if there is one."""

    def __init__(self, message: str, answer: RemotingCommand | None = None) -> None:
        super().__init__(message)
        self.answer = answer


class RequestRefused(Exception):
    """What a processor raises to answer with a code other than success."""

    def __init__(self, code: int, remark: str, ext_fields: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.answer = RemotingCommand(code, remark=remark, ext_fields=ext_fields or {})


OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"


class Later(NamedTuple):
    """What a coroutine returns whose long part is over: further requests may be taken before ``answer`` is known."""

    answer: Deferred[RemotingCommand]


Answer = RemotingCommand | Deferred[RemotingCommand] | Coroutine[Any, Any, RemotingCommand | Later]
"""At once, later, or by a coroutine: until that ends nothing further is read, so that requests stay in their order."""
Processor = Callable[["RemotingProtocol", RemotingCommand], Answer]
"""Answers a request of that connection; the answer's opaque and flag are filled in. May raise RequestRefused."""
Processors = Mapping[int, Processor]
"""By request code, what answers a request."""


@implementer(IPushProducer)
class RemotingProtocol(Int32StringReceiver, TimeoutMixin):
    """One connection. Answers requests by ``processors``; ``call`` asks the other end, ``push`` tells it.

    While the other end does not take what waits for it, no more of its requests are read.
    """

    MAX_LENGTH = FRAME_MAX_LENGTH
    _log = Logger()

    def __init__(
        self,
        processors: Processors,
        clock: IReactorTime,
        limits: RemotingLimits = DEFAULT_LIMITS,
        budget: PortBudget | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._processors = processors
        self._clock = clock
        self._limits = limits
        self._budget = PortBudget(clock) if budget is None else budget
        self.turns = Turns(clock) if turns is None else turns
        """Whose turn it is to go on with long work."""
        self._opaque = count(1)
        self._calls: dict[int, Deferred[RemotingCommand]] = {}
        self._closed_listeners: list[Callable[[], None]] = []
        self._heard = False
        self._received = Pieces()
        self._wanted = 0
        self._skipping = 0
        self._wanted_room = False
        self._is_taking_frames = False
        self._hold_ups: set[HoldUp] = set()
        self._requests_in_progress = 0
        self._bytes_in_progress = 0
        self._bytes_unread = 0
        self.is_open = False

    def callLater(self, period: float, func: Callable[[], None]) -> IDelayedCall:
        return self._clock.callLater(period, func)

    def connectionMade(self) -> None:
        self.is_open = True
        assert self.transport is not None, "Twisted sets it before this call"
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)  # type: ignore[attr-defined]  # every stream transport is a consumer
        self.setTimeout(SERVER_CHANNEL_MAX_IDLE_SECONDS)

    @property
    def peer_host(self) -> tuple[str, int]:
        """The other end's address and port; of one that has none, 127.0.0.1 and 0."""
        address = self.transport.getPeer() if self.transport is not None else None
        return getattr(address, "host", "127.0.0.1"), getattr(address, "port", 0)

    def on_closed(self, closed: Callable[[], None]) -> None:
        """Call ``closed`` once this connection is gone."""
        self._closed_listeners.append(closed)

    @property
    def received_bytes(self) -> int:
        """How much of an unfinished frame has come."""
        return len(self._received)

    def dataReceived(self, data: bytes) -> None:
        """As Int32StringReceiver's, but what is there of a frame is not copied with each further piece of it."""
        if self._skipping:
            data = self._skip(data)
        if self._received:
            self._received.append(data)
            if self._is_unfinished:
                self._budget.received(self, len(self._received))
                if self._wanted > SMALL_FRAME_BYTES:
                    self._keep_pace(self.turns.large_frames, len(data))
                return
            data = self._received.whole()
        self._take_frames(data)

    @property
    def _is_unfinished(self) -> bool:
        """Whether what has come is the start of a frame, and nothing more."""
        return len(self._received) < self._wanted

    def _skip(self, data: bytes) -> bytes:
        """Pass over the body of a request that was refused; what follows it."""
        skipped = min(self._skipping, len(data))
        self._skipping -= skipped
        if self._skipping:
            self._keep_pace(self.turns.refused_bodies, skipped)
        return data[skipped:]

    def _keep_pace(self, pace: Pace, size: int) -> None:
        """A piece of a large frame was read: read the next one when it is this connection's turn."""
        waiting = None if HoldUp.OTHERS_PIECES in self._hold_ups else pace.take(size)
        if waiting is not None:
            self._hold_up(HoldUp.OTHERS_PIECES)
            waiting.addCallback(lambda _: self._go_on(HoldUp.OTHERS_PIECES))

    def _take_frames(self, data: bytes) -> None:
        """Take what is whole, as long as nothing holds it up; keep the rest."""
        at, end = 0, len(data)
        self._wanted = 0
        self._is_taking_frames = True
        while self.is_open and not self._hold_ups and end - at >= TOTAL_LENGTH_BYTES:
            (length,) = TOTAL_LENGTH.unpack_from(data, at)
            if length > self.MAX_LENGTH:
                self.lengthLimitExceeded(length)
                break
            frame_at = at + TOTAL_LENGTH_BYTES
            if length > end - frame_at:
                at = self._begin_frame(data, at, length)
                break
            if self.turns.is_over:
                self._hold_up(HoldUp.OTHERS_TURN)
                self.turns.next_for_requests().addCallback(lambda _: self._go_on(HoldUp.OTHERS_TURN))
                break
            self.turns.take()
            at = frame_at + length
            had_room, self._wanted_room = self._wanted_room, False
            self.stringReceived(data[frame_at:at])
            if had_room:  # given back when its request, if it is in progress, is counted
                self._budget.whole(self)
        self._is_taking_frames = False
        self._received = Pieces(data[at:] if self.is_open else b"")

    def _begin_frame(self, data: bytes, at: int, length: int) -> int:
        """A frame is not whole yet. Where to go on: at its start, or after it if what has come of it is passed over."""
        end = len(data)
        frame_at = at + TOTAL_LENGTH_BYTES
        self._wanted = TOTAL_LENGTH_BYTES + length
        if length > SMALL_FRAME_BYTES:
            if end - frame_at < HEADER_LENGTH.size:
                self._wanted = TOTAL_LENGTH_BYTES + HEADER_LENGTH.size
                return at
            header_bytes = HEADER_LENGTH.size + (HEADER_LENGTH.unpack_from(data, frame_at)[0] & 0xFFFFFF)
            if header_bytes > min(length, HEADER_LENGTH.size + self._limits.header):
                self._close_for(f"a header of {header_bytes} bytes, longer than its frame or {self._limits.header}")
                return end
            if end - frame_at < header_bytes:  # what its body may be is not known yet: it reserves nothing
                self._wanted = TOTAL_LENGTH_BYTES + header_bytes
                self._wanted_room = True
                self._budget.received(self, end - at)
                return at
            if self._is_refused_early(data[frame_at : frame_at + header_bytes], length - header_bytes):
                self._wanted = 0
                self._skipping = length - (end - frame_at)
                self._keep_pace(self.turns.refused_bodies, end - frame_at)
                return end
        self._wanted_room = True
        if not self._budget.admit(self, self._wanted, end - at):
            self._hold_up(HoldUp.NO_ROOM)
        elif length > SMALL_FRAME_BYTES:
            self._keep_pace(self.turns.large_frames, end - at)
        return at

    def _is_refused_early(self, head: bytes, body_bytes: int) -> bool:
        """Answer a request whose body will be too long, now that its header is there; whether that was done."""
        try:
            command = decode_command(head)
        except CommandError as error:
            self._close_for(str(error))
            return True
        if command.is_response:
            return False
        refusal = self._body_refusal(command.code, body_bytes)
        if refusal is None:
            return False
        self._heard = True
        self._answer(refusal, command)
        return True

    def _body_refusal(self, code: int, body_bytes: int) -> RemotingCommand | None:
        """The answer to a request with a body of that length, if it is too long."""
        limit = self._limits.bodies.get(code, self._limits.body)
        if body_bytes <= limit.bytes:
            return None
        remark = f"the body has {body_bytes} bytes; request {code} takes at most {limit.bytes}"
        return RemotingCommand(limit.code, remark=remark)

    def _close_for(self, reason: str) -> None:
        self._log.warn("closing {peer}: {reason}", peer=self._peer(), reason=reason)
        self.hang_up()

    def room_given(self) -> None:
        """The budget has room for what waits: take it."""
        self._go_on(HoldUp.NO_ROOM)

    def stringReceived(self, string: bytes) -> None:
        self._heard = True
        self.resetTimeout()
        try:
            command = decode_command(string)
        except CommandError as error:
            self._close_for(str(error))
            return
        if command.is_response:
            self._answered(command)
        else:
            self._process(command)

    def lengthLimitExceeded(self, length: int) -> None:
        what = f"a frame of {length} bytes"
        if looks_like_tls(length.to_bytes(4, "big")):
            what = "it speaks TLS, and this connection is plain: tls:HOST:PORT?"
        self._log.warn("closing {peer}: {what}", peer=self._peer(), what=what)
        self._fail_calls(what)
        self.hang_up()

    def _peer(self) -> str:
        return str(self.transport.getPeer()) if self.transport is not None else "nobody"

    def timeoutConnection(self) -> None:
        self.hang_up()  # at once: a peer that does not read would keep a polite end waiting for ever

    def hang_up(self) -> None:
        """Drop the connection; nothing that it has sent counts any more."""
        self.is_open = False
        self._received = Pieces()
        self._budget.forget(self)
        if ITCPTransport.providedBy(self.transport):
            self.transport.abortConnection()
        elif self.transport is not None:
            self.transport.loseConnection()

    def _process(self, request: RemotingCommand) -> None:
        processor = self._processors.get(request.code)
        if processor is None:
            remark = f" request type {request.code} not supported"
            self._answer(RemotingCommand(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark), request)
            return
        if self._requests_in_progress >= self._limits.requests_in_progress:
            self._answer(RemotingCommand(ResponseCode.SYSTEM_BUSY, remark=OVERLOAD), request)
            return
        refusal = self._body_refusal(request.code, len(request.body))
        if refusal is not None:
            self._answer(refusal, request)
            return
        try:
            answer = processor(self, request)
        except Exception:  # whatever it is, the caller gets an answer
            answer = self._answer_to_failure(Failure(), request)
        if isinstance(answer, RemotingCommand):
            self._answer(answer, request)
            return
        later = answer if isinstance(answer, Deferred) else self._long_request(answer)
        self._begin(request)
        later.addCallbacks(self._end, self._fail, callbackArgs=(request,), errbackArgs=(request,))

    def _long_request(self, work: Coroutine[Any, Any, RemotingCommand | Later]) -> Deferred[RemotingCommand]:
        """Let it take its turns, and take nothing further from the peer until it is over."""
        self.turns.take(COST_OF_LONG_REQUEST)
        running: Deferred[RemotingCommand | Later] = Deferred.fromCoroutine(work)
        is_long = not running.called

        def over(result: RemotingCommand | Later) -> RemotingCommand | Deferred[RemotingCommand]:
            return result.answer if isinstance(result, Later) else result

        def go_on(result: Any) -> Any:
            if is_long:  # a turn later, when the answer is out
                self.turns.next().addCallback(lambda _: self._go_on(HoldUp.LONG_REQUEST))
            return result

        if is_long:
            self._hold_up(HoldUp.LONG_REQUEST)
        return running.addBoth(go_on).addCallback(over)

    def _begin(self, request: RemotingCommand) -> None:
        """A request is in progress."""
        self._requests_in_progress += 1
        size = _size_of(request)
        self._bytes_in_progress += size
        has_room = self._budget.keep(self, size)
        if self._bytes_in_progress > self._limits.bytes_in_progress:
            self._hold_up(HoldUp.REQUESTS_IN_PROGRESS)
        if not has_room:
            self._hold_up(HoldUp.NO_ROOM)

    def _end(self, answer: RemotingCommand, request: RemotingCommand) -> None:
        """It has its answer."""
        self._answer(answer, request)
        self._requests_in_progress -= 1
        size = _size_of(request)
        self._bytes_in_progress -= size
        self._budget.let_go(self, size)
        if not self._hold_ups:  # nearly always
            return
        if HoldUp.REQUESTS_IN_PROGRESS in self._hold_ups and self._bytes_in_progress <= self._limits.bytes_in_progress:
            self._go_on(HoldUp.REQUESTS_IN_PROGRESS)

    def _fail(self, failure: Failure, request: RemotingCommand) -> None:
        self._end(self._answer_to_failure(failure, request), request)

    def _answer_to_failure(self, failure: Failure, request: RemotingCommand) -> RemotingCommand:
        """What a processor that raised answers; what nobody foresaw is logged."""
        error = failure.value
        if isinstance(error, RequestRefused):
            return error.answer
        self._log.failure("request {code} failed", failure, code=request.code)
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _answer(self, answer: RemotingCommand, request: RemotingCommand) -> None:
        if request.is_oneway or not self.is_open:
            return
        try:
            self._send(answer_to(request, answer))
        except CommandError as error:
            self._log.error("the answer to {code} cannot be sent: {error}", code=request.code, error=str(error))
            self._send(answer_to(request, RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=str(error))))

    def _send(self, command: RemotingCommand) -> None:
        """Raises CommandError."""
        head = encode_head(command)
        assert self.transport is not None, "it is connected"
        self.transport.writeSequence((head, command.body) if command.body else (head,))
        if self._hold_ups and HoldUp.ANSWERS_UNREAD in self._hold_ups:
            size = len(head) + len(command.body)
            self._bytes_unread += size
            if self._bytes_unread > self._limits.bytes_unread:
                self._close_for(f"it does not read {self._bytes_unread} bytes")
            else:
                self._budget.unread(self, size)

    def _answered(self, answer: RemotingCommand) -> None:
        waiting = self._calls.pop(answer.opaque, None)
        if waiting is None:
            self._log.debug("an answer nobody waits for, opaque {opaque}", opaque=answer.opaque)
        elif answer.code != ResponseCode.SUCCESS:
            waiting.errback(RemotingError(f"code {answer.code}: {answer.remark}", answer))
        else:
            waiting.callback(answer)

    def call(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> Deferred[RemotingCommand]:
        """Ask, and get the answer. Fails with RemotingError, or TimeoutError after ``timeout`` seconds."""
        opaque = self._next_opaque()

        def forget(_: object) -> None:
            self._calls.pop(opaque, None)

        answer: Deferred[RemotingCommand] = Deferred(forget)
        if not self.is_open:
            answer.errback(RemotingError("the connection is gone"))
            return answer
        self._calls[opaque] = answer
        try:
            self._send(RemotingCommand(code, opaque, ext_fields=ext_fields or {}, body=body))
        except CommandError as error:
            del self._calls[opaque]
            answer.errback(RemotingError(str(error)))
            return answer
        return answer.addTimeout(timeout, self._clock)

    def _next_opaque(self) -> int:
        return next(self._opaque) & MAX_OPAQUE

    def push(self, code: int, ext_fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Tell the other end something that it does not answer. Raises CommandError for what has no room in a frame."""
        if self.is_open:
            self._send(
                RemotingCommand(code, next(self._opaque) & MAX_OPAQUE, ONEWAY_FLAG, None, ext_fields or {}, body)
            )

    def pauseProducing(self) -> None:
        self._hold_up(HoldUp.ANSWERS_UNREAD)

    def resumeProducing(self) -> None:
        self._bytes_unread = 0
        self._budget.all_read(self)
        self._go_on(HoldUp.ANSWERS_UNREAD)

    def _hold_up(self, reason: HoldUp) -> None:
        """Take nothing more from the peer."""
        if not self._hold_ups:
            self._tell_transport("pauseProducing")
        self._hold_ups.add(reason)

    def _go_on(self, reason: HoldUp) -> None:
        """That reason is no more: take what has come, and then more, unless there is another."""
        self._hold_ups.discard(reason)
        if not self._is_taking_frames and not self._hold_ups and not self._is_unfinished:
            self._take_frames(self._received.whole())
        if self.is_open and not self._hold_ups:
            self._tell_transport("resumeProducing")

    def _tell_transport(self, what: str) -> None:
        """Pause or resume it. One within the process can do neither: what it brings is kept until it is taken."""
        method = getattr(self.transport, what, None)
        if method is not None:
            method()

    def stopProducing(self) -> None:
        """The connection is going; ``connectionLost`` follows."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_open = False
        self.setTimeout(None)
        self._received = Pieces()
        self._budget.forget(self)
        hint = "" if self._heard else "; no byte came: a TLS port, perhaps (tls:HOST:PORT)?"
        self._fail_calls(f"the connection is gone: {reason.getErrorMessage()}{hint}")
        listeners, self._closed_listeners = self._closed_listeners, []
        for closed in listeners:
            closed()

    def _fail_calls(self, reason: str) -> None:
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            waiting.errback(RemotingError(reason))


class Pieces:
    """Bytes that come in pieces. They are copied when all are there, small pieces now and then before."""

    __slots__ = ("_length", "_pieces")

    def __init__(self, data: bytes = b"") -> None:
        self._pieces = [bytearray(data)] if data else []
        self._length = len(data)

    def __len__(self) -> int:
        return self._length

    def append(self, data: bytes) -> None:
        """So much more has come."""
        self._length += len(data)
        if self._pieces and len(self._pieces[-1]) < PIECE_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def whole(self) -> bytes:
        """All that has come."""
        return b"".join(self._pieces)


def _size_of(request: RemotingCommand) -> int:
    """About how many bytes a request keeps while it is in progress."""
    return len(request.body) + sum(map(len, request.ext_fields.values()))


class RemotingFactory(Factory[RemotingProtocol]):
    """Builds connections that answer by ``processors``, as many at once as ``limits`` allows, within one budget.

    ``turns`` is shared by the ports of a process, if it is given.
    """

    noisy = False
    _log = Logger()

    def __init__(
        self,
        processors: Processors,
        clock: IReactorTime,
        limits: RemotingLimits = DEFAULT_LIMITS,
        budget: PortBudget | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._processors = processors
        self._clock = clock
        self._limits = limits
        self._budget = PortBudget(clock) if budget is None else budget
        self._turns = Turns(clock) if turns is None else turns
        self._is_full = False
        self.connections = 0
        """How many there are."""

    def buildProtocol(self, addr: IAddress | None) -> RemotingProtocol | None:
        """None, and so the end of the connection, where there are too many."""
        if self.connections >= self._limits.connections:
            if not self._is_full:  # said once, until there is room again
                self._log.warn("no more than {count} connections are taken", count=self.connections)
            self._is_full = True
            return None
        self._is_full = False
        self.connections += 1
        protocol = RemotingProtocol(self._processors, self._clock, self._limits, self._budget, self._turns)
        protocol.on_closed(self._closed)
        return protocol

    def _closed(self) -> None:
        self.connections -= 1


async def call_once(endpoint: IStreamClientEndpoint, code: int, clock: IReactorTime) -> RemotingCommand:
    """Connect, ask one thing, disconnect. Raises RemotingError, TimeoutError or what connecting raises."""
    protocol = RemotingProtocol({}, clock)
    await connect_protocol(endpoint, protocol).addTimeout(CALL_TIMEOUT_SECONDS, clock)
    try:
        return await protocol.call(code)
    finally:
        protocol.hang_up()
