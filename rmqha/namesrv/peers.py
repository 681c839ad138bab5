"""Who may register brokers and administer a name server, by what its connection shows: spec/remoting.md 2.22.

What a request says of itself proves nothing. A connection proves its address and, with TLS, a certificate. And a broker
whose connection still answers is alive: nobody else takes its place.
"""

from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime

from rmqha.ha.admission.allowlist import AllowList
from rmqha.net.tls.gate import peer_names
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.networks import is_loopback, network_of
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.wire.command import RequestCode

PROBE_SECONDS = 3.0
PROVED_SECONDS = 5.0
"""A connection that has answered is not asked again for this time."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who sends requests on a connection: its address, and the names in its verified certificate, if any.

    ``own_host`` is the address of our end.
    """

    connection: Any
    host: str = ""
    names: frozenset[str] = frozenset()
    own_host: str = ""

    @classmethod
    def of(cls, connection: RemotingProtocol) -> "Peer":
        """The peer of an open connection."""
        names = frozenset(peer_names(connection.transport))
        return cls(connection, connection.peer_host[0], names, connection.own_host)

    def is_same(self, other: "Peer") -> bool:
        """Whether the other connection is of the same peer: it shows the same certificate or, without one, comes from
        the same address.
        """
        if self.connection is other.connection:
            return True
        if self.names:
            return not self.names.isdisjoint(other.names)
        return network_of(self.host) == network_of(other.host)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return is_loopback(self.host) or self.host == self.own_host

    def is_in(self, allowed: AllowList) -> bool:
        """Whether its address or its certificate is listed."""
        return allowed.has_address(self.host) or allowed.listed_name(tuple(self.names)) is not None


@dataclass(frozen=True, slots=True)
class Access:
    """Who may register brokers (None: everybody), and who may administer besides this machine."""

    brokers: AllowList | None = None
    admins: AllowList | None = None

    def may_register(self, peer: Peer) -> bool:
        """Whether it may register brokers, and unregister its own."""
        return self.brokers is None or peer.is_in(self.brokers)

    def may_administer(self, peer: Peer) -> bool:
        """Whether it may change what other peers have registered, and the key-value configuration."""
        return peer.is_local or (self.admins is not None and peer.is_in(self.admins))


DEFAULT_ACCESS = Access()


class Liveness:
    """Finds out whether connections are alive. However often it is asked, it sends each of them few requests."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._proved_at: dict[RemotingProtocol, float] = {}
        self._waiting: dict[RemotingProtocol, list[Deferred[bool]]] = {}

    async def is_alive(self, connection: RemotingProtocol) -> bool:
        """Whether the other end answers a request within PROBE_SECONDS. Any answer counts, also a refusal."""
        if not connection.is_open:
            return False
        proved_at = self._proved_at.get(connection)
        if proved_at is not None and self._clock.seconds() - proved_at < PROVED_SECONDS:
            return True
        answer: Deferred[bool] = Deferred()
        waiting = self._waiting.setdefault(connection, [])
        waiting.append(answer)
        if len(waiting) == 1:
            Deferred.fromCoroutine(_answers(connection)).addCallback(self._found_out, connection)
        return await answer

    def _found_out(self, is_alive: bool, connection: RemotingProtocol) -> None:
        if is_alive:
            self._proved_at[connection] = self._clock.seconds()
        for answer in self._waiting.pop(connection):
            answer.callback(is_alive)

    def forget(self, connection: RemotingProtocol) -> None:
        """The connection has ended."""
        self._proved_at.pop(connection, None)


async def _answers(connection: RemotingProtocol) -> bool:
    try:
        await connection.call(RequestCode.GET_BROKER_CLUSTER_INFO, timeout=PROBE_SECONDS)
    except RemotingError as error:  # a broker does not know this request, and says so
        return error.answer is not None
    except DeferredTimeoutError:
        return False
    return True
