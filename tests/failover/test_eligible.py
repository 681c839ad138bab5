"""Who may lead: what a candidate must hold, and who is let first."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import Snapshot
from rmqha.failover.eligible import away_members, better_candidates, may_lead, may_lead_in_doubt
from rmqha.failover.keys import (
    Cause,
    ClusterConfig,
    EpochEntry,
    History,
    Holder,
    Member,
    Mode,
    NewestChange,
    Order,
    Request,
    Status,
    SyncSet,
)
from rmqha.failover.member import Known
from rmqha.failover.view import ClusterView

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def member(name: str, **more: Any) -> Member:
    known: dict[str, Any] = {"session": f"session-{name}", "store": f"store-{name}", "boot": "boot-1"}
    return replace(Member(name, ha="", remoting="", state="FOLLOWER", end=1000, known_epoch=3, **known), **more)


def holder(of: Member) -> Holder:
    return of.holder()


class MayLeadTest(SynchronousTestCase):
    """``a`` led in epoch 3 and is gone; ``b`` was in its sync set, ``c`` was not."""

    def setUp(self) -> None:
        self.a, self.b, self.c = member("a"), member("b"), member("c")
        entry = EpochEntry(3, "a", 0, (NOW - timedelta(days=1)).isoformat(), Cause.LEASE_ENDED.value)
        self.view = ClusterView(
            "/p/",
            Snapshot(10, {}),
            history=History((entry,)),
            sync=SyncSet(3, "a", {"a": holder(self.a), "b": holder(self.b)}),
            status=Status(3, confirmed=900, end=1000),
            members={"b": self.b, "c": self.c},
        )

    def cause(self, me: Member, is_founder: bool = False, **changes: Any) -> Cause | None:
        return may_lead(replace(self.view, **changes), me, is_founder, NOW).cause

    def why_not(self, me: Member, **changes: Any) -> str:
        verdict = may_lead(replace(self.view, **changes), me, False, NOW)
        self.assertIsNone(verdict.cause)
        return verdict.why_not

    def test_a_member_of_the_sync_set_leads_when_the_lease_has_ended(self) -> None:
        self.assertIs(self.cause(self.b), Cause.LEASE_ENDED)
        self.assertIs(self.cause(self.a), Cause.AGAIN)

    def test_another_member_may_lack_messages(self) -> None:
        self.assertIn("not in the sync set", self.why_not(self.c))

    def test_in_mode_async_a_small_lag_is_accepted(self) -> None:
        config = ClusterConfig(mode=Mode.ASYNC.value, maximum_lag=100)
        self.assertIs(self.cause(replace(self.c, end=900), config=config), Cause.LEASE_ENDED)
        self.assertIn("101 bytes behind", self.why_not(replace(self.c, end=899), config=config))

    def test_in_mode_async_the_lag_is_told_only_between_ends_of_one_log(self) -> None:
        config, status = ClusterConfig(mode=Mode.ASYNC.value, maximum_lag=100), Status(3, 900, 1000, stamp="a.3")
        same = replace(self.c, end=900, log_of="a.3")
        self.assertIs(self.cause(same, config=config, status=status), Cause.LEASE_ENDED)
        for other in ("", "b.2"):  # as long as the leader's, but from a leader before it
            of_another = replace(self.c, end=1000, log_of=other)
            self.assertIn("not known whether its log", self.why_not(of_another, config=config, status=status))

    def test_a_machine_that_was_started_again_may_have_lost_the_end_of_the_log(self) -> None:
        rebooted = replace(self.b, boot="boot-2")
        self.assertIn("a, which may have more, is not there", self.why_not(rebooted))

    def test_what_was_flushed_before_it_was_reported_outlives_a_loss_of_power(self) -> None:
        synced = replace(self.b, synced=True)
        sync = SyncSet(3, "a", {"a": holder(self.a), "b": holder(synced)})
        self.assertIs(self.cause(replace(synced, boot="boot-2"), sync=sync), Cause.LEASE_ENDED)

    def test_a_shorter_log_does_not_lead_again(self) -> None:
        self.assertIn("may have lost its end", self.why_not(replace(self.a, end=899)))

    def test_another_store_under_the_same_name_holds_nothing(self) -> None:
        self.assertIn("may have lost its end", self.why_not(replace(self.b, store="new")))

    def test_after_all_lost_power_the_one_with_most_leads_when_all_are_there(self) -> None:
        a, b = [replace(each, boot="boot-2", is_candidate=True) for each in (self.a, self.b)]
        more = replace(a, end=1200)
        self.assertIn("a has more of it", self.why_not(b, members={"a": more, "b": b}))
        self.assertIs(self.cause(more, members={"a": more, "b": b}), Cause.AGAIN)
        waiting = replace(a, is_candidate=False)
        self.assertIn("waits for a", self.why_not(b, members={"a": waiting, "b": b}))

    def test_one_outside_the_sync_set_leads_if_all_in_it_have_lost_what_it_has(self) -> None:
        a, b = [replace(each, boot="boot-2", is_candidate=True, log_of="a.3") for each in (self.a, self.b)]
        c = replace(self.c, end=1001, log_of="a.3")
        there = {"a": a, "b": b, "c": c}
        self.assertIs(self.cause(c, members=there), Cause.LEASE_ENDED)
        for holder_of_all, why in (
            (replace(a, boot="boot-1"), "it has lost nothing"),
            (replace(a, is_candidate=False), "it has not said yet where its log ends"),
            (replace(a, end=1001), "it has as much"),
            (replace(a, log_of="b.4"), "its log is of another leader"),
            (replace(a, log_of=""), "nobody knows whose log it has"),
        ):
            with self.subTest(why):
                self.assertIn("not in the sync set", self.why_not(c, members={**there, "a": holder_of_all}))
        self.assertIn("not in the sync set", self.why_not(c, members={"b": b, "c": c}))
        self.assertIn("paused", self.why_not(c, members=there, config=ClusterConfig(paused=True)))

    def test_how_often_it_cut_its_log_does_not_make_a_shorter_log_one_with_more(self) -> None:
        a, b = [replace(each, boot="boot-2", is_candidate=True, log_of="a.3", log_epoch=3) for each in (self.a, self.b)]
        c = replace(self.c, end=500, log_of="a.3", log_epoch=9)
        self.assertIn("not in the sync set", self.why_not(c, members={"a": a, "b": b, "c": c}))
        view = replace(self.view, members={"a": a, "b": b, "c": c})
        self.assertEqual(better_candidates(view, a), [])

    def test_it_leads_without_a_pause_since_the_old_leader_would_lead_with_less(self) -> None:
        a, b, c = [replace(each, boot="boot-2", is_candidate=True, log_of="a.3") for each in (self.a, self.b, self.c)]
        history = History((EpochEntry(3, "a", 0, NOW.isoformat(), Cause.LEASE_ENDED.value),))
        there = {"a": a, "b": b, "c": replace(c, end=1001)}
        self.assertIs(self.cause(there["c"], members=there, history=history), Cause.LEASE_ENDED)

    def test_who_has_lost_its_end_lets_one_with_more_go_first(self) -> None:
        a, b = [replace(each, boot="boot-2", is_candidate=True, log_of="a.3") for each in (self.a, self.b)]
        c = replace(self.c, end=1001, log_of="a.3")
        for case, me, outside, config, first in (
            ("it has more", a, c, ClusterConfig(), ["c"]),
            ("it has as much", a, replace(c, end=1000), ClusterConfig(), []),
            ("its log is of an older epoch", a, replace(c, log_of="b.2"), ClusterConfig(), []),
            ("nobody knows whose log it has", replace(a, log_of=""), replace(c, log_of=""), ClusterConfig(), []),
            ("it never leads", a, replace(c, no_failover=True), ClusterConfig(), []),
            ("failover is paused", a, c, ClusterConfig(paused=True), []),
            ("nothing is lost", replace(a, boot="boot-1"), c, ClusterConfig(), []),
            ("puts wait for nobody", a, c, ClusterConfig(mode=Mode.ASYNC.value), []),
        ):
            with self.subTest(case):
                view = replace(self.view, members={"a": me, "b": b, "c": outside}, config=config)
                self.assertEqual(better_candidates(view, me), first)

    def test_a_second_automatic_failover_waits(self) -> None:
        entry = EpochEntry(3, "a", 0, (NOW - timedelta(seconds=590)).isoformat(), Cause.LEASE_ENDED.value)
        history = History((entry,))
        self.assertIn("in 10 s", self.why_not(self.b, history=history))
        self.assertIs(self.cause(self.a, history=history), Cause.AGAIN)
        order = Request("1", Order.FAILOVER.value, "b")
        self.assertIs(self.cause(self.b, history=history, request=order), Cause.FAILOVER)

    def test_a_wall_clock_that_was_set_back_blocks_nobody(self) -> None:
        entry = EpochEntry(3, "a", 0, (NOW + timedelta(days=365)).isoformat(), Cause.LEASE_ENDED.value)
        self.assertIs(self.cause(self.b, history=History((entry,))), Cause.LEASE_ENDED)

    def test_paused(self) -> None:
        config = ClusterConfig(paused=True)
        self.assertIn("paused", self.why_not(self.b, config=config))
        order = Request("1", Order.FAILOVER.value)
        self.assertIs(self.cause(self.b, config=config, request=order), Cause.FAILOVER)

    def test_a_leader_that_stopped_cleanly_needs_no_pause(self) -> None:
        entry = EpochEntry(3, "a", 0, NOW.isoformat(), Cause.LEASE_ENDED.value)
        status = Status(3, confirmed=1000, end=1000, is_released=True)
        self.assertIs(self.cause(self.b, history=History((entry,)), status=status), Cause.RELEASED)

    def test_nofailover(self) -> None:
        self.assertIn("nofailover", self.why_not(replace(self.b, no_failover=True)))

    def test_a_coordinator_that_lost_its_keys_decides_nothing(self) -> None:
        newer = replace(self.c, known_epoch=4)
        self.assertIn("epoch 4", self.why_not(self.b, members={"b": self.b, "c": newer}))
        forced = Request("1", Order.FAILOVER.value, "c", force=True)
        self.assertIs(self.cause(newer, members={"c": newer}, request=forced), Cause.FAILOVER)
        self.assertIsNone(self.cause(self.b, members={"b": self.b, "c": newer}, request=forced))

    def test_only_a_founder_begins_a_cluster(self) -> None:
        empty: dict[str, Any] = {"history": History(), "sync": None, "status": None, "members": {}}
        fresh = replace(self.a, known_epoch=0)
        self.assertIs(self.cause(fresh, is_founder=True, **empty), Cause.FIRST)
        self.assertIn("no node was started", self.why_not(fresh, **empty))

    def test_who_has_more_goes_first(self) -> None:
        b, c = [replace(each, is_candidate=True) for each in (self.b, self.c)]
        sync = SyncSet(3, "a", {name: holder(each) for name, each in (("a", self.a), ("b", b), ("c", c))})
        view = replace(self.view, sync=sync, members={"b": b, "c": replace(c, end=1001)})
        self.assertEqual(better_candidates(view, b), ["c"])
        view = replace(view, members={"b": b, "c": replace(c, priority=50)})
        self.assertEqual(better_candidates(view, b), [])
        view = replace(view, members={"b": b, "c": self.c})
        self.assertEqual(better_candidates(view, b), ["c"], "it has not said yet where its log ends")


class MayLeadInDoubtTest(SynchronousTestCase):
    """``a`` led last, which all know, and ``b`` and ``c`` followed it. The coordinator went back to older keys."""

    def setUp(self) -> None:
        sessions = tuple(f"session-{name}" for name in "abc")
        common = {"is_candidate": True, "stamp": "a.3", "number": 4, "knows": ("a", "b", "c"), "has_read": sessions}
        self.members = {name: member(name, log_epoch=1, **common) for name in "abc"}
        self.members["a"] = replace(self.members["a"], log_epoch=3)
        entry = EpochEntry(3, "a", 0, "", Cause.LEASE_ENDED.value, "a.3")
        self.known = Known(3, "a", history=History((entry,)), number=4)

    def leads(self, *forgotten: str, **changed: Member) -> str | None:
        """Who may lead; None: nobody."""
        members = {name: each for name, each in {**self.members, **changed}.items() if name not in forgotten}
        view = ClusterView("/p/", Snapshot(10, {}), forgotten=frozenset(forgotten), members=members)
        found = [name for name in members if may_lead_in_doubt(view, members[name], self.known).cause]
        self.assertLess(len(found), 2)
        return found[0] if found else None

    def test_the_last_leader_leads(self) -> None:
        self.assertEqual(self.leads(), "a")
        b = replace(self.members["b"], priority=200)
        self.assertEqual(self.leads(b=b), "a")

    def test_how_often_a_follower_cut_its_log_says_nothing_of_what_it_holds(self) -> None:
        self.assertEqual(self.leads(b=replace(self.members["b"], log_epoch=9, end=500)), "a")

    def test_if_another_log_is_longer_an_operator_decides(self) -> None:
        self.assertIsNone(self.leads(b=replace(self.members["b"], end=1001)))

    def test_if_the_last_leader_is_forgotten_one_that_is_left_leads_and_of_several_none(self) -> None:
        self.assertIsNone(self.leads("a"))
        self.assertEqual(self.leads("a", "c"), "b")

    def test_one_that_any_of_them_has_heard_of_is_waited_for(self) -> None:
        """``c`` is away, and may have more. That ``a`` has not heard of it does not matter, if ``b`` has."""
        there = {"a": replace(self.members["a"], knows=("a", "b")), "b": self.members["b"]}
        view = ClusterView("/p/", Snapshot(10, {}), members=there)
        self.assertEqual(away_members(view), ["c"])
        verdict = may_lead_in_doubt(view, there["a"], self.known)
        self.assertIsNone(verdict.cause)
        self.assertIn("c, which may have more, is not there", verdict.why_not)

    def test_what_a_doubter_knew_counts_although_its_store_is_new(self) -> None:
        self.known = replace(self.known, doubters={"b": NewestChange(4, "b.4", 1)})
        self.assertIsNone(self.leads())
        self.known = replace(self.known, doubters={"b": NewestChange(3, "a.3", 4)})
        self.assertEqual(self.leads(), "a")

    def test_a_key_that_came_back_with_the_copy_is_not_a_member_that_is_there(self) -> None:
        self.assertIsNone(self.leads(c=replace(self.members["c"], has_read=("session-c", "of an earlier a"))))
