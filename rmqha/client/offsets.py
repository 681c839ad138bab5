"""Where a consumer goes on after a restart: at the brokers, or in a file of its own if it broadcasts."""

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorThreads
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from rmqha.client.errors import ClientError, OffsetFileError
from rmqha.client.message import MessageQueue
from rmqha.client.pull import PullConsumer
from rmqha.client.together import together
from rmqha.kit.events import Event
from rmqha.wire.beans import LONG_BITS, read_integer, read_objects
from rmqha.wire.fastjson import dumps_strict, loads_lenient

Result = TypeVar("Result")
MAX_FILE_BYTES = 64 * 1024 * 1024


class OffsetStore(Protocol):
    """Keeps the offsets of a consumer."""

    def open(self) -> Deferred[None]:
        """Get ready. Fails with OffsetFileError."""

    def get(self, queue: MessageQueue) -> Deferred[int | None]:
        """The offset of a queue; None if there is none. Fails with MQClientError, MQBrokerError."""

    def put(self, offsets: Mapping[MessageQueue, int]) -> Deferred[set[MessageQueue]]:
        """Keep these offsets. Fires with the queues for which this succeeded; never fails."""

    def close(self) -> None:
        """Let go of all resources."""


class BrokerOffsets:
    """Offsets that brokers keep for a group, which all its consumers share."""

    _log = Logger()

    def __init__(self, puller: PullConsumer) -> None:
        self._puller = puller
        self._failing = False

    def open(self) -> Deferred[None]:
        """Nothing is to be done."""
        return maybeDeferred(lambda: None)

    def get(self, queue: MessageQueue) -> Deferred[int | None]:
        """Ask the broker of the queue."""
        return self._puller.query_offset(queue)

    def put(self, offsets: Mapping[MessageQueue, int]) -> Deferred[set[MessageQueue]]:
        """Tell the brokers of the queues."""
        return together(self._put(queue, offset) for queue, offset in offsets.items()).addCallback(self._kept)

    async def _put(self, queue: MessageQueue, offset: int) -> tuple[MessageQueue, str]:
        try:
            await self._puller.update_offset(queue, offset)
        except ClientError as error:
            return queue, str(error)
        return queue, ""

    def _kept(self, answers: list[tuple[MessageQueue, str]]) -> set[MessageQueue]:
        problem = next((problem for _, problem in answers if problem), "")
        if problem and not self._failing:  # once, until it works again
            self._log.warn(
                "offsets are not kept, and will be sent again: {problem}", event=Event.OFFSETS_NOT_KEPT, problem=problem
            )
        self._failing = bool(problem)
        return {queue for queue, problem in answers if not problem}

    def close(self) -> None:
        """Nothing is to be done."""


class LocalOffsets:
    """Offsets in a file of this machine. Only one consumer may use a file; a second one is refused.

    A file that cannot be read is an error: it is not overwritten.
    """

    _log = Logger()

    def __init__(self, path: Path, reactor: Any) -> None:
        self._path = path
        self._reactor = reactor
        self._offsets: dict[MessageQueue, int] = {}
        self._lock: IO[bytes] | None = None

    def open(self) -> Deferred[None]:
        """Read the file, if it exists. Fails with OffsetFileError."""
        return self._in_thread(self._open)

    def _in_thread(self, function: Callable[[], Result]) -> Deferred[Result]:
        if not IReactorThreads.providedBy(self._reactor):  # a clock of a test
            return maybeDeferred(function)
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = self._path.with_suffix(".lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise OffsetFileError(f"another consumer uses {self._path}; give each its own instance name") from error
        self._lock = lock
        try:
            self._offsets = self._read()
        except (OSError, ValueError) as error:
            self.close()
            raise OffsetFileError(f"{self._path} cannot be read: {error}; repair it, or move it away") from error

    def _read(self) -> dict[MessageQueue, int]:
        if not self._path.exists():
            return {}
        if self._path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        rows = read_objects(loads_lenient(self._path.read_bytes()), "offsets")
        return {MessageQueue.from_json(row): _offset_of(row) for row in rows}

    def get(self, queue: MessageQueue) -> Deferred[int | None]:
        """The offset in the file."""
        return maybeDeferred(self._offsets.get, queue)

    def put(self, offsets: Mapping[MessageQueue, int]) -> Deferred[set[MessageQueue]]:
        """Write the file again, with the offsets of all queues."""
        self._offsets.update(offsets)
        rows = [{**queue.to_json(), "offset": offset} for queue, offset in sorted(self._offsets.items())]
        writing = self._in_thread(lambda: self._write(dumps_strict({"offsets": rows})))
        return writing.addCallbacks(lambda _: set(offsets), self._not_written)

    def _write(self, content: bytes) -> None:
        new = self._path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def _not_written(self, failure: Any) -> set[MessageQueue]:
        self._log.error(
            "{path} cannot be written: {error}",
            event=Event.OFFSET_FILE_NOT_WRITTEN,
            path=str(self._path),
            error=failure.getErrorMessage(),
        )
        return set()

    def close(self) -> None:
        """Let another consumer use the file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def _offset_of(row: Mapping[str, Any]) -> int:
    return read_integer(row.get("offset"), LONG_BITS)
