"""A Java broker opens a store that we wrote, serves all of it and changes none of it; and the two take turns."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.restore import plan_restore, restore
from rmqha.pipeline.options import parse_options
from rmqha.settings.settings import make_settings
from tests.interop.conftest import MasterFactory
from tests.interop.nodes import wait_until_dispatched
from tests.interop.our_store import (
    DELAYED,
    PLAIN,
    QUEUES,
    SEGMENT_SIZE,
    SMALL,
    TAGGED,
    OurStore,
    Stored,
    lines_sha256,
    write_topics,
)
from tests.interop.rocketmq import PROJECT_ROOT, Broker, Driver, commit_log_sha256, free_ports, messages_sha256
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.story

PUTS = 400
SENDS = 200
SENT_BYTES = 3_000
UNIT_BYTES = 20
OTHERS = tuple(topic for topic in QUEUES if topic != DELAYED)
"""The topics to which Java adds nothing by itself."""


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def units_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """The bytes of each queue up to its last unit."""
    queues: dict[str, bytes] = {}
    for name in sorted(files):
        queue = name.rpartition("/")[0]
        queues[queue] = queues.get(queue, b"") + files[name]
    for queue, content in queues.items():
        end = len(content.rstrip(b"\0"))
        queues[queue] = content[: end + -end % UNIT_BYTES]
    return queues


def start_java(java_master: MasterFactory, store: Path, listen_port: int, **options: Any) -> Broker:
    """It checks no transactions: on a slow machine it would put half messages again while we look."""
    own: dict[str, Any] = {"transactionCheckInterval": 3_600_000, **SMALL, **options}
    return java_master(store=store, listen_port=listen_port, segment_size=SEGMENT_SIZE, **own)


def assert_java_serves(driver: Driver, stored: Sequence[Stored]) -> None:
    """A consumer gets every message of its queues; all are found by id, and by key and client id."""
    wanted = [message for message in stored if message.is_queued and message.topic != DELAYED]
    report = driver.consume(",".join(OTHERS), "GOurs", len(wanted))
    assert (report.count, report.sha256) == (len(wanted), lines_sha256(wanted))

    by_id = driver.look_up([f"id {message.msg_id}" for message in stored])
    for message, found in zip(stored, by_id, strict=True):
        assert found == [message.portrait]

    questions, answers = [], []
    for message in stored:
        answer = [message.portrait] if message.is_indexed else []
        names = [f"key {message.topic} {key}" for key in message.keys.split(" ")]
        questions += [*names, f"uniq {message.topic} {message.portrait['properties']['UNIQ_KEY']}"]
        answers += [answer] * (len(names) + 1)
    assert driver.look_up(questions) == answers


def delivered_sha256(stored: Sequence[Stored]) -> tuple[int, str]:
    """What the real topic of the delayed messages must give: their number and digest."""
    delayed = [message for message in stored if "DELAY" in message.portrait["properties"]]
    return len(delayed), lines_sha256(delayed)


def wait_for_distinct(driver: Driver, wanted: int) -> None:
    """Wait for so many of the delayed messages.

    Java 4.9.3 may forget how far it had come, and deliver again what it has delivered before (spec/store.md 12.2).
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while (report := driver.consume(DELAYED, "GOurs", wanted, seconds=5)).distinct != wanted:
        assert time.monotonic() < deadline, report


def test_java_serves_all_that_we_put_and_leaves_our_files_as_they_are(
    java_master: MasterFactory, driver: Driver, tmp_path: Path
) -> None:
    folder, listen_port = tmp_path / "ours", free_ports()
    write_topics(folder)
    ours = OurStore(folder, 1, listen_port)
    ours.put(PUTS)
    ours.dispatch()
    ends, log_end = ours.queue_ends(OTHERS), ours.store.commit_log.max_offset
    ours.close()
    stored = ours.stored
    assert log_end > 4 * SEGMENT_SIZE
    assert {message.portrait["sys_flag"] & 0xC for message in stored} == {0, 4, 8, 0xC}
    queue_files, log_sha = files_below(folder / "consumequeue"), commit_log_sha256(folder, 0, log_end)
    index_files = files_below(folder / "index")
    assert len(index_files) > 2
    assert len(queue_files) > len(units_of(queue_files))

    broker = start_java(java_master, folder, listen_port)
    wanted, sha256 = delivered_sha256(stored)
    delivered = driver.consume(DELAYED, "GOurs", wanted)
    assert (delivered.count, delivered.sha256) == (wanted, sha256)
    assert driver.queue_ends(*OTHERS) == ends
    assert_java_serves(driver, stored)
    broker.stop()

    assert not (folder / "abort").exists()
    assert commit_log_sha256(folder, 0, log_end) == log_sha
    queue_files_now = files_below(folder / "consumequeue")
    for name, content in queue_files.items():
        assert (name, queue_files_now[name] == content) == (name, True)
    assert {name.partition("/")[0] for name in queue_files_now.keys() - queue_files.keys()} == {DELAYED}
    full = sorted(index_files)[:-1]
    index_files_now = files_below(folder / "index")
    assert [index_files_now[name] == index_files[name] for name in full] == [True] * len(full)


def test_java_serves_a_store_that_was_restored_from_an_archive(
    java_master: MasterFactory, driver: Driver, tmp_path: Path
) -> None:
    folder, lake, restored, listen_port = tmp_path / "ours", tmp_path / "lake", tmp_path / "restored", free_ports()
    write_topics(folder)
    ours = OurStore(folder, 5, listen_port)
    ours.put(PUTS)
    ours.dispatch()
    ends, log_end = ours.queue_ends(OTHERS), ours.store.commit_log.max_offset
    ours.close()
    stored = ours.stored

    small = make_settings({name: str(value) for name, value in SMALL.items()})
    archive(replace(parse_options({"path": str(folder), "output": str(lake)}), settings=small), LocalEngine())
    done = restore(plan_restore(lake, small), restored, small, LocalEngine())
    assert (done.is_identical, done.messages, done.end) == (True, len(stored), log_end)
    assert commit_log_sha256(restored, 0, log_end) == commit_log_sha256(folder, 0, log_end)
    restored_units = units_of(files_below(restored / "consumequeue"))
    assert restored_units == units_of(files_below(folder / "consumequeue"))

    broker = start_java(java_master, restored, listen_port)
    wanted, _ = delivered_sha256(stored)
    wait_for_distinct(driver, wanted)
    assert driver.queue_ends(*OTHERS) == ends
    assert_java_serves(driver, stored)
    assert driver.send(PLAIN, SENDS, SENT_BYTES).statuses == {"SEND_OK": SENDS}
    wait_until_dispatched(broker.address)
    after = driver.queue_ends(*OTHERS)
    assert sum(high for _, high in after[PLAIN].values()) == sum(high for _, high in ends[PLAIN].values()) + SENDS
    assert {topic: after[topic] for topic in OTHERS if topic != PLAIN} == {
        topic: ends[topic] for topic in OTHERS if topic != PLAIN
    }
    broker.stop()
    assert commit_log_sha256(restored, 0, log_end) == commit_log_sha256(folder, 0, log_end)


def test_ours_and_java_take_turns_on_one_store(java_master: MasterFactory, driver: Driver, tmp_path: Path) -> None:
    folder, listen_port = tmp_path / "ours", free_ports()
    write_topics(folder)
    ours = OurStore(folder, 2, listen_port)
    ours.put(PUTS)
    ours.close()
    stored = list(ours.stored)

    broker = start_java(java_master, folder, listen_port, name="turns", cluster="turns")
    wanted, _ = delivered_sha256(stored)
    assert driver.consume(DELAYED, "GOurs", wanted).count == wanted
    for topic in (PLAIN, TAGGED):
        assert driver.send(topic, SENDS, SENT_BYTES).statuses == {"SEND_OK": SENDS}
    wait_until_dispatched(broker.address)
    java_ends, log_end = driver.queue_ends(*QUEUES), broker.commit_log_range()[1]
    broker.stop()
    queue_units = units_of(files_below(folder / "consumequeue"))

    ours = OurStore(folder, 3, listen_port)
    assert (ours.store.recovery.clean_stop, ours.store.recovery.problem) == (True, None)
    assert ours.store.commit_log.max_offset == log_end
    assert ours.queue_ends(tuple(QUEUES)) == java_ends
    assert units_of(files_below(folder / "consumequeue")) == queue_units
    from_java = check_read_by_queue(ours, stored)
    check_read_by_key(ours, [*stored, *from_java])
    ours.put(PUTS)
    check_read_by_key(ours, ours.stored)
    ours.close()
    all_stored = [*stored, *from_java, *ours.stored]

    broker = start_java(java_master, folder, listen_port, name="turns", cluster="turns")
    assert_java_serves(driver, all_stored)
    wait_for_distinct(driver, wanted + delivered_sha256(ours.stored)[0])
    broker.stop()
    reopened = OurStore(folder, 4, listen_port)
    assert (reopened.store.recovery.clean_stop, reopened.store.recovery.problem) == (True, None)
    check_read_by_key(reopened, all_stored)
    reopened.close()


def check_read_by_queue(ours: OurStore, stored: Sequence[Stored]) -> list[Stored]:
    """Each queue has what we put into it, then what Java did; gives the latter."""
    from_java = []
    for topic in QUEUES:
        by_queue: dict[int, list[Stored]] = {}
        for message in ours.messages(topic):
            by_queue.setdefault(message.portrait["queue_id"], []).append(message)
        for queue, found in by_queue.items():
            mine = [
                message.portrait
                for message in stored
                if message.topic == topic and message.portrait["queue_id"] == queue and message.is_queued
            ]
            assert [message.portrait for message in found[: len(mine)]] == mine
            assert [message.portrait["queue_offset"] for message in found] == list(range(len(found)))
            from_java += found[len(mine) :]
    sent = {topic: [message for message in from_java if message.topic == topic] for topic in (PLAIN, TAGGED)}
    for messages in sent.values():
        assert lines_sha256(messages) == messages_sha256(range(SENDS), SENT_BYTES)
    return [*sent[PLAIN], *sent[TAGGED]]


def check_read_by_key(ours: OurStore, stored: Sequence[Stored]) -> None:
    """Each message is found by each of its keys, and by id."""
    ours.dispatch()
    reader = ours.store.reader
    for message in stored:
        record = reader.message_by_id(message.msg_id)
        assert record is not None
        for key in (*message.keys.split(" "), message.portrait["properties"]["UNIQ_KEY"]):
            assert (record in reader.query_message(message.topic, key, 32, 0, 2**62)) is message.is_indexed


@pytest.fixture
def killed_store(tmp_path: Path) -> tuple[Path, int, list[Stored]]:
    """A store of ours whose process was killed with messages that were not dispatched; where it said it listens."""
    folder, listen_port = tmp_path / "ours", free_ports()
    words = ("tests.interop.our_store", folder, 5, PUTS // 2, listen_port)
    command = [sys.executable, "-m", *map(str, words)]
    stored: list[Stored] = []
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = json.loads(line)
            if "behind" in found:
                assert found["behind"] > 2 * SEGMENT_SIZE
                break
            stored.append(Stored(found))
        process.kill()
    assert (folder / "abort").exists()
    assert not (folder / "checkpoint").exists()
    return folder, listen_port, stored


def test_java_recovers_a_store_whose_process_of_ours_was_killed(
    killed_store: tuple[Path, int, list[Stored]], java_master: MasterFactory, driver: Driver
) -> None:
    folder, listen_port, stored = killed_store
    log_end = max(message.portrait["physical_offset"] + message.portrait["size"] for message in stored)
    log_sha = commit_log_sha256(folder, 0, log_end)
    broker = start_java(java_master, folder, listen_port)
    wanted, sha256 = delivered_sha256(stored)
    delivered = driver.consume(DELAYED, "GOurs", wanted)
    assert (delivered.count, delivered.sha256) == (wanted, sha256)
    assert_java_serves(driver, stored)
    assert driver.send(PLAIN, SENDS, SENT_BYTES).statuses == {"SEND_OK": SENDS}
    broker.stop()
    assert commit_log_sha256(folder, 0, log_end) == log_sha

    ours = OurStore(folder, 6, listen_port)
    assert (ours.store.recovery.clean_stop, ours.store.recovery.problem) == (True, None)
    check_read_by_key(ours, stored)
    ours.close()
