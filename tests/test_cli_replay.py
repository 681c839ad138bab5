"""``rmqha replay`` and ``rmqha put --dump`` with a real broker: what arrives, what is said, and with which status."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.testing.nodes import TwistdNode
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from tests.pipeline.stores import make_store, options
from tests.waiting import wait_until

pytestmark = pytest.mark.process

RMQHA = str(Path(sys.executable).with_name("rmqha"))
MASTER_OPTIONS = ("--role=async-master", "--port=0", "--set=mappedFileSizeCommitLog=1048576")
SIZE = ("--set", "mappedFileSizeCommitLog=16384")
SECONDS = 300
NOW = 1_795_000_000_000
NAMES = ("topic", "queueId", "body", "flag", "sysFlag")


def run(*arguments: object, lines: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [RMQHA, *map(str, arguments)]
    return subprocess.run(command, input=lines, capture_output=True, timeout=SECONDS, check=False)


def fine(*arguments: object, lines: bytes = b"") -> str:
    done = run(*arguments, lines=lines)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


def complaint(status: int, *arguments: object, lines: bytes = b"") -> str:
    done = run(*arguments, lines=lines)
    assert done.returncode == status, done
    assert done.stderr.count(b"\n") == 1, done.stderr
    return done.stderr.decode()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[TwistdNode]:
    with TwistdNode(tmp_path, MASTER_OPTIONS, name="master") as node:
        yield node


def way(node: TwistdNode) -> str:
    return f"--broker=127.0.0.1:{node.port('remoting')}"


def own(record: dict[str, Any]) -> tuple[object, ...]:
    """What of a dumped message must arrive."""
    properties = {name: value for name, value in record["properties"].items() if name != "CLUSTER"}
    return *(record[name] for name in NAMES), tuple(sorted(properties.items()))


def records() -> list[Record]:
    """Messages of two topics in several queues, one with a compressed body, and what is not to be sent."""
    made = [
        Record(
            f"T{number % 2}",
            b"\0\xff body %d" % number,
            format_properties(
                {"KEYS": f"k{number} both", "TAGS": "ab"[number % 2], "UNIQ_KEY": f"U{number}", "mine": "é\n"}
            ),
            queue_id=number % 4,
            queue_offset=number // 4,
            flag=number,
            sys_flag=1 if number == 5 else 0,
            store_timestamp=NOW + number,
        )
        for number in range(20)
    ]
    half = format_properties({"TRAN_MSG": "true", "REAL_TOPIC": "T0", "REAL_QID": "0", "UNIQ_KEY": "H"})
    late = format_properties({"DELAY": "1", "REAL_TOPIC": "T1", "REAL_QID": "3", "UNIQ_KEY": "L"})
    made.append(Record("RMQ_SYS_TRANS_HALF_TOPIC", b"half", half, store_timestamp=NOW + 90))
    made.append(Record(SCHEDULE_TOPIC, b"late", late, store_timestamp=NOW + 91))
    return made


def dumped(store: Path, *more: object) -> list[dict[str, Any]]:
    lines = fine("dump", store, "--json", *SIZE[: 2 * (not more)], *more).splitlines()
    return [found for found in map(json.loads, lines) if "blank" not in found]


def arrived(node: TwistdNode, count: int) -> list[dict[str, Any]]:
    """The messages in the log of the node, as many as there must be."""

    def look() -> list[dict[str, Any]] | None:
        found = dumped(node.store, "--set", "mappedFileSizeCommitLog=1048576")
        return found if len(found) >= count else None

    found = node.wait_until_found(look, f"{count} messages", SECONDS)
    assert len(found) == count
    return found


@pytest.mark.story
def test_put_takes_what_dump_prints(tmp_path: Path, master: TwistdNode) -> None:
    store = tmp_path / "old"
    make_store(store, records()[:20])
    lines = fine("dump", store, "--json", *SIZE)
    file = tmp_path / "lines"
    file.write_text(lines)
    assert fine("put", "--dump", file, way(master)) == "SEND_OK 20\n"
    assert sorted(map(own, arrived(master, 20))) == sorted(map(own, dumped(store)))
    assert fine("put", "--dump", "-", way(master), lines=lines.splitlines()[3].encode()) == "SEND_OK 1\n"
    assert "line 2 is not a line of rmqha dump --json" in complaint(
        2, "put", "--dump", "-", way(master), lines=lines.splitlines()[0].encode() + b"\n{}\n"
    )
    assert "give no TOPIC" in complaint(2, "put", "T", "--dump", file, way(master))
    assert "give a TOPIC" in complaint(2, "put", way(master))
    arrived(master, 21)  # nothing was sent of what was refused


def test_a_store_is_sent_again_with_filters(tmp_path: Path, master: TwistdNode) -> None:
    store = tmp_path / "old"
    laid = make_store(store, records())
    counted = json.loads(fine("replay", store, "--dry-run", "--json", way(master), *SIZE))
    assert counted == {"messages": 21, "topics": {"T0": 10, "T1": 11}, "notSent": {"half": 1}}
    assert "T0: 10 messages" in fine("replay", store, "--dry-run", way(master), *SIZE)
    choice = ("--topic=T1", "--tag=b", "--queue=1", "--from", laid[4].physical_offset)
    assert fine("replay", store, *choice, way(master), *SIZE) == "SEND_OK 4\n"
    assert fine("replay", store, "--topic=Missing", way(master), *SIZE) == "there are no messages to send\n"
    expected = [one for one in dumped(store) if one["topic"] == "T1" and one["queueId"] == 1][1:]
    assert list(map(own, arrived(master, 4))) == list(map(own, expected))  # in order: they are of one queue


@pytest.mark.story
def test_progress_is_kept_and_continued(tmp_path: Path, master: TwistdNode) -> None:
    store, file = tmp_path / "old", tmp_path / "progress"
    make_store(store, records()[:20])
    command = ("replay", store, f"--progress={file}", *SIZE)
    assert "continues" in complaint(7, *command, "--broker=127.0.0.1:1")
    assert json.loads(file.read_text())["position"] == 0
    slow = subprocess.Popen(
        [RMQHA, *map(str, command), "--rate=0.2", way(master)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_until(lambda: json.loads(file.read_text())["position"] > 0, "some progress", SECONDS)
    slow.send_signal(signal.SIGINT)
    _, said = slow.communicate(timeout=SECONDS)
    assert slow.returncode == 130, said
    assert b"the same command continues" in said
    sent_before = json.loads(file.read_text())["statuses"]["SEND_OK"]
    assert 0 < sent_before < 20
    assert fine(*command, way(master)) == "SEND_OK 20\n"
    keys = sorted(one["properties"]["UNIQ_KEY"] for one in arrived(master, 20))
    assert keys == sorted(f"U{number}" for number in range(20))
    assert "says that all was sent" in complaint(2, *command, way(master))
    assert "with other options" in complaint(2, *command, "--topic=T1", way(master))


def test_a_kept_tail_and_an_archive(tmp_path: Path, master: TwistdNode) -> None:
    from rmqha.pipeline.jobs.archive import archive
    from rmqha.pipeline.jobs.engine import LocalEngine

    store, lake = tmp_path / "old", tmp_path / "lake"
    laid = make_store(store, records()[:20])
    archive(options(store, output=lake), LocalEngine())
    assert fine("job", "replay", lake, "--key=k7", way(master)) == "SEND_OK 1\n"
    start = laid[15].physical_offset
    content = (store / "commitlog" / f"{0:020d}").read_bytes()
    cut = store / "rmqha" / "cut"
    cut.mkdir(parents=True)
    kept = cut / f"{start:020d}"
    kept.write_bytes(content[start : laid[19].physical_offset + laid[19].total_size])
    assert fine("replay", kept, way(master)) == "SEND_OK 5\n"
    found = [one["properties"]["UNIQ_KEY"] for one in arrived(master, 6)]
    assert sorted(found) == ["U15", "U16", "U17", "U18", "U19", "U7"]


def test_wrong_use(tmp_path: Path) -> None:
    store = tmp_path / "old"
    make_store(store, records()[:2])
    assert "either --namesrv or --broker" in complaint(2, "replay", store, *SIZE)
    assert "no such store" in complaint(2, "replay", tmp_path / "none", "--broker=127.0.0.1:1")
    lines = tmp_path / "progress"
    lines.write_text("[]")
    assert "not a progress file" in complaint(2, "replay", store, f"--progress={lines}", "--broker=127.0.0.1:1", *SIZE)
    assert "neither an offset nor a time" in run("replay", store, "--from=soon", "--broker=127.0.0.1:1").stderr.decode()
