"""Manifests that somebody else has written: whatever they say, no file outside the archive is touched."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.pipeline.jobs.manifest import Archive, ArchiveError, range_of
from tests.fixtures import new_folder
from tests.pipeline.lake import make_store

Content = dict[str, Any]
FILE: dict[str, list[Any]] = {
    "path": [
        "../victim.parquet",
        "date=2026-11-21/../../victim.parquet",
        "{outside}/victim.parquet",
        "/etc/passwd",
        "_manifest/x.parquet",
        "_staged/x.parquet",
        "date=1/.hidden.parquet",
        "date=1//x.parquet",
        "date=1/x.txt",
        "date=\0/x.parquet",
        "date=\x1b]52;c;AAAA\x07/x.parquet",
        "x" * 2000 + ".parquet",
        "",
        7,
        None,
    ],
    "staged": ["../../victim.parquet", "a/b", "..", "", "\0", 7, None],
    "start": [-1, 2**63, 1.5, "0", None, True],
    "end": [-1, 2**63, 2**200, [], {}],
    "rows": [-1, 2**63, "x"],
    "bytes": [-1, 2**63],
    "min_store_timestamp": [-(2**63) - 1, 2**63, "now"],
    "max_store_timestamp": [2**63, None],
    "merged": ["x", [1], [[1]], [[1, 2, 3]], [[-1, 2]], [[5, 2]], {"a": 1}],
}
WHOLE: dict[str, list[Any]] = {
    "start": [-1, 2**63, "x", None, 1],
    "end": [-1, 2**63, None],
    "files": ["x", {"a": 1}, ["x"], [[]], 5, None],
    "store_id": [5, [], "\x1b[2J"],
    "epoch": ["x", 2**63, None],
    "skipped": [-1, 2**63, "x"],
    "hashes": ["x", ["x"], [{"start": 0, "end": 2**62, "sha256": "0" * 64}], [{"start": 0, "end": 1, "sha256": "x"}]],
    "blanks": ["x", ["x"], [{"start": 0, "end": 2**62, "filler": ""}], [{"start": 0, "end": 9, "filler": "\x1b"}]],
    "segment_size": [-1, 0, 2**31, "x"],
    "expired": [-1, 2**63, "x", 2**62],
}
COMMANDS = (
    ("expire", "{lake}", "--older-than", "0d"),
    ("compact", "{lake}"),
    ("restore", "{lake}", "--output", "{outside}/new"),
    ("archive", "{store}", "--output", "{lake}"),
    ("replay", "{lake}", "--broker", "127.0.0.1:1"),
    ("reconcile", "{lake}", "--against", "{store}"),
)


class HostileManifestTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.outside = new_folder(self)
        self.store = make_store(self.outside / "store", log_bytes=20_000)
        self.lake = self.outside / "lake"
        self.victim = self.outside / "victim.parquet"
        self.victim.write_bytes(b"mine")
        self.assertEqual(self.run_job("archive", self.store, "--output", self.lake)[0], 0)
        (self.manifest,) = (self.lake / "_manifest").glob("*-*.json")
        self.content: Content = json.loads(self.manifest.read_bytes())

    def run_job(self, *arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["job", *(str(each) for each in arguments)])
        return result.exit_code, result.output

    def write(self, in_file: Content, whole: Content | None = None, without: str = "") -> None:
        """The sound manifest with other values of its first file, or of itself."""
        content: Content = json.loads(json.dumps(self.content))
        content["files"][0].update(in_file)
        content["files"][0].pop(without, None)
        content.update(whole or {})
        self.manifest.write_text(json.dumps(content).replace("{outside}", str(self.outside)))

    def assert_refused(self, what: object) -> None:
        with self.subTest(what):
            error = self.assertRaises(ArchiveError, Archive(self.lake).manifests)
            self.assertTrue(str(error).isprintable(), repr(str(error)))
            self.assertIn("is not a manifest", str(error))

    def test_no_field_is_believed(self) -> None:
        Archive(self.lake).manifests()
        for name, values in FILE.items():
            for value in values:
                self.write({name: value})
                self.assert_refused((name, value))
            self.write({}, without=name)
            if name != "merged":
                self.assert_refused(f"no {name}")
        for name, values in WHOLE.items():
            for value in values:
                self.write({}, {name: value})
                self.assert_refused((name, value))
        for text in ("", "[]", "5", "null", '"x"', "{}", "[" * 100_000, '{"start": NaN}'):
            self.manifest.write_text(text)
            self.assert_refused(text[:20])

    def test_each_job_refuses_and_touches_nothing_else(self) -> None:
        for value in ("../victim.parquet", str(self.victim)):
            self.write({"path": value})
            for arguments in COMMANDS:
                with self.subTest(arguments[0], path=value):
                    filled = [each.format(lake=self.lake, store=self.store, outside=self.outside) for each in arguments]
                    status, said = self.run_job(*filled)
                    self.assertNotEqual(status, 0)
                    self.assertIn("is not a manifest", said)
                    self.assertEqual(len(said.strip().splitlines()), 1, said)
                    self.assertEqual(self.victim.read_bytes(), b"mine")

    def test_what_an_unfinished_job_left_is_not_believed_either(self) -> None:
        folder = self.lake / "_manifest" / "replacing"
        folder.mkdir()
        sound = {"manifests": [], "files": [], "keeps_rows": True}
        for name, value in (
            ("files", ["../victim.parquet"]),
            ("files", [str(self.victim)]),
            ("files", "x"),
            ("manifests", ["../../victim.parquet"]),
            ("manifests", ["tables.json"]),
            ("manifests", 5),
        ):
            (folder / self.manifest.name).write_text(json.dumps({**sound, name: value}))
            with self.subTest(name, value=value):
                status, said = self.run_job("expire", self.lake, "--older-than", "0d")
                self.assertEqual((status, len(said.strip().splitlines())), (1, 1), said)
                self.assertEqual(self.victim.read_bytes(), b"mine")

    def test_a_link_to_a_folder_leads_to_no_file_elsewhere(self) -> None:
        """An archive that somebody else has packed may have links. A job removes only what is in the archive itself."""
        self.write({"path": "date=2026-11-21/victim.parquet"})
        (self.lake / "date=2026-11-21").symlink_to(self.outside, target_is_directory=True)
        for arguments in (("expire", self.lake, "--older-than", "0d"), ("expire", self.lake, "--older-than", "0d")):
            status, said = self.run_job(*arguments)
            self.assertEqual((status, len(said.strip().splitlines())), (1, 1), said)
            self.assertIn("date=2026-11-21 is a link", said)
            self.assertEqual(self.victim.read_bytes(), b"mine")
        folder = self.lake / "_manifest" / "replacing"
        folder.mkdir(exist_ok=True)
        intent = {"manifests": [], "files": ["date=2026-11-21/victim.parquet"], "keeps_rows": True}
        (folder / self.manifest.name).write_text(json.dumps(intent))
        self.manifest.write_text(json.dumps(self.content))
        self.assertEqual(self.run_job("expire", self.lake, "--older-than", "0d")[0], 1)
        self.assertEqual(self.victim.read_bytes(), b"mine")

    def test_tables_are_names_of_files(self) -> None:
        tables = self.lake / "_manifest" / "tables.json"
        hostile: list[Any] = [{"tables": {"../x.json": "{}"}}, {"tables": {"a\0": ""}}, {"tables": "x"}, [], {}]
        for content in hostile:
            tables.write_text(json.dumps(content))
            self.assertRaises(ArchiveError, Archive(self.lake).tables)

    def test_names_are_ranges_of_a_log(self) -> None:
        for name in (f"{2**63}-{2**63}.json", "5-3.json", f"{'9' * 30}-{'9' * 30}.json"):
            self.assertRaises(ArchiveError, range_of, Path(name))
