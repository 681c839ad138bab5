"""Scenarios of automatic failover in the simulator: each fault alone, and what comes of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rmqha.coordination.interface import Put as PutKey
from rmqha.failover.keys import (
    CONFIG,
    FORGOTTEN,
    Cause,
    ClusterConfig,
    Forgotten,
    History,
    NewestChange,
    Order,
    SyncSet,
    encode,
)
from rmqha.failover.member import DiskFull, Known
from rmqha.failover.states import FailoverState
from rmqha.failover.step import reading, trying
from rmqha.failover.step.syncset import SyncSetKeeper
from rmqha.failover.step.work import Procedure, Work
from rmqha.ha.master.leadership import Leadership
from rmqha.node.member import MemberNode
from rmqha.store.message import PutMessageStatus
from rmqha.testing.sim.cluster import PREFIX, Ambush, Cluster
from rmqha.testing.sim.clusternodes import ClusterNode
from rmqha.testing.sim.coordinator import COORDINATOR
from rmqha.testing.sim.kinds import Kind
from rmqha.testing.sim.simulation import Config, SlaveConfig
from rmqha.testing.sim.violation import Violation
from tests.testing.planted import (
    Patch,
    acknowledge_after_candidacy,
    believe_a_leader_that_lost_its_end,
    believe_the_last_stop,
    compare_with_any_node,
    count_the_lease_from_the_answer,
    forget_promises,
    forget_the_newest_keys_at_a_restart,
    go_on_alone_without_the_coordinator,
    hear_nothing_of_doubts,
    lead_although_another_one_knows_more,
)

SECONDS = 60.0
SETTINGS = ClusterConfig(ttl=12, failover_pause=1.0)
COMMON = {"inSyncReplicas": "1", "readUpTo": "confirmed"}


@contextmanager
def running(slaves: int = 1, rate: float = 1.0, seed: int = 0, **settings: str) -> Iterator[Cluster]:
    """A cluster whose first node, ``master``, leads, with all others in the sync set. Its clock goes at this rate."""
    config = Config({"brokerRole": "SLAVE"}, [SlaveConfig()] * slaves, {**COMMON, **settings})
    cluster = Cluster(config, seed, rates={"master": rate})
    with cluster.running():
        cluster.start()
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        yield cluster


def in_sync(cluster: Cluster) -> set[str]:
    """Who holds every message, as the coordinator knows it."""
    sync = cluster.view().sync
    return set() if sync is None else set(sync.holders)


def wait_for_leader(cluster: Cluster, *names: str) -> ClusterNode:
    """Wait until one of these leads."""
    assert cluster.wait(lambda: cluster.leading is not None and cluster.leading.name in names, SECONDS), (
        cluster.standing()
    )
    assert cluster.leading is not None
    return cluster.leading


def put(cluster: Cluster, node: ClusterNode) -> PutMessageStatus | None:
    """What a producer is answered."""
    sent = cluster.put(100, True, Kind.PLAIN, node)
    cluster.wait(lambda: sent.result is not None, SECONDS)
    return sent.status


def last_cause(cluster: Cluster) -> str:
    """Why the leader leads."""
    return cluster.view().history.entries[-1].cause


def test_the_leader_dies() -> None:
    with running() as cluster:
        cluster.kill("master")
        leader = wait_for_leader(cluster, "slave-1")
        assert last_cause(cluster) == Cause.LEASE_ENDED.value
        assert put(cluster, leader) is PutMessageStatus.PUT_OK
        cluster.start("master")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_the_leader_stops_cleanly() -> None:
    with running() as cluster:
        before = cluster.clock.seconds()
        cluster.stop("master")
        wait_for_leader(cluster, "slave-1")
        assert last_cause(cluster) == Cause.RELEASED.value
        assert cluster.clock.seconds() - before < 2.0, "nobody waits for the lease to end"


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_leader_has_no_right_any_more_when_the_coordinator_hears_of_it(is_ordered: bool) -> None:
    """Else it promises something after the next leader has looked at what was promised."""
    with running() as cluster:
        leadership = cluster.members[0].leadership
        assert leadership is not None
        assert leadership.is_held()
        held: list[bool] = []
        cluster.ambush = Ambush("gets transaction of leader, status", 1, lambda _: held.append(leadership.is_held()))
        if is_ordered:
            cluster.order(Order.SWITCHOVER)
        else:
            cluster.stop("master")
        assert cluster.wait(lambda: bool(held), SECONDS), cluster.standing()
        assert held == [False]


def test_a_new_leader_keeps_the_other_members_as_holders_and_not_the_old_leader() -> None:
    """It may have lost its end, and comes back by itself. Later it is in the sync set again."""
    with running(slaves=2) as cluster:
        named: list[set[str]] = []

        def look(_: str) -> None:
            if cluster.view().leader is None:  # a key changed meanwhile: it was refused, and tries again
                lie_in_wait()
            else:
                named.append(in_sync(cluster))

        def lie_in_wait() -> None:
            cluster.ambush = Ambush("gets transaction of leader, epoch", 1, look)

        lie_in_wait()
        cluster.order(Order.SWITCHOVER, "slave-1")
        wait_for_leader(cluster, "slave-1")
        assert named == [{"slave-1", "slave-2"}]
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_a_switchover_without_a_name_goes_to_another_node() -> None:
    with running() as cluster:
        cluster.order(Order.SWITCHOVER)
        wait_for_leader(cluster, "slave-1")
        assert last_cause(cluster) == Cause.SWITCHOVER.value
        assert cluster.view().request is None


def test_a_leader_cut_off_from_the_coordinator_goes_on_by_promises() -> None:
    with running() as cluster:
        cluster.block("master", COORDINATOR)
        cluster.advance(0)
        for _ in range(60):
            cluster.wait(lambda: False, 1.0)
        master = cluster.members[0]
        assert cluster.leading is master
        assert cluster.view().leader is None, "its lease has ended long ago"
        assert put(cluster, master) is PutMessageStatus.PUT_OK
        cluster.unblock()
        assert cluster.wait(lambda: cluster.view().leader is not None, SECONDS), cluster.standing()
        assert cluster.leading is master


def test_a_promise_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_promises(monkeypatch)
    with pytest.raises(Violation, match="hold the right to lead at the same time"):
        test_a_leader_cut_off_from_the_coordinator_goes_on_by_promises()


def test_a_leader_that_reaches_nobody_is_replaced() -> None:
    """Its member gets no messages any more, so it promises nothing: else no put would be answered for good."""
    with running() as cluster:
        for other in ("slave-1", COORDINATOR):
            cluster.block("master", other)
            cluster.block(other, "master")
        leader = wait_for_leader(cluster, "slave-1")
        assert put(cluster, leader) is PutMessageStatus.PUT_OK
        assert put(cluster, cluster.members[0]) is not PutMessageStatus.PUT_OK


def test_a_frozen_leader_is_fenced_when_it_goes_on() -> None:
    with running() as cluster:
        cluster.freeze("master")
        wait_for_leader(cluster, "slave-1")
        cluster.go_on("master")
        master = cluster.members[0]
        assert master.store is not None
        assert not master.store.takes_puts
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_a_node_frozen_while_it_becomes_the_leader_leads_no_more_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one leads meanwhile, and has a message that the frozen one does not have (seed 9553)."""
    lead = MemberNode.lead
    frozen: list[str] = []

    async def frozen_at_first(member: MemberNode, leadership: Leadership, cause: str) -> int:
        if not frozen:
            frozen.extend(node.name for node in cluster.members if node.member is member)
            cluster.freeze(frozen[0])
        return await lead(member, leadership, cause)

    with running(slaves=2) as cluster:
        monkeypatch.setattr(MemberNode, "lead", frozen_at_first)
        cluster.kill("master")
        leader = wait_for_leader(cluster, "slave-1", "slave-2")
        assert [leader.name, *frozen] in (["slave-1", "slave-2"], ["slave-2", "slave-1"])
        assert put(cluster, leader) is PutMessageStatus.PUT_OK
        cluster.go_on(frozen[0])
        assert cluster.wait(lambda: in_sync(cluster) == {"slave-1", "slave-2"}, SECONDS), cluster.standing()
        assert cluster.leading is leader


def test_a_node_that_wins_and_then_hears_nothing_from_the_coordinator_leads_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its renewals are answered again, so nobody else could ever lead (seed 22050)."""
    write_known = MemberNode.write_known
    deaf: list[str] = []

    async def deaf_at_first(member: MemberNode, known: Known) -> None:
        await write_known(member, known)
        agent = member.agent
        if agent is not None and agent.state is FailoverState.PROMOTING and not deaf:
            name = agent.identity.name
            if known.leader == name:
                deaf.append(name)
                cluster.block(COORDINATOR, name)

    with running() as cluster:
        monkeypatch.setattr(MemberNode, "write_known", deaf_at_first)
        cluster.kill("master")
        assert cluster.wait(lambda: bool(deaf), SECONDS), cluster.standing()
        cluster.wait(lambda: False, 4.0)
        cluster.unblock()
        leader = wait_for_leader(cluster, "slave-1")
        assert put(cluster, leader) is PutMessageStatus.PUT_OK


@pytest.mark.long
def test_a_comparison_of_logs_may_take_longer_than_a_silent_connection_lives() -> None:
    """The leader hangs up on one that reports nothing for 20 s: the comparison goes on where it was."""
    with running(haFlowControlEnable="true", maxHaTransferByteInSecond="1024") as cluster:
        master, other = cluster.members
        for _ in range(25):
            cluster.put(900, True, Kind.PLAIN, master)
            cluster.wait(lambda: False, 1.1)
        assert cluster.wait(lambda: cluster.oracle.equal(other, master), SECONDS)
        assert master.log.verified_offset > 22_000
        cluster.block("master", "slave-1")
        cluster.put(100, True, Kind.PLAIN, master)
        cluster.kill("master")
        cluster.unblock()
        assert put(cluster, wait_for_leader(cluster, "slave-1")) is PutMessageStatus.PUT_OK
        cluster.start("master")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), 3 * SECONDS), cluster.standing()


def lose_power_for_a_moment(stops: bool = False) -> Cluster:
    """The leader is back without its last message before its lease has ended. The other node has that message.

    With ``stops`` it is stopped cleanly then, and its machine starts once more.
    """
    with running(seed=6, flushCommitLogLeastPages="4") as cluster:
        master, other = cluster.members
        assert put(cluster, master) is PutMessageStatus.PUT_OK
        assert cluster.wait(lambda: master.log.flushed_offset > 0, SECONDS)
        assert put(cluster, master) is PutMessageStatus.PUT_OK
        cluster.lose_power("master")
        cluster.start("master")
        assert master.log.verified_offset < other.log.verified_offset, "with this seed chance has kept nothing"
        if stops:
            cluster.stop("master")
            assert cluster.wait(lambda: not master.runs, SECONDS)
            cluster.lose_power("master")
            cluster.start("master")
        assert put(cluster, wait_for_leader(cluster, *cluster.nodes)) is PutMessageStatus.PUT_OK
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        return cluster


@pytest.mark.parametrize("stops", [False, True])
def test_a_leader_that_has_lost_its_end_leads_no_more(stops: bool) -> None:
    cluster = lose_power_for_a_moment(stops)
    assert last_cause(cluster) == Cause.LEASE_ENDED.value
    assert [promised.what for promised in cluster.judge.safe if promised.what.startswith("put")] == [
        "put 0",
        "put 1",
        "put 2",
    ]


@pytest.mark.parametrize(
    ("plant", "leader"), [(believe_a_leader_that_lost_its_end, "master"), (compare_with_any_node, "slave-1")]
)
def test_a_message_that_a_leader_has_lost_is_seen(monkeypatch: pytest.MonkeyPatch, plant: Patch, leader: str) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation, match=f"put 1 was safe on .'slave-1'.; {leader} leads without it"):
        lose_power_for_a_moment()


def test_a_clean_stop_after_a_loss_of_power_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_the_last_stop(monkeypatch)
    with pytest.raises(Violation, match=r"put 1 was safe on .'slave-1'.; master leads without it"):
        lose_power_for_a_moment(stops=True)


@pytest.mark.parametrize("leader", ["master", "slave-1"])
def test_the_last_of_the_sync_set_may_lose_its_end_with_the_power(leader: str) -> None:
    """docs/failover.md says so: another one leads only if it is there, and has more of the same log.

    The oracle forgives what all have lost that ``sync`` names.
    """
    with running(flushCommitLogLeastPages="4", flushCommitLogThoroughInterval="600000") as cluster:
        master, other = cluster.members
        assert put(cluster, master) is PutMessageStatus.PUT_OK
        cluster.block("master", "slave-1")
        assert cluster.wait(lambda: in_sync(cluster) == {"master"}, SECONDS), cluster.standing()
        assert [promised.what for promised in cluster.judge.safe if promised.holders == {"master"}]
        cluster.lose_power("master")
        assert not cluster.judge.safe
        cluster.unblock()
        if leader == "master":
            cluster.kill("slave-1")
        cluster.start("master")
        if leader == "slave-1":
            assert master.log.verified_offset < other.log.verified_offset
        assert put(cluster, wait_for_leader(cluster, leader)) is PutMessageStatus.PUT_OK


def freeze_between_request_and_answer() -> None:
    """The answer to a renewal waits in the kernel of a leader that stands still until another node leads."""
    with running() as cluster:
        master = cluster.members[0]

        def freeze(name: str) -> None:
            if name == "master":
                cluster.freeze(name)
            else:
                cluster.ambush = Ambush("sends keep_alive", 1, freeze)

        cluster.ambush = Ambush("sends keep_alive", 1, freeze)
        assert cluster.wait(lambda: master.process is not None and master.process.is_stopped, SECONDS)
        wait_for_leader(cluster, "slave-1")
        cluster.go_on("master")
        assert master.leadership is not None
        assert not master.leadership.is_held()


def test_an_answer_that_is_read_late_renews_nothing() -> None:
    freeze_between_request_and_answer()


def test_a_lease_that_is_counted_from_the_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    count_the_lease_from_the_answer(monkeypatch)
    with pytest.raises(Violation, match="hold the right to lead at the same time"):
        freeze_between_request_and_answer()


def put_while_a_candidate_waits() -> PutMessageStatus | None:
    """The leader's clock is slow, so that it still leads when another node is a candidate already."""
    with running(rate=0.2) as cluster:
        leader, other = cluster.members
        cluster.block("master", COORDINATOR)
        cluster.mute("slave-1")  # else it would promise not to be a candidate
        is_candidate = Ambush("sends transaction of leader", 1, lambda _: cluster.coordinator.stop())
        cluster.ambush = is_candidate
        assert cluster.wait(lambda: not cluster.coordinator.is_up, SECONDS)
        assert other.agent is not None
        assert other.agent.state is FailoverState.CANDIDATE
        status = put(cluster, leader)
        cluster.coordinator.start()
        assert cluster.wait(lambda: other.is_master and other.leadership is not None, SECONDS), cluster.standing()
        return status


def test_a_candidate_acknowledges_nothing() -> None:
    assert put_while_a_candidate_waits() is PutMessageStatus.FLUSH_SLAVE_TIMEOUT


def test_an_acknowledgement_after_the_candidacy_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge_after_candidacy(monkeypatch)
    with pytest.raises(Violation, match="slave-1 leads without it"):
        put_while_a_candidate_waits()


def test_a_leader_whose_disk_is_full_hands_over_to_one_that_has_room() -> None:
    with running() as cluster:
        cluster.members[0].is_full = True
        leader = wait_for_leader(cluster, "slave-1")
        assert last_cause(cluster) == Cause.DISK_FULL.value
        assert put(cluster, leader) is PutMessageStatus.PUT_OK


def test_a_leader_with_no_byte_left_hands_over_and_follows_when_there_is_room() -> None:
    """Its store cannot be closed and opened as a slave's now. Nobody starts a process again that ends for that."""
    with running() as cluster:
        full = cluster.members[0]
        full.is_full = full.disk.full = True
        leader = wait_for_leader(cluster, "slave-1")
        assert put(cluster, leader) is PutMessageStatus.PUT_OK
        assert cluster.wait(lambda: cluster.view().members["master"].has_no_room, SECONDS), cluster.standing()
        assert full.process is not None
        assert full.process.alive
        full.is_full = full.disk.full = False
        assert cluster.wait(lambda: in_sync(cluster) == {"master", "slave-1"}, SECONDS), cluster.standing()


def test_if_no_disk_has_a_byte_left_the_nodes_run_on_and_lead_when_there_is_room() -> None:
    with running() as cluster:
        full = cluster.members
        full[0].is_full = True
        for node in full:
            node.disk.full = True
        cluster.wait(lambda: False, SECONDS)
        assert all(node.process is not None and node.process.alive for node in full), cluster.standing()
        full[0].is_full = False
        for node in full:
            node.disk.full = False
        assert put(cluster, wait_for_leader(cluster, "master", "slave-1")) is PutMessageStatus.PUT_OK


def test_a_log_is_not_set_aside_by_an_order_while_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order waits for room, or until it is withdrawn."""

    async def refuse(_: MemberNode) -> None:
        raise DiskFull("4096 bytes free")

    with running() as cluster:
        monkeypatch.setattr(MemberNode, "check_room", refuse)
        cluster.order(Order.REINIT, "slave-1")
        assert cluster.wait(lambda: "4096 bytes free" in cluster.view().members["slave-1"].reason, SECONDS)
        assert cluster.view().request is not None
        assert cluster.view().answer is None
        follower = cluster.members[1].process
        assert follower is not None
        assert follower.alive


LONG_PAUSE = replace(SETTINGS, failover_pause=600.0)


def set_config(cluster: Cluster, config: ClusterConfig) -> None:
    """As an operator does."""
    cluster.coordinator.transact([], [PutKey(PREFIX + CONFIG, encode(config))])


def test_a_member_whose_disk_is_full_takes_no_lead_and_says_so() -> None:
    with running(slaves=2) as cluster:
        full = cluster.members[1]
        full.disk.full = True
        cluster.kill("master")
        leader = wait_for_leader(cluster, "slave-2")
        assert cluster.wait(lambda: in_sync(cluster) == {"slave-2"}, SECONDS), cluster.standing()
        assert put(cluster, leader) is PutMessageStatus.PUT_OK
        assert cluster.view().members["slave-1"].has_no_room
        assert "waits for room" in cluster.view().members["slave-1"].reason
        full.disk.full = False
        assert cluster.wait(lambda: in_sync(cluster) == {"slave-1", "slave-2"}, SECONDS), cluster.standing()
        assert not cluster.view().members["slave-1"].has_no_room


def test_if_no_other_member_may_lead_it_leads_when_there_is_room() -> None:
    with running() as cluster:
        full, epoch = cluster.members[1], cluster.view().epoch
        full.disk.full = True
        cluster.kill("master")
        cluster.wait(lambda: False, SECONDS)
        assert cluster.leading is None
        assert cluster.view().epoch == epoch, "it never took the lead"
        assert "waits for room" in cluster.view().members["slave-1"].reason
        full.disk.full = False
        assert put(cluster, wait_for_leader(cluster, "slave-1")) is PutMessageStatus.PUT_OK


@pytest.mark.parametrize("when", ["write_known", "lead"])
def test_a_disk_that_fills_while_a_member_becomes_the_leader(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It gives the lead back at once, and another member leads without waiting for ``failover_pause``."""
    before = getattr(MemberNode, when)
    filled: list[ClusterNode] = []

    async def fill(member: MemberNode, *more: Any) -> Any:
        agent = member.agent
        if not filled and agent is not None and agent.state is FailoverState.PROMOTING:
            filled.extend(node for node in cluster.members if node.member is member)
            filled[0].disk.full = True
        return await before(member, *more)

    with running(slaves=2) as cluster:
        set_config(cluster, LONG_PAUSE)
        monkeypatch.setattr(MemberNode, when, fill)
        cluster.kill("master")
        assert cluster.wait(lambda: bool(filled), SECONDS), cluster.standing()
        at = cluster.clock.seconds()
        others = {"slave-1", "slave-2"} - {filled[0].name}
        assert put(cluster, wait_for_leader(cluster, *others)) is PutMessageStatus.PUT_OK
        assert cluster.clock.seconds() - at < 5.0, "nobody waits for a lease or a pause"
        assert last_cause(cluster) == (Cause.DISK_FULL if when == "write_known" else Cause.RELEASED).value
        filled[0].disk.full = False
        cluster.start()
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_a_leader_that_cannot_note_a_change_of_the_sync_set_hands_over() -> None:
    """Its puts would wait for the dead member until there is room."""
    with running(slaves=2) as cluster:
        cluster.members[0].disk.full = True
        cluster.kill("slave-2")
        leader = wait_for_leader(cluster, "slave-1")
        assert last_cause(cluster) == Cause.DISK_FULL.value
        assert put(cluster, leader) is PutMessageStatus.PUT_OK


def test_if_all_disks_are_full_the_leader_stays() -> None:
    with running() as cluster:
        for node in reversed(cluster.members):
            node.is_full = True
            cluster.wait(lambda: False, 30.0)
        assert cluster.leading is cluster.members[0]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_all_lose_power(flush: str) -> None:
    config = Config(
        {"brokerRole": "SLAVE", "flushDiskType": flush},
        [SlaveConfig({"flushDiskType": flush})] * 2,
        COMMON,
    )
    cluster = Cluster(config, seed=1, rates={})
    with cluster.running():
        cluster.start()
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        assert put(cluster, cluster.members[0]) is PutMessageStatus.PUT_OK
        for name in cluster.nodes:
            cluster.lose_power(name)
        cluster.start()
        assert put(cluster, wait_for_leader(cluster, *cluster.nodes)) is PutMessageStatus.PUT_OK
        if flush == "SYNC_FLUSH":
            assert len([each for each in cluster.judge.safe if each.what.startswith("put")]) >= 2


def test_the_leader_writes_lost_keys_again() -> None:
    with running() as cluster:
        cluster.coordinator.lose_all()
        assert cluster.wait(lambda: cluster.view().leader is not None, SECONDS), cluster.standing()
        assert cluster.leading is cluster.members[0]
        assert in_sync(cluster) == set(cluster.nodes)
        cluster.kill("master")
        wait_for_leader(cluster, "slave-1")


def all_down_and_keys_lost(cluster: Cluster, last: str) -> None:
    """``last`` has one message more than the others, which were left out."""
    cluster.coordinator.transact([], [PutKey(PREFIX + CONFIG, encode(SETTINGS))])
    others = [name for name in cluster.nodes if name != last]
    for name in others:
        cluster.kill(name)
    leader = wait_for_leader(cluster, last)
    assert cluster.wait(lambda: in_sync(cluster) == {last}, SECONDS), cluster.standing()
    assert put(cluster, leader) is PutMessageStatus.PUT_OK
    cluster.kill(last)
    cluster.coordinator.lose_all()


@pytest.mark.parametrize("last", ["master", "slave-1"])
def test_keys_lost_while_all_were_down_come_back_when_all_are_there(last: str) -> None:
    with running() as cluster:
        all_down_and_keys_lost(cluster, last)
        for name in cluster.nodes:
            if name != last:
                cluster.start(name)
        cluster.wait(lambda: False, 60.0)
        assert cluster.leading is None
        (waiting,) = [node.agent for node in cluster.members if node.agent is not None]
        assert f"start {last}" in waiting.reason
        assert waiting.problem == waiting.reason
        cluster.start(last)
        wait_for_leader(cluster, last)
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        assert last_cause(cluster) == Cause.TOGETHER.value
        assert cluster.wait(lambda: cluster.view().config == SETTINGS, SECONDS)


def test_a_member_that_is_gone_for_good_is_forgotten() -> None:
    with running() as cluster:
        all_down_and_keys_lost(cluster, "master")
        cluster.judge.wiped(cluster.members[0], cluster.clock.seconds())  # as far as anybody can tell
        cluster.start("slave-1")
        cluster.wait(lambda: False, 30.0)
        assert cluster.leading is None
        cluster.coordinator.transact([], [PutKey(PREFIX + FORGOTTEN, encode(Forgotten(("master",))))])
        wait_for_leader(cluster, "slave-1")
        (agent,) = [node.agent for node in cluster.members if node.agent is not None]
        assert "master" not in agent.known.members


def set_back_under_a_leader(cluster: Cluster, *started: str) -> ClusterNode:
    """The master missed two epochs. The coordinator has lost its keys, and an operator makes the master lead."""
    cluster.kill("master")
    wait_for_leader(cluster, "slave-1", "slave-2")
    for name in ("slave-1", "slave-2", "slave-1"):
        assert cluster.leading is not None
        if cluster.leading.name != name:
            assert cluster.wait(lambda: in_sync(cluster) == {"slave-1", "slave-2"}, SECONDS), cluster.standing()
            cluster.order(Order.SWITCHOVER, name)
            wait_for_leader(cluster, name)
    for name in ("slave-1", "slave-2"):
        cluster.kill(name)
    cluster.coordinator.lose_all()
    for name in started:
        cluster.start(name)
    cluster.wait(lambda: False, 20.0)
    cluster.order(Order.FAILOVER, "master", force=True)
    return wait_for_leader(cluster, "master")


@pytest.mark.long
def test_who_knows_a_newer_epoch_than_a_forced_leader_follows_it() -> None:
    with running(slaves=2) as cluster:
        leader = set_back_under_a_leader(cluster, *cluster.nodes)
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        assert cluster.leading is leader


def test_one_that_knows_a_newer_epoch_and_comes_later_follows_after_an_order() -> None:
    with running(slaves=2) as cluster:
        set_back_under_a_leader(cluster, "master")
        for name in ("slave-1", "slave-2"):
            cluster.start(name)
        cluster.wait(lambda: False, 30.0)
        waiting = [node.agent for node in cluster.members if node.name != "master"]
        assert all(agent is not None and "failover --to NAME --force" in agent.reason for agent in waiting)
        cluster.order(Order.FAILOVER, "master", force=True)
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        assert cluster.leading is cluster.members[0]
        cluster.order(Order.FAILOVER, "master", force=True)
        assert cluster.wait(lambda: refusal(cluster) == "master leads already", SECONDS), cluster.standing()


def test_a_leader_does_not_doubt_keys_that_it_has_written_since_it_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as cluster:
        agent = cluster.members[0].agent
        assert agent is not None
        found, write = [], reading.write_known

        def note(work: Work, known: Known) -> Procedure[None]:
            yield from write(work, known)
            if work.knows.me == agent.identity:
                found.append((known.number, work.knows.doubts_keys))

        monkeypatch.setattr(reading, "write_known", note)
        before = agent.known.number
        cluster.kill("slave-1")
        assert cluster.wait(lambda: agent.known.number > before, SECONDS), cluster.standing()
        assert (agent.known.number, False) in found
        assert not any(doubts for _, doubts in found)


# The coordinator goes back under its own id: a journal, a disk or a snapshot was put back


def refusal(cluster: Cluster) -> str:
    """Why the last order was refused; empty if it was not."""
    answer = cluster.view().answer
    return "" if answer is None or answer.is_done else answer.text


def left_out(cluster: Cluster) -> None:
    """The coordinator is copied. Then slave-1 is left out, and the master alone answers a put."""
    cluster.coordinator.save()
    for other in ("master", COORDINATOR):
        cluster.block("slave-1", other)
        cluster.block(other, "slave-1")
    assert cluster.wait(lambda: in_sync(cluster) == {"master"}, SECONDS), cluster.standing()
    assert put(cluster, cluster.members[0]) is PutMessageStatus.PUT_OK


def loses_nothing(cluster: Cluster) -> None:
    """The master leads at the end, or nobody does: it alone has the last message."""
    cluster.wait(lambda: False, 60.0)
    assert cluster.leading is None or cluster.leading.name == "master", cluster.standing()


@pytest.mark.parametrize("first", ["master", "slave-1"])
def test_after_it_went_back_a_restarted_node_knows_what_it_knew(first: str) -> None:
    with running() as cluster:
        left_out(cluster)
        for name in cluster.nodes:
            cluster.kill(name)
        cluster.coordinator.roll_back(is_same=True)
        cluster.unblock()
        if first == "slave-1":
            cluster.block("slave-1", COORDINATOR)  # until the master has told what it knows
            cluster.start("slave-1")
        cluster.start("master")
        cluster.wait(lambda: False, 5.0)
        cluster.unblock()
        cluster.start()
        loses_nothing(cluster)
        wait_for_leader(cluster, "master")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def go_back_while_a_third_is_away(cluster: Cluster) -> None:
    """The master and slave-1 start again, and the master knows more. Not all that were ever known can agree."""
    cluster.kill("slave-2")
    assert cluster.wait(lambda: in_sync(cluster) == {"master", "slave-1"}, SECONDS), cluster.standing()
    left_out(cluster)
    for name in ("master", "slave-1"):
        cluster.kill(name)
    cluster.coordinator.roll_back(is_same=True)
    cluster.unblock()
    for name in ("master", "slave-1"):
        cluster.start(name)


@pytest.mark.long
def test_nobody_leads_while_one_that_is_there_knows_more() -> None:
    with running(slaves=2) as cluster:
        go_back_while_a_third_is_away(cluster)
        cluster.wait(lambda: False, 60.0)
        assert cluster.leading is None
        cluster.start()
        wait_for_leader(cluster, "master")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


@pytest.mark.long
def test_a_doubt_outlives_the_doubter_and_the_process_that_heard_of_it() -> None:
    with running(slaves=2) as cluster:
        go_back_while_a_third_is_away(cluster)
        cluster.wait(lambda: False, 5.0)
        cluster.kill("master")
        cluster.wait(lambda: False, 60.0)
        cluster.kill("slave-1")
        cluster.start("slave-1")
        cluster.start("slave-2")
        cluster.wait(lambda: False, 60.0)
        assert cluster.leading is None, cluster.standing()
        agent = cluster.members[2].agent
        assert agent is not None
        assert "start master" in agent.reason
        cluster.start()
        wait_for_leader(cluster, "master")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        assert not any(node.agent.known.doubters for node in cluster.members if node.agent is not None)


def test_an_order_to_lead_overrules_what_a_doubter_that_is_away_knew() -> None:
    """When it comes back it follows at once: nobody has to give the order once more."""
    with running() as cluster:
        assert put(cluster, cluster.members[0]) is PutMessageStatus.PUT_OK
        left_out(cluster)
        for name in cluster.nodes:
            cluster.kill(name)
        cluster.coordinator.roll_back(is_same=True)
        cluster.unblock()
        cluster.start()
        cluster.wait(lambda: False, 5.0)
        cluster.kill("master")
        cluster.wait(lambda: False, 60.0)
        assert cluster.leading is None, cluster.standing()
        cluster.order(Order.FAILOVER, "slave-1", force=True)
        wait_for_leader(cluster, "slave-1")
        cluster.start("master")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_an_order_ends_a_doubt_about_the_leader_that_others_have_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """slave-2 has noted what slave-1 knew. Then slave-1 got a new store, and leads."""
    with running(slaves=2) as cluster:
        assert put(cluster, cluster.members[0]) is PutMessageStatus.PUT_OK
        lost = NewestChange(cluster.view().epoch, "a leadership of slave-1", 4)
        root, read = cluster.members[2].configured.store_path_root_dir, MemberNode.read_known

        async def read_with_note(node: MemberNode) -> Known:
            known, is_third = await read(node), node.core.plan.settings.store_path_root_dir == root
            return replace(known, doubters={"slave-1": lost}) if is_third else known

        monkeypatch.setattr(MemberNode, "read_known", read_with_note)
        cluster.kill("slave-2")
        cluster.order(Order.SWITCHOVER, "slave-1")
        wait_for_leader(cluster, "slave-1")
        cluster.start("slave-2")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        assert cluster.view().doubters == ["slave-1"]

        cluster.order(Order.SWITCHOVER, "master")
        assert cluster.wait(lambda: "--force" in refusal(cluster), SECONDS), cluster.standing()
        assert cluster.leading is cluster.members[1]
        cluster.order(Order.FAILOVER, "slave-1", force=True)
        assert cluster.wait(lambda: not cluster.view().doubters, SECONDS), cluster.standing()
        wait_for_leader(cluster, "slave-1")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_a_leader_that_goes_on_writes_its_keys_again_under_the_same_id() -> None:
    with running() as cluster:
        left_out(cluster)
        cluster.kill("slave-1")
        cluster.coordinator.roll_back(is_same=True)
        cluster.unblock()
        cluster.wait(lambda: False, 5.0)
        assert in_sync(cluster) == {"master"}
        cluster.start()
        loses_nothing(cluster)
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_a_leader_without_room_on_its_disk_writes_its_keys_again() -> None:
    with running() as cluster:
        cluster.coordinator.save()
        cluster.kill("slave-1")
        assert cluster.wait(lambda: in_sync(cluster) == {"master"}, SECONDS), cluster.standing()
        cluster.start("slave-1")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
        newest = cluster.view().sync
        assert newest is not None
        cluster.block("master", COORDINATOR)
        cluster.coordinator.roll_back(is_same=True)
        assert cluster.wait(lambda: cluster.view().doubters == ["slave-1"], 3.0), cluster.standing()
        cluster.members[0].disk.full = True
        cluster.unblock()
        assert cluster.wait(lambda: not cluster.view().doubters, SECONDS), cluster.standing()
        again = cluster.view().sync
        assert again is not None
        assert (again.epoch, again.number > newest.number) == (newest.epoch, True)
        cluster.members[0].disk.full = False
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


def test_two_leaders_never_answer_although_one_is_cut_off() -> None:
    with running() as cluster:
        left_out(cluster)
        cluster.block("master", COORDINATOR)
        cluster.unblock()
        for other in ("slave-1", COORDINATOR):
            cluster.block("master", other)
            cluster.block(other, "master")
        cluster.coordinator.roll_back(is_same=True)
        wait_for_leader(cluster, "slave-1")
        cluster.wait(lambda: False, 5.0)
        master = cluster.members[0].leadership
        assert master is None or not master.is_held()


def test_two_leaders_never_answer_although_a_third_member_knows_less() -> None:
    """Two nodes go on by promises. The older keys let the third one lead, which was away since they were copied."""
    with running(slaves=2) as cluster:
        cluster.coordinator.save()
        third = "slave-2"
        for other in ("master", "slave-1", COORDINATOR):
            cluster.block(third, other)
            cluster.block(other, third)
        assert cluster.wait(lambda: in_sync(cluster) == {"master", "slave-1"}, SECONDS), cluster.standing()
        master = cluster.members[0]
        assert put(cluster, master) is PutMessageStatus.PUT_OK
        cluster.unblock()
        for name in ("master", "slave-1"):
            for other in (third, COORDINATOR):
                cluster.block(name, other)
                cluster.block(other, name)
        cluster.coordinator.roll_back(is_same=True)
        assert cluster.wait(lambda: cluster.members[2].is_master, SECONDS), cluster.standing()
        assert put(cluster, master) is not PutMessageStatus.PUT_OK
        assert master.leadership is None or not master.leadership.is_held()


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_without_the_coordinator_a_leader_needs_each_member_but_the_forgotten(
    is_forgotten: bool,
) -> None:
    with running(slaves=2) as cluster:
        cluster.kill("slave-2")
        assert cluster.wait(lambda: in_sync(cluster) == {"master", "slave-1"}, SECONDS), cluster.standing()
        if is_forgotten:
            cluster.coordinator.transact([], [PutKey(PREFIX + FORGOTTEN, encode(Forgotten(("slave-2",))))])
            cluster.wait(lambda: False, 20.0)
        cluster.coordinator.stop()
        cluster.wait(lambda: False, 60.0)
        assert (cluster.leading is not None) is is_forgotten
        cluster.coordinator.start()
        assert put(cluster, wait_for_leader(cluster, "master", "slave-1")) is PutMessageStatus.PUT_OK


def test_a_leader_from_older_keys_does_not_end_the_doubt_of_one_that_knows() -> None:
    """The one case that nobody can notice in time: the master's messages are not cut, and both say what is wrong."""
    with running() as cluster:
        left_out(cluster)
        cluster.kill("master")
        cluster.unblock()
        cluster.coordinator.roll_back(is_same=True)
        wait_for_leader(cluster, "slave-1")
        cluster.start("master")
        cluster.wait(lambda: False, 60.0)
        agent = cluster.members[0].agent
        assert agent is not None
        assert agent.doubts_keys
        assert "failover --to NAME --force" in agent.reason
        cluster.order(Order.FAILOVER, "master", force=True)
        wait_for_leader(cluster, "master")
        assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()


@pytest.mark.parametrize(
    ("plant", "scenario"),
    [
        (
            forget_the_newest_keys_at_a_restart,
            partial(test_after_it_went_back_a_restarted_node_knows_what_it_knew, "slave-1"),
        ),
        (lead_although_another_one_knows_more, test_nobody_leads_while_one_that_is_there_knows_more),
        (hear_nothing_of_doubts, test_a_doubt_outlives_the_doubter_and_the_process_that_heard_of_it),
        (hear_nothing_of_doubts, test_an_order_to_lead_overrules_what_a_doubter_that_is_away_knew),
        (go_on_alone_without_the_coordinator, test_two_leaders_never_answer_although_one_is_cut_off),
        (go_on_alone_without_the_coordinator, test_two_leaders_never_answer_although_a_third_member_knows_less),
    ],
)
def test_a_guard_that_is_missing_is_seen(
    monkeypatch: pytest.MonkeyPatch, plant: Patch, scenario: Callable[[], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((Violation, AssertionError)):
        scenario()


def without_stamps(patch: pytest.MonkeyPatch) -> None:
    """As the version before wrote keys and cluster.json."""
    new_history, write_known, numbered = trying.new_history, reading.write_known, SyncSetKeeper.numbered

    def write(work: Work, *more: Any) -> History:
        entries = new_history(work, *more).entries
        return History(tuple(replace(each, stamp="", after=0, ends={}) for each in entries))

    def note(work: Work, known: Known) -> Procedure[None]:
        yield from write_known(work, replace(known, history=History(), number=0, members=(), config=""))

    def number(keeper: SyncSetKeeper, new: SyncSet, _: int | None) -> tuple[SyncSetKeeper, SyncSet]:
        after, written = numbered(keeper, new, 1)
        return after, replace(written, number=0)

    patch.setattr(trying, "new_history", write)
    patch.setattr(reading, "write_known", note)
    patch.setattr(SyncSetKeeper, "numbered", number)


@pytest.mark.parametrize("second", ["master", "slave-1"])
def test_a_cluster_of_an_older_version_rolls_on(second: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        without_stamps(patch)
        with running() as cluster:
            cluster.kill("slave-1")
            assert cluster.wait(lambda: in_sync(cluster) == {"master"}, SECONDS), cluster.standing()
            cluster.start()
            assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
            patch.undo()
            for name in ("master", "slave-1") if second == "slave-1" else ("slave-1", "master"):
                cluster.kill(name)
                cluster.start(name)
                cluster.wait(lambda: False, 20.0)
                wait_for_leader(cluster, *cluster.nodes)
                assert cluster.wait(lambda: in_sync(cluster) == set(cluster.nodes), SECONDS), cluster.standing()
            assert all(node.agent is not None and not node.agent.doubts_keys for node in cluster.members)
            assert cluster.view().history.stamp
