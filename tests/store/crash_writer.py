"""A process that forks writers: each fills one store at full speed until it is killed, and tells what was acknowledged.

Forking saves Python's start at every round. stdin has ``SEED STORE`` a line, stdout for each: ``pid N``, then
``ack OFFSET TOPIC QUEUE QUEUE_OFFSET KEY`` for each acknowledged message, then ``ended STATUS``.
SIGTERM stops a writer cleanly.
"""

import os
import random
import signal
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import twisted.internet.default  # noqa: F401 - what a writer's reactor imports: none of them has to
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from rmqha.settings.settings import Settings, make_settings
from rmqha.store.message import AppendMessageResult, Message, MessageBatch, PutMessageResult, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.record import TRANSACTION_COMMIT_TYPE, TRANSACTION_PREPARED_TYPE, Host

IN_FLIGHT = 24
TOPICS = ("Orders", "Clicks", "%RETRY%group")
QUEUES = 2
NO_QUEUE = -1
"""The queue id told of a message that has no place in a queue."""


def settings_of(root: Path) -> Settings:
    """Everything small, so that every kind of file is begun and ended often."""
    return make_settings(
        {
            "storePathRootDir": str(root),
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "4000",
            "maxHashSlotNum": "200",
            "maxIndexNum": "1000",
            "flushDiskType": "SYNC_FLUSH",
            "flushCommitLogThoroughInterval": "40",
            "flushIntervalCommitLog": "20",
            "syncFlushTimeout": "30000",
        }
    )


def body_of(key: str) -> bytes:
    """The body of the message with this key: some are empty, a few are long."""
    digest = zlib.crc32(key.encode())
    return (key.encode() + b"|") * (digest % 9 if digest % 50 else 400)


class Writer:
    """Keeps puts in flight, and tells of each that was acknowledged."""

    def __init__(self, store: MessageStore, seed: int) -> None:
        self._store = store
        self._rng = random.Random(seed)
        self._seed = seed
        self._number = 0
        self.stopping = False

    def put_one(self, _: object = None) -> None:
        """Put something; when it is acknowledged, tell so and put the next."""
        if self.stopping:
            return
        kind = self._rng.randrange(20)
        topic, queue_id = self._rng.choice(TOPICS), self._rng.randrange(QUEUES)
        if kind == 0:
            batch = MessageBatch(
                topic, [self._message(topic, queue_id) for _ in range(self._rng.randrange(1, 6))], queue_id=queue_id
            )
            keys = [message.properties["KEYS"] for message in batch.messages]
            putting = self._store.put_messages(batch).addCallback(self._acknowledge, topic, queue_id, keys)
        else:
            message = self._message(topic, queue_id)
            keys = [message.properties["KEYS"]]
            if kind == 1:
                message.properties["DELAY"] = "3"
                topic, queue_id = SCHEDULE_TOPIC, 2
            elif kind == 2:
                message.sys_flag, queue_id = TRANSACTION_PREPARED_TYPE, NO_QUEUE
            elif kind == 3:
                message.sys_flag = TRANSACTION_COMMIT_TYPE
            putting = self._store.put_message(message).addCallback(self._acknowledge, topic, queue_id, keys)
        putting.addCallbacks(self.put_one, end_with_error)

    def _message(self, topic: str, queue_id: int) -> Message:
        self._number += 1
        key = f"{self._seed}-{self._number}"
        born = Host(bytes(16) if self._number % 7 == 0 else b"\x0a\0\0\x01", self._number)
        return Message(topic, body_of(key), {"KEYS": key, "TAGS": "A"}, queue_id, born_host=born)

    def _acknowledge(self, result: PutMessageResult, topic: str, queue_id: int, keys: list[str]) -> None:
        if result.status is not PutMessageStatus.PUT_OK or result.append is None:
            raise AssertionError(f"{result} for {keys}")
        told(result.append, topic, queue_id, keys)


def told(append: AppendMessageResult, topic: str, queue_id: int, keys: list[str]) -> None:
    """One write a line: none is ever torn."""
    for number, (offset, key) in enumerate(zip(append.message_offsets, keys, strict=True)):
        line = f"ack {offset} {topic} {queue_id} {append.logics_offset + number} {key}\n"
        os.write(1, line.encode())


def end_with_error(failure: object) -> None:
    """Nothing may fail here; os._exit, so that no shutdown mends anything."""
    print(failure, file=sys.stderr, flush=True)
    os._exit(3)


def write(root: Path, seed: int) -> None:
    """Write until the process is killed, or stopped by SIGTERM."""
    from twisted.internet import reactor as global_reactor

    reactor: Any = global_reactor
    threads = ThreadPool(minthreads=1, maxthreads=1)
    threads.start()

    def run_in_thread(function: Callable[[], None]) -> Deferred[None]:
        done: Deferred[None] = deferToThreadPool(reactor, threads, function)
        return done

    store = MessageStore(settings_of(root))
    flusher = store.start_flushing(reactor, run_in_thread, end_with_error)
    store.start_dispatching(reactor, end_with_error)
    writer = Writer(store, seed)

    def stop() -> None:
        writer.stopping = True
        store.close(flusher).addCallbacks(lambda _: os._exit(0), end_with_error)

    def begin() -> None:
        signal.signal(signal.SIGTERM, lambda *_: reactor.callFromThread(stop))
        for _ in range(IN_FLIGHT):
            writer.put_one()

    reactor.callWhenRunning(begin)
    reactor.run()


def main() -> None:
    """Fork a writer for each line."""
    for line in sys.stdin:
        seed, _, root = line.rstrip("\n").partition(" ")
        child = os.fork()
        if child == 0:
            try:
                os.write(1, f"pid {os.getpid()}\n".encode())
                write(Path(root), int(seed))
            except BaseException:
                traceback.print_exc()
            os._exit(3)
        _, status = os.waitpid(child, 0)
        os.write(1, f"ended {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
