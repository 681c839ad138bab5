"""A disk that fills up in the middle of a command that mends a store: a clear error, nothing lost, and it goes on.

The disk is a real one of ext4 with blocks of 1 KiB, smaller than a page (skips where mounting is not allowed); and,
everywhere, a limit on the size of files.
"""

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmqha.cli import main
from rmqha.store.examining import ABORT_FILE
from rmqha.testing.records import write_log
from tests.commands import RMQHA, rmqha
from tests.node.test_node import small_disk
from tests.store.logs import write_at

pytestmark = pytest.mark.process
SEGMENT_SIZE = 65536
LOG_BYTES = 200_000
SMALL_FILES = ("--set=maxHashSlotNum=100", "--set=maxIndexNum=200", "--set=mappedFileSizeConsumeQueue=4000")
ADVICE = "nothing is lost: make room, then run the same command again"
ROOM = (0, 0, 8192)
"""Free bytes at the start, of which the first try may use up what the second one needs."""
LIMITS = (1000, 50_000)


def run_here(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


class Case:
    """A store in need of a command, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.good = folder / "good"
        write_log(self.good / "commitlog", LOG_BYTES, 300, SEGMENT_SIZE)
        run_here("rebuild", self.good, *SMALL_FILES)
        self.store = folder / "store"
        shutil.copytree(self.good, self.store)

    def spoil(self, offset: int, size: int) -> None:
        write_at(self.store / "commitlog", offset, b"\xa5" * size, SEGMENT_SIZE)

    def tear(self) -> None:
        (self.store / ABORT_FILE).touch()
        for at in (90_000, 110_000):
            self.spoil(at, 5_000)

    def repair(self) -> list[object]:
        self.spoil(30_000, 20_000)
        self.spoil(140_000, 5_000)
        return ["repair", "--from", self.good]

    def recover(self) -> list[object]:
        self.tear()
        return ["recover", "--apply", "--force"]

    def restore_cut(self) -> list[object]:
        self.tear()
        run_here("recover", self.store, "--apply", "--force")
        (kept,) = (self.store / "rmqha" / "cut").iterdir()
        return ["restore-cut", "--apply", "--force", kept.name]

    def rebuild(self) -> list[object]:
        return ["rebuild"]


COMMANDS = (Case.repair, Case.recover, Case.restore_cut, Case.rebuild)


def command_on(store: Path, command: list[object], limit: int | None = None) -> subprocess.CompletedProcess[str]:
    name, *options = map(str, command)
    words = [name, str(store), *options]
    if name == "restore-cut":
        words = [name, str(store), options[-1], *options[:-1]]
    if limit is None:
        return rmqha(*words)

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run([RMQHA, *words], capture_output=True, text=True, check=False, preexec_fn=set_limit)


def log_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


def derived_of(store: Path) -> dict[str, bytes]:
    """Queues by their names; index files are named by the time, and only their contents are the same."""
    queues = store / "consumequeue"
    found = {str(path.relative_to(queues)): path.read_bytes() for path in queues.rglob("*") if path.is_file()}
    return found | {f"index {n}": path.read_bytes() for n, path in enumerate(sorted((store / "index").iterdir()))}


def kept_of(store: Path) -> dict[str, bytes]:
    folder = store / "rmqha" / "cut"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def check_refused(done: subprocess.CompletedProcess[str], number: int) -> None:
    assert done.returncode == 8, (done.returncode, done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert os.strerror(number) in line
    assert ": '/" in line, "it names the file"
    assert line.endswith(ADVICE)


def check_same(store: Path, wanted: Path) -> None:
    assert log_of(store) == log_of(wanted)
    assert derived_of(store) == derived_of(wanted)
    assert kept_of(store) == kept_of(wanted)


@pytest.mark.parametrize("make", COMMANDS)
def test_a_limit_on_the_size_of_files_loses_nothing(make: Callable[[Case], list[object]], tmp_path: Path) -> None:
    case = Case(tmp_path)
    command = make(case)
    wanted = tmp_path / "wanted"
    shutil.copytree(case.store, wanted)
    assert command_on(wanted, command).returncode == 0
    refused = 0
    for limit in LIMITS:
        store = tmp_path / f"limit-{limit}"
        shutil.copytree(case.store, store)
        done = command_on(store, command, limit)
        if done.returncode != 0:
            refused += 1
            check_refused(done, errno.EFBIG)
            assert command_on(store, command).returncode == 0
        check_same(store, wanted)
    assert refused, "no limit was too low"


@pytest.mark.parametrize("make", COMMANDS)
@pytest.mark.story
def test_a_full_disk_loses_nothing(make: Callable[[Case], list[object]], tmp_path: Path) -> None:
    case = Case(tmp_path)
    command = make(case)
    wanted = tmp_path / "wanted"
    shutil.copytree(case.store, wanted)
    assert command_on(wanted, command).returncode == 0
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        for number, room in enumerate(ROOM):
            store, ballast = disk / f"store-{number}", disk / "ballast"
            copied = ["cp", "-a", "--sparse=always", str(case.store), str(store)]
            subprocess.run(copied, check=True)
            fill(disk, ballast, room)
            done = command_on(store, command)
            ballast.unlink()
            subprocess.run(["sync", "--file-system", str(disk)], check=True)  # until then ext4 keeps the blocks
            if done.returncode != 0:
                check_refused(done, errno.ENOSPC)
                done = command_on(store, command)
                assert done.returncode == 0, done.stderr
            check_same(store, wanted)
            shutil.rmtree(store)


def fill(disk: Path, ballast: Path, room: int) -> None:
    """Take all room of the disk but this."""
    subprocess.run(["sync", "--file-system", str(disk)], check=True)
    with ballast.open("wb", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(range(1, 256)) * 4):
                pass
        os.fsync(file.fileno())
        file.truncate(max(0, file.tell() - room))
        os.fsync(file.fileno())
