"""What belongs to a place in the log, and counts only when our log is flushed up to that place.

Before that our log may not have a message that the thing calls delivered or checked. If a slave became the master then,
nobody would deliver it.
"""

from typing import Generic, NamedTuple, TypeVar

from rmqha.store.log.commitlog import CommitLog

Thing = TypeVar("Thing")


class Held(NamedTuple, Generic[Thing]):
    """A thing that waits until the log is flushed up to ``log_end``."""

    log_end: int
    thing: Thing

    def needs_flush(self, log: CommitLog) -> bool:
        """Whether a flush would end the wait: the log is long enough."""
        return log.flushed_offset < self.log_end <= log.max_offset

    def is_over(self, log: CommitLog) -> bool:
        """Whether the wait is over."""
        return log.flushed_offset >= self.log_end
