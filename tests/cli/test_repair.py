"""``rmqha repair`` between folders, and ``rmqha restore-cut``."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rmqha.settings.settings import make_settings
from rmqha.store.examining import ABORT_FILE, LOCK_FILE
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.lockfile import LockFile
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, TopicConfig, TopicConfigTable
from rmqha.store.nodestate import STOPPED, NodeState, Offsets
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.offline.storerepair import Gap, Mend, StoreRepair
from rmqha.testing.records import write_log
from rmqha.wire.record import Record, encode_blank
from tests.cli.test_cli import CommandTestCase, files_of, flip_bit, records_of
from tests.fixtures import copy_of, max_offset, new_folder, segment_size
from tests.store.logs import make_log, write_at

END = max_offset("slave")
SIZE = segment_size()


def log_files(store: Path) -> dict[str, bytes]:
    return {name: content for name, content in files_of(store).items() if name.startswith("commitlog/")}


class RepairCommandTests(CommandTestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.one, self.other = (copy_of("slave", self.folder / name) for name in ("one", "other"))
        self.good = log_files(self.one)

    def spoil(self, offset: int, data: bytes = b"\xa5\x5a\xa5") -> None:
        write_at(self.one / "commitlog", offset, data, SIZE)

    @pytest.mark.long
    def test_all_bad_stretches_of_the_whole_log_come_back(self) -> None:
        for place in (30, 3 * SIZE + 29, 8 * SIZE + 33):
            self.spoil(place)
        self.spoil(10 * SIZE, bytes(SIZE))
        self.assertEqual(self.run_command("verify", self.one).exit_code, 1)
        before = files_of(self.one)
        text = self.output_of("repair", self.one, "--from", self.other, "--dry-run")
        self.assertEqual((text.count("can repair "), files_of(self.one)), (4, before))
        text = self.output_of("repair", self.one, "--from", self.other)
        self.assertEqual(text.count("\nrepaired "), 3, text)
        self.assertIn(f"repaired {SIZE} bytes", text)
        self.assertEqual(log_files(self.one), self.good)
        self.assertIn("identical", self.output_of("verify", self.one, "--against", self.other))
        self.assertEqual(self.output_of("repair", self.one, "--from", self.other), "nothing repaired\n")
        self.assertEqual(
            self.json_of("repair", self.one, "--from", self.other), {"dryRun": False, "files": [], "stretches": []}
        )

    @pytest.mark.long
    def test_what_follows_from_bad_bytes_is_summed_up(self) -> None:
        self.spoil(10 * SIZE, bytes(SIZE))
        result = self.run_command("verify", self.one)
        self.assertEqual(result.exit_code, 1)
        self.assertRegex(
            result.stdout, r"(?m)^\d+ units of queues point to bytes that are not records, because of the damage"
        )
        self.assertNotIn("has no unit", result.output)
        self.assertNotIn("ends at", result.output)
        found = json.loads(self.run_command("verify", self.one, "--json").stdout)
        self.assertEqual((found["queueProblems"], found["badStretchCount"]), (0, 1))
        self.assertGreater(found["lostUnits"], 10)

    @pytest.mark.long
    def test_queues_that_do_not_agree_with_what_came_back_are_told(self) -> None:
        reader = StoreReader(self.one)
        record = next(record for _, record in reader.records(3 * SIZE, None))
        reader.close()
        assert isinstance(record, Record)
        self.spoil(3 * SIZE + 29)
        folder = self.one / "consumequeue" / record.topic / str(record.queue_id)
        with min(folder.iterdir()).open("r+b") as file:
            file.seek(20 * record.queue_offset)
            file.write(b"\0\0\0\0\0\0\0\7\0\0\0\1")
        text = self.output_of("repair", self.one, "--from", self.other)
        self.assertIn(f"'rmqha rebuild {self.one}' rebuilds queues and index", text)
        self.output_of("rebuild", self.one)
        self.output_of("verify", self.one)

    @pytest.mark.long
    def test_queues_of_the_wrong_type_are_found_and_rebuilt(self) -> None:
        """A table of 5.x may come after queues were built: a topic then has batch consume queues."""
        topic, *_ = sorted(path.name for path in (self.one / "consumequeue").iterdir())
        ends = sum(queue["max"] for queue in self.json_of("queues", self.one)[topic].values())
        config = self.one / CONFIG_FOLDER
        table = TopicConfigTable.read(config)
        attributes = {"attributes": {"queue.type": "BatchCQ"}}
        table.rows[topic] = TopicConfig(topic, unknown=attributes)
        table.write(config)
        self.assertIn(f"batch queue 0 of {topic} has no unit", self.run_command("verify", self.one).output)
        queues = self.json_of("queues", self.one)
        self.assertNotIn(topic, queues)
        self.output_of("rebuild", self.one)
        self.output_of("verify", self.one)
        self.assertTrue((self.one / "batchconsumequeue" / topic).is_dir())
        self.assertFalse((self.one / "consumequeue" / topic).exists())
        rebuilt = self.json_of("queues", self.one)
        self.assertEqual(sum(queue["max"] for queue in rebuilt[topic].values()), ends)

    def test_a_replica_that_cannot_help_is_status_1(self) -> None:
        self.spoil(8 * SIZE + 33)
        before = log_files(self.one)
        shutil.rmtree(self.other)
        other = self.folder / "short"
        write_log(other / "commitlog", 2 * SIZE, 100, SIZE)
        line = self.complaint(1, "repair", self.one, "--from", other)
        self.assertRegex(line, rf"^{self.one} is not repaired: {other}: the other log has nothing for \d+")
        self.assertEqual(log_files(self.one), before)

    def test_a_forged_blank_between_bad_stretches_does_not_hold_it_up(self) -> None:
        """The repair of the first stretch also mends the second, and what was sound between them is no border then."""
        bad, good = (self.folder / name for name in ("bad", "good"))
        offsets = make_log(good / "commitlog", *[500] * 20)
        shutil.copytree(good, bad)
        end = offsets[8]
        start = offsets[5]
        write_at(bad / "commitlog", start, bytes(end - start))
        write_at(bad / "commitlog", start + 50, encode_blank(end - start - 50))
        write_at(bad / "commitlog", end + 100, b"!")
        find, found = StoreRepair.find, []

        def counted(*arguments: Any, **more: Any) -> list[Gap]:
            found.append(find(*arguments, **more))
            assert len(found) < 5, f"it goes round in circles: {found}"
            return found[-1]

        self.patch(StoreRepair, "find", counted)
        text = self.output_of("repair", bad, "--from", good)
        self.assertIn(f"bytes from {start} to {offsets[9]}, 4 messages", text)
        self.assertEqual(log_files(bad), log_files(good))

    def file(self, number: int) -> Path:
        return self.one / "commitlog" / f"{number * SIZE:020d}"

    @pytest.mark.long
    def test_files_that_are_missing_or_too_short_come_back(self) -> None:
        """A start, verify and repair only said that they are missing; copying them by hand was the way back."""
        for number in (2, 5, 6):
            self.file(number).unlink()
        os.truncate(self.file(8), 1000)
        os.truncate(self.file(0), SIZE - 1)
        self.file(10).write_bytes(b"")
        self.spoil(12 * SIZE + 29)
        self.assertIn(f"'rmqha repair {self.one} --from REPLICA'", self.complaint(1, "verify", self.one))
        before = files_of(self.one)
        told = self.output_of("repair", self.one, "--from", self.other, "--dry-run")
        self.assertEqual(told.count("\ncan repair "), 6, told)
        self.assertTrue(files_of(self.one) == before)
        text = self.output_of("repair", self.one, "--from", self.other)
        for line in (
            f"{self.file(2)} is missing",
            f"{self.file(8)} has only 1000 of its {SIZE} bytes",
            f"{self.file(10)} has only 0 of its {SIZE} bytes",
        ):
            self.assertIn(line + "\n", told)
            self.assertIn(line + "\n", text)
        self.assertTrue(log_files(self.one) == self.good)
        self.assertIn("identical", self.output_of("verify", self.one, "--against", self.other))
        self.assertFalse((self.one / "commitlog.repair").exists())
        self.assertEqual(self.output_of("repair", self.one, "--from", self.other), "nothing repaired\n")

    def test_a_last_file_that_is_too_short_comes_back_as_far_as_it_was_confirmed(self) -> None:
        last = END // SIZE
        for left in (10, END % SIZE - 1, END % SIZE - 20):
            NodeState(store_id="s", state=STOPPED, offsets=Offsets(0, END, END, END, END)).write(self.one)
            os.truncate(self.file(last), left)
            found = self.json_of("repair", self.one, "--from", self.other)
            self.assertEqual(found["files"], [{"file": str(self.file(last)), "bytes": left, "fullBytes": SIZE}])
            self.assertTrue(log_files(self.one) == self.good)

    @pytest.mark.long
    def test_a_file_may_be_short_by_any_number_of_bytes(self) -> None:
        """It may end where no CRC looks: in properties, in a topic, in the blank at the file's end."""
        content = self.file(3).read_bytes()
        record, size = SIZE * 3, int.from_bytes(content[:4], "big")
        sizes = [1, 3, 4, 20, 87, 88, *range(size - 130, size + 5, 7), SIZE - 9, SIZE - 8, SIZE - 1]
        for left in sizes:
            with self.subTest(left=left, record=record):
                os.truncate(self.file(3), left)
                self.output_of("repair", self.one, "--from", self.other)
                self.assertTrue(self.file(3).read_bytes() == content)

    def test_a_repair_that_fails_leaves_short_and_missing_files_as_they_are(self) -> None:
        self.file(2).unlink()
        os.truncate(self.file(8), 1000)
        before = files_of(self.one)
        for path in sorted((self.other / "commitlog").iterdir())[:6]:
            path.unlink()  # as if the replica had let them expire
        line = self.complaint(1, "repair", self.one, "--from", self.other)
        self.assertIn("the other log has nothing for", line)
        self.assertTrue(files_of(self.one) == before)
        with patch.object(Mend, "feed", side_effect=KeyboardInterrupt):
            self.complaint(130, "repair", self.one, "--from", copy_of("slave", self.folder / "third"))
        self.assertTrue(files_of(self.one) == before)

    def test_a_file_that_a_killed_repair_left_is_in_nobodys_way(self) -> None:
        self.file(2).unlink()
        work = self.one / "commitlog.repair"
        work.mkdir()
        (work / self.file(2).name).write_bytes(b"part")
        self.output_of("repair", self.one, "--from", self.other)
        self.assertTrue(log_files(self.one) == self.good)
        self.assertFalse(work.exists())

    def test_a_file_with_a_wrong_name_does_not_make_thousands_of_files(self) -> None:
        self.file(2).rename(self.one / "commitlog" / f"{SIZE * 10**9:020d}")
        self.assertIn("too many files are missing", self.complaint(1, "repair", self.one, "--from", self.other))

    def test_a_replica_with_other_segments_is_refused(self) -> None:
        write_log(self.folder / "third" / "commitlog", 4 * SIZE, 100, 2 * SIZE)
        line = self.complaint(1, "repair", self.one, "--from", self.folder / "third")
        self.assertIn(f"its segments have {2 * SIZE} bytes, ours {SIZE}", line)

    def test_wrong_usage(self) -> None:
        self.assertIn("there is no such store", self.complaint(2, "repair", "/no/store", "--from", self.other))
        self.assertIn("there is no such store, and", self.complaint(2, "repair", self.one, "--from", "/no/store"))
        self.assertIn("is the damaged store itself", self.complaint(2, "repair", self.one, "--from", self.one))
        self.assertEqual(self.run_command("repair", self.one).exit_code, 2)

    def test_a_store_in_use_is_status_9(self) -> None:
        self.addCleanup(LockFile(self.one / LOCK_FILE).release)
        for arguments in ((), ("--dry-run",)):
            self.complaint(9, "repair", self.one, "--from", self.other, *arguments)

    @pytest.mark.long
    def test_rebuild_leaves_the_state_of_the_last_run(self) -> None:
        """``rmqha status`` said that a store was RECOVERING on which no node ran."""
        offsets = Offsets(0, END, END, END, END)
        for state in (STOPPED, "IN_SYNC"):
            NodeState(store_id="s", state=state, reason="why", offsets=offsets).write(self.one)
            before = NodeState.read(self.one)
            self.output_of("rebuild", self.one)
            self.assertEqual(NodeState.read(self.one), before)

    def test_rebuild_gives_a_store_without_a_state_none(self) -> None:
        self.assertIsNone(NodeState.read(self.one))
        self.output_of("rebuild", self.one)
        self.assertIsNone(NodeState.read(self.one))


class RestoreCutTests(CommandTestCase):
    def cut(self, number: int) -> tuple[Path, int, dict[str, bytes]]:
        """A store that was cut at a rotten record, by force; and its log's files before."""
        store = self.store()
        at, _ = records_of(store)[number]
        flip_bit(store, at + 100)
        before = log_files(store)
        self.output_of("recover", store, "--apply", "--force")
        self.assertEqual(len(records_of(store)), number)
        return store, at, before

    @pytest.mark.long
    def test_a_forced_cut_is_undone_byte_for_byte(self) -> None:
        store, at, before = self.cut(60)
        (row,) = self.json_of("restore-cut", store)["kept"]
        self.assertEqual((row["offset"], row["problem"]), (at, None))
        self.assertRegex(self.output_of("restore-cut", store), rf"bytes at {at}: \d+ messages, fits with --force")
        line = self.complaint(1, "restore-cut", store, at)
        self.assertIn("rmqha repair", line)
        self.assertEqual(self.complaint(1, "restore-cut", store, at, "--apply"), line)
        text = self.output_of("restore-cut", store, at, "--apply", "--force")
        self.assertRegex(text, rf"^put back \d+ messages from {at} to \d+\n$")
        self.assertEqual(log_files(store), before)
        self.assertEqual(self.output_of("restore-cut", store), "no files are kept\n")
        self.assertEqual(self.run_command("recover", store).exit_code, 1)

    @pytest.mark.long
    def test_a_failed_restore_leaves_the_store_as_it_was(self) -> None:
        """The abort file stayed, and a part of the bytes: the next start took the store for one that had crashed."""
        store, at, before = self.cut(60)
        cut = files_of(store)
        self.assertNotIn(ABORT_FILE, cut)
        mend = CommitLog.mend
        for error, code in ((OSError(errno.ENOSPC, "full"), 8), (KeyboardInterrupt(), 130)):
            with self.subTest(code=code):
                mended: list[int] = []

                def fail_late(log: CommitLog, offset: int, data: bytes, left: BaseException = error) -> None:
                    mend(log, offset, data)
                    mended.append(offset)  # noqa: B023  # called before the next turn
                    if len(mended) == 3:  # noqa: B023
                        raise left

                with patch.object(CommitLog, "mend", fail_late):
                    self.complaint(code, "restore-cut", store, at, "--apply", "--force")
                self.assertTrue(files_of(store) == cut)  # a difference of megabytes takes minutes to print
        self.output_of("restore-cut", store, at, "--apply", "--force")
        self.assertEqual(log_files(store), before)
        self.assertFalse((store / ABORT_FILE).exists())

    def test_sound_bytes_come_back_and_the_next_start_goes_on_with_them(self) -> None:
        """As after a forced cut that a repair would have made needless: the rotten record is whole again."""
        store, at, _ = self.cut(60)
        kept = store / "rmqha" / "cut" / f"{at:020d}"
        content = bytearray(kept.read_bytes())
        content[100] ^= 1
        kept.write_bytes(content + b"\0\0\1")  # and a torn end
        count = len(records_of(self.store()))
        self.assertRegex(
            self.output_of("restore-cut", store, kept), r"would put back \d+ messages .* 3 bytes are not a complete"
        )
        self.assertEqual(len(records_of(store)), 60)
        self.output_of("restore-cut", store, kept, "--apply")
        self.assertEqual(len(records_of(store)), count)
        self.assertTrue(kept.exists(), "what is no whole record is only there")
        opened = MessageStore(make_settings({"storePathRootDir": str(store)}))
        self.assertEqual(opened.recovery.problem, None)
        self.successResultOf(opened.close())

    @pytest.mark.long
    def test_a_log_that_has_gone_on_is_not_overwritten(self) -> None:
        store, at, _ = self.cut(60)
        other = records_of(self.store(seed=2))[60][1]
        opened = MessageStore(make_settings({"storePathRootDir": str(store)}))
        opened.commit_log.append(other)
        self.successResultOf(opened.close())
        before = log_files(store)
        for arguments in ((), ("--apply",), ("--apply", "--force")):
            self.assertRegex(self.complaint(1, "restore-cut", store, at, *arguments), "it was written since the cut")
        self.assertIn("does not fit", self.output_of("restore-cut", store))
        self.assertEqual(log_files(store), before)

    @pytest.mark.long
    def test_a_restoration_that_died_halfway_is_done_again(self) -> None:
        store, at, before = self.cut(60)
        kept = (store / "rmqha" / "cut" / f"{at:020d}").read_bytes()
        (store / ABORT_FILE).touch()
        with (store / "commitlog" / f"{at - at % 16384:020d}").open("r+b") as segment:
            segment.seek(at % 16384)
            segment.write(kept[:300])
        self.output_of("restore-cut", store, at, "--apply", "--force")
        self.assertEqual(log_files(store), before)

    def test_wrong_usage(self) -> None:
        store = self.store()
        self.assertEqual(self.output_of("restore-cut", store), "no files are kept\n")
        self.complaint(2, "restore-cut", store, "17")
        self.complaint(2, "restore-cut", store, "--apply")
        self.complaint(2, "restore-cut", store, "17", "--force")
        self.complaint(2, "restore-cut", "/no/store")
