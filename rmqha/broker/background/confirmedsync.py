"""A slave asks its master what is confirmed, so that its consumers read no more than that (``readUpTo=confirmed``).

The HA conversation does not say it. What the slave itself has acknowledged proves nothing: another slave, without these
bytes, may be promoted. So it asks the master's remoting port, and serves what the master confirms and the current
connection has shown to equal the master's log. A master that cannot answer confirms nothing: a Java broker, or one of
ours without the setting.
"""

from collections.abc import Callable

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.client import RemotingClient
from rmqha.store.interfaces import ICommitLog
from rmqha.store.readlimit import ReadLimit
from rmqha.wire.command import RequestCode, ResponseCode
from rmqha.wire.slavefields import CONFIRMED, CONFIRMED_HOLD_SECONDS, KNOWN

PAUSE_SECONDS = 0.02
"""Between two questions, at least."""
RETRY_SECONDS = 5.0
"""After a question that was not answered."""
UNKNOWN_TO_MASTER = "its master does not say what is confirmed: it is a Java broker, or has no readUpTo=confirmed"


class ConfirmedFollower(Service):
    """Asks the master while the slave follows it, and lets ``limit`` grow.

    ``holds`` gives the end of what the connection to the master has shown to be equal here and there, or None.
    ``endpoint`` leads to the master's remoting port; None if that must not be asked.
    """

    _log = Logger()

    def __init__(
        self,
        limit: ReadLimit,
        log: ICommitLog,
        holds: Callable[[], int | None],
        endpoint: IStreamClientEndpoint | None,
        clock: IReactorTime,
    ) -> None:
        self._limit = limit
        self._commit_log = log
        self._holds = holds
        self._endpoint = endpoint
        self._clock = clock
        self._confirmed: int | None = None
        """What the master of this connection has confirmed; None if it has not answered."""
        self._problem: str | None = None if endpoint is not None else "its master's remoting port is not known"
        self._told_problem: str | None = None
        self._client: RemotingClient | None = None
        self._asking: Deferred[None] | None = None
        self._stopped: Deferred[None] = succeed(None)
        self._growing: IDelayedCall | None = None
        self._unsubscribe: Callable[[], None] | None = None
        limit.why = self.why

    def startService(self) -> None:
        Service.startService(self)
        self._unsubscribe = self._commit_log.subscribe(self._log_grew)

    def stopService(self) -> Deferred[None]:
        """Fires when the connection has ended."""
        Service.stopService(self)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self.follow(False)
        return self._stopped

    def follow(self, is_following: bool) -> None:
        """Ask from now on, or no more. An answer counts only while the slave follows the master that gave it."""
        if not is_following:
            self._end()
        elif self.running and self._endpoint is not None and self._client is None:
            self._client = RemotingClient(self._endpoint, self._clock)
            self._client.start()
            self._asking = Deferred.fromCoroutine(self._ask(self._client))
            self._asking.addErrback(self._ended)

    def _end(self) -> None:
        self._confirmed = None
        if self._growing is not None:
            self._growing.cancel()
            self._growing = None
        if self._client is not None and self._asking is not None:
            client, asking, self._client, self._asking = self._client, self._asking, None, None
            asking.cancel()
            self._stopped = client.stop()

    def _ended(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("asking the master what is confirmed failed", failure, event=Event.CONFIRMED_SYNC_FAILED)

    async def _ask(self, client: RemotingClient) -> None:
        while True:
            after = -1 if self._confirmed is None else self._confirmed
            try:
                answer = await client.call(
                    RequestCode.GET_CONFIRMED_OFFSET, {KNOWN: str(after)}, timeout=2 * CONFIRMED_HOLD_SECONDS
                )
                self._confirmed, self._problem = int(answer.ext_fields[CONFIRMED]), None
            except CancelledError:
                raise
            except Exception as error:  # of any kind: it is asked again
                self._problem = _problem(error)
            self._tell_problem()
            self._grow()
            await deferLater(self._clock, PAUSE_SECONDS if self._problem is None else RETRY_SECONDS)

    def _tell_problem(self) -> None:
        if self._problem != self._told_problem:
            self._told_problem = self._problem
            if self._problem is None:
                self._log.info("the master says what is confirmed", event=Event.CONFIRMED_OFFSET_KNOWN)
            else:
                self._log.warn(
                    "consumers read no further here: {problem}",
                    event=Event.CONFIRMED_OFFSET_UNKNOWN,
                    problem=self._problem,
                )

    def _log_grew(self) -> None:
        """Look in the next turn: what was received is then known to be the master's."""
        if self._growing is None and self._confirmed is not None and self._confirmed > self._limit.offset:
            self._growing = self._clock.callLater(0, self._grow)

    def _grow(self) -> None:
        self._growing = None
        holds = self._holds()
        if self._confirmed is not None and holds is not None:
            self._limit.grow(min(self._confirmed, holds))

    def why(self) -> str:
        """Why the limit does not grow."""
        if self._problem is not None:
            return self._problem
        if self._client is None:
            return "the slave does not follow its master"
        if self._confirmed is None:
            return "its master has not answered yet what is confirmed"
        return f"its master has confirmed the log up to {self._confirmed}"


def _problem(error: Exception) -> str:
    """Why a question was not answered, in words."""
    if _is_unknown(error):
        return UNKNOWN_TO_MASTER
    if isinstance(error, KeyError | ValueError):
        return "its master's answer is not an offset"
    return f"its master does not say what is confirmed: {reason_of(error)}"


def _is_unknown(error: Exception) -> bool:
    """Whether the master does not know the request."""
    answer = error.answer if isinstance(error, RemotingError) else None
    return answer is not None and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
