"""What nodes and name servers answer the driver: where logs start and end, who has them, and how to reach them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from rmqha.pipeline.address import NameServer, Place, ServingNode, TLSPaths
from rmqha.pipeline.network.lines import NodeFailed, connect
from rmqha.settings.settings import MAX_SEGMENT, MIN_SEGMENT
from rmqha.store.metadata import ConsumerOffsetTable
from rmqha.store.nodestate import NodeState
from rmqha.wire.brokerinfo import (
    NODE_STATE_KEY,
    READERS_KEY,
    config_table,
    other_replication,
    range_of_log,
    read_brokers,
    runtime_table,
    settling_seconds,
)
from rmqha.wire.command import (
    FRAME_MAX_LENGTH,
    HEADER_LENGTH,
    TOTAL_LENGTH_BYTES,
    CommandError,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Sign,
    decode_command,
    encode_head,
)
from rmqha.wire.fastjson import loads_lenient

ANSWER_SECONDS = 10.0
MASTER_ID = 0
REMOTING_PORT = 10911

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class ServedLog:
    """What a node says of itself and of its log, which has the bytes from ``start`` to before ``limit``.

    ``state`` is None for a Java broker.
    """

    node: ServingNode
    broker: str
    start: int
    limit: int
    segment_size: int
    state: NodeState | None

    @property
    def is_slave(self) -> bool:
        """Whether no producer sends to it."""
        return self.node.broker_id != MASTER_ID


class NodeRefuses(NodeFailed):
    """A node answers a request with a code that is not SUCCESS: ``code``."""

    def __init__(self, problem: str, code: int) -> None:
        super().__init__(problem)
        self.code = code


class RemotingLine:
    """A connection to a remoting port. A context manager."""

    def __init__(self, place: Place, tls: TLSPaths | None = None, sign: Sign | None = None) -> None:
        """Raises NodeFailed, OptionError."""
        self.place = place
        self._sign = sign
        self._socket = connect(place, tls)
        self._socket.settimeout(ANSWER_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, code: RequestCode, read: Callable[[bytes], Found], fields: Mapping[str, str] | None = None) -> Found:
        """What ``read`` makes of the body of the answer. Raises NodeRefuses, NodeFailed."""
        request = RemotingCommand(code, opaque=code, ext_fields=fields or {})
        if self._sign is not None:
            request = request._replace(ext_fields=self._sign(request.ext_fields, request.body, request.version))
        try:
            self._socket.sendall(encode_head(request))
            answer = self._answer()
            if answer.code != ResponseCode.SUCCESS:
                raise NodeRefuses(f"{self.place} refuses {code.name}: {answer.remark or answer.code}", answer.code)
            return read(answer.body)
        except (CommandError, ValueError) as error:
            raise NodeFailed(f"{self.place} answers {code.name} wrongly: {error}") from error
        except TimeoutError:
            raise NodeFailed(f"{self.place} does not answer {code.name} within {ANSWER_SECONDS:g} s") from None
        except OSError as error:
            raise NodeFailed(f"the connection to {self.place} was lost: {error}") from error

    def _answer(self) -> RemotingCommand:
        (length,) = HEADER_LENGTH.unpack(self._exactly(TOTAL_LENGTH_BYTES))
        if length > FRAME_MAX_LENGTH:
            raise CommandError(f"a frame of {length} bytes: it is not a remoting port, or uses TLS")
        return decode_command(self._exactly(length))

    def _exactly(self, size: int) -> bytes:
        held = bytearray()
        while len(held) < size:
            data = self._socket.recv(size - len(held))
            if not data:
                raise NodeFailed(f"{self.place} closed the connection")
            held += data
        return bytes(held)


def ask_node(remoting: Place, ha_port: int | None, tls: TLSPaths | None, sign: Sign | None) -> ServedLog:
    """Ask a broker, ours or Java's, about itself. Without ``ha_port`` it says itself where its HA port is.

    Raises NodeFailed, OptionError.
    """
    with RemotingLine(remoting, tls, sign) as line:
        config = line.ask(RequestCode.GET_BROKER_CONFIG, config_table)
        table = line.ask(RequestCode.GET_BROKER_RUNTIME_INFO, runtime_table)
    mode = other_replication(config)
    if mode is not None:
        raise NodeFailed(f"{remoting} is in {mode}, which has its own replication: rmqha cannot read it")
    try:
        start, limit = range_of_log(table)
        size = int(config["mappedFileSizeCommitLog"])
        broker_id = int(config["brokerId"])
        port = int(config["haListenPort"]) if ha_port is None else ha_port
        state = NodeState.from_json(table[NODE_STATE_KEY]) if NODE_STATE_KEY in table else None
        if not MIN_SEGMENT <= size <= MAX_SEGMENT:
            raise ValueError(f"mappedFileSizeCommitLog={size} is not between {MIN_SEGMENT} and {MAX_SEGMENT}")
    except (KeyError, ValueError) as error:
        raise NodeFailed(f"{remoting} does not say what a broker says: {error!r}") from error
    believes_reports = state is None and config.get("brokerRole", "").strip() == "SYNC_MASTER"
    settling = settling_seconds(config) if believes_reports else 0.0
    node = ServingNode(Place(remoting.host, port), broker_id, table.get(READERS_KEY) == "true", settling)
    return ServedLog(node, config.get("brokerName", str(remoting)), start, limit, size, state)


def ask_consumer_offsets(remoting: Place, tls: TLSPaths | None, sign: Sign | None) -> bytes:
    """The JSON of the offsets that consumers have reached at a broker. Raises NodeFailed, OptionError."""

    def checked(body: bytes) -> bytes:
        ConsumerOffsetTable.parse(body)
        return body

    with RemotingLine(remoting, tls, sign) as line:
        return line.ask(RequestCode.GET_ALL_CONSUMER_OFFSET, checked)


def ask_unknown_topics(
    remoting: Place, topics: Iterable[str], tls: TLSPaths | None, sign: Sign | None
) -> frozenset[str]:
    """Those of some topics that a broker, ours or Java's, does not have. Raises NodeFailed, OptionError."""
    unknown = set()
    with RemotingLine(remoting, tls, sign) as line:
        for topic in topics:
            try:
                line.ask(RequestCode.GET_TOPIC_STATS_INFO, len, {"topic": topic})
            except NodeRefuses as refusal:
                if refusal.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                unknown.add(topic)
    return frozenset(unknown)


def ask_brokers(
    servers: Sequence[NameServer], cluster: str | None, tls: TLSPaths | None
) -> dict[str, dict[int, Place]]:
    """The remoting ports of all brokers, by brokerName and brokerId, from the first name server that answers.

    ``tls`` has the files for those that are reached by TLS; None trusts the authorities of the platform.
    Raises NodeFailed if none does, or if there is no such cluster.
    """
    failures = []
    for server in servers:
        try:
            with RemotingLine(server.place, (tls or TLSPaths()) if server.over_tls else None) as line:
                return line.ask(RequestCode.GET_BROKER_CLUSTER_INFO, lambda body: _places(body, cluster))
        except NodeFailed as error:
            failures.append(str(error))
    raise NodeFailed("; ".join(failures))


def _places(body: bytes, cluster: str | None) -> dict[str, dict[int, Place]]:
    """Raises ValueError."""
    content = loads_lenient(body)
    brokers = read_brokers(content)
    if cluster is not None:
        clusters = content.get("clusterAddrTable") or {}
        if cluster not in clusters:
            raise ValueError(f"there is no cluster {cluster}, only {', '.join(sorted(clusters)) or 'none'}")
        brokers = {name: brokers[name] for name in clusters[cluster] if name in brokers}
    return {
        name: {number: Place.parse(address, REMOTING_PORT) for number, address in addresses.items()}
        for name, addresses in sorted(brokers.items())
        if addresses
    }
