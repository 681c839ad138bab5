"""What a node tells of its failover cluster: in state.json, on its pages, and to programs that ask over HTTP."""

from typing import Any

from rmqha.failover.agent import FailoverAgent
from rmqha.failover.keys import EpochEntry, ShownBy
from rmqha.failover.states import FailoverState
from rmqha.failover.view import ClusterView

NOT_STARTED: dict[str, Any] = {
    "state": FailoverState.JOINING.name,
    "member": None,
    "leader": None,
    "epoch": 0,
    "reason": "its store is not open yet",
    "problem": None,
    "coordinator": False,
    "leaseSeconds": None,
    "mode": None,
    "paused": False,
    "sync": [],
    "members": [],
    "history": [],
}
"""Before the agent runs."""


def facts_of(agent: FailoverAgent | None, changes: int) -> dict[str, Any]:
    """What the node knows now, with this number of changes of the leader.

    ``members`` are those that run, and ``sync`` names those that hold every message. ``leaseSeconds`` is for how long a
    leader may lead without another answer. ``coordinator`` says whether the coordinator answered last.
    """
    if agent is None:
        return dict(NOT_STARTED)
    view, leadership = agent.view, agent.leadership
    leads = leadership is not None and agent.state is FailoverState.LEADER and leadership.is_held()
    return {
        **NOT_STARTED,
        "state": agent.state.name,
        "member": agent.identity.name,
        "reason": agent.reason,
        "problem": agent.problem,
        "coordinator": view is not None and agent.problem is None,
        "leaseSeconds": round(agent.seconds_of_lease, 1) if leads else None,
        **({} if view is None else _facts_of_view(view, agent, leads, changes)),
    }


def _facts_of_view(view: ClusterView, agent: FailoverAgent, leads: bool, changes: int) -> dict[str, Any]:
    leader = None if view.leader is None else view.leader.node
    if leads or leader == agent.identity.name:  # our own right to lead is known better than the keys
        leader = agent.identity.name if leads else None
    return {
        "leader": leader,
        "epoch": view.epoch,
        "mode": view.config.mode,
        "paused": view.config.paused,
        "sync": [] if view.sync is None else sorted(view.sync.holders),
        "members": [
            {"name": name, "leads": name == leader, **member.in_json(ShownBy.NODE)}
            for name, member in sorted(view.members.items())
        ],
        "history": [_change(entry) for entry in view.history.entries[-changes:]] if changes else [],
    }


def _change(entry: EpochEntry) -> dict[str, Any]:
    return {"n": entry.n, "node": entry.node, "start": entry.start, "time": entry.time, "cause": entry.cause}
