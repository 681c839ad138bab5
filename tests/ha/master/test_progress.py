"""What a master knows about a slave: which reports count, and which offsets never decrease."""

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.master.progress import SlaveProgress


class SlaveProgressTests(SynchronousTestCase):
    def test_a_request_counts_for_nothing_and_the_next_report_counts(self) -> None:
        slave = SlaveProgress("a", 10, 10, False)
        slave.send(100)
        self.assertFalse(slave.report(10))
        self.assertIsNone(slave.acknowledged)
        self.assertTrue(slave.report(11))
        self.assertEqual(slave.acknowledged, 11)

    def test_a_doubted_slave_counts_beyond_what_it_was_sent_before(self) -> None:
        slave = SlaveProgress("a", 10, 10, False)
        slave.send(100)
        slave.report(50)
        slave.doubt()
        slave.send(200)
        for offset, acknowledged in ((60, None), (100, None), (101, 101), (150, 150)):
            slave.report(offset)
            self.assertEqual((slave.reported, slave.acknowledged), (offset, acknowledged))

    def test_nothing_goes_back_and_nothing_unsent_is_reported(self) -> None:
        slave = SlaveProgress("a", 10, 10, False)
        slave.send(100)
        slave.report(50)
        for wrong in (lambda: slave.report(49), lambda: slave.send(99), lambda: slave.report(101)):
            self.assertRaises(AssertionError, wrong)
        for request, start in ((-1, 0), (11, 10)):
            self.assertRaises(AssertionError, SlaveProgress, "a", request, start, False)

    def test_a_slave_that_asked_for_a_segment_holds_nothing_below_its_start(self) -> None:
        slave = SlaveProgress("a", 0, 4096, True)
        self.assertEqual([slave.holds_from(offset) for offset in (None, 4095, 4096, 4097)], [True, False, False, True])
        self.assertTrue(SlaveProgress("a", 10, 10, False).holds_from(5))

    def test_room_is_what_may_be_in_flight_less_what_is(self) -> None:
        slave = SlaveProgress("a", 0, 4096, True)
        self.assertEqual(slave.room_bytes(1000), 1000)
        slave.send(5000)
        self.assertEqual(slave.room_bytes(1000), 96)
        slave.report(4900)
        self.assertEqual(slave.room_bytes(1000), 900)

    @settings(deadline=None)
    @given(st.integers(0, 99), st.lists(st.tuples(st.sampled_from("srd"), st.integers(0, 50))))
    def test_the_invariant_holds_whatever_happens(self, request: int, steps: list[tuple[str, int]]) -> None:
        slave = SlaveProgress("a", request, request or 64, not request)
        for what, amount in steps:
            before = slave.reported, slave.sent
            if what == "s":
                slave.send(slave.sent + amount)
            elif what == "r":
                slave.report(min(slave.sent, slave.reported + amount))
            else:
                slave.doubt()
            self.assertLessEqual(before, (slave.reported, slave.sent))
            self.assertTrue(slave.request <= slave.reported <= slave.sent and slave.start <= slave.sent)
            self.assertIn(slave.acknowledged, (None, slave.reported))
            self.assertTrue(slave.acknowledged is None or slave.acknowledged > slave.request)
