"""Text from strangers on a terminal: nothing that it would obey."""

import json

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.printing import printable, printable_json

HOSTILE = "a\x1b[2J\x07\r\n\x9b31m\u202egnp\x00\u2028\ud800\udcffb"
"""Clears the screen, rings, starts a line of its own, colours, turns the direction of writing, is no UTF-8."""


class PrintableTests(SynchronousTestCase):
    def test_what_a_terminal_obeys_is_escaped(self) -> None:
        self.assertEqual(printable(HOSTILE), r"a\x1b[2J\x07\r\n\x9b31m\u202egnp\x00\u2028\ud800\udcffb")

    def test_ordinary_text_stays_as_it_is(self) -> None:
        for text in ("", "TopicTest queue 3", "Grüße 消息 ✓", "C:\\temp", "%RETRY%group"):
            self.assertEqual(printable(text), text)

    def test_what_is_to_stay_stays(self) -> None:
        self.assertEqual(printable("a\n\tb\x1b", keep="\n\t"), "a\n\tb\\x1b")

    @settings(deadline=None)
    @given(st.text(st.characters(exclude_categories=())))
    def test_every_text_can_be_printed_afterwards(self, text: str) -> None:
        shown = printable(text)
        self.assertTrue(shown.isprintable(), ascii(shown))
        shown.encode()

    @settings(deadline=None)
    @given(st.text(st.characters(codec="utf-8")))
    def test_json_means_the_same_afterwards(self, text: str) -> None:
        shown = printable_json(orjson.dumps({text: [text]}).decode())
        self.assertTrue(shown.isprintable(), ascii(shown))
        self.assertEqual(json.loads(shown), {text: [text]})
