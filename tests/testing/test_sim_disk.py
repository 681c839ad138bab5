"""The disk in memory does what a real one does, and loses what a real one may lose."""

import errno
from pathlib import Path
from random import Random
from typing import cast

from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.errors import StoreInUse
from rmqha.store.log.mappedfile import Disk, MappedFile, Syncable, UnflushedFolder, file_name
from rmqha.testing.sim.disk import SECTOR_BYTES, SimDisk
from tests.fixtures import new_folder

SIZE = 4096


class SameAsRealTests(SynchronousTestCase):
    """Each is done on a real disk and on one in memory."""

    def setUp(self) -> None:
        simulated = SimDisk(Random(0))
        self.disks: list[tuple[Disk, Path]] = [(Disk(), new_folder(self)), (simulated, Path("/root"))]
        simulated.make_folder(Path("/root"))

    def test_segments(self) -> None:
        for disk, root in self.disks:
            folder = root / "log"
            self.assertFalse(disk.exists(folder))
            disk.make_folder(folder)
            disk.make_folder(folder)
            file = disk.create_segment(folder / file_name(SIZE), SIZE)
            self.assertRaises(FileExistsError, disk.create_segment, file.path, SIZE)
            file.write(10, b"ab", b"cd")
            file.write(4000, b"x" * 96)
            self.assertEqual(file.nonzero_end(0), SIZE)
            file.zero_from(12)
            self.assertEqual(bytes(file.segment), b"ab".rjust(12, b"\0").ljust(SIZE, b"\0"))
            self.assertEqual(file.nonzero_end(0), 12)
            self.assertIsNone(file.nonzero_end(12))
            file.sync()
            again = disk.open_segment(file.path, SIZE, writable=False)
            self.assertEqual(bytes(again.segment), bytes(file.segment))
            self.assertEqual((again.base_offset, again.end_offset), (SIZE, 2 * SIZE))
            self.assertEqual(disk.list_segments(folder), [(SIZE, SIZE)])
            disk.remove(file.path)
            self.assertEqual(disk.list_segments(folder), [])
            self.assertRaises(FileNotFoundError, disk.open_segment, file.path, SIZE, True)

    def test_small_files_and_folders(self) -> None:
        for disk, root in self.disks:
            self.assertRaises(FileNotFoundError, disk.read, root / "a")
            disk.overwrite(root / "a", b"first", 20)
            disk.overwrite(root / "a", b"xyz", 20)
            self.assertEqual(disk.read(root / "a"), b"xyzst".ljust(20, b"\0"))
            disk.make_folder(root / "one" / "two")
            disk.write_new(root / "one" / "two" / "b", [bytes(5), b"piece", bytes(3)])
            disk.rename(root / "one", root / "other")
            disk.sync_folder(root)
            self.assertFalse(disk.exists(root / "one"))
            self.assertEqual(disk.read(root / "other" / "two" / "b"), bytes(5) + b"piece" + bytes(3))

    def test_what_a_store_has_beside_its_log(self) -> None:
        for disk, root in self.disks:
            disk.replace(root / "rmqha" / "state.json", b"one")
            disk.replace(root / "rmqha" / "state.json", b"another")
            self.assertEqual(disk.read(root / "rmqha" / "state.json"), b"another")
            self.assertFalse(disk.exists(root / "rmqha" / "state.json.tmp"))
            disk.touch(root / "abort")
            disk.touch(root / "abort")
            self.assertEqual(disk.read(root / "abort"), b"")
            disk.remove(root / "abort", missing_ok=True)
            disk.remove(root / "abort", missing_ok=True)
            self.assertRaises(FileNotFoundError, disk.remove, root / "abort")
            lock = disk.lock(root / "lock")
            self.assertRaises(StoreInUse, disk.lock, root / "lock")
            lock.release()
            disk.lock(root / "lock").release()
            pages = disk.open_pages(root / "rmqha" / "state.json")
            self.assertEqual((pages.read(2, 3), pages.read(5, 10), pages.read(9, 1)), (b"oth", b"er", b""))
            pages.close()

    def test_folders_and_what_is_in_them(self) -> None:
        for disk, root in self.disks:
            disk.make_folder(root / "queue" / "T" / "0")
            disk.write_new(root / "queue" / "T" / "0" / "a", [b"12345"])
            disk.write_new(root / "queue" / "b", [b"123"])
            self.assertEqual((disk.folders_in(root / "queue"), disk.files_in(root / "queue")), (["T"], [("b", 3)]))
            self.assertEqual((disk.folders_in(root / "none"), disk.files_in(root / "none")), ([], []))
            self.assertEqual((disk.folders_in(root / "queue" / "b"), disk.files_in(root / "queue" / "b")), ([], []))
            self.assertEqual(
                [disk.is_folder(root / name) for name in ("queue", "queue/b", "none")], [True, False, False]
            )
            self.assertEqual(disk.size(root / "queue" / "b"), 3)
            self.assertRaises(FileNotFoundError, disk.size, root / "none")
            disk.remove_if_empty(root / "queue" / "T")
            self.assertTrue(disk.is_folder(root / "queue" / "T"))
            disk.remove_tree(root / "queue" / "b")
            disk.remove_tree(root / "queue" / "T" / "0")
            disk.remove_if_empty(root / "queue" / "T")
            disk.remove_if_empty(root / "queue" / "T")
            self.assertEqual((disk.folders_in(root / "queue"), disk.files_in(root / "queue")), ([], []))
            disk.remove_tree(root / "queue")
            disk.remove_tree(root / "queue")
            self.assertFalse(disk.exists(root / "queue"))

    def test_files_written_through_a_mapping_and_files_viewed(self) -> None:
        for disk, root in self.disks:
            path = root / "index"
            file = disk.open_fronted(path, SIZE, 100, create=True)
            self.assertRaises(FileExistsError, disk.open_fronted, path, SIZE, 100, True)
            file.front[:3] = b"abc"
            file.write(200, b"xyz")
            file.sync()
            expected = b"abc".ljust(200, b"\0") + b"xyz"
            self.assertEqual(bytes(file.content[:203]), expected)
            file.close()
            again = disk.open_fronted(path, SIZE, 100, create=False)
            self.assertEqual(bytes(again.front[:3]), b"abc")
            again.close()
            view = disk.open_view(path)
            self.assertEqual((view.size, bytes(view.content[:203])), (SIZE, expected))
            written = {at for start, end in view.data_ranges(0, SIZE) for at in range(start, end)}
            self.assertLessEqual({0, 1, 2, 200, 201, 202}, written)
            view.close()
            self.assertEqual(bytes(view.content[200:203]), b"xyz")
            self.assertRaises(FileNotFoundError, disk.open_view, root / "none")


class FrontedLossTests(SynchronousTestCase):
    """A file whose first bytes are written through a mapping, when power is lost."""

    def lose(self, seed: int, is_synced: bool) -> bytes | None:
        disk = SimDisk(Random(seed))
        disk.make_folder(Path("/index"))
        disk.sync_folder(Path("/"))
        path = Path("/index/20261122")
        file = disk.open_fronted(path, 3 * SECTOR_BYTES, 2 * SECTOR_BYTES, create=True)
        file.front[:] = b"o" * len(file.front)
        if is_synced:
            disk.sync_all([cast(Syncable, file), UnflushedFolder(path.parent)])
            file.front[:] = b"n" * len(file.front)
        disk.lose_power()
        return disk.read(path)[: 2 * SECTOR_BYTES] if disk.exists(path) else None

    def test_a_sector_that_was_synced_is_the_old_one_or_the_new_one(self) -> None:
        old, new = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES
        found = {self.lose(seed, is_synced=True) for seed in range(100)}
        self.assertEqual(found, {old + old, old + new, new + old, new + new})

    def test_a_file_that_was_never_synced_may_be_gone_or_empty(self) -> None:
        found = {self.lose(seed, is_synced=False) for seed in range(300)}
        self.assertLessEqual({None, b"o" * 2 * SECTOR_BYTES, bytes(2 * SECTOR_BYTES)}, found)

    def test_a_sync_that_fails_drops_what_came_through_the_mapping(self) -> None:
        disk = SimDisk(Random(0))
        disk.make_folder(Path("/index"))
        file = disk.open_fronted(Path("/index/1"), SIZE, 100, create=True)
        disk.sync_folder(Path("/index"))
        disk.sync_folder(Path("/"))
        file.sync()
        file.front[:3] = b"abc"
        disk.broken_syncs = 1
        self.assertRaises(OSError, file.sync)
        file.sync()
        disk.lose_power()
        self.assertEqual(disk.read(Path("/index/1")), bytes(SIZE))


class LossTests(SynchronousTestCase):
    """What is left when power is lost."""

    def make(self, seed: int) -> tuple[SimDisk, MappedFile]:
        disk = SimDisk(Random(seed))
        disk.make_folder(Path("/log"))
        disk.sync_folder(Path("/"))
        return disk, disk.create_segment(Path("/log") / file_name(0), SIZE)

    def reopen(self, disk: SimDisk) -> bytes | None:
        disk.lose_power()
        path = Path("/log") / file_name(0)
        return disk.read(path) if disk.exists(path) else None

    def test_what_was_synced_stays(self) -> None:
        for seed in range(50):
            disk, file = self.make(seed)
            file.write(0, b"x" * SIZE)
            file.sync()
            disk.sync_folder(Path("/log"))
            self.assertEqual(self.reopen(disk), b"x" * SIZE)

    def test_a_sector_that_was_not_synced_is_the_old_one_or_the_new_one(self) -> None:
        found = set()
        for seed in range(200):
            disk, file = self.make(seed)
            file.write(0, b"o" * 2 * SECTOR_BYTES)
            file.sync()
            disk.sync_folder(Path("/log"))
            file.write(0, b"n" * 2 * SECTOR_BYTES)
            content = self.reopen(disk)
            assert content is not None
            found.add((content[:SECTOR_BYTES], content[SECTOR_BYTES : 2 * SECTOR_BYTES]))
        old, new = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES
        self.assertEqual(found, {(old, old), (old, new), (new, old), (new, new)})

    def test_a_file_whose_folder_was_not_synced_may_be_gone(self) -> None:
        found = set()
        for seed in range(50):
            disk, file = self.make(seed)
            file.write(0, b"x" * SIZE)
            file.sync()
            found.add(self.reopen(disk))
        self.assertEqual(found, {None, b"x" * SIZE})

    def test_a_failed_sync_is_told_once_and_never_made_good(self) -> None:
        disk, file = self.make(1)
        file.sync()
        disk.sync_folder(Path("/log"))
        file.write(0, b"x" * SIZE)
        disk.broken_syncs = 1
        self.assertEqual(self.assertRaises(OSError, file.sync).errno, errno.EIO)
        file.sync()
        self.assertEqual(bytes(file.segment), b"x" * SIZE)
        self.assertEqual(self.reopen(disk), bytes(SIZE))

    def test_a_full_disk_takes_a_part_at_most(self) -> None:
        disk, file = self.make(1)
        disk.full = True
        self.assertEqual(self.assertRaises(OSError, file.write, 0, b"x" * 100).errno, errno.ENOSPC)
        self.assertEqual(bytes(file.segment).strip(b"\0").strip(b"x"), b"")
        self.assertRaises(OSError, disk.create_segment, Path("/log") / file_name(SIZE), SIZE)
        disk.heal()
        file.write(0, b"x" * 100)
