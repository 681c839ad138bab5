"""Where brokers are: what people give to ``load()``, and what a task must know to read a log.

The path of a remote split is a text as that of a local one is: it passes through Spark, and errors can show its start.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import orjson

from rmqha.pipeline.errors import OptionError

HA_PORT, NAME_SERVER_PORT = 10912, 9876
"""The ports of an address without one."""
OVER_TLS = "tls:"
MAX_PORT = 65535
NODES, NAME_SERVERS = SCHEMES = ("rmqha", "namesrv")
"""An address begins with one of them."""
ADDRESS = re.compile(rf"({'|'.join(SCHEMES)}):/{{1,2}}([^/?#]+)(?:\?([^#]*))?")
"""A ``Path`` makes one slash of two."""


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, port: int) -> "Place":
        """The place in ``host``, ``host:port`` or ``[v6]:port``. Raises ValueError."""
        match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not HOST:PORT")
        found = cls(match[1].strip("[]"), port if match[2] is None else int(match[2]))
        if not 0 < found.port <= MAX_PORT:
            raise ValueError(f"{text!r}: a port is between 1 and {MAX_PORT}")
        return found


@dataclass(frozen=True, slots=True)
class NameServer:
    """A name server's port, and whether it is reached by TLS."""

    place: Place
    over_tls: bool = False

    @classmethod
    def parse(cls, text: str) -> "NameServer":
        """Parse ``host:port`` or ``tls:host:port``. Raises ValueError."""
        text = text.strip()
        over_tls = text.startswith(OVER_TLS)
        return cls(Place.parse(text.removeprefix(OVER_TLS), NAME_SERVER_PORT), over_tls)


@dataclass(frozen=True, slots=True)
class NetworkAddress:
    """What a user gives: the HA ports of one broker's nodes, or name servers.

    Without ``remoting_port`` a node's remoting port is the one below its HA port. Without ``cluster`` all brokers that
    the name servers know are meant.
    """

    nodes: tuple[Place, ...] = ()
    remoting_port: int | None = None
    name_servers: tuple[NameServer, ...] = ()
    cluster: str | None = None


def is_network(path: Path | str) -> bool:
    """Whether this is the address of brokers, not a folder or a file."""
    return str(path).startswith(tuple(f"{scheme}:/" for scheme in SCHEMES))


def names_cluster(path: Path | str) -> bool:
    """Whether this is the address of name servers, which may know several brokers."""
    return str(path).startswith(f"{NAME_SERVERS}:/")


def address_text(path: Path) -> str:
    """The address as the user has given it; the path of a folder or a file as it is."""
    return str(path).replace(":/", "://", 1) if is_network(path) else str(path)


def parse_address(text: str) -> NetworkAddress:
    """Parse ``rmqha://HOST:PORT`` or ``namesrv://HOST:PORT?cluster=NAME``, each with several places. That of a name
    server may begin with ``tls:``. Raises OptionError.
    """
    match = ADDRESS.fullmatch(text)
    try:
        if match is None:
            raise ValueError("it is neither rmqha://HOST:PORT nor namesrv://HOST:PORT (or namesrv://tls:HOST:PORT)")
        scheme, places, query = match[1], re.split("[,;]", match[2]), match[3] or ""
        given = {name: values[-1] for name, values in parse_qs(query, strict_parsing=bool(query)).items()}
        if scheme == NODES:
            remoting = given.pop("remoting", None)
            found = NetworkAddress(
                tuple(Place.parse(place, HA_PORT) for place in places),
                None if remoting is None else Place.parse(f"any:{remoting}", HA_PORT).port,
            )
        else:
            servers = tuple(map(NameServer.parse, places))
            found = NetworkAddress(name_servers=servers, cluster=given.pop("cluster", None))
        if given:
            raise ValueError(f"{scheme}:// has no parameter {', '.join(sorted(given))}")
    except ValueError as error:
        raise OptionError(f"{text}: {error}") from error
    return found


@dataclass(frozen=True, slots=True)
class TLSPaths:
    """TLS with a node: the PEM files of the authorities (None: those of the platform), our certificate and its key."""

    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """How tasks read. ``max_rate`` is in bytes a second for each task, ``silence_seconds`` how long a node may send
    nothing. Without ``tls`` connections are plain.
    """

    max_rate: int | None = None
    silence_seconds: float = 30.0
    tls: TLSPaths | None = None


@dataclass(frozen=True, slots=True)
class ServingNode:
    """A node that serves a log at its HA port.

    ``knows_readers`` is true for our own nodes: the connection begins with a mark that a reader sends.
    A SYNC_MASTER of Java takes each report for a replica's, and its puts may wait for ``settling_seconds``; they are 0
    for all other nodes.
    """

    place: Place
    broker_id: int
    knows_readers: bool = False
    settling_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """A part of a broker's log, and the nodes that have it, the one to ask first in front.

    The log started at ``start`` and was at least ``limit`` bytes long when it was planned; nothing is read after that.
    Bytes before ``settled`` are so old that no producer waits for them any more. ``address`` is what the user has
    given. ``state`` is the JSON of what an archive keeps of the state of the first node; None for a Java broker.
    """

    broker: str
    nodes: tuple[ServingNode, ...]
    limit: int
    settled: int = 0
    access: Access = Access()
    start: int = 0
    address: str = ""
    state: str | None = None

    @property
    def in_cluster(self) -> bool:
        """Whether name servers know the broker, and may know others."""
        return names_cluster(self.address)

    def path(self) -> str:
        """The text that ``parse`` reads."""
        places = ",".join(str(node.place) for node in self.nodes)
        return f"rmqha://{places}/{quote(self.broker)}#{orjson.dumps(asdict(self)).decode()}"

    @classmethod
    def parse(cls, path: str) -> "RemoteLog":
        """What ``path`` has made a text of."""
        content: dict[str, Any] = orjson.loads(path.partition("#")[2])
        access = content["access"]
        tls = None if access["tls"] is None else TLSPaths(**access["tls"])
        nodes = tuple(ServingNode(**{**node, "place": Place(**node["place"])}) for node in content["nodes"])
        return cls(**{**content, "nodes": nodes, "access": Access(**{**access, "tls": tls})})


def shown(path: str) -> str:
    """The path of a split as errors show it."""
    return unquote(path.partition("#")[0])
