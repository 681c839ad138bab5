"""No command writes its output into a store or an archive: one check, and one table of the commands."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.kit.exitcodes import ExitCode
from rmqha.pipeline.sink import ArchiveDataSource
from rmqha.pipeline.views import SPLITS_SCHEMA
from rmqha.store.offline.newstore import WrongPlace
from tests.fixtures import new_folder
from tests.pipeline.lake import make_store

OUTPUT = "{output}"
COMMANDS: dict[str, tuple[str, ...]] = {
    "backup": ("backup", "{store}", OUTPUT),
    "restore": ("restore", "{store}", "--to-offset", "0", "--output", OUTPUT),
    "job restore": ("job", "restore", "{lake}", "--output", OUTPUT),
    "job archive": ("job", "archive", "{store}", "--output", OUTPUT),
    "job archive --table delta": ("job", "archive", "{store}", "--output", OUTPUT, "--table", "delta"),
    "job rebuild": ("job", "rebuild", "{store}", "--output", OUTPUT),
    "job reconcile": ("job", "reconcile", "{store}", "--against", "{lake}", "--output", "{output}/found.csv"),
    "job stats --chart": ("job", "stats", "{store}", "--chart", "{output}/chart.svg"),
    "job reconcile --scratch": ("job", "reconcile", "{store}", "--against", "{lake}", "--scratch", OUTPUT),
    "replay": ("replay", "{store}", "--broker", "127.0.0.1:1", "--progress", "{output}/progress"),
    "job replay": ("job", "replay", "{lake}", "--broker", "127.0.0.1:1", "--progress", "{output}/progress"),
}


def spark_sink(output: str) -> None:
    """What ``df.write.format("rmqha_archive").save(output)`` and its stream begin with."""
    source: Any = ArchiveDataSource({"path": output})
    source.writer(SPLITS_SCHEMA, False)


@pytest.mark.long
class OutputTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.store = make_store(self.folder / "store")
        self.other = make_store(self.folder / "other", seed=2)
        for store in (self.store, self.other):
            (store / "consumequeue").mkdir()
        self.lake = self.folder / "lake"
        self.run_command("job", "archive", self.store, "--output", self.lake)
        (self.folder / "link").symlink_to(self.store / "commitlog")
        (self.folder / "empty").mkdir()

    def run_command(self, *arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, [str(each) for each in arguments])
        return result.exit_code, result.output

    def places(self) -> list[str]:
        """Where no output belongs. The folder that the process is in is the one with the store."""
        return [
            *(f"{self.store}{below}" for below in ("", "/commitlog", "/consumequeue", "/new", "/commitlog/new/newer")),
            f"{self.store}/consumequeue/../commitlog",
            f"{self.folder}/link",
            f"{self.folder}/link/new",
            f"{self.folder}/empty/../store/commitlog",
            "store/commitlog",
            "./store",
            f"{self.other}/commitlog",
            f"{self.other}",
            f"{self.lake}/date=new",
        ]

    def check(self, name: str, write: Callable[[str], str]) -> None:
        before = self.tree()
        for place in self.places()[:: 1 if name == "job archive" else 5]:
            with self.subTest(name, place=place):
                said = write(place)
                self.assertEqual(len(said.strip().splitlines()), 1, said)
                self.assertRegex(said, r"name a (place|folder) outside it|exists and is not empty")
                self.assertEqual(self.tree(), before)

    def tree(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self.folder.rglob("*"):
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_size)
        return found

    def test_nothing_is_written_into_a_store_or_an_archive(self) -> None:
        before = Path.cwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        for name, arguments in COMMANDS.items():

            def command(place: str, arguments: tuple[str, ...] = arguments) -> str:
                filled = [each.format(store=self.store, lake=self.lake, output=place) for each in arguments]
                status, said = self.run_command(*filled)
                self.assertEqual(status, ExitCode.USAGE, said)
                return said

            self.check(name, command)

        def sink(place: str) -> str:
            return str(self.assertRaises(WrongPlace, spark_sink, place))

        self.check("the sink of Spark", sink)

    def test_an_address_is_no_folder(self) -> None:
        """``--output s3://bucket/orders`` made a folder ``s3:`` here, and said that all was archived."""
        before, tree = Path.cwd(), self.tree()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        for name, arguments in COMMANDS.items():
            filled = [each.format(store=self.store, lake=self.lake, output="s3://bucket/new") for each in arguments]
            with self.subTest(name):
                status, said = self.run_command(*filled)
                self.assertEqual((status, self.tree()), (ExitCode.USAGE, tree), said)
                self.assertIn("is an address, and this writes to folders", said)

    def test_places_beside_a_store_are_fine(self) -> None:
        for place in (self.folder / "new", self.folder / "store2", self.folder / "empty"):
            self.assertEqual(self.run_command("job", "archive", self.store, "--output", place)[0], 0)
        self.assertEqual(self.run_command("job", "archive", self.store, "--output", self.lake)[0], 0, "it goes on")
        spark_sink(str(self.lake))
        self.assertEqual(self.run_command("backup", self.store, self.folder / "copy")[0], 0)
