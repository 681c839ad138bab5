"""Nodes in the foreground of a terminal: a bar while they take long, whole lines above it, and Ctrl-C."""

import os
import pty
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import TwistdNode
from rmqha.testing.records import write_log
from tests.node.test_start import PHASES, SEGMENT_BYTES
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.process

MIB = 1 << 20
CTRL_C = b"\x03"
CURSOR_HIDDEN, CURSOR_SHOWN = "\x1b[?25l", "\x1b[?25h"
TWISTD = (str(Path(sys.executable).with_name("twistd")),)


class Screen:
    """A process in the foreground of a terminal of its own, and all that it writes there."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        pid, self._ours = pty.fork()
        if pid == 0:  # the child
            os.chdir(folder)
            os.environ.update(TERM="xterm", COLUMNS="160", LINES="40")
            os.execv(command[0], list(command))
        self.pid = pid
        self._written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._ours, 4096):
                self._written += piece
        except OSError:
            pass  # the process has closed its end

    @property
    def text(self) -> str:
        """All that was written."""
        return self._written.decode("utf-8", "replace")

    @property
    def plain(self) -> str:
        """Without colours and moves of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.text)

    def wait_for(self, pattern: str) -> None:
        """Until the plain text has this."""
        wait_until(lambda: re.search(pattern, self.plain) is not None, f"{pattern} on the terminal")

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def ends(self) -> int:
        """The exit status of the process."""
        _, status = os.waitpid(self.pid, 0)
        self._reader.join(WAIT_SECONDS)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._ours)


@contextmanager
def on_screen(folder: Path, *options: str, command: Sequence[str] = TWISTD) -> Iterator[Screen]:
    """twistd in the foreground."""
    screen = Screen([*command, "-n", "--pidfile=", "rmqha", "--bind=127.0.0.1", "--port=0", *options], folder)
    try:
        yield screen
    finally:
        screen.close()


def assert_clean(screen: Screen) -> None:
    """The cursor is back, no traceback was shown, and each line of the log is whole."""
    assert screen.text.count(CURSOR_HIDDEN) == screen.text.count(CURSOR_SHOWN) > 0
    assert screen.text.rfind(CURSOR_SHOWN) > screen.text.rfind(CURSOR_HIDDEN)
    assert "Traceback" not in screen.plain
    for line in re.split(r"[\r\n]+", screen.plain):
        assert len(re.findall(r"\[rmqha\.[a-z.]+#", line)) <= 1, line
        assert "[rmqha" not in line or re.match(r"\s*\d{4}-", line), line


@pytest.mark.parametrize(
    ("phase", "title", "total"), [("RECOVERING", "verifying the log", 256.0), ("DISPATCHING", "building queues", 5.7)]
)
def test_a_start_that_takes_long_shows_a_bar(tmp_path: Path, phase: str, title: str, total: float) -> None:
    store = tmp_path / "store"
    write_log(store / "commitlog", 6_000_000, 100, SEGMENT_BYTES)
    (store / "rmqha").mkdir()
    NodeState.new().write(store)
    slow = (sys.executable, "-c", PHASES[phase])
    with on_screen(tmp_path, "--role=async-master", f"--store={store}", command=slow) as screen:
        screen.wait_for(rf"{title}.*\d/{total} MiB")
        screen.press(CTRL_C)
        assert screen.ends() == 0
    assert "stopped before the store was open" in screen.plain
    assert_clean(screen)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[TwistdNode]:
    store = tmp_path / "master-store"
    write_log(store / "commitlog", 3 * MIB, 1000, SEGMENT_BYTES)
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0"], store=store, name="master") as node:
        yield node


def options_of_copy(master: TwistdNode) -> list[str]:
    addresses = [f"--master=127.0.0.1:{master.port()}", f"--master-remoting=127.0.0.1:{master.port('remoting')}"]
    return ["--role=slave", f"--store={master.work / 'copy'}", "--once", *addresses]


def is_copied(folder: Path, master: TwistdNode) -> bool:
    """Whether the copy ends where the master's log does."""
    copy, original = NodeState.read(folder / "copy"), master.state()
    assert copy is not None
    assert original is not None
    return copy.offsets.verified == original.offsets.verified > 3_000_000


def test_a_copy_with_once_shows_a_bar_and_ends(tmp_path: Path, master: TwistdNode) -> None:
    with on_screen(tmp_path, *options_of_copy(master), "--max-rate=1m") as screen:
        screen.wait_for(r"copying from the master.*\d.* MiB")
        assert screen.ends() == 0
    assert is_copied(tmp_path, master)
    assert_clean(screen)


def test_ctrl_c_ends_a_copy_and_the_next_one_goes_on(tmp_path: Path, master: TwistdNode) -> None:
    with on_screen(tmp_path, *options_of_copy(master), "--max-rate=100k") as screen:
        screen.wait_for(r"copying from the master.*\d.* MiB")
        screen.press(CTRL_C)
        assert screen.ends() == 0
        assert_clean(screen)
    with on_screen(tmp_path, *options_of_copy(master)) as screen:
        assert screen.ends() == 0
    assert is_copied(tmp_path, master)


def test_an_error_stands_on_a_line_of_its_own(tmp_path: Path, master: TwistdNode) -> None:
    """The log that is copied is another one: the run ends while a bar may be shown."""
    write_log(tmp_path / "copy" / "commitlog", 2 * MIB, 500, SEGMENT_BYTES)
    with on_screen(tmp_path, *options_of_copy(master)) as screen:
        assert screen.ends() == 5
    assert re.search(r"(^|[\r\n])rmqha: DIVERGED", screen.plain)


def test_a_log_in_a_file_has_no_bar(tmp_path: Path, master: TwistdNode) -> None:
    node = TwistdNode(tmp_path, [*options_of_copy(master), "--max-rate=1m"], name="slave")
    with node:
        assert node.wait() == 0
    assert b"\x1b" not in (tmp_path / "slave.log").read_bytes()
