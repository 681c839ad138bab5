"""How a push consumer is set up: its handler, its options, its states."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from rmqha.client.bulk import Edge, StoredSince
from rmqha.client.caching import CacheLimits
from rmqha.client.received import ReceivedMessage
from rmqha.wire.heartbeat import ConsumeFromWhere, MessageModel

Handler = Callable[[ReceivedMessage], Deferred[Any] | Coroutine[Any, Any, Any] | None]
"""Handles one message. It may return a Deferred, or be a coroutine of Deferreds. A failure means: again later."""

MAX_RECONSUME_TIMES = 16
MAX_CONCURRENCY = 10_000
MAX_GROUP_CHARS = 255
GROUP_CHARACTERS = frozenset("%|abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class RetryLater(Exception):
    """A handler raises this if the message is to come again later, without a traceback in the log.

    ``delay_level`` says how much later: 1 is 1 s, 2 is 5 s, 3 is 10 s … (the broker's messageDelayLevel). With 0 the
    broker waits longer each time. With -1 the message goes to the dead letter topic at once. Ordered consumers ignore
    it, except for -1.
    """

    def __init__(self, reason: str = "", delay_level: int = 0) -> None:
        super().__init__(reason or "the handler wants the message again later")
        self.delay_level = delay_level


class ConsumerState(Enum):
    """What a push consumer is doing."""

    NEW = "it was not started yet, or its start failed"
    STARTING = "it joins its group"
    RUNNING = "it consumes"
    STOPPING = "its last handlers run"
    STOPPED = "it cannot be started again"


CONSUMER_STATES: dict[ConsumerState, frozenset[ConsumerState]] = {
    ConsumerState.NEW: frozenset({ConsumerState.STARTING, ConsumerState.STOPPED}),
    ConsumerState.STARTING: frozenset({ConsumerState.RUNNING, ConsumerState.NEW, ConsumerState.STOPPING}),
    ConsumerState.RUNNING: frozenset({ConsumerState.STOPPING}),
    ConsumerState.STOPPING: frozenset({ConsumerState.STOPPED}),
    ConsumerState.STOPPED: frozenset(),
}
"""The states that may follow each state."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of a push consumer.

    - ``model``: the consumers of a group share the messages (CLUSTERING), or each gets all of them (BROADCASTING).
    - ``start``: where a group starts to read a queue in which it has no offset yet: ``Edge.MIN`` is the first message
      that is still there, ``Edge.MAX`` (the default) is the next one that is stored, ``StoredSince(ms)`` is a time.
    - ``is_ordered``: each queue has one consumer and one handler at a time, in the order of the queue. A message that
      fails is tried again after ``retry_pause_seconds``, and the queue waits for it.
    - ``concurrency``: how many handlers run at the same time.
    - ``max_reconsume_times``: after this many tries more a message goes to the dead letter topic. None means 16, and
      for an ordered consumer no limit.
    - ``persist_seconds``: how often offsets are kept. After a crash the messages since then come again.
    - ``offset_folder``, ``instance``: the file of a broadcasting consumer is ``FOLDER/GROUP@INSTANCE.json``. The folder
      is ``~/.rmqha/offsets`` if it is None. Consumers of one machine need different instance names.
    """

    model: MessageModel = MessageModel.CLUSTERING
    start: Edge | StoredSince = Edge.MAX
    is_ordered: bool = False
    concurrency: int = 20
    max_reconsume_times: int | None = None
    retry_pause_seconds: float = 1.0
    persist_seconds: float = 5.0
    cache: CacheLimits = CacheLimits()
    offset_folder: Path | None = None
    instance: str = "DEFAULT"

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ValueError(f"concurrency is between 1 and {MAX_CONCURRENCY}")
        if self.max_reconsume_times is not None and self.max_reconsume_times < 0:
            raise ValueError("max_reconsume_times is not negative")
        if min(self.retry_pause_seconds, self.persist_seconds) <= 0:
            raise ValueError("retry_pause_seconds and persist_seconds are positive")
        if self.is_ordered and self.broadcasts:
            raise ValueError("an ordered consumer cannot broadcast: only one consumer of a group may have a queue")
        if not self.instance or not GROUP_CHARACTERS.issuperset(self.instance):
            raise ValueError(f"instance {self.instance!r} contains more than letters, digits and % | _ -")

    @property
    def broadcasts(self) -> bool:
        """Whether each consumer of the group gets all messages."""
        return self.model is MessageModel.BROADCASTING

    @property
    def max_tries(self) -> int | None:
        """How often a message may fail before it is given up; None without a limit."""
        if self.max_reconsume_times is not None:
            return self.max_reconsume_times
        return None if self.is_ordered else MAX_RECONSUME_TIMES

    @property
    def consume_from_where(self) -> ConsumeFromWhere:
        """``start`` as heartbeats name it."""
        if isinstance(self.start, StoredSince):
            return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        at_first = self.start is Edge.MIN
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET if at_first else ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


DEFAULT_OPTIONS = ConsumerOptions()


def check_group(group: str) -> None:
    """Raises ValueError if no group can have this name."""
    if not group or len(group) > MAX_GROUP_CHARS or not GROUP_CHARACTERS.issuperset(group):
        raise ValueError(
            f"group {group[:40]!r}: a name has 1 to {MAX_GROUP_CHARS} letters, digits and characters of % | _ -"
        )
