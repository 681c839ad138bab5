"""Durations in classes, and the quantiles that are read from them."""

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.histogram import BOUNDS, Histogram, quantile

DURATIONS = st.lists(st.floats(0.0, 20.0), max_size=60)


class HistogramTestCase(SynchronousTestCase):
    def test_a_duration_at_a_bound_belongs_to_the_class_below(self) -> None:
        """As in Prometheus, whose classes are ``le``."""
        histogram = Histogram()
        for seconds in BOUNDS:
            histogram.observe(seconds)
        self.assertEqual(histogram.counts, [1] * len(BOUNDS) + [0])
        histogram.observe(BOUNDS[-1] + 1)
        self.assertEqual(histogram.counts[-1], 1)
        self.assertEqual(histogram.count, len(BOUNDS) + 1)
        self.assertAlmostEqual(histogram.sum, sum(BOUNDS) + BOUNDS[-1] + 1)

    def test_no_durations_have_no_quantile(self) -> None:
        self.assertIsNone(quantile(Histogram().counts, 0.99))

    @given(DURATIONS.filter(bool), st.floats(0.01, 1.0))
    def test_a_quantile_is_in_the_class_of_the_true_one(self, durations: list[float], share: float) -> None:
        histogram = Histogram()
        for seconds in durations:
            histogram.observe(seconds)
        found = quantile(histogram.counts, share)
        assert found is not None
        rank = next(number for number in range(1, len(durations) + 1) if number >= share * len(durations))
        true = sorted(durations)[rank - 1]
        if true > BOUNDS[-1]:
            self.assertEqual(found, BOUNDS[-1])
        else:
            at = next(at for at, bound in enumerate(BOUNDS) if true <= bound)
            self.assertLessEqual(found, BOUNDS[at] * 1.000001)
            self.assertGreaterEqual(found, BOUNDS[at - 1] if at else 0.0)
