"""Progress: lines every ten seconds, or a bar on a terminal, and how it ends."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.progress import LINE_SECONDS, Lines, Unit, left_of, pace
from rmqha.testing.records import write_log
from tests.commands import RMQHA, rmqha_bytes
from tests.waiting import WAIT_SECONDS

MIB = 1 << 20
STAYS_AT_ITS_FIRST_PLACE = """
import sys, time
from rmqha.launch import main
from rmqha.kit.bar import Bar
show = Bar.show
def show_and_stay(*place):
    show(*place)
    while True:
        time.sleep(0.02)  # a signal ends it
Bar.show = show_and_stay
sys.argv[0] = "rmqha"
sys.exit(main())
"""
"""The command ``rmqha``, which ends only by an error or a signal once it shows a bar."""


class LinesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 100.0
        self.said: list[str] = []
        self.lines = Lines("verify", Unit.BYTES, self.said.append, lambda: self.now)

    def test_a_short_work_says_nothing(self) -> None:
        for done in range(100):
            self.now += LINE_SECONDS / 101
            self.lines.show(done, 100)
        self.assertEqual(self.said, [])

    def test_a_line_each_ten_seconds_with_rate_and_time_left(self) -> None:
        for seconds in range(31):
            self.now = 100.0 + seconds
            self.lines.show(seconds * 2 * MIB, 100 * MIB)
        self.assertEqual(
            self.said,
            [
                "verify: 20.0 MiB of 100.0 MiB (20%), 2.0 MiB/s, about 40 s left",
                "verify: 40.0 MiB of 100.0 MiB (40%), 2.0 MiB/s, about 30 s left",
                "verify: 60.0 MiB of 100.0 MiB (60%), 2.0 MiB/s, about 20 s left",
            ],
        )

    def test_the_rate_is_that_of_the_last_seconds(self) -> None:
        self.lines.show(0, 100 * MIB)
        self.now += 10
        self.lines.show(90 * MIB, 100 * MIB)
        self.now += 10
        self.lines.show(91 * MIB, 100 * MIB)
        self.assertIn("0.1 MiB/s, about 1 min left", self.said[1])

    def test_another_title_begins_again(self) -> None:
        self.lines.show(0, 10 * MIB)
        self.now += 9
        self.lines.show(0, 20 * MIB, "building")
        self.now += 9
        self.assertEqual(self.said, [])
        self.now += 1
        self.lines.show(10 * MIB, 20 * MIB, "building")
        self.assertEqual(self.said, ["building: 10.0 MiB of 20.0 MiB (50%), 1.0 MiB/s, about 10 s left"])

    def test_what_is_not_known_is_left_out(self) -> None:
        self.assertEqual(pace(5, None, 5, 10, Unit.PARTS), "5, 0.5/s")
        self.assertEqual(pace(0, 10, 0, 10, Unit.PARTS), "0 of 10 (0%), 0.0/s")
        self.assertEqual(pace(0, 0, 0, 0), "0.0 MiB of 0.0 MiB, 0.0 MiB/s")

    def test_long_times(self) -> None:
        self.assertEqual(
            [left_of(seconds, 1) for seconds in (59, 61, 7300)],
            [
                "about 59 s left",
                "about 1 min left",
                "about 2 h 1 min left",
            ],
        )


def on_terminal(command: list[str], interrupt: bool = False) -> tuple[int, str]:
    """The exit code of a command whose stderr is a terminal, and what it shows there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "250"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while True:
                try:
                    piece = os.read(ours, 4096)
                except OSError:  # its end is closed
                    break
                shown += piece
                if interrupt and b"MiB" in shown:
                    process.send_signal(signal.SIGINT)
                    interrupt = False
            code = process.wait(WAIT_SECONDS)
        finally:
            process.kill()
            os.close(ours)
    return code, shown.decode("utf-8", "replace")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of some MiB, whose path looks like markup."""
    path = tmp_path_factory.mktemp("progress") / "[red]store[nope]"
    write_log(path / "commitlog", 8 * MIB, 300, MIB, 1)
    return path


@pytest.mark.process
def test_a_terminal_gets_a_bar(store: Path) -> None:
    code, shown = on_terminal([RMQHA, "verify", str(store)])
    assert code in (0, 1), shown  # its queues were never built
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]", "", shown)
    assert "[red]store[nope]" in plain
    assert re.search(r"(\d\.\d)/\1 MiB", plain), plain


@pytest.mark.process
@pytest.mark.parametrize("command", ["verify", "rebuild", "recover"])
def test_a_file_gets_no_bar_and_no_line_of_a_short_work(store: Path, command: str) -> None:
    done = rmqha_bytes(command, store)
    assert b"MiB/s" not in done.stderr
    assert b"\x1b" not in done.stderr


@pytest.mark.process
def test_ctrl_c_ends_a_bar_with_130(store: Path) -> None:
    """In the middle of a log: the command stays where its bar is shown first, for as long as nobody interrupts it."""
    code, shown = on_terminal([sys.executable, "-c", STAYS_AT_ITS_FIRST_PLACE, "verify", str(store)], interrupt=True)
    assert code == 130, shown
    assert shown.rstrip().endswith("rmqha: interrupted")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is shown again"
