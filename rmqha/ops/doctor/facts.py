"""What the checks look at: what brokers, name servers and stores say about themselves. None stands for "not known"."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmqha.kit.exitcodes import ExitCode
from rmqha.ops.status import NodeStatus, judge
from rmqha.settings.settings import BrokerRole

NO_TEXTS: Mapping[str, str] = {}
RUNTIME = re.compile(r"(\d{1,9}) days, (\d{1,2}) hours, (\d{1,2}) minutes, (\d{1,2}) seconds")
FREE = re.compile(r"Free : (\d{1,9}(?:[.,]\d{1,3})?) (B|[KMGTPE]iB)")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
VERSION = re.compile(r"V?(\d{1,3})[._](\d{1,3})(?:[._](\d{1,3}))?")
MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """How our node judges its own state: the exit code of ``rmqha status``, the reason, and the node's warnings."""

    state: str
    code: ExitCode
    reason: str
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, status: NodeStatus, now: float) -> "Judgement":
        """The judgement at ``now``, in seconds since 1970."""
        code, reason = judge(status, now=now)
        return cls(status.node.state, code, reason, status.node.warnings)


@dataclass(frozen=True, slots=True)
class Subject:
    """What broker and store have in common. ``name`` is as the user wrote it, or as a name server lists it.

    ``problem`` says why nothing is known of it. ``config`` has settings by RocketMQ's keys.
    """

    name: str
    problem: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    judgement: Judgement | None = None
    is_ours: bool = False
    log_end: int | None = None

    @property
    def broker_name(self) -> str | None:
        """Its brokerName; nodes of one name hold copies of one log."""
        return self.config.get("brokerName") or None

    @property
    def role(self) -> BrokerRole | None:
        """Its brokerRole."""
        try:
            return BrokerRole(self.config["brokerRole"].strip())
        except (KeyError, ValueError):
            return None

    @property
    def is_master(self) -> bool | None:
        """Whether it takes messages."""
        return None if self.role is None else self.role is not BrokerRole.SLAVE

    @property
    def broker_id(self) -> int | None:
        """Its brokerId."""
        return self.number("brokerId")

    def number(self, key: str) -> int | None:
        """A setting that is a number. None if it is missing, or not a number."""
        text = self.config.get(key, "").strip()
        return int(text) if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) else None

    def says(self, key: str, value: str = "true") -> bool:
        """Whether a setting has this value; case does not matter."""
        return self.config.get(key, "").strip().lower() == value


@dataclass(frozen=True, slots=True)
class AskedBroker(Subject):
    """A broker. ``info`` is its runtime info.

    ``round_trip`` is the shortest time of a request, in seconds. ``clock_ahead`` has limits, in seconds, between which
    its clock is ahead of ours. ``given`` is false for a broker that only a name server has named.
    """

    over_tls: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    round_trip: float | None = None
    clock_ahead: tuple[float, float] | None = None
    given: bool = True

    @property
    def address(self) -> str | None:
        """The address that it registers for clients: brokerIP1 and listenPort."""
        return self._address("brokerIP1", self.number("listenPort"))

    @property
    def ha_address(self) -> str | None:
        """The address that it registers for its slaves: brokerIP2 and haListenPort."""
        port, listen_port = self.number("haListenPort"), self.number("listenPort")
        if not port and listen_port:
            port = listen_port + 1
        return self._address("brokerIP2", port) or self._address("brokerIP1", port)

    def _address(self, key: str, port: int | None) -> str | None:
        host = self.config.get(key, "").strip()
        return f"{host}:{port}" if host and port else None

    @property
    def identity(self) -> tuple[str | None, str | None]:
        """What is the same if one broker is asked under two names."""
        return self.address or self.name, self.info.get("bootTimestamp")

    @property
    def version(self) -> tuple[int, int] | None:
        """The first two numbers of its version."""
        found = VERSION.match(self.info.get("brokerVersionDesc", ""))
        return None if found is None else (int(found[1]), int(found[2]))

    @property
    def used_ratio(self) -> float | None:
        """How full the disk of its log is, 0 to 1."""
        return read_float(self.info.get("commitLogDiskRatio", ""))

    @property
    def free_bytes(self) -> int | None:
        """The free bytes of that disk, rounded."""
        found = FREE.search(self.info.get("commitLogDirCapacity", ""))
        return None if found is None else int(float(found[1].replace(",", ".")) * 1024 ** UNITS.index(found[2]))

    @property
    def put_bytes_per_second(self) -> float | None:
        """How fast its log grows, as it was lately: messages a second, and their average size."""
        rates = [rate for rate in map(read_float, self.info.get("putTps", "").split()[:3]) if rate is not None]
        size = read_float(self.info.get("putMessageAverageSize", ""))
        return None if not rates or size is None else max(rates) * size


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """The log from ``offset`` on is kept for the slave ``name``."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The open files of a process, and its limit; ``used`` is None if only the limit is known."""

    limit: int
    used: int | None


@dataclass(frozen=True, slots=True)
class Store(Subject):
    """A store on this machine. ``slots`` is None if ``slots_problem`` says why they cannot be read.

    ``implementation`` is what a node runs that starts here: the kernel, or plain Python and why.
    """

    is_running: bool = False
    segment_size: int | None = None
    queue_file_size: int | None = None
    free_bytes: int | None = None
    used_ratio: float | None = None
    slots: tuple[HeldSlot, ...] | None = ()
    slots_problem: str | None = None
    open_files: OpenFiles | None = None
    implementation: str | None = None


@dataclass(frozen=True, slots=True)
class ServerListing:
    """The brokers that a name server lists: their addresses by brokerName and brokerId."""

    address: str
    problem: str | None = None
    brokers: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was found out. ``connects`` says for each tried address why it does not take connections.

    ``receive_buffer`` is the largest receive buffer of a connection on this machine, in bytes. ``left_out`` counts the
    brokers that were not asked because they are too many.
    """

    hosts: tuple[AskedBroker, ...] = ()
    stores: tuple[Store, ...] = ()
    name_servers: tuple[ServerListing, ...] = ()
    connects: Mapping[str, str | None] = field(default_factory=dict)
    receive_buffer: int | None = None
    left_out: int = 0

    @property
    def answering(self) -> list[AskedBroker]:
        """The brokers that answer, each once."""
        found: dict[tuple[str | None, str | None], AskedBroker] = {}
        for host in self.hosts:
            if host.problem is None:
                found.setdefault(host.identity, host)
        return list(found.values())

    @property
    def readable(self) -> list[Store]:
        """The stores that can be read."""
        return [store for store in self.stores if store.problem is None]

    def by_broker_name(self) -> dict[str, list[AskedBroker]]:
        """The brokers that answer, by brokerName."""
        found: dict[str, list[AskedBroker]] = {}
        for host in self.answering:
            if host.broker_name is not None:
                found.setdefault(host.broker_name, []).append(host)
        return found


def read_float(text: str) -> float | None:
    """A number that is not negative; None for another text."""
    found = re.fullmatch(r"[0-9]{1,18}(?:\.[0-9]{1,20})?(?:E-?[0-9]{1,2})?", text.strip(), re.ASCII)
    return None if found is None else float(found[0])


def clock_ahead(info: Mapping[str, str], asked_at: float, answered_at: float) -> tuple[float, float] | None:
    """How far a broker's clock is ahead of ours, in seconds: at least and at most.

    It says when it started and for how long it has run, in whole seconds. Times are seconds since 1970.
    """
    started, runtime = read_float(info.get("bootTimestamp", "")), RUNTIME.search(info.get("runtime", ""))
    if started is None or runtime is None:
        return None
    days, hours, minutes, seconds = map(int, runtime.groups())
    theirs = started / 1000 + ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return theirs - answered_at, theirs + 1 - asked_at
