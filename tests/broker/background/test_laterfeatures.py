"""What 5.x leaves in a log is told at the start and when it is first seen, once."""

from rmqha.broker.background.laterfeatures import LOOK_SECONDS, TIMER_TOPIC, LaterFeatures
from rmqha.broker.tables.topics import TRANS_OP_HALF_TOPIC
from tests.broker.brokerstore import BrokerStoreTestCase
from tests.ha.doubles import log_lines


class LaterFeaturesTests(BrokerStoreTestCase):
    def look(self) -> LaterFeatures:
        found = LaterFeatures(self.store, self.clock)
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
        self.assertIn("they are not handled", found.warnings[0])

    def test_batched_operations_are_told_when_they_are_first_seen(self) -> None:
        self.open()
        self.put(b"5", b"6", topic=TRANS_OP_HALF_TOPIC)
        self.dispatch()
        with log_lines() as lines:
            found = self.look()
            self.assertEqual((found.warnings, lines()), ([], ""))
            self.put(b"0,1,5,6,", topic=TRANS_OP_HALF_TOPIC)
            self.dispatch()
            self.clock.advance(LOOK_SECONDS)
            self.assertEqual(len(found.warnings), 1)
            self.clock.advance(LOOK_SECONDS)
        self.assertEqual(lines().count("warn: the log has transactions whose operations are batched"), 1)

    def test_old_batched_operations_are_told_at_the_start(self) -> None:
        self.open()
        self.put(b"0,", b"1", topic=TRANS_OP_HALF_TOPIC)
        self.dispatch()
        self.assertEqual(len(self.look().warnings), 1)

    def test_a_slave_is_told_that_it_is_about_its_promotion(self) -> None:
        self.open()
        self.put(b"later", topic=TIMER_TOPIC)
        self.copy_to_slave()
        self.dispatch()
        self.assertIn("when this slave becomes a master, they will not be handled", self.look().warnings[0])

    def test_a_log_of_4_x_has_nothing_to_tell(self) -> None:
        self.open()
        self.put(b"a,b", topic="T")
        self.put(b"5", topic=TRANS_OP_HALF_TOPIC)
        self.dispatch()
        self.assertEqual(self.look().warnings, [])
