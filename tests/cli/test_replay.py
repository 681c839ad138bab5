"""``rmqha replay`` and ``rmqha put --dump`` with a real broker: what arrives, what is said, and with which status."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqha.cli.replaycondition import passing
from rmqha.cli.replaymemory import ENTRY, HEAD, SENDS
from rmqha.client.replay import MARK, Stored
from rmqha.pipeline.sql import Condition
from rmqha.testing.nodes import TwistdNode
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from tests.commands import RMQHA, output_of, rmqha, rmqha_bytes
from tests.pipeline.stores import make_store, options
from tests.waiting import wait_until

pytestmark = pytest.mark.process

MASTER_OPTIONS = ("--role=async-master", "--port=0", "--set=mappedFileSizeCommitLog=1048576")
SIZE = ("--set", "mappedFileSizeCommitLog=16384")
SECONDS = 300
NOW = 1_795_000_000_000
NAMES = ("topic", "queueId", "body", "flag", "sysFlag")


def fine(*arguments: object, lines: bytes = b"") -> str:
    done = rmqha_bytes(*arguments, lines=lines)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


def complaint(status: int, *arguments: object, lines: bytes = b"") -> str:
    done = rmqha_bytes(*arguments, lines=lines)
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
    properties = {name: value for name, value in record["properties"].items() if name not in ("CLUSTER", MARK)}
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
    assert fine(*command, way(master)).startswith("SEND_OK 20\n")
    keys = sorted(one["properties"]["UNIQ_KEY"] for one in arrived(master, 20))
    assert keys == sorted(f"U{number}" for number in range(20))
    assert "says that all was sent" in complaint(2, *command, way(master))
    assert "with other options" in complaint(2, *command, "--topic=T1", way(master))


@pytest.mark.story
def test_a_killed_replay_goes_on_and_sends_nothing_twice(tmp_path: Path, master: TwistdNode) -> None:
    """Killed again and again: with a result that is in no file yet, and with none at all."""
    store, file = tmp_path / "old", tmp_path / "progress"
    make_store(store, [replace(one, queue_id=number % 4) for number, one in enumerate(records()[:20] * 20)])
    command = [RMQHA, *map(str, ("replay", store, f"--progress={file}", *SIZE, way(master), "--rate=20"))]
    journal = file.with_name("progress.journal")
    for _ in range(3):
        kill_after_some_results(command, file)
    while not is_current(journal, file):  # killed after the file was written, and before the journal began again
        kill_after_some_results(command, file)
    # As if it was killed before the last result was noted.
    content = journal.read_bytes()
    journal.write_bytes(content[: HEAD.size + ENTRY.size * results(journal)[-1]])
    done = output_of(*command[1:-1])
    found = arrived(master, 400)
    marks = [one["properties"][MARK] for one in found]
    assert len(set(marks)) == len(marks) == 400
    assert "that a broker has from an earlier run" in done
    assert not journal.exists()
    # Another run without the file finds each of them on the broker; to another topic all are sent.
    again = json.loads(fine("replay", store, "--skip-sent", "--json", *SIZE, way(master)))
    assert (again["found"], again["statuses"]) == (400, {})
    moved = ("--to-topic=Copies", "--where=topic = 'T1' and queueId = 3", "--skip-sent")
    count = sum(one["topic"] == "T1" and one["queueId"] == 3 for one in found)
    assert fine("replay", store, *moved, *SIZE, way(master)) == f"SEND_OK {count}\n"
    copies = [one for one in arrived(master, 400 + count) if one["topic"] == "Copies"]
    assert {one["properties"]["KEYS"] for one in copies} <= {one["properties"]["KEYS"] for one in found}
    assert {one["queueId"] for one in copies} == {3}


def kill_after_some_results(command: list[str], file: Path) -> None:
    before = generation(file)
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: generation(file) > before, "a start", SECONDS)
    journal = file.with_name(f"{file.name}.journal")
    wait_until(lambda: is_current(journal, file) and len(results(journal)) > 5, "some results", SECONDS)
    run.kill()
    run.wait()


def generation(file: Path) -> int:
    """How often the progress file was written."""
    return int(json.loads(file.read_bytes())["generation"]) if file.exists() else 0


def is_current(journal: Path, file: Path) -> bool:
    """Whether the journal goes on from the progress file: else its entries are in the file already."""
    head = journal.read_bytes()[: HEAD.size] if journal.exists() else b""
    return len(head) == HEAD.size and HEAD.unpack(head)[0] == generation(file)


def results(journal: Path) -> list[int]:
    """The places of results among the entries of a journal."""
    content = journal.read_bytes()[HEAD.size :] if journal.exists() else b""
    entries = ENTRY.iter_unpack(content[: len(content) // ENTRY.size * ENTRY.size])
    return [place for place, (_, kind) in enumerate(entries) if kind != SENDS]


def test_after_the_machine_has_stopped_every_message_is_asked_for(tmp_path: Path, master: TwistdNode) -> None:
    store, file = tmp_path / "old", tmp_path / "progress"
    make_store(store, records()[:20])
    assert fine("replay", store, "--to=1000", f"--progress={file}", *SIZE, way(master))
    content = json.loads(file.read_text())
    sent = content["statuses"]["SEND_OK"]
    assert sent > 2
    content |= {"isOver": False, "bootId": "another", "position": 0, "reached": 0, "statuses": {}, "done": []}
    file.write_text(json.dumps(content))
    said = fine("replay", store, "--to=1000", f"--progress={file}", *SIZE, way(master))
    assert said == f"not sent: {sent} that a broker has from an earlier run\n"
    arrived(master, sent)


CONDITIONS = [
    ("topic = 'T1' and queueId < 2", lambda one: one.topic == "T1" and one.queue_id < 2),
    ("properties['mine'] = 'é\n' and tags = 'a'", lambda one: one.properties["TAGS"] == "a"),
    ("keys like 'k1%'", lambda one: one.properties["KEYS"].startswith("k1")),
    ("storeTimestamp >= '2026-11-18T11:06:40.010Z'", lambda one: one.store_timestamp >= NOW + 10),
    ("msgId in ('U3', 'U4')", lambda one: one.properties["UNIQ_KEY"] in ("U3", "U4")),
    ("octet_length(body) = 9", lambda one: len(one.body) == 9),
    ("flag % 2 = 1 -- odd ones", lambda one: one.flag % 2 == 1),
]


@pytest.mark.parametrize(("where", "expected"), CONDITIONS)
def test_conditions_in_sql(where: str, expected: Callable[[Record], bool]) -> None:
    stored = [Stored(number, record) for number, record in enumerate(records()[:20])]
    source = [stored[0], None, *stored[1:]]
    found = [one for one in passing(source, Condition(where)) if one is not None]
    assert [one.position for one in found] == [one.position for one in stored if expected(one.record)]
    assert found


def test_bad_conditions(tmp_path: Path) -> None:
    store = tmp_path / "old"
    make_store(store, records()[:2])
    for where, said in (
        ("colour = 'red'", "colour"),
        ("topic =", "syntax error"),
        ("topic = (select content from read_text('/etc/passwd'))", "disabled"),
        ("1 = 1); drop table batch; --", "--where"),
    ):
        assert said in complaint(2, "replay", store, f"--where={where}", "--broker=127.0.0.1:1", *SIZE)
    assert (
        json.loads(fine("replay", store, "--dry-run", "--json", "--where=false", way_of_nobody(), *SIZE))["messages"]
        == 0
    )


def way_of_nobody() -> str:
    return "--broker=127.0.0.1:1"


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
    assert "neither an offset nor a time" in rmqha("replay", store, "--from=soon", "--broker=127.0.0.1:1").stderr
