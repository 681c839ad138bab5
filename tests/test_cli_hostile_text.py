"""What commands print of bytes that strangers have written: a terminal obeys nothing of it."""

import json
import os
from dataclasses import replace

from rmqha.store.messagestore import ABORT_FILE
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.testing.records import lay_segments, make_record, write_segments
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from tests.fixtures import new_folder
from tests.test_cli import CommandTestCase

HOSTILE = "x\x1b[2J\x07\r\n\x9b31m\u202egnp.\u2028y"
ESCAPED = r"x\x1b[2J\x07\r\n\x9b31m\u202egnp.\u2028y"
SEGMENT_SIZE = 16384


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
