"""Deletes topics with their queues and offsets, on a master, and on the slaves that follow it (spec/store.md 13.5).

The steps of a deletion reach the disk in this order: the mark, then the queues and offsets, then the table of topics.
After a death between two of them the topic is there still, or it is there and empty: a start does what is missing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from rmqha.broker.tables.configmanager import ConfigManager, TableStorage
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.events import Event
from rmqha.kit.steps import at_once
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.turns import Turns
from rmqha.store.deletions import DeletedTopicTable, Deletion
from rmqha.store.messagestore import MessageStore
from rmqha.wire.topics import RETRY_PREFIX

TOLD = 10
"""The most topics that a line of the log names."""


@dataclass(frozen=True, slots=True)
class Deleting:
    """What a deletion changes besides the store."""

    topics: TopicConfigManager
    consumer_offsets: ConsumerOffsetManager
    groups: SubscriptionGroupManager
    turns: Turns
    wall: IWallClock


class DeletedTopics(ConfigManager[DeletedTopicTable]):
    """The deleted topics of a broker. One deletion runs at a time."""

    _log = Logger()

    def __init__(self, storage: TableStorage, store: MessageStore, deleting: Deleting) -> None:
        """Reads deletedTopics.json. Raises StoreError, OSError."""
        super().__init__(storage, DeletedTopicTable)
        self._store = store
        self._topics = deleting.topics
        self._consumer_offsets = deleting.consumer_offsets
        self._turns = deleting.turns
        self._now_ms = deleting.wall.now_ms
        self._lock = DeferredLock()
        if self.table.deletions and not store.is_slave:  # a slave drops them first, and gets its master's
            self._drop_stale_offsets(deleting.groups)

    def _drop_stale_offsets(self, groups: SubscriptionGroupManager) -> None:
        """Drop what a death after the mark has left: what groups had read of a deleted topic, or a deleted group had.

        A queue that has no messages since the mark has none that a group can have read.
        """
        marks, ends = self.table.marks, self._store.puts.appender.queue_offsets
        offsets = self._consumer_offsets
        count = at_once(offsets.removing_queues(marks, ends))
        at_once(offsets.removing_of((), {group for group in _groups_of(marks) if groups.get(group) is None}))
        if count:
            self._log.info(
                "{count} offsets of groups in deleted topics are dropped: the broker died before it could",
                event=Event.STALE_OFFSETS_DROPPED,
                count=count,
            )

    def stopService(self) -> Deferred[None]:
        """Fires when no deletion runs any more, and all is written, or has failed."""
        return self._lock.run(super().stopService)

    def delete(self, topic: str, even_if_missing: bool = False) -> Deferred[None]:
        """Delete a topic with its queues, and what groups have read of it.

        A topic that is missing gets no mark, because strangers could fill the table, unless ``even_if_missing``.
        Fires when that is on the disk. Fails with OSError if the disk refuses it: then the topic takes no messages.
        """
        return self._lock.run(lambda: Deferred.fromCoroutine(self._delete(topic, even_if_missing)))

    async def _delete(self, topic: str, even_if_missing: bool) -> None:
        has_row = self._topics.delete(topic)
        if has_row or even_if_missing or any(key[0] == topic for key in self._store.derived.queues.queues):
            mark = Deletion(topic, self._store.close_topic(topic), self._now_ms())
            self.table = self.table.adding((mark,), self._store.commit_log.min_offset)
            await self._apply((mark,))
        await self._turns.run(self._consumer_offsets.removing_of((topic,)))
        await self._consumer_offsets.persist()
        await self._topics.written()

    def follow(self, masters: DeletedTopicTable, masters_min: int) -> Deferred[None]:
        """Take over a master's deletions, on its slave. The master's log starts at ``masters_min``.

        Fails with OSError.
        """
        return self._lock.run(lambda: Deferred.fromCoroutine(self._follow(masters, masters_min)))

    async def _follow(self, masters: DeletedTopicTable, masters_min: int) -> None:
        held = self._store.derived.dispatcher.deleted
        table = held.following(masters, masters_min, self._store.commit_log.min_offset)
        if table.deletions == held.deletions:
            return
        if held.without(table):
            # Before the file changes: no start notices that a queue misses messages of a topic that is not in it.
            known = set(table.deletions)
            kept = held.of(deletion for deletion in held.deletions if deletion in known)
            await self._set_deleted(kept)
        self.table, new = table, table.without(held)
        topics = {deletion.topic for deletion in new}
        await self._drop_offsets(topics, set(_groups_of(topics)))  # the master tells so that it has deleted the groups
        await self._apply(new)

    async def _drop_offsets(self, topics: Set[str], groups: Set[str] = frozenset()) -> None:
        """A slave drops them before the marks are on the disk: after a death between the two it does both again."""
        await self._turns.run(self._consumer_offsets.removing_of(topics, groups))
        await self._consumer_offsets.persist()

    def found(self, ends: Mapping[str, int]) -> Deferred[None]:
        """Take deletions that the log shows: these topics started again after these offsets. Fails with OSError.

        What groups have read of the topics goes. The next copy of the master's offsets has what they have read since.
        """
        return self._lock.run(lambda: Deferred.fromCoroutine(self._take_found(ends)))

    async def _take_found(self, ends: Mapping[str, int]) -> None:
        held = self._store.derived.dispatcher.deleted
        now = self._now_ms()
        new = [Deletion(topic, end, now) for topic, end in ends.items() if not held.is_deleted(topic, end - 1)]
        self.table = held.adding(new, self._store.commit_log.min_offset)
        new = [deletion for deletion in new if deletion.topic in self.table.marks]  # the log may start later by now
        if new:
            await self._drop_offsets({deletion.topic for deletion in new})
            await self._apply(new)

    async def _set_deleted(self, table: DeletedTopicTable) -> None:
        """Let the queues be as the table says. Raises OSError."""
        building = await self._turns.run(self._store.setting_deleted(table))
        await building

    async def _apply(self, new: Sequence[Deletion]) -> None:
        """Bring the marks to the disk, then let the queues start again from 0. Raises OSError."""
        self.persist()
        await self.written()
        await self._set_deleted(self.table)
        if new:
            names = [f"{deletion.topic} (at {deletion.offset})" for deletion in new[:TOLD]]
            self._log.info(
                "deleted with their queues: {topics}{more}; their messages stay in the log until retention",
                event=Event.TOPICS_DELETED,
                topics=", ".join(names),
                more=f" and {len(new) - TOLD} more" if len(new) > TOLD else "",
            )


def _groups_of(topics: Iterable[str]) -> Iterator[str]:
    """The groups whose topics of retries are among these."""
    return (topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX))
