"""Connections that are retried, and a few readable log lines about the retries."""

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

from rmqha.kit.events import Event

GROWING_RETRIES = 8
"""The first retries in a row that get a log line each, while the pause between them grows."""
SUMMARY_SECONDS = 600.0
"""Later retries get one log line together in this time."""

AnyProtocol = TypeVar("AnyProtocol", bound=Protocol)


def reason_of(error: BaseException | None) -> str:
    """A readable reason, also for errors whose own text is not readable."""
    if isinstance(error, DeferredTimeoutError):
        seconds = error.args[0] if error.args and isinstance(error.args[0], (int, float)) else None
        return "no answer in time" if seconds is None else f"no answer within {round(seconds, 1):g} s"
    if isinstance(error, ConnectTimeoutError):
        return "the connection attempt timed out"
    return str(error).strip().rstrip(".") or type(error).__name__


class QuietFactory(Factory[Any]):
    """Returns one protocol, without log lines about itself."""

    noisy = False

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self._protocol


def connect_protocol(endpoint: IStreamClientEndpoint, protocol: AnyProtocol) -> Deferred[AnyProtocol]:
    """Like Twisted's connectProtocol, but without its log lines."""
    connecting: Deferred[Any] = endpoint.connect(QuietFactory(protocol))
    return connecting


@implementer(IStreamClientEndpoint)
class WatchedEndpoint:
    """Connects like another endpoint. ``failed`` is called with the failure of each failed attempt."""

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
    """Ignores all events."""

    def __call__(self, event: LogEvent) -> None:
        pass


class Reconnecting(ClientService):
    """Twisted's ClientService without its log lines for each retry. Its owner logs them."""

    _log = Logger(observer=_Nobody())


class RetryLines:
    """Logs that a connection is retried, why and when. Many retries in a row make only a few lines an hour.

    The first GROWING_RETRIES have a line each. Later ones have one line together, every SUMMARY_SECONDS.
    """

    def __init__(self, log: Logger, what: Callable[[], str], clock: IReactorTime) -> None:
        """``what`` names the other end: "the master at 10.0.0.5:10912"."""
        self._log = log
        self._what = what
        self._clock = clock
        self._in_a_row = 0
        self._not_logged = 0
        self._logged_at = 0.0
        self._reason = ""

    def retry(self, reason: str, seconds: float, reason_is_told: bool = False) -> None:
        """An attempt has failed, or a connection has ended. The next attempt is in ``seconds``."""
        self._in_a_row += 1
        now = self._clock.seconds()
        is_new = reason != self._reason and self._not_logged == 0
        if self._in_a_row <= GROWING_RETRIES or is_new or now - self._logged_at >= SUMMARY_SECONDS:
            self._tell(reason, seconds, now, reason_is_told)
        else:
            self._not_logged += 1

    def _tell(self, reason: str, seconds: float, now: float, reason_is_told: bool) -> None:
        if reason_is_told and not self._not_logged:
            self._log.info(
                "connecting to {what} again in {seconds:.1f} s",
                event=Event.RECONNECTING,
                what=self._what(),
                seconds=seconds,
            )
        else:
            self._warn(reason, seconds, now)
        if self._in_a_row == GROWING_RETRIES:
            self._log.info(
                "from now on this is logged once in {minutes:.0f} min, until it changes",
                event=Event.RECONNECTING_QUIETLY,
                minutes=SUMMARY_SECONDS / 60,
            )
        self._not_logged, self._logged_at, self._reason = 0, now, reason

    def _warn(self, reason: str, seconds: float, now: float) -> None:
        if self._not_logged:
            text = (
                "no connection to {what}: {reason} ({count} attempts in the last {minutes:.0f} min); "
                "again in {seconds:.1f} s"
            )
        else:
            text = "no connection to {what}: {reason}; again in {seconds:.1f} s"
        self._log.warn(
            text,
            event=Event.NOT_CONNECTED,
            what=self._what(),
            reason=reason,
            count=self._not_logged + 1,
            minutes=(now - self._logged_at) / 60,
            seconds=seconds,
        )

    def connected(self) -> None:
        """A connection has succeeded, so the next failure is logged as a new one."""
        self._in_a_row = self._not_logged = 0
        self._reason = ""
