"""The commands of operators at a Java broker: doctor, lag, query and tail."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from rmqha.kit.events import Event
from rmqha.kit.times import iso_time
from rmqha.wire.command import RequestCode
from tests.commands import rmqha, rmqha_bytes
from tests.interop import requests
from tests.interop.conftest import MasterFactory, SlaveNodeFactory
from tests.interop.nodes import wait_until_dispatched
from tests.interop.rocketmq import Driver, NameServer

pytestmark = pytest.mark.story

MESSAGES = 40


def objects_of(*arguments: str) -> list[dict[str, Any]]:
    """The lines that a command prints with --json."""
    done = rmqha_bytes(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, b""), done
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_doctor_looks_at_a_java_master_and_our_slave(
    java_master: MasterFactory, our_slave: SlaveNodeFactory, namesrv: NameServer, driver: Driver
) -> None:
    master = java_master(role="SYNC_MASTER", slaveTimeout=60_000)
    slave = our_slave(master, f"--namesrv={namesrv.address}", f"--name={master.name}", f"--cluster={master.cluster}")
    driver.create_topic(master.cluster, "TDoctor", 4)
    driver.send("TDoctor", 5, 100)
    slave.wait_for_offset(master.commit_log_range()[1])
    slave.wait_for_event(Event.REGISTERED)
    slave.wait_for_tables()
    done = rmqha_bytes("doctor", master.address, "--json")
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["check"], []).append((each["subject"], each["verdict"]))
    ours = f"127.0.0.1:{slave.port('remoting')}"
    assert found["answers"] == [(master.address, "PASS"), (ours, "PASS")], done.stdout
    assert found["state"] == [(master.address, "SKIP"), (ours, "PASS")], done.stdout
    assert found["one-master"] == [(master.name, "PASS")], done.stdout
    assert found["segment-size"] == [(master.name, "PASS")], done.stdout
    assert found["sync-waits"] == [(master.address, "PASS")], done.stdout
    for check in ("role", "mode", "addresses", "clock", "registered", "lag"):
        assert {verdict for _, verdict in found[check]} == {"PASS"}, (check, done.stdout)
    assert "SKIP" not in {verdict for check in ("disk", "round-trip") for _, verdict in found[check]}, done.stdout
    disk_fails = "FAIL" in {verdict for _, verdict in found["disk"]}  # this machine's disk may be full
    assert done.returncode == (1 if disk_fails else 0), done.stdout
    master.kill()
    assert rmqha("doctor", master.address).returncode == 1


def test_query_tail_and_lag_at_a_java_master(java_master: MasterFactory, namesrv: NameServer, driver: Driver) -> None:
    master = java_master()
    driver.create_topic(master.cluster, "TFind", 4)
    sent = driver.send("TFind", MESSAGES, 100, keys=True)
    assert sent.statuses == {"SEND_OK": MESSAGES}
    wait_until_dispatched(master.address)
    by_name_server, by_broker = f"--namesrv={namesrv.address}", f"--broker={master.address}"
    assert len(objects_of("tail", "TFind", by_name_server, "-n7")) == 7
    everything = objects_of("tail", "TFind", by_broker, "-n100")
    assert len(everything) == MESSAGES
    record = next(each for each in everything if each["properties"]["KEYS"] == "k17")
    place = record["physicalOffset"]
    for way in (by_name_server, by_broker):
        for question in (
            ["--key=k17", "--topic=TFind"],
            [f"--id={record['msgId']}"],
            [f"--id={record['properties']['UNIQ_KEY']}", "--topic=TFind"],
            [f"--offset={record['queueId']}:{record['queueOffset']}", "--topic=TFind"],
        ):
            assert [each["physicalOffset"] for each in objects_of("query", way, *question)] == [place], question
        since = f"--time={iso_time(min(each['storeTimestamp'] for each in everything))}"
        assert len(objects_of("query", way, since, "--topic=TFind", "-n100")) == MESSAGES
    assert [each["physicalOffset"] for each in objects_of("query", by_broker, f"--offset={place}")] == [place]
    ends = Counter(each["queueId"] for each in everything)
    for queue_id, end in ends.items():
        offset = str(end - 1 if queue_id == 0 else end)
        fields = {"consumerGroup": "GFind", "topic": "TFind", "queueId": str(queue_id), "commitOffset": offset}
        requests.ask(master.address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    (row,) = objects_of("lag", "GFind", by_name_server)
    assert (row["topic"], row["queues"], row["brokerOffset"]) == ("TFind", 4, MESSAGES)
    assert (row["consumerOffset"], row["diff"]) == (MESSAGES - 1, 1)
    consumed = [each for each in everything if (each["queueId"], each["queueOffset"]) != (0, ends[0] - 1)]
    assert row["lastConsumed"] == iso_time(max(each["storeTimestamp"] for each in consumed))
    queues = {each["queueId"]: each["diff"] for each in objects_of("lag", by_broker, "--queues", "--topic=TFind")}
    assert queues == {0: 1, 1: 0, 2: 0, 3: 0}
