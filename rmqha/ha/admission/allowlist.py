"""Who may be a slave: a list of addresses and certificate names, and log lines about refused hosts."""

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from re import compile as compile_pattern

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.kit.events import Event

LOGGED_AGAIN_SECONDS = 600.0
"""A host that is refused again for the same reason is logged again only after this time."""
MAX_LOGGED = 256
"""The maximum number of refusals that are logged within that time."""
_NAME = compile_pattern(r"(?=.*[A-Za-z])[A-Za-z0-9_*][A-Za-z0-9_.*-]*")


@dataclass(frozen=True, slots=True)
class AllowList:
    """Lists slaves by address or by a name in their certificate; either is enough."""

    networks: tuple[IPv4Network | IPv6Network, ...]
    names: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> "AllowList":
        """Parse a comma-separated list of addresses, networks and names. Raises ValueError."""
        networks, names = [], set()
        for entry in (piece.strip() for piece in text.split(",")):
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                if not _NAME.fullmatch(entry):
                    raise ValueError(f"{entry!r} is neither an address, a network nor a name ({error})") from error
                names.add(entry.lower())
        return cls(tuple(networks), frozenset(names))

    def __str__(self) -> str:
        return ", ".join([*map(str, self.networks), *sorted(self.names)])

    def has_address(self, host: str) -> bool:
        """Whether the host's address is listed, or is in a listed network."""
        address = _address(host)
        return address is not None and any(address in network for network in self.networks)

    def listed_name(self, names: tuple[str, ...]) -> str | None:
        """The first of these names that is listed, or None."""
        return next((name for name in names if name in self.names), None)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped if mapped is not None else address


class SlaveCheck:
    """Checks slaves against an allow-list (None allows all), and logs each refused host once, not each of its tries."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, allow_list: AllowList | None = None) -> None:
        self._clock = clock
        self._allow_list = allow_list
        self._logged: OrderedDict[tuple[str, str], float] = OrderedDict()

    def may_connect(self, host: str) -> bool:
        """Check the address alone, before any certificate name is known."""
        allowed = self._allow_list
        if allowed is None or allowed.names or allowed.has_address(host):
            return True
        self.refused(host, "its address is not in --allow-slaves")
        return False

    def identify(self, host: str, names: tuple[str, ...]) -> str | None:
        """The slave's identity: a name of its certificate, or else its host. None if it is refused."""
        allowed = self._allow_list
        listed = allowed.listed_name(names) if allowed is not None else None
        if allowed is not None and listed is None and not allowed.has_address(host):
            shown = (
                f"neither {', '.join(names)} nor its address is"
                if names
                else "it has no certificate name, and its address is not"
            )
            self.refused(host, f"{shown} in --allow-slaves")
            return None
        return listed or next(iter(names), host)

    def refused(self, host: str, reason: str, event: Event = Event.PEER_REFUSED) -> None:
        """Log that ``host`` is refused, unless this was logged recently."""
        now = self._clock.seconds()
        while self._logged and next(iter(self._logged.values())) <= now - LOGGED_AGAIN_SECONDS:
            self._logged.popitem(last=False)
        if (host, reason) in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged[host, reason] = now
        self._log.warn("refusing {host}: {reason}", event=event, host=host, reason=reason)
        if len(self._logged) == MAX_LOGGED:
            self._log.warn(
                "{count} refusals logged; further ones are not logged for a while",
                event=Event.REFUSALS_NOT_LOGGED,
                count=MAX_LOGGED,
            )
