"""``rmqha put`` and ``rmqha pull`` between processes: what they print, and with which status they end."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.kit.events import Event
from rmqha.kit.times import iso_time
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.wire.record import parse_msg_id
from tests.commands import RMQHA, rmqha, rmqha_bytes
from tests.net.tls.authority import Authority
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process

SMALL_FILES = ("--set=mappedFileSizeCommitLog=1048576", "--set=maxHashSlotNum=1000")
MASTER_OPTIONS = ("--role=async-master", "--port=0", *SMALL_FILES)
NOBODY = "127.0.0.1:1"


def output_of(*arguments: str, lines: bytes = b"") -> bytes:
    """What a command that ends well prints."""
    done = rmqha_bytes(*arguments, lines=lines)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def objects_of(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output_of(*arguments, "--json").splitlines()]


def assert_complains(status: int, text: str, *arguments: str) -> None:
    done = rmqha_bytes(*arguments)
    assert done.returncode == status, done
    assert text.encode() in done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwistdNode]:
    with TwistdNode(tmp_path_factory.mktemp("master"), MASTER_OPTIONS, name="master") as node:
        yield node


@pytest.fixture(scope="module")
def way(master: TwistdNode) -> str:
    return f"--broker=127.0.0.1:{master.port('remoting')}"


def wait_for_messages(node: TwistdNode, way: str, topic: str, count: int) -> list[bytes]:
    """The bodies in a topic, sorted, once there are so many: what is sent is to be read a moment later."""

    def look() -> list[bytes] | None:
        bodies = rmqha_bytes("pull", topic, way, "--body").stdout.splitlines()
        return sorted(bodies) if len(bodies) >= count else None

    return node.wait_until_found(look, f"{count} messages", WAIT_SECONDS)


def test_a_message_is_sent_with_all_that_is_said_of_it(master: TwistdNode, way: str) -> None:
    (sent,) = objects_of("put", "One", "hello", "--tags=A", "--keys=k1 k2", way)
    assert (sent["status"], sent["topic"], sent["queueOffset"]) == ("SEND_OK", "One", 0)
    assert wait_for_messages(master, way, "One", 1) == [b"hello"]
    (record,) = objects_of("pull", "One", way)
    properties = record["properties"]
    assert (properties["TAGS"], properties["KEYS"], properties["UNIQ_KEY"]) == ("A", "k1 k2", sent["msgId"])
    assert (record["queueId"], record["queueOffset"]) == (sent["queueId"], 0)
    assert parse_msg_id(sent["offsetMsgId"])[1] == record["physicalOffset"]
    line = output_of("pull", "One", way).decode()
    assert f"One queue {sent['queueId']} offset 0  5 bytes" in line
    assert "TAGS=A KEYS=k1 k2" in line


def test_lines_of_standard_input_are_messages(master: TwistdNode, way: str) -> None:
    lines = [b"line %d" % number for number in range(100)]
    assert output_of("put", "Lines", way, lines=b"\n".join(lines)) == b"SEND_OK 100\n"
    assert wait_for_messages(master, way, "Lines", 100) == sorted(lines)


def test_a_message_is_sent_so_many_times_and_so_many_are_read(master: TwistdNode, way: str) -> None:
    assert output_of("put", "Many", "x", "--count=200", way) == b"SEND_OK 200\n"
    assert wait_for_messages(master, way, "Many", 200) == [b"x"] * 200
    assert len(output_of("pull", "Many", way, "--max=7").splitlines()) == 7
    assert len(output_of("pull", "Many", way, "--from=45").splitlines()) == 20
    assert output_of("pull", "Many", way, "--from=max") == b""


def test_only_wanted_tags_are_read(master: TwistdNode, way: str) -> None:
    for tag in ("A", "B", "C"):
        output_of("put", "Tags", tag, f"--tags={tag}", way)
    wait_for_messages(master, way, "Tags", 3)
    assert sorted(output_of("pull", "Tags", way, "--tags=A || C", "--body").split()) == [b"A", b"C"]


def test_following_goes_on_until_it_is_interrupted(master: TwistdNode, way: str) -> None:
    output_of("put", "Follow", "first", way)
    wait_for_messages(master, way, "Follow", 1)
    arguments = [RMQHA, "pull", "Follow", way, "--follow", "--body"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        try:
            assert follower.stdout.readline() == b"first\n"
            output_of("put", "Follow", "second", way)
            assert follower.stdout.readline() == b"second\n"
            follower.send_signal(signal.SIGINT)
            assert follower.wait(WAIT_SECONDS) == 0
            assert follower.stderr.read() == b""
        finally:
            follower.kill()


@pytest.mark.story
def test_messages_since_a_time_are_read(master: TwistdNode, way: str) -> None:
    """As they are stored, a second apart, which no clock of a broker is too coarse for."""
    output_of("put", "Times", "first", way)
    wait_for_messages(master, way, "Times", 1)
    (first,) = objects_of("pull", "Times", way)
    master.wait_until_found(
        lambda: time.time() * 1000 > first["storeTimestamp"] + 1000 or None, "a second", WAIT_SECONDS
    )
    output_of("put", "Times", "second", way)
    wait_for_messages(master, way, "Times", 2)
    since = iso_time(first["storeTimestamp"] + 1)
    assert output_of("pull", "Times", way, f"--from={since}", "--body") == b"second\n"
    assert output_of("pull", "Times", way, "--from=2100-01-01T00:00:00+01:00") == b""
    assert rmqha("pull", "Times", way, "--from=2026-11-21T01:30").returncode == 2


def test_ctrl_c_while_lines_are_read_is_130(way: str) -> None:
    """Nothing was sent yet."""
    arguments = [RMQHA, "put", "Interrupted", way]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as putter:
        assert putter.stdin is not None
        assert putter.stderr is not None
        try:
            putter.stdin.write(b"x" * (1 << 20))  # more than a pipe holds: it reads
            putter.stdin.flush()
            putter.send_signal(signal.SIGINT)
            assert putter.wait(WAIT_SECONDS) == 130
            assert putter.stderr.read() == b"rmqha: interrupted\n"
        finally:
            putter.kill()
    assert_complains(2, "no broker carries topic Interrupted", "pull", "Interrupted", way)


@pytest.mark.story
def test_what_is_wrong_is_one_line_and_a_status(way: str) -> None:
    assert_complains(2, "give either --namesrv or --broker", "put", "T", "x")
    assert_complains(2, "give either --namesrv or --broker", "pull", "T", way, "--namesrv=127.0.0.1:1")
    assert_complains(2, "0x01 or 0x02", "put", "T", "x", "--keys=a\x02b", way)
    assert_complains(7, f"{NOBODY} does not answer", "put", "T", "x", f"--broker={NOBODY}")
    assert_complains(7, f"{NOBODY} does not answer", "pull", "T", f"--namesrv={NOBODY}")
    assert_complains(2, "no broker carries topic Unknown", "pull", "Unknown", way)
    assert_complains(8, "code 1:", "put", "bad topic!", "x", way)
    assert rmqha("pull", "T", way, "--from=soon").returncode == 2


def test_a_sync_master_without_a_slave_has_the_message_and_says_that_nobody_else_has(tmp_path: Path) -> None:
    with TwistdNode(tmp_path, ["--role=sync-master", "--port=0", *SMALL_FILES], name="master") as node:
        done = rmqha_bytes("put", "T", "x", f"--broker=127.0.0.1:{node.port('remoting')}")
    assert (done.returncode, done.stdout) == (6, b"SLAVE_NOT_AVAILABLE 1\n")


@pytest.mark.story
def test_messages_of_a_dead_master_are_pulled_from_its_slave(tmp_path: Path) -> None:
    """By a name server, which tells of both; the slave runs it."""
    port, slave_port, name_server_port = free_port(), free_port(), free_port()
    name_servers = f"--namesrv=127.0.0.1:{name_server_port}"
    slave_options = [
        "--role=slave",
        f"--master=127.0.0.1:{port + 1}",
        f"--port={slave_port}",
        f"--embed-namesrv={name_server_port}",
        *SMALL_FILES,
    ]
    patient = "--set=slaveTimeout=60000"
    master_options = ["--role=sync-master", f"--port={port}", name_servers, patient, *SMALL_FILES]
    with TwistdNode(tmp_path, slave_options, name="slave") as slave:
        slave.port("name server")
        with TwistdNode(tmp_path, master_options, name="master") as master:
            master.wait_for_event(Event.REGISTERED)
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            assert output_of("put", "T", name_servers, lines=b"a\nb\nc\nd\n") == b"SEND_OK 4\n"
            topics = slave.store / "config" / "topics.json"
            slave.wait_until_found(
                lambda: (topics.exists() and '"T"' in topics.read_text()) or None, "the topic", WAIT_SECONDS
            )
            master.kill()
        found = wait_for_messages(slave, name_servers, "T", 4)
        assert found == [b"a", b"b", b"c", b"d"]


def test_a_broker_that_speaks_tls_is_asked_so(tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca")
    with TwistdNode(tmp_path, [*MASTER_OPTIONS, f"--tls-cert={ca.issue('localhost')}"], name="master") as node:
        port = node.port("remoting")
        trusted = f"--tls-ca={ca.path}"
        assert output_of("put", "T", "x", f"--broker=tls:localhost:{port}", trusted) == b"SEND_OK 1\n"
        assert wait_for_messages(node, f"--broker=tls:localhost:{port}", "T", 0) == []
        assert_complains(7, "does not answer", "put", "T", "x", f"--broker=localhost:{port}")
