"""Remoting: requests and answers over one connection, from either end (spec/remoting.md 1)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, IStreamClientEndpoint, ITCPTransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import Int32StringReceiver
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure

from rmqha.wire.command import (
    FRAME_MAX_LENGTH,
    RESPONSE_FLAG,
    CommandError,
    RemotingCommand,
    ResponseCode,
    decode_command,
    encode_command,
)

SERVER_CHANNEL_MAX_IDLE_SECONDS = 120
CALL_TIMEOUT_SECONDS = 3.0

Processors = Mapping[int, Callable[[RemotingCommand], RemotingCommand]]
"""By request code, what answers a request; the answer's opaque and flag are filled in."""


class RemotingError(Exception):
    """A call was answered with an error, or cannot be answered any more."""


class RemotingProtocol(Int32StringReceiver, TimeoutMixin):
    """One connection. Answers requests by ``processors``; ``call`` asks the other end."""

    MAX_LENGTH = FRAME_MAX_LENGTH
    _log = Logger()

    def __init__(self, processors: Processors, clock: IReactorTime) -> None:
        self._processors = processors
        self._clock = clock
        self._opaque = count(1)
        self._calls: dict[int, Deferred[RemotingCommand]] = {}

    def callLater(self, period: float, func: Callable[[], None]) -> IDelayedCall:
        return self._clock.callLater(period, func)

    def connectionMade(self) -> None:
        self.setTimeout(SERVER_CHANNEL_MAX_IDLE_SECONDS)

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
            self._answer(command)

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

    def _answer(self, request: RemotingCommand) -> None:
        processor = self._processors.get(request.code)
        if processor is None:
            answer = RemotingCommand(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        else:
            try:
                answer = processor(request)
            except Exception as error:  # whatever it is, the caller gets an answer and we the traceback
                self._log.failure("request {code} failed", code=request.code)
                answer = RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if not request.is_oneway:
            self.sendString(encode_command(replace(answer, opaque=request.opaque, flag=RESPONSE_FLAG)))

    def _answered(self, answer: RemotingCommand) -> None:
        waiting = self._calls.pop(answer.opaque, None)
        if waiting is None:
            self._log.debug("an answer nobody waits for, opaque {opaque}", opaque=answer.opaque)
        elif answer.code != ResponseCode.SUCCESS:
            waiting.errback(RemotingError(f"code {answer.code}: {answer.remark}"))
        else:
            waiting.callback(answer)

    def call(self, code: int, timeout: float = CALL_TIMEOUT_SECONDS) -> Deferred[RemotingCommand]:
        """Ask, and get the answer. Fails with RemotingError, or TimeoutError after ``timeout`` seconds."""
        opaque = next(self._opaque)

        def forget(_: object) -> None:
            self._calls.pop(opaque, None)

        answer: Deferred[RemotingCommand] = Deferred(forget)
        self._calls[opaque] = answer
        self.sendString(encode_command(RemotingCommand(code, opaque=opaque)))
        return answer.addTimeout(timeout, self._clock)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.setTimeout(None)
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            waiting.errback(RemotingError(f"the connection is gone: {reason.getErrorMessage()}"))


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
