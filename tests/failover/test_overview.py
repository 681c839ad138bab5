"""What operators see of clusters."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.failover.keys import (
    CONFIG,
    EPOCH,
    LEADER,
    MEMBERS,
    STATUS,
    Cause,
    ClusterConfig,
    EpochEntry,
    History,
    Status,
    prefix_of,
)
from rmqha.failover.overview import (
    ClusterName,
    Health,
    Overview,
    Unreadable,
    bytes_at_risk,
    clusters_in,
    history_as_json,
    overview_of,
)
from tests.failover.clusters import BROKER, CLUSTER, END, LONG_AGO, Keys, member

NAME = ClusterName(CLUSTER, BROKER)
NOW = datetime(2026, 11, 23, tzinfo=UTC)


class OverviewTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.keys = Keys(Clock())

    def overview(self) -> Overview:
        found = overview_of(NAME, self.keys.view().snapshot, NOW)
        assert isinstance(found, Overview)
        return found

    def test_a_member_in_sync_could_lead_next(self) -> None:
        self.keys.lead(member("node-b"))
        found = self.overview()
        self.assertEqual((found.leader, found.health, found.successors), ("node-a", Health.FINE, ["node-b"]))
        self.assertIn("node-b can lead next", found.advice)

    def test_a_member_in_sync_could_lead_although_more_was_confirmed_since(self) -> None:
        """Under load the leader tells later than the member. A member that tells less than that has lost its end."""
        self.keys.lead(member("node-b", END))
        self.keys.put(STATUS, Status(1, END + 500, END + 900))
        self.assertEqual(self.overview().health, Health.FINE)
        self.keys.put(MEMBERS + "node-b", member("node-b", END + 100))
        self.assertEqual(self.overview().health, Health.ALONE)
        self.assertIn("lost its end", self.overview().why_not("node-b") or "")

    def test_a_member_that_could_not_lead_says_why(self) -> None:
        self.keys.lead()
        self.keys.put(MEMBERS + "node-b", member("node-b", 1000))
        self.keys.put(MEMBERS + "node-c", member("node-c", no_failover=True))
        found = self.overview()
        self.assertEqual((found.health, found.successors), (Health.ALONE, []))
        self.assertIn("not in the sync set", found.why_not("node-b") or "")
        self.assertIn("nofailover", found.why_not("node-c") or "")
        self.assertEqual((found.lag("node-b"), found.lag("node-a")), (END - 1000, 0))

    def test_a_pause_is_seen(self) -> None:
        self.keys.lead(member("node-b"), config=ClusterConfig(paused=True))
        self.assertEqual(self.overview().health, Health.PAUSED)
        self.assertIn("rmqha cluster resume", self.overview().advice)

    def test_nothing_is_fine_while_a_member_knows_more_than_the_keys_say(self) -> None:
        self.keys.lead(member("node-b", is_doubtful=True, reason="too old", knows=("node-a", "node-b", "node-c")))
        for _ in range(2):
            found = self.overview()
            self.assertEqual((found.health, found.successors), (Health.DOUBTED, []))
            self.assertIn("failover --to NAME --force", found.advice)
            self.assertEqual((found.why_not("node-b"), found.away), ("too old", ["node-c"]))
            self.keys.put(CONFIG, ClusterConfig(paused=True))
        self.keys.delete(LEADER)
        found = self.overview()
        self.assertEqual(found.health, Health.NO_LEADER)
        self.assertIn("node-b knows. Start node-c, and the node that led last leads", found.advice)
        self.assertIn("rmqha cluster forget", found.advice)

    def test_a_member_whose_disk_has_no_room_could_not_lead(self) -> None:
        self.keys.lead(member("node-b", has_no_room=True, reason="it waits for room on its disk"))
        found = self.overview()
        self.assertEqual((found.health, found.successors), (Health.ALONE, []))
        self.assertEqual(found.why_not("node-b"), "it waits for room on its disk")

    def test_without_a_leader_the_members_say_what_they_wait_for(self) -> None:
        self.keys.lead(member("node-b"))
        self.keys.delete(LEADER)
        self.keys.put(MEMBERS + "node-b", member("node-b", reason="it may try for the lead in 3.0 s"))
        found = self.overview()
        self.assertEqual(found.health, Health.NO_LEADER)
        self.assertEqual(found.why_not("node-b"), "it may try for the lead in 3.0 s")
        self.assertIn("rmqha cluster failover", found.advice)

    def silent(self, lease_seconds: int) -> Overview:
        return replace(self.overview(), lease_seconds=lease_seconds)

    def test_a_leader_that_does_not_renew_its_lease_is_not_told_as_leading(self) -> None:
        self.keys.lead(member("node-b"))
        self.assertEqual([self.silent(seconds).health for seconds in (15, 11)], [Health.FINE] * 2)
        found = self.silent(9)
        self.assertEqual((found.health, found.silent_seconds), (Health.SILENT, 6))
        self.assertEqual(found.advice, "node-a was not heard for 6 s. node-b may lead in 9 s")
        self.keys.put(CONFIG, ClusterConfig(paused=True))
        self.assertIn("failover is paused: rmqha cluster failover", self.silent(9).advice)
        self.keys.delete(CONFIG)
        self.keys.delete(MEMBERS + "node-b")
        self.assertIn("No other member can lead", self.silent(9).advice)

    def test_a_member_that_has_to_wait_for_the_next_failover_is_not_told_to_start(self) -> None:
        self.keys.lead(member("node-b"))
        time = (NOW - timedelta(seconds=103)).isoformat()
        self.keys.put(EPOCH, History((EpochEntry(1, "node-a", 0, time, Cause.LEASE_ENDED.value),)))
        found = self.overview()
        self.assertEqual((found.health, found.as_json()["nextAutomaticFailoverSeconds"]), (Health.TOO_SOON, 497))
        self.assertEqual(
            found.advice,
            "node-b can lead next, but the next automatic failover is allowed in 497 s. If the leader fails before: "
            "rmqha cluster failover",
        )
        self.assertEqual(
            self.silent(9).advice,
            "node-a was not heard for 6 s. Its lease ends in 9 s. The next automatic failover is allowed in 497 s. "
            "Sooner: rmqha cluster failover",
        )

    def test_a_time_that_cannot_be_read_makes_nobody_wait(self) -> None:
        self.keys.lead(member("node-b"))
        self.keys.put(EPOCH, History((EpochEntry(1, "node-a", 0, "noon", Cause.LEASE_ENDED.value),)))
        self.assertIsNone(self.overview().why_not("node-b"))

    def test_the_history_is_told_oldest_first(self) -> None:
        self.keys.lead()
        (entry,) = history_as_json(self.keys.view())
        self.assertEqual(
            entry, {"epoch": 1, "node": "node-a", "start": 0, "time": LONG_AGO, "cause": Cause.FIRST.value}
        )

    def test_members_that_cannot_be_read_are_named(self) -> None:
        self.keys.lead()
        self.keys.put(MEMBERS + "node-x", b"{")
        self.assertEqual(self.overview().unreadable_members(), ["node-x"])

    def test_a_cluster_with_a_damaged_key_is_named_with_the_problem(self) -> None:
        self.keys.lead()
        self.keys.put(CONFIG, b"{")
        found = overview_of(NAME, self.keys.store.state.range(self.keys.prefix), NOW)
        assert isinstance(found, Unreadable)
        self.assertEqual(found.summary()["health"], "UNREADABLE")
        self.assertIn("config is not a ClusterConfig", found.problem)


class RiskTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.keys = Keys(Clock())
        self.keys.lead(member("node-b", 1000))
        self.keys.put(MEMBERS + "node-c", member("node-c", 4000))

    def risk(self, name: str) -> int | None:
        return bytes_at_risk(self.keys.view(), name)

    def test_a_member_in_sync_loses_nothing_though_it_told_its_end_earlier(self) -> None:
        self.assertEqual(self.risk("node-b"), 0)

    def test_another_member_loses_what_was_confirmed_beyond_its_end(self) -> None:
        self.assertEqual(self.risk("node-c"), END - 4000)

    def test_of_another_log_than_the_leaders_it_is_not_known(self) -> None:
        self.keys.put(STATUS, Status(1, END, END, stamp="a.1"))
        for name, log_of, risk in (("node-c", "a.1", END - 4000), ("node-c", "", None), ("node-c", "b.2", None)):
            self.keys.put(MEMBERS + name, member(name, 4000, log_of=log_of))
            self.assertEqual(self.risk(name), risk)
            found = overview_of(NAME, self.keys.view().snapshot, NOW)
            assert isinstance(found, Overview)
            self.assertEqual(found.lag(name), risk)

    def test_a_member_with_another_store_is_not_in_sync(self) -> None:
        self.keys.put(MEMBERS + "node-b", replace(member("node-b", 1000), store="new"))
        self.assertEqual(self.risk("node-b"), END - 1000)

    def test_a_member_out_of_sync_may_lack_what_was_confirmed_since_the_leader_told(self) -> None:
        self.keys.put(STATUS, Status(1, 4000, 4000))
        self.assertIsNone(self.risk("node-c"))

    def test_in_mode_async_all_that_was_stored_counts(self) -> None:
        self.keys.put(CONFIG, ClusterConfig(mode="async"))
        self.keys.put(STATUS, Status(1, 0, END))
        self.assertEqual(self.risk("node-c"), END - 4000)

    def test_the_status_of_an_older_epoch_tells_nothing(self) -> None:
        self.keys.put(STATUS, Status(0, END, END))
        self.assertIsNone(self.risk("node-c"))


class ClustersTests(SynchronousTestCase):
    def test_clusters_are_told_apart_and_other_keys_left_out(self) -> None:
        clock = Clock()
        one = Keys(clock)
        one.lead()
        two = Keys(clock, prefix_of("Other", "broker-b"), one.store)
        two.lead(member("node-b"))
        for other in ("/rmqha/odd", "/rmqha//x/leader", "/else/a/b/leader"):
            Keys(clock, other, one.store).put("", b"1")
        found = dict(clusters_in(one.store.state.range("/")))
        self.assertEqual(set(found), {NAME, ClusterName("Other", "broker-b")})
        self.assertEqual(dict(found[NAME].keys), dict(one.store.state.range(one.prefix).keys))
