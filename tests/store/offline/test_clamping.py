"""Progress follows a log that is cut: delays that were delivered in the part that goes, and transactions that ended."""

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings import make_settings
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable, DelayOffsetTable
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.store.offline.clamping import set_back_delays
from rmqha.store.offline.rewind import rewind
from rmqha.testing.records import make_record
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import Record
from rmqha.wire.topics import HALF_TOPIC, OPERATION_TOPIC, TRANSACTION_GROUP


def delayed(level: int) -> Record:
    """A message that waits in its level's queue."""
    properties = f"DELAY\x01{level}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    return Record(SCHEDULE_TOPIC, b"late", properties, queue_id=level - 1)


def delivered(level: int) -> Record:
    """The same message when it was delivered: a broker leaves its properties as they are."""
    return Record("T", b"late", delayed(level).properties_stored)


class SetBackTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.store = Path(self.mktemp())
        self.config = self.store / CONFIG_FOLDER
        self.log = CommitLog(self.store / "commitlog", 4096)
        self.addCleanup(self.log.close)

    def write(self, *records: Record) -> int:
        """Append to the log. Returns its end."""
        for record in records:
            self.log.append(record)
        return self.log.max_offset

    def test_each_level_goes_back_by_what_it_delivered_after_the_cut(self) -> None:
        waiting = [delayed(level) for level in (1, 1, 1, 2, 2)]
        cut = self.write(*waiting, delivered(1), delivered(2))
        ordinary = [make_record(0, b"DELAY\x011\x02REAL_TOPIC\x01T"), Record("U", b"", "DELAY\x011\x02REAL_TOPIC\x01T")]
        end = self.write(delivered(1), *ordinary, delayed(3), delivered(2), delivered(1), delivered(3))
        DelayOffsetTable({1: 3, 2: 2, 3: 1, 4: 9}).write(self.config)
        self.assertEqual(set_back_delays(self.config, self.log, cut, end), {1: 2, 2: 1, 3: 1})
        self.assertEqual(DelayOffsetTable.read(self.config).offset_table, {1: 1, 2: 1, 3: 0, 4: 9})

    def test_offsets_that_are_older_than_the_log_do_not_become_negative(self) -> None:
        end = self.write(delayed(1), delivered(1))
        DelayOffsetTable({1: 0}).write(self.config)
        set_back_delays(self.config, self.log, 0, end)
        self.assertEqual(DelayOffsetTable.read(self.config).offset_table, {1: 0})

    def test_a_rewind_sets_them_back(self) -> None:
        """A message would be lost otherwise if this node were promoted again before it copied other offsets."""
        cut = self.write(delayed(1), delayed(1), delivered(1))
        end = self.write(delivered(1))
        self.log.close()
        DelayOffsetTable({1: 2}).write(self.config)
        NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[end] * 4)).write(self.store)
        settings = make_settings({"storePathRootDir": str(self.store), "brokerRole": "ASYNC_MASTER"})
        rewind(settings, cut)
        self.assertEqual(DelayOffsetTable.read(self.config).offset_table, {1: 1})
        MessageStore(settings).close_now()

    def test_a_rewind_sets_the_check_of_transactions_back(self) -> None:
        """Half message 1 ended after the cut: it is open again. Half message 0 ended before; 3 is cut itself."""
        halves = [Record(HALF_TOPIC, b"half", queue_offset=number) for number in range(4)]

        def ended(offsets: bytes, number: int) -> Record:
            return Record(OPERATION_TOPIC, offsets, "TAGS\x01d", queue_offset=number)

        cut = self.write(halves[0], ended(b"0", 0), halves[1], halves[2], ended(b"2", 1))
        end = self.write(halves[3], ended(b"1,3", 2))
        self.log.close()
        of_halves, of_ends = (f"{topic}@{TRANSACTION_GROUP}" for topic in (HALF_TOPIC, OPERATION_TOPIC))
        ConsumerOffsetTable({of_halves: {0: 4}, of_ends: {0: 3}, "T@G": {0: 9}}).write(self.config)
        NodeState("1f", role="ASYNC_MASTER", offsets=Offsets(0, *[end] * 4)).write(self.store)
        settings = make_settings({"storePathRootDir": str(self.store), "brokerRole": "ASYNC_MASTER"})
        rewind(settings, cut)
        table = ConsumerOffsetTable.read(self.config).offset_table
        self.assertEqual(table, {of_halves: {0: 1}, of_ends: {0: 1}, "T@G": {0: 9}})
