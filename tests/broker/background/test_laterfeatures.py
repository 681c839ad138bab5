"""What 5.x leaves in a log is told at the start and when it is first seen, once."""

from typing import Any

from rmqha.broker.background.laterfeatures import LOOK_SECONDS, LaterFeatures
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.store.metadata import TopicConfig
from rmqha.store.timers import TIMER_TOPIC
from rmqha.wire.topics import OPERATION_TOPIC
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase
from tests.ha.doubles import log_lines


class LaterFeaturesTests(BrokerStoreTestCase):
    def look(self) -> LaterFeatures:
        self.topics = TopicConfigManager(self.folder, self.settings, lambda: NOW_MS)
        found = LaterFeatures(self.store, self.topics, self.clock)
        found.startService()
        self.addCleanup(found.stopService)
        return found

    def test_timer_messages_are_told_at_the_start(self) -> None:
        self.open()
        self.put(b"later", topic=TIMER_TOPIC)
        self.dispatch()
        with log_lines() as lines:
            found = self.look()
            self.clock.advance(10 * LOOK_SECONDS)
        self.assertEqual(lines().count("warn: the log has timer messages (topic rmq_sys_wheel_timer)"), 1)
        self.assertIn("they are not delivered", found.warnings[0])

    def test_the_store_learns_of_topics_with_batch_queues(self) -> None:
        self.open()
        found = self.look()
        self.assertFalse(self.store.derived.queues.types.is_batch("TBatch"))
        self.topics.update(TopicConfig("TBatch", unknown={"attributes": {"queue.type": "BatchCQ"}}))
        self.clock.advance(LOOK_SECONDS)
        self.assertTrue(self.store.derived.queues.types.is_batch("TBatch"))
        self.topics.delete("TBatch")
        self.clock.advance(LOOK_SECONDS)
        self.assertFalse(self.store.derived.queues.types.is_batch("TBatch"))
        self.assertEqual(found.warnings, [])

    def test_other_attributes_are_nothing_to_tell(self) -> None:
        self.open()
        odd: tuple[Any, ...] = ({"attributes": None}, {"attributes": ["queue.type"]}, {"attributes": {"queue.type": 1}})
        found = self.look()
        for unknown in (*odd, {"attributes": {"queue.type": "SimpleCQ"}}, {"queue.type": "BatchCQ"}):
            self.topics.update(TopicConfig("T", unknown=unknown))
            self.clock.advance(LOOK_SECONDS)
            self.assertEqual(found.warnings, [])
            self.assertFalse(self.store.derived.queues.types.has_any)

    def test_a_slave_is_told_that_it_is_about_its_promotion(self) -> None:
        self.open()
        self.put(b"later", topic=TIMER_TOPIC)
        self.copy_to_slave()
        self.dispatch()
        self.assertIn("when this slave becomes a master, they will not be delivered", self.look().warnings[0])

    def test_what_is_handled_is_nothing_to_tell(self) -> None:
        self.open()
        self.put(b"a,b", topic="T")
        self.put(b"5", b"0,1,", topic=OPERATION_TOPIC)
        self.dispatch()
        self.assertEqual(self.look().warnings, [])
