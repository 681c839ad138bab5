"""The messages that a consumer has pulled and not finished, and the limits for them."""

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.wire.record import Record


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What a consumer keeps at most before it pulls more.

    ``messages`` and ``bytes`` hold for all its queues together, ``messages_of_queue`` for each. ``span`` limits how far
    the newest message of a queue may be from the oldest unfinished one: as many may come again after a crash. A pull
    that is on its way may bring more: at most one answer for each queue. A broker keeps it to 256 KiB or one message.
    """

    messages: int = 10_000
    bytes: int = 64 * 1024 * 1024
    messages_of_queue: int = 1000
    span: int = 2000

    def __post_init__(self) -> None:
        if min(self.messages, self.bytes, self.messages_of_queue, self.span) < 1:
            raise ValueError("each limit of a consumer's memory is at least 1")


class Usage:
    """What the queues of a consumer have cached together."""

    def __init__(self, limits: CacheLimits) -> None:
        self.limits = limits
        self.messages = 0
        self.bytes = 0
        self.waiting: dict[Callable[[], None], None] = {}
        """What to call when there is room again."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be pulled for any queue."""
        return self.messages >= self.limits.messages or self.bytes >= self.limits.bytes

    def go_on(self) -> None:
        """Call those that wait, if there is room again."""
        if self.waiting and not self.is_full:
            waiting, self.waiting = self.waiting, {}
            for call in waiting:
                call()


class QueueCache:
    """The unfinished messages of one queue: those that wait, and those that a handler has."""

    def __init__(self, usage: Usage, next_offset: int) -> None:
        """``next_offset`` is where the queue is read first."""
        self._usage = usage
        self._sizes: dict[int, int] = {}  # by offset, the smallest first
        self.next_offset = next_offset
        """Where the next pull starts."""

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def is_full(self) -> bool:
        """Whether this queue is to be pulled no further now."""
        limits = self._usage.limits
        return (
            self._usage.is_full
            or len(self._sizes) >= limits.messages_of_queue
            or self.next_offset - self.commit_offset >= limits.span
        )

    def add(self, record: Record) -> None:
        """A message was pulled. Messages come in the order of their offsets."""
        size = self._sizes[record.queue_offset] = record.total_size
        self._usage.messages += 1
        self._usage.bytes += size

    def finish(self, offset: int) -> None:
        """A message is done, or another consumer will do it."""
        size = self._sizes.pop(offset, None)
        if size is not None:
            self._usage.messages -= 1
            self._usage.bytes -= size

    def clear(self) -> None:
        """Forget all messages."""
        for offset in list(self._sizes):
            self.finish(offset)

    @property
    def summary(self) -> tuple[int, int, int, int]:
        """The smallest and the largest offset, the number and the bytes of the messages; zeros without any."""
        if not self._sizes:
            return 0, 0, 0, 0
        return next(iter(self._sizes)), next(reversed(self._sizes)), len(self._sizes), sum(self._sizes.values())

    @property
    def commit_offset(self) -> int:
        """All messages before this offset are done."""
        return next(iter(self._sizes), self.next_offset)
