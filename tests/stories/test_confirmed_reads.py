"""Reads that end at what slaves hold (readUpTo=confirmed), on real nodes: who waits, and who is told."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.nodes import TwistdNode, free_port
from tests.commands import RMQHA, rmqha, rmqha_bytes
from tests.freezing import frozen
from tests.waiting import wait_until

pytestmark = pytest.mark.process

CONFIRMED = ("--set=readUpTo=confirmed", "--set=mappedFileSizeCommitLog=1048576", "--set=maxHashSlotNum=1000")
SECONDS = 300


def at(node: TwistdNode) -> str:
    return f"127.0.0.1:{node.port('remoting')}"


def put(node: TwistdNode, body: str) -> None:
    done = rmqha_bytes("put", "T", body, f"--broker={at(node)}")
    assert (done.returncode, done.stderr) == (0, b"")


def pulled(node: TwistdNode) -> list[bytes]:
    return sorted(rmqha_bytes("pull", "T", "--body", f"--broker={at(node)}").stdout.splitlines())


def wait_for(node: TwistdNode, *bodies: bytes) -> None:
    """Wait until a consumer of this node reads exactly these."""
    wait_until(lambda: pulled(node) == sorted(bodies), f"{bodies} at {node}", interval=0.2)


def reads_of(node: TwistdNode) -> dict[str, Any]:
    state = node.state()
    return {} if state is None or state.reads is None else dict(state.reads)


def wait_for_stall(node: TwistdNode) -> None:
    """The node has seen messages wait for some seconds. Until then a consumer could have read them."""
    wait_until(lambda: reads_of(node).get("stalledSince") is not None, f"{node} to say that messages wait")


def start_master(work: Path, *options: str, store: Path | None = None) -> TwistdNode:
    return TwistdNode(work, ["--role=async-master", "--port=0", *CONFIRMED, *options], store, name="master")


@contextmanager
def slave_of(work: Path, master: TwistdNode, *options: str) -> Iterator[TwistdNode]:
    ways = [f"--master=127.0.0.1:{master.port()}", f"--master-remoting={at(master)}"]
    with TwistdNode(work, ["--role=slave", "--port=0", *ways, *CONFIRMED, *options], name="slave") as slave:
        slave.wait_for_state(lambda state: state.state == "IN_SYNC", "being in sync")
        yield slave


@contextmanager
def follower(node: TwistdNode) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer, whose pulls are held."""
    arguments = [RMQHA, "pull", "T", "--follow", "--body", f"--broker={at(node)}"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.story
def test_a_consumer_waits_for_a_slave_that_stands_still_and_everybody_is_told(tmp_path: Path) -> None:
    with start_master(tmp_path) as master, slave_of(tmp_path, master) as slave:
        put(master, "first")
        wait_for(master, b"first")
        with follower(master) as consumer:
            assert line_of(consumer) == b"first\n"
            with frozen(slave.pid):
                put(master, "second")
                put(master, "third")
                wait_for_stall(master)
                assert pulled(master) == [b"first"]
                wait_until(lambda: reads_of(master)["waitingMessages"] == 2, "both messages to be counted")
                shown = rmqha_bytes("status", str(master.store))
                assert shown.returncode == ExitCode.STALLED
                assert b"for them: 2 (" in shown.stdout
                assert b"wait for a slave" in shown.stderr
                asked = json.loads(rmqha_bytes("status", at(master), "--json").stdout)
                assert asked["reads"]["waitingMessages"] == 2
                assert asked["readLimit"] + asked["reads"]["waitingBytes"] == asked["verified"]
                assert any("for them: 2 (" in warning for warning in asked["warnings"])
                master.wait_for_event(Event.READS_WAIT)
            assert sorted([line_of(consumer), line_of(consumer)]) == [b"second\n", b"third\n"]
        master.wait_for_event(Event.READS_GO_ON)
        wait_until(lambda: rmqha("status", str(master.store)).returncode == 0, "status to be fine", interval=0.2)


@pytest.mark.story
def test_a_slave_serves_what_its_master_has_confirmed(tmp_path: Path) -> None:
    """Here two slaves must hold a message, and one of them stands still: the other has it, but does not serve it."""
    with (
        start_master(tmp_path, "--set=inSyncReplicas=3") as master,
        slave_of(tmp_path, master) as slave,
        slave_of(tmp_path / "other", master) as other,
    ):
        put(master, "first")
        wait_for(slave, b"first")
        with frozen(other.pid):
            put(master, "second")
            wait_for_stall(slave)
            state = slave.state()
            assert state is not None
            assert state.offsets.verified > (state.read_limit or 0)
            assert pulled(slave) == pulled(master) == [b"first"]
        wait_for(slave, b"first", b"second")


@pytest.mark.story
def test_a_slave_of_a_master_without_the_setting_says_why_it_serves_nothing(tmp_path: Path) -> None:
    with start_master(tmp_path, "--set=readUpTo=verified") as master, slave_of(tmp_path, master) as slave:
        put(master, "first")
        wait_for(master, b"first")
        wait_for_stall(slave)
        assert "readUpTo=confirmed" in reads_of(slave)["reason"]
        slave.wait_for_event(Event.CONFIRMED_OFFSET_UNKNOWN)
        assert pulled(slave) == []


@pytest.mark.story
def test_what_was_served_is_served_after_a_kill_and_nothing_more(tmp_path: Path) -> None:
    with start_master(tmp_path) as master:
        with slave_of(tmp_path, master):
            put(master, "first")
            wait_for(master, b"first")
        put(master, "second")
        wait_for_stall(master)
        master.kill()
        master.start()
        master.port("remoting")
        wait_until(lambda: pulled(master) == [b"first"], "the first message", interval=0.2)
        wait_for_stall(master)
        assert pulled(master) == [b"first"]
        with slave_of(tmp_path, master):
            wait_for(master, b"first", b"second")


@pytest.mark.story
def test_nothing_that_a_consumer_has_read_is_missing_after_a_promotion(tmp_path: Path) -> None:
    with start_master(tmp_path) as master, slave_of(tmp_path, master, f"--port={free_port()}") as slave:
        put(master, "first")
        wait_for(master, b"first")
        wait_for(slave, b"first")
        with frozen(slave.pid):
            put(master, "lost")
            wait_for_stall(master)
            read = pulled(master)
            master.kill()
        slave.wait_for_state(lambda state: state.state == "CONNECTING", "its master to be missed")
        assert rmqha("promote", str(slave.store), "--force").returncode == 0
        slave.wait_for_state(lambda state: state.role == "ASYNC_MASTER", "being a master")
        wait_until(lambda: set(read) <= set(pulled(slave)), "what was read", interval=0.2)


@pytest.mark.story
def test_the_setting_turned_off_serves_all_again(tmp_path: Path) -> None:
    with start_master(tmp_path) as master:
        put(master, "first")
        wait_for_stall(master)
        assert pulled(master) == []
        store = master.store
        master.stop()
    with start_master(tmp_path, "--set=readUpTo=verified", store=store) as master:
        wait_for(master, b"first")
        master.wait_for_state(lambda state: state.read_limit is None, "its state without a limit")
