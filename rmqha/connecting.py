"""Connections that are made again and again, and what the log says of that: few lines, with readable reasons."""

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.application.internet import ClientService
from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.error import TimeoutError as ConnectTimeoutError
from twisted.internet.interfaces import IAddress, IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import ILogObserver, LogEvent, Logger
from twisted.python.failure import Failure
from zope.interface import implementer

GROWING_RETRIES = 8
"""So many retries in a row are told one by one; the pause between them grows meanwhile."""
SUMMARY_SECONDS = 600.0
"""Later ones are told together, once in this time."""

AnyProtocol = TypeVar("AnyProtocol", bound=Protocol)


def reason_of(error: BaseException | None) -> str:
    """What went wrong, in words: also for errors whose own text says nothing to a person."""
    if isinstance(error, DeferredTimeoutError):
        seconds = error.args[0] if error.args and isinstance(error.args[0], (int, float)) else None
        return "no answer in time" if seconds is None else f"no answer within {round(seconds, 1):g} s"
    if isinstance(error, ConnectTimeoutError):
        return "no connection within the time for it"
    return str(error).strip().rstrip(".") or type(error).__name__


class QuietFactory(Factory[Any]):
    """Hands out one protocol, and does not tell the log of itself."""

    noisy = False

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self._protocol


def connect_protocol(endpoint: IStreamClientEndpoint, protocol: AnyProtocol) -> Deferred[AnyProtocol]:
    """As Twisted's connectProtocol, without its lines in the log."""
    connecting: Deferred[Any] = endpoint.connect(QuietFactory(protocol))
    return connecting


@implementer(IStreamClientEndpoint)
class WatchedEndpoint:
    """Connects as another endpoint does; ``failed`` hears of each attempt that fails."""

    def __init__(self, endpoint: IStreamClientEndpoint, failed: Callable[[Failure], None]) -> None:
        self._endpoint = endpoint
        self._failed = failed

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        def tell(failure: Failure) -> Failure:
            self._failed(failure)
            return failure

        return self._endpoint.connect(protocolFactory).addErrback(tell)


@implementer(ILogObserver)
class _Nobody:
    """Reads nothing."""

    def __call__(self, event: LogEvent) -> None:
        pass


class Reconnecting(ClientService):
    """Twisted's ClientService, which does not tell the log of each retry: its owner knows what to say."""

    _log = Logger(observer=_Nobody())


class RetryLines:
    """Says that a connection is tried again, why and when; of many retries in a row a few lines an hour.

    The first GROWING_RETRIES are told one by one, later ones together, every SUMMARY_SECONDS.
    """

    def __init__(self, log: Logger, what: Callable[[], str], clock: IReactorTime) -> None:
        """``what`` names the other end: "the master at 10.0.0.5:10912"."""
        self._log = log
        self._what = what
        self._clock = clock
        self._in_a_row = 0
        self._untold = 0
        self._told_at = 0.0
        self._reason = ""

    def retry(self, reason: str, seconds: float, reason_is_told: bool = False) -> None:
        """An attempt has failed, or a connection is gone; the next one is in so many seconds."""
        self._in_a_row += 1
        now = self._clock.seconds()
        is_new = reason != self._reason and self._untold == 0
        if self._in_a_row <= GROWING_RETRIES or is_new or now - self._told_at >= SUMMARY_SECONDS:
            self._tell(reason, seconds, now, reason_is_told)
        else:
            self._untold += 1

    def _tell(self, reason: str, seconds: float, now: float, reason_is_told: bool) -> None:
        if reason_is_told and not self._untold:
            self._log.info("connecting to {what} again in {seconds:.1f} s", what=self._what(), seconds=seconds)
        else:
            self._warn(reason, seconds, now)
        if self._in_a_row == GROWING_RETRIES:
            self._log.info(
                "from now on this is told once in {minutes:.0f} min, until it changes", minutes=SUMMARY_SECONDS / 60
            )
        self._untold, self._told_at, self._reason = 0, now, reason

    def _warn(self, reason: str, seconds: float, now: float) -> None:
        if self._untold:
            text = (
                "no connection to {what}: {reason} ({count} attempts in the last {minutes:.0f} min); "
                "again in {seconds:.1f} s"
            )
        else:
            text = "no connection to {what}: {reason}; again in {seconds:.1f} s"
        self._log.warn(
            text,
            what=self._what(),
            reason=reason,
            count=self._untold + 1,
            minutes=(now - self._told_at) / 60,
            seconds=seconds,
        )

    def connected(self) -> None:
        """A connection has brought something: what comes next is new."""
        self._in_a_row = self._untold = 0
        self._reason = ""
