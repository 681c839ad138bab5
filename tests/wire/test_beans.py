from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.beans import Long, java, read_bean, read_mapping, read_name, read_objects


class Colour(Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, slots=True)
class Bean:
    needed_text: str
    int_field: int = 1
    long_field: Long = 2
    is_open: bool = False
    colour: Colour = Colour.RED
    client_id: str = java("clientID", read=read_name, default="none")
    kept: tuple[int, ...] = java(omit=True, default=(7,))


class Place(NamedTuple):
    topic: str
    queue_id: int = 3


def error_of(kind: type[Any], content: Any) -> str:
    try:
        read_bean(kind, content)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{content!r} was read")


class BeanTests(SynchronousTestCase):
    def test_fields_have_javas_names_or_their_own(self) -> None:
        content = {
            "neededText": "t",
            "intField": -(2**31),
            "longField": 2**63 - 1,
            "isOpen": True,
            "colour": "GREEN",
            "clientID": "c",
            "kept": [1],
            "unknown": {},
        }
        self.assertEqual(read_bean(Bean, content), Bean("t", -(2**31), 2**63 - 1, True, Colour.GREEN, "c"))

    def test_missing_and_null_fields_have_their_defaults(self) -> None:
        nulls = dict.fromkeys(("intField", "longField", "isOpen", "colour", "clientID"))
        for content in ({"neededText": ""}, {"neededText": "", **nulls}):
            self.assertEqual(read_bean(Bean, content), Bean(""))

    def test_numbers_and_booleans_may_be_texts(self) -> None:
        content = {"neededText": "", "intField": "-5", "longField": "6", "isOpen": "true"}
        self.assertEqual(read_bean(Bean, content), Bean("", -5, 6, True))

    def test_an_enum_is_a_name_or_an_ordinal_or_the_default(self) -> None:
        for value, colour in (("GREEN", Colour.GREEN), (1, Colour.GREEN), (9, Colour.RED), ([0], Colour.RED)):
            self.assertEqual(read_bean(Bean, {"neededText": "", "colour": value}).colour, colour)

    def test_a_named_tuple_is_read_alike(self) -> None:
        self.assertEqual(read_bean(Place, {"topic": "T", "queueId": "5"}), Place("T", 5))
        self.assertEqual(read_bean(Place, {"topic": "T", "queueId": None}), Place("T"))

    def test_an_error_names_the_field_and_what_was_expected(self) -> None:
        for content, expected in (
            ({}, "neededText is missing"),
            ({"neededText": None}, "neededText is missing"),
            ({"neededText": 5}, "neededText: 5 is not a text"),
            ({"neededText": "", "intField": 2**31}, "intField: 2147483648 has more than 32 bits"),
            ({"neededText": "", "intField": True}, "intField: True is not an integer"),
            ({"neededText": "", "intField": 1.5}, "intField: 1.5 is not an integer"),
            ({"neededText": "", "intField": "x"}, "intField: 'x' is not an integer"),
            ({"neededText": "", "longField": -(2**63) - 1}, "longField: -9223372036854775809 has more than 64 bits"),
            ({"neededText": "", "isOpen": 5}, "isOpen: 5 is neither true nor false"),
            ({"neededText": "", "clientID": ""}, "clientID: '' is not a name"),
            ([], "[] is not an object"),
            (None, "None is not an object"),
        ):
            with self.subTest(content=content):
                self.assertEqual(error_of(Bean, content), expected)
        self.assertEqual(error_of(Place, {"queueId": 1}), "topic is missing")
        self.assertEqual(error_of(Place, {"topic": "T", "queueId": {}}), "queueId: {} is not an integer")

    def test_an_error_shows_only_the_start_of_a_value(self) -> None:
        for value in ("9" * 100_000, "x" * 100_000, ["y"] * 100_000, {"y" * 1000: ["z" * 1000]}):
            self.assertLess(len(error_of(Bean, {"neededText": "", "intField": value})), 100)

    def test_lists_and_maps_may_be_missing_and_are_bounded(self) -> None:
        self.assertEqual((read_objects({}, "a", 1), read_objects({"a": None}, "a", 1)), ([], []))
        self.assertEqual((read_mapping({}, "a"), read_mapping({"a": {1: 2}}, "a")), ({}, {1: 2}))
        for read, content in (
            (lambda found: read_objects(found, "a", 1), {"a": [1, 2]}),
            (lambda found: read_objects(found, "a", 1), {"a": 5}),
            (lambda found: read_mapping(found, "a"), {"a": [1]}),
            (lambda found: read_mapping(found, "a"), []),
        ):
            with self.assertRaises(ValueError):
                read(content)
