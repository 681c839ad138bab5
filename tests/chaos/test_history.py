"""Each broken promise is found, and a history that keeps all of them is sound."""

import random
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from tests.chaos.history import REPEAT_SECONDS, Change, History, Seen, Violation

QUEUES = 4
COUNT = 40


def sound() -> list[Seen]:
    """Messages k0, k1 … in turn to each queue, one each second."""
    return [Seen(f"k{number}", number % QUEUES, number // QUEUES, float(number)) for number in range(COUNT)]


class HistoryTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.sent = sound()
        self.read = sound()

    def promises(self, *changes: Change) -> list[str]:
        """The promises that were not kept."""
        return [each.promise for each in History(self.sent, {"C": self.read}, changes).violations()]

    def test_a_sound_history_keeps_all_promises(self) -> None:
        self.assertEqual(self.promises(), [])

    def test_queues_may_be_read_in_any_order_of_queues(self) -> None:
        random.Random(1).shuffle(self.read)
        self.read.sort(key=lambda each: each.offset)
        self.assertEqual(self.promises(), [])

    def test_what_was_read_and_never_promised_may_be_there(self) -> None:
        del self.sent[7:20]
        self.assertEqual(self.promises(), [])

    def test_a_lost_message_is_found_for_each_consumer(self) -> None:
        history = History(self.sent, {"C": self.read, "D": self.read[:-1]})
        self.assertEqual(history.violations(), [Violation("lost", ("k39",))])

    def test_a_lost_message_in_the_middle_is_a_gap_too(self) -> None:
        del self.read[10]
        self.assertEqual(self.promises(), ["lost", "C gap"])

    def test_a_repetition_needs_a_change_of_the_leader(self) -> None:
        self.read.append(replace(self.read[30], at=50.0))
        self.assertEqual(self.promises(), ["C repeated"])
        self.assertEqual(self.promises(Change(40.0, 45.0)), [])
        self.assertEqual(self.promises(Change(51.0, 52.0)), ["C repeated"])
        self.assertEqual(self.promises(Change(30.0 + REPEAT_SECONDS + 1, 99.0)), ["C repeated"])

    def test_a_wrong_order_within_a_queue_is_found(self) -> None:
        self.read[8], self.read[12] = self.read[12], self.read[8]
        self.assertEqual(self.promises(), ["C order"])

    def test_a_message_at_another_place_than_promised_is_found(self) -> None:
        self.sent[4] = replace(self.sent[4], offset=2)
        self.assertEqual(self.promises(), ["C moved"])

    def test_two_messages_at_one_place_are_found(self) -> None:
        self.read.append(Seen("other", 3, COUNT // QUEUES - 1, 99.0))
        self.assertEqual(self.promises(), ["C replaced"])

    def test_what_a_violation_says_is_short(self) -> None:
        self.assertEqual(str(Violation("lost", tuple("abcdefgh"))), "lost: a, b, c, d, e and 3 more")
