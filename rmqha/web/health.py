"""The checks of load balancers and supervisors, with the meaning that Patroni gives them: 200 means yes, 503 means no.

- ``/liveness``: the process works. No means: restart it.
- ``/readiness``: the node does what its role is for. A master accepts messages; a slave copies its master's log.
- ``/primary``: the node is a master that accepts messages.
- ``/replica``: the node is a slave that copies its master's log. With ``?lag=10m`` or ``?lag=30s`` its lag is at most
  that. An unknown lag is too large.
- ``/master``: the same as ``/primary``.
- ``/sync``: the node is a slave that holds all its master has, and counts as a replica: no observer. In a failover
  cluster: it may lead next without loss.

``/cluster`` and ``/history`` of a member of a failover cluster are JSON. They answer 503 if the cluster has no leader,
as far as the node knows, or if the node does not hear from the coordinator.
"""

from collections.abc import Callable

import orjson

from rmqha.ha.slave.states import COPYING_NAMES, ReplicaState
from rmqha.ops.status import MaxLag
from rmqha.web.interfaces import ILiveNode
from rmqha.web.server import Handler, Page, Query, text_page
from rmqha.web.watchednode import RUNNING, WatchedNode, is_master

ALL_CHANGES = 100
YesOrNo = tuple[bool, str]
"""Whether the answer is yes, and why, in one line."""
Check = Callable[[WatchedNode, Query], YesOrNo]


def liveness(facts: WatchedNode, _: Query) -> YesOrNo:
    """Whether the process works: this answer shows that its reactor does."""
    live = facts.node.live_node()
    if live is not None and live.store.is_broken:
        return False, "the disk has failed: the node ends"
    return True, f"the node is {facts.name_of_state(facts.state())}"


def readiness(facts: WatchedNode, query: Query) -> YesOrNo:
    """Whether the node does what its role is for."""
    return primary(facts, query) if is_master(facts.node.settings) else replica(facts, query)


def primary(facts: WatchedNode, _: Query) -> YesOrNo:
    """Whether the node is a master that accepts messages."""
    live = _running(facts)
    if not is_master(facts.node.settings):
        return False, "the node is a slave"
    if isinstance(live, str):
        return False, live
    if not live.store.takes_puts:
        return False, _why_no_puts(live)
    return True, f"the node is the {facts.role}"


def _why_no_puts(live: ILiveNode) -> str:
    leadership = live.store.puts.leadership
    if leadership is not None and not leadership.takes_puts():
        return "it hands the lead over" if leadership.is_held() else "it does not lead its failover cluster any more"
    return "the disk is too full to accept messages" if live.store.puts.disk_full else "the disk has failed"


def replica(facts: WatchedNode, query: Query) -> YesOrNo:
    """Whether the node is a slave that copies. Raises ValueError for a ``lag`` that is not a limit."""
    limit = MaxLag.parse(query.parameters["lag"]) if "lag" in query.parameters else None
    live = _running(facts)
    if is_master(facts.node.settings):
        return False, "the node is a master"
    if isinstance(live, str):
        return False, live
    state = live.state()
    if state.state not in COPYING_NAMES:
        return False, f"the slave is {state.state}{f': {state.reason}' if state.reason else ''}"
    if limit is not None:
        lag, most, unit = limit.measure(state)
        if lag is None:
            return False, "the slave's lag is not known"
        if lag > most:
            return False, f"the slave's lag is {lag:g} {unit}, more than {most:g}"
    return True, f"the slave is {state.state}"


def sync(facts: WatchedNode, _: Query) -> YesOrNo:
    """Whether the node is a slave that holds all its master has, and counts as a replica."""
    live = _running(facts)
    if is_master(facts.node.settings):
        return False, "the node is a master"
    if isinstance(live, str):
        return False, live
    if live.slave is not None and live.slave.is_observer:
        return False, "the slave is an observer: it never counts as a replica"
    state = live.state().state
    found = facts.node.cluster(0)
    if found is not None:
        if found["member"] not in found["sync"] or state not in COPYING_NAMES:
            return False, f"the slave is {state}, and not in the sync set of its failover cluster"
        return True, f"the slave is {state}, and may lead next: it holds every message that was answered with SEND_OK"
    return state == ReplicaState.IN_SYNC.name, f"the slave is {state}"


def _running(facts: WatchedNode) -> ILiveNode | str:
    """The open node, or why it does not run."""
    live = facts.node.live_node()
    if live is None or facts.node.shown_phase() != RUNNING:
        return f"the node is {facts.node.shown_phase()}"
    return live


CHECKS: dict[str, Check] = {
    "/liveness": liveness,
    "/readiness": readiness,
    "/primary": primary,
    "/master": primary,
    "/replica": replica,
    "/sync": sync,
}


def cluster_handlers(facts: WatchedNode) -> dict[str, Handler]:
    """What a member tells of its failover cluster; of other nodes nothing."""
    if facts.node.cluster(0) is None:
        return {}

    def answer(is_history: bool) -> Page:
        found = facts.node.cluster(ALL_CHANGES if is_history else 0)
        assert found is not None, "a member stays one"
        code = 200 if found["leader"] is not None and found["coordinator"] else 503
        shown = found["history"] if is_history else {key: value for key, value in found.items() if key != "history"}
        return Page(code, "application/json", orjson.dumps(shown, option=orjson.OPT_INDENT_2) + b"\n")

    return {"/cluster": lambda _: answer(False), "/history": lambda _: answer(True)}


def handler_of(check: Check, facts: WatchedNode) -> Handler:
    """Answers in one line, or in JSON if that is accepted."""

    def answer(query: Query) -> Page:
        try:
            is_fine, reason = check(facts, query)
        except ValueError as error:
            return text_page(400, f"lag: {error}")
        code = 200 if is_fine else 503
        if "application/json" in query.accept:
            body = orjson.dumps({"ok": is_fine, "reason": reason.encode("utf-8", "backslashreplace").decode()})
            return Page(code, "application/json", body + b"\n")
        return text_page(code, reason)

    return answer
