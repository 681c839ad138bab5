"""Finds what RocketMQ 5.x left in a store: messages of the timer wheel, and topics that have batch consume queues.

It warns of what this broker cannot handle, and tells the store which type of queues each topic has.
"""

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.events import Event
from rmqha.services import PeriodicService
from rmqha.store.derived.queuetypes import queue_types_of
from rmqha.store.messagestore import MessageStore
from rmqha.store.timers import TIMER_QUEUE_ID, TIMER_TOPIC

LOOK_SECONDS = 10.0


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
        if self._store.reader.max_offset(TIMER_TOPIC, TIMER_QUEUE_ID) > 0 and TIMER_TOPIC not in self._warnings:
            when = "when this slave becomes a master, they will not be" if self._store.is_slave else "they are not"
            self._tell(
                TIMER_TOPIC,
                f"the log has timer messages (topic {TIMER_TOPIC}) of RocketMQ 5.x, which rmqha does not support: "
                f"{when} delivered. A Java 5.x broker that opens this store delivers those that wait, and a few again",
            )
        if self._topics.changes != self._seen_changes:
            self._seen_changes = self._topics.changes
            self._look_at_topics()

    def _look_at_topics(self) -> None:
        self._store.set_queue_types(queue_types_of(self._topics.table.rows))

    def _tell(self, kind: str, warning: str) -> None:
        if self._warnings.get(kind) != warning:
            self._warnings[kind] = warning
            self._log.warn("{warning}", event=Event.FEATURE_UNSUPPORTED, warning=warning)
