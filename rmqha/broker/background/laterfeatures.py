"""Finds what RocketMQ 5.x left in a store and this broker cannot handle, and warns of it.

It looks for messages of the timer wheel, in their queue, and for topics that have batch consume queues.
"""

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.services import PeriodicService
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import is_batch_queue

LOOK_SECONDS = 10.0
TIMER_TOPIC = "rmq_sys_wheel_timer"
QUEUE_ID = 0
NAMES_SHOWN = 5


class LaterFeatures(PeriodicService):
    """Looks at a store at the start, and then every LOOK_SECONDS. It warns once of each kind that it finds."""

    _log = Logger()

    def __init__(self, store: MessageStore, topics: TopicConfigManager, clock: IReactorTime) -> None:
        super().__init__("looking for messages of RocketMQ 5.x", LOOK_SECONDS, self.look, clock)
        self._store = store
        self._topics = topics
        self._seen_changes = -1
        self._warnings: dict[str, str] = {}

    @property
    def warnings(self) -> list[str]:
        """What was found."""
        return list(self._warnings.values())

    def look(self) -> None:
        """Warn of what was not there the last time. Raises OSError."""
        if self._store.reader.max_offset(TIMER_TOPIC, QUEUE_ID) > 0 and TIMER_TOPIC not in self._warnings:
            when = "when this slave becomes a master, they will not be" if self._store.is_slave else "they are not"
            self._tell(
                TIMER_TOPIC,
                f"the log has timer messages (topic {TIMER_TOPIC}) of RocketMQ 5.x, which rmqha does not support: "
                f"{when} delivered. A Java 5.x broker can open this store. It delivers those that are due and, once "
                "more, those that were delivered before",
            )
        if self._topics.changes != self._seen_changes:
            self._seen_changes = self._topics.changes
            self._look_at_topics()

    def _look_at_topics(self) -> None:
        names = sorted(name for name, topic in self._topics.table.rows.items() if is_batch_queue(topic))
        if not names:
            self._warnings.pop("queues", None)
            return
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        self._tell(
            "queues",
            f"topics with queue.type=BatchCQ: {', '.join(names[:NAMES_SHOWN])}{more}. rmqha does not write batch "
            "consume queues of RocketMQ 5.x: its queue files of these topics are wrong. Before a Java 5.x broker opens "
            "this store, move the folders consumequeue and index away, and the broker builds all queues from the log",
        )

    def _tell(self, kind: str, warning: str) -> None:
        if self._warnings.get(kind) != warning:
            self._warnings[kind] = warning
            self._log.warn("{warning}", warning=warning)
