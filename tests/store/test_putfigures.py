"""What a store counts of its puts: each request once, under its result, with the time until its answer."""

from pathlib import Path

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import Settings, make_settings
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import Message, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.putfigures import ONE_IN
from tests.fixtures import new_folder

OK = PutMessageStatus.PUT_OK


def settings_of(root: Path, **more: str) -> Settings:
    return make_settings({"brokerRole": "ASYNC_MASTER", "storePathRootDir": str(root), **more})


class PutFiguresTests(SynchronousTestCase):
    def open(self, **more: str) -> MessageStore:
        store = MessageStore(settings_of(new_folder(self), mappedFileSizeCommitLog="1048576", **more))
        self.addCleanup(store.abandon)
        self.clock = Clock()
        store.start_flushing(self.clock, execute, lambda failure: None)
        return store

    def test_each_put_counts_under_its_result_and_only_stored_ones_have_a_duration(self) -> None:
        store = self.open()
        for _ in range(3):
            self.successResultOf(store.put_message(Message("T", b"body")))
        self.successResultOf(store.put_message(Message("", b"a topic without a name")))
        store.puts.disk_full = True
        self.successResultOf(store.put_message(Message("T", b"body")))
        counts = store.put_figures.by_status()
        self.assertEqual(counts.pop(OK), 3)
        self.assertEqual(counts.pop(PutMessageStatus.MESSAGE_ILLEGAL), 1)
        self.assertEqual(counts.pop(PutMessageStatus.SERVICE_NOT_AVAILABLE), 1)
        self.assertEqual(set(counts.values()), {0})
        self.assertEqual(store.put_figures.durations.count, 1)
        self.assertFalse(store.takes_puts)

    def test_of_puts_that_wait_for_nothing_one_in_eight_is_timed(self) -> None:
        store = self.open()
        for _ in range(2 * ONE_IN + 1):
            self.successResultOf(store.put_message(Message("T", b"body")))
        self.assertEqual(store.put_figures.durations.count, 3)
        self.assertEqual(store.put_figures.by_status()[OK], 2 * ONE_IN + 1)

    def test_each_put_that_waits_for_the_disk_is_timed(self) -> None:
        store = self.open(flushDiskType="SYNC_FLUSH")
        for _ in range(5):
            self.successResultOf(store.put_message(Message("T", b"body")))
        self.assertEqual(store.put_figures.durations.count, 5)

    def test_the_wait_for_slaves_belongs_to_the_duration(self) -> None:
        store = self.open()
        waits = GroupCommit(self.clock, 3.0)

        class Slaves:
            def enough_for_puts(self) -> bool:
                return True

            def wait(self, next_offset: int):  # type: ignore[no-untyped-def]
                return waits.wait(next_offset).addCallback(
                    lambda in_time: OK if in_time else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
                )

            def give_up(self) -> None:
                waits.give_up()

        store.replicate_by(Slaves())
        in_time = store.put_message(Message("T", b"in time"))
        self.clock.advance(0.2)
        waits.reached(store.commit_log.max_offset)
        self.assertEqual(self.successResultOf(in_time).status, OK)
        late = store.put_message(Message("T", b"late"))
        self.clock.advance(3.0)
        self.assertEqual(self.successResultOf(late).status, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertAlmostEqual(store.put_figures.durations.sum, 3.2)
        self.assertEqual(store.put_figures.durations.count, 2)
        self.assertAlmostEqual(waits.durations.sum, 3.2)
        self.assertEqual(store.put_figures.by_status()[PutMessageStatus.FLUSH_SLAVE_TIMEOUT], 1)
