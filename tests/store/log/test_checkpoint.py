"""The file ``checkpoint`` (spec/store.md 5.5)."""

import os

from hypothesis import given, settings
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log.checkpoint import Checkpoint
from tests import examples, fixtures, strategies
from tests.fixtures import new_folder


class CheckpointTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = new_folder(self) / "checkpoint"

    def test_three_times_and_zeros_up_to_a_page(self) -> None:
        Checkpoint(0x0102030405060708, 2, 3).write(self.path)
        start = bytes.fromhex("0102030405060708 0000000000000002 0000000000000003")
        self.assertEqual(self.path.read_bytes(), start + bytes(4096 - 24))

    def test_java_s_are_read(self) -> None:
        for name in fixtures.STORES:
            known = fixtures.facts()["variants"][name]["checkpoint"]
            found = Checkpoint.read(fixtures.unpacked(name) / "checkpoint")
            times = (found.physic_msg_timestamp, found.logics_msg_timestamp, found.index_msg_timestamp)
            self.assertEqual(times, tuple(known[f"{kind}MsgTimestamp"] for kind in ("physic", "logics", "index")), name)

    @settings(deadline=None, max_examples=examples(40))
    @given(strategies.INT64, strategies.INT64, strategies.INT64)
    def test_what_is_written_is_read(self, physic: int, logics: int, index: int) -> None:
        checkpoint = Checkpoint(physic, logics, index)
        checkpoint.write(self.path)
        self.assertEqual(Checkpoint.read(self.path), checkpoint)

    def test_none_or_an_unfinished_one_counts_as_zeros(self) -> None:
        """Which only makes recovery slower."""
        self.assertEqual(Checkpoint.read(self.path), Checkpoint(0, 0, 0))
        self.path.write_bytes(b"")
        self.assertEqual(Checkpoint.read(self.path), Checkpoint(0, 0, 0))
        self.path.write_bytes(bytes(7) + b"\x09" + bytes(5))
        self.assertEqual(Checkpoint.read(self.path), Checkpoint(9, 0, 0))

    def test_what_newer_brokers_keep_behind_stays(self) -> None:
        self.path.write_bytes(bytes(24) + b"5.x fields".ljust(4072, b"\0"))
        Checkpoint(1, 2, 3).write(self.path)
        self.assertEqual(self.path.read_bytes()[24:], b"5.x fields".ljust(4072, b"\0"))

    def test_it_is_on_the_disk_when_it_returns(self) -> None:
        synced: list[bytes] = []
        self.patch(os, "fdatasync", lambda fd: synced.append(os.pread(fd, 8, 0)))
        Checkpoint(7).write(self.path)
        self.assertEqual(synced, [bytes(7) + b"\x07"])

    def test_what_recovery_may_rely_on_is_three_seconds_older(self) -> None:
        """Both the log and the queues must be on disk up to there; the index is looked after by itself."""
        for stored, relied_on in ((10_000, 7_000), (3_000, 0), (2_999, 0), (0, 0)):
            self.assertEqual(Checkpoint(stored, stored + 1, 1).recovery_timestamp, relied_on)
            self.assertEqual(Checkpoint(stored + 1, stored, 1).recovery_timestamp, relied_on)
