"""Wrong use of promote, rewind and backup: one clear line, the exit code of the table, and no byte changes."""

import json
import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.examining import LOCK_FILE
from rmqha.store.log.lockfile import LockFile
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline import rewind as rewinding
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.newstore import NoRoom
from rmqha.store.offline.rewind import check_room
from rmqha.testing.nodes import free_port
from tests.cli.test_cli import CommandTestCase, files_of
from tests.fixtures import copy_of, new_folder
from tests.store.offline.test_prefix import fixed_log, store_of
from tests.stories.test_rewind import new_master, put, run

END = fixed_log().end
Usage = namedtuple("Usage", "total used free")


def state_of(role: str, state: str, verdict: str | None = None) -> NodeState:
    offsets = Offsets(0, *[END] * 4)
    return NodeState("1f", role=role, state=state, offsets=offsets, verdict=verdict, reason="of a test")


def small_store(folder: Path) -> Path:
    """The store of a slave that has stopped."""
    with store_of(fixed_log()) as (store, _):
        shutil.copytree(store, folder)
    state_of("SLAVE", "STOPPED").write(folder)
    return folder


class PromoteTests(CommandTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.store_path = small_store(self.folder / "store")

    def refused(self, code: ExitCode, *words: str, where: object = None, options: tuple[str, ...] = ()) -> None:
        before = files_of(self.folder)
        for dry_run in ((), ("--dry-run",)):
            said = self.complaint(code, "promote", self.store_path if where is None else where, *options, *dry_run)
            for word in words:
                self.assertIn(word, said)
        self.assertEqual(files_of(self.folder), before)

    def test_a_store_in_gap_or_diverged(self) -> None:
        for state in (state_of("SLAVE", "GAP"), state_of("SLAVE", "STOPPED", "GAP")):
            state.write(self.store_path)
            self.refused(ExitCode.GAP, "is GAP", "--force")
        for state in (state_of("SLAVE", "DIVERGED"), state_of("SLAVE", "STOPPED", "DIVERGED")):
            state.write(self.store_path)
            self.refused(ExitCode.DIVERGED, "is DIVERGED", "another slave")

    def test_a_store_that_is_not_a_slaves(self) -> None:
        state_of("ASYNC_MASTER", "STOPPED").write(self.store_path)
        self.refused(ExitCode.USAGE, "is not a slave's store")
        shutil.rmtree(self.store_path / "rmqha")
        self.refused(ExitCode.USAGE, "has no state.json", "--force")

    def test_a_second_promotion(self) -> None:
        self.output_of("promote", self.store_path)
        self.refused(ExitCode.USAGE, "was promoted to ASYNC_MASTER already")

    def test_beside_a_live_master(self) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as master:
            address = f"127.0.0.1:{master.getsockname()[1]}"
            replace(state_of("SLAVE", "STOPPED"), master=address).write(self.store_path)
            self.refused(ExitCode.IN_USE, f"its master at {address} takes connections", "two masters")

    def test_a_wrong_folder(self) -> None:
        for wrong in (self.store_path / "commitlog", self.folder, self.folder / "nothing"):
            self.refused(ExitCode.USAGE, "there is no such store", where=wrong)

    def test_a_full_disk(self) -> None:
        self.patch(shutil, "disk_usage", lambda _: Usage(10, 9, 1))
        self.refused(ExitCode.IO_ERROR, "is full", "make room", "Nothing was changed", options=("--force",))

    def test_a_damaged_log(self) -> None:
        segment = sorted((self.store_path / "commitlog").iterdir())[0]
        with segment.open("r+b") as file:
            file.seek(100)
            file.write(b"!!!!")
        (self.store_path / "abort").touch()
        (self.store_path / "checkpoint").unlink(missing_ok=True)
        self.refused(ExitCode.CORRUPT, "repair")


class RewindTests(SynchronousTestCase):
    def test_a_damaged_log_names_the_commands_to_type(self) -> None:
        store = copy_of("slave", new_folder(self) / "store")
        before = b""
        for segment in sorted((store / "commitlog").iterdir())[:2]:
            with segment.open("r+b") as file:
                file.seek(100)
                file.write(b"!!!!")
            before += segment.read_bytes()
        (store / "checkpoint").unlink(missing_ok=True)
        (store / "abort").touch()
        result = CliRunner().invoke(main, ["rewind", str(store), "--to", "127.0.0.1:1"])
        self.assertEqual(result.exit_code, ExitCode.CORRUPT, result.output)
        self.assertIn(f"'rmqha recover {store} --apply --force'", result.stderr)
        self.assertIn("Then type the same rewind again", result.stderr)
        self.assertEqual(b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir())[:2]), before)

    def test_a_disk_without_room_for_what_is_cut(self) -> None:
        folder = new_folder(self)
        free = rewinding.ROOM_LEFT_BYTES + 1000
        self.patch(shutil, "disk_usage", lambda _: Usage(2 * free, free, free))
        check_room(folder, Fork(10, 1010, is_theirs_shorter=False, proved_from=0))
        check_room(folder, Fork(10, 10, is_theirs_shorter=False, proved_from=0))
        with self.assertRaisesRegex(NoRoom, "Nothing was changed"):
            check_room(folder, Fork(10, 1011, is_theirs_shorter=False, proved_from=0))


class BackupTests(CommandTestCase):
    def test_a_second_copy_to_the_same_place_at_the_same_time(self) -> None:
        folder = new_folder(self)
        store = small_store(folder / "store")
        marker = folder / ".backup.incomplete" / "rmqha" / "incomplete.json"
        marker.parent.mkdir(parents=True)
        marker.write_bytes(b"{}")
        lock = LockFile(marker)
        self.addCleanup(lock.release)
        before = files_of(store)
        self.assertIn("in use", self.complaint(ExitCode.IN_USE, "backup", store, folder / "backup"))
        self.assertEqual(files_of(store), before)
        self.assertTrue(marker.exists())


@pytest.mark.process
def test_a_store_that_another_program_has_open_is_not_promoted_or_rewound(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    lock = LockFile(store / LOCK_FILE)
    try:
        before = files_of(store)
        assert "takes no orders" in run("promote", store, code=ExitCode.IN_USE)
        assert "is in use" in run("rewind", store, "--to", "127.0.0.1:1", code=ExitCode.IN_USE)
        assert files_of(store) == before
    finally:
        lock.release()


@pytest.mark.process
def test_a_wrong_address_is_named(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    before = files_of(store)
    assert "does not answer" in run("promote", f"127.0.0.1:{free_port()}", code=ExitCode.CANNOT_CONNECT)
    with new_master(tmp_path, tmp_path / "other") as master:
        master.wait_for_state(lambda state: state.state == "SERVING", "serving")
        remoting = master.port("remoting")
        told = run("rewind", store, "--to", f"127.0.0.1:{remoting}", code=ExitCode.CANNOT_CONNECT)
        assert "--to must be an HA port" in told
        assert "is a master already" in run("promote", f"127.0.0.1:{remoting}", code=ExitCode.USAGE)
        assert master.stop() == 0
    assert files_of(store) == before


@pytest.mark.process
@pytest.mark.story
def test_of_two_operators_at_once_one_rewinds(tmp_path: Path) -> None:
    import subprocess

    from tests.commands import RMQHA

    old, new = tmp_path / "old", tmp_path / "new"
    put(tmp_path, old, "first", 200)
    shutil.copytree(old, new)
    put(tmp_path, old, "old", 20)
    put(tmp_path, new, "new", 50)
    with new_master(tmp_path, new) as master:
        command = [RMQHA, "rewind", str(old), "--to", f"127.0.0.1:{master.port()}"]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in "ab"]
        said = [each.communicate()[0] for each in both]
        codes = sorted(each.returncode for each in both)
        assert codes[0] == 0, said
        assert codes[1] in (ExitCode.FINE, ExitCode.IN_USE, ExitCode.CORRUPT), said
        assert all("Traceback" not in text for text in said)
        kept = [json.loads(line)["body"] for line in run_dump(old)]
        assert len(kept) == 20
        assert "nothing to rewind" in run("rewind", old, "--to", f"127.0.0.1:{master.port()}")
        assert master.stop() == 0
    run("verify", old)
    assert os.path.exists(old / "commitlog")


def run_dump(store: Path) -> list[str]:
    """The messages that are kept in the largest file of what was cut."""
    kept = max((store / "rmqha" / "cut").iterdir(), key=lambda path: path.stat().st_size)
    return run("dump", kept, "--json", "--topic", "PutNode").splitlines()
