"""Whether the coordinator's keys have all that a member knows, also of clusters that older versions have written."""

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import Snapshot
from rmqha.failover.keys import EpochEntry, History, Leader, SyncSet
from rmqha.failover.member import Known
from rmqha.failover.trust import is_current
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
