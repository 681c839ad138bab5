"""Asks brokers and name servers about themselves, all at once. Only questions are sent, and each has a time limit."""

import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol

from rmqha.kit.connecting import connect_protocol, reason_of
from rmqha.ops.brokerstatus import status_in
from rmqha.ops.doctor.facts import AskedBroker, Facts, Judgement, ServerListing, Store, clock_ahead
from rmqha.ops.ways import IWays
from rmqha.remoting.asking import log_range, read_config, read_runtime_info
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS
from rmqha.remoting.protocol import RemotingProtocol, call_once
from rmqha.wire.brokerinfo import NODE_STATE_KEY, read_brokers
from rmqha.wire.command import RemotingCommand, RequestCode
from rmqha.wire.fastjson import loads_lenient

MAX_HOSTS = 200
"""The most brokers that are asked. Name servers may list thousands."""
MAX_NAME_SERVERS = 20
RECEIVE_BUFFERS = Path("/proc/sys/net/ipv4/tcp_rmem")
TLS = "tls:"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class AskedAbout:
    """What the user wants to know about: brokers and name servers by address. ``tls`` is for listed brokers."""

    hosts: tuple[str, ...] = ()
    name_servers: tuple[str, ...] = ()
    tls: bool = False


class Asking:
    """Asks those that ``ways`` lead to."""

    def __init__(
        self,
        ways: IWays,
        clock: IReactorTime,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``now`` returns seconds since 1970."""
        self._ways = ways
        self._clock = clock
        self._now = now

    async def facts(self, asked: AskedAbout, stores: Iterable[Store] = ()) -> Facts:
        """Ask the given hosts and name servers, then what they name."""
        stores = tuple(stores)
        hosts, servers = await _together(
            _all(self._host(name) for name in asked.hosts),
            _all(self._name_server(address) for address in asked.name_servers),
        )
        known = {server.address for server in servers}
        named = [*_named_servers(hosts), *_named_servers(stores)]
        later = [address for address in dict.fromkeys(named) if address not in known][:MAX_NAME_SERVERS]
        servers = [*servers, *await _all(self._name_server(address) for address in later)]
        registered = _not_asked(hosts, servers, everybody=not asked.hosts and bool(asked.name_servers))
        room = max(0, MAX_HOSTS - len(hosts))
        more = await _all(self._host(TLS + name if asked.tls else name, given=False) for name in registered[:room])
        hosts = [*hosts, *more]
        addresses = sorted({address for host in hosts if host.problem is None for address in _registers(host)})
        tried = await _all(self._connects(address) for address in addresses)
        connects = dict(zip(addresses, tried, strict=True))
        left_out = max(0, len(registered) - room)
        return Facts(tuple(hosts), stores, tuple(servers), connects, receive_buffer(), left_out)

    async def _host(self, name: str, given: bool = True) -> AskedBroker:
        over_tls = name.lower().startswith((TLS, "ssl:", "rmqtls:"))
        try:
            way = self._ways.to(name)
            return replace(await self._ask_host(name, way), over_tls=over_tls, given=given)
        except CancelledError:  # Ctrl-C
            raise
        except Exception as error:  # of any kind: the host does not answer as it should
            return AskedBroker(name, reason_of(error), over_tls=over_tls, given=given)

    async def _ask_host(self, name: str, way: IStreamClientEndpoint) -> AskedBroker:
        protocol = RemotingProtocol({}, self._clock)
        await connect_protocol(way, protocol).addTimeout(CALL_TIMEOUT_SECONDS, self._clock)
        times: list[float] = []

        async def timed(code: RequestCode) -> RemotingCommand:
            began = self._clock.seconds()
            found = await protocol.call(code)
            times.append(self._clock.seconds() - began)
            return found

        try:
            config = read_config(await timed(RequestCode.GET_BROKER_CONFIG))
            await timed(RequestCode.GET_BROKER_CONFIG)
            asked_at = self._now()
            info = read_runtime_info(await timed(RequestCode.GET_BROKER_RUNTIME_INFO))
            answered_at = self._now()
        finally:
            protocol.hang_up()
        is_ours = NODE_STATE_KEY in info
        return AskedBroker(
            name,
            config=config,
            info=info,
            is_ours=is_ours,
            judgement=Judgement.of(status_in(info, {}), answered_at) if is_ours else None,
            log_end=log_range(info)[1],
            round_trip=min(times),
            clock_ahead=clock_ahead(info, asked_at, answered_at),
        )

    async def _name_server(self, address: str) -> ServerListing:
        try:
            answer = await call_once(self._ways.to(address), RequestCode.GET_BROKER_CLUSTER_INFO, self._clock)
            return ServerListing(address, brokers=read_brokers(loads_lenient(answer.body)))
        except CancelledError:
            raise
        except Exception as error:  # of any kind, as above
            return ServerListing(address, reason_of(error))

    async def _connects(self, address: str) -> str | None:
        """Why an address does not take connections; None if it does. Not a byte is sent."""
        try:
            protocol = await connect_protocol(self._ways.to(address), _Silent()).addTimeout(
                CALL_TIMEOUT_SECONDS, self._clock
            )
        except CancelledError:
            raise
        except Exception as error:  # of any kind, as above
            return reason_of(error)
        if protocol.transport is not None:
            protocol.transport.loseConnection()
        return None


class _Silent(Protocol):
    """Sends nothing, and ignores what it receives."""


def _named_servers(nodes: Iterable[AskedBroker] | Iterable[Store]) -> list[str]:
    """The name servers in the settings of brokers and stores."""
    texts = [node.config.get("namesrvAddr", "") for node in nodes]
    return [address.strip() for text in texts for address in text.split(";") if address.strip()]


def _not_asked(hosts: list[AskedBroker], servers: list[ServerListing], everybody: bool) -> list[str]:
    """The registered addresses of brokers that were not asked: of ``everybody``, or of the brokerNames asked."""
    names = {host.broker_name for host in hosts}
    known = {host.address for host in hosts} | {host.name.removeprefix(TLS) for host in hosts}
    found = [
        address
        for server in servers
        for name, table in server.brokers.items()
        if everybody or name in names
        for address in table.values()
        if address not in known
    ]
    return list(dict.fromkeys(found))


def _registers(host: AskedBroker) -> list[str]:
    """The addresses that others use to reach the broker."""
    addresses = [host.address, host.ha_address if host.is_master else None]
    return [address for address in addresses if address is not None]


def receive_buffer(path: Path = RECEIVE_BUFFERS) -> int | None:
    """The largest receive buffer that Linux gives to a connection; None if it does not say."""
    try:
        return int(path.read_text().split()[2])
    except (OSError, ValueError, IndexError):
        return None


async def _all(asking: Iterable[Coroutine[Any, Any, Found]]) -> list[Found]:
    """All results, in order. All coroutines run at once."""
    return await gatherResults([Deferred.fromCoroutine(each) for each in asking], consumeErrors=True)


async def _together(
    hosts: Coroutine[Any, Any, list[AskedBroker]], servers: Coroutine[Any, Any, list[ServerListing]]
) -> tuple[list[AskedBroker], list[ServerListing]]:
    first, second = Deferred.fromCoroutine(hosts), Deferred.fromCoroutine(servers)
    return await first, await second
