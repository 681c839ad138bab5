"""Index files: their bytes, queries against a plain search, cuts, and files that a crash left (spec/store.md 7)."""

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from struct import pack_into, unpack_from
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import at_once
from rmqha.store.derived.geometry import Geometry
from rmqha.store.derived.index import (
    ENTRIES_A_STEP,
    IndexedKey,
    IndexFile,
    KeyIndex,
    hashed,
    index_paths,
    read_entries,
)
from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import UnflushedFolder
from rmqha.testing.sim.disk import SimDisk
from rmqha.wire.compiled import KERNEL
from rmqha.wire.javahashes import index_hashes
from tests import examples
from tests.fixtures import new_folder, open_files
from tests.store.derived.chainedkeys import ComparedKeys, compare
from tests.twins import KernelTests, PlainTests, need_kernel

SLOTS, MOST = 7, 12
NOW = datetime(2026, 11, 20, 20, 18, 13, 850_999)
T = 1_795_000_000_000
FOREVER = 2**62
SAME_HASH = ("Aa", "BB")
HEADER_BYTES, ENTRY_BYTES = 40, 20


def key(name: str, physical_offset: int, after_ms: int = 0) -> IndexedKey:
    """Of topic T, stored so long after ``T``."""
    return IndexedKey(f"T#{name}", physical_offset, T + after_ms)


def some_keys(count: int) -> list[IndexedKey]:
    """Keys of messages with none to three keys, some of the same hash or slot, as time goes by."""
    names = ["Aa", "BB", "k1", "k2", "long " * 9, "é漢😀", "Aa", "x"]
    keys: list[IndexedKey] = []
    message = 0
    while len(keys) < count:
        message += 1
        own = [names[(message * 3 + number) % 8] for number in range(message * 7 % 4)]
        keys += [key(name, message * 100, message * 700) for name in own]
    return keys[:count]


def search(
    keys: Sequence[IndexedKey], name: str, begin: int = 0, end: int = FOREVER, limit: int = 10_000
) -> tuple[list[int], list[int]]:
    """The newest offsets of keys of that hash that must be found in that time, and those that may: the index has
    seconds where the question has milliseconds."""
    (wanted,) = index_hashes([f"T#{name}"]).tolist()
    hashes = index_hashes([each.text for each in keys]).tolist()
    same = [each for each, hashed in zip(keys, hashes, strict=True) if hashed == wanted]
    must = [each.physical_offset for each in same if begin <= each.store_timestamp <= end]
    may = [each.physical_offset for each in same if begin - 1000 < each.store_timestamp < end + 1000]
    return must[-limit:] if limit else [], may


class IndexTestCase(SynchronousTestCase):
    """Has a folder, and indexes in it."""

    def setUp(self) -> None:
        self.root = new_folder(self)
        self.folders = 0
        self.again()

    def again(self) -> None:
        self.folders += 1
        self.folder = self.root / str(self.folders) / "index"

    def open(self, slots: int = SLOTS, most: int = MOST, folder: Path | None = None) -> KeyIndex:
        index = KeyIndex(folder or self.folder, slots, most)
        self.addCleanup(index.close)
        return index

    def make(self, keys: Sequence[IndexedKey], slots: int = SLOTS, most: int = MOST) -> KeyIndex:
        """An index of these keys, put at once."""
        index = self.open(slots, most)
        if keys:
            index.put(keys, NOW)
        return index

    def taken(self, index: KeyIndex) -> list[Path]:
        """The files to be flushed."""
        return [file.path for file in index.take_unflushed() if isinstance(file, IndexFile)]

    def paths(self) -> list[Path]:
        return list(index_paths(self.folder))

    def contents(self, slots: int = SLOTS) -> list[tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, ...]]]]:
        """Header, slots and used entries of each file."""
        found = []
        for path in self.paths():
            raw = path.read_bytes()
            geometry = Geometry(slots, (len(raw) - HEADER_BYTES - 4 * slots) // 20)
            header = unpack_from(">qqqqii", raw, 0)
            entries = [tuple(entry.item()) for entry in read_entries(path, geometry)]
            found.append((header, unpack_from(f">{slots}i", raw, HEADER_BYTES), entries))
        return found

    def check_answers(self, index: KeyIndex, keys: Sequence[IndexedKey]) -> None:
        """Every key is found, with the offsets that it was put with and no other."""
        for text in {each.text for each in keys}:
            name = text.removeprefix("T#")
            self.assertEqual(index.query("T", name, 0, FOREVER, 10_000), search(keys, name)[0], name)
        self.assertEqual(index.query("T", "nobody's", 0, FOREVER, 10), [])


class GoldenTests(PlainTests, IndexTestCase):
    def test_the_entries_of_one_message(self) -> None:
        """store.md 7.2, golden."""
        keys = [IndexedKey(f"TopicA#{name}", 0x76, T + 5) for name in ("ABC", "k1", "k2")]
        self.make(keys, slots=100, most=400)
        ((header, slots, entries),) = self.contents(100)
        self.assertEqual(header, (T + 5, T + 5, 0x76, 0x76, 3, 4))
        self.assertEqual({slot: number for slot, number in enumerate(slots) if number}, {57: 1, 49: 2, 48: 3})
        hashes = (0x434BD151, 0x717125C9, 0x717125C8)
        self.assertEqual(entries, [(hashed, 0x76, 0, 0) for hashed in hashes])
        raw = self.paths()[0].read_bytes()
        self.assertEqual(len(raw), HEADER_BYTES + 4 * 100 + ENTRY_BYTES * 400)
        first = HEADER_BYTES + 4 * 100 + ENTRY_BYTES
        self.assertEqual(raw[HEADER_BYTES + 4 * 100 : first], bytes(ENTRY_BYTES), "entry 0 is never used")
        golden = bytes.fromhex("434BD151 0000000000000076 00000000 00000000")
        self.assertEqual(raw[first : first + ENTRY_BYTES], golden)

    def test_a_slot_leads_from_the_newest_to_the_oldest(self) -> None:
        self.make([key(name, 100 * number, 1500 * number) for number, name in enumerate(("Aa", "x", "BB", "Aa"), 1)])
        ((header, slots, entries),) = self.contents()
        same, other = index_hashes(["T#Aa", "T#x"]).tolist()
        self.assertNotEqual(same % SLOTS, other % SLOTS)
        self.assertEqual(entries, [(same, 100, 0, 0), (other, 200, 1, 0), (same, 300, 3, 1), (same, 400, 4, 3)])
        self.assertEqual((slots[same % SLOTS], slots[other % SLOTS], sum(slots)), (4, 2, 6))
        self.assertEqual(header, (T + 1500, T + 6000, 100, 400, 2, 5))

    def test_in_pieces_or_at_once_it_is_the_same(self) -> None:
        keys = some_keys(40)
        self.make(keys)
        at_once = self.contents()
        self.again()
        index = self.open()
        for offset in dict.fromkeys(each.physical_offset for each in keys):
            index.put([each for each in keys if each.physical_offset == offset], NOW)
        self.assertEqual(self.contents(), at_once)

    def test_the_name_is_the_local_time_of_creation(self) -> None:
        self.make([key("k", 1)])
        self.assertEqual([path.name for path in self.paths()], ["20261120201813850"])

    def test_no_keys_make_no_file(self) -> None:
        index = self.make([])
        self.assertEqual((self.folder.exists(), index.end_phy_offset, index.has_files), (False, -1, False))
        self.assertEqual(index.query("T", "k", 0, FOREVER, 10), [])


class GoldenKernelTests(KernelTests, GoldenTests):
    """And by the kernel."""


class RollingTests(PlainTests, IndexTestCase):
    def test_a_batch_goes_on_in_new_files(self) -> None:
        for count in (MOST - 2, MOST - 1, MOST, 2 * MOST - 2, 2 * MOST - 1, 40):
            self.again()
            keys = some_keys(count)
            index = self.make(keys)
            contents = self.contents()
            sizes = [len(entries) for _, _, entries in contents]
            self.assertEqual(sizes[:-1], [MOST - 1] * (len(sizes) - 1), "a file holds one less than its number")
            self.assertEqual((sum(sizes), len(sizes)), (count, -(-count // (MOST - 1))))
            offsets = [offset for _, _, entries in contents for _, offset, _, _ in entries]
            self.assertEqual(offsets, [each.physical_offset for each in keys])
            self.check_answers(index, keys)
            self.check_answers(self.open(), keys)

    def test_names_are_unique_and_in_order(self) -> None:
        self.make(some_keys(50))
        self.assertEqual([path.name for path in self.paths()], [f"20261120201813{850 + n}" for n in range(5)])

    def test_files_begin_and_end_with_their_entries(self) -> None:
        keys = some_keys(40)
        index = self.make(keys)
        for number, (header, _, _) in enumerate(self.contents()):
            own = keys[number * (MOST - 1) : (number + 1) * (MOST - 1)]
            begin, end = own[0], own[-1]
            expected = (begin.store_timestamp, end.store_timestamp, begin.physical_offset, end.physical_offset)
            self.assertEqual(header[:4], expected)
        self.assertEqual(index.end_phy_offset, keys[-1].physical_offset)

    def test_only_full_files_are_vouched_for(self) -> None:
        keys = some_keys(2 * MOST)
        index = self.make(keys[: MOST - 1])
        self.assertEqual(index.full_files_timestamp, 0)
        self.again()
        index = self.make(keys)
        expected = keys[2 * (MOST - 1) - 1].store_timestamp
        self.assertEqual((index.full_files_timestamp, self.open().full_files_timestamp), (expected, expected))

    def test_messages_that_have_entries_are_left_out(self) -> None:
        keys = some_keys(40)
        index = self.make(keys)
        before = self.contents()
        index.put(keys, NOW)
        self.open().put(keys, NOW)
        self.assertEqual(self.contents(), before)

    def test_a_file_that_cannot_be_made_leaves_nothing(self) -> None:
        """The disk has no room for its slots."""
        keys = some_keys(40)
        index = self.open()
        with (
            mock.patch("os.posix_fallocate", side_effect=OSError(28, "No space left on device")),
            self.assertRaises(OSError),
        ):
            index.put(keys, NOW)
        self.assertEqual(list(self.folder.iterdir()), [])
        index.put(keys, NOW)
        self.check_answers(index, keys)

    def test_the_room_of_whole_pages_is_reserved(self) -> None:
        """A page that is written through the mapping gets all its blocks, and SIGBUS if the disk is full."""
        page, folder = os.sysconf("SC_PAGESIZE"), new_folder(self)
        for slots, entries in ((7, 12), (7, 3000), (page // 4 - 10, 3000), (3 * page, 5)):
            path = folder / f"{slots}-{entries}"
            with self.subTest(slots=slots, entries=entries), mock.patch("os.posix_fallocate") as reserve:
                IndexFile(path, slots, entries, create=True).close()
                ((_, start, size),) = (call.args for call in reserve.call_args_list)
                self.assertEqual(start, 0)
                self.assertGreaterEqual(size, HEADER_BYTES + 4 * slots)
                self.assertTrue(size % page == 0 or size == path.stat().st_size, size)

    def test_a_message_whose_keys_are_refused_midway_gets_them_all_later(self) -> None:
        """Its first keys are in the full file; the disk has no room for another one."""
        keys = [key(f"k{number}", 100 * (1 + number // 4), number) for number in range(16)]
        index = self.open()
        with (
            mock.patch("os.posix_fallocate", side_effect=[None, OSError(28, "No space left on device")]),
            self.assertRaises(OSError),
        ):
            index.put(keys, NOW)
        self.assertEqual((len(self.paths()), index.end_phy_offset), (1, 300))
        index.put([*keys, key("k", 500, 20)], NOW)
        self.check_answers(index, [*keys, key("k", 500, 20)])

    def test_keys_of_many_reads_are_written_as_one_array(self) -> None:
        keys = some_keys(9)
        index = self.open()
        for each in keys:
            index.add_hashed(hashed([each]))
        with mock.patch.object(IndexFile, "put_hashed", autospec=True, side_effect=IndexFile.put_hashed) as put:
            index.write_pending()
        self.assertEqual((put.call_count, index.pending), (1, 0))
        self.check_answers(index, keys)

    def test_pending_keys_that_are_refused_midway_are_written_once_later(self) -> None:
        keys = [key(f"k{number}", 100 * (1 + number // 4), number) for number in range(16)]
        index = self.open()
        for each in keys:
            index.add_hashed(hashed([each]))
        with (
            mock.patch("os.posix_fallocate", side_effect=[None, OSError(28, "No space left on device")]),
            self.assertRaises(OSError),
        ):
            index.write_pending()
        index.add_hashed(hashed([key("k", 500, 20)]))
        index.write_pending()
        self.check_answers(index, [*keys, key("k", 500, 20)])

    def test_the_same_key_twice_in_a_message(self) -> None:
        index = self.make([key("k", 100), key("k", 100)])
        self.assertEqual(index.query("T", "k", 0, FOREVER, 10), [100, 100])


class RollingKernelTests(KernelTests, RollingTests):
    """And by the kernel."""


def test_the_kernel_chains_and_links_keys_as_the_plain_functions_do() -> None:
    need_kernel()
    compared = ComparedKeys()
    for seed in range(60):
        compare(KERNEL, Random(seed), compared)
    assert compared.keys > 60


class QueryTests(IndexTestCase):
    def test_keys_of_one_hash_are_not_told_apart(self) -> None:
        (first, second) = index_hashes([f"T#{name}" for name in SAME_HASH]).tolist()
        self.assertEqual(first, second)
        index = self.make([key("Aa", 100), key("BB", 200), key("x", 300)])
        for name in SAME_HASH:
            self.assertEqual(index.query("T", name, 0, FOREVER, 10), [100, 200])

    def test_the_topic_belongs_to_the_key(self) -> None:
        index = self.make([key("k", 100)])
        self.assertEqual(index.query("U", "k", 0, FOREVER, 10), [])

    def test_the_newest_win_and_come_in_order(self) -> None:
        index = self.make([key("k", 100 * number, 1000 * number) for number in range(1, 31)])
        self.assertEqual(index.query("T", "k", 0, FOREVER, 5), [2600, 2700, 2800, 2900, 3000])
        self.assertEqual(index.query("T", "k", 0, FOREVER, 14), [100 * number for number in range(17, 31)])
        self.assertEqual(index.query("T", "k", 0, FOREVER, 0), [])

    def test_all_keys_in_one_slot(self) -> None:
        self.make(some_keys(40), slots=1)
        self.check_answers(self.open(slots=1), some_keys(40))

    def test_a_chain_with_all_entries_is_walked_in_steps(self) -> None:
        count = 5 * ENTRIES_A_STEP
        keys = [key("k" if number < 3 else "other", 100 * number) for number in range(count)]
        self.folder.mkdir(parents=True, exist_ok=True)
        index = IndexFile(self.folder / "20261122000000000", 1, count + 1, create=True)
        index.put(keys)
        (key_hash,) = index_hashes(["T#k"]).tolist()
        steps, turns = index.find(key_hash, 0, FOREVER, 64), 0
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.assertEqual(done.value, [200, 100, 0])
                break
            turns += 1
        self.assertEqual(turns, 4)

    def test_a_chain_in_a_circle_ends(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        index = IndexFile(self.folder / "20261122000000000", 1, 100, create=True)
        index.put([key("k", 100 * number) for number in range(1, 10)])
        for previous in (5, 7, 9):  # the fifth entry follows itself, or a later one
            index._file.write(40 + 4 + 20 * 5 + 16, previous.to_bytes(4, "big"))
            (key_hash,) = index_hashes(["T#k"]).tolist()
            self.assertEqual(at_once(index.find(key_hash, 0, FOREVER, 1000)), [900, 800, 700, 600, 500])

    def test_a_time_before_or_after_all(self) -> None:
        index = self.make([key("k", 100, 0), key("k", 200, 50_000)])
        self.assertEqual(index.query("T", "k", 0, T - 1, 10), [])
        self.assertEqual(index.query("T", "k", T + 51_000, FOREVER, 10), [])
        self.assertEqual(index.query("T", "k", T, T, 10), [100])
        self.assertEqual(index.query("T", "k", T + 1000, T + 50_000, 10), [200])

    @pytest.mark.long
    @given(st.data())
    @settings(max_examples=examples(80), deadline=None)
    def test_any_keys_and_times(self, data: st.DataObject) -> None:
        self.again()
        names = st.sampled_from(["Aa", "BB", "k1", "k2", "😀"])
        at, keys = 0, []
        for number in range(data.draw(st.integers(0, 40))):
            at += data.draw(st.integers(0, 2500))
            keys.append(key(data.draw(names), 100 * (number + 1), at))
        slots = data.draw(st.integers(1, 9))
        index = self.make(keys, slots)
        for _ in range(8):
            name = data.draw(names)
            begin = T + data.draw(st.integers(-1000, at + 1000))
            end = begin + data.draw(st.integers(0, at + 1000))
            must, may = search(keys, name, begin, end)
            found = index.query("T", name, begin, end, 1000)
            self.assertEqual(found, sorted(found))
            self.assertLessEqual(set(must), set(found))
            self.assertLessEqual(set(found), set(may))
            limit = data.draw(st.integers(1, 10))
            self.assertEqual(index.query("T", name, begin, end, limit), found[-limit:])
        index.close()


class TruncateTests(IndexTestCase):
    @pytest.mark.long
    def test_at_every_message_and_put_again(self) -> None:
        keys = some_keys(40)
        self.make(keys)
        whole = self.contents()
        offsets = sorted({each.physical_offset for each in keys})
        for physical_offset in [0, *(offset + more for offset in offsets for more in (-1, 0, 1)), 10**9]:
            self.again()
            index = self.make(keys)
            index.truncate(physical_offset)
            kept = [each for each in keys if each.physical_offset < physical_offset]
            self.check_answers(index, kept)
            self.check_answers(self.open(), kept)
            self.assertEqual(index.end_phy_offset, kept[-1].physical_offset if kept else -1)
            self.assertEqual(sum(len(entries) for _, _, entries in self.contents()), len(kept))
            index.put(keys, NOW)
            self.assertEqual(self.contents(), whole)
            self.check_answers(index, keys)
            index.close()

    def test_the_times_of_what_stays_are_not_shortened(self) -> None:
        keys = some_keys(10)
        index = self.make(keys)
        index.truncate(keys[5].physical_offset)
        kept = [each for each in keys if each.physical_offset < keys[5].physical_offset]
        last = kept[-1]
        found = index.query("T", last.text.removeprefix("T#"), last.store_timestamp, FOREVER, 10)
        self.assertIn(last.physical_offset, found)

    def test_the_name_of_a_file_that_another_process_made_is_flushed(self) -> None:
        """That process may have died before it flushed it; the next checkpoint vouches for the file."""
        keys = some_keys(10)
        self.make(keys).close()
        index = self.open()
        index.truncate(keys[5].physical_offset)
        self.assertIn(UnflushedFolder(self.folder), index.take_unflushed())

    def test_a_cut_file_is_flushed_and_a_removed_one_is_not(self) -> None:
        keys = some_keys(2 * MOST)
        self.make(keys).close()
        index = self.open()
        self.assertEqual(index.take_unflushed(), [])
        index.truncate(keys[3].physical_offset)
        self.assertEqual(self.taken(index), self.paths())
        index.put(keys, NOW)
        index.truncate(0)
        self.assertEqual((self.taken(index), self.paths(), index.full_files_timestamp), ([], [], 0))

    def test_no_more_is_vouched_for_than_stays(self) -> None:
        keys = some_keys(3 * MOST)
        index = self.make(keys)
        index.truncate(keys[MOST + 2].physical_offset)
        first_file_ends = keys[MOST - 2].store_timestamp
        self.assertEqual((len(self.paths()), index.full_files_timestamp), (2, first_file_ends))
        index.truncate(keys[4].physical_offset)
        self.assertEqual((len(self.paths()), index.full_files_timestamp), (1, 0))


class CrashTests(IndexTestCase):
    """What a killed process or a lost page left is put right by ``truncate``, which opening after a crash does."""

    def setUp(self) -> None:
        super().setUp()
        self.keys = [key(f"k{number % 3}", 100 * (number + 1), 900 * number) for number in range(9)]
        self.make(self.keys)
        self.whole = self.contents()
        self.entries_at = HEADER_BYTES + 4 * SLOTS

    def damage(self, at: int, data: bytes | bytearray) -> None:
        with self.paths()[-1].open("r+b") as file:
            file.seek(at)
            file.write(data)

    def check_mended(self, at_most: int, physical_offset: int = 10**9) -> None:
        """After the cut, what is before the damage answers; put again, all is as it was."""
        index = self.open()
        index.truncate(physical_offset)
        self.check_answers(index, self.keys[:at_most])
        index.put(self.keys, NOW)
        self.assertEqual(self.contents(), self.whole)
        index.close()

    def test_an_entry_that_was_never_written(self) -> None:
        for number in range(2, 10):
            self.damage(self.entries_at + ENTRY_BYTES * number, bytes(ENTRY_BYTES * (10 - number)))
            self.check_mended(number - 1)

    def test_an_entry_that_leads_nowhere(self) -> None:
        for number in range(1, 10):
            for previous in (number, number + 1, 2**31 - 1, -1):
                entry = bytearray(ENTRY_BYTES)
                pack_into(">iqii", entry, 0, 1, 100 * number, 0, previous)
                self.damage(self.entries_at + ENTRY_BYTES * number, entry)
                self.check_mended(number - 1)

    def test_an_entry_of_a_message_that_is_not_there(self) -> None:
        entry = bytearray(ENTRY_BYTES)
        pack_into(">iqii", entry, 0, 1, 10**6, 0, 0)
        self.damage(self.entries_at + ENTRY_BYTES * 5, entry)
        self.check_mended(4, physical_offset=10**5)

    def test_slots_that_are_stale_or_lost(self) -> None:
        for number in (0, -1, 9, 10, 2**31 - 1):
            data = bytearray(4 * SLOTS)
            for slot in range(SLOTS):
                pack_into(">i", data, 4 * slot, number)
            self.damage(HEADER_BYTES, data)
            self.check_mended(9)

    def test_a_slot_that_leads_to_no_entry_begins_anew(self) -> None:
        """store.md 7.2: also where nothing was cut before."""
        for number in (-1, 11, 2**31 - 1):
            data = bytearray(4 * SLOTS)
            for slot in range(SLOTS):
                pack_into(">i", data, 4 * slot, number)
            self.damage(HEADER_BYTES, data)
            index = self.open()
            index.put([key("k1", 5000, 9000)], NOW)
            self.assertEqual(index.query("T", "k1", 0, FOREVER, 10), [5000])
            self.assertEqual(self.contents()[0][2][9][3], 0)
            index.truncate(1000)
            index.close()

    def test_a_new_file_begins_with_the_ends_of_the_one_before(self) -> None:
        """store.md 7.3: what its writer leaves who dies before the first entry."""
        self.again()
        keys = some_keys(MOST)
        index = self.make(keys[: MOST - 1])
        with (
            mock.patch(
                "rmqha.store.derived.index.IndexFile.put_hashed", side_effect=OSError(28, "No space left on device")
            ),
            self.assertRaises(OSError),
        ):
            index.put(keys, NOW)
        end = keys[MOST - 2]
        expected = (end.store_timestamp, end.store_timestamp, end.physical_offset, end.physical_offset, 0, 1)
        self.assertEqual(self.contents()[1][0], expected)

    def test_a_header_that_promises_more(self) -> None:
        for count in (11, MOST, MOST + 1, 2**31 - 1):
            data = bytearray(4)
            pack_into(">i", data, 0, count)
            self.damage(36, data)
            self.check_mended(9)

    def test_a_header_that_was_never_written(self) -> None:
        self.damage(0, bytes(HEADER_BYTES))
        self.check_mended(0)

    def test_a_file_that_has_no_entry_yet_goes(self) -> None:
        """Its writer died between making and filling it."""
        keys = [key("k", 100 * number, number) for number in range(1, MOST + 3)]
        for header in (bytes(HEADER_BYTES), None):
            self.again()
            self.make(keys).close()
            whole = self.contents()
            raw = bytearray(self.paths()[-1].read_bytes())
            raw[HEADER_BYTES:] = bytes(len(raw) - HEADER_BYTES)
            if header is not None:
                raw[:HEADER_BYTES] = header
            else:  # preset with the ends of the one before it
                pack_into(">qqqqii", raw, 0, T, T + 11, 1100, 1100, 0, 1)
            self.paths()[-1].write_bytes(raw)
            index = self.open()
            index.truncate(500)
            self.assertEqual((len(self.paths()), index.end_phy_offset), (1, 400))
            index.put(keys, NOW)
            self.assertEqual(self.contents(), whole)

    def test_a_file_without_its_size_goes(self) -> None:
        (self.folder / "20261120201813999").touch()
        index = self.open()
        self.check_answers(index, self.keys)
        self.assertEqual(len(self.paths()), 1)


class FilesTests(IndexTestCase):
    def test_another_size_is_refused(self) -> None:
        self.make(some_keys(5)).close()
        held = open_files(self.folder)
        for slots, most in ((SLOTS + 1, MOST), (SLOTS, MOST + 1)):
            with self.assertRaisesRegex(StoreError, r"bytes, not .*maxHashSlotNum, maxIndexNum"):
                self.open(slots, most)
        self.assertEqual(open_files(self.folder), held)

    def test_other_names_are_passed_over(self) -> None:
        self.make(some_keys(5)).close()
        (self.folder / "readme.txt").write_text("not an index")
        (self.folder / "2026").mkdir()
        self.check_answers(self.open(), some_keys(5))

    def test_files_of_messages_that_are_gone_are_deleted_but_never_the_last(self) -> None:
        keys = some_keys(40)
        ends = [keys[min(number, 39)].physical_offset for number in range(MOST - 2, 44, MOST - 1)]
        for number, end in enumerate(ends):
            for more, deleted in ((0, number), (1, min(number + 1, len(ends) - 1))):
                self.again()
                index = self.make(keys)
                names = self.paths()
                self.assertEqual(index.delete_files_before(end + more), deleted)
                self.assertEqual(self.paths(), names[deleted:])
                self.check_answers(index, keys[deleted * (MOST - 1) :])
                self.assertEqual(self.taken(index), names[deleted:])

    def test_a_flushed_file_is_found_after_a_loss_of_power(self) -> None:
        """Header, slots, entries and its name."""
        keys = some_keys(3 * MOST)
        for seed in range(20):
            disk = SimDisk(Random(seed))
            disk.make_folder(Path("/store"))
            disk.sync_folder(Path("/"))
            index = KeyIndex(Path("/store/index"), SLOTS, MOST, disk=disk)
            index.put(keys, NOW)
            disk.sync_all(index.take_unflushed())
            disk.lose_power()
            self.check_answers(KeyIndex(Path("/store/index"), SLOTS, MOST, disk=disk), keys)

    def test_a_file_that_was_cut_does_not_come_back(self) -> None:
        """Not after a flush. Its entries would lead to messages that came since, and keys would be skipped."""
        keys = some_keys(3 * MOST)
        for kept in (0, 3):
            for seed in range(20):
                disk = SimDisk(Random(seed))
                disk.make_folder(Path("/store"))
                disk.sync_folder(Path("/"))
                index = KeyIndex(Path("/store/index"), SLOTS, MOST, disk=disk)
                index.put(keys, NOW)
                disk.sync_all(index.take_unflushed())
                index.truncate(keys[kept].physical_offset)
                disk.sync_all(index.take_unflushed())
                disk.lose_power()
                left = [each for each in keys if each.physical_offset < keys[kept].physical_offset]
                again = KeyIndex(Path("/store/index"), SLOTS, MOST, disk=disk)
                self.assertEqual(again.end_phy_offset, left[-1].physical_offset if left else -1, seed)

    def test_files_are_told_once_since_they_were_written(self) -> None:
        keys = some_keys(40)
        index = self.make(keys[:15])
        taken = index.take_unflushed()
        self.assertEqual([file.path for file in taken if isinstance(file, IndexFile)], self.paths())
        for file in taken:
            file.sync()
        self.assertEqual(index.take_unflushed(), [])
        index.put(keys[15:17], NOW)
        self.assertEqual(self.taken(index), self.paths()[1:])
