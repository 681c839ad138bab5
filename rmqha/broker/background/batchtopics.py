"""Tells the store which topics have batch consume queues, an attribute of topics that RocketMQ 5.x added."""

from twisted.internet.interfaces import IReactorTime

from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.services import PeriodicService
from rmqha.store.derived.queuetypes import queue_types_of
from rmqha.store.messagestore import MessageStore

LOOK_SECONDS = 10.0


class BatchTopics(PeriodicService):
    """Looks at the topics at the start, and then every LOOK_SECONDS."""

    def __init__(self, store: MessageStore, topics: TopicConfigManager, clock: IReactorTime) -> None:
        super().__init__("looking for topics with batch consume queues", LOOK_SECONDS, self.look, clock)
        self._store = store
        self._topics = topics
        self._seen_changes = -1

    def look(self) -> None:
        """Tell the store, if the topics have changed."""
        if self._topics.changes != self._seen_changes:
            self._seen_changes = self._topics.changes
            self._store.set_queue_types(queue_types_of(self._topics.table.rows))
