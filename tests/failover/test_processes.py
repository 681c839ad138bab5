"""Failover clusters of real nodes: the leader dies, stops, or stands still. No message is lost."""

from collections.abc import Iterator

import pytest

from rmqha.failover.knownfile import read_known
from rmqha.kit.events import Event
from tests.failover.cluster import Cluster, ClusterMember, running_cluster
from tests.puts import pause, resume
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("pair")) as cluster:
        yield cluster


@pytest.fixture
def cluster(two_nodes: Cluster) -> Cluster:
    """Two nodes that are whole: what a test before has broken is mended."""
    two_nodes.mend()
    return two_nodes


def wait_for_cause(leader: ClusterMember, cause: str) -> None:
    """Wait until it says why it leads."""
    wait_until(lambda: leader.failover["history"][-1]["cause"] == cause, cause)


def test_the_follower_leads_after_the_leader_was_killed_and_the_old_one_comes_back(cluster: Cluster) -> None:
    old, new = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    cluster.change_leader(old, new, load)
    wait_for_cause(new, "the leader's lease ended")
    wait_until(lambda: old.failover["leader"] == new.name, "the old leader to say who leads")


def test_a_clean_stop_of_the_leader_hands_over(cluster: Cluster) -> None:
    old, new = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    assert not read_known(old.store).is_flushed
    assert old.stop() == 0
    assert read_known(old.store).is_flushed
    new.wait_until_it_leads()
    load.wait_for_more()
    load.stop()
    cluster.assert_nothing_is_lost(load)
    wait_for_cause(new, "the leader stopped")


def test_a_leader_that_stood_still_is_fenced_when_it_goes_on_and_follows(cluster: Cluster) -> None:
    old, new = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    pause(old)
    new.wait_until_it_leads()
    load.wait_for_more()
    resume(old)
    old.wait_for_event(Event.FAILOVER_FENCED)
    cluster.wait_for_sync(new.name, old.name)
    load.wait_for_more()
    load.stop()
    cluster.assert_nothing_is_lost(load)


@pytest.mark.story
def test_a_member_whose_log_is_damaged_repairs_it_from_the_leader(cluster: Cluster) -> None:
    leader, damaged = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    damaged.kill()
    damaged.damage(load.topic)
    load.wait_for_more()
    damaged.start()
    damaged.wait_for_event(Event.LOG_REPAIR_DONE)
    cluster.wait_for_sync(leader.name, damaged.name)
    load.stop()
    cluster.assert_nothing_is_lost(load)


@pytest.mark.story
def test_three_nodes_lose_two_leaders_one_after_the_other(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_cluster(tmp_path_factory.mktemp("three"), "abc") as cluster:
        load = cluster.load()
        load.wait_for_more()
        first = cluster.leader.name
        cluster.members[first].kill()
        second = cluster.wait_for_new_leader(*{"a", "b", "c"} - {first})
        (third,) = {"a", "b", "c"} - {first, second}
        cluster.wait_for_sync(second, third)
        load.wait_for_more()
        cluster.members[second].kill()
        cluster.members[third].wait_until_it_leads()
        load.wait_for_more()
        cluster.members[first].start()
        cluster.members[second].start()
        cluster.wait_for_sync(third, first, second)
        load.stop()
        cluster.assert_nothing_is_lost(load)
