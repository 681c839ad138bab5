"""Properties are read and written as 4.9.3 does (spec/store.md 3.4)."""

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.properties import format_properties, parse_properties, property_in
from tests import examples


def parse_as_java(stored: str) -> dict[str, str]:
    """The rule of 3.4, told with indices as Java does it."""
    found: dict[str, str] = {}
    start = 0
    while start < len(stored):
        end = stored.find("\x02", start)
        end = len(stored) if end < 0 else end
        if end - start >= 3:
            at = stored.find("\x01", start)
            if start < at < end - 1:
                found[stored[start:at]] = stored[at + 1 : end]
        start = end + 1
    return found


class ParsePropertiesTests(SynchronousTestCase):
    def test_both_writers_styles_are_read(self) -> None:
        """4.9.3 ends the string without a separator, older and newer brokers with one."""
        for stored in ("KEYS\x01k1 k2\x02TAGS\x01A", "KEYS\x01k1 k2\x02TAGS\x01A\x02"):
            self.assertEqual(list(parse_properties(stored).items()), [("KEYS", "k1 k2"), ("TAGS", "A")])

    def test_what_has_no_name_or_no_value_is_dropped(self) -> None:
        for stored in ("", "\x02", "\x02\x02", "a", "ab\x01", "\x01ab", "abc", "\x01", "a\x01", "\x01\x01\x01"):
            self.assertEqual(parse_properties(stored), {}, repr(stored))
        self.assertEqual(parse_properties("x\x02a\x01b\x02\x01y"), {"a": "b"})

    def test_a_value_may_hold_the_name_value_separator(self) -> None:
        self.assertEqual(parse_properties("a\x01b\x01c"), {"a": "b\x01c"})
        self.assertEqual(parse_properties("a\x01\x01"), {"a": "\x01"})

    def test_the_last_of_equal_names_wins(self) -> None:
        self.assertEqual(parse_properties("a\x011\x02b\x012\x02a\x013"), {"a": "3", "b": "2"})

    @settings(deadline=None, max_examples=examples(500))
    @given(st.text("ab\x01\x02", max_size=14))
    def test_any_string_is_read_as_java_reads_it(self, stored: str) -> None:
        self.assertEqual(parse_properties(stored), parse_as_java(stored))
        self.assertEqual(property_in(stored, "ab"), parse_as_java(stored).get("ab"))


class FormatPropertiesTests(SynchronousTestCase):
    def test_no_separator_ends_the_string(self) -> None:
        self.assertEqual(format_properties({"KEYS": "k1 k2", "TAGS": "A"}), "KEYS\x01k1 k2\x02TAGS\x01A")
        self.assertEqual(format_properties({}), "")

    def test_what_could_not_be_read_back_is_refused(self) -> None:
        for name, value in (("", "v"), ("n", ""), ("n\x01", "v"), ("n\x02", "v"), ("n", "v\x02")):
            with self.assertRaises(ValueError, msg=repr((name, value))):
                format_properties({"good": "1", name: value})

    @settings(deadline=None, max_examples=examples(200))
    @given(st.dictionaries(st.text("aé\x00\x03", min_size=1), st.text("b😀\x00\x01", min_size=1)))
    def test_what_is_written_is_read_back_in_order(self, properties: dict[str, str]) -> None:
        stored = format_properties(properties)
        for style in (stored, stored + "\x02"):
            self.assertEqual(list(parse_properties(style).items()), list(properties.items()))
