"""``rmqha rewind`` beside real nodes: an old master that goes back to where its log parts from the new one's."""

import json
import shutil
from pathlib import Path

import pytest

from rmqha.kit.exitcodes import ExitCode
from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import PutNode, TwistdNode, free_port
from tests.commands import rmqha
from tests.store.logs import file_bytes

pytestmark = pytest.mark.process

SMALL = ("--set=mappedFileSizeCommitLog=65536", "--set=maxHashSlotNum=1000", "--set=mappedFileSizeConsumeQueue=6000")
COMMON, OLD, NEW = 300, 40, 500


def run(*arguments: object, code: ExitCode = ExitCode.FINE) -> str:
    done = rmqha(*arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def put(work: Path, store: Path, name: str, count: int) -> None:
    """Let a master of this store take messages, and stop it."""
    with PutNode(work, ["--role=async-master", "--port=0", *SMALL], store, name) as node:
        result = node.put(count, in_flight=20)
        assert result["statuses"]
        assert node.stop() == 0


@pytest.fixture
def parted(tmp_path: Path) -> tuple[Path, Path, int]:
    """Two stores with one log up to an offset; then the old one has 40 messages, and the new one 500 others."""
    old, new = tmp_path / "old", tmp_path / "new"
    put(tmp_path, old, "first", COMMON)
    shutil.copytree(old, new)
    state = NodeState.read(old)
    assert state is not None
    fork = state.offsets.verified
    put(tmp_path, old, "old", OLD)
    put(tmp_path, new, "new", NEW)
    return old, new, fork


def new_master(work: Path, store: Path) -> TwistdNode:
    return TwistdNode(work, ["--role=async-master", f"--port={free_port()}", *SMALL], store, "master")


@pytest.mark.story
def test_an_old_master_is_rewound_and_follows_the_new_one(tmp_path: Path, parted: tuple[Path, Path, int]) -> None:
    old, new, fork = parted
    tail = file_bytes(old / "commitlog")[fork:].rstrip(b"\0")
    with new_master(tmp_path, new) as master:
        way = f"127.0.0.1:{master.port()}"
        before = file_bytes(old / "commitlog")
        told = json.loads(run("rewind", old, "--to", way, "--dry-run", "--json"))
        assert (told["offset"], told["applied"], sum(told["messages"].values())) == (fork, False, OLD)
        assert file_bytes(old / "commitlog") == before
        told = json.loads(run("rewind", old, "--to", way, "--json"))
        kept = Path(told["keptIn"])
        assert kept.read_bytes().rstrip(b"\0") == tail
        assert run("dump", kept, "--topic", "PutNode").count("\n") == OLD
        assert "queues agree with the log" in run("verify", old)
        assert "nothing to rewind" in run("rewind", old, "--to", way)
        options = ["--role=slave", f"--master={way}", "--port=0", *SMALL]
        with TwistdNode(tmp_path, options, old, "slave") as slave:
            slave.wait_for_state(lambda state: state.state == "IN_SYNC", "IN_SYNC")
            assert slave.stop() == 0
        assert master.stop() == 0
    assert "identical" in run("verify", old, "--against", new)


@pytest.mark.story
def test_a_rewind_without_a_remoting_port_finds_the_same_place(tmp_path: Path, parted: tuple[Path, Path, int]) -> None:
    old, new, fork = parted
    with new_master(tmp_path, new) as master:
        way = f"127.0.0.1:{master.port()}"
        told = json.loads(
            run("rewind", old, "--to", way, "--master-remoting=none", "--dry-run", "--json").split("\n")[0]
        )
        assert told["offset"] == fork
        assert master.stop() == 0


@pytest.mark.story
def test_what_was_cut_can_be_put_back(tmp_path: Path, parted: tuple[Path, Path, int]) -> None:
    old, new, _ = parted
    before = file_bytes(old / "commitlog")
    with new_master(tmp_path, new) as master:
        told = json.loads(run("rewind", old, "--to", f"127.0.0.1:{master.port()}", "--json"))
        assert master.stop() == 0
    run("restore-cut", old, told["keptIn"], "--apply")
    assert file_bytes(old / "commitlog").rstrip(b"\0") == before.rstrip(b"\0")
    run("recover", old, "--apply")
    run("verify", old)


@pytest.mark.story
def test_wrong_use_is_one_line_and_changes_nothing(tmp_path: Path, parted: tuple[Path, Path, int]) -> None:
    old, _, _ = parted
    before = file_bytes(old / "commitlog")
    other = tmp_path / "other"
    put(tmp_path, other, "other", 100)
    assert "cannot connect" in run(
        "rewind", old, "--to", "127.0.0.1:1", "--master-remoting=none", code=ExitCode.CANNOT_CONNECT
    )
    assert "does not tell the range" in run("rewind", old, "--to", "127.0.0.1:2", code=ExitCode.CANNOT_CONNECT)
    assert "no such store" in run("rewind", tmp_path / "nothing", "--to", "127.0.0.1:1", code=ExitCode.USAGE)
    with new_master(tmp_path, other) as master:
        way = f"127.0.0.1:{master.port()}"
        assert "not two copies of one log" in run("rewind", old, "--to", way, code=ExitCode.DIVERGED)
        assert "is in use" in run("rewind", other, "--to", way, code=ExitCode.IN_USE)
        assert master.stop() == 0
    assert file_bytes(old / "commitlog") == before
