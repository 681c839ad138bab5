"""Bad bytes are brought back from another copy of the log, over generated logs and damages."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import Settings
from rmqha.store.errors import StoreInUse
from rmqha.store.examining import LOCK_FILE
from rmqha.store.log import mappedfile
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import LockFile
from rmqha.store.log.recovery import has_unwritten_end
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.offline.storerepair import Mended, RepairError, StoreRepair, feed_from_store
from rmqha.wire.record import Record
from tests.fixtures import new_folder
from tests.store.damages import UNHURRIED, damages, logs, on_disk, sound_pieces
from tests.store.logs import SEGMENT_SIZE, encoded, file_bytes, make_log, sized_record, write_at


def repair(store: Path, other: Path) -> list[Mended]:
    """Repair all there is to repair. Raises RepairError."""
    done: list[Mended] = []
    with StoreRepair(Settings(store_path_root_dir=store)) as opened:
        reader = StoreReader(other)
        try:
            while gaps := opened.find():
                for gap in gaps:
                    if done and gap.start < done[-1].end:
                        continue
                    mend = opened.mend(gap)
                    try:
                        feed_from_store(reader, mend)
                        done.append(opened.place(mend))
                    finally:
                        mend.discard()
        finally:
            reader.close()
    return done


def confirm(store: Path, end: int) -> None:
    NodeState("1f", offsets=Offsets(0, end, end, end, end)).write(store)


class GeneratedRepairTests(SynchronousTestCase):
    @pytest.mark.long
    @UNHURRIED
    @given(st.data())
    def test_a_good_copy_makes_the_log_what_it_was(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        content = data.draw(damages(made))
        before = {start: content[start:end] for start, end, _ in sound_pieces(made, content)}
        with on_disk(made, content) as folder, on_disk(made, made.content) as good:
            confirm(folder.parent, made.end)
            try:
                repair(folder.parent, good.parent)
            except RepairError:  # unseen by any check, a record beside a stretch has rotted as well, on both sides
                assert any(made.content[start : start + len(piece)] != piece for start, piece in before.items())
                return
            after = file_bytes(folder)
            whole = {start: piece for start, piece in before.items() if not has_unwritten_end(memoryview(piece))}
            assert all(after[start : start + len(piece)] == piece for start, piece in whole.items())
            store = MessageStore(Settings(store_path_root_dir=folder.parent))
            assert (store.recovery.end, store.recovery.problem) == (made.end, None)
            # A flipped bit that no check covers stays; where there was a stretch, or a record whose end was never
            # written, the log is the other's.
            different = [at for at in range(made.end) if after[at] != made.content[at]]
            for at in different:
                assert any(start <= at < start + len(piece) for start, piece in before.items()), at
            self.successResultOf(store.close())

    @pytest.mark.long
    @UNHURRIED
    @given(st.data())
    def test_a_copy_that_is_damaged_too_changes_nothing_or_mends(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        content, other_content = data.draw(damages(made)), data.draw(damages(made))
        sound = sound_pieces(made, content)
        with on_disk(made, content) as folder, on_disk(made, other_content) as other:
            with contextlib.suppress(RepairError):
                repair(folder.parent, other.parent)
            after = file_bytes(folder)
            for start, end, _ in sound:
                piece = content[start:end]
                assert after[start:end] == piece or has_unwritten_end(memoryview(piece)), (start, end)


class RepairTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = new_folder(self)
        self.store, self.other = self.root / "store", self.root / "other"
        self.offsets = make_log(self.other / "commitlog", *[500] * 40)
        shutil.copytree(self.other, self.store)
        self.good = file_bytes(self.store / "commitlog")

    def spoil(self, offset: int, data: bytes = b"!!!!") -> None:
        write_at(self.store / "commitlog", offset, data)

    def log(self) -> bytes:
        return file_bytes(self.store / "commitlog")

    def kept(self) -> dict[str, bytes]:
        folder = self.store / "rmqha" / "cut"
        return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}

    def test_nothing_to_do(self) -> None:
        self.assertEqual(repair(self.store, self.other), [])
        self.assertEqual(self.log(), self.good)

    def test_each_stretch_is_fetched_and_its_bad_bytes_are_kept(self) -> None:
        for number in (3, 4, 20, 39):
            self.spoil(self.offsets[number] + 100)
        confirm(self.store, self.offsets[39] + 500)
        bad = self.log()
        done = repair(self.store, self.other)
        ranges = [(self.offsets[3], self.offsets[5]), (self.offsets[20], self.offsets[21])]
        ranges.append((self.offsets[39], self.offsets[39] + 500))
        self.assertEqual([(each.start, each.end) for each in done], ranges)
        self.assertEqual([each.messages for each in done], [2, 1, 1])
        self.assertEqual(self.log(), self.good)
        self.assertEqual(self.kept(), {f"{start:020d}.replaced": bad[start:end] for start, end in ranges})

    def test_the_record_before_a_stretch_comes_back_too_if_its_end_was_never_written(self) -> None:
        """Its properties are in the lost sector. No CRC covers them, so that the record still seems to be sound."""
        for number, lost_from in ((0, 1), (3, 1), (20, 3), (33, 5)):
            start = self.offsets[number + 1] - lost_from
            self.spoil(start, bytes(min(200, SEGMENT_SIZE - start % SEGMENT_SIZE)))
        done = repair(self.store, self.other)
        self.assertEqual(self.log(), self.good)
        self.assertEqual([each.start for each in done], [self.offsets[number] for number in (0, 3, 20, 33)])
        self.assertEqual([each.messages for each in done], [2, 2, 2, 2])
        self.assertEqual([each.differs_at for each in done], [None] * 4)

    def test_a_zeroed_segment_comes_back_and_leaves_no_file(self) -> None:
        (self.store / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()
        write_at(self.store / "commitlog", SEGMENT_SIZE, b"")
        (mended,) = repair(self.store, self.other)
        self.assertEqual((mended.start, mended.kept_in), (SEGMENT_SIZE, None))
        self.assertEqual((self.log(), self.kept()), (self.good, {}))

    def test_the_end_that_was_confirmed_comes_back_and_all_that_follows_it(self) -> None:
        """A SYNC_MASTER that lost its power before it had flushed what its slave has."""
        end = self.offsets[39] + 500
        for number, confirmed in ((30, self.offsets[35]), (39, end)):
            self.spoil(self.offsets[number], bytes(SEGMENT_SIZE - self.offsets[number] % SEGMENT_SIZE))
            for path in sorted((self.store / "commitlog").iterdir())[self.offsets[number] // SEGMENT_SIZE + 1 :]:
                path.unlink()
            confirm(self.store, confirmed)
            (mended,) = repair(self.store, self.other)
            self.assertEqual((mended.start, mended.end), (self.offsets[number], end))
            self.assertEqual(self.log(), self.good)

    def test_a_torn_end_that_nobody_confirmed_is_left_to_the_start(self) -> None:
        self.spoil(self.offsets[39] + 100)
        self.assertEqual(repair(self.store, self.other), [])

    def refused(self, words: str) -> None:
        before = self.log()
        error = self.assertRaises(RepairError, repair, self.store, self.other)
        self.assertRegex(str(error), words)
        self.assertEqual((self.log(), self.kept()), (before, {}))

    def test_another_log_is_refused(self) -> None:
        """It is as sound as ours, and its records fit; but beside the gap it has other messages."""
        self.spoil(self.offsets[20] + 100)
        for numbers in ((19, 21), (21, 22), (*range(21, 40),), (*range(20), 21)):
            self.other_with(*numbers)
            self.refused("it is another log: its byte at")

    def other_with(self, *numbers: int) -> None:
        """A copy in which these messages are others, as sound as ours."""
        shutil.rmtree(self.other)
        make_log(self.other / "commitlog", *[500] * 40)
        for number in numbers:
            at = self.offsets[number]
            write_at(self.other / "commitlog", at, encoded(replace(sized_record(500, number), queue_id=7), at))

    def test_a_neighbour_that_differs_where_no_check_looks_is_left_as_it_is_and_told(self) -> None:
        """Whatever has spoilt the stretch may have reached into a field that no CRC covers; here queueId."""
        for number in (19, 21):
            self.other_with(number)
            self.spoil(self.offsets[20] + 100)
            (mended,) = repair(self.store, self.other)
            self.assertEqual(mended.differs_at, self.offsets[number] + 15)
            self.assertEqual(self.log(), self.good)

    def test_a_copy_without_the_bytes_is_refused(self) -> None:
        self.spoil(self.offsets[20] + 100)
        write_at(self.other / "commitlog", self.offsets[20] + 300, b"!")
        self.refused("its record there is bad too: the body's CRC")
        shutil.rmtree(self.other)
        make_log(self.other / "commitlog", *[500] * 10)
        self.refused("the other log has nothing for")

    def test_a_copy_that_ends_before_what_was_confirmed_is_refused(self) -> None:
        end = self.offsets[39] + 500
        self.spoil(self.offsets[35], b"!" * 400)
        shutil.rmtree(self.other)
        make_log(self.other / "commitlog", *[500] * 38)
        confirm(self.store, end)
        write_at(self.store / "commitlog", self.offsets[36], bytes(end - self.offsets[36]))
        self.refused("the other log has nothing for")

    def test_a_forged_record_in_a_rotten_body_leads_nowhere(self) -> None:
        """The search takes it for sound; but the other log's records go on past it."""
        at = 0
        inner_at = at + 200
        forged = encoded(sized_record(150, 7), inner_at)
        body = bytes(inner_at - at - 88) + forged + bytes(300)
        for folder in (self.store, self.other):
            shutil.rmtree(folder)
            log = CommitLog(folder / "commitlog", SEGMENT_SIZE)
            log.append(Record("T", body, "k\x01v", store_timestamp=1))
            log.append(sized_record(500, 1))
            log.close()
        good = self.log()
        self.spoil(100)
        repair(self.store, self.other)
        self.assertEqual(self.log(), good)

    def test_a_store_in_use_is_refused(self) -> None:
        lock = LockFile(self.store / LOCK_FILE)
        self.addCleanup(lock.release)
        for changes in (True, False):
            self.assertRaises(StoreInUse, StoreRepair, Settings(store_path_root_dir=self.store), changes)

    @pytest.mark.long
    def test_a_repair_that_dies_anywhere_can_be_run_again(self) -> None:
        """Each write and each flush may be the last thing that it does."""
        spoilt = self.root / "spoilt"
        for number in (5, 6, 7, 8, 9, 20):
            self.spoil(self.offsets[number] + 100)
        shutil.copytree(self.store, spoilt)
        for step in range(100):
            shutil.rmtree(self.store)
            shutil.copytree(spoilt, self.store)
            try:
                repair_until(self, step, lambda: repair(self.store, self.other))
            except Died:
                repair(self.store, self.other)
                self.assertEqual(self.log(), self.good, step)
            else:
                break
        self.assertGreater(step, 5)
        self.assertEqual(self.log(), self.good)


class Died(BaseException):
    """The process is gone."""


def repair_until(test: SynchronousTestCase, step: int, run: Callable[[], object]) -> None:
    """Run until the system call of this number on the log or a kept file, which does not happen any more."""
    left = [step]
    patches = []

    def watch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: object) -> object:
            if not left[0]:
                raise Died
            left[0] -= 1
            return real(*arguments)

        patches.append(test.patch(owner, name, call))

    watch(mappedfile.MappedFile, "write")
    watch(mappedfile.MappedFile, "sync")
    watch(mappedfile.Disk, "write_new")
    watch(mappedfile.Disk, "sync_folder")
    try:
        run()
    finally:
        for patch in patches:
            patch.restore()
