"""Logs made to measure are logs."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.log.commitlog import CommitLog
from rmqha.testing.records import make_record, make_segments, write_log
from rmqha.wire.record import Record, check_record
from tests.fixtures import new_folder
from tests.store.logs import file_bytes

SEGMENT_SIZE = 65_536


class MakeSegmentsTests(SynchronousTestCase):
    def test_a_log_is_sound_and_about_as_long_as_asked_for(self) -> None:
        folder = new_folder(self) / "log"
        write_log(folder, 300_000, 1000, SEGMENT_SIZE)
        log = CommitLog(folder, SEGMENT_SIZE)
        self.addCleanup(log.close)
        found = log.scan(0)
        self.assertTrue(300_000 <= found.end < 300_000 + 1300, found)
        self.assertEqual(log.stale_end(found.end), found.end)
        self.assertEqual(log.segment_bases, [n * SEGMENT_SIZE for n in range(5)])
        self.assertEqual(file_bytes(folder), b"".join(c for _, c in make_segments(300_000, 1000, SEGMENT_SIZE)))

    def test_it_is_what_appending_its_records_gives(self) -> None:
        """Rolled at the same places, with the same blanks."""
        log = CommitLog(new_folder(self), SEGMENT_SIZE)
        self.addCleanup(log.close)
        made = list(make_segments(200_000, 5000, SEGMENT_SIZE))
        for base, content in made:
            while base + SEGMENT_SIZE > log.max_offset:
                position = max(0, log.max_offset - base)
                if not content[position:].strip(b"\0"):
                    break
                record = check_record(content, position, base + position, SEGMENT_SIZE - position)
                if not isinstance(record, Record):
                    break
                log.append(record)
        self.assertEqual(file_bytes(log.folder), b"".join(content for _, content in made))

    def test_the_same_seed_gives_the_same_bytes(self) -> None:
        def made(seed: int) -> list[tuple[int, bytes]]:
            return list(make_segments(100_000, 500, SEGMENT_SIZE, seed))

        self.assertEqual(made(1), made(1))
        self.assertNotEqual(made(1), made(2))


class MakeRecordTests(SynchronousTestCase):
    def test_records_are_as_a_java_producer_s(self) -> None:
        record = make_record(13, b"body")
        self.assertEqual(list(record.properties), ["KEYS", "UNIQ_KEY", "CLUSTER", "TAGS"])
        self.assertEqual(len(record.properties["UNIQ_KEY"]), 32)
        self.assertEqual((record.queue_id, record.queue_offset), (1, 3))
        later = make_record(14, b"body")
        self.assertGreaterEqual(later.store_timestamp, record.store_timestamp)
        self.assertNotEqual(later.properties["KEYS"], record.properties["KEYS"])
