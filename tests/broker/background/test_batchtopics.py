"""The store learns which topics have batch consume queues."""

from typing import Any

from rmqha.broker.background.batchtopics import LOOK_SECONDS, BatchTopics
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.store.metadata import TopicConfig
from tests.broker.brokerstore import BrokerStoreTestCase, SetWallClock


class BatchTopicsTests(BrokerStoreTestCase):
    def look(self) -> BatchTopics:
        self.topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        found = BatchTopics(self.store, self.topics, self.clock)
        found.startService()
        self.addCleanup(found.stopService)
        return found

    def test_the_store_learns_of_topics_with_batch_queues(self) -> None:
        self.open()
        self.look()
        self.assertFalse(self.store.derived.queues.types.is_batch("TBatch"))
        self.topics.update(TopicConfig("TBatch", unknown={"attributes": {"queue.type": "BatchCQ"}}))
        self.clock.advance(LOOK_SECONDS)
        self.assertTrue(self.store.derived.queues.types.is_batch("TBatch"))
        self.topics.delete("TBatch")
        self.clock.advance(LOOK_SECONDS)
        self.assertFalse(self.store.derived.queues.types.is_batch("TBatch"))

    def test_other_attributes_make_no_batch_queues(self) -> None:
        self.open()
        odd: tuple[Any, ...] = ({"attributes": None}, {"attributes": ["queue.type"]}, {"attributes": {"queue.type": 1}})
        self.look()
        for unknown in (*odd, {"attributes": {"queue.type": "SimpleCQ"}}, {"queue.type": "BatchCQ"}):
            self.topics.update(TopicConfig("T", unknown=unknown))
            self.clock.advance(LOOK_SECONDS)
            self.assertFalse(self.store.derived.queues.types.has_any)
