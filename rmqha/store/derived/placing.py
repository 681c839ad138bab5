"""Puts messages into their queues one by one: what each needs before its unit, and why one gets none."""

import time
from collections.abc import Callable

from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.store.deletions import NOTHING_DELETED, DeletedTopicTable
from rmqha.store.derived.batchqueue import BatchConsumeQueue, batch_unit_of
from rmqha.store.derived.consumequeue import BlankBudget, ConsumeQueue, Unit
from rmqha.store.derived.dispatchrequest import DispatchRequest, is_possible_offset
from rmqha.store.derived.queuetable import QueueTable
from rmqha.store.errors import StoreError
from rmqha.store.log.commitlog import CommitLog
from rmqha.wire.delay import DelayLevels

FILL_BYTES = 256 * 1024
"""The maximum of blanks before a message in one slice."""
NOTICE_SECONDS = 10.0

MessageArrived = Callable[[DispatchRequest, int], None]
"""Called with a message that has its unit in a queue, and with its tagsCode."""
FoundRestart = Callable[[DispatchRequest], None]
"""Called with a message that has queue offset 0, and comes after other messages of its queue."""


class Notices:
    """Logs problems of messages. A hostile log may have very many, so most are only counted."""

    _log = Logger()

    def __init__(self) -> None:
        self._next_time = 0.0
        self._left_out = 0

    def add(self, event: Event, text: str, **fields: object) -> None:
        """Log it, or count it."""
        now = time.monotonic()
        if now < self._next_time:
            self._left_out += 1
            return
        self._next_time = now + NOTICE_SECONDS
        self._log.error(text + "{more}", event=event, more=self._more(), **fields)

    def _more(self) -> str:
        left_out, self._left_out = self._left_out, 0
        return f"; {left_out} more such messages since the last line" if left_out else ""

    def finish(self) -> None:
        """Log how many problems were only counted, if any."""
        if self._left_out:
            self._log.error(
                "{count} more messages are in no queue, or leave a gap",
                event=Event.MESSAGE_PROBLEMS_COUNTED,
                count=self._left_out,
            )
            self._left_out = 0


class Placer:
    """Puts messages into their queues, and tells listeners of each."""

    def __init__(self, log: CommitLog, queues: QueueTable, delay_levels: DelayLevels) -> None:
        self._commit_log = log
        self._queues = queues
        self._delay_levels = delay_levels
        self.deleted: DeletedTopicTable = NOTHING_DELETED
        """The deleted topics: their messages get no units."""
        self.listeners: list[MessageArrived] = []
        self.found_batches: Callable[[str], bool] = lambda topic: False
        """Called with a topic when the log has the first batch of it, if the topics' table does not have the topic.

        Returns whether dispatch must go back in the log for it.
        """
        self.found_restart: FoundRestart = lambda request: None
        self.empty: Callable[[ConsumeQueue], None] = lambda queue: queue.truncate(0)
        """Called with a queue that starts again from 0, and whose messages are all gone from the log."""
        self._blanks = BlankBudget()
        self.filled: ConsumeQueue | None = None
        """The queue that is being filled with blanks."""
        self.notices = Notices()

    def tell(self, request: DispatchRequest, tags_code: int) -> None:
        """Call the listeners with a message."""
        for message_arrived in self.listeners:
            message_arrived(request, tags_code)

    def place(self, request: DispatchRequest) -> bool:
        """Add a message's unit. False if the blanks before it take longer than a slice."""
        if not self.has_place(request):
            pass
        elif self._queues.types.is_batch(request.topic, request.sys_flag):
            if not self._place_batch(request):
                return False
        else:
            tags_code = request.tags_code(self._delay_levels)
            queue = self._queue_of(request)
            if queue is not None:
                self._empty_if_over(queue, request, request.queue_offset)
                unit = Unit(request.physical_offset, request.size, tags_code)
                if not queue.has(unit) and not self._make_room(queue, request):
                    return False
                if queue.max_offset <= request.queue_offset:
                    queue.put(request.queue_offset, unit)
                elif self._starts_again(queue, request, request.queue_offset):
                    self.found_restart(request)
                self.tell(request, tags_code)
        return True

    def _starts_again(self, queue: ConsumeQueue, request: DispatchRequest, queue_offset: int) -> bool:
        """Whether the message has queue offset 0 after others of the queue, which were not deleted. Raises OSError."""
        if queue_offset:
            return False
        end = queue.max_physical_offset
        if request.physical_offset < end:  # dispatch comes here again, and the queue may have later messages
            after = queue.end_before(request.physical_offset)
            unit = queue.unit(after - 1) if after > queue.min_offset else None
            if unit is None or unit.is_blank:
                return False
            end = unit.physical_offset + unit.size
        return not self.deleted.is_deleted(request.topic, end - 1)

    def _empty_if_over(self, queue: ConsumeQueue, request: DispatchRequest, queue_offset: int) -> None:
        """Empty a queue that starts again from 0 if its messages are all gone from the log: nobody can miss them.

        Raises OSError.
        """
        if queue_offset or not queue.max_offset or request.physical_offset < queue.max_physical_offset:
            return
        if queue.min_offset >= queue.max_offset:
            self.empty(queue)

    def has_place(self, request: DispatchRequest) -> bool:
        """Whether the message belongs into a queue: it is not a half of a transaction, and was not deleted."""
        return request.is_queued and not self.deleted.is_deleted(request.topic, request.physical_offset)

    def _place_batch(self, request: DispatchRequest) -> bool:
        """Add the unit of a message that has a batch consume queue. False if dispatch went back in the log."""
        if not self._queues.types.is_batch(request.topic) and self.found_batches(request.topic):
            return False
        try:
            unit = batch_unit_of(request, self._delay_levels)
            queue = self._queues.get_or_make(request.topic, request.queue_id)
        except (ValueError, StoreError) as error:
            self._refuse(request, str(error))
            return True
        assert isinstance(queue, BatchConsumeQueue), "the table makes queues of the topic's type"
        self._empty_if_over(queue, request, unit.base_offset)
        if not queue.put_batch(unit):
            if self._starts_again(queue, request, unit.base_offset):
                self.found_restart(request)
            self._refuse(request, f"its batch starts at {unit.base_offset}, and the queue ends at {queue.max_offset}")
            return True
        last = request._replace(queue_offset=unit.end_offset - 1)
        self.tell(last, unit.tags_code)
        return True

    def _queue_of(self, request: DispatchRequest) -> ConsumeQueue | None:
        """The queue of a message. If no queue can hold it, logs that and returns None."""
        if not is_possible_offset(request.queue_offset, request.physical_offset, request.sys_flag):
            self._refuse(request, f"QUEUEOFFSET {request.queue_offset} is impossible at this place of the log")
            return None
        try:
            queue = self._queues.get_or_make(request.topic, request.queue_id)
        except StoreError as error:
            self._refuse(request, str(error))
            return None
        log_bytes = self._commit_log.max_offset - self._commit_log.min_offset
        if queue is self.filled or self._blanks.has_room(queue, request.queue_offset, log_bytes):
            return queue
        blank_bytes = queue.blank_bytes_before(request.queue_offset)
        self._refuse(request, f"queue {request.queue_id} of {request.topic} would need {blank_bytes} more bytes")
        return None

    def _make_room(self, queue: ConsumeQueue, request: DispatchRequest) -> bool:
        """Add blanks for units missing before the message. False if more blanks are needed."""
        breaches = queue.order_breaches
        has_room = queue.make_room(request.queue_offset, FILL_BYTES)
        self.filled = None if has_room else queue
        if queue.order_breaches > breaches:
            self.notices.add(
                Event.QUEUE_GAP,
                "queue {queue_id} of {topic} has no units just before {queue_offset}: rmqha rebuild builds it again",
                queue_id=request.queue_id,
                topic=request.topic,
                queue_offset=request.queue_offset,
            )
        return has_room

    def _refuse(self, request: DispatchRequest, reason: str) -> None:
        self.notices.add(
            Event.MESSAGE_NOT_QUEUED,
            "message at {at} is in no queue: {reason}",
            at=request.physical_offset,
            reason=reason,
        )
