"""What ``rmqha status`` tells: of a store on this machine, or of a broker, ours or Java's, by its remoting port."""

from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint

from rmqha.broker.remoting import RemotingError
from rmqha.broker.runtimeinfo import NODE_STATE_KEY, ask_config, ask_runtime_info, log_range
from rmqha.store.nodestate import NodeState
from rmqha.store.reader import StoreReader

UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Status:
    """Role and state by name, offsets in the log; None for what is not known."""

    role: str
    state: str
    running: bool
    min_offset: int
    written: int
    verified: int | None = None
    flushed: int | None = None
    confirmed: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    peers: tuple[Any, ...] = ()

    @classmethod
    def of_node(cls, state: NodeState, running: bool) -> "Status":
        """Of a node of ours."""
        offsets = state.offsets
        return cls(
            role=state.role,
            state=state.state if running else "STOPPED",
            running=running,
            min_offset=offsets.min,
            written=offsets.written,
            verified=offsets.verified,
            flushed=offsets.flushed,
            confirmed=offsets.confirmed,
            lag_bytes=state.lag_bytes if running else None,
            lag_seconds=state.lag_seconds if running else None,
            peers=state.peers if running else (),
        )

    def as_json(self) -> dict[str, Any]:
        """With the names that state.json uses."""
        return {
            "role": self.role,
            "state": self.state,
            "running": self.running,
            "min": self.min_offset,
            "written": self.written,
            "verified": self.verified,
            "flushed": self.flushed,
            "confirmed": self.confirmed,
            "lagBytes": self.lag_bytes,
            "lagSeconds": self.lag_seconds,
            "peers": list(self.peers),
        }


def status_of_store(store: StoreReader) -> Status:
    """Of a store on this machine; one that no node of ours has run on is read to find its end."""
    if store.state is not None:
        return Status.of_node(store.state, store.live)
    bases = store.log.segment_bases
    end = store.scan(bases[max(0, len(bases) - 2)], lambda _: None).end if bases else 0
    return Status(UNKNOWN, "RUNNING" if store.live else "STOPPED", store.live, store.log.min_offset, end)


async def status_of_broker(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> Status:
    """Of the broker at a remoting port. Raises RemotingError, TimeoutError or what connecting raises."""
    table = await ask_runtime_info(endpoint, clock)
    if NODE_STATE_KEY in table:
        try:
            return Status.of_node(NodeState.from_json(table[NODE_STATE_KEY]), running=True)
        except ValueError as error:
            raise RemotingError(f"the node's state is not readable: {error}") from error
    min_offset, max_offset = log_range(table)
    role = (await ask_config(endpoint, clock)).get("brokerRole", UNKNOWN)
    return Status(role, "RUNNING", True, min_offset, max_offset)
