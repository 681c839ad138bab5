"""Reads a remote log without Spark: from nodes that answer, lie, die, or say nothing."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from rmqha.pipeline import brokers
from rmqha.pipeline.address import Access, Place, RemoteLog, ServingNode, TLSPaths
from rmqha.pipeline.network import segment as segments
from rmqha.pipeline.network import stream as streams
from rmqha.pipeline.network.asking import ServedLog
from rmqha.pipeline.network.lines import connect
from rmqha.pipeline.network.segment import NetworkSegment, NoNodeLeft
from rmqha.pipeline.network.stream import RateLimit
from rmqha.pipeline.options import parse_options
from rmqha.pipeline.segments import read_records
from rmqha.store.errors import CorruptLogError, DataLossError
from rmqha.store.log.splits import Split
from rmqha.wire.transfer import READER, encode_report
from tests.pipeline.fakenode import Behaviour, FakeNode, frame, send, send_all, send_nothing, send_to
from tests.pipeline.stores import end_of, lay_records, plain_records

SIZE = 1 << 17
SEGMENTS, RECORDS = lay_records(plain_records(200), SIZE)
LOG = b"".join(SEGMENTS.values())
END = end_of(RECORDS)
OFFSETS = [record.physical_offset for record in RECORDS]
BATCH_BYTES = 10_000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "PAUSES_SECONDS", (0.0, 0.0))


@pytest.fixture
def nodes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def fake(nodes: ExitStack, *behaviours: Behaviour, log: bytes = LOG[:END]) -> FakeNode:
    return nodes.enter_context(FakeNode(log, *behaviours))


def path_of(
    *fakes: FakeNode,
    limit: int = END,
    silence_seconds: float = 30.0,
    knows_readers: bool = False,
    settling_seconds: float = 0.0,
) -> str:
    named = tuple(ServingNode(one.place, number, knows_readers, settling_seconds) for number, one in enumerate(fakes))
    return RemoteLog("broker-a", named, limit, access=Access(silence_seconds=silence_seconds)).path()


def offsets_of(path: str, start: int = 0, end: int = END) -> list[int]:
    found = read_records(Split(path, 0, SIZE, start, end), BATCH_BYTES, verify_body=True)
    return [offset for records in found for offset in records.physical_offset.tolist()]


def test_all_records_come_over_one_connection(nodes: ExitStack) -> None:
    node = fake(nodes)
    assert offsets_of(path_of(node)) == OFFSETS
    assert node.reports == [[1]], "a request for 0 would get the last segment only"


def test_a_master_that_was_asked_before_its_log_grew_takes_over(
    nodes: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slave, which was asked after it, has more by then. So it is with each master that takes messages."""
    master = fake(nodes)
    with FakeNode(LOG[:END]) as slave:
        said = {
            1: ServedLog(ServingNode(master.place, 0), "broker-a", 0, OFFSETS[-20], SIZE, None),
            2: ServedLog(ServingNode(slave.place, 1), "broker-a", 0, END, SIZE, None),
        }
        monkeypatch.setattr(brokers, "ask_brokers", lambda *_: {"broker-a": {0: Place("m", 1), 1: Place("s", 2)}})
        monkeypatch.setattr(brokers, "ask_node", lambda place, *_: said[place.port])
        (plan,) = brokers.open_logs(parse_options({"path": "namesrv://ns:9876"}))
    splits = plan.splits(0, plan.end)
    found = [records.physical_offset.tolist() for split in splits for records in read_records(split, BATCH_BYTES)]
    assert [offset for some in found for offset in some] == OFFSETS


def test_a_split_asks_for_its_start_and_reads_to_its_end(nodes: ExitStack) -> None:
    node = fake(nodes)
    assert offsets_of(path_of(node), OFFSETS[50], OFFSETS[120]) == OFFSETS[50:120]
    assert node.reports == [[OFFSETS[50]]]


def test_a_node_that_knows_readers_is_told(nodes: ExitStack) -> None:
    node = fake(nodes)
    assert offsets_of(path_of(node, knows_readers=True), OFFSETS[7]) == OFFSETS[7:]
    assert node.reports == [[READER, OFFSETS[7]]]


def test_a_node_that_believes_reports_hears_only_of_bytes_that_nobody_waits_for(
    nodes: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    node = fake(nodes)
    (known,) = RemoteLog.parse(path_of(node, settling_seconds=6.5)).nodes
    for settled in (OFFSETS[9], OFFSETS[8]):
        path = RemoteLog("broker-a", (known,), END, settled).path()
        assert offsets_of(path, OFFSETS[9]) == OFFSETS[9:]
    assert waited == [6.5]


def test_its_reports_never_grow(nodes: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REPORT_SECONDS", 0.001)
    heard: list[bytes] = []

    def wait_for_a_heartbeat(node: FakeNode, line: socket.socket, start: int) -> None:
        line.sendall(node.frames(start, 30_000))
        heard.append(line.recv(8))
        line.sendall(node.frames(30_000))

    node = fake(nodes, wait_for_a_heartbeat)
    assert offsets_of(path_of(node), OFFSETS[5]) == OFFSETS[5:]
    assert set(node.reports[0]) == {OFFSETS[5]}
    assert heard == [encode_report(OFFSETS[5])]


def test_small_reads_forward_need_no_new_connection(nodes: ExitStack) -> None:
    node = fake(nodes)
    with NetworkSegment(path_of(node), 0) as segment:
        for start, size in ((0, 28), (4000, 28), (4000, 5000), (5000, 100), (8999, 20), (20_000, 1)):
            assert segment.read(start, size).tobytes() == LOG[start : start + size]
        assert len(node.reports) == 1
        assert segment.read(100, 50).tobytes() == LOG[100:150]
        assert [reports[0] for reports in node.reports] == [1, 100]


def test_nothing_is_read_after_the_end(nodes: ExitStack) -> None:
    node = fake(nodes)
    with NetworkSegment(path_of(node, limit=1000), 0) as segment:
        assert len(segment.read(1000, 50)) == len(segment.read(2000, 50)) == 0
        assert node.reports == []
        assert segment.read(990, 50).tobytes() == LOG[990:1000]


@pytest.mark.parametrize("at", [1, 500, 20_000, END - 1])
def test_a_node_that_dies_is_replaced_at_the_same_byte(nodes: ExitStack, at: int) -> None:
    one, other = fake(nodes, send_to(at), send(b"")), fake(nodes)
    assert offsets_of(path_of(one, other)) == OFFSETS
    assert other.reports[0][0] == max(1, at - segments.COMPARED_BYTES)


def test_a_cut_connection_goes_on_at_the_same_node(nodes: ExitStack) -> None:
    node = fake(nodes, send_to(10_000), send_to(30_000), send_all)
    assert offsets_of(path_of(node)) == OFFSETS
    assert [reports[0] for reports in node.reports] == [1, 10_000, 30_000]


def test_a_replica_with_other_bytes_is_not_taken(nodes: ExitStack) -> None:
    other_log = bytearray(LOG[:END])
    other_log[19_000] ^= 1
    one, other = fake(nodes, send_to(20_000), send(b"")), fake(nodes, log=bytes(other_log))
    with pytest.raises(NoNodeLeft, match="has other bytes before 20000"):
        offsets_of(path_of(one, other))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "closed the connection at once"),
        (frame(5, b"x" * 100), "it sends 5, but 1 comes next"),
        (frame(1, LOG[1:3000]) + frame(2999, LOG[2999:4000]), "it sends 2999, but 3000 comes next"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it is not an HA port"),
        (frame(1, b"")[:8] + b"\xff\xff\xff\xff", "it is not an HA port"),
        (frame(1) + frame(1), "broker-a ends at 1, before"),
    ],
)
def test_garbage_ends_with_the_reason(nodes: ExitStack, data: bytes, reason: str) -> None:
    node = fake(nodes, send(data))
    with pytest.raises((NoNodeLeft, DataLossError), match=reason):
        offsets_of(path_of(node))
    assert len(node.reports) <= 1 + len(segments.PAUSES_SECONDS) + 1


def test_silence_ends(nodes: ExitStack) -> None:
    node = fake(nodes, send_nothing)
    with pytest.raises(NoNodeLeft, match=r"nothing came for 0\.05 s"):
        offsets_of(path_of(node, silence_seconds=0.05))


def test_one_silent_node_is_enough_if_another_one_speaks(nodes: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only while the silent one is asked: the other one may be as slow as it likes."""
    silent, node = fake(nodes, send_nothing), fake(nodes)
    asked, now = list[Place](), [0.0]

    def connect_to(place: Place, tls: TLSPaths | None) -> socket.socket:
        asked.append(place)
        return connect(place, tls)

    def seconds() -> float:
        if asked and asked[-1] == silent.place:
            now[0] += 1.0
        return now[0]

    monkeypatch.setattr(streams, "connect", connect_to)
    monkeypatch.setattr(streams, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(time, "monotonic", seconds)
    assert offsets_of(path_of(silent, node)) == OFFSETS
    assert (asked[0], asked[-1]) == (silent.place, node.place)


def test_a_node_behind_is_replaced(nodes: ExitStack) -> None:
    behind, node = fake(nodes, log=LOG[:10_000]), fake(nodes)
    assert offsets_of(path_of(behind, node)) == OFFSETS


def test_bytes_that_no_node_has_are_a_loss(nodes: ExitStack) -> None:
    one, other = fake(nodes, log=LOG[:10_000]), fake(nodes, log=LOG[:12_000])
    with pytest.raises(DataLossError, match="broker-a ends at 12000, before"):
        offsets_of(path_of(one, other))


def test_nobody_there(nodes: ExitStack) -> None:
    with FakeNode(LOG) as gone:
        path = path_of(gone)
    with pytest.raises(NoNodeLeft, match=r"cannot connect to 127\.0\.0\.1"):
        offsets_of(path)


def test_bytes_that_are_no_record_are_reported_as_of_a_file(nodes: ExitStack) -> None:
    bad = bytearray(LOG[:END])
    bad[OFFSETS[40] + 4] ^= 0xFF
    node = fake(nodes, log=bytes(bad))
    with pytest.raises(CorruptLogError, match=f"bytes at {OFFSETS[40]} are not a record"):
        offsets_of(path_of(node))
    skipped: list[tuple[int, int]] = []
    split = Split(path_of(node), 0, SIZE, 0, END)
    found = read_records(split, BATCH_BYTES, skipped=lambda error, end: skipped.append((error.offset, end)))
    assert np.concatenate([records.physical_offset for records in found]).tolist() == OFFSETS[:40] + OFFSETS[41:]
    assert skipped == [(OFFSETS[40], OFFSETS[41])]


def test_a_pace_waits_as_long_as_the_bytes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    limit = RateLimit(1 << 20)
    for _ in range(64):
        limit.spend(limit.receive_bytes)
    assert limit.receive_bytes == 1 << 17
    assert now[0] == pytest.approx(108.0)
    now[0] += 50.0  # what was not used is lost
    limit.spend(1 << 20)
    assert now[0] == pytest.approx(159.0)


def test_a_path_is_a_text_that_says_who_is_asked() -> None:
    node = ServingNode(Place("fe80::1", 10912), 1, settling_seconds=6.0)
    remote = RemoteLog("broker a/b", (node, ServingNode(Place("db", 1), 0)), 5, 3, Access(7, 2.5))
    path = remote.path()
    assert path.startswith("rmqha://[fe80::1]:10912,db:1/broker%20a/b#")
    assert RemoteLog.parse(path) == remote
    assert NetworkSegment(path, 0).path == "rmqha://[fe80::1]:10912,db:1/broker a/b"
