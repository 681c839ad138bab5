"""Remoting: requests and answers over one connection, from either end (spec/remoting.md 1).

Each end may ask the other. A request is answered by its processor, at once or later; answers go out in the order in
which they become known, and match their requests by ``opaque``.
"""

from collections.abc import Callable, Mapping
from itertools import count

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import connectProtocol
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

from rmqha.wire.command import (
    FRAME_MAX_LENGTH,
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    CommandError,
    RemotingCommand,
    ResponseCode,
    decode_command,
    encode_command,
)

SERVER_CHANNEL_MAX_IDLE_SECONDS = 120
CALL_TIMEOUT_SECONDS = 3.0


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


Answer = RemotingCommand | Deferred[RemotingCommand]
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

    def __init__(self, processors: Processors, clock: IReactorTime) -> None:
        self._processors = processors
        self._clock = clock
        self._opaque = count(1)
        self._calls: dict[int, Deferred[RemotingCommand]] = {}
        self._closed_listeners: list[Callable[[], None]] = []
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

    def stringReceived(self, string: bytes) -> None:
        self.resetTimeout()
        try:
            command = decode_command(string)
        except CommandError as error:
            self._log.warn("closing {peer}: {reason}", peer=self._peer(), reason=str(error))
            self.hang_up()
            return
        if command.is_response:
            self._answered(command)
        else:
            self._process(command)

    def lengthLimitExceeded(self, length: int) -> None:
        self._log.warn("closing {peer}: a frame of {length} bytes", peer=self._peer(), length=length)
        self.hang_up()

    def _peer(self) -> str:
        return str(self.transport.getPeer()) if self.transport is not None else "nobody"

    def timeoutConnection(self) -> None:
        self.hang_up()  # at once: a peer that does not read would keep a polite end waiting for ever

    def hang_up(self) -> None:
        """Drop the connection."""
        if ITCPTransport.providedBy(self.transport):
            self.transport.abortConnection()
        elif self.transport is not None:
            self.transport.loseConnection()

    def _process(self, request: RemotingCommand) -> None:
        processor = self._processors.get(request.code)
        if processor is None:
            self._answer(
                RemotingCommand(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
                ),
                request,
            )
            return
        try:
            answer = processor(self, request)
        except Exception:  # whatever it is, the caller gets an answer
            self._answer(self._answer_to_failure(Failure(), request), request)
            return
        if isinstance(answer, Deferred):
            answer.addErrback(self._answer_to_failure, request).addCallback(self._answer, request)
        else:
            self._answer(answer, request)

    def _answer_to_failure(self, failure: Failure, request: RemotingCommand) -> RemotingCommand:
        """What a processor that raised answers; what nobody foresaw is logged."""
        error = failure.value
        if isinstance(error, RequestRefused):
            return error.answer
        self._log.failure("request {code} failed", failure, code=request.code)
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _answer(self, answer: RemotingCommand, request: RemotingCommand) -> None:
        if self.is_open and not request.is_oneway:
            self.sendString(encode_command(answer, opaque=request.opaque, flag=RESPONSE_FLAG))

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
        opaque = next(self._opaque)

        def forget(_: object) -> None:
            self._calls.pop(opaque, None)

        answer: Deferred[RemotingCommand] = Deferred(forget)
        if not self.is_open:
            answer.errback(RemotingError("the connection is gone"))
            return answer
        self._calls[opaque] = answer
        self.sendString(encode_command(RemotingCommand(code, opaque=opaque, ext_fields=ext_fields or {}, body=body)))
        return answer.addTimeout(timeout, self._clock)

    def push(self, code: int, ext_fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Tell the other end something that it does not answer."""
        if self.is_open:
            command = RemotingCommand(code, next(self._opaque), ONEWAY_FLAG, ext_fields=ext_fields or {}, body=body)
            self.sendString(encode_command(command))

    def pauseProducing(self) -> None:
        assert self.transport is not None, "it is connected"
        self.transport.pauseProducing()  # type: ignore[attr-defined]  # every stream transport is a producer

    def resumeProducing(self) -> None:
        assert self.transport is not None, "it is connected"
        self.transport.resumeProducing()  # type: ignore[attr-defined]  # as above

    def stopProducing(self) -> None:
        """The connection is going; ``connectionLost`` follows."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_open = False
        self.setTimeout(None)
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            waiting.errback(RemotingError(f"the connection is gone: {reason.getErrorMessage()}"))
        listeners, self._closed_listeners = self._closed_listeners, []
        for closed in listeners:
            closed()


class RemotingFactory(Factory[RemotingProtocol]):
    """Builds connections that answer by ``processors``."""

    noisy = False

    def __init__(self, processors: Processors, clock: IReactorTime) -> None:
        self._processors = processors
        self._clock = clock

    def buildProtocol(self, addr: IAddress | None) -> RemotingProtocol:
        return RemotingProtocol(self._processors, self._clock)


async def call_once(endpoint: IStreamClientEndpoint, code: int, clock: IReactorTime) -> RemotingCommand:
    """Connect, ask one thing, disconnect. Raises RemotingError, TimeoutError or what connecting raises."""
    protocol = RemotingProtocol({}, clock)
    await connectProtocol(endpoint, protocol).addTimeout(CALL_TIMEOUT_SECONDS, clock)
    try:
        return await protocol.call(code)
    finally:
        protocol.hang_up()
