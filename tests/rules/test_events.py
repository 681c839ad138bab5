"""The names of log events: each call of a logger gives one, at the level that the table says."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.events import Event
from rmqha.testing.nodes import logged_events
from tests.rules.sources import parsed

ROOT = Path(__file__).parents[2]
LEVELS = {"debug": "debug", "info": "info", "warn": "warn", "error": "error", "critical": "critical"}
METHODS = {**LEVELS, "failure": "critical"}
NOT_TWISTED = {"rmqha/pipeline/boundaries.py"}
"""Runs in Spark, with Python's own logging."""
WORDLESS = {"wait_for_event", "events", "logged_events"}
"""What chooses lines of a log by name."""


def calls_in(source: str) -> Iterator[ast.Call]:
    """Each call of a logger."""
    for node in ast.walk(parsed(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in METHODS
            and re.search(r"(^|[._])log$", ast.unparse(node.func.value))
        ):
            yield node


def direct_names(call: ast.Call) -> list[str]:
    """The events that a call names itself: none if it takes the event from its caller."""
    (value,) = [keyword.value for keyword in call.keywords if keyword.arg == "event"]
    return re.findall(r"\bEvent\.([A-Z_]+)", ast.unparse(value))


def sources() -> dict[str, str]:
    paths = {str(path.relative_to(ROOT)): path for path in (ROOT / "rmqha").rglob("*.py")}
    return {name: path.read_text() for name, path in paths.items() if name not in NOT_TWISTED}


class EventTests(SynchronousTestCase):
    def test_a_name_is_its_constant_in_small_letters(self) -> None:
        for event in Event:
            self.assertEqual(event.value, event.name.lower())
            self.assertIn(event.level, LEVELS)
            self.assertRegex(event.meaning, r"^[A-Za-z][^|]+\.$")

    def test_no_two_events_mean_the_same(self) -> None:
        self.assertEqual([text for text, count in Counter(event.meaning for event in Event).items() if count > 1], [])

    def test_every_call_of_a_logger_names_an_event_of_its_level(self) -> None:
        count = 0
        for path, source in sources().items():
            for call in calls_in(source):
                assert isinstance(call.func, ast.Attribute)
                count += 1
                with self.subTest(path, line=call.lineno):
                    self.assertIn("event", [keyword.arg for keyword in call.keywords])
                    for name in direct_names(call):
                        self.assertEqual(Event[name].level, METHODS[call.func.attr])
        self.assertGreater(count, 150)

    def test_every_event_is_logged(self) -> None:
        """One that no call names would mislead who looks for it."""
        named = {
            name
            for path, source in sources().items()
            if path != "rmqha/kit/events.py"
            for name in re.findall(r"\bEvent\.([A-Z_]+)", source)
        }
        self.assertEqual({event.name for event in Event} - named, set(), "no module of rmqha/ logs them")
        self.assertEqual(named - Event.__members__.keys(), set(), "rmqha/kit/events.py does not have them")

    def test_calls_without_a_name_or_level_are_found(self) -> None:
        first, second = calls_in("self._log.warn('a', event=Event.LISTENING)\nlog.failure('b')\nlogin.error('c')")
        self.assertEqual(direct_names(first), ["LISTENING"])
        self.assertEqual(second.keywords, [])


class ChoosingTests(SynchronousTestCase):
    """How tests, and programs of users, choose lines of a log."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp())
        lines = (
            b'{"event":"listening","message":"ha port is 7, plain","purpose":"ha","port":7}\n'
            b'{"event":"slave_state","message":"slave is IN_SYNC: x","state":"IN_SYNC"}\n'
            b'not JSON\n{"event":"listening","message":"http port is 8, plain","purpose":"http","port":8}\n{"event":"li'
        )
        self.path.write_bytes(lines)

    def test_by_name_and_fields(self) -> None:
        self.assertEqual([line["port"] for line in logged_events(self.path, Event.LISTENING)], [7, 8])
        (found,) = logged_events(self.path, Event.LISTENING, purpose="http")
        self.assertEqual(found["port"], 8)
        self.assertEqual(logged_events(self.path, Event.SLAVE_STATE, state="GAP"), [])
        self.assertEqual(len(logged_events(self.path)), 3)

    def test_from_a_place_of_the_file(self) -> None:
        start = self.path.read_bytes().index(b"not JSON")
        self.assertEqual([line["port"] for line in logged_events(self.path, None, start)], [8])

    def test_a_field_may_have_any_name(self) -> None:
        line = b'{"event":"slave_transfer_started","start":5,"path":"p","self":1}\n'
        self.path.write_bytes(line)
        fields = {"start": 5, "path": "p", "self": 1}
        self.assertEqual(len(logged_events(self.path, Event.SLAVE_TRANSFER_STARTED, **fields)), 1)
        self.assertEqual(logged_events(self.path, Event.SLAVE_TRANSFER_STARTED, start=6), [])

    def test_a_file_that_is_not_there_has_no_lines(self) -> None:
        self.assertEqual(logged_events(self.path.with_name("none"), Event.LISTENING), [])

    def test_words_are_refused(self) -> None:
        wrong: tuple[Any, ...] = ("slave is IN_SYNC", "listening")
        for text in wrong:
            with self.subTest(text), self.assertRaises(TypeError):
                logged_events(self.path, text)
        with self.assertRaises(TypeError):
            logged_events(self.path, message="slave is IN_SYNC: x")


def worded_waits(source: str) -> list[int]:
    """The lines that wait for words of a log, or look for them."""
    if not any(f"{word}(" in source for word in WORDLESS):
        return []
    return [
        node.lineno
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", None)) in WORDLESS
        and any(isinstance(each, ast.JoinedStr) or isinstance(getattr(each, "value", None), str) for each in node.args)
    ]


@pytest.mark.long
def test_nothing_waits_for_the_words_of_a_log() -> None:
    """Words change; mypy and a TypeError say so too, this finds what neither runs nor has types."""
    for folder in ("tests", "benchmarks", "examples", "rmqha", "docs/make"):
        for path in (ROOT / folder).rglob("*.py"):
            assert worded_waits(path.read_text()) == [], path.relative_to(ROOT)


def test_a_wait_for_words_is_found() -> None:
    source = "node.wait_for_event('registered')\nnode.events(f'a {b}')\nnode.wait_for_event(Event.REGISTERED, a='b')"
    assert worded_waits(source) == [1, 2]
