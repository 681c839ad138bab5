"""What can happen to a cluster. Each fault begins when its context is entered, and is repaired when it is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum

from tests.chaos.parts import Cluster, a_follower, filled, the_leader


class Leads(Enum):
    """Who leads after a fault."""

    ANOTHER = "a new epoch begins"
    SAME = "the leader stays"
    ANY = "both are right"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by its name.

    ``lasts`` says that it goes on for the time that the user gives, whoever leads. ``is_order`` says that the time to
    a new leader begins when the old one has stopped leading: before that the order is on its way.
    """

    name: str
    leads: Leads
    apply: Callable[[Cluster], AbstractContextManager[None]]
    lasts: bool = False
    is_order: bool = False
    is_for_java: bool = True


FAULTS: dict[str, Fault] = {}


def _fault(
    leads: Leads, lasts: bool = False, is_order: bool = False, is_for_java: bool = True
) -> Callable[[Callable[[Cluster], Iterator[None]]], Callable[[Cluster], AbstractContextManager[None]]]:
    def add(
        apply: Callable[[Cluster], Iterator[None]],
    ) -> Callable[[Cluster], AbstractContextManager[None]]:
        name = apply.__name__.replace("_", "-")
        manager = contextmanager(apply)
        FAULTS[name] = Fault(name, leads, manager, lasts, is_order, is_for_java)
        return manager

    return add


@_fault(Leads.ANOTHER)
def kill_leader(cluster: Cluster) -> Iterator[None]:
    """kill -9."""
    leader = the_leader(cluster)
    leader.kill()
    yield
    leader.start()


@_fault(Leads.ANOTHER, is_order=True)
def stop_leader(cluster: Cluster) -> Iterator[None]:
    """SIGTERM: it hands over."""
    leader = the_leader(cluster)
    leader.stop()
    yield
    leader.start()


@_fault(Leads.ANOTHER, is_order=True)
def switchover(cluster: Cluster) -> Iterator[None]:
    """An operator's order."""
    cluster.switch_over()
    yield


@_fault(Leads.ANOTHER, lasts=True)
def freeze_leader(cluster: Cluster) -> Iterator[None]:
    """SIGSTOP: it wakes up when another one leads."""
    leader = the_leader(cluster)
    leader.freeze()
    yield
    leader.thaw()


@_fault(Leads.SAME)
def kill_follower(cluster: Cluster) -> Iterator[None]:
    """kill -9."""
    follower = a_follower(cluster)
    follower.kill()
    yield
    follower.start()


@_fault(Leads.SAME, lasts=True)
def freeze_follower(cluster: Cluster) -> Iterator[None]:
    """SIGSTOP: it goes on where it was."""
    follower = a_follower(cluster)
    follower.freeze()
    yield
    follower.thaw()


@_fault(Leads.SAME, lasts=True)
def cut_replication(cluster: Cluster) -> Iterator[None]:
    """The link between leader and followers: held, not reset."""
    leader = the_leader(cluster)
    leader.cut_replication()
    yield
    leader.heal()


@_fault(Leads.SAME, lasts=True)
def cut_leader_from_coordinator(cluster: Cluster) -> Iterator[None]:
    """The leader goes on with the promises of its followers."""
    leader = the_leader(cluster)
    leader.cut_coordinator()
    yield
    leader.heal()


@_fault(Leads.SAME, lasts=True)
def cut_follower_from_coordinator(cluster: Cluster) -> Iterator[None]:
    """A follower's link to the coordinator."""
    follower = a_follower(cluster)
    follower.cut_coordinator()
    yield
    follower.heal()


@_fault(Leads.ANY, lasts=True)
def isolate_leader(cluster: Cluster) -> Iterator[None]:
    """Both links of the leader. Its followers may still promise, for their own ports are open."""
    leader = the_leader(cluster)
    leader.cut_coordinator()
    leader.cut_replication()
    yield
    leader.heal()


@_fault(Leads.SAME, lasts=True)
def stop_coordinator(cluster: Cluster) -> Iterator[None]:
    """All its members stand still."""
    cluster.coordinator.pause()
    yield
    cluster.coordinator.go_on()


@_fault(Leads.SAME, lasts=True)
def kill_coordinator(cluster: Cluster) -> Iterator[None]:
    """All its members end at once, and are started again."""
    cluster.coordinator.kill()
    yield
    cluster.coordinator.start()


@_fault(Leads.ANY, lasts=True)
def full_disk(cluster: Cluster) -> Iterator[None]:
    """The leader's disk has no room for a while, by its own numbers too."""
    leader = the_leader(cluster)
    with filled(leader.store):
        yield
    if not leader.is_running:
        leader.start()


@_fault(Leads.ANY, lasts=True, is_for_java=False)
def refused_writes(cluster: Cluster) -> Iterator[None]:
    """Writes of the leader fail as on a full disk, which says that it has room: a quota does so."""
    leader = the_leader(cluster)
    leader.refuse_writes()
    yield
    leader.allow_writes()
    if not leader.is_running:
        leader.start()


@_fault(Leads.ANOTHER)
def power_off(cluster: Cluster) -> Iterator[None]:
    """Nodes, coordinator and name servers are killed at the same time, and started again."""
    cluster.kill_all()
    cluster.start_all()
    yield
