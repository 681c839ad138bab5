"""What a user of Spark sees of decoded bodies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from rmqha.testing.records import make_record
from tests.pipeline.bodies import test_avrobodies as avro
from tests.pipeline.bodies import test_protobufbodies as protobuf
from tests.pipeline.stores import end_of, make_store, write_state
from tests.pipeline.streams import run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Forty orders in JSON, of which the third is broken."""
    records = [make_record(n, json.dumps({"id": n, "to": {"city": f"c{n % 2}"}}).encode()) for n in range(40)]
    records[3] = replace(records[3], body=b"{")
    write_state(tmp_path / "store", end_of(make_store(tmp_path / "store", records)))
    return tmp_path / "store"


def read(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("rmqha").options(**options).load(str(path))


def test_sql_over_bodies(spark: SparkSession, store: Path) -> None:
    read(spark, store, bodyFormat="json").createOrReplaceTempView("orders")
    found = spark.sql(
        "SELECT value.to.city, count(*), sum(value.id) FROM orders WHERE queueId < 4 AND bodyError IS NULL "
        "GROUP BY 1 ORDER BY 1"
    ).collect()
    assert [tuple(row) for row in found] == [("c0", 20, 380), ("c1", 19, 397)]
    (bad,) = spark.sql("SELECT keys, value, bodyError FROM orders WHERE bodyError IS NOT NULL").collect()
    assert (bad.keys, bad.value) == ("k3", None)
    assert "not JSON" in bad.bodyError


def test_a_users_own_schema_is_that_of_json(spark: SparkSession, store: Path) -> None:
    """Odd names of fields too: Spark and Arrow must mean the same."""
    schema = "keys string, value struct<id: decimal(9,2), `to`: string, `a b`: map<string,array<date>>>"
    frame = spark.read.format("rmqha").option("bodyFormat", "json").schema(schema).load(str(store))
    row = frame.where("keys = 'k7'").first()
    assert row is not None
    assert (str(row.value.id), row.value.to, row.value["a b"]) == ("7.00", '{"city":"c1"}', None)


def test_a_stream_has_bodies_too(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    stream = spark.readStream.format("rmqha").options(bodyFormat="json", bodySchema="id int").load(str(store))
    sink = stream.select("value.id").writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
    run_to_the_end(lambda: sink.trigger(availableNow=True).start(str(tmp_path / "lake")))
    found = {row.id for row in spark.read.parquet(str(tmp_path / "lake")).collect()}
    assert found == {n for n in range(40) if n != 3} | {None}


def test_avro_and_protobuf_have_all_their_types(spark: SparkSession, tmp_path: Path) -> None:
    """Arrow's types must be those that Spark made of the schema."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = {"type": "record", "name": "P", "fields": [{"name": "price", "type": price}]}
    bodies = [b"\x02\x7d", protobuf.field(2, b"x") + protobuf.varint(1 << 3) + protobuf.varint(2**64 - 1), b""]
    records = [make_record(n, body, topic=topic) for n, (body, topic) in enumerate(zip(bodies, "APD", strict=True))]
    write_state(tmp_path / "s", end_of(make_store(tmp_path / "s", records)))
    (tmp_path / "shop.pb").write_bytes(protobuf.DESCRIPTORS.SerializeToString())
    formats = {
        "A": {"format": "avro", "schema": schema},
        "P": {"format": "protobuf", "descriptor": str(tmp_path / "shop.pb"), "message": "shop.Order"},
        "D": {"format": "avro", "schema": avro.ORDER},
    }
    (tmp_path / "formats.json").write_text(json.dumps(formats))
    rows = read(spark, tmp_path / "s", bodySchemas=str(tmp_path / "formats.json")).orderBy("physicalOffset").collect()
    assert [bool(row.bodyError) for row in rows] == [False, False, True]
    assert str(rows[0].value.A.price) == "1.25"
    assert (rows[1].value.P.name, str(rows[1].value.P.id)) == ("x", str(2**64 - 1))
    assert rows[2].value is None


def test_a_schema_that_cannot_be_used_fails_with_our_words(spark: SparkSession, store: Path) -> None:
    with pytest.raises(PySparkException, match="bodySchema: there is no type foo"):
        read(spark, store, bodyFormat="json", bodySchema="a foo")
