"""A connection to a remoting port that is kept open: it is made at start, and again whenever it is lost."""

from collections.abc import Callable, Mapping

from twisted.application.internet import backoffPolicy
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.python.failure import Failure

from rmqha.kit.connecting import Reconnecting
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS, RemotingError
from rmqha.remoting.protocol import Processors, RemotingFactory, RemotingProtocol
from rmqha.wire.command import RemotingCommand

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0


class RemotingClient:
    """Calls the other end over its connection. ``processors`` answer the other end's requests.

    ``connected`` is called with each new connection, before anything else uses it.
    """

    def __init__(
        self,
        endpoint: IStreamClientEndpoint,
        clock: IReactorTime,
        processors: Processors | None = None,
        connected: Callable[[RemotingProtocol], None] = lambda _: None,
        longest_retry_seconds: float = MAX_RETRY_SECONDS,
    ) -> None:
        self._clock = clock
        self._client = Reconnecting(
            endpoint,
            RemotingFactory(processors or {}, clock),
            retryPolicy=backoffPolicy(FIRST_RETRY_SECONDS, longest_retry_seconds),
            clock=clock,
            prepareConnection=lambda proxy: connected(proxy.itself),  # type: ignore[attr-defined]  # a RemotingProtocol's
        )

    def start(self) -> None:
        """Start to connect."""
        self._client.startService()

    def when_connected(self) -> Deferred[RemotingProtocol]:
        """The connection, once there is one. Fails with what the next attempt to connect fails with."""
        known: Deferred[RemotingProtocol]
        known = self._client.whenConnected(failAfterFailures=1)  # type: ignore[assignment]  # as above
        return known if known.called else self._next_turn(known)

    def _next_turn(self, known: Deferred[RemotingProtocol]) -> Deferred[RemotingProtocol]:
        """The same, one reactor turn later.

        ClientService fires its Deferreds in the middle of a state change. If a callback then calls it again (to request
        several tables one after another, for example), that is an error.
        """
        later: Deferred[RemotingProtocol] = Deferred()

        def fire(result: RemotingProtocol | Failure) -> None:
            if not later.called:
                self._clock.callLater(0, lambda: None if later.called else later.callback(result))

        known.addBoth(fire)
        return later

    def stop(self) -> Deferred[None]:
        """Disconnect. Fires when the connection has ended."""
        stopped: Deferred[None] = self._client.stopService()
        return stopped

    async def call(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Send a request, and wait for the connection if necessary; all this within ``timeout`` seconds.

        Raises RemotingError for an answer other than success, TimeoutError, or what connecting raises.
        """
        deadline = self._clock.seconds() + timeout
        protocol = await self.when_connected().addTimeout(timeout, self._clock)
        remaining = deadline - self._clock.seconds()
        if remaining <= 0:
            raise RemotingError(f"no connection within {timeout:g} s")
        return await protocol.call(code, ext_fields, body, remaining)
