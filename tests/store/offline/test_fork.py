"""Where two logs part is found, over generated logs, with few bytes read."""

import random
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log.commitlog import CommitLog
from rmqha.store.offline import fork
from rmqha.store.offline.fork import Compared, Fork, NothingInCommon, OtherLog, find_fork
from rmqha.wire.layout import BLANK_HEADER, BLANK_MAGIC_CODE, INT32
from rmqha.wire.record import Record
from tests.fixtures import new_folder
from tests.store.damages import UNHURRIED

SEGMENT_SIZE = 2048
BORN_TIMESTAMP_AT = 40


def write(folder: Path, common: int, own: int, seed: int, sizes: Callable[[random.Random], int]) -> CommitLog:
    """A log of ``common`` records that every such log has, and ``own`` ones that only this one has."""
    log = CommitLog(folder, SEGMENT_SIZE)
    log.verify()
    shared, mine = random.Random(0), random.Random(seed)
    for number in range(common + own):
        rng = shared if number < common else mine
        is_own = number >= common
        log.append(
            Record(
                "T",
                rng.randbytes(sizes(rng)),
                "k\x01v",
                queue_offset=number,
                store_timestamp=1_795_000_000_000 + 10 * number + (seed if is_own else 0),
            )
        )
    return log


class ForkTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.compared = 0
        for name, size in (("PROBE_BYTES", 64), ("STREAM_BYTES", 512), ("PROOF_BYTES", 1024)):
            self.patch(fork, name, size)

    def find(
        self,
        ours: CommitLog,
        theirs: CommitLog,
        knows_end: bool,
        doubted_from: int | None = None,
        deleted_to: int = 0,
    ) -> Fork:
        async def compare(start: int, end: int) -> Compared:
            at = start
            if at < deleted_to:
                return Compared(None, at)
            while at < end:
                one, other = ours.get_data(at, end - at), theirs.get_data(at, end - at)
                if one is None or other is None:
                    break
                size = min(len(one), len(other))
                self.compared += size
                if one[:size] != other[:size]:
                    place = next(i for i in range(size) if one[i] != other[i])
                    return Compared(at + place, at + place)
                at += size
            return Compared(None, at)

        their_min = theirs.min_offset if knows_end or not theirs.segment_bases else theirs.segment_bases[-1]
        their_end = theirs.max_offset if knows_end else None
        finding = Deferred.fromCoroutine(
            find_fork(ours, ours.max_offset, OtherLog(their_min, their_end, compare), doubted_from=doubted_from)
        )
        failures: list[Failure] = []
        finding.addErrback(failures.append)
        if failures:
            failures[0].raiseException()
        return self.successResultOf(finding)

    @staticmethod
    def rolls_at(log: CommitLog, offset: int) -> bool:
        head = log.get_data(offset, BLANK_HEADER.size)
        return head is not None and BLANK_HEADER.unpack(head)[1] == BLANK_MAGIC_CODE

    @UNHURRIED
    @given(
        common=st.integers(1, 80),
        our_own=st.integers(0, 60),
        their_own=st.integers(0, 60),
        knows_end=st.booleans(),
        alike=st.booleans(),
        probe_bytes=st.sampled_from((64, SEGMENT_SIZE // 2, 2 * SEGMENT_SIZE)),
    )
    def test_the_fork_is_where_the_first_record_differs(
        self, common: int, our_own: int, their_own: int, knows_end: bool, alike: bool, probe_bytes: int
    ) -> None:
        """Near the start of a segment, and of the log, too: before the end of a probe."""
        self.patch(fork, "PROBE_BYTES", probe_bytes)

        def sizes(rng: random.Random) -> int:
            return 40 if alike else rng.randint(0, 300)

        folder = new_folder(self)
        ours = write(folder / "ours", common, our_own, 1, sizes)
        theirs = write(folder / "theirs", common, their_own, 2, sizes)
        only_common = write(folder / "common", common, 0, 3, sizes)
        try:
            found = self.find(ours, theirs, knows_end)
            end = only_common.max_offset
            # where both go on with a blank, that is common too
            blank_end = end - end % SEGMENT_SIZE + SEGMENT_SIZE
            both_rolled = all(self.rolls_at(log, end) for log in (ours, theirs))
            self.assertEqual(found.offset, blank_end if both_rolled else end)
            self.assertEqual(found.is_theirs_shorter, not their_own and bool(our_own))
        finally:
            for log in (ours, theirs, only_common):
                log.close()

    def test_an_empty_last_segment_proves_nothing(self) -> None:
        """Their log ends where a segment begins, and the logs part before it. Their end is not known."""
        folder = new_folder(self)
        ours = write(folder / "ours", 21, 60, 1, lambda _: 100)
        theirs = write(folder / "theirs", 21, 10, 2, lambda _: 100)
        only_common = write(folder / "common", 21, 0, 3, lambda _: 100)
        theirs.roll()
        theirs.prepare_next_segment()
        found = self.find(ours, theirs, knows_end=False)
        self.assertEqual(found.offset, only_common.max_offset)

    def test_a_log_that_is_empty_has_nothing_to_cut(self) -> None:
        folder = new_folder(self)
        ours = CommitLog(folder / "ours", SEGMENT_SIZE)
        theirs = write(folder / "theirs", 5, 5, 2, lambda _: 100)
        self.assertEqual(self.find(ours, theirs, knows_end=True), Fork(0, 0, is_theirs_shorter=False, proved_from=0))

    def test_equal_segments_after_a_difference_prove_nothing(self) -> None:
        """Two masters that both run may deliver the same delayed messages at the same places."""
        self.patch(fork, "PROOF_BYTES", 4 * SEGMENT_SIZE)
        ours, theirs, last = self.differing_before_the_last_segment()
        found = self.find(ours, theirs, knows_end=True)
        self.assertLessEqual(found.offset, last - 400)
        self.assertGreater(found.offset, last - 700)

    def test_few_bytes_are_read_of_long_logs(self) -> None:
        folder = new_folder(self)
        ours = write(folder / "ours", 2000, 1000, 1, lambda _: 100)
        theirs = write(folder / "theirs", 2000, 1200, 2, lambda _: 100)
        found = self.find(ours, theirs, knows_end=True)
        self.assertEqual(ours.scan(found.offset).messages, 1000)
        self.assertLess(self.compared, ours.max_offset // 50)

    def test_unrelated_logs_have_no_fork(self) -> None:
        folder = new_folder(self)
        ours = write(folder / "ours", 0, 50, 1, lambda _: 100)
        for theirs in (write(folder / "theirs", 0, 60, 2, lambda _: 100), CommitLog(folder / "empty", SEGMENT_SIZE)):
            with self.assertRaises(NothingInCommon):
                self.find(ours, theirs, knows_end=True)

    def test_a_record_that_differs_far_before_equal_ones_is_the_fork(self) -> None:
        """Equal records after it prove nothing: our copy has been written over, or has rotted, in the middle."""
        folder = new_folder(self)
        ours = write(folder / "ours", 100, 5, 1, lambda _: 100)
        theirs = write(folder / "theirs", 100, 5, 2, lambda _: 100)
        with (folder / "theirs" / f"{8 * SEGMENT_SIZE:020d}").open("r+b") as file:
            file.seek(300)
            file.write(b"\x00" * 8)
        fork_without = ours.scan(0, 8 * SEGMENT_SIZE).end
        found = self.find(ours, theirs, knows_end=True)
        self.assertGreaterEqual(found.offset, fork_without)

    def differing_before_the_last_segment(self) -> tuple[CommitLog, CommitLog, int]:
        """Two logs with an equal last segment, and a record that differs in the segment before it."""
        folder = new_folder(self)
        ours = write(folder / "ours", 100, 0, 1, lambda _: 100)
        theirs = write(folder / "theirs", 100, 0, 2, lambda _: 100)
        last = ours.segment_bases[-1]
        with (folder / "theirs" / f"{last - SEGMENT_SIZE:020d}").open("r+b") as file:
            file.seek(SEGMENT_SIZE - 400)
            file.write(b"\x01" * 8)
        return ours, theirs, last

    def test_an_equal_last_segment_proves_nothing_about_what_comes_before(self) -> None:
        """Nothing is known of the master but its HA port."""
        self.patch(fork, "PROOF_BYTES", 4 * SEGMENT_SIZE)
        ours, theirs, last = self.differing_before_the_last_segment()
        found = self.find(ours, theirs, knows_end=False)
        self.assertLessEqual(found.offset, last - 400)
        self.assertGreater(found.offset, last - 700)

    def test_it_says_from_where_on_all_was_compared(self) -> None:
        """The master has deleted some segments: what is left of the proof's range is compared."""
        self.patch(fork, "PROOF_BYTES", 4 * SEGMENT_SIZE)
        folder = new_folder(self)
        ours = write(folder / "ours", 100, 9, 1, lambda _: 100)
        theirs = write(folder / "theirs", 100, 0, 2, lambda _: 100)
        last = theirs.segment_bases[-1]
        for deleted_to, proved_from in (
            (0, theirs.max_offset - 4 * SEGMENT_SIZE),
            (last - SEGMENT_SIZE, None),
            (last, None),
        ):
            found = self.find(ours, theirs, knows_end=False, deleted_to=deleted_to)
            self.assertEqual(found.offset, theirs.max_offset)
            self.assertEqual(found.proved_from, deleted_to if proved_from is None else proved_from)

    def test_what_is_doubted_is_compared_whole(self) -> None:
        """A record has another byte that no CRC covers, long before the end, and what follows is equal."""
        for knows_end in (True, False):
            folder = new_folder(self)
            ours = write(folder / "ours", 400, 0, 1, lambda _: 100)
            theirs = write(folder / "theirs", 400, 0, 2, lambda _: 100)
            (size,) = INT32.unpack(ours.get_data(30 * SEGMENT_SIZE, INT32.size) or b"")
            bad = 30 * SEGMENT_SIZE + size + BORN_TIMESTAMP_AT
            with (folder / "ours" / f"{30 * SEGMENT_SIZE:020d}").open("r+b") as file:
                file.seek(bad - 30 * SEGMENT_SIZE)
                file.write(b"\x01")
            self.assertEqual(self.find(ours, theirs, knows_end).offset, ours.max_offset, "it is far from any probe")
            for doubted_from in (0, bad - 1000, bad):
                found = self.find(ours, theirs, knows_end, doubted_from)
                self.assertLessEqual(found.offset, bad)
                self.assertGreater(found.offset, bad - 300)
                self.assertLessEqual(found.proved_from, max(doubted_from, found.offset - fork.PROOF_BYTES))
