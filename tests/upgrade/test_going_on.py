"""What the tree of commit 8200a57 wrote goes on today: the next messages, manifests and versions are written."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqha.client.replay import MARK
from rmqha.kit.events import Event
from rmqha.pipeline.jobs.manifest import Archive
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.store.keptsettings import read_kept_settings
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.archive import unpack
from rmqha.testing.nodes import NameServerNode, TwistdNode
from rmqha.wire.command import RequestCode
from rmqha.wire.record import Blank
from tests.commands import output_of, rmqha
from tests.interop.requests import ask
from tests.pipeline.conftest import java, spark
from tests.pipeline.lake import archived_offsets
from tests.pipeline.streams import run_to_the_end
from tests.pipeline.tables import table_offsets, versions_of, with_package
from tests.upgrade.conftest import FROZEN
from tests.upgrade.freeze import CLEAN, COMMAND, EXPECTED, REPLAY, STORES, UNCLEAN, facts_of, messages_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["java", "spark"]  # fixtures of tests/pipeline
KNOWN: dict[str, Any] = json.loads((FROZEN / EXPECTED).read_text("utf-8"))["stores"]
MORE = 150
"""Messages that fill more than a segment of the frozen stores."""
CONFIGURED = (
    *("--name=broker-a", "--port=0", "--set=fileReservedTime=48"),
    "--set=messageDelayLevel=1s 2s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
)
"""The options of the frozen master and its slave."""


def put(node: TwistdNode, topic: str = "Orders") -> None:
    """Send more messages to a master."""
    words = ("put", topic, "more " * 20, f"--count={MORE}", f"--broker=127.0.0.1:{node.port('remoting')}")
    wait_until(lambda: f"SEND_OK {MORE}" in rmqha(*words).stdout, "the messages to be stored")


@contextmanager
def running(store: Path, *options: str) -> Iterator[TwistdNode]:
    """A node of today on a store, as its operator configured it. It stops cleanly in the end."""
    with TwistdNode(store.parent, [*CONFIGURED, *options], store=store, name=f"{store.name}-node") as node:
        yield node
        assert node.stop() == 0


def check_grown(store: Path, topic: str = "Orders") -> None:
    """Everything of before is still there, and the new messages come after it, in further segments."""
    before, after = KNOWN[store.name], facts_of(store)
    for queue, (first, count) in before["queues"].items():
        assert after["queues"][queue][0] == first
        assert after["queues"][queue][1] >= count
    grown = messages_of(store, topic) - sum(n for name, (_, n) in before["queues"].items() if name.startswith(topic))
    assert grown >= MORE
    assert len(list((store / "commitlog").iterdir())) > before["end"] // 16384 + 1
    for table in ("topics", "delays"):
        assert before["tables"][table].keys() <= after["tables"][table].keys()
    assert set(before["tables"]["groups"]) <= set(after["tables"]["groups"])
    assert before["tables"]["offsets"].items() <= after["tables"]["offsets"].items()
    output_of("verify", store)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The stores of a master and its slave after they ran under today's tree and got more messages; and the archives.

    The tests only read the stores.
    """
    folder = tmp_path_factory.mktemp("grown")
    unpack(FROZEN / STORES, folder)
    with running(folder / CLEAN, "--role=sync-master") as first:
        copies = (f"--master=127.0.0.1:{first.port()}", f"--master-remoting=127.0.0.1:{first.port('remoting')}")
        with running(folder / "slave", "--role=slave", "--broker-id=1", *copies) as slave:
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            put(first)
            slave.wait_for_tables()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.process
def test_a_pair_takes_messages_into_new_segments_and_stays_equal(grown: Path) -> None:
    check_grown(grown / CLEAN)
    check_grown(grown / "slave")
    output_of("verify", grown / "slave", "--against", grown / CLEAN)


@pytest.mark.process
def test_a_store_of_a_killed_node_takes_messages_and_keeps_its_changed_setting(frozen: Path) -> None:
    store = frozen / UNCLEAN
    with running(store, "--role=async-master") as node:
        address = f"127.0.0.1:{node.port('remoting')}"
        assert b"fileReservedTime=720" in ask(address, RequestCode.GET_BROKER_CONFIG).body
        ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=600")
        put(node)
    check_grown(store)
    with running(store, "--role=async-master") as node:
        address = f"127.0.0.1:{node.port('remoting')}"
        assert b"fileReservedTime=600" in ask(address, RequestCode.GET_BROKER_CONFIG).body
    assert read_kept_settings(store)["fileReservedTime"].configured == "48"


@pytest.mark.process
@pytest.mark.story
@pytest.mark.parametrize("kind", TableFormat)
def test_an_archive_gets_its_next_manifest_and_its_table_the_next_version(
    grown: Path, frozen: Path, before: tuple[str, ...], kind: TableFormat
) -> None:
    with_package(kind)
    lake = frozen / "lake"
    if kind is TableFormat.ICEBERG:  # it notes absolute paths, so the frozen one cannot be moved
        words = ("job", "archive", CLEAN, f"--output={lake}", "--table=iceberg", "--engine=local")
        subprocess.run((*before, *COMMAND, *words), check=True, cwd=frozen)
    else:
        (frozen / kind.value).rename(lake)
    old = archived_offsets(lake)
    versions = len(versions_of(lake, kind)) if kind is not TableFormat.PARQUET else 0
    for _ in range(2):  # the second run finds nothing new
        output_of("job", "archive", grown / CLEAN, "--output", lake, "--engine=local")
    after = archived_offsets(lake)
    assert after[: len(old)] == old
    assert len(after) >= len(old) + MORE
    manifests = Archive(lake).manifests()
    assert len(manifests) == 2
    assert all(one.end == two.start for one, two in pairwise(manifests))
    if kind is not TableFormat.PARQUET:
        assert len(versions_of(lake, kind)) == versions + 1
        assert table_offsets(lake, kind) == after
    output_of("job", "restore", lake, "--output", frozen / "restored")
    output_of("verify", frozen / "restored", "--against", grown / CLEAN)


def replayed(store: Path) -> Counter[str]:
    """How often the topic has each message that was replayed, by what marks it: where it was in the source."""
    reader = StoreReader(store)
    try:
        records = [record for _, record in reader.records(0, None) if not isinstance(record, Blank)]
        return Counter(each.properties[MARK] for each in records if each.topic == "Orders" and MARK in each.properties)
    finally:
        reader.close()


@pytest.mark.process
@pytest.mark.story
def test_a_replay_that_was_killed_sends_the_rest_once(frozen: Path, notes: Path) -> None:
    kept = notes / "replay" / "progress"
    content = json.loads(kept.read_text())
    content["of"]["source"] = str(frozen / CLEAN)  # the store has another place here
    kept.write_text(json.dumps(content))
    target = notes / "replay" / "target"
    already = replayed(target)
    with NameServerNode(frozen) as names:
        options = ("--role=async-master", f"--namesrv={names.address}", "--set=timerWheelEnable=true")
        with running(target, "--name=broker-r", *options) as node:
            node.wait_for_event(Event.REGISTERED)
            output_of("replay", frozen / CLEAN, *REPLAY, f"--namesrv={names.address}", "--progress", kept)
    assert json.loads(kept.read_text())["isOver"]
    sent = replayed(target)
    assert 30 <= already.total() < messages_of(frozen / CLEAN, "Orders") <= len(sent)
    assert already.keys() < sent.keys()
    assert set(sent.values()) == {1}


@pytest.mark.process
def test_a_name_server_knows_the_configuration_of_before_and_keeps_more(notes: Path) -> None:
    key = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders"}
    more = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Invoices"}
    for is_first in (True, False):
        with NameServerNode(notes) as names:
            found = ask(names.address, RequestCode.GET_KV_CONFIG, key)
            assert found.ext_fields["value"] == "broker-r:4"
            if is_first:
                ask(names.address, RequestCode.PUT_KV_CONFIG, {**more, "value": "broker-r:1"})
            assert ask(names.address, RequestCode.GET_KV_CONFIG, more).ext_fields["value"] == "broker-r:1"
            assert names.stop() == 0


@pytest.mark.process
@pytest.mark.story
def test_what_was_cut_comes_back(frozen: Path, notes: Path) -> None:
    cut = notes / "cut"
    (kept,) = (cut / "rmqha" / "cut").iterdir()
    assert kept.name in output_of("restore-cut", cut)
    output_of("restore-cut", cut, kept.name, "--apply", "--force")
    output_of("repair", cut, "--from", frozen / CLEAN)
    output_of("verify", cut, "--against", frozen / CLEAN, "--exact")


@pytest.mark.story
def test_a_stream_goes_on_at_its_checkpoint(grown: Path, notes: Path, spark: SparkSession) -> None:
    lake, store = notes / "stream" / "lake", grown / CLEAN
    before = archived_offsets(lake)
    splits = spark.readStream.format("rmqha").option("view", "splits").load(str(store))
    writing = splits.writeStream.format("rmqha_archive").option("checkpointLocation", str(lake.parent / "checkpoint"))
    run_to_the_end(lambda: writing.trigger(availableNow=True).start(str(lake)))
    after = archived_offsets(lake)
    assert after[: len(before)] == before
    assert len(after) >= len(before) + MORE
    assert len(set(after)) == len(after)
