"""``rmqha restore`` and ``rmqha backup``: what they print, and how they end."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rmqha.store.examining import ABORT_FILE
from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import PutNode, TwistdNode
from tests.cli.test_cli import CommandTestCase, files_of, records_of
from tests.commands import RMQHA, rmqha
from tests.fixtures import copy_of, max_offset, new_folder
from tests.store.logs import file_bytes
from tests.store.offline.test_prefix import FIRST_TIME, fixed_log, store_of

END = max_offset("slave")
KILLS, ALL_KILLS = 6, 30
MESSAGES = 3000


class RestoreCommandTests(CommandTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.source = copy_of("slave", self.folder / "source")
        self.output = self.folder / "output"
        self.records = records_of(self.source)

    def test_a_dry_run_changes_nothing_and_tells_what_would_be(self) -> None:
        before = files_of(self.folder)
        at = self.records[20][0]
        told = self.json_of("restore", self.source, "--output", self.output, "--to-offset", at, "--dry-run")
        self.assertEqual((told["end"], told["sourceEnd"], told["done"]), (at, END, None))
        self.assertIn("nothing was changed", self.output_of("backup", self.source, self.output, "--dry-run"))
        self.assertEqual(files_of(self.folder), before)

    def test_the_copy_is_proved_to_be_a_prefix(self) -> None:
        at, record = self.records[30]
        place = f"{record.topic}:{record.queue_id}:{record.queue_offset}"
        text = self.output_of("restore", self.source, "--output", self.output, "--to-message", place)
        self.assertIn(f"from 0 to {at}", text)
        self.assertIn(f"{END - at} bytes of the log follow that place", text)
        self.assertIn("prefix", self.output_of("verify", self.output, "--against", self.source))

    def test_a_time_may_be_iso_with_a_zone_only(self) -> None:
        record = self.records[10][1]
        told = self.json_of("restore", self.source, "--output", self.output, "--to-time", record.store_timestamp)
        first = next(at for at, each in self.records if each.store_timestamp >= record.store_timestamp)
        self.assertEqual(told["end"], first)
        complaint = self.run_command(
            "restore", self.source, "--output", self.folder / "other", "--to-time", "2026-11-22T10:00:00"
        )
        self.assertEqual(complaint.exit_code, 2)
        self.assertIn("it has no zone", complaint.stderr)

    def test_a_time_outside_the_log_wants_a_second_word(self) -> None:
        """A mistyped year made an empty store, or a copy of everything, and looked like success."""
        times = [record.store_timestamp for _, record in self.records]
        for wanted, said in (("2000-01-01T00:00:00Z", "would be empty"), ("2999-01-01T00:00:00Z", "in the future")):
            with self.subTest(wanted):
                options = ("restore", self.source, "--output", self.output, "--to-time", wanted)
                result = self.run_command(*options)
                self.assertEqual((result.exit_code, result.stdout), (2, ""))
                self.assertIn(said, result.stderr)
                self.assertFalse(self.output.exists())
                told = self.json_of(*options, "--outside", "--dry-run")
                self.assertEqual(told["end"], END if "future" in said else 0)
        late = self.output_of("restore", self.source, "--output", self.output, "--to-time", max(times) + 1, "--dry-run")
        self.assertIn("nothing is left out", late)

    def test_a_clock_that_was_set_back_is_named(self) -> None:
        """Message 20 was stored at the time of message 10. A restore to a time ends at the first later message."""
        made = fixed_log(time_of=lambda number: FIRST_TIME + 1000 * (number if number < 20 else number - 10))
        with store_of(made) as (source, _):
            wanted = FIRST_TIME + 15_000
            text = self.output_of("restore", source, "--output", self.output, "--to-time", wanted)
            end = made.messages[15].start
            self.assertIn(f"hold the log from 0 to {end}, the last message is of", text.replace("holds", "hold"))
            self.assertIn("5 messages after that place were stored at earlier times: the clock was set back", text)
            told = self.json_of(
                "restore", source, "--output", self.folder / "more", "--to-time", wanted, "--inclusive", "--dry-run"
            )
            self.assertEqual((told["end"], told["earlierAfter"]), (made.messages[16].start, 6))

    @pytest.mark.long
    def test_wrong_use_is_one_line_and_changes_nothing(self) -> None:
        def refused(*options: object, source: Path = self.source, output: Path = self.output) -> str:
            return self.complaint(2, "restore", source, "--output", output, *options)

        self.assertIn("give one of", refused())
        self.assertIn("give one of", refused("--to-offset", 1, "--to-time", 1))
        self.assertIn("does not hold", refused("--to-offset", END + 1))
        self.assertIn("has no message", refused("--to-message", "Nothing:0:0"))
        self.assertIn("no such store", refused("--to-offset", 1, source=self.folder / "nothing"))
        self.assertIn("is not empty", refused("--to-offset", 1, output=self.folder))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["source"])

    @pytest.mark.long
    def test_a_backup_of_a_store_that_stopped_uncleanly_is_sound(self) -> None:
        (self.source / ABORT_FILE).touch()
        told = self.json_of("backup", self.source, self.output)
        self.assertEqual((told["end"], told["kind"]), (END, "backup"))
        self.assertIn("identical", self.output_of("verify", self.output, "--against", self.source))


@pytest.mark.process
@pytest.mark.story
def test_a_backup_of_a_node_that_takes_messages_is_a_sound_prefix(tmp_path: Path) -> None:
    options = ["--role=async-master", "--port=0", "--set=mappedFileSizeCommitLog=65536"]
    with PutNode(tmp_path, options, name="master") as node:
        end = node.put(MESSAGES, in_flight=50)["end"]
        node.wait_for_state(lambda state: state.confirmed_offset >= end, "its state tells of the messages")
        node.tell(10**6, rate=500)  # until it is stopped
        for number in range(3):
            backup = tmp_path / f"backup-{number}"
            assert rmqha("backup", node.store, backup).returncode == 0
            assert rmqha("verify", backup, "--against", node.store).returncode == 0
            state = NodeState.read(backup)
            assert state is not None
            assert state.offsets.confirmed >= end
        assert node.stop() == 0
    with TwistdNode(tmp_path, options, tmp_path / "backup-2", "restored") as restored:
        restored.wait_for_state(lambda state: state.state == "SERVING", "serving")
        assert restored.stop() == 0


@pytest.mark.process
@pytest.mark.parametrize("kills", [KILLS, pytest.param(ALL_KILLS, marks=pytest.mark.proof)])
@pytest.mark.story
def test_a_restore_killed_at_any_time_leaves_the_old_or_the_new(tmp_path: Path, kills: int) -> None:
    source = copy_of("slave", tmp_path / "source")
    content = file_bytes(source / "commitlog")
    output = tmp_path / "output"
    command = [RMQHA, "restore", str(source), "--output", str(output), "--to-offset", str(END)]
    started = time.monotonic()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    whole = time.monotonic() - started
    for number in range(kills):
        subprocess.run(["rm", "-rf", str(output)], check=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(whole * (number + 1) / kills)  # whenever this is: each moment must be a good one
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if output.exists():
            assert file_bytes(output / "commitlog")[:END] == content[:END]
            assert not (output / ABORT_FILE).exists()
    subprocess.run(["rm", "-rf", str(output)], check=True)
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source"]
