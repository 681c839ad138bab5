"""``rmqha job NAME …``: what it prints, and with which status it ends."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.kit.times import iso_time
from rmqha.pipeline.jobs.archive import archive
from rmqha.pipeline.jobs.engine import LocalEngine
from rmqha.pipeline.jobs.manifest import Archive
from rmqha.pipeline.options import KNOWN, PARSERS
from rmqha.pipeline.session import SUBMITTED, JavaError
from rmqha.testing.records import make_record
from tests.fixtures import expected as read_by_java
from tests.fixtures import facts, max_offset, new_folder, unpacked
from tests.pipeline import stores
from tests.pipeline.lake import SEGMENT_SIZE, archived_offsets, make_store, overwrite

JOBS = ("verify", "compare", "stats", "archive", "rebuild")


class JobTests(SynchronousTestCase):
    def run_job(self, *arguments: object) -> Result:
        return CliRunner().invoke(main, ["job", *(str(argument) for argument in arguments)])

    def output_of(self, *arguments: object) -> str:
        result = self.run_job(*arguments)
        self.assertEqual((result.exit_code, result.stderr), (0, ""), result.output)
        return result.stdout

    def json_of(self, *arguments: object) -> Any:
        return json.loads(self.output_of(*arguments, "--json"))

    def complaint(self, status: int, *arguments: object) -> str:
        """What a job that ends with this status says: one line."""
        result = self.run_job(*arguments)
        self.assertEqual(result.exit_code, status, result.output)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        return result.stderr.strip().removeprefix("rmqha: ")

    def test_verify_proves_a_java_store(self) -> None:
        store, end = unpacked("slave"), max_offset("slave")
        told = f"{facts()['records']} sound messages from 0 to {end}\n31 queues agree with the log up to {end}\n"
        self.assertEqual(self.output_of("verify", store), told)
        self.assertEqual(self.json_of("verify", store)["messages"], facts()["records"])

    def test_verify_ends_with_1_where_something_is_no_record(self) -> None:
        store = make_store(new_folder(self) / "store")
        overwrite(store, 20_100, b"\xff\x00\xff\x00")
        self.assertRegex(
            self.complaint(1, "verify", store), rf"^{store} at \d+: .*: 'rmqha repair {store} --from REPLICA'"
        )

    def test_compare_ends_with_1_where_the_logs_differ(self) -> None:
        folder = new_folder(self)
        store, longer = make_store(folder / "store"), make_store(folder / "longer", 80_000)
        self.assertIn("identical from 0 to", self.output_of("compare", store, "--against", store))
        self.assertIn("is a prefix of", self.output_of("compare", store, "--against", longer))
        line = self.complaint(1, "compare", store, "--against", longer, "--exact")
        self.assertIn("equal up to the end of one", line)
        other = make_store(folder / "other", seed=2)
        self.assertIn("the logs differ at ", self.complaint(1, "compare", store, "--against", other))

    def test_stats_are_a_table_and_json(self) -> None:
        self.assertIn("TOrder1", self.output_of("stats", unpacked("slave")))
        found = self.json_of("stats", unpacked("slave"))
        self.assertEqual(sum(topic["messages"] for topic in found.values()), facts()["records"])

    def test_a_topics_name_is_no_markup(self) -> None:
        store = new_folder(self) / "store"
        stores.make_store(store, [replace(make_record(0, b"b"), topic="[red]A[/red]")])
        self.assertIn(" [red]A[/red] ", self.output_of("stats", store))

    @pytest.mark.long
    def test_a_chart_is_of_the_kind_that_its_name_says(self) -> None:
        folder = new_folder(self)
        for name, beginning in (("c.png", b"\x89PNG"), ("c.svg", b"<?xml"), ("c.html", b"<!DOCTYPE html>")):
            self.output_of("stats", unpacked("slave"), "--chart", folder / name)
            content = (folder / name).read_bytes()
            self.assertEqual(content[: len(beginning)], beginning)
            if name != "c.png":
                self.assertIn(b"TOrder1", content)

    def test_a_chart_that_cannot_be_is_told_before_any_work(self) -> None:
        folder = new_folder(self)
        with mock.patch.object(LocalEngine, "run", side_effect=AssertionError("work was done")):
            told = self.complaint(2, "stats", unpacked("slave"), "--chart", folder / "c.gif")
            self.assertIn("c.gif: a chart is a file named .png, .svg or .html", told)
            missing = folder / "missing" / "c.png"
            self.assertIn("No such file", self.complaint(8, "stats", unpacked("slave"), "--chart", missing))
            with mock.patch.dict(sys.modules, {"matplotlib": None, "rmqha.pipeline.jobs.chart": None}):
                told = self.complaint(2, "stats", unpacked("slave"), "--chart", folder / "c.png")
            self.assertIn("pip install 'rmqha[spark]'", told)

    def test_without_a_chart_nobody_needs_matplotlib(self) -> None:
        with mock.patch.dict(sys.modules, {"matplotlib": None, "rmqha.pipeline.jobs.chart": None}):
            self.assertIn("TOrder1", self.output_of("stats", unpacked("slave")))

    def test_archive_tells_what_was_added(self) -> None:
        lake = new_folder(self) / "lake"
        arguments = ("archive", unpacked("slave"), "--output", lake, "-o", "splitBytes=1m")
        done = self.json_of(*arguments)
        self.assertEqual((done["messages"], done["from"], done["to"]), (facts()["records"], 0, max_offset("slave")))
        self.assertEqual(len(archived_offsets(lake)), facts()["records"])
        self.assertIn("0 messages", self.output_of(*arguments))

    def test_an_archive_of_topics_is_no_whole_archive(self) -> None:
        lake = new_folder(self) / "lake"
        offsets = [one["physicalOffset"] for one in read_by_java() if one.get("topic") == "TOrder1"]
        arguments = ("archive", unpacked("slave"), "--output", lake)
        self.assertIn(f"{len(offsets)} messages", self.output_of(*arguments, "--topic", "TOrder1"))
        self.assertEqual(archived_offsets(lake), offsets)
        self.assertIn("topic=TOrder1, and not all messages", self.complaint(2, *arguments))
        told = self.complaint(1, "restore", lake, "--output", lake.parent / "again", "--lossy")
        self.assertIn("holds only messages with topic=TOrder1", told)

    def test_an_archive_of_another_store_is_told_of(self) -> None:
        folder = new_folder(self)
        store = folder / "store"
        records = stores.make_store(store, stores.plain_records(60))
        stores.write_state(store, records[20].physical_offset, store_id="one")
        arguments = ("archive", store, "--output", folder / "lake")
        self.output_of(*arguments)
        stores.write_state(store, records[10].physical_offset, store_id="two")
        self.assertIn("nothing is new", self.output_of(*arguments))
        stores.write_state(store, stores.end_of(records), store_id="two")
        told, end = self.output_of(*arguments), records[20].physical_offset
        self.assertIn(f"was the archive of another store: its log is the same from 0 to {end}", told)

    def test_an_archive_in_use_ends_with_9(self) -> None:
        lake = new_folder(self) / "lake"
        with Archive(lake).job_locked():
            self.assertIn("another process", self.complaint(9, "archive", unpacked("slave"), "--output", lake))

    def test_rebuild_tells_what_it_built(self) -> None:
        output = new_folder(self) / "built"
        queues = len(list((unpacked("slave") / "consumequeue").glob("*/*")))
        told = self.output_of("rebuild", unpacked("slave"), "--output", output)
        self.assertRegex(told, rf"^{queues} queues and \d+ keys of {facts()['records']} messages from 0 to \d+\n")
        self.assertEqual(sorted(path.name for path in output.iterdir()), ["consumequeue", "index"])

    def test_what_cannot_be_asked_ends_with_2(self) -> None:
        store = unpacked("slave")
        self.assertRegex(
            self.complaint(2, "verify", store, "-o", "colour=red"), r"no option colour; the options are .*splitBytes"
        )
        self.assertIn("NAME=VALUE", self.complaint(2, "verify", store, "-o", "splitBytes"))
        self.assertIn(
            "--master needs --engine spark", self.complaint(2, "verify", store, "--engine=local", "--master=x")
        )

    def test_an_option_that_a_job_would_not_heed_is_refused(self) -> None:
        store = unpacked("slave")
        self.assertIn(
            "compare has no option Topic;", self.complaint(2, "compare", store, "-oTopic=T", "--against", store)
        )
        self.assertIn(
            "rebuild has no option startingOffset;", self.complaint(2, "rebuild", store, "-ostartingOffset=5")
        )
        self.assertIn("verify has no option readUpTo;", self.complaint(2, "verify", store, "-oreadUpTo=written"))
        self.assertIn("verify has no option path;", self.complaint(2, "verify", store, "-opath=/elsewhere"))

    def test_the_help_tells_the_names_of_the_options_that_a_job_heeds(self) -> None:
        told = set()
        for command in JOBS:
            words = self.output_of(command, "--help").split()
            heeded = {name for name in KNOWN if name in words}
            self.assertLessEqual({"splitBytes"} if command == "verify" else {"readUpTo", "splitBytes"}, heeded)
            told |= heeded
        streams = {name for name in PARSERS if name.endswith(("PerTrigger", "TriggerDelay"))}
        told_by_the_command_itself = {"path", "view", "replica", "output", "pushdown"}
        self.assertEqual(told | streams | told_by_the_command_itself, set(KNOWN))

    def test_jobs_that_read_files_refuse_brokers(self) -> None:
        for command in ("verify", "rebuild"):
            said = self.complaint(2, command, "rmqha://127.0.0.1:1")
            self.assertIn(f"{command} needs a store; over the network: stats, archive", said)
        self.assertIn("cannot connect to 127.0.0.1:1", self.complaint(7, "stats", "rmqha://127.0.0.1:2"))

    def test_the_default_engine_is_sparks_where_spark_is_meant(self) -> None:
        for environ, arguments, expected in (
            ({}, (), []),
            ({}, ("--master", "local[3]"), ["local[3]"]),
            ({SUBMITTED: "5"}, (), [None]),
            ({SUBMITTED: "5"}, ("--engine", "local"), []),
        ):
            masters: list[str | None] = []

            def session(master: str | None, masters: list[str | None] = masters) -> None:
                masters.append(master)
                raise JavaError("no Java here")

            with mock.patch("rmqha.pipeline.session.session", session), mock.patch.dict(os.environ, environ):
                self.assertEqual(self.run_job("verify", unpacked("slave"), *arguments).exit_code, 2 if expected else 0)
            self.assertEqual(masters, expected)

    def test_what_is_no_store_is_wrong_usage(self) -> None:
        self.assertIn("is not a store", self.complaint(2, "verify", new_folder(self)))
        self.assertIn("is not a folder", self.complaint(2, "stats", "/nope"))

    def test_an_archive_of_another_log_is_wrong_usage(self) -> None:
        folder = new_folder(self)
        one, other = (make_store(folder / str(seed), seed=seed) for seed in (1, 2))
        self.output_of("archive", one, "--output", folder / "lake", "-o", "endingOffset=16384")
        self.assertIn("differs from it at 0", self.complaint(2, "archive", other, "--output", folder / "lake"))

    def test_compact_says_what_became_of_what(self) -> None:
        lake = self.archived()
        before = sorted(lake.rglob("*.parquet"))
        told = self.output_of("compact", lake, "--dry-run")
        self.assertRegex(told, rf"{len(before)} files of {lake} would become 4, and 1 manifests 1: 122 messages, ")
        self.assertIn("nothing was changed", told)
        self.assertEqual(sorted(lake.rglob("*.parquet")), before)
        told = self.output_of("compact", lake, "--target", "1m", "-o", "compression=snappy")
        self.assertRegex(
            told, r"files of .* became 4, .*\n.* MiB of Parquet became .*MB/s of log, with .* processor time\n$"
        )
        self.assertEqual(self.output_of("compact", lake), f"nothing to compact in {lake}\n")
        self.assertEqual(self.json_of("compact", lake)["filesBefore"], 0)
        self.assertIn("--target 1x: it is not a number", self.complaint(2, "compact", lake, "--target", "1x"))
        self.assertIn("between 1 byte and 1g", self.complaint(2, "compact", lake, "--target", "2g"))
        self.assertIn("has no option", self.complaint(2, "compact", lake, "-o", "topic=T"))
        self.assertIn("is not an archive", self.complaint(2, "compact", lake / "none"))

    def archived(self) -> Path:
        folder = new_folder(self)
        lake = folder / "lake"
        self.output_of("archive", make_store(folder / "store"), "--output", lake, "-o", "splitBytes=5000")
        return lake

    def test_expire_says_what_goes_and_where_a_restore_begins(self) -> None:
        lake = self.archived()
        files = [file for one in Archive(lake).manifests() for file in one.files]
        at = iso_time(files[0].max_store_timestamp + 1)
        oldest = iso_time(min(file.min_store_timestamp for file in files[1:]))
        told = self.output_of("expire", lake, "--older-than", at, "--dry-run")
        self.assertIn(f"would remove 1 files with {files[0].rows} messages, 0 MiB, from 0 to {files[1].start}\n", told)
        self.assertIn(f"the oldest message left was stored at {oldest}\n", told)
        self.assertIn(f"a restore needs --whole-segments now, and starts at {SEGMENT_SIZE}\n", told)
        self.assertEqual(self.json_of("expire", lake, "--older-than", at)["messages"], files[0].rows)
        self.assertIn(f"nothing of {lake} is that old", self.output_of("expire", lake, "--older-than", at))
        self.assertIn("no message is left", self.output_of("expire", lake, "--older-than", "0d"))
        for wrong in ("30x", "soon", "d"):
            complaint = self.complaint(2, "expire", lake, "--older-than", wrong)
            self.assertIn("it is neither an age such as 30d, nor a time", complaint)

    def test_a_table_whose_package_is_missing_ends_with_2_and_the_remedy(self) -> None:
        folder = new_folder(self)
        arguments = ("archive", make_store(folder / "store"), "--output", folder / "lake", "--table", "delta")
        with mock.patch.dict(sys.modules, {"deltalake": None}):
            sys.modules.pop("rmqha.pipeline.jobs.delta", None)
            self.assertIn("pip install 'rmqha[delta]'", self.complaint(2, *arguments))

    def test_times_are_taken_as_people_write_them(self) -> None:
        store = unpacked("slave")
        all_of_it = self.json_of("stats", store)
        since = iso_time(min(one["firstStoreTimestamp"] for one in all_of_it.values()))
        self.assertEqual(self.json_of("stats", store, "-o", f"startingTimestamp={since}"), all_of_it)
        self.assertIn("no zone", self.complaint(2, "stats", store, "-o", "startingTimestamp=2026-11-20T20:18:13"))
        self.assertIn("milliseconds since 1970", self.complaint(2, "stats", store, "-o", "endingTimestamp=yesterday"))

    def test_ctrl_c_ends_with_130(self) -> None:
        for name in ("verify", "stats"):
            with mock.patch(f"rmqha.pipeline.jobs.{name}.{name}", side_effect=KeyboardInterrupt):
                self.assertEqual(self.complaint(130, name, unpacked("slave")), "interrupted")

    def test_ctrl_c_leaves_an_archive_that_is_gone_on_with(self) -> None:
        lake = new_folder(self) / "lake"
        whole, runs = LocalEngine.run, 0

        def run(*arguments: Any) -> Any:
            nonlocal runs
            runs += 1
            if runs == 2:
                raise KeyboardInterrupt
            return whole(*arguments)

        store = make_store(new_folder(self) / "store")
        arguments = ("archive", store, "--output", lake)
        by_segments = partial(archive, commit_bytes=SEGMENT_SIZE)
        with mock.patch.object(LocalEngine, "run", run), mock.patch("rmqha.pipeline.jobs.archive.archive", by_segments):
            self.assertEqual(self.complaint(130, *arguments), "interrupted")
        archived = len(archived_offsets(lake))
        self.assertGreater(archived, 0)
        self.assertEqual(self.json_of(*arguments)["messages"] + archived, self.json_of("verify", store)["messages"])

    def test_a_narrow_terminal_gets_whole_numbers(self) -> None:
        """Of 80 columns, and of as few as 40."""
        store = new_folder(self) / "store"
        stores.make_store(store, stores.plain_records(1300, body_bytes=10), 1 << 20)
        (found,) = self.json_of("stats", store).values()
        for width in (200, 80, 60, 40):
            with mock.patch("rmqha.pipeline.cli.WIDE", width):
                told = self.run_job("stats", store).stdout
            self.assertIn(f"{found['messages']:,}", told)
            self.assertNotIn("…", told)
            self.assertLessEqual(max(map(len, told.splitlines())), width)

    def test_an_error_of_spark_is_one_line(self) -> None:
        text = (
            "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted: \n"
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: [Errno 28] no space\n\tat a.b.C'
        )
        with mock.patch("rmqha.pipeline.jobs.verify.verify", side_effect=PySparkException(text)):
            complaint = self.complaint(8, "verify", unpacked("slave"))
            self.assertEqual(complaint, "Spark: OSError: [Errno 28] no space (RMQHA_DEBUG=1 shows the whole error)")
            with mock.patch.dict(os.environ, RMQHA_DEBUG="1"):
                self.assertIsInstance(self.run_job("verify", unpacked("slave")).exception, PySparkException)

    @pytest.mark.process
    def test_java_that_is_missing_or_too_old_ends_with_2_and_the_remedy(self) -> None:
        home = new_folder(self)
        (home / "bin").mkdir()
        java = home / "bin" / "java"
        java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
        java.chmod(0o755)
        spark = ("verify", unpacked("slave"), "--engine", "spark")
        with mock.patch.dict(os.environ, JAVA_HOME=str(home)):
            self.assertRegex(self.complaint(2, *spark), r"is Java 11: install Java 17 or newer")
        with mock.patch.dict(os.environ, PATH="/nowhere"):
            os.environ.pop("JAVA_HOME", None)
            self.assertRegex(self.complaint(2, *spark), r"which is missing: install Java 17 or newer")

    def test_without_the_extra_it_is_said_what_to_install(self) -> None:
        with mock.patch.dict(sys.modules, {"rmqha.pipeline.options": None}):
            self.assertIn("pip install 'rmqha[spark]'", self.complaint(2, "verify", unpacked("slave")))


@pytest.mark.process
def test_the_jobs_run_without_the_rmqha_command_and_without_twisted() -> None:
    """As ``spark-submit`` starts them: a file."""
    entry = Path(__file__).parents[2] / "rmqha" / "pipeline" / "__main__.py"
    script = (
        "import runpy, sys\n"
        "try: runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
        "finally: print('twisted' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, entry, "verify", unpacked("slave")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["False"]), done.stderr
