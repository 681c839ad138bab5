"""Addresses as people write them: ``host:port``, or a Twisted endpoint string for everything else."""

from typing import Any

from twisted.internet.endpoints import HostnameEndpoint, clientFromString
from twisted.internet.interfaces import IStreamClientEndpoint

LARGEST_PORT = 65535


def _split_host_port(address: str) -> tuple[str, int] | None:
    """Host and port of ``host:port`` or ``[v6]:port``, None for anything else."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal():
        return None
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    return (host, int(port)) if host and ":" not in host else None


def make_endpoint(reactor: Any, address: str) -> IStreamClientEndpoint:
    """From ``host:port`` or a Twisted client endpoint string. Raises ValueError."""
    host_port = _split_host_port(address.removeprefix("tcp:"))
    if host_port is not None and not 0 < host_port[1] <= LARGEST_PORT:  # the system takes it modulo 65536
        raise ValueError(f"{address!r}: a port is between 1 and {LARGEST_PORT}")
    if host_port is not None and not address.startswith("tcp:"):
        return HostnameEndpoint(reactor, *host_port)
    try:
        endpoint: IStreamClientEndpoint = clientFromString(reactor, address)
        return endpoint
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{address!r} is neither HOST:PORT nor a Twisted client endpoint ({error})") from error


def remoting_address_of(ha_address: str) -> str | None:
    """The remoting port that belongs to an HA port: one below, where the address is plain TCP and there is one."""
    host_port = _split_host_port(ha_address.removeprefix("tcp:"))
    if host_port is None or host_port[1] < 2:
        return None
    host, port = host_port
    return f"[{host}]:{port - 1}" if ":" in host else f"{host}:{port - 1}"
