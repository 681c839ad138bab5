"""Which addresses count as one peer, where a limit is for each address."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

IPV6_NETWORK_BITS = 64
"""The prefix length of the network that one host or site has."""


def is_loopback(host: str) -> bool:
    """Whether this is an address of the same machine, or the name localhost."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The address or, for IPv6, its network: a host with one address of a network can use all of them."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((found.packed, IPV6_NETWORK_BITS), strict=False))
