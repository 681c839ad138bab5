"""Two brokers of ours under producers, archived over the network by a stream that is killed again and again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from rmqha.kit.events import Event
from rmqha.pipeline.jobs.manifest import Archive
from rmqha.pipeline.jobs.origin import broker_folder
from rmqha.pipeline.jobs.tableformats import begin_table
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.pipeline.schema import archive_schema
from rmqha.store.log.mappedfile import file_name
from rmqha.testing.nodes import NameServerNode, PutNode, free_port
from tests.pipeline.nodes import SEGMENT_SIZE
from tests.pipeline.processes import WAIT_SECONDS, Stage, StreamProcess
from tests.pipeline.tables import table_offsets
from tests.pipeline.test_live import assert_each_message_once, in_the_log
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.story]

LOT: Final = 20
"""Messages that a producer puts at a time."""
RATE: Final = 50
"""Messages a second for each broker: batches stay small, however long Spark takes to start."""
SOME_STAGES: Final = (Stage.COMMITTED, Stage.WRITTEN)
"""`make stories` kills at some, `make proofs` at all."""


def broker(work: Path, name: str, server: NameServerNode) -> PutNode:
    options = ["--role=async-master", f"--port={free_port()}", f"--name={name}", f"--namesrv={server.address}"]
    return PutNode(work, [*options, f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}"], name=name)


@contextmanager
def producing(*nodes: PutNode) -> Iterator[None]:
    """Each node gets messages, a few at a time, until the context ends."""
    ended = threading.Event()

    def put(node: PutNode) -> None:
        while not ended.is_set():
            node.put(LOT, rate=RATE)

    threads = [threading.Thread(target=put, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def reached(lake: Path, name: str) -> int:
    """How far a broker's archive reaches."""
    covered = Archive(broker_folder(lake, name)).covered()
    return covered[-1][1] if covered else 0


def wait_for_archived(stream: StreamProcess, *nodes: PutNode) -> dict[str, int]:
    """Wait until each node's log is archived as it is after one more message; returns where the logs end."""
    ends = {node.name: int(node.put(1)["end"]) for node in nodes}  # state.json follows the log later

    def is_archived() -> bool:
        assert stream.is_running, stream.log_tail()
        return all(reached(stream.lake, name) >= end for name, end in ends.items())

    wait_until(is_archived, f"the archives to reach {ends}", WAIT_SECONDS)
    stream.wait_for_batch()
    return ends


def assert_hashes_are_those_of_the_log(lake: Path, store: Path) -> None:
    """Each SHA-256 of the manifests is that of the same bytes of the broker's own files."""
    hashes = [one for manifest in Archive(lake).manifests() for one in manifest.hashes]
    assert hashes
    for one in hashes:
        base = one.start - one.start % SEGMENT_SIZE
        content = (store / "commitlog" / file_name(base)).read_bytes()[one.start - base : one.end - base]
        assert hashlib.sha256(content).hexdigest() == one.sha256


@pytest.mark.parametrize(
    "stages", [SOME_STAGES, pytest.param(tuple(Stage), marks=pytest.mark.proof)], ids=["some", "all"]
)
def test_no_kill_of_the_query_loses_or_doubles_a_message(tmp_path: Path, stages: tuple[Stage, ...]) -> None:
    """One archive is a table of Delta, one of Iceberg, and one, whose broker comes later, is plain Parquet."""
    lake = tmp_path / "lake"
    kinds = {"broker-a": TableFormat.DELTA, "broker-b": TableFormat.ICEBERG}
    for name, kind in kinds.items():
        begin_table(broker_folder(lake, name), kind, archive_schema())
    with NameServerNode(tmp_path) as server:
        one, other, late = (broker(tmp_path, f"broker-{letter}", server) for letter in "abc")
        with one, other:
            for node in (one, other):
                node.wait_for_event(Event.REGISTERED)
                node.put(LOT)
            with StreamProcess(tmp_path, f"namesrv://{server.address}", lake) as stream:
                for stage in stages:
                    with producing(one, other):
                        stream.kill_in_a_batch(stage)
                    stream.start()
                wait_for_archived(stream, one, other)
                assert other.stop() == 0  # while no batch is under way
                one.put(LOT)
                wait_for_archived(stream, one)
                with late:
                    late.wait_for_event(Event.REGISTERED)
                    late.put(LOT)
                    other.start()
                    other.wait_for_event(Event.REGISTERED)
                    with producing(one, other, late):
                        wait_until(lambda: reached(lake, late.name) > 0, "messages of the late broker", WAIT_SECONDS)
                    ends = wait_for_archived(stream, one, other, late)
                    assert [node.stop() for node in (one, other, late)] == [0, 0, 0]
    for node in (one, other, late):
        folder, end = broker_folder(lake, node.name), ends[node.name]
        assert_each_message_once(folder, node.store, end)
        assert_hashes_are_those_of_the_log(folder, node.store)
        if node.name in kinds:
            offsets = [place[0] for place in in_the_log(node.store, end)]
            assert table_offsets(folder, kinds[node.name]) == offsets
