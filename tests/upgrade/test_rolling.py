"""A failover pair of the tree of commit 8200a57 is upgraded node after node, and goes back, while messages are sent."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.etcd import EtcdCluster
from rmqha.wire.record import Blank
from tests.commands import rmqha
from tests.coordination.backends import need_etcd
from tests.failover.cluster import PATIENT, Cluster, ClusterMember, Load, Surroundings, running_cluster
from tests.interop.nodes import log_end_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.story]
TODAY: Sequence[str] = ()


def runs_today(member: ClusterMember) -> bool:
    """Whether today's program wrote its state.json: only that has this field."""
    return "dispatched" in json.loads((member.store / "rmqha" / "state.json").read_text())


def replace(cluster: Cluster, member: ClusterMember, program: Sequence[str], load: Load) -> None:
    """Stop the follower, start it with another program, and let it join the sync set. Messages are sent meanwhile."""
    leader, follower = cluster.pair()
    assert member is follower
    load.wait_for_more()
    assert member.stop() == 0
    member.prefix = program
    member.start()
    cluster.wait_for_sync(leader.name, member.name)
    wait_until(lambda: runs_today(member) is (program is TODAY), "the state of the other program")
    load.wait_for_more()


def replace_witness(cluster: Cluster, program: Sequence[str], load: Load) -> None:
    """Stop the name server with the witness, and start it with another program. The leader goes on meanwhile."""
    assert cluster.witness.stop() == 0
    cluster.witness.prefix = program
    cluster.witness.start()
    load.wait_for_more()


def switch(cluster: Cluster, member: ClusterMember, load: Load) -> None:
    """Let the follower lead, as an operator does."""
    leader, _ = cluster.pair()
    wait_until(lambda: cluster.command("show").returncode == 0, "show to say FINE")  # state.json may be a second old
    cluster.run("switchover", "--to", member.name)
    cluster.wait_for_sync(member.name, leader.name)
    load.wait_for_more()


@contextmanager
def reading(cluster: Cluster, load: Load, log: Path) -> Iterator[None]:
    """A consumer reads what is sent meanwhile. In the end it has read all that was acknowledged."""
    words = [sys.executable, "-m", "tests.upgrade.reading", cluster.name_server, load.topic]
    with log.open("wb") as lines, subprocess.Popen(words, stdin=subprocess.PIPE, stdout=lines) as consumer:
        try:
            yield
            wait_until(lambda: load.ok <= set(map(int, log.read_text().split())), "the consumer to have all")
        finally:
            consumer.terminate()


def check(cluster: Cluster, load: Load) -> None:
    """Stop both nodes: their stores are the same, and each message that was acknowledged is in them once."""
    leader, follower = cluster.pair()
    addresses = [f"127.0.0.1:{member.remoting}" for member in (leader, follower)]
    wait_until(lambda: len(set(map(log_end_of, addresses))) == 1, "the follower to have what was sent last")
    assert follower.stop() == 0
    assert leader.stop() == 0
    done = rmqha("verify", follower.store, "--against", leader.store, "--exact")
    assert done.returncode == 0, done.stdout + done.stderr
    reader = StoreReader(leader.store)
    try:
        records = (record for _, record in reader.records(0, reader.log.max_offset) if not isinstance(record, Blank))
        stored = Counter(int(record.body) for record in records if record.topic == load.topic)
    finally:
        reader.close()
    assert len(load.ok) > 100
    assert load.ok - stored.keys() == set()
    assert [number for number, count in stored.items() if count > 1] == []


@pytest.mark.parametrize("coordinator", ["witness", "etcd"])
def test_a_pair_is_upgraded_node_after_node_and_nothing_is_lost(
    tmp_path: Path, before: tuple[str, ...], coordinator: str
) -> None:
    with ExitStack() as stack:
        etcd = None
        if coordinator == "etcd":
            need_etcd()
            etcd = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
        surroundings = Surroundings(prefix=before, etcd=etcd, ttl=PATIENT)
        cluster = stack.enter_context(running_cluster(tmp_path, surroundings=surroundings))
        first, second = cluster.pair()
        assert not runs_today(first)
        load = cluster.load("--once")
        with reading(cluster, load, tmp_path / "read.log"):
            replace(cluster, second, TODAY, load)
            switch(cluster, second, load)
            replace(cluster, first, TODAY, load)
            switch(cluster, first, load)
            replace_witness(cluster, TODAY, load)
            switch(cluster, second, load)
            load.stop()
        check(cluster, load)


def test_a_member_goes_back_to_the_program_of_before(tmp_path: Path, before: tuple[str, ...]) -> None:
    with running_cluster(tmp_path, surroundings=Surroundings(ttl=PATIENT)) as cluster:
        first, second = cluster.pair()
        load = cluster.load("--once")
        with reading(cluster, load, tmp_path / "read.log"):
            replace(cluster, second, before, load)
            switch(cluster, second, load)
            replace(cluster, first, before, load)
            replace_witness(cluster, before, load)
            switch(cluster, first, load)
            replace(cluster, second, TODAY, load)
            load.stop()
        check(cluster, load)
