"""What 5.x leaves in a log is told at the start and when it is first seen, once."""

from typing import Any

from rmqha.broker.background.laterfeatures import LOOK_SECONDS, TIMER_TOPIC, LaterFeatures
from rmqha.broker.tables.topics import TRANS_OP_HALF_TOPIC, TopicConfigManager
from rmqha.store.metadata import TopicConfig
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

    def test_topics_with_batch_queues_are_told_when_their_table_comes(self) -> None:
        self.open()
        with log_lines() as lines:
            found = self.look()
            self.assertEqual((found.warnings, lines()), ([], ""))
            for number in range(7):
                batch = {"attributes": {"queue.type": "BatchCQ"}}
                self.topics.update(TopicConfig(f"TBatch{number}", unknown=batch))
            self.clock.advance(3 * LOOK_SECONDS)
            (warning,) = found.warnings
            self.assertIn("BatchCQ: TBatch0, TBatch1, TBatch2, TBatch3, TBatch4 and 2 more. rmqha does not", warning)
            self.assertIn("move the folders consumequeue and index away", warning)
        self.assertEqual(lines().count("warn: topics with queue.type=BatchCQ"), 1)
        for number in range(7):
            self.topics.delete(f"TBatch{number}")
        self.clock.advance(LOOK_SECONDS)
        self.assertEqual(found.warnings, [])

    def test_other_attributes_are_nothing_to_tell(self) -> None:
        self.open()
        odd: tuple[Any, ...] = ({"attributes": None}, {"attributes": ["queue.type"]}, {"attributes": {"queue.type": 1}})
        found = self.look()
        for unknown in (*odd, {"attributes": {"queue.type": "SimpleCQ"}}, {"queue.type": "BatchCQ"}):
            self.topics.update(TopicConfig("T", unknown=unknown))
            self.clock.advance(LOOK_SECONDS)
            self.assertEqual(found.warnings, [])

    def test_a_slave_is_told_that_it_is_about_its_promotion(self) -> None:
        self.open()
        self.put(b"later", topic=TIMER_TOPIC)
        self.copy_to_slave()
        self.dispatch()
        self.assertIn("when this slave becomes a master, they will not be delivered", self.look().warnings[0])

    def test_what_is_handled_is_nothing_to_tell(self) -> None:
        self.open()
        self.put(b"a,b", topic="T")
        self.put(b"5", b"0,1,", topic=TRANS_OP_HALF_TOPIC)
        self.dispatch()
        self.assertEqual(self.look().warnings, [])
