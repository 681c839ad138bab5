"""A node with very many queues does little in one turn of the reactor, and says how far a long dispatch is."""

from unittest.mock import patch

import pytest
from twisted.internet.defer import succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import make_settings
from rmqha.store.derived import dispatch
from rmqha.store.derived.dispatch import SLICE_QUEUES, SLICE_RUNS
from rmqha.store.log.mappedfile import MANY_FILES
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from tests.fixtures import new_folder


class ManyQueuesTurnsTests(SynchronousTestCase):
    def setUp(self) -> None:
        texts = {"storePathRootDir": str(new_folder(self)), "mappedFileSizeConsumeQueue": "2000"}
        self.store = MessageStore(make_settings({**texts, "messageIndexEnable": "false"}))
        self.clock = Clock()
        self.store.start_flushing(self.clock, lambda call: succeed(call()), self.fail)

    def close(self) -> None:
        self.successResultOf(self.store.close())

    def put(self, queues: int) -> None:
        for queue_id in range(queues):
            self.store.put_message(Message("T", b"body", queue_id=queue_id))

    @pytest.mark.long
    def test_a_slice_looks_for_few_queues_only(self) -> None:
        self.put(3 * SLICE_RUNS)
        table, dispatcher = self.store.derived.queues, self.store.derived.dispatcher
        self.store.start_dispatching(self.clock, self.fail)
        while dispatcher.behind_bytes:
            with patch.object(table, "get_or_make", wraps=table.get_or_make) as got:
                dispatcher.run_slice(self.clock.seconds() + 1)
            self.assertLessEqual(got.call_count, SLICE_RUNS)
            self.assertLessEqual(table.queues_to_write, SLICE_QUEUES)
        self.close()

    def test_a_flush_lists_the_files_of_many_queues_in_its_thread(self) -> None:
        self.put(MANY_FILES + 1)
        self.store.derived.dispatcher.catch_up()
        (taken,) = self.store.take_unflushed()
        self.assertEqual(list(self.store.take_unflushed()), [])
        with patch("rmqha.store.log.mappedfile._syncfs", return_value=0) as syncfs:
            taken.sync()
        self.assertEqual(syncfs.call_count, 1)
        self.close()

    def test_a_long_dispatch_tells_how_far_it_is(self) -> None:
        dispatcher = self.store.derived.dispatcher
        self.patch(dispatch, "MIN_BULK_BYTES", 1 << 40)
        self.patch(dispatch, "SLICE_MESSAGES", 1)
        self.patch(dispatch.SliceSchedule, "_pause", lambda schedule, seconds: 3.0)
        self.put(8)
        with capturedLogs() as logs:
            self.store.start_dispatching(self.clock, self.fail)
            seen = []
            for _ in range(8):
                self.clock.advance(3)
                seen.append(dispatcher.progress)
            while dispatcher.behind_bytes:
                self.clock.advance(1)
        lines = [formatEvent(event) or "" for event in logs]
        self.assertIsNone(seen[0], "it was only just begun")
        self.assertIn(f"of {self.store.commit_log.verified_offset}", next(filter(None, seen)))
        self.assertTrue(any(line.startswith("building queues and index: at ") for line in lines))
        self.assertTrue(any(line.startswith("queues and index are built") for line in lines))
        self.assertIsNone(dispatcher.progress)
        self.close()
