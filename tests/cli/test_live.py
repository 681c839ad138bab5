"""``rmqha top`` and ``rmqha status --watch``: looks that follow one another, and how they end."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.cli.top import page
from rmqha.ops.top import Row
from rmqha.testing.nodes import TwistdNode
from rmqha.testing.records import write_log
from tests.cli.test_cli import CommandTestCase
from tests.commands import RMQHA, rmqha_bytes
from tests.waiting import WAIT_SECONDS

NOBODY = "127.0.0.1:1"


class PageTests(CommandTestCase):
    def test_a_narrow_page_keeps_address_state_and_lag(self) -> None:
        rows = [
            Row("10.0.0.1:10911", "broker-a\x1b[2J", "SLAVE", "IN_SYNC", log_end=10**12, lag_bytes=123, problem="\x07")
        ]
        text = page(rows, None, "now", 60)
        self.assertLessEqual(max(map(len, text.splitlines())), 60)
        for word in ("IN_SYNC", "123"):
            self.assertIn(word, text)
        self.assertTrue(text.replace("\n", "").isprintable(), ascii(text))

    def test_wrong_usage(self) -> None:
        self.assertIn("give brokers", self.complaint(2, "top"))
        self.assertIn("port", self.complaint(2, "top", "a:99999999"))
        self.assertIn("-n needs --watch", self.complaint(2, "status", "a:1", "-n", 1))


def objects(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master of ours."""
    with TwistdNode(tmp_path_factory.mktemp("live"), ["--role=async-master", "--port=0"], name="master") as node:
        yield f"127.0.0.1:{node.port('remoting')}"


@pytest.mark.process
def test_top_once_and_twice(address: str) -> None:
    done = rmqha_bytes("top", address, "--once", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    (row,) = objects(done.stdout)
    assert (row["address"], row["role"], row["state"], row["problem"]) == (address, "ASYNC_MASTER", "SERVING", None)
    done = rmqha_bytes("top", address, "-n2", "--interval=0.1")
    assert (done.returncode, done.stdout.count(b"ASYNC_MASTER"), done.stderr) == (0, 2, b"")
    done = rmqha_bytes("top", address, NOBODY, "--once")
    assert done.returncode == 7
    assert NOBODY.encode() in done.stderr
    assert b"ASYNC_MASTER" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize("command", [["top", "--json"], ["status", "--json", "--watch=0.1"]])
def test_ctrl_c_ends_it_with_0(address: str, command: list[str]) -> None:
    arguments = [RMQHA, *command, address]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert json.loads(process.stdout.readline())["state"] == "SERVING"
            assert json.loads(process.stdout.readline())["state"] == "SERVING"
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_SECONDS) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


@pytest.mark.process
def test_a_watch_goes_on_while_nobody_answers() -> None:
    done = rmqha_bytes("status", NOBODY, "--watch=0.1", "-n2", "--json")
    assert done.returncode == 7
    assert [look["problem"].startswith(f"{NOBODY} does not answer") for look in objects(done.stdout)] == [True, True]


@pytest.mark.process
def test_a_status_of_a_store_again_and_again(tmp_path: Path) -> None:
    write_log(tmp_path / "store" / "commitlog", 60_000, 300, 16384, 1)
    done = rmqha_bytes("status", str(tmp_path / "store"), "--watch=0.1", "-n2", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    looks = objects(done.stdout)
    assert [look["state"] for look in looks] == ["STOPPED"] * 2
    assert looks[0]["time"] < looks[1]["time"]
