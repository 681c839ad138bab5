"""A store with more queues than the process may open files."""

import os
import resource
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import make_settings
from rmqha.store.derived import queuetable
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import GetMessageStatus
from tests.store.log.test_flush import Thread

QUEUES = 700
FILES_ALLOWED = 1000


class ManyQueuesTests(SynchronousTestCase):
    def setUp(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.open_before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_before + FILES_ALLOWED, hard))
        self.patch(queuetable, "MAX_OPEN_QUEUES", 100)  # it goes by the limit at the process's start
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.settings = make_settings(
            {"storePathRootDir": self.mktemp(), "mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "1000"}
        )

    @pytest.mark.long
    def test_files_are_opened_as_they_are_needed(self) -> None:
        store = MessageStore(self.settings)
        store.start_flushing(Clock(), Thread(), self.fail)
        for number in range(2 * QUEUES):
            store.put_message(Message("T", b"body", queue_id=number % QUEUES))
        store.derived.dispatcher.catch_up()
        self.check(store)
        self.successResultOf(store.close())
        again = MessageStore(self.settings)
        self.check(again)
        self.successResultOf(again.close())

    def check(self, store: MessageStore) -> None:
        for queue_id in range(QUEUES):
            found = store.reader.get_message("T", queue_id, 0, 10)
            self.assertEqual((found.status, len(found.records)), (GetMessageStatus.FOUND, 2))
        self.assertLess(len(os.listdir("/proc/self/fd")) - self.open_before, FILES_ALLOWED // 2)
        self.assertEqual(len(list(Path(store.root, "consumequeue", "T").iterdir())), QUEUES)
