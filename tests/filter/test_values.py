"""Java's numbers in texts, and comparisons."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.filter.values import INT_BITS, LONG_BITS, Long, NoMatch, compare, double, order, whole
from tests import examples


class NumberTests(SynchronousTestCase):
    @pytest.mark.long
    def test_whole_numbers(self) -> None:
        for text, expected in {"5": 5, "+5": 5, "-0": 0, "007": 7, "2147483647": 2**31 - 1, "\u0665": 5}.items():
            self.assertEqual(whole(text, INT_BITS), expected)
        for text in ("", " 5", "5 ", "1_0", "2147483648", "1.0", "0x5", "--5", "\U0001d7d3", "9" * 5000):
            self.assertRaises(NoMatch, whole, text, INT_BITS)
        self.assertEqual(whole("-9223372036854775808", LONG_BITS), -(2**63))
        self.assertRaises(NoMatch, whole, "9223372036854775808", LONG_BITS)

    def test_doubles(self) -> None:
        for text, expected in {
            "1": 1.0,
            " 1.5 ": 1.5,
            "5.": 5.0,
            ".5": 0.5,
            "1e3": 1000.0,
            "1E-2f": 0.01,
            "2D": 2.0,
            "0x1p3": 8.0,
            "0x1.8P1d": 3.0,
            "Infinity": math.inf,
            "-Infinity": -math.inf,
            "0x1p99999": math.inf,
        }.items():
            self.assertEqual(double(text), expected)
        self.assertTrue(math.isnan(double("NaN")))
        for text in ("", "x", "1_0", "inf", "nan", "0x10", "1e", "1.5.5", "\u0665", "1 5", "Infinityf", "."):
            self.assertRaises(NoMatch, double, text)

    def test_doubles_are_in_javas_order(self) -> None:
        ordered = [-math.inf, -1.0, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
        for at, left in enumerate(ordered):
            for other, right in enumerate(ordered):
                self.assertEqual(compare(left, right), (at > other) - (at < other), (left, right))

    def test_types(self) -> None:
        self.assertEqual(compare("TRUE", True), 0)
        self.assertEqual(compare("x", False), 0)
        self.assertEqual((compare(True, 5), compare(5, True)), (-1, -1))
        self.assertRaises(NoMatch, compare, True, "true")
        self.assertRaises(NoMatch, compare, "3000000000", 5)
        self.assertGreater(compare("3000000000", Long(5)), 0)
        self.assertEqual(order("1.0", "1"), 0)
        self.assertIsNone(order(None, 1))

    @given(st.floats(allow_nan=False), st.floats(allow_nan=False))
    @settings(max_examples=examples(300), deadline=None)
    def test_texts_of_numbers_are_compared_as_numbers(self, left: float, right: float) -> None:
        self.assertEqual(order(repr(left).replace("inf", "Infinity"), right), compare(left, right))
