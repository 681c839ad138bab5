"""Whether the coordinator's keys have all that a member knows, also of clusters that older versions have written."""

from collections.abc import Mapping
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import Snapshot
from rmqha.failover.keys import EpochEntry, History, Leader, Member, NewestChange, SyncSet
from rmqha.failover.member import Known
from rmqha.failover.trust import Trust, doubters_of, is_current
from rmqha.failover.view import ClusterView

HERE, ELSEWHERE = 1, 2


def entry(n: int, stamp: str = "", after: int = 0, **ends: int) -> EpochEntry:
    return EpochEntry(n, "a", 0, "", "", stamp, after, ends)


def view(number: int, *entries: EpochEntry, cluster_id: int | None = HERE) -> ClusterView:
    """The newest ``sync`` has this number; 0: an older version wrote it."""
    history = History(entries)
    leader = Leader("a", "s", history.epoch, cluster_id)
    sync = SyncSet(history.epoch, "a", {}, number, cluster_id if number else None)
    return ClusterView("/", Snapshot(9, {}), leader, history, sync)


def known(number: int, *entries: EpochEntry) -> Known:
    history = History(entries)
    return Known(history.epoch, "a", HERE, history=history, number=number)


class TrustTests(SynchronousTestCase):
    def check(self, expected: bool, keys: ClusterView, knows: Known) -> None:
        self.assertIs(is_current(keys, HERE, knows), expected, (keys, knows))

    def test_keys_have_what_was_read_of_the_same_leadership(self) -> None:
        for number, expected in ((4, False), (5, True), (6, True)):
            self.check(expected, view(number, entry(1, "r")), known(5, entry(1, "r")))

    def test_keys_of_a_later_leadership_have_what_came_before_it(self) -> None:
        for after, expected in ((4, False), (5, True), (6, True)):
            self.check(expected, view(1, entry(1, "r"), entry(2, "s", after)), known(5, entry(1, "r")))
        self.check(True, view(1, entry(1, "r"), entry(2, "s", 5), entry(3, "t", 9)), known(5, entry(1, "r")))

    def test_a_number_of_an_epoch_that_came_again_says_nothing(self) -> None:
        self.check(False, view(9, entry(1, "r"), entry(2, "other", 9)), known(1, entry(1, "r"), entry(2, "s", 9)))

    def test_what_an_operator_has_overruled_counts_no_more_up_to_there(self) -> None:
        keys = view(1, entry(1, "r"), entry(3, "t", 2, s=4))
        self.check(True, keys, known(4, entry(1, "r"), entry(2, "s", 2)))
        self.check(False, keys, known(5, entry(1, "r"), entry(2, "s", 2)))

    def test_keys_that_were_written_to_another_coordinator_are_copies(self) -> None:
        for knows in (known(1, entry(1, "r")), Known(1, "a", HERE), Known()):
            self.check(False, view(1, entry(1, "r"), cluster_id=ELSEWHERE), knows)

    def test_a_coordinator_without_keys_is_right_for_those_that_know_nothing(self) -> None:
        nothing = ClusterView("/", Snapshot(1, {}))
        self.check(True, nothing, Known())
        self.check(False, nothing, known(1, entry(1, "r")))
        self.check(False, nothing, Known(1, "a", HERE))

    def test_what_an_older_version_has_written(self) -> None:
        old = Known(3, "a", HERE)
        self.check(True, view(0, entry(3)), old)
        self.check(False, view(0, entry(2)), old)
        self.check(False, view(0, entry(3), cluster_id=ELSEWHERE), replace(old, cluster_id=ELSEWHERE))
        self.check(True, view(1, entry(3), entry(4, "r")), old)

    def test_a_leader_of_an_older_version_after_one_of_ours(self) -> None:
        knows = known(5, entry(3), entry(4, "r"))
        self.check(True, view(0, entry(3), entry(4), entry(5)), knows)
        self.check(True, view(1, entry(3), entry(4), entry(5), entry(6, "s")), knows)
        self.check(False, view(0, entry(3)), knows)
        self.check(False, view(0, entry(3), entry(4)), knows)


class DoubtersTests(SynchronousTestCase):
    """``b`` has done more than the keys say, and ``c`` has read its key."""

    def setUp(self) -> None:
        self.keys = view(1, entry(1, "r"))
        self.change = NewestChange(2, "s", 4)

    def heard(self, kept: Mapping[str, NewestChange] | None = None, **members: Member) -> dict[str, NewestChange]:
        knows = replace(known(1, entry(1, "r")), doubters=kept or {})
        return doubters_of(replace(self.keys, members=members), "c", knows)

    def member(self, name: str, is_doubtful: bool = False, **heard: NewestChange) -> Member:
        change = self.change if is_doubtful else NewestChange(1, "r", 1)
        return Member(
            name,
            "s",
            "m",
            known_epoch=change.epoch,
            is_doubtful=is_doubtful,
            stamp=change.stamp,
            number=change.number,
            doubters=heard,
            store="t",
            state="",
            ha="",
            remoting="",
        )

    def test_it_is_kept_when_the_doubter_has_left_and_passed_on(self) -> None:
        noted = {"b": self.change}
        self.assertEqual(self.heard(b=self.member("b", is_doubtful=True)), noted)
        self.assertEqual(self.heard(noted), noted)
        self.assertEqual(self.heard(noted, b=self.member("b")), noted)
        self.assertEqual(self.heard(a=self.member("a", b=self.change)), noted)

    def test_it_ends_when_the_keys_have_it_or_overrule_it_or_the_doubter_is_forgotten(self) -> None:
        for keys in (
            view(4, entry(1, "r"), entry(2, "s")),
            view(1, entry(1, "r"), entry(3, "t", 2, s=4)),
            replace(self.keys, forgotten=frozenset({"b"})),
        ):
            self.keys = keys
            self.assertEqual(self.heard({"b": self.change}, a=self.member("a", b=self.change)), {})

    def test_the_newest_change_counts_and_what_others_say_of_oneself_too(self) -> None:
        self.keys = view(1, entry(1, "r"), entry(3, "t", 2, s=3))
        self.assertEqual(self.heard({"b": self.change}), {"b": self.change})
        older = replace(self.change, number=3)
        self.assertEqual(self.heard({"b": older}, a=self.member("a", b=self.change)), {"b": self.change})
        self.assertEqual(self.heard({"b": self.change}, a=self.member("a", b=older)), {"b": self.change})
        self.assertEqual(self.heard(a=self.member("a", c=self.change)), {"c": self.change})

    def test_a_doubter_whose_store_is_new_takes_nothing_back(self) -> None:
        new = replace(self.member("b"), known_epoch=0, stamp="", number=0, is_doubtful=True)
        self.assertEqual(self.heard({"b": self.change}, b=new), {"b": self.change})

    def test_a_note_that_could_not_be_erased_does_not_count_once_the_keys_have_it(self) -> None:
        members = {"a": self.member("a", b=self.change)}
        self.assertEqual(replace(self.keys, members=members).doubters, ["b"])
        self.assertEqual(replace(view(4, entry(1, "r"), entry(2, "s")), members=members).doubters, [])

    def test_without_a_stamp_the_epoch_tells(self) -> None:
        self.change = NewestChange(2, "", 0)
        self.assertEqual(self.heard(b=self.member("b", is_doubtful=True)), {"b": self.change})
        self.keys = view(1, entry(1, "r"), entry(2, "s"))
        self.assertEqual(self.heard({"b": self.change}), {})


class TrustOfAnOlderVersionTests(SynchronousTestCase):
    """Its leader writes no stamp: the revision of a coordinator that went back under its id is all that tells."""

    def setUp(self) -> None:
        self.trust = Trust()
        self.look(9)

    def look(self, revision: int, floor: int = 0, cluster_id: int = HERE) -> int:
        """Look at keys of this revision, whose leader names that floor; what a leader's key must name after that."""
        read = view(0, entry(3))
        assert read.leader is not None
        leader = replace(read.leader, floor=floor, cluster_id=cluster_id)
        self.trust = self.trust.look(replace(read, leader=leader, snapshot=Snapshot(revision, {})), HERE)
        return self.trust.needed

    def test_a_revision_that_grows_is_no_reason_to_doubt(self) -> None:
        self.assertEqual(self.look(10), 0)

    def test_keys_that_went_back_are_doubted_until_a_leader_names_what_was_read_before(self) -> None:
        self.assertEqual(self.look(5), 9)
        self.assertEqual(self.look(6, floor=8), 9)
        self.assertEqual(self.look(7, floor=9, cluster_id=ELSEWHERE), 9)
        self.assertTrue(self.trust.is_doubtful(view(0, entry(3)), HERE, Known(3, "a", HERE)))
        self.assertEqual(self.look(8, floor=9), 0)
        self.assertFalse(self.trust.is_doubtful(view(0, entry(3)), HERE, Known(3, "a", HERE)))

    def test_a_leader_of_ours_ends_the_doubt_by_its_stamp(self) -> None:
        self.look(5)
        self.trust = self.trust.look(view(1, entry(1, "r")), HERE)
        self.assertEqual(self.trust.needed, 0)
