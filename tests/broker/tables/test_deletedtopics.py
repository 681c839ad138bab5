"""Deletions of topics, and what a death in the middle of one leaves (spec/store.md 13.5)."""

from collections.abc import Iterable

from twisted.internet.defer import execute

from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.store.deletions import NOTHING_DELETED, DeletedTopicTable, Deletion
from rmqha.store.metadata import ConsumerOffsetTable
from tests.broker.brokerstore import BrokerStoreTestCase, SetWallClock, deleted_topics

OFFSETS = {
    "T@G": {0: 3, 1: 1},
    "U@G": {0: 1},
    "%RETRY%G@G": {0: 1},
    "T@H": {0: 2},
    "U@H": {0: 1},
}


class DeathTests(BrokerStoreTestCase):
    def start_tables(self) -> None:
        """The tables as a start reads them."""
        self.offsets = ConsumerOffsetManager(self.folder, self.clock, 5000, execute)
        topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        self.deleted = deleted_topics(self, topics, self.offsets)

    def setUp(self) -> None:
        super().setUp()
        self.open()
        self.start_tables()
        self.put(b"1", b"2", b"3")
        self.put(b"4", queue_id=1)
        self.put(b"5", topic="U")
        self.put(b"6", topic="%RETRY%G")
        self.put(b"7", topic="%RETRY%H")
        self.offsets.merge(ConsumerOffsetTable({key: dict(offsets) for key, offsets in OFFSETS.items()}))
        self.successResultOf(self.offsets.persist())

    def die_while_deleting(self, topic: str) -> None:
        """The broker dies when the mark is on the disk, before the offsets go. It starts again."""
        with self.subTest(topic=topic):
            self.patch(self.deleted, "_consumer_offsets", None)
            self.failureResultOf(self.deleted.delete(topic), AttributeError)
        self.start_tables()

    def test_what_groups_had_read_of_the_topic_goes_at_the_next_start(self) -> None:
        self.die_while_deleting("T")
        left = {key: offsets for key, offsets in OFFSETS.items() if not key.startswith("T@")}
        self.assertEqual(self.offsets.table.offset_table, left)
        self.successResultOf(self.offsets.persist())
        self.assertEqual(ConsumerOffsetTable.read(self.folder).offset_table, left)

    def test_what_they_read_of_the_new_topic_stays(self) -> None:
        self.die_while_deleting("T")
        self.put(b"7", b"8")
        self.offsets.commit("G", "T", 0, 1, "client")
        self.offsets.commit("G", "T", 1, 0, "client")
        self.successResultOf(self.offsets.persist())
        self.start_tables()
        self.assertEqual(self.offsets.table.offset_table["T@G"], {0: 1, 1: 0})

    def test_what_a_deleted_group_had_read_goes_too(self) -> None:
        """The mark of its topic of retries stands for it. A group that is there again keeps what it has."""
        self.die_while_deleting("%RETRY%H")
        self.die_while_deleting("%RETRY%G")
        left = {key: offsets for key, offsets in OFFSETS.items() if key in ("T@G", "U@G")}
        self.assertEqual(self.offsets.table.offset_table, left)


class FollowTests(BrokerStoreTestCase):
    def test_queues_are_built_again_before_the_table_drops_a_deletion(self) -> None:
        """A start does not see that a queue lacks messages that the table does not call deleted any more."""
        store = self.open()
        offsets = ConsumerOffsetManager(self.folder, self.clock, 5000, execute)
        deleted = deleted_topics(self, TopicConfigManager(self.folder, self.settings, SetWallClock()), offsets)
        self.put(b"1", b"2")
        self.successResultOf(deleted.delete("T"))
        persist, ends = deleted.persist, list[int]()

        def note_end() -> None:
            store.derived.dispatcher.catch_up()
            queue = store.derived.queues.get("T", 0)
            ends.append(0 if queue is None else queue.max_offset)
            persist()

        self.patch(deleted, "persist", note_end)
        following = deleted.follow(NOTHING_DELETED, 0)
        self.clock.pump([0] * 10)
        self.successResultOf(following)
        self.assertEqual(ends, [2])
        self.assertEqual(deleted.table.deletions, ())


class FoundTests(BrokerStoreTestCase):
    def test_many_topics_that_a_java_master_has_deleted_make_one_new_table(self) -> None:
        """A table may have 20,000 deletions: making one for each topic would hold up all else."""
        self.open("SLAVE")
        offsets = ConsumerOffsetManager(self.folder, self.clock, 5000, execute)
        deleted = deleted_topics(self, TopicConfigManager(self.folder, self.settings, SetWallClock()), offsets)
        made: list[DeletedTopicTable] = []

        def of(table: DeletedTopicTable, deletions: Iterable[Deletion]) -> DeletedTopicTable:
            made.append(DeletedTopicTable(tuple(deletions)))
            return made[-1]

        self.patch(DeletedTopicTable, "of", of)
        found = deleted.found({f"T{number}": number + 1 for number in range(50)})
        self.clock.pump([0] * 10)
        self.successResultOf(found)
        self.assertEqual([len(table.deletions) for table in made], [50])
        self.assertEqual(len(deleted.table.deletions), 50)
