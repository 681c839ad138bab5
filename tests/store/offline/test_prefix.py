"""Copies of a store up to a place in its log, over generated logs and places; and what becomes of a copy that dies."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import Settings, make_settings
from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.derived.dispatchmark import DispatchMark
from rmqha.store.errors import NoStore, StoreError
from rmqha.store.examining import LOCK_FILE, open_log
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import LockFile
from rmqha.store.log.recovery import LogDamaged
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, DelayOffsetTable
from rmqha.store.nodestate import STOPPED, NodeState, Offsets
from rmqha.store.offline import newstore, prefix
from rmqha.store.offline.newstore import NoRoom, OutputExists
from rmqha.store.offline.prefix import CopyDone, CopyKind, CopyPlan, copy_store, examine_source, plan_copy
from rmqha.store.offline.target import Cut, NoSuchTarget, Target, find_cut
from rmqha.store.tablesnapshots import snapshot_offsets, write_snapshot
from rmqha.wire.record import Record, encode_blank
from tests.store.damages import UNHURRIED
from tests.store.logs import encoded, file_bytes, write_at

SEGMENT_SIZE = 4096
FIRST_TIME = 1_795_000_000_000
SMALL = {"mappedFileSizeConsumeQueue": "400", "maxHashSlotNum": "16", "maxIndexNum": "64"}


@dataclass(frozen=True)
class Stored:
    """A message of a generated log."""

    start: int
    end: int
    record: Record


@dataclass(frozen=True)
class Made:
    """A generated log: its messages, and where each message or blank starts."""

    content: bytes
    messages: list[Stored]
    starts: list[int]

    @property
    def end(self) -> int:
        return self.messages[-1].end


@st.composite
def logs(draw: st.DrawFn) -> Made:
    """Messages of several queues, in small segments, by a clock that is set back now and then."""
    rng = draw(st.randoms(use_true_random=False))
    next_offsets: Counter[tuple[str, int]] = Counter()
    content, messages, starts, now = bytearray(), [], [], FIRST_TIME
    for _ in range(draw(st.integers(1, 60))):
        topic, queue_id = rng.choice(["A", "Bb"]), rng.randrange(3)
        now += rng.choice([0, 1, 5, 1000, -3, -500])
        record = Record(
            topic,
            rng.randbytes(rng.randint(0, 400)),
            f"KEYS\x01k{rng.randrange(9)}\x02",
            queue_id=queue_id,
            queue_offset=next_offsets[topic, queue_id],
            store_timestamp=now,
        )
        next_offsets[topic, queue_id] += 1
        room = SEGMENT_SIZE - len(content) % SEGMENT_SIZE
        if record.total_size + 8 > room:
            starts.append(len(content))
            content += encode_blank(room).ljust(room, b"\0")
        start = len(content)
        starts.append(start)
        content += encoded(record, start)
        messages.append(Stored(start, len(content), record))
    return Made(bytes(content), messages, starts)


@contextmanager
def store_of(made: Made) -> Iterator[tuple[Path, Settings]]:
    """A store with this log, opened and closed once, so that it has queues and an index."""
    with TemporaryDirectory() as name:
        store = Path(name) / "store"
        (store / "commitlog").mkdir(parents=True)
        for base in range(0, len(made.content), SEGMENT_SIZE):
            piece = made.content[base : base + SEGMENT_SIZE].ljust(SEGMENT_SIZE, b"\0")
            (store / "commitlog" / f"{base:020d}").write_bytes(piece)
        settings = make_settings({"storePathRootDir": str(store), "brokerRole": "ASYNC_MASTER", **SMALL})
        result_of(MessageStore(settings).close())
        yield store, settings


def result_of(done: Deferred[None]) -> None:
    failures: list[object] = []
    done.addErrback(failures.append)
    assert not failures, failures


def plan(settings: Settings, output: Path, kind: CopyKind, end: int) -> CopyPlan:
    log = examine_source(settings, NodeState.read(settings.store_path_root_dir))
    return plan_copy(settings, output, kind, log, end)


def copy(settings: Settings, output: Path, end: int, kind: CopyKind = CopyKind.RESTORE) -> CopyDone:
    return copy_store(plan(settings, output, kind, end), settings)


def cut_of(settings: Settings, end: int, target: Target) -> Cut:
    log = open_log(settings, owned=False)
    try:
        return find_cut(log, end, target, settings, lambda _: None)
    finally:
        log.close()


def queue_ends(made: Made, end: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for message in made.messages:
        if message.end <= end:
            found[message.record.topic, message.record.queue_id] = message.record.queue_offset + 1
    return found


class GeneratedTests(SynchronousTestCase):
    @pytest.mark.long
    @UNHURRIED
    @given(st.data())
    def test_a_copy_is_the_log_up_to_there_and_its_queues_agree(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        end = data.draw(st.sampled_from([message.end for message in made.messages]))
        with store_of(made) as (store, settings):
            before = {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
            output = store.parent / "copy"
            done = copy(settings, output, end)
            self.assertEqual({path: path.read_bytes() for path in before}, before)
            copied = file_bytes(output / "commitlog")
            self.assertEqual((copied[:end], copied[end:].strip(b"\0")), (made.content[:end], b""))
            self.assertEqual(done.queues, len(queue_ends(made, end)))
            opened = MessageStore(make_settings({"storePathRootDir": str(output), "brokerRole": "ASYNC_MASTER"}))
            try:
                self.assertTrue(opened.recovery.clean_stop)
                self.assertEqual(opened.commit_log.verified_offset, end)
                self.assertEqual(opened.derived.queue_offsets(), queue_ends(made, end))
            finally:
                result_of(opened.close())
            self.assertEqual(list(store.parent.glob(".*")), [])

    @pytest.mark.long
    @UNHURRIED
    @given(st.data())
    def test_a_target_is_found_as_a_search_of_all_messages_finds_it(self, data: st.DataObject) -> None:
        made = data.draw(logs())
        inclusive = data.draw(st.booleans())
        with store_of(made) as (_, settings):
            message = data.draw(st.sampled_from(made.messages))
            record = message.record
            found = cut_of(
                settings,
                made.end,
                Target(message=(record.topic, record.queue_id, record.queue_offset), inclusive=inclusive),
            )
            self.assertEqual(found.end, message.end if inclusive else message.start)
            time = record.store_timestamp + data.draw(st.integers(-2, 2))
            limit = time + 1 if inclusive else time
            late = [number for number, each in enumerate(made.messages) if each.record.store_timestamp >= limit]
            first = late[0] if late else len(made.messages)
            expected = made.messages[first].start if late else made.end
            found = cut_of(settings, made.end, Target(time_ms=time, inclusive=inclusive))
            self.assertEqual(found.end, expected)
            earlier = [each for each in made.messages[first:] if each.record.store_timestamp < limit]
            self.assertEqual(found.earlier_after, len(earlier))
            offset = data.draw(st.integers(0, made.end))
            found = cut_of(settings, made.end, Target(offset=offset, inclusive=inclusive))
            bounds = [*made.starts, made.end]
            before = max(start for start in bounds if start <= offset)
            after = min((start for start in bounds if start > offset), default=made.end)
            self.assertEqual(found.end, made.end if offset == made.end else after if inclusive else before)

    def test_no_queue_is_needed_to_find_a_message(self) -> None:
        made = fixed_log()
        with store_of(made) as (store, settings):
            shutil.rmtree(store / "consumequeue")
            for message in made.messages:
                record = message.record
                target = Target(message=(record.topic, record.queue_id, record.queue_offset))
                self.assertEqual(cut_of(settings, made.end, target).end, message.start)


def each_second(number: int) -> int:
    return FIRST_TIME + 1000 * number


def fixed_log(
    count: int = 40, time_of: Callable[[int], int] = each_second, topic_of: Callable[[int], str] = lambda _: "A"
) -> Made:
    content, messages, starts = bytearray(), [], []
    offsets: Counter[tuple[str, int]] = Counter()
    for number in range(count):
        topic = topic_of(number)
        record = Record(
            topic,
            bytes([number]) * 300,
            f"KEYS\x01k{number}\x02",
            queue_id=number % 2,
            queue_offset=offsets[topic, number % 2],
            store_timestamp=time_of(number),
        )
        offsets[topic, number % 2] += 1
        room = SEGMENT_SIZE - len(content) % SEGMENT_SIZE
        if record.total_size + 8 > room:
            starts.append(len(content))
            content += encode_blank(room).ljust(room, b"\0")
        starts.append(len(content))
        messages.append(Stored(len(content), len(content) + record.total_size, record))
        content += encoded(record, len(content))
    return Made(bytes(content), messages, starts)


class CopyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.made = fixed_log()
        opened = store_of(self.made)
        self.store, self.settings = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        self.output = self.store.parent / "copy"
        self.middle = self.made.messages[20].start

    def test_a_restore_is_another_store_and_a_backup_is_the_same(self) -> None:
        NodeState("1f", epoch=4, offsets=Offsets(0, *[self.made.end] * 4)).write(self.store)
        copy(self.settings, self.output, self.middle)
        state = NodeState.read(self.output)
        assert state is not None
        self.assertNotEqual(state.store_id, "1f")
        self.assertEqual((state.epoch, state.epoch_start, state.offsets.confirmed), (5, self.middle, self.middle))
        backup = self.store.parent / "backup"
        copy(self.settings, backup, self.made.end, CopyKind.BACKUP)
        state = NodeState.read(backup)
        assert state is not None
        self.assertEqual((state.store_id, state.epoch, state.state), ("1f", 4, "STOPPED"))

    def test_tables_are_of_the_last_snapshot_and_offsets_within_queues(self) -> None:
        config = self.store / CONFIG_FOLDER
        for offset, consumed in ((self.made.messages[4].start, 2), (self.middle, 15), (self.made.end, 19)):
            write_snapshot(
                self.store,
                offset,
                FIRST_TIME,
                {
                    "consumerOffset.json": f'{{"offsetTable":{{"A@G":{{0:{consumed},1:1}},"%RETRY%G@G":{{0:5}}}}}}',
                    "delayOffset.json": '{"offsetTable":{1:7}}',
                },
            )
        ConsumerOffsetTable({"A@G": {0: 20, 1: 20}}).write(config)
        planned = plan(self.settings, self.output, CopyKind.RESTORE, self.middle)
        self.assertEqual(planned.tables_from, self.middle)
        done = copy_store(planned, self.settings)
        offsets = ConsumerOffsetTable.read(self.output / CONFIG_FOLDER).offset_table
        self.assertEqual(offsets, {"A@G": {0: 10, 1: 1}, "%RETRY%G@G": {0: 0}})
        self.assertEqual(DelayOffsetTable.read(self.output / CONFIG_FOLDER).offset_table, {1: 0})
        self.assertEqual(done.clamped, 3)
        self.assertEqual(snapshot_offsets(self.output), [self.made.messages[4].start, self.middle])

    def test_without_a_snapshot_the_tables_are_those_of_now(self) -> None:
        ConsumerOffsetTable({"A@G": {0: 20, 1: 3}}).write(self.store / CONFIG_FOLDER)
        (self.store / CONFIG_FOLDER / "consumerFilter.json").write_text("{}")
        planned = plan(self.settings, self.output, CopyKind.RESTORE, self.middle)
        self.assertIsNone(planned.tables_from)
        self.assertEqual(copy_store(planned, self.settings).clamped, 1)
        offsets = ConsumerOffsetTable.read(self.output / CONFIG_FOLDER).offset_table
        self.assertEqual(offsets, {"A@G": {0: 10, 1: 3}})
        self.assertTrue((self.output / CONFIG_FOLDER / "consumerFilter.json").exists())

    def test_what_is_at_the_output_is_never_overwritten(self) -> None:
        self.output.mkdir()
        (self.output / "mine").write_text("1")
        with self.assertRaises(OutputExists):
            copy(self.settings, self.output, self.middle)
        with self.assertRaises(OutputExists):
            copy(self.settings, self.store / "inside", self.middle)
        self.assertTrue(issubclass(OutputExists, NoStore))
        strange = self.store.parent / ".other.incomplete"
        strange.mkdir()
        (strange / "mine").write_text("1")
        with self.assertRaises(OutputExists):
            copy(self.settings, self.store.parent / "other", self.middle)

    def test_an_empty_folder_may_be_the_output(self) -> None:
        self.output.mkdir()
        copy(self.settings, self.output, self.middle)
        self.assertTrue((self.output / "commitlog").is_dir())

    def test_a_disk_without_room_changes_nothing(self) -> None:
        self.patch(prefix, "ROOM_LEFT_BYTES", 1 << 62)
        self.patch(prefix, "_shares_blocks", lambda source, parent: False)
        with self.assertRaisesRegex(NoRoom, "nothing was changed"):
            copy(self.settings, self.output, self.middle)
        self.assertFalse(self.output.exists())

    def test_a_damaged_source_is_refused(self) -> None:
        write_at(self.store / "commitlog", self.made.messages[-3].start + 100, b"!!!!")
        with self.assertRaises(LogDamaged):
            examine_source(self.settings, None)
        with self.assertRaisesRegex(StoreError, "damaged at"):
            cut_of(self.settings, self.made.end, Target(time_ms=FIRST_TIME + 10**9))

    def test_a_place_that_the_log_does_not_have_is_refused(self) -> None:
        for target in (Target(offset=self.made.end + 1), Target(message=("A", 0, 99)), Target(message=("../A", 0, 0))):
            with self.subTest(target=target), self.assertRaises(NoSuchTarget):
                cut_of(self.settings, self.made.end, target)

    def test_the_end_of_a_running_node_is_what_it_has_confirmed(self) -> None:
        NodeState("1f", offsets=Offsets(0, self.made.end, self.made.end, self.made.end, self.middle)).write(self.store)
        lock = LockFile(self.store / LOCK_FILE)
        self.addCleanup(lock.release)
        self.assertEqual(examine_source(self.settings, NodeState.read(self.store)).end, self.middle)
        self.assertEqual(examine_source(self.settings, None).end, self.made.end)  # a broker of another kind

    def test_a_backup_ends_with_a_whole_record_though_a_node_has_confirmed_a_part_of_one(self) -> None:
        confirmed = self.made.messages[20].start + 7
        NodeState("1f", offsets=Offsets(0, self.made.end, self.made.end, confirmed, confirmed)).write(self.store)
        lock = LockFile(self.store / LOCK_FILE)
        self.addCleanup(lock.release)
        self.assertEqual(examine_source(self.settings, NodeState.read(self.store)).end, self.middle)
        planned = plan(self.settings, self.output, CopyKind.BACKUP, self.middle)
        NodeState("1f", offsets=Offsets(0, *[self.made.end] * 4)).write(self.store)  # it has confirmed more since
        self.assertEqual(copy_store(planned, self.settings).queues, 2)
        state = NodeState.read(self.output)
        assert state is not None
        self.assertEqual((state.store_id, state.offsets.confirmed), ("1f", self.middle))

    def test_a_copy_without_reflinks_and_without_copy_file_range_is_the_same(self) -> None:
        def refuse(*_: object) -> int:
            raise OSError(22, "invalid")

        self.patch(os, "copy_file_range", refuse)
        copy(self.settings, self.output, self.middle)
        self.assertEqual(file_bytes(self.output / "commitlog")[: self.middle], self.made.content[: self.middle])

    def test_messages_put_after_a_restore_take_the_next_queue_offset(self) -> None:
        copy(self.settings, self.output, self.middle)
        opened = MessageStore(make_settings({"storePathRootDir": str(self.output), "brokerRole": "ASYNC_MASTER"}))
        try:
            self.assertEqual(opened.puts.appender.append(Message("A", b"new", queue_id=0)).logics_offset, 10)
        finally:
            result_of(opened.close())

    def stop_cleanly(self) -> None:
        """Let the store be one that our node stopped."""
        state = NodeState("1f", state=STOPPED, offsets=Offsets(0, *[self.made.end] * 4))
        state.write(self.store)
        result_of(
            MessageStore(make_settings({"storePathRootDir": str(self.store), **SMALL})).close(None, lambda: state)
        )

    def test_a_whole_copy_of_a_stopped_store_is_opened_as_its_next_start_would_open_it(self) -> None:
        self.stop_cleanly()
        for number, kind in enumerate(CopyKind):
            with self.subTest(kind=kind):
                output = self.store.parent / f"copy-{number}"
                scans, bulks = self.counted(CommitLog, "scan"), self.counted(Dispatcher, "run_slice")
                done = copy(self.settings, output, self.made.end, kind)
                self.assertEqual((len(scans), len(bulks)), (1, 0))  # it proves one segment, and dispatches nothing
                self.assertEqual(done.queues, len(queue_ends(self.made, self.made.end)))
                for name in ("consumequeue/A/0", "consumequeue/A/1", "index", "commitlog"):
                    self.assertEqual(file_bytes(output / name), file_bytes(self.store / name))
                self.assertEqual(self.ends_of(output), queue_ends(self.made, self.made.end))

    def counted(self, owner: type, name: str) -> list[None]:
        """A list that grows with each call of this method."""
        calls: list[None] = []
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(None)
            return real(*arguments, **named)

        self.patch(owner, name, call)
        return calls

    def ends_of(self, store: Path) -> dict[tuple[str, int], int]:
        opened = MessageStore(make_settings({"storePathRootDir": str(store), "brokerRole": "ASYNC_MASTER", **SMALL}))
        try:
            return {key: queue.max_offset for key, queue in opened.derived.queues.queues.items()}
        finally:
            result_of(opened.close())

    def test_a_copy_of_a_stopped_store_gets_units_back_that_its_queue_has_lost(self) -> None:
        self.stop_cleanly()
        queue = self.store / "consumequeue" / "A" / "0"
        last = queue_ends(self.made, self.made.end)["A", 0] - 1
        write_at(queue, last * 20, bytes(20), segment_size=400)
        copy(self.settings, self.output, self.made.end, CopyKind.BACKUP)
        self.assertEqual(self.ends_of(self.output), queue_ends(self.made, self.made.end))

    def test_a_copy_of_a_store_whose_dispatch_did_not_end_goes_on_with_it(self) -> None:
        self.stop_cleanly()
        DispatchMark(self.middle).write(self.store)
        whole = [file_bytes(self.store / "consumequeue" / "A" / str(queue)) for queue in (0, 1)]
        for queue in (0, 1):  # one queue has units of later messages than the other
            units = 10 + queue
            write_at(self.store / "consumequeue" / "A" / str(queue), units * 20, bytes(400 - units * 20), 400)
        (self.store / "rmqha" / "queue-ends.json").unlink(missing_ok=True)
        copy(self.settings, self.output, self.made.end, CopyKind.BACKUP)
        copied = [file_bytes(self.output / "consumequeue" / "A" / str(queue)) for queue in (0, 1)]
        self.assertEqual(copied, whole)

    def test_a_log_that_another_broker_continued_is_proved_as_after_a_crash(self) -> None:
        self.stop_cleanly()
        state = NodeState.read(self.store)
        assert state is not None
        replace(state, offsets=Offsets(0, *[self.middle] * 4)).write(self.store)
        self.assertEqual(examine_source(self.settings, NodeState.read(self.store)).end, self.made.end)
        (self.store / "abort").touch()
        self.assertIsNone(examine_source(self.settings, NodeState.read(self.store)).known)

    def test_a_copy_is_opened_as_after_a_crash_if_a_node_starts_meanwhile(self) -> None:
        self.stop_cleanly()
        planned = plan(self.settings, self.output, CopyKind.BACKUP, self.made.end)
        lock = LockFile(self.store / LOCK_FILE)
        self.addCleanup(lock.release)
        write_at(self.store / "commitlog", self.made.end, b"new")
        slices = self.counted(Dispatcher, "run_slice")
        copy_store(planned, self.settings)
        self.assertGreater(len(slices), 0)
        self.assertEqual(file_bytes(self.output / "commitlog").rstrip(b"\0"), self.made.content.rstrip(b"\0"))
        self.assertFalse((self.output / "rmqha" / "cut").exists())
        self.assertEqual(self.ends_of(self.output), queue_ends(self.made, self.made.end))

    def test_a_copy_that_dies_anywhere_leaves_the_output_as_it_was_and_can_be_made_again(self) -> None:
        planned = plan(self.settings, self.output, CopyKind.RESTORE, self.middle)
        steps = 0
        for step in range(200):
            died = self._die_at(step, planned)
            if self.output.exists():  # whole, or not at all
                content = file_bytes(self.output / "commitlog")
                self.assertEqual(content[: self.middle], self.made.content[: self.middle], step)
                self.assertFalse((self.output / "abort").exists())
                _rmtree(self.output)
            if not died:
                steps = step
                break
        self.assertGreater(steps, 10)

    def _die_at(self, step: int, planned: CopyPlan) -> bool:
        """Whether the process died at this step; then what it had made is still there, as after SIGKILL."""
        left = [step]

        def dying(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                if not left[0]:
                    raise Died
                left[0] -= 1
                return real(*arguments, **named)

            return call

        patches = [self.patch(module, name, dying(getattr(module, name))) for module, name in STEPS]
        patches += [self.patch(os, "copy_file_range", dying(os.copy_file_range))]
        patches += [self.patch(shutil, "copyfile", dying(shutil.copyfile)), self.patch(shutil, "rmtree", _keep)]
        try:
            copy_store(planned, self.settings)
        except Died:
            return True
        finally:
            for patch in patches:
                patch.restore()
        return False


STEPS = [
    *((newstore, name) for name in ("sync_file_system", "sync_folder", "LockFile")),
    *((prefix, name) for name in ("MessageStore", "clamp_offsets", "read_snapshot", "read_tables")),
]


class Died(BaseException):
    """The process is gone."""


def _keep(path: Path, ignore_errors: bool = False) -> None:
    if not ignore_errors:  # only what cleans up after an error: a process that is gone cleans up nothing
        _rmtree(path)


_rmtree = shutil.rmtree
