"""The harness tells the truth: a pair of Java brokers does what is known of Java brokers."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.interop import rocketmq
from tests.interop.conftest import MasterFactory, SlaveFactory
from tests.interop.rocketmq import (
    PATIENT,
    Broker,
    Driver,
    InteropError,
    NameServer,
    commit_log_bytes,
    commit_log_sha256,
)
from tests.waiting import WAIT_SECONDS, wait_until

MESSAGES = 300
BODY_BYTES = 5_000
MESSAGE_MAGIC = bytes.fromhex("daa320a7")


def test_a_machine_without_java_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "no JDK" in (rocketmq.java_home_problem() or "")


@pytest.mark.process
def test_an_old_java_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("java", "javac"):
        (tmp_path / tool).write_text("""#!/bin/sh\necho 'openjdk version "1.8.0_412"' >&2\n""")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "older than 17" in (rocketmq.java_home_problem() or "")


def test_ports_are_given_once_and_ten_apart() -> None:
    given = sorted(rocketmq.free_ports() for _ in range(20))
    assert min(b - a for a, b in pairwise(given)) >= rocketmq.BROKER_PORT_DISTANCE


def test_commit_log_bytes_crosses_segments_and_refuses_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for first, content in ((100, b"abcd"), (104, b"efgh")):
        (tmp_path / "commitlog" / f"{first:020d}").write_bytes(content)
    assert commit_log_bytes(tmp_path, 101, 107) == b"bcdefg"
    for start, end in ((99, 102), (106, 109), (200, 201)):
        with pytest.raises(InteropError, match="has no byte"):
            commit_log_bytes(tmp_path, start, end)


@pytest.mark.story
def test_a_slave_that_reported_before_the_first_message_gets_every_segment(
    java_master: MasterFactory, java_slave: SlaveFactory, driver: Driver, tmp_path: Path
) -> None:
    master = java_master()
    slave = java_slave(master, haSendHeartbeatInterval=1000)
    master.wait_for_slave()
    driver.create_topic(master.cluster, "TPair", 4)

    log = tmp_path / "send.log"
    report = driver.send("TPair", MESSAGES, BODY_BYTES, threads=2, log=log)
    assert report.statuses == {"SEND_OK": MESSAGES}
    assert report.failures == {}

    start, end = master.commit_log_range()
    slave.wait_for_offset(end)
    assert slave.commit_log_range() == (start, end)
    assert start == 0
    assert end > 5 * master.segment_size
    assert commit_log_sha256(slave.store, 0, end) == commit_log_sha256(master.store, 0, end)

    results = rocketmq.read_send_log(log)
    assert {result.key for result in results} == {f"k{number}" for number in range(MESSAGES)}
    for result in results:
        at = result.physical_offset
        assert commit_log_bytes(slave.store, at + 4, at + 8) == MESSAGE_MAGIC

    sent = rocketmq.messages_sha256(range(MESSAGES), BODY_BYTES)
    from_master = driver.consume("TPair", "GMaster", MESSAGES)
    assert (from_master.count, from_master.sha256) == (MESSAGES, sent)
    from_slave = driver.consume("TPair", "GSlave", MESSAGES, broker_id=slave.broker_id)
    assert (from_slave.count, from_slave.sha256) == (MESSAGES, sent)
    master.kill()
    from_the_survivor = driver.consume("TPair", "GSurvivor", MESSAGES)
    assert (from_the_survivor.count, from_the_survivor.sha256) == (MESSAGES, sent)


@pytest.mark.story
def test_a_slave_started_late_gets_the_last_segment_and_a_sync_master_waits_for_it(
    java_master: MasterFactory, java_slave: SlaveFactory, driver: Driver
) -> None:
    master = java_master(role="SYNC_MASTER", **PATIENT)
    driver.create_topic(master.cluster, "TLate", 4)
    assert driver.send("TLate", MESSAGES, BODY_BYTES).statuses == {"SLAVE_NOT_AVAILABLE": MESSAGES}

    end = master.commit_log_range()[1]
    slave = java_slave(master)
    slave.wait_for_offset(end)
    last = end - end % master.segment_size
    assert slave.commit_log_range() == (last, end)
    assert commit_log_bytes(slave.store, last, end) == commit_log_bytes(master.store, last, end)

    assert driver.send("TLate", 10, BODY_BYTES, first=MESSAGES).statuses == {"SEND_OK": 10}
    slave.pause()
    assert driver.send("TLate", 1, BODY_BYTES).statuses == {"FLUSH_SLAVE_TIMEOUT": 1}


@pytest.mark.story
def test_a_run_in_the_background_is_seen_and_stopped(java_master: MasterFactory, driver: Driver) -> None:
    master = java_master()
    driver.create_topic(master.cluster, "TRun", 1)
    with driver.start_send("TRun", 0, 100, rate=200, threads=2) as run:
        run.wait_for_results(50)
        assert run.is_running
        report = run.stop()
        results = run.results()
    assert report.stored == len(results) >= 50
    assert report.stored <= 200 * report.elapsed_seconds + 2
    assert sorted(result.queue_offset for result in results) == list(range(len(results)))
    assert driver.runtime_info(master.address).keys() == master.runtime_info().keys()


@pytest.mark.story
def test_a_command_that_fails_says_why_and_the_next_one_is_done(driver: Driver) -> None:
    for _ in range(2):
        with pytest.raises(InteropError, match="RemotingConnectException"):
            driver.runtime_info("127.0.0.1:1")
        assert driver.queue_ends() == {}
    process = rocketmq._lasting._process
    assert process is not None
    process.kill()
    process.wait()
    assert driver.queue_ends() == {}, "another one was started"


def test_a_send_to_a_dead_master_is_reported_as_failed(java_master: MasterFactory, driver: Driver) -> None:
    master = java_master()
    driver.create_topic(master.cluster, "TDead", 1)
    with driver.start_send("TDead", 0, 100, rate=50, send_timeout_ms=10_000) as run:
        run.wait_for_results(10)
        master.kill()
        stored = sum(result.is_stored for result in run.results())
        run.wait_for_results(stored + 5)
        report = run.stop()
        results = run.results()
    assert report.stored >= 10
    assert sum(report.failures.values()) == sum(not result.is_stored for result in results) > 0


@pytest.mark.story
def test_a_broker_is_paused_killed_and_started_again(java_class_path: str, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", segment_size=1 << 20, slaveReadEnable=True, deleteWhen="03")
    assert not broker.is_running
    with broker:
        broker.pause()
        assert broker.is_running
        with pytest.raises(TimeoutError):
            rocketmq.runtime_info(broker.address, timeout=0.5)
        broker.resume()
        assert broker.commit_log_range() == (-1, 0)
        with pytest.raises(InteropError, match="running already"):
            broker.start()

        broker.kill()
        assert not broker.is_running
        with pytest.raises(ConnectionRefusedError):
            broker.runtime_info()
        assert (broker.store / "abort").exists()
        broker.start()
        broker.stop()
        assert not (broker.store / "abort").exists()


def test_a_broker_that_cannot_start_says_why(namesrv: NameServer, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", role="SLAVE", broker_id=0, segment_size=1 << 20)
    with pytest.raises(InteropError, match="Slave's brokerId must be > 0"):
        broker.start()
    broker = Broker(tmp_path / "second", listen_port=namesrv.listen_port, segment_size=1 << 20)
    with pytest.raises(InteropError, match="already in use"):
        broker.start()
    assert not broker.is_running


def test_a_server_ends_with_the_python_that_started_it(java_class_path: str, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import rocketmq\n"
        "print(rocketmq.NameServer(Path(sys.argv[2])).start().pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, str(rocketmq.HERE), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=WAIT_SECONDS)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not _exists(int(done.stdout)), "the server to end")


def _exists(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return b") Z " not in stat.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
