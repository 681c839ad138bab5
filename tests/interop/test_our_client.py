"""Our client at Java's broker and name server, and Java's client in the binary encoding at ours."""

import json
from pathlib import Path

import pytest

from tests.commands import rmqha_bytes
from tests.interop.conftest import MasterFactory, OurBrokerFactory
from tests.interop.rocketmq import FAST_START, Driver, NameServer

MESSAGES, BODY_BYTES = 200, 5000


def output_of(*arguments: str, lines: bytes = b"") -> bytes:
    """What a command that ends well prints."""
    done = rmqha_bytes(*arguments, lines=lines)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.mark.story
def test_rmqha_puts_to_a_java_broker_and_pulls_from_it(
    java_master: MasterFactory, namesrv: NameServer, driver: Driver
) -> None:
    broker = java_master()
    driver.create_topic(broker.cluster, "TopicOfOurs")
    lines = [b"line %d" % number for number in range(50)]
    by_name_server, by_broker = f"--namesrv={namesrv.address}", f"--broker={broker.address}"
    assert output_of("put", "TopicOfOurs", by_name_server, "--tags=A", lines=b"\n".join(lines[:40])) == b"SEND_OK 40\n"
    assert output_of("put", "TopicOfOurs", by_broker, "--keys=k", lines=b"\n".join(lines[40:])) == b"SEND_OK 10\n"
    assert driver.consume("TopicOfOurs", "GOfJava", 50).count == 50
    for way in (by_name_server, by_broker):
        assert sorted(output_of("pull", "TopicOfOurs", way, "--body").splitlines()) == sorted(lines)
        assert len(output_of("pull", "TopicOfOurs", way, "--tags=A").splitlines()) == 40
    found = [json.loads(line) for line in output_of("pull", "TopicOfOurs", by_broker, "--json").splitlines()]
    assert {record["properties"].get("KEYS") for record in found} == {None, "k"}


def test_a_java_client_that_speaks_binary_headers_is_answered(
    our_broker: OurBrokerFactory, namesrv: NameServer, tmp_path: Path
) -> None:
    broker = our_broker("async-master")
    driver = Driver(namesrv.address, tmp_path / "binary", jvm=(*FAST_START, "-Drocketmq.serialize.type=ROCKETMQ"))
    driver.create_topic(broker.cluster, "TopicOfBinary")
    assert driver.send("TopicOfBinary", MESSAGES, BODY_BYTES).statuses == {"SEND_OK": MESSAGES}
    assert driver.consume("TopicOfBinary", "GBinary", MESSAGES).count == MESSAGES
