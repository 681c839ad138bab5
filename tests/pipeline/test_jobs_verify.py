"""The jobs ``verify`` and ``compare``: what is planted is found, and nothing else."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.compare import compare
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.verify import verify
from rmqha.store.log.lockfile import LockFile
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.findings import Comparison, Verification, difference
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Blank
from tests.fixtures import facts, max_offset, new_folder, unpacked
from tests.pipeline.lake import SEGMENT_SIZE, make_store, options_of, overwrite


def verified(store: Path, **texts: object) -> Verification:
    return verify(options_of(store, **texts), LocalEngine())


class VerifyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = make_store(new_folder(self) / "store")
        self.sound = verified(self.store)

    def log_from(self, offset: int) -> bytes:
        base = offset - offset % SEGMENT_SIZE
        return (self.store / "commitlog" / f"{base:020d}").read_bytes()[offset - base :]

    def record_starts(self) -> list[int]:
        reader = StoreReader(self.store)
        self.addCleanup(reader.close)
        return [offset for offset, record in reader.records(0, None) if not isinstance(record, Blank)]

    def test_a_java_store_is_sound_to_its_end(self) -> None:
        found = verified(unpacked("master-crash"), splitBytes="300k")
        self.assertEqual(
            (found.min_offset, found.end, found.messages, found.stretch_count),
            (0, max_offset("master-crash"), facts()["records"], 0),
        )

    @pytest.mark.long
    def test_every_message_is_counted_whatever_the_splits(self) -> None:
        starts = self.record_starts()
        for split_bytes in (1, 700, 5000, 1 << 20):
            found = verified(self.store, splitBytes=split_bytes)
            self.assertEqual((found.messages, found.stretches), (len(starts), ()), split_bytes)

    def test_a_changed_body_is_found_at_its_record_and_the_rest_is_proved(self) -> None:
        at = self.record_starts()[40]
        overwrite(self.store, at + 200, b"\xff\x00\xff")
        found = verified(self.store)
        self.assertEqual([bad.start for bad in found.stretches], [at])
        self.assertEqual(found.messages, self.sound.messages - 1)
        self.assertIn("BODYCRC", found.stretches[0].problem)

    def test_each_of_several_wounds_is_found(self) -> None:
        starts = self.record_starts()
        wounds = {starts[3]: 0, starts[50]: 4, starts[90]: 28}  # TOTALSIZE, MAGICCODE, PHYSICALOFFSET
        for start, place in wounds.items():
            overwrite(self.store, start + place, b"\x7f\x7f")
        found = verified(self.store)
        self.assertEqual([bad.start for bad in found.stretches], list(wounds))
        self.assertEqual([bad.end for bad in found.stretches], [starts[starts.index(start) + 1] for start in wounds])
        self.assertEqual(found.messages, self.sound.messages - len(wounds))

    def test_a_wound_in_the_last_record_is_no_end_of_the_log(self) -> None:
        last = self.record_starts()[-1]
        overwrite(self.store, last + 150, b"\xff\x00\xff")
        found = verified(self.store)
        self.assertEqual([bad.start for bad in found.stretches], [last])

    def test_what_lies_behind_the_end_of_a_store_that_nobody_runs_is_a_problem(self) -> None:
        overwrite(self.store, self.sound.end + 100, b"stale")
        found = verified(self.store)
        self.assertEqual([bad.start for bad in found.stretches], [self.sound.end])

    def test_what_a_running_node_has_not_finished_is_no_problem(self) -> None:
        overwrite(self.store, self.sound.end, self.log_from(0)[:50])
        lock = LockFile(self.store / "lock")
        self.addCleanup(lock.release)
        self.assertEqual(verified(self.store), replace(self.sound, live=True))

    def test_a_node_of_ours_says_how_far_to_judge(self) -> None:
        starts = self.record_starts()
        overwrite(self.store, starts[-1] + 4, b"\xff")
        NodeState("id", offsets=Offsets(written=self.sound.end, flushed=starts[-1], confirmed=starts[-5])).write(
            self.store
        )
        self.assertEqual(verified(self.store).stretches[0].start, starts[-1])  # nobody runs it: all is judged
        offsets = Offsets(written=self.sound.end, verified=starts[-5], flushed=starts[-1])
        NodeState("id", offsets=offsets).write(self.store)
        lock = LockFile(self.store / "lock")
        self.addCleanup(lock.release)
        self.assertEqual((verified(self.store).end, verified(self.store).stretches), (starts[-5], ()))


class CompareTests(SynchronousTestCase):
    def setUp(self) -> None:
        folder = new_folder(self)
        self.store = make_store(folder / "one")
        self.other = Path(shutil.copytree(self.store, folder / "other"))

    def compared(self, other: Path | None = None) -> Comparison:
        return compare(options_of(self.store, replica=other or self.other), LocalEngine())

    def test_a_copy_is_identical(self) -> None:
        found = self.compared()
        self.assertEqual((found.relation, found.start, found.other_end), ("identical", 0, found.end))

    def test_a_java_pair_is_identical(self) -> None:
        options = options_of(unpacked("master-crash"), replica=unpacked("slave"), splitBytes="1m")
        self.assertEqual(compare(options, LocalEngine()).relation, "identical")

    def test_every_byte_that_differs_is_counted_and_the_first_one_named(self) -> None:
        for offset in (40_000, 20_001, 20_003):
            byte = (self.other / "commitlog" / f"{offset - offset % SEGMENT_SIZE:020d}").read_bytes()[
                offset % SEGMENT_SIZE
            ]
            overwrite(self.other, offset, bytes([byte ^ 0xFF]))
        NodeState("id", offsets=Offsets(confirmed=self.compared(self.store).end)).write(self.other)
        found = self.compared()
        self.assertEqual((found.differs_at, found.different_bytes), (20_001, 3))
        self.assertEqual(found.relation, "different")

    def test_a_shorter_log_is_equal_as_far_as_it_goes(self) -> None:
        shorter = make_store(new_folder(self) / "shorter", log_bytes=30_000)
        found = self.compared(shorter)
        self.assertEqual((found.differs_at, found.relation), (None, "extension"))
        self.assertGreater(found.end, found.other_end)

    def test_segments_of_another_size_are_reported(self) -> None:
        found = self.compared(unpacked("slave"))
        self.assertEqual((found.differs_at, found.record_at), (3, 0))  # the last byte of the first record's size
        self.assertRegex(str(difference(found, exact=False)), "their segments have 16384 and 262144 bytes")

    def test_the_other_store_must_be_named(self) -> None:
        with self.assertRaisesRegex(OptionError, "replica"):
            compare(options_of(self.store), LocalEngine())
