"""Types of columns are read and written as Spark SQL does."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.pipeline.sqltypes import SQL_TYPES, STRING_MAP, TIMESTAMP, TypeProblem, list_of, parse_type, sql_type

LEAVES = st.sampled_from([*SQL_TYPES, pa.decimal128(38, 0), pa.decimal128(10, 2)])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def structs_of(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(NAMES, kinds), min_size=1, max_size=4, unique_by=lambda one: one[0])
    return fields.map(lambda some: pa.struct([pa.field(name, kind) for name, kind in some]))


KINDS = st.recursive(
    LEAVES,
    lambda kinds: st.one_of(kinds.map(list_of), kinds.map(lambda kind: pa.map_(pa.string(), kind)), structs_of(kinds)),
    max_leaves=8,
)


@given(KINDS)
def test_a_type_that_is_written_is_read_again(kind: pa.DataType) -> None:
    assert parse_type(sql_type(kind)) == kind


@given(st.text(max_size=40))
def test_a_text_is_a_type_or_is_refused(text: str) -> None:
    try:
        kind = parse_type(text)
    except TypeProblem:
        return
    assert parse_type(sql_type(kind)) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int", pa.int32()),
        ("ARRAY<Long>", list_of(pa.int64())),
        ("map<string, string>", STRING_MAP),
        ("a int", pa.struct([("a", pa.int32())])),
        (
            "a: int NOT NULL COMMENT 'the \\'a\\'', `b c` decimal",
            pa.struct([("a", pa.int32()), ("b c", pa.decimal128(10, 0))]),
        ),
        (
            "array int, map date, comment timestamp, not timestamp_ntz",
            pa.struct(
                [("array", pa.int32()), ("map", pa.date32()), ("comment", TIMESTAMP), ("not", pa.timestamp("us"))]
            ),
        ),
        (
            "s struct<x: struct<y: array<decimal(5,2)>>, z real>",
            pa.struct(
                [("s", pa.struct([("x", pa.struct([("y", list_of(pa.decimal128(5, 2)))])), ("z", pa.float32())]))]
            ),
        ),
    ],
)
def test_types_are_written_in_several_ways(text: str, kind: pa.DataType) -> None:
    assert parse_type(text) == kind


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not a type of Spark SQL"),
        ("a b c", "see column 5"),
        ("a foo", "no type foo"),
        ("int, string", "has the type int, but no name"),
        ("a int, a int", "two fields have the name a"),
        ("map<int>", "map<type, type>"),
        ("array<a: int>", "array<type>"),
        ("varchar(10)", "only decimal takes numbers"),
        ("decimal(39,0)", "1 to 38 digits"),
        ("decimal(5,6)", "scale included"),
        ("array<" * 5000 + "int" + ">" * 5000, "too deeply"),
        ("a int" + " " * (1 << 20), "too long"),
    ],
)
def test_what_is_no_type_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(TypeProblem, match=told):
        parse_type(text)
