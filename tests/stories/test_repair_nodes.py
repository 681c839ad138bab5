"""Damaged logs of real nodes: a master refuses, a slave heals itself, and ``rmqha repair`` asks a node that runs."""

import shutil
from pathlib import Path

import pytest

from rmqha.kit.events import Event
from rmqha.store.examining import ABORT_FILE
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port
from tests.commands import rmqha
from tests.fixtures import copy_of, max_offset, segment_size
from tests.store.logs import file_bytes, write_at

pytestmark = pytest.mark.process

END = max_offset("slave")
SIZE = segment_size()
LAST = END - END % SIZE


def spoil(store: Path, offset: int, data: bytes = b"\xa5\x5a\xa5") -> None:
    write_at(store / "commitlog", offset, data, SIZE)


def log_of(store: Path) -> bytes:
    return file_bytes(store / "commitlog")[:END]


def master(work: Path, *options: str) -> TwistdNode:
    store = work / "master-store"
    return TwistdNode(
        work,
        ["--role=async-master", "--port=0", *options],
        store if store.exists() else copy_of("slave", store),
        "master",
    )


def slave(work: Path, *options: str) -> TwistdNode:
    return TwistdNode(
        work, ["--role=slave", "--port=0", "--master-remoting=none", *options], work / "slave-store", "slave"
    )


def is_in_sync(node: TwistdNode) -> None:
    node.wait_for_state(lambda state: state.state == "IN_SYNC" and state.offsets.flushed == END, "the master's end")


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    """The log that a slave's folder and its master's both have."""
    store = copy_of("slave", tmp_path / "slave-store")
    return log_of(store)


@pytest.mark.parametrize("stop", ["clean", "unclean"])
def test_a_slave_heals_itself_from_its_master(tmp_path: Path, good: bytes, stop: str) -> None:
    store = tmp_path / "slave-store"
    places = [LAST - SIZE + 1000, LAST + 500]
    if stop == "unclean":
        (store / ABORT_FILE).touch()
        (store / "checkpoint").unlink()  # all is looked at
        places += [0, 5 * SIZE + 29, 7 * SIZE + 33]
        spoil(store, 9 * SIZE, bytes(SIZE))
    for place in places:
        spoil(store, place)
    assert log_of(store) != good
    with master(tmp_path) as serving, slave(tmp_path, f"--master=127.0.0.1:{serving.port()}") as healing:
        is_in_sync(healing)
        assert log_of(store) == good
        assert len(healing.events(Event.LOG_REPAIR_STARTED)) == 1
        told = [event["message"] for event in healing.events(Event.LOG_REPAIRED)]
        assert len(told) >= 2
        assert healing.events(Event.LISTENING, purpose="ha")
        assert healing.stop() == 0
        assert serving.stop() == 0
    assert list((store / "rmqha" / "cut").glob("*.replaced"))
    assert rmqha("verify", store).returncode == 0


@pytest.mark.story
def test_a_slave_waits_for_its_master_says_so_and_can_be_stopped(tmp_path: Path, good: bytes) -> None:
    store = tmp_path / "slave-store"
    spoil(store, LAST + 500)
    spoilt = log_of(store)
    port = free_port()
    with slave(tmp_path, f"--master=127.0.0.1:{port + 1}") as waiting:
        waiting.wait_for_event(Event.LOG_REPAIR_WAITS)
        waiting.wait_for_state(lambda state: (state.state, state.role) == ("REPAIRING", "SLAVE"), "repairing")
        status = rmqha("status", store)
        assert "REPAIRING" in status.stdout
        assert waiting.stop() == 0
    assert log_of(store) == spoilt
    with slave(tmp_path, f"--master=127.0.0.1:{port + 1}") as waiting:
        waiting.wait_for_event(Event.LOG_REPAIR_WAITS)
        with TwistdNode(
            tmp_path, ["--role=async-master", f"--port={port}"], copy_of("slave", tmp_path / "m"), "master"
        ) as serving:
            waiting.wait_for_event(Event.LOG_REPAIRED)
            is_in_sync(waiting)
            assert waiting.stop() == 0
            assert serving.stop() == 0
    assert log_of(store) == good


@pytest.mark.story
def test_a_slave_that_its_master_cannot_help_keeps_its_store_and_says_what_helps(tmp_path: Path, good: bytes) -> None:
    store = tmp_path / "slave-store"
    spoil(store, LAST + 500)
    spoilt = log_of(store)
    with master(tmp_path) as serving:
        assert serving.port()
        assert serving.stop() == 0
    spoil(tmp_path / "master-store", LAST + 500 - 200, b"\x11" * 4000)
    rmqha("recover", tmp_path / "master-store", "--apply", "--force").check_returncode()
    for once in ((), ("--once",)):
        with master(tmp_path) as serving, slave(tmp_path, f"--master=127.0.0.1:{serving.port()}", *once) as helpless:
            assert helpless.wait() == 1
            (line,) = [line for line in helpless.errors() if line.startswith("rmqha: ")]
            for words in ("its master cannot repair it", "rmqha repair", "rmqha recover"):
                assert words in line
        assert log_of(store) == spoilt


def test_a_slave_that_only_name_servers_lead_to_its_master_heals_too(tmp_path: Path, good: bytes) -> None:
    store = tmp_path / "slave-store"
    spoil(store, LAST + 500)
    with NameServerNode(tmp_path) as namesrv:
        way = f"--namesrv={namesrv.address}"
        with master(tmp_path, way) as serving:
            serving.wait_for_event(Event.REGISTERED)
            options = ["--role=slave", "--port=0", "--broker-id=1", way]
            with TwistdNode(tmp_path, options, store, "slave") as healing:
                healing.wait_for_event(Event.LOG_REPAIRED)
                assert healing.stop() == 0
                assert not healing.events(Event.MASTER_SILENT)
            assert serving.stop() == 0
    assert log_of(store) == good


@pytest.mark.story
def test_once_finds_its_master_at_the_name_servers(tmp_path: Path, good: bytes) -> None:
    shutil.copytree(tmp_path / "slave-store", tmp_path / "master-store")
    shutil.rmtree(tmp_path / "slave-store")
    with NameServerNode(tmp_path) as namesrv:
        ways = ["--port=0", f"--namesrv={namesrv.address}"]
        options = ["--role=slave", "--broker-id=1", "--once", *ways]
        with master(tmp_path, *ways, "--name=broker-x") as serving:
            serving.wait_for_event(Event.REGISTERED)
            store = tmp_path / "slave-store"
            with TwistdNode(tmp_path, [*options, "--name=broker-x"], store, "slave") as copying:
                assert copying.wait() == 0, copying.errors()
                assert copying.state().master == f"127.0.0.1:{serving.port()}"  # type: ignore[union-attr]  # it has one
            assert log_of(store) == good
            with TwistdNode(tmp_path, [*options, "--name=broker-y"], tmp_path / "none", "lost") as lost:
                assert lost.wait() == 7
                (line,) = [line for line in lost.errors() if line.startswith("rmqha: ")]
                assert "know no master of brokerName broker-y: they know broker-x (--name)" in line
            assert serving.stop() == 0


@pytest.mark.story
def test_a_slave_that_name_servers_lead_to_its_master_can_be_stopped_as_it_connects(tmp_path: Path) -> None:
    """A report in the same turn as the stop kept the connection open until the master counted as silent."""
    with NameServerNode(tmp_path) as namesrv:
        way = f"--namesrv={namesrv.address}"
        copy_of("slave", tmp_path / "slave-store")
        with master(tmp_path, way) as serving:
            serving.wait_for_event(Event.REGISTERED)
            for event in (Event.MASTER_FOUND, Event.SLAVE_STATE, Event.TRANSFER_REQUESTED) * 2:
                options = ["--role=slave", "--port=0", "--broker-id=1", way]
                with TwistdNode(tmp_path, options, tmp_path / "slave-store", "slave") as connecting:
                    state = {"state": "HANDSHAKE"} if event is Event.SLAVE_STATE else {}
                    connecting.wait_for_event(event, **state)
                    assert connecting.stop() == 0
                    assert not connecting.events(Event.MASTER_SILENT)
            assert serving.stop() == 0


@pytest.mark.story
def test_a_master_refuses_and_is_repaired_from_its_running_slave(tmp_path: Path, good: bytes) -> None:
    shutil.copytree(tmp_path / "slave-store", tmp_path / "master-store")
    store = tmp_path / "master-store"
    spoil(store, LAST + 500)
    spoilt = log_of(store)
    with master(tmp_path) as refusing:
        assert refusing.wait() == 1
        (line,) = [line for line in refusing.errors() if line.startswith("rmqha: ")]
        for words in (f"damaged at {LAST}", "sound messages", "rmqha repair", "rmqha recover"):
            assert words in line
    assert log_of(store) == spoilt
    assert not (store / ABORT_FILE).exists()
    with slave(tmp_path, "--master=127.0.0.1:1") as replica:
        address = f"127.0.0.1:{replica.port()}"
        for arguments, words in ((["--dry-run"], "can repair "), ([], "repaired "), ([], "nothing repaired")):
            done = rmqha("repair", store, "--from", address, *arguments)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(words)
            assert (log_of(store) == good) == (not arguments)
        replica.wait_for_state(lambda state: not state.peers, "having no slave: a repair is none")
        assert replica.stop() == 0
    with master(tmp_path) as serving:
        assert serving.port()
        assert serving.stop() == 0
    assert log_of(store) == good


def test_a_node_that_is_not_there_is_status_7(tmp_path: Path, good: bytes) -> None:
    store = tmp_path / "slave-store"
    spoil(store, LAST + 500)
    done = rmqha("repair", store, "--from", f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert "is not repaired: " in done.stderr
