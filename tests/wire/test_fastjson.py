"""JSON as fastjson has it: what 1.2.76 itself was seen to write for each value, and to read from each text."""

import json
import math
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import at_once
from rmqha.wire.fastjson import (
    MAX_BYTES_BESIDE_ROWS,
    MAX_BYTES_SLOWLY,
    MAX_DEPTH,
    MAX_OBJECTS,
    FastjsonError,
    ObjectKey,
    Rows,
    dumping_strict,
    dumps_compact,
    dumps_pretty,
    dumps_pretty_by_rows,
    dumps_strict,
    loads_lenient,
    loads_request,
    loads_table_in_steps,
)
from tests import examples

ORJSON_MAX_DEPTH = 1024

NOT_STRICT = "\f"
"""A blank to fastjson, but not to JSON: what begins with it takes the way of all that is not strict."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("{}[]:,\"'\\\0\x1f\x7f\u2028"), max_size=8)
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
KEYS = TEXT | st.integers()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner | st.none(), max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
JSON_VALUES = st.recursive(
    st.none() | SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)

WRITTEN: tuple[tuple[Any, str, str], ...] = (
    ({}, "{}", "{}"),
    ([], "[]", "[]"),
    ({"a": {}, "b": []}, '{"a":{},"b":[]}', '{\n\t"a":{},\n\t"b":[]\n}'),
    ({0: 5, 1: 7}, "{0:5,1:7}", "{0:5,1:7\n}"),
    ({-1: 2**62}, "{-1:4611686018427387904}", "{-1:4611686018427387904\n}"),
    ({"a": {0: 5, 1: 7}, "b": {}}, '{"a":{0:5,1:7},"b":{}}', '{\n\t"a":{0:5,1:7\n\t},\n\t"b":{}\n}'),
    ({0: {1: 2}, 3: {4: 5}}, "{0:{1:2},3:{4:5}}", "{0:{1:2\n\t},3:{4:5\n\t}\n}"),
    ({0: {"a": 1}, 1: {}}, '{0:{"a":1},1:{}}', '{0:{\n\t\t"a":1\n\t},1:{}\n}'),
    ({"a": 1, 0: 2, "b": 3}, '{"a":1,0:2,"b":3}', '{\n\t"a":1,0:2,\n\t"b":3\n}'),
    ({0: [1, {"a": 1}]}, '{0:[1,{"a":1}]}', '{0:[\n\t\t1,\n\t\t{\n\t\t\t"a":1\n\t\t}\n\t]\n}'),
    (
        [[1], [2, [3]], {0: 1}],
        "[[1],[2,[3]],{0:1}]",
        "[\n\t[\n\t\t1\n\t],\n\t[\n\t\t2,\n\t\t[\n\t\t\t3\n\t\t]\n\t],\n\t{0:1\n\t}\n]",
    ),
    ({"a": None}, "{}", "{\n}"),
    ({"a": None, "b": 1, 0: None}, '{"b":1}', '{\n\t"b":1\n}'),
    ([None, True, False], "[null,true,false]", "[\n\tnull,\n\ttrue,\n\tfalse\n]"),
    ({True: 1}, "{true:1}", "{true:1\n}"),
    ({"b": 1, "a": 2}, '{"b":1,"a":2}', '{\n\t"b":1,\n\t"a":2\n}'),
    (
        "\0\x01\b\t\n\x0b\f\r\x1b\x1f\x7f\x80\x9f\xa0\u2028\u2029/\\\"'é漢😀",
        '"\\u0000\\u0001\\b\\t\\n\\u000B\\f\\r\\u001B\\u001F\\u007F\\u0080\\u009F\xa0\\u2028\\u2029/\\\\\\"\'é漢😀"',
        '"\\u0000\\u0001\\b\\t\\n\\u000B\\f\\r\\u001B\\u001F\\u007F\\u0080\\u009F\xa0\\u2028\\u2029/\\\\\\"\'é漢😀"',
    ),
    ({'\x01\n"é': ""}, '{"\\u0001\\n\\"é":""}', '{\n\t"\\u0001\\n\\"é":""\n}'),
    (
        [1.0, -0.5, 1e10, 1e-5, 123456789.125, 1e7, 9999999.0, 0.001, 1e-4, -5e300],
        "[1.0,-0.5,1.0E10,1.0E-5,1.23456789125E8,1.0E7,9999999.0,0.001,1.0E-4,-5.0E300]",
        "[\n\t1.0,\n\t-0.5,\n\t1.0E10,\n\t1.0E-5,\n\t1.23456789125E8,\n\t1.0E7,\n\t9999999.0,\n\t0.001,\n\t1.0E-4,\n\t-5.0E300\n]",
    ),
)

READ: tuple[tuple[str, Any], ...] = (
    ("{0:5,1:7}", {0: 5, 1: 7}),
    ('{"0":5,1:7}', {"0": 5, 1: 7}),
    ('{"a":{0:5,1:{2:3}},"b":[{-4:{}}]}', {"a": {0: 5, 1: {2: 3}}, "b": [{-4: {}}]}),
    ("{ 0 : 5 ,\r\n\t1\f:\b7 }", {0: 5, 1: 7}),
    ('{0:"{1:2,}","{3:4}":\'{"5":6}\'}', {0: "{1:2,}", "{3:4}": '{"5":6}'}),
    ('{0:"\\"{1:2}","\\\\":{3:"\\\\"}}', {0: '"{1:2}', "\\": {3: "\\"}}),
    ("{a:1,_b1:2,$c:3,true:4,null:5,漢:6}", {"a": 1, "_b1": 2, "$c": 3, "true": 4, "null": 5, "漢": 6}),
    ("{'a':'b','':\"it's\",\"q\":'\"'}", {"a": "b", "": "it's", "q": '"'}),
    ('{"a":1,}', {"a": 1}),
    ("{1:[1,2,],}", {1: [1, 2]}),
    ('["a",]', ["a"]),
    ('{"a":"x\ty\nz\0\x1a"}', {"a": "x\ty\nz\0\x1a"}),
    ('{"q":1,{"brokerName":"b","queueId":0}:5}', {"q": 1, '{"brokerName":"b","queueId":0}': 5}),
    ('{{"a":{{0:1}:2}}:3}', {'{"a":{{0:1}:2}}': 3}),
    (r"""['\u0041\x41\/\'\"\\\b\f\n\r\t\v\0\7']""", ["AA/'\"\\\b\f\n\r\t\v\0\7"]),
    (r"['\ud83d\ude00\u6f22']", ["😀漢"]),
    ('["\\ud800"]', ["\ud800"]),
    ("{0:01,1:-0,2:1.,3:1.0E5,4:-1.5e-3,5:2E+2}", {0: 1, 1: 0, 2: 1.0, 3: 1e5, 4: -0.0015, 5: 200.0}),
    ('{"a":9223372036854775808,"b":-99999999999999999999999999}', {"a": 2**63, "b": -99999999999999999999999999}),
    ("{0:1,0:2,a:3,'a':4}", {0: 2, "a": 4}),
    ("\f {} \b", {}),
    ("\f5", 5),
    ("'s'", "s"),
)

REFUSED = (
    ("", 0),
    (" \t ", 3),
    ("{", 1),
    ("[1", 2),
    ("{0", 2),
    ("{0:", 3),
    ("{0:5", 4),
    ('"abc', 0),
    ("'abc\"", 0),
    ('["abc\\"]', 1),
    ("{0:5}x", 5),
    ("{0:5}}", 5),
    ("{0:5} {1:6}", 6),
    ("{0:5]", 4),
    ("[0}", 2),
    ("{0 5}", 3),
    ("{0:5 1:6}", 5),
    ("{0:5;1:6}", 4),
    ("[1 2]", 3),
    ("{0:5,,1:6}", 5),
    ("{,}", 1),
    ("[,1]", 1),
    ("{:1}", 1),
    ("{[1]:2}", 1),
    ("{1.5:2}", 1),
    ("[1.5e]", 4),
    ("{a:-1.5E", 7),
    ("{1a:1}", 2),
    ("{a-b:1}", 2),
    ("{%a:1}", 1),
    ("{0:a}", 3),
    ("{0:tru}", 3),
    ("{0:TRUE}", 3),
    ("{0:NaN}", 3),
    ("{0:-}", 3),
    ("{0:.5}", 3),
    ("{0:\xa05}", 3),
    ("{0:1E400}", 3),
    ("{{0:1:2}", 5),
    (r"['ab\q']", 4),
    (r"['\u00']", 2),
    ("\0\0", 0),
    ("{0:5}\0", 5),
    ("[9" + "9" * 5000 + "]", 1),
)


class WritingTests(SynchronousTestCase):
    def test_each_value_is_written_as_java_writes_it(self) -> None:
        for value, compact, pretty in WRITTEN:
            self.assertEqual(dumps_compact(value).decode(), compact)
            self.assertEqual(dumps_pretty(value).decode(), pretty)

    def test_an_object_that_is_a_key_is_written_bare_and_read_as_its_text(self) -> None:
        """spec/remoting.md 2.16: the queues in statistics."""
        key = '{"brokerName":"b","queueId":0,"topic":"T"}'
        written = dumps_compact({"offsetTable": {ObjectKey(key): {"maxOffset": 2}}})
        self.assertEqual(written.decode(), f'{{"offsetTable":{{{key}:{{"maxOffset":2}}}}}}')
        self.assertEqual(loads_lenient(written), {"offsetTable": {key: {"maxOffset": 2}}})

    def test_strictly_written_numbers_are_quoted_keys(self) -> None:
        self.assertEqual(
            dumps_strict({"a": {0: 1, -7: 2}, "b": [1.0, True, None]}), b'{"a":{"0":1,"-7":2},"b":[1.0,true,null]}'
        )

    def test_strictly_written_half_a_surrogate_pair_becomes_a_question_mark_too(self) -> None:
        self.assertEqual(dumps_strict({"a\ud800b": 1}), b'{"a?b":1}')

    def test_a_double_without_a_value_is_null(self) -> None:
        self.assertEqual(dumps_compact([math.nan, math.inf, -math.inf]), b"[null,null,null]")

    def test_half_a_surrogate_pair_becomes_a_question_mark(self) -> None:
        self.assertEqual(dumps_compact("a\ud800b"), b'"a?b"')

    def test_what_has_no_place_in_json_is_refused(self) -> None:
        for value in (b"bytes", {1, 2}, object(), [{"a": b""}], {1.5: 2}, {None: 1}, {(1, 2): 3}):
            for dumps in (dumps_compact, dumps_pretty):
                with self.assertRaises(TypeError, msg=repr(value)):
                    dumps(value)


class ReadingTests(SynchronousTestCase):
    def test_what_fastjson_writes_and_accepts_is_read(self) -> None:
        for text, value in READ:
            for given_text in (text, text.encode("utf-8", "surrogatepass")):
                found = loads_lenient(given_text)
                self.assertEqual(found, value, text)
                self.assertEqual(repr(found), repr(value), text)  # 1 is not 1.0 nor True, and order counts

    def test_what_it_does_not_write_is_refused_with_its_position(self) -> None:
        for text, position in REFUSED:
            with self.assertRaises(FastjsonError, msg=text) as caught:
                loads_lenient(text)
            self.assertEqual(caught.exception.position, position, f"{text!r}: {caught.exception}")
            self.assertIn(f" at position {position}", str(caught.exception))

    def test_bytes_that_are_no_text_are_refused(self) -> None:
        with self.assertRaises(FastjsonError) as caught:
            loads_lenient(b'{"\xe9":1}')
        self.assertEqual(caught.exception.position, 2)

    def test_a_text_that_ends_too_early_is_refused_wherever_it_ends(self) -> None:
        whole = '{\n\t"a@b":{0:5,1:{\'x\':[true,"\\u0041"]}\n\t}\n}'
        self.assertEqual(loads_lenient(whole), {"a@b": {0: 5, 1: {"x": [True, "A"]}}})
        for end in range(len(whole)):
            with self.assertRaises(FastjsonError, msg=whole[:end]):
                loads_lenient(whole[:end])

    def test_nesting_is_bounded(self) -> None:
        for opening, innermost, closing in (("[", "[]", "]"), ("{0:", "{}", "}"), ("{", "{}", ":0}")):
            loads_lenient(NOT_STRICT + opening * (MAX_DEPTH - 1) + innermost + closing * (MAX_DEPTH - 1))
            for around in (MAX_DEPTH, 100_000):
                with self.assertRaises(FastjsonError) as caught:
                    loads_lenient(NOT_STRICT + opening * around + innermost + closing * around)
                self.assertEqual(caught.exception.position, 1 + len(opening) * MAX_DEPTH)

    def test_nesting_of_strict_json_is_bounded(self) -> None:
        loads_lenient("[" * ORJSON_MAX_DEPTH + "]" * ORJSON_MAX_DEPTH)
        with self.assertRaises(FastjsonError):
            loads_lenient("[" * (ORJSON_MAX_DEPTH + 1) + "]" * (ORJSON_MAX_DEPTH + 1))

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(300))
    @given(VALUES)
    def test_what_is_written_is_read(self, value: Any) -> None:
        for dumps in (dumps_compact, dumps_pretty):
            self.assertEqual(repr(loads_lenient(dumps(value))), repr(value))

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(300))
    @given(JSON_VALUES, st.booleans())
    def test_strict_json_means_the_same_on_both_ways(self, value: Any, escaped: bool) -> None:
        text = json.dumps(value, ensure_ascii=escaped)
        self.assertEqual(repr(loads_lenient(text)), repr(value))
        self.assertEqual(repr(loads_lenient(NOT_STRICT + text)), repr(value))
        with self.assertRaises(orjson.JSONDecodeError):
            orjson.loads(NOT_STRICT + text)

    @settings(deadline=None, max_examples=examples(500))
    @given(st.text("{}[]:,\"'\\ \n01ae.-u\0é", max_size=12))
    def test_any_text_has_a_value_or_is_refused(self, text: str) -> None:
        try:
            value = loads_lenient(text)
        except FastjsonError as error:
            self.assertLessEqual(error.position, len(text))
        else:
            self.assertEqual(repr(loads_lenient(NOT_STRICT + text)), repr(value))


class RequestTests(SynchronousTestCase):
    """What a client may make us read (attack finding D6)."""

    def test_a_long_text_must_be_strict_json(self) -> None:
        strict = b'{"a":[' + b"1," * MAX_BYTES_SLOWLY + b"1]}"
        self.assertEqual(len(loads_request(strict)["a"]), MAX_BYTES_SLOWLY + 1)
        for text in (strict.replace(b"1]}", b"1,]}"), strict.replace(b"1]}", b"9" * 25 + b"]}")):
            with self.assertRaisesRegex(FastjsonError, "not strict JSON"):
                loads_request(text)

    def test_a_short_one_may_be_what_fastjson_writes(self) -> None:
        self.assertEqual(loads_request(b"{0:1,}"), {0: 1})

    def test_many_digits_in_a_text_are_no_large_number(self) -> None:
        """A Go client's id ends with 19 of them."""
        text = b'{"clientID":"10.0.0.1@7#1700000000000000000","pad":"' + b"x" * MAX_BYTES_SLOWLY + b'"}'
        self.assertEqual(loads_request(text)["clientID"], "10.0.0.1@7#1700000000000000000")

    def test_objects_and_arrays_are_counted(self) -> None:
        self.assertEqual(len(loads_request(b"[" + b"[]," * (MAX_OBJECTS - 2) + b"[]]")), MAX_OBJECTS - 1)
        with self.assertRaisesRegex(FastjsonError, "objects and arrays"):
            loads_request(b"[" + b"{}," * MAX_OBJECTS + b"{}]")


class TableTests(SynchronousTestCase):
    """Large tables, row by row."""

    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(50))
    @given(
        st.dictionaries(st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.integers(-9, 2**40), max_size=4)),
        st.booleans(),
        st.sampled_from([dumps_compact, dumps_pretty]),
    )
    def test_rows_are_what_they_are_in_the_whole(
        self, table: dict[str, dict[str, int]], has_nested_rows: bool, dumps: Callable[[Any], bytes]
    ) -> None:
        rows: dict[str, Any] = {f"row {{,}} {number}": {"v": number, "t": '"}\\'} for number in range(2000)}
        rows |= {name: {"attributes": row} for name, row in table.items()} if has_nested_rows else table
        content = {"dataVersion": {"counter": 3}, "table": rows, "after": [1, {"b": "table"}]}
        document, found = at_once(loads_table_in_steps(dumps(content), "table", 10_000))
        self.assertEqual((document, found), ({**content, "table": {}}, rows))

    def test_integer_keys_are_read(self) -> None:
        offsets = {f"T{number}@G": {0: number, 1: 7} for number in range(3000)}
        document, found = at_once(loads_table_in_steps(dumps_pretty({"offsetTable": offsets}), "offsetTable", 3000))
        self.assertEqual((document, found), ({"offsetTable": {}}, offsets))

    def test_more_rows_than_are_taken_are_refused(self) -> None:
        text = dumps_compact({"t": {f"row-{number}": {"some": "text"} for number in range(4000)}})
        with self.assertRaisesRegex(FastjsonError, "more than 3000 rows"):
            at_once(loads_table_in_steps(text, "t", 3000))

    def test_a_large_text_of_another_shape_is_refused(self) -> None:
        beside = b"x" * MAX_BYTES_BESIDE_ROWS
        for text in (b'{"t":{"a":{}},"other":"' + beside + b'"}', b"[" * 100_000, b'{"t":{' + b"1," * 50_000):
            with self.assertRaises(FastjsonError):
                at_once(loads_table_in_steps(text, "t", 10))

    def test_rows_with_nested_objects_and_other_fields_are_read_from_a_large_text(self) -> None:
        """A group of 5.x has a retry policy; groupRetryPolicy contains exponentialRetryPolicy, and more may come."""
        row = {"policy": {"a": {"next": [{"b": {"c": "}{"}}]}}, "attributes": {}}
        content = {"other": {"x": "y" * 70_000}, "t": {f"row {n}": row for n in range(2000)}, "z": [{"u": {}}]}
        rest, rows = at_once(loads_table_in_steps(dumps_strict(content), "t", 3000))
        self.assertEqual({**rest, "t": rows}, content)

    def test_documents_are_written_by_rows_as_they_are_whole(self) -> None:
        rows = {f"row {number}": number for number in range(1000)}
        content = {"a": 1, "t": {name: {"n": value} for name, value in rows.items()}, "e": {}}
        document = {"a": 1, "t": Rows(rows, lambda value: {"n": value}), "e": Rows({}, dict)}
        breaths: list[None] = []
        self.assertEqual(dumps_pretty_by_rows(document, lambda: breaths.append(None)), dumps_pretty(content))
        self.assertGreater(len(breaths), 2)
        self.assertEqual(at_once(dumping_strict(document)), dumps_strict(content))
        self.assertGreater(len(list(dumping_strict(document))), 2)
