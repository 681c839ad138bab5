"""One kept connection to another's remoting port: made when the client starts, and again whenever it is lost."""

from collections.abc import Callable, Mapping

from twisted.application.internet import backoffPolicy
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.python.failure import Failure

from rmqha.connecting import Reconnecting
from rmqha.remoting.protocol import CALL_TIMEOUT_SECONDS, Processors, RemotingError, RemotingFactory, RemotingProtocol
from rmqha.wire.command import RemotingCommand

FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 10.0


class RemotingClient:
    """Asks over its connection; answers what the other end asks by ``processors``.

    ``connected`` is called with each new connection, before anybody else uses it.
    """

    def __init__(
        self,
        endpoint: IStreamClientEndpoint,
        clock: IReactorTime,
        processors: Processors | None = None,
        connected: Callable[[RemotingProtocol], None] = lambda _: None,
        longest_retry_seconds: float = LONGEST_RETRY_SECONDS,
    ) -> None:
        self._clock = clock
        self._client = Reconnecting(
            endpoint,
            RemotingFactory(processors or {}, clock),
            retryPolicy=backoffPolicy(FIRST_RETRY_SECONDS, longest_retry_seconds),
            clock=clock,
            prepareConnection=connected,  # type: ignore[arg-type]  # our factory builds no other protocols
        )

    def start(self) -> None:
        """Begin to connect."""
        self._client.startService()

    def when_connected(self) -> Deferred[RemotingProtocol]:
        """The connection, once there is one. Fails with what the next attempt to connect fails with."""
        known: Deferred[RemotingProtocol]
        known = self._client.whenConnected(failAfterFailures=1)  # type: ignore[assignment]  # as above
        return known if known.called else self._next_turn(known)

    def _next_turn(self, known: Deferred[RemotingProtocol]) -> Deferred[RemotingProtocol]:
        """The same, a turn of the reactor later.

        ClientService tells its waiters in the middle of a change of its state: one that asks it again there, as whoever
        asks for several tables one after another does, is an error.
        """
        told: Deferred[RemotingProtocol] = Deferred()

        def tell(result: RemotingProtocol | Failure) -> None:
            if not told.called:
                self._clock.callLater(0, lambda: None if told.called else told.callback(result))

        known.addBoth(tell)
        return told

    def stop(self) -> Deferred[None]:
        """Disconnect; fires when the connection is gone."""
        stopped: Deferred[None] = self._client.stopService()
        return stopped

    async def call(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Ask, waiting for a connection if there is none just now; all within ``timeout`` seconds.

        Raises RemotingError for an answer other than success, TimeoutError, or what connecting raised.
        """
        deadline = self._clock.seconds() + timeout
        protocol = await self.when_connected().addTimeout(timeout, self._clock)
        remaining = deadline - self._clock.seconds()
        if remaining <= 0:
            raise RemotingError(f"no connection within {timeout:g} s")
        return await protocol.call(code, ext_fields, body, remaining)
