"""A node's start: signals are answered while its store is opened, and what was done stays done."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from rmqha.kit.events import Event
from rmqha.store.derived.consumequeue import DEFAULT_QUEUE_FILE_SIZE
from rmqha.store.log.mappedfile import file_name
from rmqha.store.nodefacts import OpeningPhase
from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import NameServerNode, TwistdNode
from rmqha.testing.records import make_record, write_log
from rmqha.wire.record import encode_record
from tests.web.test_http_port import get

pytestmark = pytest.mark.process

SEGMENT_BYTES = 1 << 28
SLOW = """
import sys, time
from rmqha.store.{package} import {module}
slow = {module}.{what}
def slowly(*arguments, **more):
    time.sleep(0.05)
    return slow(*arguments, **more)
{module}.{what} = slowly
import rmqha.store.opening
rmqha.store.opening.STATE_SECONDS = 0.0
{more}
from twisted.scripts.twistd import run
sys.argv = ["twistd", *sys.argv[1:]]
run()
"""
"""twistd, in which each piece of a start's phase takes long: a small log is then enough."""
WINDOWS = "import rmqha.store.log.stretches as s; s.FIRST_WINDOW_BYTES = s.WINDOW_BYTES = 20_000"
PHASES = {
    "RECOVERING": SLOW.format(package="log", module="commitlog", what="scan_records", more=WINDOWS),
    "DISPATCHING": SLOW.format(
        package="derived",
        module="dispatch",
        what="Dispatcher.run_slice",
        more="dispatch.BULK_MESSAGES_WAITED_FOR = 200",
    ),
}


class SlowNode(TwistdNode):
    """A node with such a start."""

    script: str

    def _spawn(self, log):  # type: ignore[no-untyped-def]
        import subprocess
        import sys

        command = [sys.executable, "-c", self.script, "-n", *self._twistd_options, self.plugin, *self._options]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def assert_pages_show_the_opening(http: int, phase: str) -> None:
    assert get(http, "/liveness")[0] == 200
    assert get(http, "/readiness")[0] == 503
    status = json.loads(get(http, "/status.json")[1])
    assert status["state"] == phase
    found = status["progress"]
    assert found["what"] == OpeningPhase[phase].value
    assert 0 <= found["doneBytes"] <= found["totalBytes"]
    assert found["what"] in get(http, "/")[1]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_that_opens_its_store(tmp_path: Path, phase: str, number: signal.Signals) -> None:
    store = tmp_path / "store"
    write_log(store / "commitlog", 6_000_000, 100, SEGMENT_BYTES)
    (store / "rmqha").mkdir()
    NodeState.new().write(store)  # a store without one gets none before its log is known to be sound
    node = SlowNode(tmp_path, ["--role=async-master", "--port=0", "--http-port=0"], store=store)
    node.script = PHASES[phase]
    with node:
        state = node.wait_for_state(lambda state: state.state == phase, phase)
        assert state.offsets.confirmed == 0
        assert_pages_show_the_opening(node.port("http"), phase)
        os.kill(node.pid, number)
        assert node.wait() == 0
        assert node.events(Event.OPENING_STOPPED)
        assert not [line for line in node.errors() if "Traceback" in line]
    assert not (store / "abort").exists()
    queues = list((store / "consumequeue").rglob("0*0"))
    assert bool(queues) == (phase == "DISPATCHING")
    again = TwistdNode(tmp_path, ["--role=async-master", "--port=0"], store=store, name="again")
    with again:
        again.port("ha", 120)
        again.wait_for_state(lambda state: state.state == "SERVING", "serving", 120)
        assert again.stop(120) == 0
    units = [np.frombuffer(path.read_bytes(), ">i8,>i4,>i8")["f1"] for path in (store / "consumequeue").glob("*/*/0*")]
    found = NodeState.read(store)
    assert found is not None
    record_bytes = sum(int(some[some < DEFAULT_QUEUE_FILE_SIZE].sum()) for some in units)
    assert record_bytes == found.offsets.verified


@pytest.mark.story
def test_a_wrong_queue_offset_on_the_masters_disk_harms_nobody(tmp_path: Path) -> None:
    """Attack findings D1 and D2: byte 23 of a record, which no CRC guards, and the sign of one."""
    store = tmp_path / "master-store"
    (store / "commitlog").mkdir(parents=True)
    content = bytearray()
    starts = []
    for index in range(400):
        starts.append(len(content))
        content += encode_record(make_record(index, b"b" * 50, physical_offset=len(content)))
    for at in (100, 101, 0):
        content[starts[at] + (20 if at == 101 else 23)] ^= 0x81
    (store / "commitlog" / file_name(0)).write_bytes(bytes(content).ljust(SEGMENT_BYTES, b"\0"))
    copy = tmp_path / "slave-store"
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0"], store=store, name="master") as master:
        port = master.port("ha", 120)
        options = ["--role=slave", f"--master=127.0.0.1:{port}", "--master-remoting=none", "--once", "--port=0"]
        with TwistdNode(tmp_path, options, store=copy, name="slave") as slave:
            assert slave.wait() == 0
        assert master.events(Event.MESSAGE_NOT_QUEUED)
        assert master.stop(120) == 0
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0"], store=copy, name="promoted") as promoted:
        promoted.port("ha", 120)
        assert promoted.stop(120) == 0
    for root in (store, copy):
        files = [path for path in (root / "consumequeue").rglob("*") if path.is_file()]
        assert sum(path.stat().st_blocks * 512 for path in files) < 1 << 20
        assert all(path.name.isdecimal() for path in files)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("option", ["--set=brokerIP1=nobody.invalid", "--bind=nobody.invalid"])
def test_a_node_waits_for_the_address_of_its_own_name_and_says_so(option: str, tmp_path: Path) -> None:
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0", option]) as node:
        told = node.wait_for_event(Event.NAME_UNKNOWN)
        assert (told["what"], told["name"]) == (
            option.removeprefix("--").removeprefix("set=").split("=")[0],
            "nobody.invalid",
        )
        assert node.stop() == 0
        assert node.events(Event.LISTENING) == []


def test_a_name_server_waits_for_the_address_of_its_own_name_and_says_so(tmp_path: Path) -> None:
    with NameServerNode(tmp_path, ["--port=0", "--witness=0", "--bind=nobody.invalid"]) as server:
        server.wait_for_event(Event.NAME_UNKNOWN, what="bind")
        assert server.stop() == 0
        assert server.events(Event.LISTENING) == []
