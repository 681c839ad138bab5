"""``rmqha job reconcile`` with brokers that are read over the network, on either side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmqha.cli import main
from rmqha.pipeline import brokers as asked_brokers
from rmqha.pipeline.address import Place
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.origin import broker_folder
from rmqha.pipeline.network.lines import NodeFailed
from tests.pipeline.fakecluster import ADDRESS, FakeCluster
from tests.pipeline.stores import options
from tests.pipeline.test_jobs_reconcile import BORN, message

pytestmark = pytest.mark.long

EVEN, ODD = [message(number) for number in range(0, 60, 2)], [message(number) for number in range(1, 60, 2)]
LACKED = message(100)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Two brokers, which share the messages."""
    with FakeCluster(tmp_path, monkeypatch) as found:
        found.add_records("broker-a", EVEN)
        found.add_records("broker-b", ODD)
        yield found


@pytest.fixture
def whole(cluster: FakeCluster, tmp_path: Path) -> Path:
    """A store of one broker that has all of them, and one more."""
    return cluster.store_of(tmp_path / "whole", [*ODD, LACKED, *EVEN])


def reconcile(source: object, *words: object) -> tuple[Result, dict[str, Any]]:
    done = CliRunner().invoke(main, ["job", "reconcile", str(source), *map(str, words), "--json"])
    return done, json.loads(done.stdout) if done.stdout else {}


def test_a_cluster_lacks_what_a_store_has(cluster: FakeCluster, whole: Path) -> None:
    done, found = reconcile(whole, "--against", ADDRESS)
    assert done.exit_code == 1
    assert [(row["problem"], row["msgId"]) for row in found["first"]] == [("missing", "U100")]
    assert (found["missing"], found["more"]) == (1, 0)


def test_a_store_has_what_a_cluster_has(cluster: FakeCluster, whole: Path) -> None:
    done, found = reconcile(ADDRESS, "--against", whole)
    assert done.exit_code == 0, done.output
    assert (found["missing"], found["more"]) == (0, 1)


def test_brokers_on_both_sides(cluster: FakeCluster) -> None:
    done, found = reconcile(ADDRESS, "--against", "rmqha://broker:1")
    assert done.exit_code == 1
    assert {row["msgId"] for row in found["first"]} == {f"U{number}" for number in range(1, 60, 2)}
    assert {row["source"] for row in found["first"]} == {f"{ADDRESS}/broker-b"}
    done, found = reconcile("rmqha://broker:1", "--also", "rmqha://broker:2", "--against", ADDRESS)
    assert (done.exit_code, found["topics"]["T0"]["found"]) == (0, 30)


def test_a_cluster_and_its_archives(cluster: FakeCluster, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for name, store in cluster.stores.items():
        archive(options(store, output=broker_folder(lake, name)), LocalEngine())
    for one, other in ((ADDRESS, lake), (lake, ADDRESS)):
        done, found = reconcile(one, "--against", other)
        assert (done.exit_code, found["more"]) == (0, 0), done.output


OFFSETS: Mapping[str, Mapping[str, Any]] = {
    "broker-a": {"T0@G": {"0": 20}},
    "broker-b": {"T1@G": {"0": 30}},
}


@pytest.fixture
def consumed(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers tell what the group G has consumed: broker-a's ten last messages are not."""

    def ask(remoting: Place, *_: object) -> bytes:
        name = cluster.name_of(remoting)
        if name not in OFFSETS:
            raise NodeFailed(f"{name} is strange")
        return json.dumps({"offsetTable": OFFSETS[name]}).encode()

    monkeypatch.setattr(asked_brokers, "ask_consumer_offsets", ask)


@pytest.mark.usefixtures("consumed")
def test_what_a_producer_sent_is_stored_and_consumed(cluster: FakeCluster, tmp_path: Path) -> None:
    sends = tmp_path / "sends.csv"
    sends.write_text("topic,msgId\n" + "".join(f"T{number % 2},U{number}\n" for number in range(60)))
    done, found = reconcile(ADDRESS, "--sends", sends, "--group", "G")
    assert done.exit_code == 6, done.output
    late = {row["msgId"] for row in found["first"] if row["problem"] == "notConsumed"}
    assert late == {f"U{number}" for number in range(40, 60, 2)}
    assert len(found["first"]) == 10


@pytest.mark.usefixtures("consumed")
def test_offsets_of_another_time_are_not_to_be_had(cluster: FakeCluster, tmp_path: Path) -> None:
    sends = tmp_path / "sends.csv"
    sends.write_text("topic,msgId\nT0,U0\n")
    done, _ = reconcile(ADDRESS, "--sends", sends, "--group", "G", "-o", f"endingTimestamp={BORN + 30}")
    assert done.exit_code == 2
    assert "over the network there are only the offsets of now" in done.output
