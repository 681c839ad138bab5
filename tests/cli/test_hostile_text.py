"""What commands print of bytes that strangers have written: a terminal obeys nothing of it."""

import ast
import json
import os
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rmqha import cli
from rmqha.cli.brokers import print_body
from rmqha.pipeline import cli as jobs_cli
from rmqha.store.examining import ABORT_FILE
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline import commands
from rmqha.testing.records import lay_segments, make_record, write_segments
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from tests.cli.test_cli import CommandTestCase
from tests.fixtures import new_folder

HOSTILE = "x\x1b[2J\x07\r\n\x9b31m\u202egnp.\u2028y"
ESCAPED = r"x\x1b[2J\x07\r\n\x9b31m\u202egnp.\u2028y"
SEGMENT_SIZE = 16384
PRINTERS = {
    ("commands.py", "say"),
    ("shared.py", "print_json"),
    ("brokers.py", "print_body"),
    ("tables.py", "print_table"),
    ("cli.py", "_print_json"),
    ("doctor.py", "_tell"),  # it escapes, and wraps long lines
    ("lag.py", "lag"),  # JSON, and a text of its own
    ("cluster.py", "_give"),  # JSON
    ("__init__.py", "_version"),  # words of our own
}
"""Who prints, and escapes what it prints."""


def record_of_stranger(number: int, offset: int) -> Record:
    record = make_record(number, HOSTILE.encode(), topic=HOSTILE, physical_offset=offset)
    return replace(record, properties_stored=format_properties({"TAGS": HOSTILE, "KEYS": HOSTILE, HOSTILE: HOSTILE}))


class HostileTextTests(CommandTestCase):
    def setUp(self) -> None:
        self.hostile_store = new_folder(self) / "store"
        segments = lay_segments(record_of_stranger, 2000, SEGMENT_SIZE)
        write_segments(self.hostile_store / "commitlog", segments, SEGMENT_SIZE)
        (self.hostile_store / ABORT_FILE).touch()
        assert self.run_command("rebuild", self.hostile_store, "--set=maxHashSlotNum=50").exit_code == 0

    def assert_harmless(self, output: str) -> None:
        for line in output.split("\n"):
            self.assertTrue(line.isprintable(), ascii(line))

    def test_dump_escapes_topics_tags_and_keys(self) -> None:
        output = self.output_of("dump", self.hostile_store, "-n", 1, "--body")
        self.assert_harmless(output)
        self.assertEqual(output.count("\n"), 1)
        self.assertIn(f"{ESCAPED} queue 0", output)
        self.assertIn(f"TAGS={ESCAPED} KEYS={ESCAPED}", output)

    def test_json_of_dump_means_the_same_and_is_harmless(self) -> None:
        output = self.output_of("dump", self.hostile_store, "-n", 1, "--json")
        self.assert_harmless(output)
        found = json.loads(output)
        self.assertEqual((found["topic"], found["properties"][HOSTILE]), (HOSTILE, HOSTILE))

    def test_queues_escapes_topics(self) -> None:
        self.assert_harmless(self.output_of("queues", self.hostile_store, "--json"))
        output = self.output_of("queues", self.hostile_store)
        self.assert_harmless(output)
        self.assertIn(f"{ESCAPED} 0: 0 to", output)

    def test_status_escapes_what_master_and_slaves_have_said(self) -> None:
        state = NodeState(
            "1f" * 16,
            role="SLAVE",
            state="DIVERGED",
            offsets=Offsets(0, 10, 10, 10, 10),
            master=HOSTILE,
            reason=HOSTILE,
            tables={"inSync": False, "since": "now", "reason": HOSTILE},
            peers=({"address": HOSTILE, HOSTILE: HOSTILE},),
            warnings=(HOSTILE,),
        )
        state.write(self.hostile_store)
        result = self.run_command("status", self.hostile_store)
        self.assert_harmless(result.output)
        self.assertIn(ESCAPED, result.stdout)

    def test_an_error_escapes_what_it_quotes(self) -> None:
        name = os.fsdecode(b"no\x1b[2J\xff\nstore")
        self.assertEqual(self.complaint(2, "verify", name), r"no\x1b[2J\udcff\nstore: there is no such store")

    def test_verify_recover_and_jobs_are_harmless(self) -> None:
        for command in (["verify"], ["recover"], ["restore-cut"], ["job", "verify"], ["job", "stats"]):
            with self.subTest(command):
                self.assert_harmless(self.run_command(*command, self.hostile_store).output)

    def test_bodies_do_not_reach_a_terminal_as_they_are(self) -> None:
        """A pipe or a file gets the bytes."""
        record = replace(record_of_stranger(0, 0), body=b"\x1b]52;c;AAAA\x07\xff\n\xc3\xa9")

        class Terminal(StringIO):
            def isatty(self) -> bool:
                return True

        escaped = "\\x1b]52;c;AAAA\\x07\\udcff\\n\u00e9\n"
        for stdout, expected in ((Terminal(), escaped), (BytesIO(), record.body + b"\n")):
            out: Any = stdout if isinstance(stdout, Terminal) else TextIOWrapper(stdout)
            with patch("sys.stdout", out):
                print_body(record)
                out.flush()
                self.assertEqual(stdout.getvalue(), expected)

    def test_nothing_is_printed_without_a_look_at_it(self) -> None:
        """Commands print with ``say``, ``print_json`` and ``print_table``, which escape. These are the exceptions."""
        found = set()
        for path in [*Path(cli.__file__).parent.glob("*.py"), Path(jobs_cli.__file__), Path(commands.__file__)]:
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    calls = [ast.unparse(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)]
                    found |= {(path.name, function.name) for call in calls if call in ("click.echo", "print")}
        self.assertEqual(found, PRINTERS)
