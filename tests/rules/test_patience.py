"""No test has a deadline that a busy machine could miss."""

import hypothesis
from twisted.trial.unittest import SynchronousTestCase


class PatienceTests(SynchronousTestCase):
    def test_hypothesis_has_no_deadline(self) -> None:
        self.assertIsNone(hypothesis.settings().deadline)
