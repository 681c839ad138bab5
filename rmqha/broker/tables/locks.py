"""Which client of a group may consume a queue in order: LOCK_BATCH_MQ, UNLOCK_BATCH_MQ (spec/remoting.md 2.10)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.tables.groups import MAX_GROUP_LENGTH
from rmqha.broker.tables.shares import Shares
from rmqha.kit.events import Event
from rmqha.kit.steps import Steps, at_once
from rmqha.remoting.header import refused, shown
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol, RequestRefused
from rmqha.store.messagestore import MessageStore
from rmqha.wire.beans import java, read_bean, read_objects
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_strict, loads_request

LOCK_MAX_LIVE_SECONDS = 60.0
MAX_QUEUES = 4096
"""Maximum number of queues in a batch."""
MAX_LOCKS = 200_000
MAX_CLIENT_ID_LENGTH = 1024
QUEUES_AT_ONCE = 64
"""Queues locked or released per reactor turn."""


class MessageQueue(NamedTuple):
    """A queue, as clients name it."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """From Java's form. Raises ValueError."""
        return read_bean(cls, content)

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {shown(self.topic)} at {shown(self.broker_name)}"

    def to_json(self) -> dict[str, Any]:
        """In Java's form and order."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


@dataclass(frozen=True, slots=True)
class LockBatch:
    """The body of both requests."""

    group: str = java("consumerGroup")
    client_id: str = java("clientId")
    queues: tuple[MessageQueue, ...] = java(omit=True, default=())

    @classmethod
    def reading(cls, content: Any) -> Steps[Self]:
        """From Java's form, in steps; ``mqSet`` may be null. Raises ValueError."""
        batch = read_bean(cls, content)
        queues = read_objects(content, "mqSet", MAX_QUEUES)
        if len(batch.group) > MAX_GROUP_LENGTH or len(batch.client_id) > MAX_CLIENT_ID_LENGTH:
            raise ValueError("a name is too long")
        found: dict[MessageQueue, None] = {}
        for count, queue in enumerate(queues, 1):
            found[MessageQueue.from_json(queue)] = None
            if count % QUEUES_AT_ONCE == 0:
                yield
        return replace(batch, queues=tuple(found))


class _Lock(NamedTuple):
    client_id: str
    renewed_at: float


class RebalanceLockManager:
    """Locks of queues, by group, kept in memory only. A lock that is not renewed for 60 s ends."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, store: MessageStore | None = None) -> None:
        """A leader that was replaced locks nothing: ``store`` knows whether it leads. Without it, any broker does."""
        self._clock = clock
        self._store = store
        self._shares = Shares(MAX_LOCKS)
        """By group: who may consume in one could lock any queues, as many as there are names."""
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}  # in the order of their last renewal, the oldest first

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock these queues for a client, or renew its locks. Returns the queues whose lock it has now."""
        return at_once(self.locking(group, client_id, queues))

    def locking(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> Steps[list[MessageQueue]]:
        """Like ``lock``, in steps. Raises RequestRefused if there are too many locks."""
        locked: list[MessageQueue] = []
        leadership = None if self._store is None else self._store.puts.leadership
        if leadership is not None and not leadership.is_held():
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "this node does not lead: ask the broker's leader")
        for count, queue in enumerate(queues, 1):
            if count % QUEUES_AT_ONCE == 1:
                yield from self._forget_expired()
            if self._lock(group, client_id, queue):
                locked.append(queue)
            if count % QUEUES_AT_ONCE == 0:
                yield
        return locked

    def _lock(self, group: str, client_id: str, queue: MessageQueue) -> bool:
        held = self._locks.get((group, queue))
        if held is not None and held.client_id != client_id:
            return False
        if held is None:
            if not self._shares.take(group):
                reason = f"{len(self._locks)} queues are locked already, and many of them by this group"
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, reason)
            self._tell("locks", client_id, group, queue)
        self._locks.pop((group, queue), None)
        self._locks[group, queue] = _Lock(client_id, self._clock.seconds())
        return True

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the client's locks of these queues."""
        for queue in queues:
            held = self._locks.get((group, queue))
            if held is not None and held.client_id == client_id:
                self._forget(group, queue)
                self._tell("unlocks", client_id, group, queue)

    def _forget(self, group: str, queue: MessageQueue) -> None:
        del self._locks[group, queue]
        self._shares.give_back(group)

    def _tell(self, what: str, client_id: str, group: str, queue: MessageQueue) -> None:
        self._log.info(
            "{client} of group {group} {what} {queue}",
            event=Event.QUEUE_LOCK_CHANGED,
            client=shown(client_id),
            group=shown(group),
            what=what,
            queue=queue,
        )

    def _forget_expired(self) -> Steps[None]:
        since = self._clock.seconds() - LOCK_MAX_LIVE_SECONDS
        for count, (key, held) in enumerate(list(self._expired(since)), 1):
            if count % QUEUES_AT_ONCE == 0:
                yield
            if self._locks.get(key) is held:
                self._forget(*key)
            self._tell("loses", held.client_id, *key)

    def _expired(self, since: float) -> Iterable[tuple[tuple[str, MessageQueue], _Lock]]:
        for key, held in self._locks.items():
            if held.renewed_at >= since:
                return
            yield key, held

    def processors(self) -> Processors:
        """By request code."""
        return {RequestCode.LOCK_BATCH_MQ: self._lock_batch_mq, RequestCode.UNLOCK_BATCH_MQ: self._unlock_batch_mq}

    def _lock_batch_mq(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        return connection.turns.run(self._lock_batch(request))

    def _lock_batch(self, request: RemotingCommand) -> Steps[RemotingCommand]:
        batch = yield from _reading_batch(request)
        locked = yield from self.locking(batch.group, batch.client_id, batch.queues)
        pieces: list[bytes] = []
        for queue in locked:
            pieces.append(dumps_strict(queue.to_json()))
            if len(pieces) % QUEUES_AT_ONCE == 0:
                yield
        return RemotingCommand(ResponseCode.SUCCESS, body=b'{"lockOKMQSet":[%s]}' % b",".join(pieces))

    def _unlock_batch_mq(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        return connection.turns.run(self._unlock_batch(request))

    def _unlock_batch(self, request: RemotingCommand) -> Steps[RemotingCommand]:
        batch = yield from _reading_batch(request)
        for at in range(0, len(batch.queues), QUEUES_AT_ONCE):
            if at:
                yield
            self.unlock(batch.group, batch.client_id, batch.queues[at : at + QUEUES_AT_ONCE])
        return RemotingCommand(ResponseCode.SUCCESS)


def _reading_batch(request: RemotingCommand) -> Steps[LockBatch]:
    """The request's body. Raises RequestRefused."""
    try:
        return (yield from LockBatch.reading(loads_request(request.body)))
    except ValueError as error:
        raise refused(f"the batch of queues is invalid: {error}") from error
