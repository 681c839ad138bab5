"""The ``rmqha`` command: what it prints, and with which status it ends."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from twisted.trial.unittest import SynchronousTestCase

from rmqha import __version__
from rmqha.cli import main
from rmqha.ha.slave.contact import iso_of
from rmqha.kit.times import iso_time
from rmqha.settings.settings import make_settings
from rmqha.store.errors import UnsupportedStore
from rmqha.store.examining import ABORT_FILE, LOCK_FILE
from rmqha.store.log.lockfile import LockFile
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.testing.records import write_log
from rmqha.wire.compiled import implementation
from rmqha.wire.record import Record
from tests.commands import RMQHA, rmqha
from tests.fixtures import copy_of, expected, expected_clean_extra, max_offset, new_folder, open_files, unpacked
from tests.waiting import WAIT_SECONDS

SEGMENT_SIZE = 16384
LOG_BYTES = 60_000
BODY_BYTES = 300


class CommandTestCase(SynchronousTestCase):
    def run_command(self, *arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    def output_of(self, *arguments: object) -> str:
        """What a command that ends well prints."""
        result = self.run_command(*arguments)
        self.assertEqual((result.exit_code, result.stderr), (0, ""), result.output)
        return result.stdout

    def json_of(self, *arguments: object) -> Any:
        return json.loads(self.output_of(*arguments, "--json"))

    def json_with(self, status: int, *arguments: object) -> Any:
        """What a command prints that ends with this status."""
        result = self.run_command(*arguments, "--json")
        self.assertEqual(result.exit_code, status, result.output)
        return json.loads(result.stdout)

    def complaint(self, status: int, *arguments: object) -> str:
        """What a command that ends with this status says: one line."""
        result = self.run_command(*arguments)
        self.assertEqual(result.exit_code, status, result.output)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("rmqha: "), result.stderr)
        return result.stderr.strip().removeprefix("rmqha: ")

    def store(self, log_bytes: int = LOG_BYTES, seed: int = 1) -> Path:
        """A store of several small segments, as a dead process leaves it."""
        store = new_folder(self) / "store"
        write_log(store / "commitlog", log_bytes, BODY_BYTES, SEGMENT_SIZE, seed)
        return store


def offset_of(line: dict[str, Any]) -> int:
    """Of a line of the fixtures: a record's or a blank's."""
    return int(line["physicalOffset"] if "physicalOffset" in line else line["offset"])


def records_of(store: Path) -> list[tuple[int, Record]]:
    reader = StoreReader(store)
    try:
        return [(at, record) for at, record in reader.records(0, None) if isinstance(record, Record)]
    finally:
        reader.close()


def segment_of(store: Path, offset: int) -> Path:
    return store / "commitlog" / f"{offset - offset % SEGMENT_SIZE:020d}"


def patch_byte(store: Path, offset: int, change: Callable[[int], int]) -> None:
    """Change one byte of the log."""
    with segment_of(store, offset).open("r+b") as file:
        file.seek(offset % SEGMENT_SIZE)
        (old,) = file.read(1)
        file.seek(offset % SEGMENT_SIZE)
        file.write(bytes([change(old)]))


def flip_bit(store: Path, offset: int, bit: int = 0) -> None:
    patch_byte(store, offset, lambda old: old ^ (1 << bit))


class UsageTests(CommandTestCase):
    def test_help_tells_commands_and_exit_codes(self) -> None:
        text = " ".join(self.output_of("--help").split())
        for word in ("dump", "verify", "recover", "status", "put", "pull", "store or archive in use"):
            self.assertIn(word, text)
        for command in ("dump", "verify", "recover", "status"):
            self.assertIn("--json", self.output_of(command, "-h"))

    def test_version(self) -> None:
        self.assertEqual(self.output_of("--version"), f"rmqha, version {__version__} ({implementation()})\n")

    def test_wrong_usage_is_status_2(self) -> None:
        for arguments in (
            ["verify"],
            ["nonsense"],
            ["dump", unpacked("slave"), "--from=-1"],
            ["dump", unpacked("slave"), "--to=x"],
            ["status"],
            ["verify", unpacked("slave"), "--color"],
        ):
            with self.subTest(arguments):
                self.assertEqual(self.run_command(*arguments).exit_code, 2)

    def test_a_store_that_is_not_there_is_status_2(self) -> None:
        for command in ("dump", "verify", "recover"):
            with self.subTest(command):
                self.assertEqual(self.complaint(2, command, "/no/store"), "/no/store: there is no such store")

    def test_a_folder_that_is_no_store_is_named(self) -> None:
        folder = new_folder(self)
        (folder / "notes.txt").write_text("")
        for command in ("dump", "verify", "status"):
            with self.subTest(command):
                self.assertEqual(self.complaint(2, command, folder), f"{folder} is not a store: it has no commitlog")


class DumpTests(CommandTestCase):
    def lines(self, *arguments: object) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output_of("dump", *arguments, "--json").splitlines()]

    @pytest.mark.long
    def test_every_record_is_as_java_reads_it(self) -> None:
        self.assertEqual(self.lines(unpacked("master-crash")), expected())
        self.assertEqual(self.lines(unpacked("slave")), expected())
        self.assertEqual(self.lines(unpacked("master-clean")), [*expected(), *expected_clean_extra()])

    @pytest.mark.long
    def test_the_folder_of_segments_will_do(self) -> None:
        self.assertEqual(self.lines(unpacked("slave") / "commitlog"), expected())

    def test_from_and_to_choose_whole_records(self) -> None:
        offsets = [offset_of(line) for line in expected()]
        some = offsets[1200]
        for start, end in (
            (some, some),
            (some, some + 1),
            (some + 1, offsets[1210]),
            (some, offsets[1210] + 1),
            (262144, 524288),
            (offsets[-1], 10**12),
            (offsets[-1] + 1, 10**12),
            (10**12, 10**13),
            (0, 0),
        ):
            with self.subTest((start, end)):
                wanted = [line for line, at in zip(expected(), offsets, strict=True) if start <= at < end]
                self.assertEqual(self.lines(unpacked("slave"), f"--from={start}", f"--to={end}"), wanted)

    def test_one_topic_only(self) -> None:
        for topic in ("TPay-4", "%RETRY%CG_retry", "no such topic"):
            with self.subTest(topic):
                wanted = [line for line in expected() if line.get("topic") == topic]
                self.assertEqual(self.lines(unpacked("slave"), "--topic", topic), wanted)

    def test_text_is_one_line_a_record(self) -> None:
        lines = self.output_of("dump", unpacked("slave"), "--to=262144").splitlines()
        self.assertEqual(len(lines), sum(offset_of(line) < 262144 for line in expected()))
        self.assertEqual(
            lines[0],
            f"{0:>20}  TTelemetry_8 queue 3 offset 0  100 bytes  2026-11-20T20:18:13.844Z  TAGS=TagB KEYS=key498",
        )
        self.assertEqual(lines[-1].strip(), "185821  blank of 76323 bytes")

    @pytest.mark.long
    def test_the_first_and_the_last_of_them(self) -> None:
        store, whole = unpacked("slave"), expected()
        for count in (0, 1, 5, 700, len(whole), 10**6):
            with self.subTest(count):
                self.assertEqual(self.lines(store, "-n", count), whole[:count])
                self.assertEqual(self.lines(store, "--tail", count), whole[max(0, len(whole) - count) :])
        of_topic = [line for line in whole if line.get("topic") == "TPay-4"]
        self.assertEqual(self.lines(store, "--topic=TPay-4", "--tail=3"), of_topic[-3:])
        self.assertEqual(self.lines(store, f"--from={offset_of(whole[-2])}", "--tail=3"), whole[-2:])
        self.complaint(2, "dump", store, "-n", 1, "--tail", 1)

    @pytest.mark.long
    def test_from_a_time(self) -> None:
        """From the first message that was stored then or later, as Java's records have it."""
        store, whole = unpacked("slave"), expected()
        for number in (0, 1, len(whole) // 2, len(whole) - 2):
            time = whole[number].get("storeTimestamp") or whole[number - 1]["storeTimestamp"]
            first = next(place for place, line in enumerate(whole) if line.get("storeTimestamp", 0) >= time)
            with self.subTest(time):
                self.assertEqual(self.lines(store, f"--from={iso_time(time)}"), whole[first:])
        self.assertEqual(self.lines(store, "--from=2100-01-01T00:00:00Z"), [])
        result = self.run_command("dump", store, "--from=2026-11-20T20:18:13")
        self.assertEqual(result.exit_code, 2)
        self.assertIn("has no zone", result.stderr)

    def test_bodies_are_shown_on_demand(self) -> None:
        line = self.output_of("dump", self.store(), "-n", 1, "--body").rstrip("\n")
        self.assertTrue(line.isprintable() and line.endswith("…"), line)

    @pytest.mark.process
    def test_ctrl_c_while_a_broker_does_not_answer_ends_with_130(self) -> None:
        """If we stand still for longer than the command waits, it has ended by itself: then we try again."""
        for _ in range(20):
            status, said = self.interrupted_at_a_deaf_broker()
            if status != 7:
                break
        self.assertEqual((status, said), (130, b"rmqha: interrupted\n"))

    def interrupted_at_a_deaf_broker(self) -> tuple[int, bytes]:
        """The exit status, and what is said on stderr."""
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            command = [RMQHA, "status", f"127.0.0.1:{deaf.getsockname()[1]}"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                connection, _ = deaf.accept()
                with connection:
                    self.assertTrue(connection.recv(1))
                    process.send_signal(signal.SIGINT)
                    output, said = process.communicate()
            self.assertEqual(output, b"")
            return process.returncode, said

    @pytest.mark.process
    def test_ctrl_c_ends_with_130(self) -> None:
        """A dump that nobody reads on waits for ever in its write."""
        command = [RMQHA, "dump", str(unpacked("slave")), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            self.assertTrue(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            self.assertEqual(process.stderr.read(), b"rmqha: interrupted\n")
            self.assertEqual(process.wait(WAIT_SECONDS), 130)

    def test_an_empty_store_has_no_records(self) -> None:
        self.assertEqual(self.output_of("dump", new_folder(self)), "")

    def test_it_ends_with_status_1_at_what_is_no_record(self) -> None:
        store = self.store()
        at, _ = records_of(store)[5]
        flip_bit(store, at + 4)
        result = self.run_command("dump", store, "--json")
        self.assertEqual((result.exit_code, len(result.stdout.splitlines())), (1, 5))
        self.assertIn(f"the bytes at {at} are not a record: magic code", result.stderr)

    def test_all_files_are_closed_at_the_end(self) -> None:
        store = self.store()
        self.output_of("dump", store)
        self.run_command("verify", store, "--against", store)
        self.assertEqual(open_files(store), 0)

    @pytest.mark.process
    def test_a_reader_that_went_away_ends_it_quietly(self) -> None:
        for arguments in (["--json"], []):
            with self.subTest(arguments):
                command = [RMQHA, "dump", str(unpacked("slave")), *arguments]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                assert process.stdout is not None
                self.assertTrue(process.stdout.readline())
                process.stdout.close()
                assert process.stderr is not None
                with process.stderr:
                    self.assertEqual(process.stderr.read(), b"")
                self.assertEqual(process.wait(WAIT_SECONDS), 0)


class SoundTests(CommandTestCase):
    @pytest.mark.long
    def test_fixtures_are_sound(self) -> None:
        for name, messages in (("master-crash", 2301), ("slave", 2301), ("master-clean", 2303)):
            with self.subTest(name):
                text = self.output_of("verify", unpacked(name))
                self.assertTrue(text.startswith(f"{messages} sound messages from 0 to {max_offset(name)}\n"), text)
                facts = {"min": 0, "end": max_offset(name), "messages": messages, "problem": None, "live": False}
                found = self.json_of("verify", unpacked(name))
                self.assertEqual({key: found[key] for key in facts}, facts)

    def test_an_empty_store_and_one_of_zeros_are_sound(self) -> None:
        self.assertIn("0 sound messages from 0 to 0\n", self.output_of("verify", new_folder(self)))
        store = self.store()
        zeros = bytes(SEGMENT_SIZE)
        (store / "commitlog" / f"{4 * SEGMENT_SIZE:020d}").write_bytes(zeros)
        count = len(records_of(store))
        self.assertIn(f"{count} sound messages", self.output_of("verify", store))
        for path in (store / "commitlog").iterdir():
            path.write_bytes(zeros)
        self.assertIn("0 sound messages from 0 to 0\n", self.output_of("verify", store))

    def test_a_log_whose_first_segments_were_deleted(self) -> None:
        store = self.store()
        for number in range(2):
            segment_of(store, number * SEGMENT_SIZE).unlink()
        found = self.json_of("verify", store)
        self.assertEqual((found["min"], found["problem"]), (2 * SEGMENT_SIZE, None))
        self.assertGreater(found["messages"], 10)

    def test_a_segment_that_was_created_but_not_yet_sized(self) -> None:
        store = self.store()
        (store / "commitlog" / f"{4 * SEGMENT_SIZE:020d}").touch()
        self.assertIsNone(self.json_of("verify", store)["problem"])
        self.assertTrue((store / "commitlog" / f"{4 * SEGMENT_SIZE:020d}").exists())

    def test_a_store_that_another_process_has_open(self) -> None:
        store = self.store()
        records = records_of(store)
        self.addCleanup(LockFile(store / LOCK_FILE).release)
        at, _ = records[-1]
        patch_byte(store, at + 90, lambda old: old ^ 1)  # it is just being written
        found = self.json_of("verify", store)
        self.assertEqual((found["live"], found["problem"], found["end"]), (True, None, at))


class CorruptTests(CommandTestCase):
    def assert_found(self, store: Path, at: int, words: str) -> None:
        """Verify must say what is wrong, and where."""
        before = {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}
        line = self.complaint(1, "verify", store)
        self.assertIn(f"{store} at {at}: ", line)
        self.assertRegex(line, words)
        result = self.run_command("verify", store, "--json")
        found = json.loads(result.stdout)
        self.assertEqual((result.exit_code, found["badStretches"][0]["start"]), (1, at))
        self.assertRegex(found["problem"], words)
        self.assertEqual({path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}, before)

    def test_one_flipped_bit_in_a_sealed_segment_and_in_the_last_one(self) -> None:
        records = records_of(self.store())
        in_sealed = next(at for at, _ in records if at > 1.5 * SEGMENT_SIZE)
        for place, at in (("first", 0), ("sealed", in_sealed), ("last", records[-1][0])):
            for field, position, words in (
                ("size, last byte", 3, "PROPERTIESLENGTH|the parts take"),
                ("size, first byte", 0, "bytes before its segment's end"),
                ("magic", 5, "is not that of a record"),
                ("CRC", 11, "the body's CRC is"),
                ("body", 88 + 17, "the body's CRC is"),
                ("last byte of the body", 88 + BODY_BYTES - 1, "the body's CRC is"),
                ("own offset", 35, "it says its offset is"),
                ("own offset, first byte", 28, "it says its offset is"),
                ("body length", 87, "LENGTH"),
            ):
                with self.subTest(f"{field} in the {place} segment"):
                    store = self.store()
                    flip_bit(store, at + position)
                    self.assert_found(store, at, words)

    def test_each_bad_stretch_is_told_once_with_what_helps(self) -> None:
        store = self.store()
        records = records_of(store)
        for number in (20, 21, 60):
            flip_bit(store, records[number][0] + 100)
        result = self.run_command("verify", store)
        self.assertEqual(result.exit_code, 1)
        (first, end), (second, _) = (records[20][0], records[22][0]), records[60]
        self.assertRegex(
            result.stdout,
            rf"(?m)^damaged at {first}: {end - first} bytes up to {end} are .*; 38 sound messages follow$",
        )
        self.assertEqual(result.stdout.count("damaged at "), 2)
        self.assertIn(f"{len(records) - 3} sound messages from 0 to ", result.stdout)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn(
            f"and 1 more bad stretches): 'rmqha repair {store} --from REPLICA' brings them back", result.stderr
        )
        found = json.loads(self.run_command("verify", store, "--json").stdout)
        self.assertEqual([bad["start"] for bad in found["badStretches"]], [first, second])
        self.assertEqual((found["badStretchCount"], found["messages"]), (2, len(records) - 3))

    def test_of_very_many_bad_stretches_the_first_are_told(self) -> None:
        store = self.store()
        records = records_of(store)
        for at, _ in records[1:-1:2]:
            flip_bit(store, at + 100)
        result = self.run_command("verify", store)
        count = len(records[1:-1:2])
        self.assertEqual(result.stdout.count("damaged at "), 20)
        self.assertIn(f"and {count - 20} more such stretches", result.stdout)

    def test_a_negative_size(self) -> None:
        store = self.store()
        flip_bit(store, 0, bit=7)
        self.assert_found(store, 0, "too small")

    def test_a_zeroed_segment_in_the_middle(self) -> None:
        store = self.store()
        segment_of(store, SEGMENT_SIZE).write_bytes(bytes(SEGMENT_SIZE))
        self.assert_found(store, SEGMENT_SIZE, "is not that of a record")

    def test_a_torn_last_record(self) -> None:
        store = self.store()
        at, record = records_of(store)[-1]
        for offset in range(at + record.total_size // 2, at + record.total_size):
            patch_byte(store, offset, lambda _: 0)
        self.assert_found(store, at, "the parts take")

    def test_a_segment_in_anothers_place(self) -> None:
        store = self.store()
        segment_of(store, SEGMENT_SIZE).write_bytes(segment_of(store, 2 * SEGMENT_SIZE).read_bytes())
        self.assert_found(store, SEGMENT_SIZE, "it says its offset is")


class FolderTests(CommandTestCase):
    """What a folder of segments may look like after an accident: each is status 1, and names the file."""

    def setUp(self) -> None:
        self.path = self.store()
        self.log = self.path / "commitlog"

    def assert_names(self, path: Path, words: str) -> None:
        for command in ("verify", "dump", "status", "recover"):
            with self.subTest(command):
                line = self.complaint(1, command, self.path)
                self.assertIn(str(path), line)
                self.assertIn(words, line)
        self.assertFalse((self.path / ABORT_FILE).exists())

    def test_a_truncated_segment(self) -> None:
        for number in (1, 2, 3):
            with self.subTest(number):
                self.path = self.store()
                path = segment_of(self.path, number * SEGMENT_SIZE)
                os.truncate(path, 5000)
                self.assert_names(path, "has 5000 bytes, not 16384 (mappedFileSizeCommitLog)")

    def test_an_overlong_segment(self) -> None:
        path = segment_of(self.path, SEGMENT_SIZE)
        os.truncate(path, SEGMENT_SIZE + 1)
        self.assert_names(path, "has 16385 bytes, not 16384 (mappedFileSizeCommitLog)")

    def test_a_truncated_first_segment(self) -> None:
        path = segment_of(self.path, 0)
        os.truncate(path, 5000)
        self.assert_names(path, "has 5000 bytes, not 16384 (mappedFileSizeCommitLog)")

    def test_an_empty_segment_in_the_middle(self) -> None:
        path = segment_of(self.path, SEGMENT_SIZE)
        os.truncate(path, 0)
        self.assert_names(path, "has 0 bytes, not 16384 (mappedFileSizeCommitLog)")

    def test_a_missing_segment_in_the_middle(self) -> None:
        path = segment_of(self.path, SEGMENT_SIZE)
        path.unlink()
        self.assert_names(path, f"is missing; the next segment is {2 * SEGMENT_SIZE:020d}: 'rmqha repair ")

    def test_a_foreign_file(self) -> None:
        for name in ("core.1234", "00000000000000000000.bak", "1"):
            with self.subTest(name):
                self.path = self.store()
                path = self.path / "commitlog" / name
                path.write_text("x")
                self.assert_names(path, "is not a segment: move it elsewhere")

    def test_a_folder_among_the_segments(self) -> None:
        path = self.log / f"{4 * SEGMENT_SIZE:020d}"
        path.mkdir()
        self.assert_names(path, "is not a segment: move it elsewhere")

    def test_a_name_that_is_no_offset_of_a_segment(self) -> None:
        path = segment_of(self.path, 3 * SEGMENT_SIZE).rename(self.log / f"{3 * SEGMENT_SIZE + 1:020d}")
        self.assert_names(path, "the name is not a multiple of the file size 16384")

    def test_a_state_file_that_is_none(self) -> None:
        for content in (b"", b"{", b"[]", b'{"storeId": "x"}'):
            with self.subTest(content):
                self.path = self.store()
                path = self.path / "rmqha" / "state.json"
                path.parent.mkdir()
                path.write_bytes(content)
                self.assert_names(path, "is not a valid state file")
                self.assert_names(path, f"'mv {path} {path}.bad'")


class CompareTests(CommandTestCase):
    def test_identical_stores(self) -> None:
        text = self.output_of("verify", unpacked("slave"), "--against", unpacked("master-crash"))
        self.assertTrue(text.startswith("2301 sound messages from 0 to 4538033\n"), text)
        self.assertTrue(text.endswith("\nidentical from 0 to 4538033\n"), text)
        found = self.json_of("verify", unpacked("slave"), "--against", unpacked("master-crash"))
        self.assertEqual(
            found["against"],
            {
                "from": 0,
                "otherEnd": 4538033,
                "differsAt": None,
                "recordAt": None,
                "differentBytes": 0,
                "differentFills": 0,
                "identical": True,
                "relation": "identical",
            },
        )

    @pytest.mark.long
    def test_a_shorter_store_is_a_prefix(self) -> None:
        """A good backup of a store that goes on is no alarm, unless somebody asks for the very same."""
        short, long = unpacked("slave"), unpacked("master-clean")
        ends = max_offset("slave"), max_offset("master-clean")
        for one, other, relation in ((short, long, "prefix"), (long, short, "extension")):
            text = self.output_of("verify", one, "--against", other)
            self.assertIn(
                f"\n{short} is a prefix of {long}: identical from 0 to {ends[0]}, {ends[1] - ends[0]} bytes follow\n",
                text,
            )
            found = self.json_of("verify", one, "--against", other)["against"]
            self.assertEqual((found["relation"], found["identical"]), (relation, False))
        line = self.complaint(1, "verify", short, "--against", long, "--exact")
        self.assertEqual(line, "the logs are equal up to the end of one: they end at {} and {}".format(*ends))

    def test_logs_without_a_common_range_are_different(self) -> None:
        one, other = self.store(), self.store()
        for number in range(1, 4):
            segment_of(one, number * SEGMENT_SIZE).unlink()
        for number in range(3):
            segment_of(other, number * SEGMENT_SIZE).unlink()
        line = self.complaint(1, "verify", one, "--against", other)
        self.assertRegex(
            line, rf"^the logs have nothing in common: one ends at \d+, the other starts at {3 * SEGMENT_SIZE}"
        )

    def test_the_first_differing_byte_is_named(self) -> None:
        one, other = self.store(), self.store()
        at, _ = records_of(one)[70]
        flip_bit(other, at + 20)  # its queue offset, which no check covers
        self.assertEqual(
            self.complaint(1, "verify", one, "--against", other),
            f"the logs differ at {at + 20}, in the record at {at} (1 byte in all)",
        )
        result = self.run_command("verify", one, "--against", other, "--json")
        self.assertEqual(result.exit_code, 1)
        found = json.loads(result.stdout)
        self.assertEqual((found["against"]["differsAt"], found["against"]["identical"]), (at + 20, False))

    def test_what_is_wrong_with_either_store_is_told(self) -> None:
        one, other = self.store(), self.store()
        (first, _), (second, _) = records_of(one)[10], records_of(one)[20]
        flip_bit(one, first + 4)
        flip_bit(other, second + 4)
        line = self.complaint(1, "verify", one, "--against", other)
        for words in (f"{one} at {first}: magic", f"{other} at {second}: magic", f"the logs differ at {first + 4}"):
            self.assertIn(words, line)

    def test_a_replica_that_begins_later_is_compared_from_there(self) -> None:
        one, other = self.store(), self.store()
        segment_of(other, 0).unlink()
        self.assertIn(f"identical from {SEGMENT_SIZE} to ", self.output_of("verify", one, "--against", other))

    def test_a_missing_other_store_is_status_2(self) -> None:
        line = self.complaint(2, "verify", unpacked("slave"), "--against", "/no/store")
        self.assertEqual(line, "/no/store: there is no such store")


def files_of(store: Path) -> dict[str, bytes]:
    """All that is in a store, byte for byte."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


class RecoverTests(CommandTestCase):
    def test_a_store_of_a_java_broker_that_crashed(self) -> None:
        store = copy_of("master-crash", new_folder(self) / "store")
        before = files_of(store)
        self.assertEqual(self.json_of("recover", store)["applied"], False)
        self.assertEqual(files_of(store), before)
        text = self.output_of("recover", store, "--apply")
        self.assertRegex(text, r"^log is 0 to 4538033; \d+ messages checked from \d+ on, after an unclean stop\n")
        self.assertFalse((store / ABORT_FILE).exists())
        self.assertFalse((store / "rmqha").exists(), "it stays a Java broker's store")
        self.assertIn("identical from 0 to 4538033", self.output_of("verify", store, "--against", unpacked("slave")))
        self.assertEqual(
            self.json_of("recover", store),
            {
                "applied": False,
                "cleanStop": True,
                "min": 0,
                "checkedFrom": 15 * 262144,
                "end": 4538033,
                "messages": sum(line.get("physicalOffset", -1) >= 15 * 262144 for line in expected()),
                "cutBytes": 0,
                "removedSegments": 0,
                "problem": None,
                "keptIn": None,
                "damage": None,
            },
        )

    def test_a_torn_end_is_cut_and_kept(self) -> None:
        store = self.store()
        (store / ABORT_FILE).touch()
        at, record = records_of(store)[-1]
        torn = at + record.total_size // 2
        for offset in range(torn, at + record.total_size):
            patch_byte(store, offset, lambda _: 0)
        self.assertRegex(self.output_of("verify", store), rf"a torn end at {at}: .*; the next start cuts it")
        kept = store / "rmqha" / "cut" / f"{at:020d}"
        before = files_of(store)
        self.assertRegex(self.output_of("recover", store), rf"a start would cut \d+ bytes at {at}: ")
        self.assertEqual(files_of(store), before)
        text = self.output_of("recover", store, "--apply")
        self.assertRegex(text, rf"(?m)^log is 0 to {at}; \d+ messages checked from 0 on, after an unclean stop$")
        self.assertRegex(text, rf"(?m)^cut \d+ bytes at {at}: .+; they are kept in {kept}$")
        self.assertEqual(len(kept.read_bytes()), kept.stat().st_size)
        self.assertGreater(kept.stat().st_size, 100)
        self.assertIn(f" to {at}\n", self.output_of("verify", store))

    def test_segments_behind_the_end_are_told(self) -> None:
        store = self.store()
        (store / ABORT_FILE).touch()
        for number in (4, 5):
            (store / "commitlog" / f"{number * SEGMENT_SIZE:020d}").write_bytes(bytes(SEGMENT_SIZE))
        self.assertIn("would remove 2 segments after the end\n", self.output_of("recover", store))
        self.assertIn("removed 2 segments after the end\n", self.output_of("recover", store, "--apply"))

    def test_a_store_in_use_is_status_9_and_stays_as_it_is(self) -> None:
        store = self.store()
        self.addCleanup(LockFile(store / LOCK_FILE).release)
        line = self.complaint(9, "recover", store)
        self.assertEqual(line, f"{store} is in use by another process: stop it first")
        self.assertFalse((store / ABORT_FILE).exists())

    def test_a_nodes_state_says_stopped_and_no_more_than_is_there(self) -> None:
        store = self.store()
        at, _ = records_of(store)[-1]
        end = at + records_of(store)[-1][1].total_size
        (store / ABORT_FILE).touch()
        old = NodeState("1f" * 16, 3, 0, "SLAVE", "IN_SYNC", Offsets(0, end, end, end, end))
        old.write(store)
        flip_bit(store, at + 4)
        before = files_of(store)
        for arguments in ((), ("--apply",)):
            line = self.complaint(1, "recover", store, *arguments)
            self.assertIn(f"the log was confirmed up to {end}", line)
            self.assertEqual({**files_of(store), "lock": b""}, {**before, "lock": b""})
        self.output_of("recover", store, "--apply", "--force")
        new = NodeState.read(store)
        wanted = replace(old, epoch=4, epoch_start=at, state="STOPPED", offsets=Offsets(0, at, at, at, at))
        self.assertEqual(new, wanted)

    def test_rot_with_sound_messages_after_it_is_cut_by_force_only(self) -> None:
        """Every byte stays as it is until then; afterwards the cut bytes are in a file."""
        for stop in ("clean", "unclean"):
            store = self.store()
            if stop == "unclean":
                (store / ABORT_FILE).touch()
            records = records_of(store)
            at, record = records[60]
            flip_bit(store, at + 100)
            before = files_of(store)
            sound = len(records) - 61
            for arguments in (("recover", store), ("recover", store, "--apply"), ("rebuild", store)):
                line = self.complaint(1, *arguments)
                self.assertIn(f"damaged at {at}: {record.total_size} bytes up to {at + record.total_size}", line)
                self.assertRegex(line, rf"; {sound} sound messages \(\d+ bytes\) follow")
                for command in (f"rmqha repair {store} --from", f"rmqha recover {store} --apply --force"):
                    self.assertIn(command, line)
                self.assertEqual({**files_of(store), "lock": b""}, {**before, "lock": b""})
            found = json.loads(self.run_command("recover", store, "--json").stdout)["damage"]
            self.assertEqual((found["start"], found["messagesAfter"]), (at, sound))
            self.assertIn(f"cut {LOG_BYTES // 1000}"[:4], self.output_of("recover", store, "--apply", "--force"))
            self.assertEqual(len(records_of(store)), 60)

    def test_force_without_apply_is_wrong_usage(self) -> None:
        self.assertIn("--apply", self.complaint(2, "recover", self.store(), "--force"))

    def test_a_log_of_many_segments_leaves_no_file_open(self) -> None:
        store = self.store(150 * SEGMENT_SIZE)
        self.assertEqual(self.json_of("recover", store)["end"], self.json_of("verify", store)["end"])
        self.assertEqual(open_files(store / "commitlog"), 0)


class StatusOfStoreTests(CommandTestCase):
    def test_a_store_of_a_java_broker(self) -> None:
        found = self.json_of("status", unpacked("slave"))
        self.assertEqual((found["role"], found["state"], found["running"]), ("UNKNOWN", "STOPPED", False))
        self.assertEqual((found["min"], found["written"], found["confirmed"]), (0, max_offset("slave"), None))
        self.assertIn(str(max_offset("slave")), self.output_of("status", unpacked("slave")))

    def test_a_store_of_a_node_of_ours(self) -> None:
        store = self.store()
        NodeState("1f" * 16, 1, 0, "SLAVE", "IN_SYNC", Offsets(0, 4, 3, 2, 1)).write(store)
        found = self.json_with(7, "status", store)
        self.assertEqual((found["role"], found["state"]), ("SLAVE", "STOPPED"))
        self.assertEqual([found[name] for name in ("written", "verified", "flushed", "confirmed")], [4, 3, 2, 1])

    def test_a_node_that_has_no_byte_yet(self) -> None:
        store = new_folder(self) / "store"
        fresh = MessageStore(make_settings({"storePathRootDir": str(store)}))
        NodeState("1f" * 16, role="SLAVE", state="CONNECTING").write(store)
        found = self.json_with(7, "status", store)
        self.assertEqual(found["state"], "CONNECTING")
        self.assertEqual(self.json_of("verify", store)["messages"], 0)
        self.assertEqual(self.output_of("dump", store), "")
        self.successResultOf(fresh.close())

    def test_what_is_neither_store_nor_address_is_status_2(self) -> None:
        for target in ("/no/store", "nowhere", "host:port", "h:99999"):
            with self.subTest(target):
                self.assertIn(f"{target}: there is no such store, and ", self.complaint(2, "status", target))


class DLedgerTests(CommandTestCase):
    """The store of a broker in DLedger mode is named as such, and nobody touches it."""

    ENTRY = bytes.fromhex("00000001000002c8") + bytes(24) + bytes(44)

    def dledger_store(self, entry: bytes = ENTRY) -> Path:
        store = new_folder(self) / "store"
        data = store / "dledger-n0" / "data"
        data.mkdir(parents=True)
        (data / f"{0:020d}").write_bytes(entry.ljust(4096, b"\0"))
        (store / "lock").touch()
        (store / "consumequeue" / "TD" / "0").mkdir(parents=True)
        (store / "consumequeue" / "TD" / "0" / f"{0:020d}").write_bytes(b"\1" * 20 * 300)
        return store

    def test_commands_say_what_it_is(self) -> None:
        store = self.dledger_store()
        for command in ("verify", "dump", "status"):
            said = self.complaint(2, command, store)
            self.assertIn("is the store of a broker in DLedger mode (dledger-n0), which rmqha cannot read", said)

    def test_a_node_does_not_open_it(self) -> None:
        store = self.dledger_store()
        before = sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*"))
        with self.assertRaises(UnsupportedStore):
            MessageStore(make_settings({"storePathRootDir": str(store)}))
        self.assertEqual(sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*")), before)

    def test_a_folder_that_is_only_called_so_is_none(self) -> None:
        for entry in (b"", b"\0" * 100, b"\xda\xa3\x20\xa7" * 20):
            self.assertEqual(self.output_of("dump", self.dledger_store(entry)), "")


class StatusCheckTests(CommandTestCase):
    """``rmqha status`` as a check: each state has its exit code, and one line that says why."""

    def status_of(self, *options: str, running: bool | None = True, **fields: Any) -> Result:
        """Of a node that has told this, and runs, or has stopped, or was killed (None)."""
        store = new_folder(self) / "store"
        opened = MessageStore(make_settings({"storePathRootDir": str(store)}))
        NodeState("1f" * 16, **{"role": "SLAVE", "offsets": Offsets(0, 4, 3, 2, 1), **fields}).write(store)
        if not running:
            self.successResultOf(opened.close())
            if running is None:
                (store / ABORT_FILE).touch()
        result = self.run_command("status", store, *options)
        if running:
            self.successResultOf(opened.close())
        return result

    def check(self, code: int, *options: str, says: str = "", **fields: Any) -> Result:
        result = self.status_of(*options, **fields)
        self.assertEqual(result.exit_code, code, result.output)
        self.assertEqual(result.stderr.count("\n"), 1 if code else 0, result.stderr)
        self.assertIn(says, result.stderr)
        return result

    def test_each_state_has_its_code(self) -> None:
        codes = {
            "RECOVERING": 7,
            "IN_SYNC": 0,
            "CATCHING_UP": 0,
            "GAP": 3,
            "AHEAD": 4,
            "DIVERGED": 5,
            "STALLED": 6,
            "CONNECTING": 7,
        }
        for state, code in codes.items():
            with self.subTest(state):
                self.check(code, state=state, reason="so it is", says=f"{state}: so it is" if code else "")
        self.check(0, role="SYNC_MASTER", state="SERVING")

    def test_a_slave_that_copies_and_notes_no_contact_any_more_hangs(self) -> None:
        """As after SIGSTOP, or before a disk that does not answer: the last state.json still says IN_SYNC."""
        now = time.time()
        for state in ("IN_SYNC", "CATCHING_UP"):
            self.check(0, state=state, last_contact=iso_of(now - 5))
            self.check(0, state=state, last_contact=None)
            self.check(6, state=state, last_contact=iso_of(now - 3600))

    def test_how_long_a_slave_may_note_no_contact_follows_from_its_settings(self) -> None:
        contact = iso_of(time.time() - 50)
        self.check(0, state="IN_SYNC", last_contact=contact)
        self.check(6, state="IN_SYNC", last_contact=contact, contact_limit=30.0, says="the node hangs")
        self.check(0, state="IN_SYNC", last_contact=contact, contact_limit=3600.0)
        self.check(0, state="IN_SYNC", last_contact=iso_of(time.time() + 50), contact_limit=30.0)

    def test_a_handshake_is_fine_soon_after_the_last_contact(self) -> None:
        now = iso_of(time.time())
        self.check(0, state="HANDSHAKE", last_contact=now)
        for contact in (None, "2026-01-01T00:00:00Z", "once"):
            self.check(7, state="HANDSHAKE", last_contact=contact)

    def test_a_node_that_was_killed_and_one_that_has_stopped_are_not_fine(self) -> None:
        stopped = self.check(7, state="STOPPED", running=False, reason="stopped", says="STOPPED: no node runs")
        self.assertNotIn("KILLED", stopped.stdout)
        killed = self.check(7, state="IN_SYNC", lag_bytes=0, running=None, says="KILLED: no node runs on this store")
        self.assertIn("it was IN_SYNC", killed.stdout)
        self.assertNotIn("lag", killed.stdout)

    def test_lag(self) -> None:
        for options, code in (
            (["--max-lag=100"], 0),
            (["--max-lag=99"], 6),
            (["--max-lag=1k"], 0),
            (["--max-lag=2s"], 0),
            (["--max-lag=1.4s"], 6),
        ):
            with self.subTest(options):
                self.check(code, *options, state="IN_SYNC", lag_bytes=100, lag_seconds=1.5)

    def test_an_unknown_lag_is_over_every_limit(self) -> None:
        for limit in ("1g", "3600s"):
            self.check(6, f"--max-lag={limit}", state="CATCHING_UP", says="the lag is not known")

    def test_a_master_has_no_lag(self) -> None:
        self.check(0, "--max-lag=0s", role="ASYNC_MASTER", state="SERVING")

    def test_limits_that_are_none_are_wrong_usage(self) -> None:
        for text in ("", "x", "-1", "1h", "s", "-3s", "infs", "nans", "1e3", "64 m"):
            with self.subTest(text):
                self.check(2, f"--max-lag={text}", state="IN_SYNC", says="--max-lag: ")

    def test_tables_that_are_not_the_masters(self) -> None:
        """The log is in sync, but on the day of a failover no consumer finds its topic."""
        tables = {"inSync": False, "since": "2026-11-22T10:00:00.000Z", "reason": "code 1: No accessKey"}
        result = self.check(8, state="IN_SYNC", lag_bytes=0, lag_seconds=0.0, tables=tables, says="No accessKey")
        self.assertIn("not the master's: code 1: No accessKey, since 2026-11-22T10", result.stdout)
        self.check(8, state="IN_SYNC", tables={"inSync": None}, says="they are not copied yet")
        self.check(0, state="IN_SYNC", tables={"inSync": True})

    def test_all_is_shown(self) -> None:
        result = self.check(
            0,
            state="IN_SYNC",
            master="broker-a:10912",
            last_contact="2126-11-22T10:00:00.000Z",
            since="2026-11-22T09:00:00.000Z",
            reason="at the master's end, 4",
            warnings=("mind the gap",),
        )
        for line in (
            "master       broker-a:10912",
            "lastContact  2126-11-22T10:00:00.000Z",
            "since        2026-11-22T09:00:00.000Z",
            "reason       at the master's end, 4",
            "warning      mind the gap",
        ):
            self.assertIn(line + "\n", result.stdout)


class StatusOfBrokerTests(SynchronousTestCase):
    def status(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return rmqha("status", *arguments)

    @pytest.mark.process
    def test_nobody_there_is_status_7(self) -> None:
        address = f"127.0.0.1:{free_port()}"
        for arguments in ([address], [address, "--json"], [f"tcp:{address}"]):
            with self.subTest(arguments):
                done = self.status(*arguments)
                self.assertEqual((done.returncode, done.stdout), (7, ""))
                self.assertRegex(done.stderr, r"^rmqha: \S+ does not answer: Connection was refused.*\n$")

    @pytest.mark.process
    def test_somebody_who_is_no_broker_is_status_7(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def talk() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            thread = threading.Thread(target=talk)
            thread.start()
            done = self.status(f"127.0.0.1:{listener.getsockname()[1]}")
            thread.join()
        self.assertEqual((done.returncode, done.stdout), (7, ""))
        self.assertEqual(done.stderr.count("\n"), 1)

    @pytest.mark.process
    @pytest.mark.story
    def test_a_running_master_and_its_slave(self) -> None:
        work = new_folder(self)
        end = max_offset("slave")
        with TwistdNode(work, ["--role=async-master", "--port=0"], unpacked_copy(work)) as master:
            slave_options = [
                "--role=slave",
                f"--master=127.0.0.1:{master.port()}",
                f"--master-remoting=127.0.0.1:{master.port('remoting')}",
                "--port=0",
            ]
            with TwistdNode(work, slave_options, name="slave") as slave:
                slave.wait_for_state(lambda state: state.state == "IN_SYNC" and state.offsets.flushed == end, "the end")
                slave.wait_for_tables()
                done = self.status(f"127.0.0.1:{slave.port('remoting')}", "--json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                found = json.loads(done.stdout)
                self.assertEqual((found["role"], found["state"], found["lagBytes"]), ("SLAVE", "IN_SYNC", 0))
                self.assertEqual((found["min"], found["verified"], found["confirmed"]), (0, end, end))
                done = self.status(f"127.0.0.1:{master.port('remoting')}")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, r"(?m)^role +ASYNC_MASTER *$")
                self.assertRegex(done.stdout, r"(?m)^state +SERVING *$")
                self.assertRegex(
                    done.stdout,
                    rf"(?m)^peer +peer 127.0.0.1:\d+  identity 127.0.0.1  state TRANSFER .* ackOffset {end} ",
                )
                live = rmqha("verify", slave.store, "--json")
                self.assertEqual((live.returncode, json.loads(live.stdout)["live"]), (0, True))
                self.assertEqual(json.loads(live.stdout)["end"], end)
                busy = rmqha("recover", slave.store)
                self.assertEqual(busy.returncode, 9)
                self.assertRegex(busy.stderr, r"^rmqha: .* is in use by another process: stop it first\n$")
                done = self.status(str(slave.store), "--json")
                self.assertEqual(
                    (json.loads(done.stdout)["state"], json.loads(done.stdout)["running"]), ("IN_SYNC", True)
                )


def unpacked_copy(work: Path) -> Path:
    return copy_of("slave", work / "master-store")
