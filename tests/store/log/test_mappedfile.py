"""Segments on the disk (spec/store.md 2)."""

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.errors import StoreError
from rmqha.store.log import mappedfile
from rmqha.store.log.mappedfile import (
    MAX_OPEN_FILES,
    MAX_PIECES,
    MappedFile,
    MappedFileQueue,
    file_name,
    list_segments,
    sync_folder,
)
from tests import examples
from tests.fixtures import new_folder, open_files

SIZE = 4096


def make_file(folder: Path, base: int, size: int = SIZE) -> Path:
    path = folder / file_name(base)
    with path.open("wb") as file:
        file.truncate(size)
    return path


class FileNameTests(SynchronousTestCase):
    def test_a_name_is_the_offset_in_twenty_digits(self) -> None:
        self.assertEqual(file_name(0), "0" * 20)
        self.assertEqual(file_name(4_718_592), "00000000000004718592")
        self.assertEqual(file_name(2**63 - 1), "09223372036854775807")


class MappedFileTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)

    def make(self, size: int = SIZE, base: int = 0) -> MappedFile:
        mapped_file = MappedFile.create(self.folder / file_name(base), size)
        self.addCleanup(mapped_file.close)
        return mapped_file

    def test_a_new_segment_has_its_full_size_and_takes_no_room(self) -> None:
        """Java refuses any other size; a sparse file is fine for it."""
        mapped_file = self.make(1 << 30, base=1 << 30)
        self.assertEqual(mapped_file.path.stat().st_size, 1 << 30)
        self.assertEqual(mapped_file.path.stat().st_blocks, 0)
        self.assertEqual((mapped_file.base_offset, mapped_file.end_offset), (1 << 30, 2 << 30))
        self.assertEqual(mapped_file.segment[-10:], bytes(10))

    def test_an_existing_file_is_never_made_again(self) -> None:
        self.make()
        with self.assertRaises(FileExistsError):
            MappedFile.create(self.folder / file_name(0), SIZE)

    def test_what_is_written_is_read_at_once(self) -> None:
        mapped_file = self.make()
        mapped_file.write(10, b"hello")
        mapped_file.write(SIZE - 3, memoryview(b"end"))
        self.assertEqual(mapped_file.segment[9:16], b"\0hello\0")
        self.assertEqual(mapped_file.path.read_bytes()[-3:], b"end")

    def test_a_write_that_the_kernel_cuts_short_is_completed(self) -> None:
        pwrite = os.pwrite
        self.patch(os, "pwritev", lambda fd, pieces, at: pwrite(fd, b"".join(pieces)[:3], at))
        self.patch(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:4], at))
        mapped_file = self.make()
        mapped_file.write(5, b"0123", b"456789abcdef")
        self.assertEqual(mapped_file.segment[4:22], b"\x000123456789abcdef\0")

    def test_many_pieces_are_written_one_behind_the_other(self) -> None:
        """More than the kernel takes at once."""
        for count in (0, 1, MAX_PIECES, MAX_PIECES + 1, 2 * MAX_PIECES + 3):
            pieces = [bytes([n % 255 + 1]) for n in range(count)]
            mapped_file = self.make(base=count * SIZE)
            mapped_file.write(7, *pieces)
            self.assertEqual(mapped_file.segment[:], (bytes(7) + b"".join(pieces)).ljust(SIZE, b"\0"))

    def test_a_reader_cannot_write(self) -> None:
        make_file(self.folder, 0)
        mapped_file = MappedFile(self.folder / file_name(0), SIZE, writable=False)
        self.addCleanup(mapped_file.close)
        with self.assertRaises(OSError):
            mapped_file.write(0, b"x")
        with self.assertRaises(TypeError):
            mapped_file.segment[0] = 1

    def test_zeroing_reaches_to_the_end_and_keeps_the_size(self) -> None:
        for position in (0, 1, 4096, 5000, 8192):
            mapped_file = self.make(2 * SIZE, base=position * 2 * SIZE)
            mapped_file.write(0, b"\xff" * 2 * SIZE)
            mapped_file.zero_from(position)
            self.assertEqual(mapped_file.segment[:], b"\xff" * position + bytes(2 * SIZE - position))
            self.assertEqual(mapped_file.path.stat().st_size, 2 * SIZE)

    def test_zeroing_gives_the_room_back(self) -> None:
        mapped_file = self.make(1 << 20)
        mapped_file.write(0, b"\xff" * (1 << 20))
        mapped_file.zero_from(4096)
        self.assertLessEqual(mapped_file.path.stat().st_blocks * 512, 8192)

    def test_zeroing_where_no_holes_can_be_made(self) -> None:
        def refuse(fd: int, position: int, size: int) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        self.patch(mappedfile, "_punch_hole", refuse)
        self.patch(mappedfile, "SEARCH_BYTES", 1000)
        mapped_file = self.make(2 * SIZE)
        mapped_file.write(0, b"\xff" * 2 * SIZE)
        mapped_file.zero_from(5000)
        self.assertEqual(mapped_file.segment[:], b"\xff" * 5000 + bytes(2 * SIZE - 5000))

    def test_a_file_keeps_its_size_while_it_is_zeroed(self) -> None:
        """One that a crash or a power loss left shorter could not be opened again."""

        def refuse(fd: int, size: int) -> None:
            raise AssertionError("the file's size is changed")

        mapped_file = self.make()
        self.patch(os, "ftruncate", refuse)
        mapped_file.write(0, b"\xff" * SIZE)
        mapped_file.zero_from(0)
        self.assertEqual(mapped_file.segment[:], bytes(SIZE))

    def test_an_error_of_zeroing_is_told(self) -> None:
        mapped_file = self.make()
        mapped_file.close()
        with self.assertRaises(OSError):
            mapped_file.zero_from(0)

    @settings(deadline=None, max_examples=examples(60))
    @given(st.lists(st.tuples(st.integers(0, 40_000), st.binary(min_size=1, max_size=5)), max_size=4), st.data())
    def test_the_end_of_what_is_not_zero(self, writes: list[tuple[int, bytes]], data: st.DataObject) -> None:
        folder = new_folder(self)
        mapped_file = MappedFile.create(folder / file_name(0), 40_960)
        content = bytearray(40_960)
        for at, written in writes:
            mapped_file.write(at, written)
            content[at : at + len(written)] = written
        position = data.draw(st.integers(0, 40_960))
        rest = bytes(content[position:]).rstrip(b"\0")
        self.assertEqual(mapped_file.nonzero_end(position), position + len(rest) if rest else None)
        mapped_file.close()

    def test_the_end_of_what_is_not_zero_in_a_large_file(self) -> None:
        self.patch(mappedfile, "SEARCH_BYTES", 100)
        mapped_file = self.make()
        mapped_file.write(0, bytes(3000))
        self.assertIsNone(mapped_file.nonzero_end(0))
        for at in (0, 99, 100, 2999):
            mapped_file.write(at, b"x")
            self.assertEqual(mapped_file.nonzero_end(0), at + 1)

    @pytest.mark.long
    def test_closing_closes_the_file_and_may_be_repeated(self) -> None:
        mapped_file = self.make()
        self.assertGreater(open_files(self.folder), 0)
        mapped_file.close()
        mapped_file.close()
        del mapped_file
        self.doCleanups()
        gc.collect()
        self.assertEqual(open_files(self.folder), 0)

    @pytest.mark.long
    def test_a_segment_nobody_uses_any_more_is_closed(self) -> None:
        make_file(self.folder, 0)
        mapped_file = MappedFile(self.folder / file_name(0), SIZE)
        del mapped_file
        gc.collect()
        self.assertEqual(open_files(self.folder), 0)

    def test_a_file_that_cannot_be_mapped_is_not_left_open(self) -> None:
        path = make_file(self.folder, 0, 0)
        with self.assertRaises(ValueError):
            MappedFile(path, SIZE)
        self.assertEqual(open_files(self.folder), 0)


class MappedFileQueueTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)

    def open(self, writable: bool = True) -> MappedFileQueue:
        queue = MappedFileQueue(self.folder, SIZE, writable)
        self.addCleanup(queue.close)
        return queue

    def refusal(self, *names: str) -> None:
        """Refused, with each of the names in the reason."""
        with self.assertRaises(StoreError) as caught:
            self.open()
        for name in names:
            self.assertIn(name, str(caught.exception))

    def test_a_folder_that_is_not_there_is_an_empty_queue(self) -> None:
        queue = MappedFileQueue(self.folder / "none", SIZE)
        self.assertEqual((len(queue), queue.bases, queue.first_base, queue.end_offset), (0, [], None, 0))
        self.assertIsNone(queue.find(0))
        self.assertFalse((self.folder / "none").exists())

    def test_segments_are_found_by_offset(self) -> None:
        for base in (2 * SIZE, 3 * SIZE):
            make_file(self.folder, base)
        queue = self.open()
        self.assertEqual((queue.bases, queue.first_base, queue.end_offset), ([8192, 12288], 8192, 16384))
        for offset, base in ((8192, 8192), (12287, 8192), (12288, 12288), (16383, 12288)):
            found = queue.find(offset)
            assert found is not None
            self.assertEqual(found.base_offset, base)
        for offset in (0, 8191, 16384, -1):
            self.assertIsNone(queue.find(offset))

    def test_a_foreign_file_is_refused_by_name(self) -> None:
        for name in ("notes.txt", ".nfs0001", "1" * 19, "1" * 21, "lost+found"):
            make_file(self.folder, 0)
            path = self.folder / name
            path.touch()
            self.refusal(name)
            path.unlink()
        self.assertEqual(self.open().bases, [0])

    def test_a_folder_among_segments_is_refused_by_name(self) -> None:
        (self.folder / file_name(0)).mkdir()
        self.refusal(file_name(0))

    def test_a_segment_of_another_size_is_refused_by_name(self) -> None:
        make_file(self.folder, 0)
        for size in (SIZE - 1, SIZE + 1, 2 * SIZE):
            make_file(self.folder, SIZE, size)
            self.refusal(file_name(SIZE), str(size), "mappedFileSizeCommitLog")

    def test_a_name_that_is_no_multiple_of_the_size_is_refused(self) -> None:
        make_file(self.folder, SIZE + 1)
        self.refusal(file_name(SIZE + 1), "multiple")

    def test_a_missing_segment_is_refused_by_name(self) -> None:
        for base in (0, SIZE, 3 * SIZE):
            make_file(self.folder, base)
        self.refusal(file_name(2 * SIZE), "missing")

    def test_an_empty_last_file_was_never_finished_and_goes(self) -> None:
        """The process died between making the file and giving it its size."""
        for before in ([], [0]):
            for base in before:
                make_file(self.folder, base)
            path = make_file(self.folder, SIZE, 0)
            self.assertEqual(self.open().bases, before)
            self.assertFalse(path.exists())

    def test_a_reader_leaves_an_empty_last_file_alone(self) -> None:
        make_file(self.folder, 0)
        path = make_file(self.folder, SIZE, 0)
        self.assertEqual(self.open(writable=False).bases, [0])
        self.assertTrue(path.exists())

    def test_files_of_zeros_after_an_empty_one_were_never_finished_and_go(self) -> None:
        """Power was lost after the last file was flushed, and before the files before it were."""
        make_file(self.folder, 0)
        unwritten = [
            make_file(self.folder, SIZE, 0),
            make_file(self.folder, 2 * SIZE),
            make_file(self.folder, 3 * SIZE, 0),
        ]
        self.assertEqual(self.open(writable=False).bases, [0])
        self.assertEqual([path.exists() for path in unwritten], [True] * 3)
        self.assertEqual(self.open().bases, [0])
        self.assertEqual([path.exists() for path in unwritten], [False] * 3)

    def test_an_empty_file_before_bytes_is_refused(self) -> None:
        make_file(self.folder, 0, 0)
        make_file(self.folder, SIZE)
        make_file(self.folder, 2 * SIZE).write_bytes(bytes(SIZE - 1) + b"x")
        self.refusal(file_name(0), "0 bytes")

    def test_a_refused_folder_is_left_as_it_was(self) -> None:
        for base, size in ((0, SIZE), (SIZE, 5), (2 * SIZE, SIZE)):
            make_file(self.folder, base, size)
        before = list_segments(self.folder)
        self.refusal()
        self.assertEqual(list_segments(self.folder), before)

    def test_a_new_segment_follows_the_last(self) -> None:
        queue = self.open()
        queue.create(2 * SIZE)
        self.assertEqual(queue.create(3 * SIZE).base_offset, 3 * SIZE)
        for base in (0, 2 * SIZE, 3 * SIZE, 5 * SIZE, 4 * SIZE + 1):
            with self.assertRaises(StoreError):
                queue.create(base)
        self.assertEqual(list_segments(self.folder), [(2 * SIZE, SIZE), (3 * SIZE, SIZE)])

    def test_the_last_segment_can_be_removed(self) -> None:
        queue = self.open()
        queue.create(0)
        queue.create(SIZE)
        queue.remove_last()
        self.assertEqual((queue.bases, list_segments(self.folder)), ([0], [(0, SIZE)]))
        self.assertIsNone(queue.find(SIZE))
        self.assertEqual(bytes(queue.create(SIZE).segment), bytes(SIZE))

    def test_a_segment_that_is_deleted_while_they_are_listed_is_left_out(self) -> None:
        expired = make_file(self.folder, 0)
        make_file(self.folder, SIZE)
        entries = list(os.scandir(self.folder))
        expired.unlink()
        self.patch(os, "scandir", lambda _: iter(entries))
        self.assertEqual(list_segments(self.folder), [(SIZE, SIZE)])

    def test_the_folder_is_made_with_the_first_segment(self) -> None:
        queue = MappedFileQueue(self.folder / "a" / "b", SIZE)
        self.addCleanup(queue.close)
        queue.create(0)
        self.assertEqual(list_segments(self.folder / "a" / "b"), [(0, SIZE)])

    def test_flushed_segments_beyond_the_bound_are_closed(self) -> None:
        queue = self.open()
        for n in range(MAX_OPEN_FILES + 40):
            queue.create(n * SIZE)
        everything = open_files(self.folder)
        queue.trim_open(0)
        self.assertEqual(open_files(self.folder), everything, "nothing was flushed yet")
        queue.trim_open(10 * SIZE)
        per_file = everything // (MAX_OPEN_FILES + 40)
        self.assertEqual(open_files(self.folder), per_file * (MAX_OPEN_FILES + 30))
        queue.trim_open(queue.end_offset)
        self.assertEqual(open_files(self.folder), per_file * MAX_OPEN_FILES)
        self.assertEqual(len(queue), MAX_OPEN_FILES + 40)

    def test_the_segments_used_last_stay_open(self) -> None:
        queue = self.open()
        for n in range(MAX_OPEN_FILES + 1):
            queue.create(n * SIZE)
        first = queue.find(0)
        queue.trim_open(queue.end_offset)
        self.assertIs(queue.find(0), first)

    def test_memory_handed_out_outlives_its_segments_closing(self) -> None:
        queue = self.open()
        queue.create(0).write(0, b"kept")
        found = queue.find(0)
        assert found is not None
        view = memoryview(found.segment)
        del found
        queue.close()
        self.assertEqual(view[:4], b"kept")

    def test_closing_closes_all_files(self) -> None:
        queue = self.open()
        for n in range(3):
            queue.create(n * SIZE)
        queue.close()
        self.assertEqual(open_files(self.folder), 0)


class SyncFolderTests(SynchronousTestCase):
    def test_the_folder_itself_is_synced(self) -> None:
        folder = new_folder(self)
        synced: list[str] = []
        self.patch(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        sync_folder(folder)
        self.assertEqual(synced, [str(folder.resolve())])
        self.assertEqual(open_files(folder.parent), 0)

    def test_a_folder_that_cannot_be_synced_is_an_error(self) -> None:
        def refuse(fd: int) -> None:
            raise OSError(5, "the disk is broken")

        folder = new_folder(self)
        self.patch(os, "fsync", refuse)
        calls: list[Callable[[], None]] = [lambda: sync_folder(folder), lambda: sync_folder(folder / "none")]
        for call in calls:
            with self.assertRaises(OSError):
                call()
        self.assertEqual(open_files(folder.parent), 0)
