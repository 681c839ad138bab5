"""What a node knows of itself, read from its live objects at each request: nothing here can get old.

The metrics, the health checks, the status page and status.json all come from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmqha.ha.master.protocol import HAMasterFactory
from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.histogram import Histogram
from rmqha.kit.steps import Steps
from rmqha.net.tls.endpoints import ServerTLS
from rmqha.remoting.protocol import RemotingFactory
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import TOPIC_GROUP_SEPARATOR
from rmqha.store.nodefacts import OpeningPhase
from rmqha.store.nodestate import NodeState
from rmqha.web.interfaces import ILiveNode, IShownNode
from rmqha.web.sampling import RecentWarnings, Sampler

SERVING = "SERVING"
RUNNING = "RUNNING"
OPENING_STATES = tuple(phase.name for phase in OpeningPhase)
STATES = (
    SERVING,
    *(state.name for state in ReplicaState),
    *OPENING_STATES,
    *("NEW", "OPENING", "CHANGING", "STOPPING"),
)
"""All states that a node can be in: those of state.json, and its phases while it does not run."""
QUEUES_AT_ONCE = 4000
"""Queues examined per step."""


@dataclass(frozen=True, slots=True)
class WatchedNode:
    """A node, and what its pages watch."""

    node: IShownNode
    tls: ServerTLS | None
    warnings: RecentWarnings
    turns: Histogram | None
    sampler: Sampler

    @property
    def role(self) -> str:
        """SLAVE, ASYNC_MASTER or SYNC_MASTER."""
        return self.node.settings.broker_role.value

    def state(self) -> NodeState | None:
        """The content of state.json; None while the store is closed."""
        live = self.node.live_node()
        return None if live is None else live.state()

    def name_of_state(self, state: NodeState | None) -> str:
        """The state as ``rmqha status`` names it, or else the phase."""
        phase = self.node.shown_phase()
        return phase if state is None or phase != RUNNING else state.state

    def ports(self, http: Any = None) -> dict[str, tuple[int, Mapping[str, int]]]:
        """For each port how many connections are open, and how many were refused, by reason."""
        live = self.node.live_node()
        found = {} if live is None else {name: _port_of(factory) for name, factory in live.factories.items()}
        if http is not None:
            found["http"] = len(http.channels), http.pages.refused
        return found


def _port_of(factory: Any) -> tuple[int, Mapping[str, int]]:
    if isinstance(factory, HAMasterFactory):
        return len(factory.connections), factory.refused
    assert isinstance(factory, RemotingFactory), "a node has no other ports"
    return factory.connections, {"too many connections": factory.refused}


def slaves_of(live: ILiveNode) -> list[dict[str, Any]]:
    """What is known of each connected slave. ``inSync`` says whether its lag is below haSlaveFallbehindMax."""
    if live.serving is None:
        return []
    end, near = live.store.commit_log.verified_offset, live.store.settings.ha_slave_fallbehind_max_bytes
    return [
        {**each.facts(), "inSync": each.progress is not None and each.progress.is_near(end, near)}
        for each in live.serving.factory.connections
    ]


def slots_of(facts: WatchedNode, live: ILiveNode) -> list[dict[str, Any]]:
    """The slots: their files, at most 5 s old, and what connected slaves have acknowledged since."""
    acknowledged = {} if live.serving is None else live.serving.factory.acknowledged()
    end = live.store.commit_log.verified_offset
    return [
        {
            "slot": slot.name,
            "offset": acknowledged.get(slot.name, slot.offset),
            "retainedBytes": max(0, end - acknowledged.get(slot.name, slot.offset)),
            "active": slot.name in acknowledged,
        }
        for slot in facts.sampler.disk.slots
    ]


def consumer_lags(live: ILiveNode) -> Steps[dict[tuple[str, str], int]]:
    """By topic and group: messages after the group's offset, in the queues in which it has one. Found in steps."""
    if live.broker is None:
        return {}
    table, queues = live.broker.consumer_offsets.table.offset_table, live.store.derived.queues.queues
    lags: dict[tuple[str, str], int] = {}
    examined = 0
    for key in list(table):
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        lag = 0
        for queue_id, offset in table.get(key, {}).items():
            queue = queues.get((topic, queue_id))
            if queue is not None:
                lag += max(0, queue.max_offset - offset)
            examined += 1
        lags[topic, group] = lag
        if examined >= QUEUES_AT_ONCE:
            examined = 0
            yield
    return lags


def puts_by_status(store: MessageStore) -> dict[str, int]:
    """How many requests to put had which result."""
    return {status.name: count for status, count in store.put_figures.by_status().items()}


def is_master(settings: Settings) -> bool:
    """Whether the node's role is a master's."""
    return settings.broker_role is not BrokerRole.SLAVE
