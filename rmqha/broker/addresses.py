"""The addresses of a broker: its own, and those of its master."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from rmqha.net.endpoints import host_and_port
from rmqha.settings.settings import Settings
from rmqha.wire.record import Host

SOME_ADDRESS_ELSEWHERE = ("192.0.2.1", 9)
"""Used to find our own address on the way there. Nothing is sent."""
ANY_ADDRESSES = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class MasterAddresses:
    """A master's remoting and HA address, as name servers give them to slaves; None without a live master."""

    master_addr: str | None = None
    ha_server_addr: str | None = None


def default_ip(bind_address: str) -> str:
    """The default of brokerIP1: the address of the ports or, if they listen on all, the one used for other hosts."""
    if bind_address not in ANY_ADDRESSES:
        return bind_address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOME_ADDRESS_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def resolved(address: str, port: int) -> Host:
    """A host from an address or a name. brokerIP1 may be a name that clients can resolve. Raises OSError."""
    try:
        return Host.parse(address, port)
    except ValueError:
        return Host.parse(socket.gethostbyname(address), port)


class OwnAddresses:
    """Under which addresses clients and slaves find a broker. Its messages have ``store_host``.

    The ports are those of the settings until the broker listens.
    """

    def __init__(self, settings: Settings, bind_address: str, known: Mapping[str, str]) -> None:
        """``known`` are addresses of names that were looked up. Raises OSError if brokerIP1 cannot be resolved."""
        self.broker_ip1 = settings.broker_ip1.strip("[]") or default_ip(bind_address)
        self.broker_ip2 = settings.broker_ip2.strip("[]") or self.broker_ip1
        self.store_host = resolved(known.get(self.broker_ip1, self.broker_ip1), settings.listen_port)
        self.ha_port = settings.ha_port

    @property
    def broker_addr(self) -> str:
        """The address for clients, as registered with name servers: brokerIP1 and the main port."""
        return host_and_port(self.broker_ip1, self.store_host.port)

    @property
    def ha_server_addr(self) -> str:
        """The address for slaves: brokerIP2 and the HA port."""
        return host_and_port(self.broker_ip2, self.ha_port)

    def listening(self, port: int) -> None:
        """The main port is this one. (With port 0 in the settings the system chooses it.)"""
        self.store_host = self.store_host._replace(port=port)

    def ha_listening(self, port: int) -> None:
        """The HA port is this one. (With port 0 in the settings the system chooses it.)"""
        self.ha_port = port
