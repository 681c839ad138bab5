"""Queues and index of real Java stores, read and built anew; and after a stop at any moment (spec/store.md 6 to 9)."""

import gzip
import json
import random
import shutil
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.derived.consumequeue import CQ_STORE_UNIT_SIZE, BoundaryType
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.derived.rebuild import rebuild_in_place
from rmqha.store.log.checkpoint import Checkpoint
from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import GetMessageStatus
from rmqha.wire.record import Record
from tests import fixtures
from tests.fixtures import copy_of, new_folder
from tests.store.derived.test_consumequeue import searched
from tests.store.logs import FIRST_STORE_TIMESTAMP, SEGMENT_SIZE
from tests.store.queues import FOREVER, MANY, Writer, check_derived, expected_of, records_of

JAVA = Settings(mapped_file_size_consume_queue=2000, max_hash_slot_num=1000, max_index_num=4000)
ROLES = (BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE)
LOST_BY_JAVA = range(3638566, 3932160)
"""Records of these offsets have no key in the index of master-clean: fixtures' README, "Recovery loses"."""


OP_HALF = ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)


@cache
def queue_ends(name: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Min and max offset of each queue with messages, as the Java master told; of one topic it tells nothing."""
    suffix = "-clean" if name == "master-clean" else ""
    with gzip.open(fixtures.DATA / f"expected-queues{suffix}.json.gz", "rt") as file:
        topics = json.load(file)["topics"]
    told = {
        (topic, int(number)): (ends["min"], ends["max"])
        for topic, content in topics.items()
        for number, ends in content["queues"].items()
        if ends["max"]
    }
    return {**told, OP_HALF: (0, fixtures.facts()["recordsPerTopic"][OP_HALF[0]])}


@cache
def messages(name: str) -> list[dict[str, Any]]:
    """The records, as Java's decoder reads them."""
    extra = fixtures.expected_clean_extra() if name == "master-clean" else []
    return [line for line in [*fixtures.expected(), *extra] if "blank" not in line]


def keys_of(message: dict[str, Any]) -> list[str]:
    properties = message["properties"]
    return list(filter(None, [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]))


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class StoresTestCase(SynchronousTestCase):
    """Opens stores, and lets go of them as a killed process does."""

    settings = JAVA

    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.folders = 0
        self.stores: list[MessageStore] = []
        self.addCleanup(self.let_go)

    def another(self) -> Path:
        """A folder that is not there yet."""
        self.folders += 1
        return self.folder / str(self.folders)

    def open(self, root: Path, **changes: Any) -> MessageStore:
        store = MessageStore(replace(self.settings, store_path_root_dir=root, **changes))
        self.stores.append(store)
        return store

    def close(self, store: MessageStore) -> None:
        self.stores.remove(store)
        self.successResultOf(store.close())

    def let_go(self) -> None:
        for store in list(self.stores):
            self.crash(store)

    def crash(self, store: MessageStore) -> None:
        self.stores.remove(store)
        store._release(None)


class JavaStoresTests(StoresTestCase):
    """Each store and role is opened on a copy of its own."""

    def java_stores(self) -> list[tuple[str, MessageStore]]:
        """All three stores in both roles, dispatched to the end."""
        return [(name, self.opened(name, role)) for name in fixtures.STORES for role in ROLES]

    def stores_to_read(self) -> list[tuple[str, MessageStore]]:
        """All three stores, each in one role: once dispatched, both roles have the same bytes and the same reader."""
        return [(name, self.opened(name, role)) for name, role in zip(fixtures.STORES, cycle(ROLES), strict=False)]

    def opened(self, name: str, role: BrokerRole) -> MessageStore:
        store = self.open(copy_of(name, self.another()), broker_role=role)
        store.derived.dispatcher.catch_up()
        return store

    def test_they_end_where_java_says(self) -> None:
        for name, store in self.java_stores():
            variant = fixtures.facts()["variants"][name]
            self.assertEqual(store.commit_log.max_offset, variant["maxOffset"])
            self.assertEqual(store.commit_log.last_store_timestamp, variant["lastStoreTimestamp"])
            self.assertEqual(store.recovery.clean_stop, not variant["abort"])
            queues = store.derived.queues.queues
            self.assertEqual({key: (q.min_offset, q.max_offset) for key, q in queues.items()}, queue_ends(name))
            self.assertEqual(len(queues), variant["consumeQueues"])
            self.assertEqual(store.derived.queue_offsets(), {key: end for key, (_, end) in queue_ends(name).items()})

    def test_opening_leaves_queues_as_java_wrote_them(self) -> None:
        for name, store in self.java_stores():
            java = files_below(fixtures.unpacked(name) / "consumequeue")
            self.assertEqual(files_below(store.root / "consumequeue"), java)
            self.assertEqual(len(java), fixtures.facts()["variants"][name]["consumeQueueFiles"])

    @pytest.mark.long
    def test_messages_by_offset_are_the_records_of_the_log(self) -> None:
        for name, store in self.stores_to_read():
            log = fixtures.log_bytes(name)
            found: dict[int, bytes] = {}
            for (topic, queue_id), (offset, end) in queue_ends(name).items():
                while offset < end:
                    result = store.reader.get_message(topic, queue_id, offset, 32)
                    self.assertEqual((result.status, result.max_offset), (GetMessageStatus.FOUND, end))
                    for number, raw in enumerate(result.records):
                        record = store.reader.message_at(int.from_bytes(raw[28:36], "big"))
                        assert record is not None
                        self.assertEqual((record.topic, record.queue_id), (topic, queue_id))
                        self.assertEqual(record.queue_offset, offset + number)
                        found[record.physical_offset] = raw
                    offset = result.next_begin_offset
            queued = [message for message in messages(name) if message["sysFlag"] & 0xC in (0, 8)]
            expected = {(at := message["physicalOffset"]): log[at : at + message["totalSize"]] for message in queued}
            self.assertEqual(found, expected)

    @pytest.mark.long
    def test_messages_by_id(self) -> None:
        for name, store in self.stores_to_read():
            for message in messages(name):
                record = store.reader.message_by_id(message["msgId"])
                assert record is not None
                self.assertEqual(record.physical_offset, message["physicalOffset"])
                self.assertEqual((record.topic, record.properties), (message["topic"], message["properties"]))

    @pytest.mark.long
    def test_messages_by_key(self) -> None:
        """Of a Java recovery, only those that it kept."""
        for name, store in self.stores_to_read():
            by_key: dict[tuple[str, str], list[int]] = {}
            for message in messages(name):
                if name == "master-clean" and message["physicalOffset"] in LOST_BY_JAVA:
                    continue
                for key in dict.fromkeys(keys_of(message)):
                    by_key.setdefault((message["topic"], key), []).append(message["physicalOffset"])
            self.assertGreater(len(by_key), 3500)
            for (topic, key), offsets in by_key.items():
                found = store.reader.query_message(topic, key, 64, 0, FOREVER)
                self.assertEqual([record.physical_offset for record in found], offsets[-64:], (name, topic, key))

    @pytest.mark.long
    def test_messages_by_time(self) -> None:
        for name, store in self.stores_to_read():
            by_queue: dict[tuple[str, int], dict[int, int]] = {}
            for message in messages(name):
                by_offset = by_queue.setdefault((message["topic"], message["queueId"]), {})
                by_offset[message["queueOffset"]] = message["storeTimestamp"]
            for (topic, queue_id), times in by_queue.items():
                stamps = sorted(set(times.values()))
                asked = {stamp + more for stamp in stamps[:: max(1, len(stamps) // 8)] for more in (-1, 0, 1)}
                for timestamp in asked:
                    for boundary in BoundaryType:
                        found = store.reader.offset_by_time(topic, queue_id, timestamp, boundary)
                        self.assertEqual(found, searched(times, timestamp, boundary))
                self.assertEqual(store.reader.earliest_message_time(topic, queue_id), stamps[0])

    def test_keys_within_their_time(self) -> None:
        store = self.opened("master-crash", BrokerRole.ASYNC_MASTER)
        for message in messages("master-crash")[::10]:
            at = message["storeTimestamp"]
            for key in keys_of(message):
                found = store.reader.query_message(message["topic"], key, 64, at, at)
                self.assertIn(message["physicalOffset"], [record.physical_offset for record in found])
                self.assertEqual({record.store_timestamp for record in found}, {at})


class RebuiltTests(StoresTestCase):
    """From the log alone come the bytes that Java wrote."""

    def rebuilt(self, name: str, role: BrokerRole) -> MessageStore:
        root = copy_of(name, self.another())
        for folder in ("consumequeue", "index"):
            shutil.rmtree(root / folder)
        store = self.open(root, broker_role=role)
        store.derived.dispatcher.catch_up()
        return store

    @pytest.mark.long
    def test_queues_are_javas_byte_for_byte(self) -> None:
        for name in fixtures.STORES:
            for role in ROLES:
                store = self.rebuilt(name, role)
                built = files_below(store.root / "consumequeue")
                self.assertEqual(len(built), 44)
                self.assertEqual(built, files_below(fixtures.unpacked(name) / "consumequeue"))

    @pytest.mark.long
    def test_the_index_is_javas_byte_for_byte(self) -> None:
        """Only the names, which are times, differ; master-clean's lacks what Java's recovery lost."""
        for name in ("master-crash", "slave"):
            for role in ROLES:
                store = self.rebuilt(name, role)
                built = list(files_below(store.root / "index").values())
                java = list(files_below(fixtures.unpacked(name) / "index").values())
                self.assertEqual(len(built), 2)
                self.assertTrue(built == java, f"{name} {role}")

    @pytest.mark.long
    def test_every_key_of_every_message_answers(self) -> None:
        for name in fixtures.STORES:
            store = self.rebuilt(name, BrokerRole.SLAVE)
            check_derived(self, store.commit_log, store.derived, name)
            entries = sum(len(keys_of(message)) for message in messages(name))
            found = sum(map(len, expected_of(store.commit_log).keys.values()))
            variant = fixtures.facts()["variants"][name]
            self.assertEqual(found, entries)
            self.assertEqual(entries, variant["indexEntries"] + variant["indexEntriesMissing"])

    @pytest.mark.long
    def test_rebuild_makes_the_same(self) -> None:
        root = copy_of("master-clean", self.another())
        for path in (root / "consumequeue").glob("*/*/*"):
            path.write_bytes(b"x" * path.stat().st_size)
        settings = replace(JAVA, store_path_root_dir=root)
        store = MessageStore(settings, build_derived=partial(rebuild_in_place, root))
        self.stores.append(store)
        check_derived(self, store.commit_log, store.derived)
        self.assertEqual(
            files_below(store.root / "consumequeue"), files_below(fixtures.unpacked("master-clean") / "consumequeue")
        )


class RestartTestCase(StoresTestCase):
    """Small files, and a store of a few segments."""

    settings = Settings(
        mapped_file_size_commit_log=SEGMENT_SIZE,
        mapped_file_size_consume_queue=140,
        max_hash_slot_num=20,
        max_index_num=50,
    )

    def grown(self, count: int, root: Path | None = None) -> tuple[MessageStore, Writer]:
        """A store of so many messages, dispatched."""
        store = self.open(root or self.another())
        writer = Writer(store.commit_log)
        writer.put_many(count)
        store.derived.dispatcher.catch_up()
        return store, writer

    def snapshot(self, store: MessageStore) -> Path:
        """A copy of the store's folder as it is now: what a killed process leaves."""
        return Path(shutil.copytree(store.root, self.another()))

    def check(self, store: MessageStore, context: object = None) -> None:
        """Dispatched to the end, all is as a reading of the log says, and nothing had to be filled up."""
        store.derived.dispatcher.catch_up()
        self.assertEqual(store.derived.dispatcher.behind_bytes, 0)
        check_derived(self, store.commit_log, store.derived, context)
        breaches = sum(queue.order_breaches for queue in store.derived.queues.queues.values())
        self.assertEqual(breaches, 0, context)


class CleanStopTests(RestartTestCase):
    def test_it_goes_on_where_it_was(self) -> None:
        for role in ROLES:
            store, _ = self.grown(80)
            end = store.commit_log.max_offset
            self.close(store)
            again = self.open(store.root, broker_role=role)
            self.assertTrue(again.recovery.clean_stop)
            self.assertEqual(again.derived.dispatcher.reput_offset, end)
            self.check(again)

    @pytest.mark.long
    def test_at_any_length(self) -> None:
        root = self.another()
        for _ in range(25):
            store = self.open(root)
            self.check(store)
            writer = Writer(store.commit_log)
            writer.number = len(records_of(store.commit_log))
            for key, offset in store.derived.queue_offsets().items():
                writer.offsets[key] = offset
            writer.put_many(3)
            self.check(store)
            self.close(store)

    @pytest.mark.long
    def test_though_dispatch_was_behind(self) -> None:
        """A slave does not wait for its dispatch to stop."""
        for count in range(0, 40, 3):
            store, writer = self.grown(count)
            writer.put_many(40 - count)
            self.close(store)
            self.check(self.open(store.root, broker_role=BrokerRole.SLAVE), count)

    def test_what_was_vouched_for_still_is(self) -> None:
        """Else the next crash would mean reading the log from its begin on."""
        store, _ = self.grown(20)
        last = store.commit_log.last_store_timestamp
        self.assertEqual(store.vouched()[0], last)
        self.close(store)
        self.assertEqual(self.open(store.root).vouched()[0], last)

    def test_a_log_that_was_cut_behind_their_back(self) -> None:
        """The last segments are gone: so are units and entries of their messages, and what comes next fits."""
        store, _ = self.grown(100)
        bases = store.commit_log.segment_bases
        self.close(store)
        for kept in range(len(bases)):
            root = Path(shutil.copytree(store.root, self.another()))
            for base in bases[kept:]:
                (root / "commitlog" / f"{base:020d}").unlink()
            again = self.open(root)
            self.check(again, kept)
            writer = Writer(again.commit_log)
            for key, offset in again.derived.queue_offsets().items():
                writer.offsets[key] = offset
            writer.put_many(30)
            self.check(again, kept)

    def test_no_index_is_kept_if_it_is_not_enabled(self) -> None:
        store, _ = self.grown(20)
        self.close(store)
        again = self.open(store.root, message_index_enable=False)
        self.assertIsNone(again.derived.index)
        self.check(again)

    def test_files_keep_their_sizes_whatever_the_settings_say(self) -> None:
        store, _ = self.grown(20)
        self.close(store)
        for changes in ({"max_hash_slot_num": 21}, {"mapped_file_size_consume_queue": 160}):
            again = self.open(store.root, **changes)
            self.check(again)
            self.assertEqual(again.derived.queues.file_size, 140)
            self.close(again)

    def test_sizes_are_those_of_the_files_if_nothing_else_is_said(self) -> None:
        store = self.open(self.another(), max_hash_slot_num=25, max_index_num=100)
        Writer(store.commit_log).put_many(50)
        store.derived.dispatcher.catch_up()
        self.close(store)
        again = self.open(store.root, max_hash_slot_num=None, max_index_num=None, mapped_file_size_consume_queue=None)
        self.check(again)
        self.assertEqual(again.derived.queues.file_size, 140)


class UncleanStopTests(RestartTestCase):
    @pytest.mark.long
    def test_a_snapshot_at_any_moment(self) -> None:
        """Master and slave; a slice done, half done in the log, or not begun."""
        store, writer = self.grown(0)
        for number in range(30):
            writer.put_many(1 + number % 4)
            if number % 3:
                store.derived.dispatcher.catch_up()
            root = self.snapshot(store)
            again = self.open(root, broker_role=ROLES[number % 2])
            self.assertFalse(again.recovery.clean_stop)
            self.check(again, number)

    @pytest.mark.long
    def test_with_a_checkpoint_only_the_end_is_dispatched_again(self) -> None:
        store, _ = self.grown(100)
        records = records_of(store.commit_log)
        bases = store.commit_log.segment_bases
        for record in records[::5]:
            root = self.snapshot(store)
            stamp = record.store_timestamp
            Checkpoint(stamp, stamp, 0).write(root / "checkpoint")
            again = self.open(root, broker_role=BrokerRole.SLAVE)
            started = again.derived.dispatcher.reput_offset
            firsts = {base: records_of_segment(records, base) for base in bases}
            safe = [base for base in bases if firsts[base].store_timestamp <= stamp - 3000]
            self.assertEqual(started, safe[-1] if safe else 0)
            self.check(again, stamp)

    def cut_log(self, root: Path, at: int) -> None:
        """Let the log's bytes from ``at`` on be zeros."""
        for path in (root / "commitlog").iterdir():
            base = int(path.name)
            if base + SEGMENT_SIZE > at:
                data = path.read_bytes()[: max(0, at - base)]
                path.write_bytes(data.ljust(SEGMENT_SIZE, b"\0"))

    @pytest.mark.long
    def test_queues_and_index_that_are_ahead_of_the_log(self) -> None:
        """Their pages were written back, the log's were not."""
        store, _ = self.grown(100)
        records = records_of(store.commit_log)
        rng = random.Random(5)
        for record in records[::3]:
            root = self.snapshot(store)
            self.cut_log(root, record.physical_offset + rng.choice((0, 1, 50, record.total_size - 1)))
            again = self.open(root, broker_role=rng.choice(ROLES))
            self.assertEqual(again.commit_log.max_offset, record.physical_offset)
            self.check(again, record.physical_offset)
            writer = Writer(again.commit_log)
            writer.offsets.update(again.derived.queue_offsets())
            writer.put_many(10)
            self.check(again, record.physical_offset)

    @pytest.mark.long
    def test_queues_and_index_that_are_behind_the_log(self) -> None:
        """Their pages were not written back, or only some; the checkpoint vouches for none of them."""
        store, _ = self.grown(100)
        rng = random.Random(6)
        for seed in range(40):
            root = self.snapshot(store)
            for path in sorted([*(root / "consumequeue").rglob("0*"), *(root / "index").iterdir()]):
                if path.is_file():
                    self.spoil(path, rng)
            self.check(self.open(root, broker_role=rng.choice(ROLES)), seed)

    def spoil(self, path: Path, rng: random.Random) -> None:
        """Lose the file's end, all of it, or nothing.

        Of a queue's file never just a part of its last unit: disks write sectors, which hold many.
        """
        data = path.read_bytes()
        if path.parent.name == "index":
            at = rng.choice((0, 40, 120, rng.randrange(len(data)), len(data)))
        else:
            at = rng.choice((0, rng.randrange(len(data) - CQ_STORE_UNIT_SIZE), len(data)))
        path.write_bytes(data[:at].ljust(len(data), b"\0"))

    @pytest.mark.long
    def test_a_unit_of_which_only_the_beginning_was_written(self) -> None:
        """Offset and size make it look whole, but its tags are not the message's."""
        store, _ = self.grown(50)
        queues = cycle(store.derived.queues.queues.items())
        for torn, ((topic, queue_id), queue) in zip(range(1, 20), queues, strict=False):
            root = self.snapshot(store)
            at = (queue.max_offset - 1) * 20
            path = root / "consumequeue" / topic / str(queue_id) / f"{at // 140 * 140:020d}"
            data = bytearray(path.read_bytes())
            data[at % 140 + torn :] = bytes(140 - at % 140 - torn)
            path.write_bytes(data)
            opened = self.open(root)
            self.check(opened, (topic, queue_id, torn))
            self.close(opened)

    def test_queues_and_index_that_are_not_there(self) -> None:
        store, _ = self.grown(60)
        for gone in (["consumequeue"], ["index"], ["consumequeue", "index"]):
            root = self.snapshot(store)
            for folder in gone:
                shutil.rmtree(root / folder)
            self.check(self.open(root), gone)

    def test_an_index_file_of_no_size_goes(self) -> None:
        store, _ = self.grown(60)
        root = self.snapshot(store)
        (root / "index" / "29991231235959999").touch()
        self.check(self.open(root))

    def test_a_broken_index_is_built_anew_as_a_whole(self) -> None:
        """However late the checkpoint lets dispatch begin."""
        store, _ = self.grown(100)
        root = self.snapshot(store)
        Checkpoint(FOREVER, FOREVER, 0).write(root / "checkpoint")
        first = min((root / "index").iterdir())
        first.write_bytes(first.read_bytes()[:-1])
        with capturedLogs() as logs:
            again = self.open(root)
        self.assertEqual(len([event for event in logs if "rebuilt" in event["log_format"]]), 1)
        self.assertGreater(again.recovery.checked_from, 0)
        self.check(again)

    @pytest.mark.long
    def test_crash_after_crash(self) -> None:
        rng = random.Random(7)
        store, writer = self.grown(20)
        for step in range(25):
            writer.put_many(rng.randrange(12))
            if rng.random() < 0.5:
                store.derived.dispatcher.run_slice()
            root = self.snapshot(store)
            self.crash(store)
            if rng.random() < 0.5:
                end = store.commit_log.verified_offset
                self.cut_log(root, rng.randrange(max(0, end - 700), end + 1))
            store = self.open(root, broker_role=rng.choice(ROLES))
            self.check(store, step)
            writer = Writer(store.commit_log)
            writer.number = len(records_of(store.commit_log))
            writer.offsets.update(store.derived.queue_offsets())


def records_of_segment(records: list[Record], base: int) -> Record:
    """The first record of a segment."""
    return next(record for record in records if record.physical_offset >= base)


class LateLogTests(RestartTestCase):
    def test_queues_of_a_log_that_begins_later(self) -> None:
        """A slave that got the log from its middle on; store.md 6.2, 3."""
        store, _ = self.grown(100)
        for segment in range(1, len(store.commit_log.segment_bases)):
            root = self.another()
            shutil.copytree(store.root / "commitlog", root / "commitlog")
            for base in store.commit_log.segment_bases[:segment]:
                (root / "commitlog" / f"{base:020d}").unlink()
            late = self.open(root, broker_role=BrokerRole.SLAVE)
            self.check(late, segment)
            for (topic, queue_id), units in expected_of(late.commit_log).units.items():
                queue = late.derived.queues.queues[topic, queue_id]
                self.assertEqual((queue.min_offset, queue.max_offset), (min(units), max(units) + 1))
            self.close(late)
            self.check(self.open(root), segment)

    def test_begins_are_right_again_after_segments_were_deleted(self) -> None:
        store, _ = self.grown(100)
        self.close(store)
        bases = store.commit_log.segment_bases
        for base in bases[:-1]:
            (store.root / "commitlog" / f"{base:020d}").unlink()
            again = self.open(store.root)
            check_queues = expected_of(again.commit_log).units
            for key, units in check_queues.items():
                self.assertEqual(again.derived.queues.queues[key].min_offset, min(units))
            self.close(again)


class StartAgainTests(RestartTestCase):
    """A queue starts again from 0, and retention has taken all that it had: a Java master cleans such queues."""

    def over(self) -> MessageStore:
        """A store with a queue of old messages, which are all gone from the log."""
        store = self.open(self.another())
        writer = Writer(store.commit_log)
        for _ in range(3):
            writer.put("Old", 0)
        writer.put_many(100)
        store.derived.dispatcher.catch_up()
        store.commit_log.delete_first_segment()
        for queue in store.derived.queues.queues.values():
            queue.correct_min_offset(store.commit_log.min_offset)
        return store

    def assert_starts_again(self, store: MessageStore) -> None:
        writer = Writer(store.commit_log)
        writer.offsets["Old", 0] = 0
        places = [writer.put("Old", 0).physical_offset for _ in range(5)]
        found: list[DispatchRequest] = []
        store.on_restart(found.append)
        store.derived.dispatcher.catch_up()
        self.assertEqual(found, [])
        for opened in (store, None, None):
            again = opened or self.open(store.root)
            queue = again.derived.queues.queues["Old", 0]
            units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
            self.assertEqual([unit.physical_offset for unit in units if unit is not None], places)
            self.assertEqual(again.derived.queue_offsets()["Old", 0], 5)
            self.close(again)

    def test_new_messages_have_their_place(self) -> None:
        self.assert_starts_again(self.over())

    def test_also_if_the_store_knows_where_the_queue_ended(self) -> None:
        store = self.over()
        self.close(store)
        self.assert_starts_again(self.open(store.root))


class TimeTests(RestartTestCase):
    def test_the_index_has_the_times_of_messages(self) -> None:
        store, _ = self.grown(30)
        assert store.derived.index is not None
        second = FIRST_STORE_TIMESTAMP + 20_000
        self.assertEqual(
            store.derived.index.query("T0", "all", second, second, MANY),
            [record.physical_offset for record in records_of(store.commit_log) if record.store_timestamp == second],
        )


class OpenTwiceTests(RestartTestCase):
    def test_queues_can_be_read_beside_their_owner(self) -> None:
        store, _ = self.grown(30)
        before = files_below(store.root / "consumequeue")
        table = QueueTable(store.root / "consumequeue", 140, owned=False)
        self.addCleanup(table.close)
        for key, queue in table.queues.items():
            queue.find_end()
            self.assertEqual(queue.max_offset, store.derived.queues.queues[key].max_offset)
        self.assertEqual(files_below(store.root / "consumequeue"), before)
