"""Tells slaves what is confirmed, so that their consumers read no more than that (spec/remoting.md 2.23)."""

from twisted.internet.defer import TimeoutError as WaitedInVain
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from rmqha.remoting.header import Header
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol, RequestRefused
from rmqha.store.readlimit import ReadLimit
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.slavefields import CONFIRMED, CONFIRMED_HOLD_SECONDS, KNOWN

MAX_HELD_QUESTIONS = 256
"""Further questions are answered at once."""


class ConfirmedProcessor:
    """Answers GET_CONFIRMED_OFFSET. Without a limit it answers as a Java broker, which does not know the request."""

    def __init__(self, limit: ReadLimit | None, clock: IReactorTime) -> None:
        self._limit = limit
        self._clock = clock
        self._held = 0

    def processors(self) -> Processors:
        """By request code."""
        return {RequestCode.GET_CONFIRMED_OFFSET: self.confirmed_offset}

    def confirmed_offset(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The confirmed end of the log, as soon as it is after the one that the asker knows, or after 5 s."""
        limit = self._limit
        if limit is None:
            raise RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "readUpTo is not confirmed here")
        after = Header(request).integer(KNOWN, default=-1)
        if limit.is_lifted:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "reads have no limit here: an operator lifted it")
        if limit.offset > after or self._held >= MAX_HELD_QUESTIONS:
            return self._answer()
        self._held += 1
        return limit.reached(after + 1).addTimeout(CONFIRMED_HOLD_SECONDS, self._clock).addBoth(self._waited)

    def _waited(self, result: Failure | None) -> RemotingCommand | Failure:
        self._held -= 1
        if isinstance(result, Failure) and result.check(WaitedInVain) is None:
            return result
        return self._answer()

    def _answer(self) -> RemotingCommand:
        assert self._limit is not None, "asked only with a limit"
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields={CONFIRMED: str(self._limit.offset)})
