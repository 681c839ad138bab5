"""The witness's journal: what a crash leaves at any byte, what damage is, and that it stays short."""

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import Delete, KeyValue, Put
from rmqha.coordination.state import End, Grant, KeysAndLeases, Operation, Write
from rmqha.coordination.witness.counted import CountedFile
from rmqha.coordination.witness.journal import (
    DiskFull,
    Journal,
    JournalError,
    JournalInUse,
    encode_entry,
    entry_at,
)
from tests.fixtures import new_folder

COMMITS: list[list[Operation]] = [
    [Grant(11, 15), Write((Put("/leader", b"a", 11),))],
    [Write((Put("/sync", bytes(range(256))), Put("/epoch", b"1")))],
    [Grant(12, 6), End(11)],
    [Write((Delete("/sync"), Put("/epoch", b"2"))), Write((Put("/leader", b"b", 12),))],
]
Content = tuple[int, dict[str, KeyValue], dict[int, int]]


def content(state: KeysAndLeases) -> Content:
    return state.revision, state.keys, state.leases


def write(journal: Journal, commits: list[list[Operation]]) -> list[Content]:
    """Append the commits. Returns the state after each, that before all included."""
    state = journal.state
    found = [content(state.copy())]
    for operations in commits:
        for operation in operations:
            state.apply(operation, 0.0)
        journal.append(operations, state.revision)
        found.append(content(state.copy()))
    return found


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("journal-*")
    return path


class EntryTests(SynchronousTestCase):
    def test_an_entry_with_a_bit_that_changed_is_none(self) -> None:
        entry = encode_entry(7, b"content")
        self.assertEqual(entry_at(entry, 0), (7, b"content"))
        for place in range(len(entry)):
            rotten = bytearray(entry)
            rotten[place] ^= 1
            self.assertIsNone(entry_at(bytes(rotten), 0), place)


class JournalTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self) / "witness"
        self.counted = self.folder.with_name("witness.answered")

    def open(self, **options: Any) -> Journal:
        journal = Journal(self.folder, **options)
        self.addCleanup(journal.close)
        return journal

    def test_a_new_one_is_empty_and_has_an_id(self) -> None:
        journal = self.open()
        self.assertTrue(journal.is_new)
        self.assertEqual(content(journal.state), (1, {}, {}))
        other = Journal(new_folder(self))
        self.addCleanup(other.close)
        self.assertNotEqual(journal.cluster_id, other.cluster_id)

    def test_it_has_after_a_start_what_it_had_before(self) -> None:
        journal = self.open()
        states = write(journal, COMMITS)
        cluster_id = journal.cluster_id
        for _ in range(2):
            journal.close()
            journal = self.open()
            self.assertEqual(content(journal.state), states[-1])
            self.assertEqual((journal.cluster_id, journal.is_new, journal.cut), (cluster_id, False, None))
        self.assertEqual(states[-1][1]["/leader"].create_revision, 6)

    def test_two_processes_do_not_share_a_folder(self) -> None:
        self.open()
        with self.assertRaisesRegex(JournalInUse, "in use by another process"):
            Journal(self.folder)

    @pytest.mark.long
    def test_an_entry_that_a_crash_left_incomplete_is_kept_aside_and_cut(self) -> None:
        journal = self.open()
        states = write(journal, COMMITS[:-1])
        whole = file_of(self.folder).stat().st_size
        answered = self.counted.read_bytes()
        write(journal, COMMITS[-1:])
        journal.close()
        data = file_of(self.folder).read_bytes()
        for length in range(whole, len(data)):
            for tail in (b"", bytes(len(data) - length)):  # the file's size may be there before its bytes
                file_of(self.folder).write_bytes(data[:length] + tail)
                torn = data[whole:length] + tail
                self.counted.write_bytes(answered)
                found = Journal(self.folder)
                try:
                    if torn == data[whole:]:  # only zeros are missing
                        continue
                    self.assertEqual((content(found.state), found.renewed), (states[-1], None))
                    if torn:
                        assert found.cut is not None
                        self.assertEqual((found.cut.offset, found.cut.kept.read_bytes()), (whole, torn))
                        found.cut.kept.unlink()
                    else:
                        self.assertIsNone(found.cut)
                    self.assertEqual(file_of(self.folder).stat().st_size, whole)
                finally:
                    found.close()

    def test_it_goes_on_after_a_cut(self) -> None:
        journal = self.open()
        write(journal, COMMITS[:1])
        journal.close()
        with file_of(self.folder).open("ab") as file:
            file.write(b"\xf7RW\x01 torn")
        journal = self.open()
        states = write(journal, COMMITS[1:])
        journal.close()
        self.assertEqual(content(self.open().state), states[-1])

    @pytest.mark.long
    def test_damage_before_sound_entries_is_not_cut(self) -> None:
        journal = self.open()
        write(journal, COMMITS)
        journal.close()
        path = file_of(self.folder)
        data = path.read_bytes()
        last = data.rindex(b"\xf7RW\x01")
        for offset in range(last):
            damaged = bytearray(data)
            damaged[offset] ^= 0x10
            path.write_bytes(damaged)
            with self.assertRaisesRegex(
                JournalError, r"is damaged at byte [0-9]+\. Nothing .* nodes running\. Put back"
            ):
                Journal(self.folder)
            self.assertEqual(path.read_bytes(), bytes(damaged))
        path.write_bytes(data)
        self.assertEqual(self.open().state.keys["/epoch"].value, b"2")

    def test_a_missing_entry_is_damage(self) -> None:
        journal = self.open()
        ends = []
        for commit in COMMITS:
            ends.append(file_of(self.folder).stat().st_size)
            write(journal, [commit])
        journal.close()
        path = file_of(self.folder)
        data = path.read_bytes()
        path.write_bytes(data[: ends[1]] + data[ends[2] :])
        with self.assertRaisesRegex(JournalError, f"damaged at byte {ends[1]}"):
            Journal(self.folder)

    def test_a_journal_that_is_gone_does_not_become_a_new_cluster_by_itself(self) -> None:
        journal = self.open()
        journal.close()
        file_of(self.folder).unlink()
        with self.assertRaisesRegex(JournalError, f"of the cluster {journal.cluster_id:x}, and has none now.*delete"):
            Journal(self.folder)
        (self.folder / "lock").unlink()
        self.assertNotEqual(self.open().cluster_id, journal.cluster_id)

    def renewed(self, cluster_id: int) -> str | None:
        """Why it has another id after a start; None if it has this one. Once it has told, it tells nothing more."""
        journal = Journal(self.folder)
        try:
            self.assertEqual(journal.renewed is None, journal.cluster_id == cluster_id)
            found, renewed = journal.renewed, journal.cluster_id
        finally:
            journal.close()
        again = Journal(self.folder)
        again.close()
        self.assertEqual((again.cluster_id, again.renewed), (renewed, None))
        return found

    @pytest.mark.long
    def test_an_answered_entry_that_is_cut_off_or_has_rotted_makes_another_cluster(self) -> None:
        journal = self.open()
        ends = []
        for commit in COMMITS:
            ends.append(file_of(self.folder).stat().st_size)
            write(journal, [commit])
        journal.close()
        kept = {path: path.read_bytes() for path in (file_of(self.folder), self.counted, self.folder / "lock")}
        path, data = file_of(self.folder), file_of(self.folder).read_bytes()
        damaged = [data[:end] for end in ends] + [data[: ends[-1] + 5]]
        for place in range(ends[-1], len(data)):
            rotten = bytearray(data)
            rotten[place] ^= 0x10
            damaged += [bytes(rotten)]
        for content in damaged:
            for other in self.folder.glob("journal-*"):
                other.unlink()
            for each, sound in kept.items():
                each.write_bytes(sound)
            path.write_bytes(content)
            self.assertRegex(str(self.renewed(journal.cluster_id)), "^entry 4 was answered, and its last one is [0-3]$")

    def test_a_folder_that_was_put_back_is_another_cluster_with_its_keys(self) -> None:
        journal = self.open()
        states = write(journal, COMMITS[:2])
        journal.close()
        copy = new_folder(self) / "copy"
        shutil.copytree(self.folder, copy)
        journal = self.open()
        write(journal, COMMITS[2:])
        journal.close()
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)
        self.assertIsNotNone(self.renewed(journal.cluster_id))
        self.assertEqual(content(self.open().state), states[-1])

    def test_a_folder_of_an_earlier_cluster_is_another_cluster(self) -> None:
        first = self.open()
        write(first, COMMITS)
        first.close()
        aside = self.folder.rename(self.folder.with_name("aside"))
        second = self.open()
        self.assertTrue(second.is_new)
        second.close()
        shutil.rmtree(self.folder)
        aside.rename(self.folder)
        self.assertEqual(self.renewed(first.cluster_id), "the last answers were of another cluster")

    def test_a_number_that_is_gone_or_damaged_makes_another_cluster(self) -> None:
        for damage in (
            self.counted.unlink,
            lambda: self.counted.write_bytes(b"x"),
            lambda: os.truncate(self.counted, 9),
        ):
            journal = self.open()
            write(journal, COMMITS[:1])
            journal.close()
            damage()
            self.assertRegex(str(self.renewed(journal.cluster_id)), "answered entry")

    def test_what_an_older_version_has_written_keeps_its_id(self) -> None:
        journal = self.open()
        write(journal, COMMITS[:1])
        journal.close()
        self.counted.unlink()
        (self.folder / "lock").write_text(f"{journal.cluster_id:x}\n")
        self.assertIsNone(self.renewed(journal.cluster_id))
        journal = self.open()
        write(journal, COMMITS[1:2])
        journal.close()
        self.counted.unlink()
        self.assertIsNotNone(self.renewed(journal.cluster_id))

    def test_a_number_may_be_in_the_folder_if_nobody_may_write_beside_it(self) -> None:
        def open_within(number: int, path: Any, *more: Any) -> int:
            if str(path) == str(self.counted):
                raise OSError(number, os.strerror(number))
            return opened(path, *more)

        opened = os.open
        for number in (errno.EACCES, errno.EROFS):  # EROFS: as below ProtectSystem=strict
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "open", partial(open_within, number))
                journal = self.open()
                write(journal, COMMITS)
                journal.close()
                self.assertIsNone(self.renewed(journal.cluster_id))
            self.assertFalse(self.counted.exists())
            os.truncate(file_of(self.folder), file_of(self.folder).stat().st_size - 1)
            self.assertIsNotNone(self.renewed(journal.cluster_id))
            shutil.rmtree(self.folder)

    def test_a_folder_may_be_named_by_dots(self) -> None:
        self.open().close()
        (self.folder / "cut").mkdir()
        for name in (Path("."), Path("cut/..")):
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(self.folder)
                Journal(name).close()
        self.assertEqual({path.name for path in self.folder.parent.iterdir()}, {"witness", "witness.answered"})

    def test_a_number_that_cannot_be_written_takes_the_entry_back(self) -> None:
        journal = self.open()
        states = write(journal, COMMITS[:2])
        before = file_of(self.folder).read_bytes()

        def full(counted: CountedFile, _: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CountedFile, "write", full)
            self.assertRaises(DiskFull, journal.append, [Write((Put("/k", bytes(15)),))], 99)
        self.assertEqual(file_of(self.folder).read_bytes(), before)
        states = write(journal, COMMITS[2:])
        journal.close()
        self.assertIsNone(self.renewed(journal.cluster_id))
        self.assertEqual(content(self.open().state), states[-1])

    def test_a_long_one_is_replaced(self) -> None:
        journal = self.open(rotate_bytes=1000)
        state = journal.state
        sizes = []
        for number in range(200):
            operation = Write((Put("/status", b"%d" % number * 20),))
            state.apply(operation, 0.0)
            journal.append([operation], state.revision)
            if journal.is_long:
                journal.rotate(state)
            sizes.append(file_of(self.folder).stat().st_size)
        self.assertLess(max(sizes), 2500)
        journal.close()
        journal = self.open()
        self.assertEqual(content(journal.state), content(state))
        write(journal, COMMITS)

    def test_a_kill_between_the_steps_of_a_replacement_loses_nothing(self) -> None:
        journal = self.open()
        states = write(journal, COMMITS)
        cluster_id = journal.cluster_id
        before = file_of(self.folder).read_bytes()
        old = file_of(self.folder).name
        journal.rotate(journal.state)
        journal.close()
        new = file_of(self.folder)
        begun = new.read_bytes()
        for length in (0, 1, len(begun) // 2, len(begun)):  # before the new file has its name
            new.unlink(missing_ok=True)
            (self.folder / old).write_bytes(before)
            (self.folder / f"{new.name}.new").write_bytes(begun[:length])
            found = Journal(self.folder)
            self.assertEqual((content(found.state), found.cluster_id), (states[-1], cluster_id))
            found.close()
        new.write_bytes(begun)  # after it, before the old one is gone
        found = self.open()
        self.assertEqual((content(found.state), found.cluster_id), (states[-1], cluster_id))
        self.assertEqual(file_of(self.folder), new)

    def test_a_full_disk_changes_nothing(self) -> None:
        journal = self.open()
        states = write(journal, COMMITS[:2])
        before = file_of(self.folder).read_bytes()
        pwrite = os.pwrite

        def full(fd: int, data: Any, offset: int) -> int:
            if len(data) > 10:
                return pwrite(fd, data[:10], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            self.assertRaises(DiskFull, journal.append, [Write((Put("/k", bytes(15)),))], 99)
            self.assertRaises(OSError, journal.rotate, journal.state)
        self.assertEqual(file_of(self.folder).read_bytes(), before)
        states = write(journal, COMMITS[2:])
        journal.close()
        self.assertEqual(content(self.open().state), states[-1])

    def test_a_failed_flush_is_not_a_full_disk(self) -> None:
        journal = self.open()

        def failing(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.patch(os, "fdatasync", failing)
        self.assertRaises(OSError, journal.append, COMMITS[0], 2)
