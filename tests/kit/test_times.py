"""Times as people read and write them."""

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.times import iso_time, parse_time

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class TimeTests(SynchronousTestCase):
    def test_they_are_in_utc_with_milliseconds(self) -> None:
        self.assertEqual(iso_time(1795306845248), "2026-11-22T00:20:45.248Z")
        self.assertEqual(iso_time(0), "1970-01-01T00:00:00.000Z")

    @given(st.integers(0, LAST_MS))
    def test_what_is_written_is_read(self, milliseconds: int) -> None:
        self.assertEqual(parse_time(iso_time(milliseconds)), milliseconds)

    @given(st.integers(-(2**63), 2**63 - 1))
    def test_any_timestamp_can_be_shown(self, milliseconds: int) -> None:
        self.assertTrue(iso_time(milliseconds))

    def test_zones_and_milliseconds_are_understood(self) -> None:
        for text in (
            "2026-11-22T00:20:45.248Z",
            "2026-11-22T02:20:45.248+02:00",
            "1795306845248",
            "20261122T002045.248Z",
        ):
            self.assertEqual(parse_time(text), 1795306845248)

    def test_what_could_mean_several_times_is_refused(self) -> None:
        for text, reason in (
            ("2026-11-22T00:20:45", "no zone: 2026-11-22T00:20:45Z is UTC"),
            ("2026-11-22", "no zone"),
            ("yesterday", "milliseconds since 1970"),
            ("", "milliseconds since 1970"),
            ("-5", "milliseconds since 1970"),
            ("1969-12-31T23:59:59Z", "before 1970"),
        ):
            with self.subTest(text):
                self.assertIn(reason, str(self.assertRaises(ValueError, parse_time, text)))
