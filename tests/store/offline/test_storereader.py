"""A store read from outside, while a node may be writing it."""

from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.errors import StoreError
from rmqha.store.examining import LOCK_FILE
from rmqha.store.log import stretches as stretches_module
from rmqha.store.log.lockfile import LockFile
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline import comparing
from rmqha.store.offline.findings import Comparison, Verification
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Blank, Record
from tests.fixtures import new_folder, open_files
from tests.store.logs import SEGMENT_SIZE, file_bytes, make_log, write_at

SIZES = (500, 1500, 1000, 900, 4000, 128, 2000, 2300, 3000)
"""Five segments of 4096 bytes; blanks end the first four."""


class ReaderTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = new_folder(self) / "store"
        self.offsets = make_log(self.store / "commitlog", *SIZES)
        self.end = self.offsets[-1] + SIZES[-1]
        self.reached: list[int] = []

    def reader(self, store: Path | None = None) -> StoreReader:
        reader = StoreReader(self.store if store is None else store)
        self.addCleanup(reader.close)
        return reader

    def lock(self) -> None:
        """Somebody has the store open."""
        self.addCleanup(LockFile(self.store / LOCK_FILE).release)

    def node_says(self, verified: int, written: int | None = None) -> None:
        offsets = Offsets(0, verified if written is None else written, verified, 0, 0)
        NodeState("1f" * 16, role="SLAVE", state="CATCHING_UP", offsets=offsets).write(self.store)

    def messages(self, reader: StoreReader, start: int = 0, end: int | None = None) -> list[int]:
        return [at for at, record in reader.records(start, end) if isinstance(record, Record)]

    def verify(self, reader: StoreReader | None = None) -> Verification:
        return (reader or self.reader()).verify(self.reached.append)


class OpeningTests(ReaderTestCase):
    def test_the_store_or_its_log_will_do(self) -> None:
        for path in (self.store, self.store / "commitlog"):
            with self.subTest(path.name):
                self.assertEqual(self.verify(self.reader(path)), Verification(0, self.end, len(SIZES), None, False))

    def test_what_is_no_store_is_refused(self) -> None:
        folder = new_folder(self)
        self.assertRaises(StoreError, StoreReader, folder / "none")
        (folder / "file").write_text("")
        self.assertRaises(StoreError, StoreReader, folder)
        self.assertRaises(StoreError, StoreReader, folder / "file")

    def test_a_store_without_segments_is_empty(self) -> None:
        store = new_folder(self) / "store"
        for path in (store, store / "commitlog", store / LOCK_FILE):
            path.touch() if path.name == LOCK_FILE else path.mkdir()
            reader = self.reader(store)
            self.assertEqual(self.verify(reader), Verification(0, 0, 0, None, False))
            self.assertEqual(list(reader.records(0, None)), [])

    def test_nothing_is_changed_and_no_file_stays_open(self) -> None:
        (self.store / "commitlog" / f"{5 * SEGMENT_SIZE:020d}").touch()
        before = {path: path.stat() for path in self.store.rglob("*")}
        reader = self.reader()
        self.verify(reader)
        list(reader.records(0, None))
        reader.close()
        self.assertEqual(
            {path: path.stat().st_mtime_ns for path in self.store.rglob("*")},
            {path: stat.st_mtime_ns for path, stat in before.items()},
        )
        self.assertEqual(open_files(self.store), 0)

    def test_a_store_can_be_read_by_whoever_may_not_write_it(self) -> None:
        for path in self.store.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        self.assertIsNone(self.verify().problem)


class RunningNodeTests(ReaderTestCase):
    def test_what_the_node_has_not_proved_yet_is_not_judged(self) -> None:
        proved = self.offsets[4]
        self.lock()
        self.node_says(proved, written=self.end)
        write_at(self.store / "commitlog", self.offsets[6], b"\xff" * 300)
        self.assertEqual(self.verify(), Verification(0, proved, 4, None, True))
        self.assertEqual(self.messages(self.reader()), self.offsets[:4])

    def test_what_it_has_proved_is_judged(self) -> None:
        self.lock()
        self.node_says(self.end)
        write_at(self.store / "commitlog", self.offsets[2], b"\xff" * 300)
        found = self.verify()
        self.assertEqual((found.stretches[0].start, found.live), (self.offsets[2], True))
        self.assertIn("magic", str(found.problem))
        self.assertRaises(StoreError, list, self.reader().records(0, None))

    def test_a_state_ahead_of_the_files_does_not_matter(self) -> None:
        self.lock()
        self.node_says(10**9)
        self.assertEqual(self.verify(), Verification(0, self.end, len(SIZES), None, True))

    def test_the_state_of_a_node_that_is_gone_limits_nothing(self) -> None:
        self.node_says(self.offsets[4])
        self.assertEqual(self.verify(), Verification(0, self.end, len(SIZES), None, False))

    def test_another_brokers_unfinished_record_is_no_problem(self) -> None:
        self.lock()
        write_at(self.store / "commitlog", self.end, b"\0\0\1\0\xda")
        self.assertEqual(self.verify(), Verification(0, self.end, len(SIZES), None, True))
        self.assertEqual(self.messages(self.reader()), self.offsets)


class ProvingTests(ReaderTestCase):
    def test_a_record_that_is_not_whole_is_a_problem_of_a_store_at_rest(self) -> None:
        write_at(self.store / "commitlog", self.offsets[-1] + 1500, bytes(1500))
        found = self.verify()
        self.assertEqual((found.end, found.messages), (self.offsets[-1], len(SIZES) - 1))
        self.assertIsNotNone(found.problem)

    def test_bytes_behind_the_end_are_a_problem_and_zeros_are_none(self) -> None:
        self.assertIsNone(self.verify().problem)
        write_at(self.store / "commitlog", 5 * SEGMENT_SIZE - 1, b"\1")
        self.assertEqual((self.verify().end, self.verify().problem is None), (self.end, False))

    def test_a_segment_of_zeros_before_others_is_a_problem(self) -> None:
        write_at(self.store / "commitlog", SEGMENT_SIZE, bytes(SEGMENT_SIZE))
        found = self.verify()
        (bad,) = found.stretches
        self.assertEqual((bad.start, found.problem is None), (SEGMENT_SIZE, False))
        self.assertEqual(found.end, self.end)

    def test_progress_ends_at_the_end(self) -> None:
        self.verify()
        self.assertEqual(self.reached, sorted(self.reached))
        self.assertEqual(self.reached[-1], self.end)


class WindowTests(ReaderTestCase):
    def patch_windows(self, window: int) -> None:
        for name in ("FIRST_WINDOW_BYTES", "WINDOW_BYTES"):
            self.patch(stretches_module, name, window)

    @pytest.mark.long
    def test_any_window_gives_the_same_answer(self) -> None:
        """Windows end in a record, at its last byte, in a blank, and before records longer than they are."""
        wanted = self.verify()
        for window in (*range(1, 40), 127, 128, 129, 196, 500, 501, 4000, 4095, 4096, 4097, 10**6):
            with self.subTest(window):
                self.patch_windows(window)
                self.reached.clear()
                self.assertEqual(self.verify(), wanted)
                self.assertEqual(self.reached[-1], self.end)

    @pytest.mark.long
    def test_any_window_finds_the_same_problem(self) -> None:
        for number in (0, 4, 5, len(SIZES) - 1):
            self.setUp()
            at = self.offsets[number]
            write_at(self.store / "commitlog", at + 28, b"\1")  # in its own offset
            for window in (1, 100, 500, 4096, 10**6):
                with self.subTest((number, window)):
                    self.patch_windows(window)
                    found = self.verify()
                    self.assertEqual((found.stretches[0].start, found.messages), (at, len(SIZES) - 1))
                    self.assertIn("it says its offset is", str(found.problem))

    def test_a_torn_record_longer_than_the_window(self) -> None:
        at = self.offsets[4]
        for path in sorted((self.store / "commitlog").iterdir())[2:]:
            path.unlink()
        write_at(self.store / "commitlog", at + 3000, bytes(SEGMENT_SIZE - 3000))
        for window in (100, 3000, 4096):
            with self.subTest(window):
                self.patch_windows(window)
                self.assertEqual((self.verify().end, self.verify().problem is None), (at, False))

    def test_comparing_by_any_window(self) -> None:
        other = new_folder(self) / "other"
        make_log(other / "commitlog", *SIZES)
        differs_at = self.offsets[7] + 77
        write_at(other / "commitlog", differs_at, b"!")
        for window in (1, 77, 500, 4096, 10**6):
            with self.subTest(window):
                self.patch(comparing, "WINDOW_BYTES", window)
                one, two = self.reader(), self.reader(other)
                found = one.compare(self.end, two, self.end, self.reached.append)
                self.assertEqual(found, Comparison(0, self.end, self.end, differs_at, self.offsets[7], 1))
                found = one.compare(differs_at, two, self.end, self.reached.append)
                self.assertEqual(found, Comparison(0, differs_at, self.end, None))
                self.assertEqual(self.reached[-1], differs_at)


class ComparingTests(ReaderTestCase):
    def test_stores_with_segments_of_different_sizes_are_compared_by_offset(self) -> None:
        other = new_folder(self) / "other"
        offsets = make_log(other / "commitlog", 500, 1500, segment_size=8192)
        found = self.reader().compare(self.end, self.reader(other), offsets[1] + 1500, self.reached.append)
        self.assertEqual(found, Comparison(0, self.end, 2000, None, segment_sizes=(SEGMENT_SIZE, 8192)))

    def test_a_store_that_ends_before_it_was_said_to_differs_there(self) -> None:
        other = new_folder(self) / "other"
        make_log(other / "commitlog", *SIZES[:2])
        found = self.reader().compare(self.end, self.reader(other), self.end, self.reached.append)
        self.assertEqual(found.differs_at, 2002)  # the other has zeros, as the first bytes of a size are


class RecordsTests(ReaderTestCase):
    def test_records_and_blanks_with_their_offsets(self) -> None:
        found = list(self.reader().records(0, None))
        blanks = [(at, record.size) for at, record in found if isinstance(record, Blank)]
        self.assertEqual([at for at, record in found if isinstance(record, Record)], self.offsets)
        self.assertEqual(blanks, [(3900, 196), (8096, 96), (10320, 1968), (14588, 1796)])

    def test_every_start_and_end(self) -> None:
        reader = self.reader()
        edges = [edge for at in self.offsets for edge in (at - 1, at, at + 1) if edge >= 0]
        for start in edges:
            for end in edges:
                wanted = [at for at in self.offsets if start <= at < end]
                self.assertEqual(self.messages(reader, start, end), wanted, f"{start=} {end=}")

    def test_a_log_that_does_not_begin_at_0(self) -> None:
        for number in range(2):
            (self.store / "commitlog" / f"{number * SEGMENT_SIZE:020d}").unlink()
        reader = self.reader()
        self.assertEqual(reader.log.min_offset, 2 * SEGMENT_SIZE)
        self.assertEqual(self.messages(reader), self.offsets[5:])
        self.assertEqual(self.verify(reader), Verification(2 * SEGMENT_SIZE, self.end, len(SIZES) - 5, None, False))

    def test_a_record_damaged_behind_the_end_is_not_looked_at(self) -> None:
        write_at(self.store / "commitlog", self.offsets[6], b"\xff" * 300)
        reader = self.reader()
        self.assertEqual(self.messages(reader, end=self.offsets[6]), self.offsets[:6])
        self.assertRaises(StoreError, self.messages, reader, 0, self.offsets[6] + 1)

    def test_bytes_of_a_dead_process_stay_as_they_are(self) -> None:
        before = file_bytes(self.store / "commitlog")
        list(self.reader().records(0, None))
        self.assertEqual(file_bytes(self.store / "commitlog"), before)
