"""What belongs to a place in the log, and counts only when our log is flushed up to that place.

Before that our log may not have a message that the thing calls delivered or checked. If a slave became the master then,
nobody would deliver it. The same is true of a slave whose log has other bytes than its master's before that place.
"""

from typing import Generic, NamedTuple, TypeVar

from rmqha.store.messagestore import MessageStore

Thing = TypeVar("Thing")


class Held(NamedTuple, Generic[Thing]):
    """A thing that waits until the log is flushed up to ``log_end``."""

    log_end: int
    thing: Thing

    def needs_flush(self, store: MessageStore) -> bool:
        """Whether a flush would end the wait: the log is long enough."""
        return store.commit_log.flushed_offset < self.log_end <= store.commit_log.max_offset

    def is_over(self, store: MessageStore) -> bool:
        """Whether the wait is over."""
        return store.commit_log.flushed_offset >= self.log_end and (store.has_masters_log or not store.is_slave)
