"""Whether a Java master has deleted a topic of which a queue starts again from 0 in the log (spec/store.md 13.5).

A Java master does not say that it has deleted a topic. A message with queue offset 0, where our queue has others,
does not prove it: the master may have lost the files of one queue, or cleaned an expired one (mqadmin cleanExpiredCQ).
So the master is asked where it has our messages. It has deleted the topic if it has none from before a place in the
log, all from after it, and has changed its table of topics since it stored the last of those that are gone.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.remoting.calls import RemotingError
from rmqha.store.derived.consumequeue import ConsumeQueue, Unit
from rmqha.store.messagestore import MessageStore
from rmqha.store.restarts import Restart
from rmqha.wire.command import ResponseCode

NOT_SHOWN = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
"""The master looked for a message, and shows none: retention may have taken it. No other error speaks of messages."""
NO_PLACE = 1 << 63
"""Beyond the end of each log."""


class QueueOwner(Protocol):
    """A master that is asked for its queues. The methods raise RemotingError, TimeoutError, or other errors."""

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that comes next in a queue, 0 if there is no such queue."""

    async def place_of(self, topic: str, queue_id: int, offset: int) -> int:
        """Where the message at a queue offset is in the log."""


class _LastMessage(NamedTuple):
    """The last message that a queue of ours has before a restart of its topic."""

    queue: ConsumeQueue
    queue_offset: int
    unit: Unit


class RestartJudge:
    """Asks a Java master about the restarts that the store has found."""

    _log = Logger()

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._forbidden: set[str] = set()
        """The topics of which the log has said that the master does not let us ask."""

    async def judge(self, master: QueueOwner, changed_ms: int) -> tuple[list[str], dict[str, int]]:
        """Ask the master. Returns the topics that are judged, and the deleted ones with the offset of their marks.

        ``changed_ms`` is when the master last changed its table of topics, in ms. Questions without an answer are for
        the next time.
        """
        judged: list[str] = []
        ends: dict[str, int] = {}
        waiting = self._store.restarts.found
        self._forbidden &= waiting.keys()
        for topic, restart in waiting.items():
            try:
                if not await master.max_offset(topic, restart.queue_id):
                    continue  # it has not come to this message yet, or has deleted the topic again
                end = await self._end_of_deleted(master, topic, restart, changed_ms)
            except CancelledError:
                raise
            except Exception as error:  # of any kind: without an answer nothing is dropped
                self._tell_unknown(topic, error)
                continue
            judged.append(topic)
            if end is not None:
                ends[topic] = end
        return judged, ends

    def _tell_unknown(self, topic: str, error: Exception) -> None:
        """Log why there is no answer. What an operator must change is an alarm, once."""
        is_forbidden = isinstance(error, RemotingError) and (
            error.answer is not None and error.answer.code == ResponseCode.NO_PERMISSION
        )
        if is_forbidden and topic not in self._forbidden:
            self._forbidden.add(topic)
            self._log.warn(
                "the master does not let us ask whether it has deleted {topic}, of which a queue starts again from 0: "
                "{reason}. It is asked again. Our queues keep the old messages until it answers",
                event=Event.DELETION_NOT_TOLD,
                topic=topic,
                reason=reason_of(error),
            )
        else:
            self._log.debug(
                "the master does not say whether it has deleted {topic}: {reason}",
                event=Event.DELETION_UNKNOWN,
                topic=topic,
                reason=reason_of(error),
            )

    async def _end_of_deleted(self, master: QueueOwner, topic: str, restart: Restart, changed_ms: int) -> int | None:
        """The end of the last message that the master has deleted; None if it has not deleted the topic."""
        end = gone_ms = 0
        first_left = NO_PLACE
        lasts = list(self._last_messages(topic, restart.at))
        if not lasts:
            return None  # they were deleted meanwhile, or retention has taken them
        for last in lasts:
            if await self._has(master, last):
                first_left = min(first_left, self._first_place(last.queue))
            else:
                end = max(end, last.unit.physical_offset + last.unit.size)
                gone_ms = max(gone_ms, self._stored_at(last))
        if not end:
            reason = "has all messages that we have"
        elif first_left < end:
            reason = "has other messages of the topic from before"
        elif changed_ms < gone_ms:
            reason = "has not changed its table of topics since then"
        else:
            return end
        self._log.warn(
            "queue {queue_id} of {topic} starts again from 0 at {at} of the log, but the master {reason}: the topic "
            "counts as not deleted. Our queue keeps its messages. The new ones are in it only from queue offset "
            "{end} on",
            event=Event.QUEUE_STARTS_AGAIN,
            queue_id=restart.queue_id,
            topic=topic,
            at=restart.at,
            reason=reason,
            end=self._store.reader.max_offset(topic, restart.queue_id),
        )
        return None

    def _last_messages(self, topic: str, at: int) -> Iterator[_LastMessage]:
        """The last message before this offset of the log, of each queue that has any. Raises OSError."""
        for key in [key for key in self._store.derived.queues.queues if key[0] == topic]:
            queue = self._store.derived.queues.get(*key)
            if queue is None:
                continue
            end = queue.end_before(at)
            unit = queue.unit(end - 1) if end > queue.min_offset else None
            if unit is not None and not unit.is_blank:
                yield _LastMessage(queue, end - 1, unit)

    def _first_place(self, queue: ConsumeQueue) -> int:
        """Where the first message of a queue is in the log, 0 if there were others before it. Raises OSError."""
        if queue.min_offset > 0:
            return 0
        place = self._store.derived.queues.first_message(queue)
        return 0 if place is None else place

    def _stored_at(self, last: _LastMessage) -> int:
        record = self._store.reader.message_at(last.unit.physical_offset)
        return 0 if record is None else record.store_timestamp

    @staticmethod
    async def _has(master: QueueOwner, last: _LastMessage) -> bool:
        """Whether the master has this message, or does not show another one in its place. Raises as ``master`` does."""
        topic, queue_id = last.queue.topic, last.queue.queue_id
        if await master.max_offset(topic, queue_id) <= last.queue_offset:
            return False
        try:
            return await master.place_of(topic, queue_id, last.queue_offset) == last.unit.physical_offset
        except RemotingError as error:
            if error.answer is not None and error.answer.code in NOT_SHOWN:
                return True
            raise
