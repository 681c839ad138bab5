"""A fault under load, and what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rmqha.testing.nodes import NodeError
from rmqha.testing.proxy import ProxyError
from tests.chaos.clients import TOPIC, Clients, now
from tests.chaos.faults import Fault, Leads
from tests.chaos.history import Change, Seen
from tests.chaos.parts import (
    Cluster,
    NameWatch,
    epoch_of,
    leader_of,
    the_leader,
    wait_for_leader,
    wait_until_whole,
)
from tests.interop.rocketmq import InteropError

WARM_MESSAGES = 100
"""What is answered before a fault, and after it."""
TROUBLES: Final = (AssertionError, NodeError, ProxyError, InteropError)
"""What is raised if a cluster does not recover."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fault. ``leader_seconds`` is the time to a new leader; None if none came.

    ``names_seconds`` is the time from then until all name servers name it. ``gap_seconds`` is the longest time
    without a SEND_OK.
    """

    fault: str
    leader_seconds: float | None
    names_seconds: float | None
    gap_seconds: float | None
    violations: tuple[str, ...]


def longest_gap(promised: list[Seen], since: float, until: float) -> float:
    """The longest time between two answers SEND_OK, of those around this span."""
    times = sorted(each.at for each in promised)
    inside = [at for at in times if since <= at <= until]
    before = [at for at in times if at < since][-1:]
    after = [at for at in times if at > until][:1]
    return max((second - first for first, second in pairwise([*before, *inside, *after])), default=0.0)


class Rounds:
    """Round after round in one cluster."""

    def __init__(self, cluster: Cluster, clients: Clients, seconds: float) -> None:
        """``seconds`` is how long faults last that end by themselves."""
        self._cluster = cluster
        self._clients = clients
        self._seconds = seconds
        self._known: set[str] = set()
        """Violations of earlier rounds: the history has them for ever."""

    def run(self, fault: Fault) -> Outcome:
        """Load, fault, repair, and the check of the history.

        Raises one of ``TROUBLES`` if the cluster does not recover: no further round makes sense then.
        """
        with NameWatch(self._cluster.name_servers, TOPIC) as names:
            return self._run(fault, names)

    def _run(self, fault: Fault, names: NameWatch) -> Outcome:
        clients, cluster = self._clients, self._cluster
        wait_until_whole(cluster)
        clients.start_producer()
        clients.wait_for_promises(WARM_MESSAGES, now())
        old, epoch, begin, begin_wall = the_leader(cluster), epoch_of(cluster), now(), time.time()
        stopped_at: float | None = None
        with fault.apply(cluster):
            if fault.leads is Leads.ANOTHER:
                wait_for_leader(cluster, begin_wall)
                stopped_at = old.stopped_leading_at if fault.is_order else None
            if fault.lasts:
                time.sleep(max(0.0, begin + self._seconds - now()))
        end = now()
        new = leader_of(cluster)
        led_at = new.led_at if new is not None and new.led_at > begin_wall else None
        clients.wait_for_promises(WARM_MESSAGES, end)
        wait_until_whole(cluster)
        settled = now()
        named_at: float | None = None
        if new is not None and led_at is not None and new is leader_of(cluster):
            names.wait_until_named(new)
            named_at = names.named_at(new)
        clients.stop_producer()
        clients.changes.append(Change(begin, settled))
        return Outcome(
            fault.name,
            None if led_at is None else led_at - max(begin_wall, stopped_at or 0.0),
            None if led_at is None or named_at is None else max(0.0, named_at - led_at),
            longest_gap(clients.promised(), begin, settled),
            self._violations(fault, epoch),
        )

    def _violations(self, fault: Fault, epoch: int) -> tuple[str, ...]:
        self._clients.wait_until_read()
        found = [str(each) for each in self._clients.history().violations()]
        keeps = fault.leads is Leads.SAME and self._cluster.keeps_its_leader
        if keeps and epoch_of(self._cluster) != epoch:
            found.append(f"the leader changed: epoch {epoch} to {epoch_of(self._cluster)}")
        new = [each for each in found if each not in self._known]
        self._known.update(new)
        return tuple(new)
