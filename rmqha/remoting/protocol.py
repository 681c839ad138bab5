"""Remoting: requests and answers over one connection, from either end (spec/remoting.md 1).

Each end may call the other. A processor answers a request, immediately or later. Answers are sent as they become
known, and match their requests by ``opaque``.

The memory that one peer can use is limited: its incomplete frame, its unanswered requests, and the answers that it does
not read. ``budgets`` limits the memory that all connections of a port use together. If a request's body is too long for
its code, the request is refused as soon as its header has arrived, and its body is skipped. The time that requests take
is limited too: each reactor turn accepts a limited number, and a long request is a coroutine that takes turns.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from struct import Struct
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, fail
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
from zope.interface import Interface, implementer

from rmqha.kit.connecting import connect_protocol
from rmqha.kit.events import Event
from rmqha.kit.rates import AddressBuckets, Rate
from rmqha.kit.sending import is_idle, send_at_once
from rmqha.net.tls.gate import looks_like_tls
from rmqha.remoting.budgets import SMALL_FRAME_BYTES, PortBudget
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS, Calls, ISender, RemotingError
from rmqha.remoting.networks import network_of
from rmqha.remoting.rights import ALL_RIGHTS, Rights
from rmqha.remoting.turns import COST_OF_LONG_REQUEST, ReadPace, Turns
from rmqha.wire.command import (
    FRAME_MAX_LENGTH,
    HEADER_LENGTH,
    RESPONSE_FLAG,
    TOTAL_LENGTH_BYTES,
    CommandError,
    RemotingCommand,
    ResponseCode,
    Sign,
    answer_to,
    decode_command,
    encode_head,
)
from rmqha.wire.record import Host

SERVER_CHANNEL_MAX_IDLE_SECONDS = 120
SMALL_ANSWER_BYTES = 4 * 1024
"""Answers up to this size do not count among the bytes of a turn: the number of requests limits them."""
PIECE_BYTES = 64 * 1024
"""Smaller pieces of a frame are joined."""
WRITTEN_AT_ONCE = 128 * 1024
"""Longer bodies are written in pieces of this size, each when the transport has sent the one before. So answers to many
clients share their body, and a reactor turn copies only one piece for each. Twisted sends no more in a turn.
"""
ROUND_BYTES = 64 * 1024
"""At this size the answers of a read are written before it is over. Twisted's transports are full at this size too."""
TOTAL_LENGTH = Struct(">I")
assert TOTAL_LENGTH.size == TOTAL_LENGTH_BYTES


class BodyLimit(NamedTuple):
    """The maximum size of a request's body, and the code of the answer to a larger one."""

    bytes: int
    code: int = ResponseCode.SYSTEM_ERROR


MAX_HEADER_BYTES = 256 * 1024
"""The maximum size of a request's header. Clients send up to 32 KiB of properties, and JSON may escape each character.
"""
NO_BODY_LIMIT = BodyLimit(FRAME_MAX_LENGTH)


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """The limits of a port. ``connections`` applies to the port, ``connects_at_once`` and ``connects_per_second`` to
    each address (for IPv6, each /64). The others apply to each connection.

    A request beyond ``requests_in_progress`` is answered SYSTEM_BUSY. While the bodies of requests in progress have
    more than ``bytes_in_progress`` bytes, nothing is read. If more than ``bytes_unread`` bytes of answers wait, the
    connection is closed. ``header`` is the maximum size of a request's header in bytes. ``bodies`` holds the limits by
    request code; ``body`` applies to all other codes.
    """

    connections: int = 10_000
    requests_in_progress: int = 10_000
    bytes_in_progress: int = 64 * 1024 * 1024
    bytes_unread: int = 64 * 1024 * 1024
    header: int = FRAME_MAX_LENGTH
    bodies: Mapping[int, BodyLimit] = field(default_factory=dict)
    body: BodyLimit = NO_BODY_LIMIT
    connects_at_once: int = 2000
    connects_per_second: int = 200

    def body_refusal(self, code: int, body_bytes: int) -> RemotingCommand | None:
        """The answer to a request with a body of this length if that is too long, else None."""
        limit = self.bodies.get(code, self.body)
        if body_bytes <= limit.bytes:
            return None
        remark = f"the body has {body_bytes} bytes; request {code} allows at most {limit.bytes}"
        return RemotingCommand(limit.code, remark=remark)


DEFAULT_LIMITS = RemotingLimits()
RATES_LINE_SECONDS = 60.0
"""The least time between two log lines about addresses that connect too fast."""


class HoldUp(Enum):
    """Why a connection is currently not read."""

    ANSWERS_UNREAD = "the peer does not read the answers that wait for it"
    REQUESTS_IN_PROGRESS = "its requests in progress have too many bytes"
    NO_ROOM = "the port has no memory for its frame or its next request"
    OTHERS_TURN = "enough requests were accepted, or enough answers written, in this turn"
    OTHERS_PIECES = "enough bytes of large frames were read in this turn"
    LONG_REQUEST = "one of its requests takes several turns"


class RequestRefused(Exception):
    """A processor raises this to answer with a code other than success."""

    def __init__(self, code: int, remark: str, ext_fields: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.answer = RemotingCommand(code, remark=remark, ext_fields=ext_fields or {})


OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"


class Later(NamedTuple):
    """A coroutine returns this when its long part is over. Further requests may then be read before the answer."""

    answer: Deferred[RemotingCommand]


Answer = RemotingCommand | Deferred[RemotingCommand] | Coroutine[Any, Any, RemotingCommand | Later]
"""An immediate or a later answer, or a coroutine. Until a coroutine ends, its connection is not read: order is kept."""
Processor = Callable[["RemotingProtocol", RemotingCommand], Answer]
"""Answers a request of a connection. The answer's opaque and flag are filled in later. May raise RequestRefused."""
Processors = Mapping[int, Processor]
"""The processors by request code."""


class Passed(NamedTuple):
    """Requests that a pass took: where they end in what was read, how many there are, and the frames of answers.

    ``is_declined`` says whether the next request is declined: the processor of its code gets that.
    """

    end: int
    requests: int
    answers: bytes | Deferred[bytes]
    is_declined: bool


class IRequestPass(Interface):
    """Answers many requests of one kind at once, from their bytes. It equals the processor of their code."""

    def take(connection: "RemotingProtocol", data: bytes, at: int, most: int) -> Passed | None:
        """Process the requests from ``at`` in ``data`` on, ``most`` at most, up to the first that it declines.

        None if it declines the first one: the processor of its code gets that. The answers keep the order of requests.
        """


class IConnectionObserver(Interface):
    """Learns that a connection has ended."""

    def connection_closed(connection: "RemotingProtocol") -> None:
        """This connection has ended. Called once for each."""


@implementer(IPushProducer, ISender)
class RemotingProtocol(Int32StringReceiver, TimeoutMixin):
    """One connection. ``processors`` answer its requests. ``call`` sends a request, ``push`` one without an answer.

    While the other end does not read its answers, its requests are not read either.
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
        request_pass: IRequestPass | None = None,
    ) -> None:
        self._processors = processors
        self._request_pass = request_pass
        self._clock = clock
        self._limits = limits
        self._budget = PortBudget(clock) if budget is None else budget
        self.turns = Turns(clock) if turns is None else turns
        """Gives turns to long work."""
        self.rights: Rights = ALL_RIGHTS
        """What the peer may do, by the account of its latest request."""
        self._calls = Calls(self, clock)
        self._observers: list[IConnectionObserver] = []
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
        self._round: list[bytes] = []
        """What the frames of this read, or held pulls of one turn, are answered, until it is written."""
        self._round_bytes = 0
        self._has_round = False
        self._unwritten: deque[memoryview] = deque()
        self._is_transport_full = False
        self._peer_host: tuple[str, int] | None = None
        self.is_open = False

    @property
    def itself(self) -> "RemotingProtocol":
        """The connection itself: Twisted's ClientService prepares a proxy of it, which is another object."""
        return self

    def sign_with(self, sign: Sign) -> None:
        """Sign all requests that this end sends."""
        self._calls.sign = sign

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
        """The other end's address and port; 127.0.0.1 and 0 if it has none."""
        if self._peer_host is None and self.transport is not None:
            address = self.transport.getPeer()
            self._peer_host = getattr(address, "host", "127.0.0.1"), getattr(address, "port", 0)
        return self._peer_host or ("127.0.0.1", 0)

    @cached_property
    def born_host(self) -> Host:
        """The other end's address, as the messages have it that come from there."""
        return Host.parse(*self.peer_host)

    @property
    def own_host(self) -> str:
        """Our end's address; 127.0.0.1 if it has none."""
        address = self.transport.getHost() if self.transport is not None else None
        return getattr(address, "host", "127.0.0.1")

    def on_closed(self, observer: IConnectionObserver) -> None:
        """Tell the observer when this connection ends."""
        self._observers.append(observer)

    @property
    def received_bytes(self) -> int:
        """How many bytes of an incomplete frame have arrived."""
        return len(self._received)

    def dataReceived(self, data: bytes) -> None:
        """As in Int32StringReceiver, but an incomplete frame is not copied with each further piece."""
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
        """Whether only the first part of a frame has arrived."""
        return len(self._received) < self._wanted

    def _skip(self, data: bytes) -> bytes:
        """Skip the body of a refused request. Returns the data after it."""
        skipped = min(self._skipping, len(data))
        self._skipping -= skipped
        if self._skipping:
            self._keep_pace(self.turns.refused_bodies, skipped)
        return data[skipped:]

    def _keep_pace(self, pace: ReadPace, size: int) -> None:
        """A piece of a large frame was read. Read the next one when it is this connection's turn."""
        waiting = None if HoldUp.OTHERS_PIECES in self._hold_ups else pace.take(size)
        if waiting is not None:
            self._hold_up(HoldUp.OTHERS_PIECES)
            waiting.addCallback(lambda _: self._go_on(HoldUp.OTHERS_PIECES))

    def _take_frames(self, data: bytes) -> None:
        """Process the complete frames until something holds up the connection, and keep the rest."""
        at, end = 0, len(data)
        declined_at = -1
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
            had_room, self._wanted_room = self._wanted_room, False
            passed = None if at == declined_at else self._take_pass(data, at)
            if passed is None:
                self.turns.take()
                at = frame_at + length
                self.stringReceived(data[frame_at:at])
            else:
                at = passed.end
                declined_at = at if passed.is_declined else -1
            if had_room:  # returned only now, because a request in progress is counted by itself
                self._budget.whole(self)
        self._is_taking_frames = False
        self._received = Pieces(data[at:] if self.is_open else b"")
        self._write_round()

    def _take_pass(self, data: bytes, at: int) -> Passed | None:
        """Let the pass, if there is one, take the requests from ``at`` on. None if it takes none."""
        most = min(self.turns.left, self._limits.requests_in_progress - self._requests_in_progress)
        if self._request_pass is None or most <= 0:
            return None
        passed = self._request_pass.take(self, data, at, most)
        if passed is None:
            return None
        self._heard = True
        self.resetTimeout()
        self.turns.take(passed.requests)
        if isinstance(passed.answers, Deferred):
            size = passed.end - at
            self._begin(passed.requests, size)
            passed.answers.addCallbacks(self._write_answers, self._answers_failed)
            passed.answers.addCallback(lambda _: self._ended(passed.requests, size))
        else:
            self._write_answers(passed.answers)
        return passed

    def _write_answers(self, answers: bytes) -> None:
        """Write frames that have no body."""
        if answers and self.is_open:
            self._write(answers, b"", at_once=True)

    def _answers_failed(self, failure: Failure) -> None:
        """Nobody knows how the requests ended. Their client learns that when its connection ends."""
        self._log.failure("requests of a pass failed", failure, event=Event.REQUEST_FAILED)
        self.hang_up()

    def _begin_frame(self, data: bytes, at: int, length: int) -> int:
        """Handle an incomplete frame. Returns where the bytes to keep start: its start, or the end if it is skipped."""
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
            if end - frame_at < header_bytes:  # the limit of its body is not known yet, so it reserves nothing
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
        """Refuse a request by its header if its body will be too long. Returns whether it was refused."""
        try:
            command = decode_command(head)
        except CommandError as error:
            self._close_for(str(error))
            return True
        if command.is_response:
            return False
        refusal = self._limits.body_refusal(command.code, body_bytes)
        if refusal is None:
            return False
        self._heard = True
        self._answer(refusal, command)
        return True

    def _close_for(self, reason: str) -> None:
        self._log.warn("closing {peer}: {reason}", event=Event.PEER_BROKE_PROTOCOL, peer=self._peer(), reason=reason)
        self.hang_up()

    def room_given(self) -> None:
        """The budget has memory for the waiting frame: read on."""
        self._go_on(HoldUp.NO_ROOM)

    def stringReceived(self, string: bytes) -> None:
        self._heard = True
        self.resetTimeout()
        try:
            command = decode_command(string)
        except CommandError as error:
            self._close_for(str(error))
            return
        if command.flag & RESPONSE_FLAG:
            self._calls.answered(command)
        else:
            self._process(command)

    def lengthLimitExceeded(self, length: int) -> None:
        what = f"a frame of {length} bytes"
        if looks_like_tls(length.to_bytes(4, "big")):
            what = "it uses TLS, but this connection does not: perhaps the address must be tls:HOST:PORT"
        self._log.warn("closing {peer}: {what}", event=Event.PEER_BROKE_PROTOCOL, peer=self._peer(), what=what)
        self._calls.fail(what)
        self.hang_up()

    def _peer(self) -> str:
        return str(self.transport.getPeer()) if self.transport is not None else "nobody"

    def timeoutConnection(self) -> None:
        self.hang_up()  # abort: if the peer does not read, a clean close would never end

    def hang_up(self) -> None:
        """Abort the connection, and ignore what it has sent after the requests that are answered."""
        self._write_round()
        self.is_open = False
        self._received = Pieces()
        self._unwritten.clear()
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
        refusal = self._limits.body_refusal(request.code, len(request.body))
        if refusal is not None:
            self._answer(refusal, request)
            return
        try:
            answer = processor(self, request)
        except Exception:  # the caller gets an answer to any error
            answer = self._answer_to_failure(Failure(), request)
        if isinstance(answer, RemotingCommand):
            self._answer(answer, request)
            return
        later = answer if isinstance(answer, Deferred) else self._long_request(answer)
        size = _size_of(request)
        self._begin(1, size)
        later.addErrback(self._answer_to_failure, request).addCallback(self._end, request, size)

    def _long_request(self, work: Coroutine[Any, Any, RemotingCommand | Later]) -> Deferred[RemotingCommand]:
        """Run a long request in turns, and read nothing further from the peer until it is over."""
        self.turns.take(COST_OF_LONG_REQUEST)
        running: Deferred[RemotingCommand | Later] = Deferred.fromCoroutine(work)
        is_long = not running.called

        def over(result: RemotingCommand | Later) -> RemotingCommand | Deferred[RemotingCommand]:
            return result.answer if isinstance(result, Later) else result

        def go_on(result: Any) -> Any:
            if is_long:  # one turn later, after the answer is sent
                self.turns.next().addCallback(lambda _: self._go_on(HoldUp.LONG_REQUEST))
            return result

        if is_long:
            self._hold_up(HoldUp.LONG_REQUEST)
        return running.addBoth(go_on).addCallback(over)

    def _begin(self, count: int, size: int) -> None:
        """This number of requests is in progress. They have about ``size`` bytes."""
        self._requests_in_progress += count
        self._bytes_in_progress += size
        has_room = self._budget.keep(self, size)
        if self._bytes_in_progress > self._limits.bytes_in_progress:
            self._hold_up(HoldUp.REQUESTS_IN_PROGRESS)
        if not has_room:
            self._hold_up(HoldUp.NO_ROOM)

    def _end(self, answer: RemotingCommand, request: RemotingCommand, size: int) -> None:
        """A request in progress is answered."""
        self._answer(answer, request)
        self._ended(1, size)

    def _ended(self, count: int, size: int) -> None:
        self._requests_in_progress -= count
        self._bytes_in_progress -= size
        self._budget.let_go(self, size)
        if not self._hold_ups:  # nearly always
            return
        if HoldUp.REQUESTS_IN_PROGRESS in self._hold_ups and self._bytes_in_progress <= self._limits.bytes_in_progress:
            self._go_on(HoldUp.REQUESTS_IN_PROGRESS)

    def _answer_to_failure(self, failure: Failure, request: RemotingCommand) -> RemotingCommand:
        """The answer to a request whose processor raised. Unexpected exceptions are logged."""
        error = failure.value
        if isinstance(error, RequestRefused):
            return error.answer
        self._log.failure("request {code} failed", failure, event=Event.REQUEST_FAILED, code=request.code)
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _answer(self, answer: RemotingCommand, request: RemotingCommand) -> None:
        if request.is_oneway or not self.is_open:
            return
        try:
            self.send(answer_to(request, answer))
            if len(answer.body) > SMALL_ANSWER_BYTES:
                self.turns.answered(len(answer.body))
        except CommandError as error:
            self._log.error(
                "the answer to {code} cannot be sent: {error}",
                event=Event.ANSWER_NOT_SENT,
                code=request.code,
                error=str(error),
            )
            self.send(answer_to(request, RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=str(error))))

    def send(self, command: RemotingCommand) -> None:
        """Send a request or an answer. Raises CommandError if it does not fit a frame."""
        self._write(encode_head(command), command.body)

    def _write(self, head: bytes, body: bytes, at_once: bool = False) -> None:
        """Write a frame, or several that have no body. Others of this round may join them, unless ``at_once``."""
        assert self.transport is not None, "it is connected"
        if self._unwritten or len(body) > WRITTEN_AT_ONCE:
            self._write_round()
            self._unwritten += [memoryview(part) for part in (head, body) if part]
            self._write_pieces()
        elif self._round or ((self._is_taking_frames or self._has_round) and is_idle(self.transport)):
            self._round += (head, body) if body else (head,)
            self._round_bytes += len(head) + len(body)
            if self._round_bytes >= ROUND_BYTES:
                self._write_round()
        elif at_once:
            send_at_once(self.transport, head)
        else:
            self.transport.writeSequence((head, body) if body else (head,))
        if self._hold_ups and HoldUp.ANSWERS_UNREAD in self._hold_ups:
            size = len(head) + len(body)
            self._bytes_unread += size
            if self._bytes_unread > self._limits.bytes_unread:
                self._close_for(f"it does not read {self._bytes_unread} bytes")
            else:
                self._budget.unread(self, size)

    def begin_round(self) -> None:
        """Let the answers that are made until ``end_round``, which must follow in this turn, go out together."""
        self._has_round = True

    def end_round(self) -> None:
        """Write the answers that were made since ``begin_round``."""
        self._has_round = False
        if not self._is_taking_frames:
            self._write_round()

    def _write_round(self) -> None:
        """Write the answers of this round, together."""
        if self._round and self.is_open:
            data = self._round[0] if len(self._round) == 1 else b"".join(self._round)
            self._round, self._round_bytes = [], 0
            send_at_once(self.transport, data)

    def _write_pieces(self) -> None:
        """Write what waits, until the transport is full."""
        assert self.transport is not None, "it is connected"
        while self._unwritten and not self._is_transport_full:
            first = self._unwritten.popleft()
            if len(first) > WRITTEN_AT_ONCE:
                self._unwritten.appendleft(first[WRITTEN_AT_ONCE:])
            self.transport.write(bytes(first[:WRITTEN_AT_ONCE]))

    def call(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> Deferred[RemotingCommand]:
        """Send a request. Fires with the answer, or fails with RemotingError, or TimeoutError after ``timeout`` s."""
        if not self.is_open:
            return fail(RemotingError("the connection is gone"))
        return self._calls.call(code, ext_fields or {}, body, timeout)

    def push(self, code: int, ext_fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a one-way request, which has no answer. Raises CommandError if it does not fit a frame."""
        if self.is_open:
            self._calls.push(code, ext_fields or {}, body)

    def pauseProducing(self) -> None:
        self._is_transport_full = True
        self._hold_up(HoldUp.ANSWERS_UNREAD)

    def resumeProducing(self) -> None:
        self._is_transport_full = False
        self._write_pieces()
        if self._is_transport_full:
            return
        self._bytes_unread = 0
        self._budget.all_read(self)
        self._go_on(HoldUp.ANSWERS_UNREAD)

    def _hold_up(self, reason: HoldUp) -> None:
        """Read nothing more from the peer."""
        if not self._hold_ups:
            self._tell_transport("pauseProducing")
        self._hold_ups.add(reason)

    def _go_on(self, reason: HoldUp) -> None:
        """The reason has ended. Without another one, process what has arrived, and then read more."""
        self._hold_ups.discard(reason)
        if not self._is_taking_frames and not self._hold_ups and not self._is_unfinished:
            self._take_frames(self._received.whole())
        if self.is_open and not self._hold_ups:
            self._tell_transport("resumeProducing")

    def _tell_transport(self, what: str) -> None:
        """Pause or resume the transport. A transport inside the process cannot do this, so its bytes are kept."""
        method = getattr(self.transport, what, None)
        if method is not None:
            method()

    def stopProducing(self) -> None:
        """The connection is ending; ``connectionLost`` follows."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_open = False
        self.setTimeout(None)
        self._received = Pieces()
        self._round.clear()
        self._unwritten.clear()
        self._budget.forget(self)
        hint = "" if self._heard else "; it sent nothing: perhaps its port uses TLS (tls:HOST:PORT)"
        self._calls.fail(f"the connection is gone: {reason.getErrorMessage()}{hint}")
        observers, self._observers = self._observers, []
        for observer in observers:
            observer.connection_closed(self)


class Pieces:
    """Bytes that arrive in pieces. They are joined when all have arrived; only small pieces are joined earlier."""

    __slots__ = ("_length", "_pieces")

    def __init__(self, data: bytes = b"") -> None:
        self._pieces = [bytearray(data)] if data else []
        self._length = len(data)

    def __len__(self) -> int:
        return self._length

    def append(self, data: bytes) -> None:
        """Add a piece."""
        self._length += len(data)
        if self._pieces and len(self._pieces[-1]) < PIECE_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def whole(self) -> bytes:
        """All bytes that have arrived."""
        return b"".join(self._pieces)


def _size_of(request: RemotingCommand) -> int:
    """The approximate memory of a request in progress, in bytes."""
    return len(request.body) + sum(map(len, request.ext_fields.values()))


@implementer(IConnectionObserver)
class RemotingFactory(Factory[RemotingProtocol]):
    """Builds connections that answer by ``processors``, up to the number in ``limits``, within one budget.

    ``turns``, if given, is shared by the ports of a process.
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
        request_pass: IRequestPass | None = None,
    ) -> None:
        self._processors = processors
        self._request_pass = request_pass
        self._clock = clock
        self._limits = limits
        self._budget = PortBudget(clock) if budget is None else budget
        self._turns = Turns(clock) if turns is None else turns
        self._is_full = False
        self._rates = AddressBuckets(Rate(limits.connects_at_once, limits.connects_per_second))
        self._told_of_rates_at: float | None = None
        self._open: set[RemotingProtocol] = set()
        self.refused = 0
        """How many connections were refused because there were too many, or because they came too fast."""

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def buildProtocol(self, addr: IAddress | None) -> RemotingProtocol | None:
        """A protocol; None, which closes the connection, if there are too many, or too many new ones of its address."""
        if self.connections >= self._limits.connections:
            if not self._is_full:  # logged once, until a connection ends
                self._log.warn(
                    "refusing connections: there are {count}, the maximum",
                    event=Event.CONNECTION_LIMIT_REACHED,
                    count=self.connections,
                )
            self._is_full = True
            self.refused += 1
            return None
        self._is_full = False
        host = getattr(addr, "host", "")
        now = self._clock.seconds()
        if not self._rates.get(network_of(host), now).take_one(now):
            self._tell_of_rates(host)
            self.refused += 1
            return None
        protocol = RemotingProtocol(
            self._processors, self._clock, self._limits, self._budget, self._turns, self._request_pass
        )
        self._open.add(protocol)
        protocol.on_closed(self)
        return protocol

    def connection_closed(self, connection: RemotingProtocol) -> None:
        self._open.discard(connection)

    def _tell_of_rates(self, host: str) -> None:
        """Log it, for all addresses together once in a while."""
        now = self._clock.seconds()
        if self._told_of_rates_at is None or now - self._told_of_rates_at >= RATES_LINE_SECONDS:
            self._told_of_rates_at = now
            self._log.warn(
                "refusing connections of {host}: it connects more than {rate} times a second",
                event=Event.CONNECTS_TOO_FAST,
                host=host,
                rate=self._limits.connects_per_second,
            )

    def close_connections(self) -> None:
        """Close all connections: their processors answer no more, for the store that they belong to closes."""
        for protocol in list(self._open):
            protocol.hang_up()


async def call_once(
    endpoint: IStreamClientEndpoint, code: int, clock: IReactorTime, ext_fields: Mapping[str, str] | None = None
) -> RemotingCommand:
    """Connect, send one request, disconnect. Raises RemotingError, TimeoutError, or what connecting raises."""
    protocol = RemotingProtocol({}, clock)
    await connect_protocol(endpoint, protocol).addTimeout(CALL_TIMEOUT_SECONDS, clock)
    try:
        return await protocol.call(code, ext_fields)
    finally:
        protocol.hang_up()
