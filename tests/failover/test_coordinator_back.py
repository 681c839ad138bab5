"""Real nodes whose coordinator is put back from an older copy, as docs/failover.md says. No message is lost."""

import shutil
from pathlib import Path

import pytest

from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.etcd import EtcdCluster
from tests.coordination.backends import need_etcd
from tests.failover.cluster import Cluster, Surroundings, running_cluster
from tests.freezing import frozen
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.story]


def show_tells(cluster: Cluster, words: str) -> None:
    """``rmqha cluster show`` says that no node leads, and why. Its exit code is that of a silent coordinator, too."""

    def is_told() -> bool:
        shown = cluster.command("show")
        return shown.returncode == ExitCode.CANNOT_CONNECT and words in shown.stdout

    wait_until(is_told, words)


def leave_and_come_back(cluster: Cluster) -> None:
    """The sync set loses the follower and has it again: a copy of the keys from before is too old."""
    leader, follower = cluster.pair()
    follower.kill()
    cluster.wait_for_sync(leader.name)
    follower.start()
    cluster.wait_for_sync(leader.name, follower.name)


def test_an_old_journal_of_the_witness_lets_nobody_lead_who_knows_less(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        last, other = cluster.pair()
        witness = cluster.witness
        load = cluster.load()
        load.wait_for_more()
        with frozen(witness.pid):
            shutil.copytree(witness.witness_folder, tmp_path / "copy")
        other.kill()
        cluster.wait_for_sync(last.name)
        load.wait_for_more()
        load.stop()
        last.stop()
        witness.stop()
        shutil.rmtree(witness.witness_folder)
        shutil.copytree(tmp_path / "copy", witness.witness_folder)
        witness.start()
        witness.wait_for_event(Event.WITNESS_RENEWED)
        other.start()
        wait_until(lambda: f"start {last.name}" in str(other.failover.get("reason")), "the doubt")
        show_tells(cluster, f"Start {last.name}, and the node that led last leads")
        assert other.ask("/cluster")[0] == 503
        last.start()
        cluster.wait_for_sync(last.name, other.name)
        cluster.assert_nothing_is_lost(load)


def test_an_etcd_that_was_put_back_gets_its_keys_from_the_leader(tmp_path: Path) -> None:
    need_etcd()
    with EtcdCluster(tmp_path / "etcd") as etcd, running_cluster(tmp_path, "ab", Surroundings(etcd=etcd)) as cluster:
        first, second = cluster.pair()
        load = cluster.load()
        load.wait_for_more()
        etcd.save_copy(tmp_path / "copy")
        leave_and_come_back(cluster)
        etcd.put_copy_back(tmp_path / "copy")
        first.wait_for_event(Event.FAILOVER_KEYS_WRITTEN)
        cluster.mend()
        assert cluster.leader is first
        cluster.change_leader(first, second, load)


def test_a_lower_raft_term_is_told_and_an_order_heals_the_cluster(tmp_path: Path) -> None:
    """The leader is dead, and the other node, which lives on, knows more than the keys say."""
    need_etcd()
    with EtcdCluster(tmp_path / "etcd") as etcd:
        etcd.leader()
        etcd.stop()  # with the next start its term is higher than that of a copy
        with running_cluster(tmp_path, "ab", Surroundings(etcd=etcd.start())) as cluster:
            first, second = cluster.pair()
            load = cluster.load()
            load.wait_for_more()
            etcd.save_copy(tmp_path / "copy")
            leave_and_come_back(cluster)
            load.wait_for_more()
            load.stop()
            etcd.stop()
            first.kill()
            etcd.put_copy_back(tmp_path / "copy")
            second.wait_for_event(Event.COORDINATOR_WENT_BACK)
            wait_until(lambda: f"start {first.name}" in str(second.failover.get("reason")), "the doubt")
            show_tells(cluster, f"keys are older than what {second.name} knows")
            asked = cluster.order("failover", "--to", second.name, "--force")
            assert asked.returncode == 2
            assert f"{first.name} is not there" in asked.stderr
            cluster.run("failover", "--to", second.name, "--force", "--yes")
            second.wait_until_it_leads()
            first.start()
            cluster.wait_for_sync(second.name, first.name)
            cluster.assert_nothing_is_lost(load)
