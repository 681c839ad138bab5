"""Deleted topics: what a log and its marks give, whoever builds queues from them (spec/store.md 13.5)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import at_once
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.rebuild import rebuild
from rmqha.pipeline.options import Options
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store import deletions as deletions_module
from rmqha.store import removals as removals_module
from rmqha.store.deletions import MAX_MARKS, NOTHING_DELETED, DeletedTopicTable, Deletion, drop_offsets, read_deletions
from rmqha.store.derived import derived as derived_module
from rmqha.store.derived.dispatchmark import DispatchMark, remove_mark
from rmqha.store.derived.replacing import retire_topic
from rmqha.store.examining import ABORT_FILE
from rmqha.store.log.flush import Flusher
from rmqha.store.log.mappedfile import DISK, Disk, Syncable
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, TopicConfig, TopicConfigTable
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.audit import KnownOfLog, audit
from rmqha.store.offline.prefix import CopyKind, copy_store, examine_source, plan_copy
from rmqha.store.offline.promote import plan_promotion, promote
from rmqha.store.tablesnapshots import read_tables, snapshot_offsets, write_snapshot
from rmqha.wire.record import Buffer
from tests import examples
from tests.store.log.test_flush import Thread
from tests.store.offline.test_prefix import Made, fixed_log, logs, result_of, store_of

NOW_MS = 1_795_000_000_000


def queues_in(opened: MessageStore) -> dict[tuple[str, int], list[int]]:
    """Where the messages of each queue are in the log."""
    found = {}
    for key, queue in opened.derived.queues.queues.items():
        units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
        if units:
            found[key] = [unit.physical_offset for unit in units if unit is not None]
    return found


def expected_queues(made: Made, marks: dict[str, int]) -> dict[tuple[str, int], list[int]]:
    """The same as the marks say."""
    found: dict[tuple[str, int], list[int]] = {}
    for message in made.messages:
        record = message.record
        if message.start >= marks.get(record.topic, 0):
            found.setdefault((record.topic, record.queue_id), []).append(message.start)
    return found


def renumbered(made: Made, marks: dict[str, int]) -> Made:
    """The log of a broker that deleted these topics there: queue offsets begin anew."""
    content, counts, messages = bytearray(made.content), dict[tuple[str, int, bool], int](), []
    for message in made.messages:
        key = (message.record.topic, message.record.queue_id, message.start >= marks.get(message.record.topic, 0))
        offset = counts.get(key, 0)
        counts[key] = offset + 1
        content[message.start + 20 : message.start + 28] = offset.to_bytes(8, "big")
        messages.append(replace(message, record=replace(message.record, queue_offset=offset)))
    return replace(made, content=bytes(content), messages=messages)


def two_topics() -> Made:
    """Messages of A, and from the 10th on every third of Bb."""
    return fixed_log(topic_of=lambda number: "Bb" if number >= 10 and number % 3 == 0 else "A")


@st.composite
def deleted_logs(draw: st.DrawFn) -> tuple[Made, DeletedTopicTable]:
    """A log, and deletions of some of its topics at places in it."""
    made = draw(logs())
    places = [*made.starts, made.end]
    marks = {topic: draw(st.sampled_from(places)) for topic in draw(st.sets(st.sampled_from(["A", "Bb", "Gone"])))}
    deletions = DeletedTopicTable(tuple(Deletion(topic, offset, NOW_MS) for topic, offset in sorted(marks.items())))
    return renumbered(made, marks), deletions


class Worker(Thread):
    """A thread that knows whether it runs."""

    is_running = False

    def __call__(self, function: Callable[[], None], /) -> Deferred[None]:
        def work() -> None:
            self.is_running = True
            try:
                function()
            finally:
                self.is_running = False

        return super().__call__(work)

    def jobs(self) -> Iterator[None]:
        """Do what waits, and what comes meanwhile, one by one."""
        while self.waiting:
            self.run()
            yield

    def run_all(self) -> None:
        """Do all that."""
        for _ in self.jobs():
            pass


class WatchedDisk(Disk):
    """While ``is_watching``, what waits for the disk, or grows with the number of files, must be in the thread."""

    def __init__(self, thread: Worker) -> None:
        self._thread = thread
        self.is_watching = False
        self.waits = 0

    def _look(self) -> None:
        if self.is_watching:
            assert self._thread.is_running, "the reactor waits for the disk"
            self.waits += 1

    def sync_folder(self, folder: Path) -> None:
        self._look()
        super().sync_folder(folder)

    def sync_all(self, files: Sequence[Syncable]) -> None:
        self._look()
        super().sync_all(files)

    def replace(self, path: Path, content: bytes, mode: int | None = None) -> None:
        self._look()
        super().replace(path, content, mode)

    def overwrite(self, path: Path, content: bytes, file_size: int) -> None:
        self._look()
        super().overwrite(path, content, file_size)

    def write_new(self, path: Path, pieces: Iterable[Buffer]) -> None:
        self._look()
        super().write_new(path, pieces)

    def remove_tree(self, path: Path) -> None:
        self._look()
        super().remove_tree(path)


class StoreTestCase(SynchronousTestCase):
    """Looks at stores that are closed."""

    def look(self, settings: Settings) -> dict[tuple[str, int], list[int]]:
        """Open the store, see what queues it has, and close it."""
        opened = MessageStore(settings)
        opened.derived.dispatcher.catch_up()
        found = queues_in(opened)
        result_of(opened.close())
        return found

    def assert_sound(self, store: Path, settings: Settings, end: int) -> None:
        """``rmqha verify`` finds no fault with the queues."""
        opened = MessageStore(settings)
        found = audit(store, opened.commit_log, end, settings, lambda _: None)
        result_of(opened.close())
        self.assertEqual(found.problems, ())


class BuildingTests(StoreTestCase):
    @pytest.mark.long
    @given(deleted_logs(), st.sampled_from(["clean", "crash", "no queues", "rebuild", "late", "slave"]))
    @hypothesis_settings(deadline=None, max_examples=examples(60))
    def test_each_way_to_build_queues_leaves_out_what_was_deleted(
        self, made_deletions: tuple[Made, DeletedTopicTable], way: str
    ) -> None:
        made, deletions = made_deletions
        with store_of(made) as (store, settings):  # its queues were built without the marks
            deletions.write(store / CONFIG_FOLDER)
            if way == "crash":
                (store / ABORT_FILE).touch()
            elif way == "no queues":
                DISK.remove_tree(store / "consumequeue")
            elif way == "rebuild":
                rebuild(Options(path=store, settings=settings), LocalEngine())
            elif way == "slave":
                settings = replace(settings, broker_role=BrokerRole.SLAVE)
            elif way == "late":
                (store / CONFIG_FOLDER / "deletedTopics.json").unlink()
                opened = MessageStore(settings)
                at_once(opened.setting_deleted(deletions))
                opened.derived.dispatcher.catch_up()
                deletions.write(store / CONFIG_FOLDER)
                result_of(opened.close())
            self.assertEqual(self.look(settings), expected_queues(made, dict(deletions.marks)))
            self.assert_sound(store, settings, made.end)
            self.assertEqual(list((store / "rmqha").glob("rebuild/*")), [])

    @given(deleted_logs())
    @hypothesis_settings(deadline=None, max_examples=examples(30))
    def test_what_was_not_deleted_after_all_comes_back(self, made_deletions: tuple[Made, DeletedTopicTable]) -> None:
        made, deletions = made_deletions
        with store_of(renumbered(made, {})) as (store, settings):
            deletions.write(store / CONFIG_FOLDER)
            opened = MessageStore(settings)
            at_once(opened.setting_deleted(NOTHING_DELETED))
            opened.derived.dispatcher.catch_up()
            self.assertEqual(queues_in(opened), expected_queues(made, {}))
            result_of(opened.close())

    def test_a_mark_that_goes_because_there_are_too_many_brings_nothing_back(self) -> None:
        """That is so on the master and on its slave, whose table follows the master's."""
        self.patch(deletions_module, "MAX_MARKS", 2)
        made = two_topics()
        with store_of(renumbered(made, {})) as (_, settings):
            opened = MessageStore(settings)
            first = DeletedTopicTable((Deletion("A", made.end),))
            at_once(opened.setting_deleted(first))
            masters = first.adding([Deletion("X", made.end + 1)], 0).adding([Deletion("Y", made.end + 2)], 0)
            self.assertEqual(masters.marks.keys(), {"X", "Y"})
            self.assertEqual(first.following(masters, 0, 0), masters)
            at_once(opened.setting_deleted(masters))
            self.assertEqual(opened.derived.dispatcher.behind_bytes, 0)
            self.assertEqual({topic for topic, _ in queues_in(opened)}, {"Bb"})
            result_of(opened.close())

    def test_a_death_right_after_the_mark_is_no_matter(self) -> None:
        """The queues are there still. The clean stop before it has noted their ends."""
        with store_of(renumbered(two_topics(), {})) as (store, settings):
            opened = MessageStore(settings)
            end = opened.commit_log.max_offset
            opened.abandon()
            DeletedTopicTable((Deletion("A", end),)).write(store / CONFIG_FOLDER)
            opened = MessageStore(settings)
            self.assertEqual({topic for topic, _ in queues_in(opened)}, {"Bb"})
            self.assertEqual({topic for topic, _ in opened.derived.queue_offsets()}, {"Bb"})
            result_of(opened.close())

    def open_with(self, thread: Thread, settings: Settings, disk: Disk = DISK) -> tuple[MessageStore, Flusher]:
        """The store, open with this thread, and its flusher."""
        opened = MessageStore(settings, disk=disk)
        return opened, opened.start_flushing(Clock(), thread, self.fail)

    def many_topics(self) -> tuple[Made, DeletedTopicTable]:
        """A log with many topics, of which the first 20 are deleted, all at once."""
        self.patch(removals_module, "TOPICS_RETIRED", 4)
        made = fixed_log(topic_of=lambda number: f"T{number % 30}")
        marks = {f"T{number}": made.messages[19].end for number in range(20)}
        return renumbered(made, marks), DeletedTopicTable(tuple(Deletion(*item) for item in marks.items()))

    def test_many_deletions_are_taken_in_portions(self) -> None:
        """A slave may learn of hundreds at once. No turn of the reactor takes them all."""
        made, deletions = self.many_topics()
        with store_of(renumbered(made, {})) as (_, settings):
            thread = Worker()
            opened, flusher = self.open_with(thread, settings)
            left = [len(opened.derived.queues.queues)]
            building = at_once(opened.setting_deleted(deletions))
            left += [len(opened.derived.queues.queues) for _ in thread.jobs()]
            self.assertEqual([before - after for before, after in pairwise(left)], [4, 4, 4, 4, 4, 0, 0])
            self.successResultOf(building)
            opened.derived.dispatcher.catch_up()
            self.assertEqual(queues_in(opened), expected_queues(made, dict(deletions.marks)))
            result_of(opened.close(flusher))

    @given(st.integers(0, 7), st.booleans(), st.sampled_from(["stop", "death", "new queues"]))
    @hypothesis_settings(deadline=None, max_examples=examples(25))
    @pytest.mark.long
    def test_a_stop_or_a_death_between_the_portions_is_no_matter(
        self, portions: int, dispatches: bool, end: str
    ) -> None:
        """Also if queues and index are opened again meanwhile."""
        made, deletions = self.many_topics()
        with store_of(renumbered(made, {})) as (store, settings):
            thread = Worker()
            opened, flusher = self.open_with(thread, settings)
            deletions.write(store / CONFIG_FOLDER)
            building = at_once(opened.setting_deleted(deletions))
            for _, _ in zip(range(portions), thread.jobs(), strict=False):
                if dispatches:
                    opened.derived.dispatcher.catch_up()
            if end == "death":
                opened.abandon()
            else:
                if end == "new queues":
                    opened._reopen_derived()
                closing = opened.close(flusher)
                thread.run_all()
                self.successResultOf(closing)
                self.successResultOf(building)
            self.assertEqual(self.look(settings), expected_queues(made, dict(deletions.marks)))

    def test_a_disk_that_refuses_a_portion_is_asked_again(self) -> None:
        made, deletions = self.many_topics()

        def refuse(root: Path, topic: str, folder: Path, disk: Disk) -> Iterator[Path]:
            if topic == "T5":
                raise OSError(28, "no room")
            return retire_topic(root, topic, folder, disk)

        with store_of(renumbered(made, {})) as (_, settings):
            opened = MessageStore(settings)
            before = queues_in(opened)
            refused = [key for key in before if key[0] == "T5"]
            with patch.object(derived_module, "retire_topic", refuse):
                self.failureResultOf(at_once(opened.setting_deleted(deletions)), OSError)
            opened.derived.dispatcher.catch_up()
            left = queues_in(opened)
            self.assertEqual({key: left[key] for key in refused}, {key: before[key] for key in refused})
            self.successResultOf(at_once(opened.setting_deleted(deletions)))
            opened.derived.dispatcher.catch_up()
            self.assertEqual(queues_in(opened), expected_queues(made, dict(deletions.marks)))
            result_of(opened.close())

    def test_no_turn_of_the_reactor_waits_for_the_disk(self) -> None:
        """Also if a master that we follow now has not deleted topics."""
        made, deletions = self.many_topics()
        with store_of(renumbered(made, {})) as (_, settings):
            thread = Worker()
            disk = WatchedDisk(thread)
            opened, flusher = self.open_with(thread, settings, disk)
            for table in (deletions, NOTHING_DELETED):
                disk.is_watching = True
                building = at_once(opened.setting_deleted(table))
                thread.run_all()
                disk.is_watching = False
                self.successResultOf(building)
                opened.derived.dispatcher.catch_up()
            self.assertGreater(disk.waits, 2 * 5)
            self.assertEqual(queues_in(opened), expected_queues(made, {}))
            result_of(opened.close(flusher))

    def test_queues_that_are_opened_again_meanwhile_are_left_alone(self) -> None:
        """Neither they nor their mark are those of the deletion, whose work the thread has not done yet."""
        made, deletions = self.many_topics()
        for done in range(3):
            with store_of(renumbered(made, {})) as (store, settings):
                thread = Worker()
                opened, flusher = self.open_with(thread, settings)
                deletions.write(store / CONFIG_FOLDER)
                building = at_once(opened.setting_deleted(deletions))
                for _, _ in zip(range(done), thread.jobs(), strict=False):
                    pass
                opened._reopen_derived()
                remove_mark(store)
                opened.derived.dispatcher.catch_up()
                thread.run_all()
                self.successResultOf(building)
                self.assertIsNone(DispatchMark.read(store))
                self.assertEqual(queues_in(opened), expected_queues(made, dict(deletions.marks)))
                result_of(opened.close(flusher))

    def test_a_deletion_while_verify_looks_is_no_problem(self) -> None:
        """The mark is on the disk before the queues go."""
        with store_of(renumbered(two_topics(), {})) as (store, settings):
            opened = MessageStore(settings)
            end = opened.commit_log.max_offset
            DeletedTopicTable((Deletion("A", end),)).write(store / CONFIG_FOLDER)
            self.assertEqual(
                audit(store, opened.commit_log, end, settings, lambda _: None, KnownOfLog(live=True)).problems, ()
            )
            result_of(opened.close())

    def test_the_marks_of_a_master_whose_log_lost_its_end_count_from_its_new_end(self) -> None:
        """What it puts then was not deleted."""
        made = two_topics()
        with store_of(made) as (store, settings):
            DeletedTopicTable((Deletion("A", made.end + 1000, NOW_MS),)).write(store / CONFIG_FOLDER)
            self.look(replace(settings, broker_role=BrokerRole.SLAVE))
            self.assertEqual(read_deletions(store).marks, {"A": made.end + 1000}, "its master's log is longer")
            self.look(settings)
            self.assertEqual(read_deletions(store).deletions, (Deletion("A", made.end, NOW_MS),))


class TableTests(SynchronousTestCase):
    def test_marks_before_the_logs_start_are_dropped(self) -> None:
        table = DeletedTopicTable((Deletion("A", 10), Deletion("B", 20))).adding([Deletion("C", 30)], 10)
        self.assertEqual(table.deletions, (Deletion("B", 20), Deletion("C", 30)))

    @pytest.mark.long
    def test_there_are_never_too_many(self) -> None:
        """Marks of topics that were deleted again go first, then the oldest."""
        many = [Deletion(f"T{number % 15_000}", number + 1) for number in range(MAX_MARKS)]
        table = DeletedTopicTable(tuple(many))
        for number in range(3):
            table = table.adding([Deletion(f"New{number}", MAX_MARKS + number)], 0)
        self.assertEqual(len(table.deletions), MAX_MARKS)
        self.assertEqual(table.deletions[:2], (Deletion("T3", 4), Deletion("T4", 5)))
        self.assertEqual(len(table.marks), 15_003)
        old = DeletedTopicTable(tuple(Deletion(f"T{number}", number + 1) for number in range(MAX_MARKS)))
        again = old.adding([Deletion("T0", MAX_MARKS + 1)], 0).adding([Deletion("New", MAX_MARKS + 2)], 0)
        self.assertEqual(again.deletions[0], Deletion("T2", 3))

    def test_a_log_that_goes_back_has_the_deletions_up_to_its_end(self) -> None:
        """Whatever their times say: a clock may have been set back."""
        at_the_end, later = Deletion("A", 100, 5), Deletion("B", 101, 4)
        table = DeletedTopicTable((at_the_end, later))
        self.assertEqual(table.up_to(100).deletions, (at_the_end,))
        self.assertEqual(table.before(100, 6).deletions, (at_the_end,))
        self.assertEqual(table.before(100, 5).deletions, ())
        self.assertEqual(table.before(100, None).deletions, ())

    def test_a_slave_keeps_what_its_master_has_dropped_with_its_messages(self) -> None:
        ours = DeletedTopicTable((Deletion("A", 10), Deletion("B", 200)))
        theirs = DeletedTopicTable((Deletion("C", 300),))
        self.assertEqual(ours.following(theirs, 100, 0).deletions, (Deletion("A", 10), Deletion("C", 300)))
        self.assertEqual(ours.following(theirs, 100, 50).deletions, (Deletion("C", 300),))

    def test_offsets_go_with_their_topic_and_those_of_a_group_with_its_retries(self) -> None:
        offsets = {"A@G": {0: 1}, "B@G": {0: 1}, "A@H": {0: 1}, "B@H": {0: 1}, "%RETRY%H@H": {0: 1}}
        drop_offsets(offsets, {"A", "%RETRY%H"})
        self.assertEqual(offsets, {"B@G": {0: 1}})

    def test_what_is_written_is_read(self) -> None:
        table = DeletedTopicTable((Deletion("日本", 5, 6), Deletion("B", 5, 7), Deletion("日本", 9, 8)))
        self.assertEqual(DeletedTopicTable.from_json(table.to_json()), table)

    def test_a_file_that_is_none_is_refused_in_words(self) -> None:
        for content, words in (
            ([], "is not an object"),
            ({"deletedTopics": {"T": 5}}, "are not a list"),
            ({"deletedTopics": {"T": [5]}}, "is not an object"),
            ({"deletedTopics": {"T": [{"offset": -5}]}}, "which is not an offset"),
            ({"deletedTopics": {"T": [{}]}}, "is not an integer"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                DeletedTopicTable.from_json(content)


class RestoreTests(StoreTestCase):
    """A restore to a time has the topics of that time."""

    def setUp(self) -> None:
        self.made = two_topics()
        opened = store_of(self.made)
        self.store, self.settings = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        self.output = Path(self.mktemp())

    def restore(self, end: int, before_ms: int | None = None) -> tuple[set[str], set[str], dict[str, dict[int, int]]]:
        """Restore up to ``end``; the topics of the table, of the queues, and the groups' offsets."""
        log = examine_source(self.settings, NodeState.read(self.store))
        copy_store(plan_copy(self.settings, self.output, CopyKind.RESTORE, log, end, before_ms), self.settings)
        own = replace(self.settings, store_path_root_dir=self.output)
        queues = {topic for topic, _ in self.look(own)}
        self.assert_sound(self.output, own, end)
        config = self.output / CONFIG_FOLDER
        return set(TopicConfigTable.read(config).rows), queues, ConsumerOffsetTable.read(config).offset_table

    def write_topics(self, *topics: str) -> None:
        TopicConfigTable(topic_config_table={topic: TopicConfig(topic, 4, 4) for topic in topics}).write(
            self.store / CONFIG_FOLDER
        )

    def snapshot(self, offset: int, topics_up_to: int | None = None) -> None:
        write_snapshot(self.store, offset, NOW_MS, read_tables(self.store), topics_up_to)

    def test_topics_that_are_younger_than_the_last_snapshot_of_tables_are_there(self) -> None:
        self.write_topics("A")
        first = next(message for message in self.made.messages if message.record.topic == "Bb")
        self.snapshot(first.start)
        self.write_topics("A", "Bb")
        self.assertEqual(self.restore(self.made.end)[:2], ({"A", "Bb"}, {"A", "Bb"}))

    def test_a_slaves_snapshot_may_be_older_than_its_log(self) -> None:
        self.write_topics("A")
        self.snapshot(self.made.end, 0)
        self.assertEqual(self.restore(self.made.end)[0], {"A", "Bb"})

    def test_a_topic_that_was_gone_before_the_snapshot_stays_away(self) -> None:
        """It was deleted before deletions left marks, or on a Java master."""
        self.write_topics("A")
        self.snapshot(self.made.end)
        self.assertEqual(self.restore(self.made.end)[0], {"A"})

    def test_a_topic_that_was_deleted_after_the_snapshot_is_gone(self) -> None:
        self.write_topics("A", "Bb")
        ConsumerOffsetTable({"A@G": {0: 1}, "Bb@G": {0: 1}}).write(self.store / CONFIG_FOLDER)
        self.snapshot(self.made.messages[2].start)
        self.write_topics("A")
        DeletedTopicTable((Deletion("Bb", self.made.end),)).write(self.store / CONFIG_FOLDER)
        self.look(self.settings)
        self.assertEqual(self.restore(self.made.end, NOW_MS), ({"A"}, {"A"}, {"A@G": {0: 1}}))

    def delete_at_the_end(self, snapshot_after: bool) -> None:
        """Nothing comes after the last message but the deletion of Bb, and perhaps a snapshot of tables."""
        self.write_topics("A", "Bb")
        ConsumerOffsetTable({"A@G": {0: 1}, "Bb@G": {0: 1}}).write(self.store / CONFIG_FOLDER)
        self.snapshot(self.made.messages[-1].start)
        self.write_topics("A")
        ConsumerOffsetTable({"A@G": {0: 1}}).write(self.store / CONFIG_FOLDER)
        DeletedTopicTable((Deletion("Bb", self.made.end, NOW_MS),)).write(self.store / CONFIG_FOLDER)
        self.look(self.settings)
        if snapshot_after:
            self.snapshot(self.made.end)

    def test_a_restore_up_to_a_deletion_has_the_topic_and_its_groups_offsets(self) -> None:
        """The runbook says to type the offset that deletedTopics.json names."""
        for snapshot_after in (False, True):
            self.delete_at_the_end(snapshot_after)
            rows, queues, offsets = self.restore(self.made.end)
            self.assertEqual((rows, queues), ({"A", "Bb"}, {"A", "Bb"}))
            self.assertEqual(offsets, {"A@G": {0: 1}, "Bb@G": {0: 1}})
            self.assertEqual(read_deletions(self.output), NOTHING_DELETED)
            self.assertEqual(snapshot_offsets(self.output), [self.made.messages[-1].start])
            self.output = Path(self.mktemp())

    def test_a_restore_to_a_time_has_what_was_deleted_later_without_a_message(self) -> None:
        self.delete_at_the_end(snapshot_after=True)
        self.assertEqual(self.restore(self.made.end, NOW_MS)[0], {"A", "Bb"})
        self.output = Path(self.mktemp())
        self.assertEqual(self.restore(self.made.end, NOW_MS + 1)[0], {"A"})

    def test_a_topic_that_was_deleted_later_is_there_with_all_its_messages(self) -> None:
        """That is what a restore to a time is for. The source has no queues of it any more."""
        cut = self.made.messages[len(self.made.messages) // 2].end
        before = expected_queues(self.made, {})
        DeletedTopicTable((Deletion("Bb", self.made.end),)).write(self.store / CONFIG_FOLDER)
        self.write_topics("A")
        self.look(self.settings)
        rows, _, _ = self.restore(cut)
        self.assertEqual(rows, {"A", "Bb"})
        own = replace(self.settings, store_path_root_dir=self.output)
        expected = {key: [at for at in places if at < cut] for key, places in before.items()}
        self.assertEqual(self.look(own), {key: places for key, places in expected.items() if places})
        self.assertEqual(read_deletions(self.output), NOTHING_DELETED)


class PromotionTests(StoreTestCase):
    def test_a_promotion_takes_topics_by_the_offset_up_to_which_their_table_reaches(self) -> None:
        """Not by the clock: an old message of a topic that the table lacks is no proof that it was deleted."""
        made = two_topics()
        first = next(message for message in made.messages if message.record.topic == "Bb")
        for up_to, topics in ((first.start, {"A", "Bb"}), (made.end, {"A"})):
            with store_of(made) as (store, settings):
                TopicConfigTable(topic_config_table={"A": TopicConfig("A", 4, 4)}).write(store / CONFIG_FOLDER)
                tables = {"inSync": True, "upTo": up_to}
                state = NodeState("1f", role="SLAVE", state="IN_SYNC", offsets=Offsets(0, *[made.end] * 4))
                replace(state, tables=tables).write(store)
                promote(settings, BrokerRole.ASYNC_MASTER, NOW_MS)
                self.assertEqual(set(TopicConfigTable.read(store / CONFIG_FOLDER).rows), topics)

    def test_after_a_cut_the_table_of_topics_reaches_to_the_end_of_the_log_at_most(self) -> None:
        """Another master may put messages of other topics there."""
        made = two_topics()
        with store_of(made) as (store, settings):
            state = NodeState("1f", role="SLAVE", state="IN_SYNC", offsets=Offsets(0, *[made.end] * 4))
            replace(state, tables={"upTo": made.end + 1000}).write(store)
            opened = MessageStore(replace(settings, broker_role=BrokerRole.SLAVE))
            self.assertEqual(opened.topics_up_to, made.end)
            result_of(opened.close())

    @pytest.mark.long
    @given(deleted_logs(), st.booleans())
    @hypothesis_settings(deadline=None, max_examples=examples(20))
    def test_what_a_promotion_foretells_leaves_out_what_was_deleted(
        self, made_deletions: tuple[Made, DeletedTopicTable], is_built: bool
    ) -> None:
        made, deletions = made_deletions
        with store_of(made) as (store, settings):
            deletions.write(store / CONFIG_FOLDER)
            self.look(replace(settings, broker_role=BrokerRole.SLAVE))
            if not is_built:
                DISK.remove_tree(store / "consumequeue")
            state = NodeState("1f", role="SLAVE", state="IN_SYNC", offsets=Offsets(0, *[made.end] * 4))
            state.write(store)
            foretold = plan_promotion(settings, BrokerRole.ASYNC_MASTER, state)
            done = promote(settings, BrokerRole.ASYNC_MASTER, NOW_MS)
            expected = {key: len(at) for key, at in expected_queues(made, dict(deletions.marks)).items()}
            self.assertEqual({key: end for key, end in foretold.queue_ends.items() if end}, expected)
            self.assertEqual({key: end for key, end in done.queue_ends.items() if end}, expected)
