"""What an operator orders with ``rmqha cluster``, done by real nodes: copies anew, failovers by force, pauses."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from tests.commands import output_of
from tests.failover.cluster import Cluster, Surroundings, running_cluster
from tests.freezing import frozen
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.story]


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("orders"), surroundings=Surroundings(ttl=15)) as cluster:
        yield cluster


@pytest.fixture
def cluster(two_nodes: Cluster) -> Cluster:
    """Two nodes that are whole: what a test before has broken is mended."""
    two_nodes.mend()
    return two_nodes


def refused(cluster: Cluster, code: ExitCode, *words: str) -> str:
    """Run a command that must end with this code. Returns what it says."""
    done = cluster.order(*words)
    assert done.returncode == code, done
    return done.stderr


def count(log: Path, topic: str) -> int:
    """How many messages of a topic ``rmqha dump`` finds."""
    return len(output_of("dump", log, f"--topic={topic}").splitlines())


def test_reinit_replaces_a_damaged_log_and_keeps_it(cluster: Cluster) -> None:
    """The member does not notice the damage: it has proved these bytes already."""
    leader, damaged = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    load.stop()
    wait_until(lambda: damaged.log == leader.log, "the member to hold the whole log")
    damaged.damage(load.topic)
    before = damaged.log
    assert before != leader.log
    known = len(leader.events(Event.SYNC_SET))
    assert "sets its log aside" in cluster.run("reinit", damaged.name, "--yes")
    aside = Path(damaged.wait_for_event(Event.LOG_SET_ASIDE)["aside"])
    cluster.wait_for_sync(leader.name, damaged.name)
    wait_until(lambda: damaged.log == leader.log, "the member to have the leader's log")
    told = [event["members"] for event in leader.events(Event.SYNC_SET)[known:]]
    assert any(members.startswith("no member") for members in told), "the leader has left it out"
    kept = b"".join(path.read_bytes() for path in sorted(aside.iterdir()))
    assert kept.startswith(before.rstrip(b"\0"))
    damaged.stop()
    shutil.rmtree(damaged.store / "commitlog")
    shutil.move(aside, damaged.store / "commitlog")
    damaged.start()
    cluster.wait_for_sync(leader.name, damaged.name)
    cluster.assert_nothing_is_lost(load)


def test_a_failover_that_loses_messages_needs_force_and_the_lost_ones_are_kept(cluster: Cluster) -> None:
    old, new = cluster.pair()
    both = cluster.load()
    both.wait_for_more()
    both.stop()
    new.kill()
    wait_until(lambda: old.failover["sync"] == [old.name], "the leader to be alone")
    alone = cluster.load()
    alone.wait_for_more()
    alone.stop()
    old.kill()
    new.start()
    wait_until(lambda: "not in the sync set" in str(new.failover.get("reason")), "the member to say why it waits")
    wait_until(lambda: "not in the sync set" in cluster.command("show").stdout, "the command to say so")
    assert cluster.command("show").returncode == ExitCode.CANNOT_CONNECT, "nobody leads"
    told = refused(cluster, ExitCode.IO_ERROR, "failover", "--to", new.name, "--timeout=1")
    assert "Nothing was ordered" in told
    assert "not in the sync set" in told
    assert not new.leads
    told = refused(cluster, ExitCode.USAGE, "failover", "--to", new.name, "--force")
    assert "messages that were answered with SEND_OK may be lost" in told
    assert "If that is what you want, add --yes" in told
    assert f"{new.name} leads" in cluster.run("failover", "--to", new.name, "--force", "--yes")
    new.wait_until_it_leads()
    cluster.assert_nothing_is_lost(both)
    old.start()
    cluster.wait_for_sync(new.name, old.name)
    (kept,) = (old.store / "rmqha" / "cut").iterdir()
    assert count(kept, alone.topic) >= len(alone.ok)


def test_a_coordinator_without_its_folder_gets_the_keys_again(cluster: Cluster) -> None:
    """While the leader runs it writes them by itself. If all nodes were stopped, they choose when all are back."""
    leader, other = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    fenced = leader.events(Event.FAILOVER_FENCED)
    _lose_folder(cluster)
    leader.wait_for_event(Event.FAILOVER_KEYS_WRITTEN)
    cluster.mend()
    assert cluster.leader is leader
    assert leader.events(Event.FAILOVER_FENCED) == fenced
    load.wait_for_more()
    load.stop()
    for member in cluster.members.values():
        member.kill()
    _lose_folder(cluster)
    leader.start()
    wait_until(lambda: "may be older" in str(leader.failover.get("reason")), "doubts")
    told = refused(cluster, ExitCode.USAGE, "failover", "--to", leader.name, "--force")
    assert other.name in told, "it lists who is missing"
    assert not leader.leads
    other.start()
    cluster.mend()
    cluster.assert_nothing_is_lost(load)


def _lose_folder(cluster: Cluster) -> None:
    cluster.witness.stop()
    shutil.rmtree(cluster.witness.witness_folder)
    cluster.witness.start()


def test_a_paused_cluster_has_no_new_leader_until_it_is_resumed(cluster: Cluster) -> None:
    old, new = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    cluster.run("pause")
    old.kill()
    wait_until(lambda: "failover is paused" in str(new.failover.get("reason")), "the member to say why it waits")
    wait_until(lambda: "automatic failover is paused" in cluster.command("show").stdout, "the command to say so")
    cluster.run("resume")
    new.wait_until_it_leads()
    load.wait_for_more()
    load.stop()
    cluster.assert_nothing_is_lost(load)


def test_a_switchover_to_a_node_that_stands_still_changes_nothing(cluster: Cluster) -> None:
    leader, follower = cluster.pair()
    fenced = leader.events(Event.FAILOVER_FENCED)
    with frozen(follower.pid):
        done = cluster.order("switchover", "--to", follower.name)
    told = {
        ExitCode.IO_ERROR: ("nothing was changed", "it is not in the sync set", "is no member that runs"),
        ExitCode.USAGE: ("is not a member that runs",),  # its lease has ended before the order was given
    }
    assert any(text in done.stderr for text in told[ExitCode(done.returncode)]), done
    assert leader.events(Event.FAILOVER_FENCED) == fenced
    cluster.mend()
    assert cluster.leader is leader
