"""Archives with decoded bodies beside the stored ones."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import archived_paths
from rmqha.pipeline.jobs.restore import plan_restore, restore
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.pipeline.views import view_reader, view_schema
from rmqha.settings.settings import Settings
from rmqha.testing.records import make_record
from tests.pipeline.lake import options_of
from tests.pipeline.microbatches import Query
from tests.pipeline.stores import SEGMENT_SIZE, end_of, make_store, write_state


@pytest.fixture
def store(tmp_path: Path) -> Path:
    bodies = [b"{" if n == 3 else json.dumps({"id": n, "note": "x" * 300}).encode() for n in range(60)]
    records = [make_record(n, body) for n, body in enumerate(bodies)]
    write_state(tmp_path / "store", end_of(make_store(tmp_path / "store", records)))
    return tmp_path / "store"


def test_an_archive_with_decoded_bodies_is_a_whole_log(store: Path, tmp_path: Path) -> None:
    """Decoded bodies come besides all that a restore needs."""
    lake = tmp_path / "lake"
    archive(options_of(store, output=lake, bodyFormat="json", bodySchema="id int"), LocalEngine())
    rows = [row for path in archived_paths(lake) for row in pq.ParquetFile(path).read().to_pylist()]
    assert [row["value"] for row in rows] == [None if n == 3 else {"id": n} for n in range(60)]
    assert [bool(row["bodyError"]) for row in rows] == [n == 3 for n in range(60)]
    settings = Settings(mapped_file_size_commit_log=SEGMENT_SIZE)
    done = restore(plan_restore(lake, settings), tmp_path / "again", settings, LocalEngine())
    assert (done.messages, done.is_identical) == (60, True)


def test_columns_of_decoded_bodies_alone_are_possible(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    archive(options_of(store, output=lake, bodyFormat="text", columns="physicalOffset,value"), LocalEngine())
    names = {tuple(pq.ParquetFile(path).schema_arrow.names) for path in archived_paths(lake)}
    assert names == {("physicalOffset", "value")}


def lay(store: Path, bodies: list[bytes]) -> None:
    write_state(store, end_of(make_store(store, [make_record(n, body) for n, body in enumerate(bodies)])))


@pytest.mark.parametrize("topics", [None, ("BenchTopic",), ("BenchTopic", "Other")])
def test_json_without_a_schema_gets_the_same_one_in_each_run(tmp_path: Path, topics: tuple[str, ...] | None) -> None:
    """The first run infers it; later ones find it in the archive, also where bodies have become others."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    texts: dict[str, object] = {"bodyFormat": "json"}
    if topics is not None:
        (tmp_path / "formats.json").write_text(json.dumps({topic: {"format": "json"} for topic in topics}))
        texts = {"bodySchemas": tmp_path / "formats.json", "topic": "BenchTopic"}
    first = [b'{"id": %d, "odd one": [{"a b": 1.5}], "x": null}' % n for n in range(30)]
    later = [b'{"id": "text %d", "more": true}' % n for n in range(30)]
    lay(store, first)
    archive(options_of(store, output=lake, **texts), LocalEngine())
    lay(store, first + later)
    archive(options_of(store, output=lake, **texts), LocalEngine())
    files = [pq.ParquetFile(path) for path in archived_paths(lake)]
    assert len({file.schema_arrow.field("value").type for file in files}) == 1
    rows = [row for file in files for row in file.read().to_pylist()]
    assert [row["value"] and row["value"]["id"] for row in rows] == [*range(30), *[None] * 30]
    assert rows[0]["value"] == {"id": 0, "odd one": [{"a b": 1.5}], "x": None}
    assert [bool(row["bodyError"]) for row in rows] == [False] * 30 + [True] * 30


def test_a_stream_into_an_archive_needs_the_schema_of_json(store: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="needs its schema"):
        Query(store, tmp_path / "lake", bodyFormat="json")


AVRO = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in ("id", "x", "Id")]}
SAME = "whose names differ only in case"
CASES = [
    ({"bodyFormat": "json", "bodySchema": "id int, ID int"}, b"{}", "id and ID"),
    (
        {"bodyFormat": "json", "bodySchema": "a array<struct<m: map<int, struct<é: int, É: int>>>>"},
        b"{}",
        "a.m.é and a.m.É",
    ),
    ({"bodyFormat": "json"}, b'{"x":{"id":1,"Id":2}}', "x.id and x.Id"),
    ({"bodyFormat": "avro", "bodySchema": json.dumps(AVRO)}, b"", "id and Id"),
    ({"bodyFormat": "protobuf", "bodyMessage": "P", "bodyDescriptor": "P.desc"}, b"", "id and ID"),
    ({"bodySchemas": "two.json"}, b"", "Bench and bench"),
]


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that ``CASES`` name."""
    file = FileDescriptorProto(name="p.proto", syntax="proto3")
    message = file.message_type.add(name="P")
    for number, name in enumerate(("id", "ID"), 1):
        message.field.add(name=name, number=number, type=Field.TYPE_INT32, json_name=f"n{number}")
    file.message_type.add(name="E")
    outer = file.message_type.add(name="O")
    for number, (name, label) in enumerate((("e", Field.LABEL_OPTIONAL), ("l", Field.LABEL_REPEATED)), 1):
        outer.field.add(name=name, number=number, type=Field.TYPE_MESSAGE, type_name=".E", label=label)
    (tmp_path / "P.desc").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    (tmp_path / "two.json").write_text(json.dumps({topic: {"format": "text"} for topic in ("Bench", "bench")}))
    monkeypatch.chdir(tmp_path)


EMPTY = {"type": "record", "name": "E", "fields": []}
OUTER = {
    "type": "record",
    "name": "O",
    "fields": [{"name": "text", "type": "string"}, {"name": "e", "type": EMPTY}, {"name": "n", "type": ["null", "E"]}],
}


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize(
    ("texts", "body", "value"),
    [
        ({"bodyFormat": "avro", "bodySchema": json.dumps(EMPTY)}, b"", "{}"),
        ({"bodyFormat": "avro", "bodySchema": json.dumps(OUTER)}, b"\x02a\0", {"text": "a", "e": "{}", "n": None}),
        ({"bodyFormat": "avro", "bodySchema": json.dumps(OUTER)}, b"\x02a\2", {"text": "a", "e": "{}", "n": "{}"}),
        ({"bodyFormat": "protobuf", "bodyMessage": "E", "bodyDescriptor": "P.desc"}, b"", "{}"),
        ({"bodyFormat": "protobuf", "bodyMessage": "O", "bodyDescriptor": "P.desc"}, b"", {"e": None, "l": []}),
        (
            {"bodyFormat": "protobuf", "bodyMessage": "O", "bodyDescriptor": "P.desc"},
            b"\x0a\0\x12\0",
            {"e": "{}", "l": ["{}"]},
        ),
        ({"bodyFormat": "json"}, b'{"":{"":1},"o":{}}', {"": {"": 1}, "o": "{}"}),
    ],
)
def test_types_without_fields_and_names_without_letters_are_archived(
    tmp_path: Path, texts: dict[str, str], body: bytes, value: object
) -> None:
    store = tmp_path / "store"
    lay(store, [body] * 3)
    for table in TableFormat:
        lake = tmp_path / table.value
        archive(options_of(store, output=lake, **texts), LocalEngine(), table=table)
        found = [row["value"] for path in archived_paths(lake) for row in pq.ParquetFile(path).read().to_pylist()]
        assert found == [value] * 3


@pytest.mark.usefixtures("described")
@pytest.mark.parametrize(("texts", "body", "names"), CASES)
def test_names_that_differ_only_in_case_are_refused_before_anything_is_written(
    tmp_path: Path, texts: dict[str, Any], body: bytes, names: str
) -> None:
    """Jobs, tables, batch queries and streams all refuse them: engines take such columns for one."""
    store, lake = tmp_path / "store", tmp_path / "lake"
    lay(store, [body] * 3)
    told = f"the fields {names}, {SAME}"
    for table in TableFormat:
        with pytest.raises(OptionError, match=told):
            archive(options_of(store, output=lake, **texts), LocalEngine(), table=table)
    with pytest.raises(OptionError, match=told):
        view_schema(options_of(store, **texts))
    if texts != {"bodyFormat": "json"}:  # whose schema a stream needs
        with pytest.raises(OptionError, match=told):
            Query(store, lake, **texts)
    assert not lake.exists()


def test_a_schema_of_spark_whose_names_differ_only_in_case_is_refused(store: Path) -> None:
    value = pa.struct([("id", pa.int32()), ("ID", pa.int32())])
    with pytest.raises(OptionError, match=SAME):
        view_reader(options_of(store, bodyFormat="json"), [("value", value)])


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({"bodyFormat": "json", "bodySchema": "a foo"}, "no type foo"),
        ({"columns": "value"}, "needs bodyFormat="),
    ],
)
def test_what_cannot_be_archived_is_refused_before_anything_is_written(
    store: Path, tmp_path: Path, texts: dict[str, str], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        archive(options_of(store, output=tmp_path / "lake", **texts), LocalEngine())
    assert not (tmp_path / "lake").exists()
