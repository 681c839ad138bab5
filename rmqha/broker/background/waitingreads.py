"""Says what consumers cannot read yet, because it is not confirmed (``readUpTo=confirmed``)."""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.ha.slave.contact import iso_of
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.turns import Turns
from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.messagestore import MessageStore
from rmqha.store.readlimit import ReadLimit

LOOK_SECONDS = 1.0
STALL_SECONDS = 5.0
"""Messages that wait for less are only on their way to the slaves."""
QUEUES_AT_ONCE = 256


class WaitingReads(PeriodicService):
    """Looks every second. Logs one line when messages have waited for 5 s, and one when consumers read on."""

    _log = Logger()

    def __init__(
        self, store: MessageStore, limit: ReadLimit, turns: Turns, clock: IReactorTime, wall: IWallClock
    ) -> None:
        super().__init__("looking for messages that wait for a slave", LOOK_SECONDS, self._look, clock)
        self._store = store
        self._limit = limit
        self._turns = turns
        self._clock = clock
        self._wall = wall
        self._grown = set(store.derived.queues.queues) if self.bytes else set()
        """The queues that may have messages after the limit."""
        self._waiting_since: float | None = None
        self._stalled_at: int | None = None
        self.messages = 0
        """How many messages waited at the last look, if they have waited for long."""
        store.subscribe(self._message_arrived)

    @property
    def bytes(self) -> int:
        """The bytes of the log that consumers cannot read yet."""
        return max(0, self._store.commit_log.verified_offset - self._limit.offset)

    def _message_arrived(self, message: DispatchRequest, _: int) -> None:
        if message.physical_offset + message.size > self._limit.offset:
            self._grown.add((message.topic, message.queue_id))

    async def _count(self) -> None:
        self.messages = await self._turns.run(self._counting())

    def _counting(self) -> Steps[int]:
        """How many messages of all queues are after the limit."""
        count, reader = 0, self._store.reader
        for number, key in enumerate(list(self._grown), 1):
            waiting = reader.next_offset(*key) - reader.max_offset(*key)
            if not waiting:
                self._grown.discard(key)
            count += waiting
            if number % QUEUES_AT_ONCE == 0:
                yield
        return count

    def _look(self) -> Deferred[None] | None:
        size, now = self.bytes, self._clock.seconds()
        if not size or self._limit.is_lifted:
            self._waiting_since = None
            self._end_stall()
            self._grown.clear()
            return None
        if self._waiting_since is None or self._limit.grown_at > self._waiting_since:
            self._waiting_since = max(self._limit.grown_at, now - LOOK_SECONDS)
        if self._stalled_at is not None and self._limit.offset > self._stalled_at:
            self._end_stall()
        if now - self._waiting_since < STALL_SECONDS:
            return None
        return Deferred.fromCoroutine(self._count()).addCallback(lambda _: self._stalled())

    def _stalled(self) -> None:
        if self._stalled_at is None and self.bytes:
            self._stalled_at = self._limit.offset
            self._log.warn("{waits}", event=Event.READS_WAIT, waits=self.warning)

    def _end_stall(self) -> None:
        self.messages = 0
        if self._stalled_at is not None:
            self._stalled_at = None
            self._log.info(
                "consumers read on: confirmed up to {offset}",
                event=Event.READS_GO_ON,
                offset="the log's end, the limit is lifted" if self._limit.is_lifted else self._limit.offset,
            )

    @property
    def warning(self) -> str | None:
        """What waits, since when and why, if it has waited for long; else None."""
        if self._stalled_at is None or self._waiting_since is None:
            return None
        return (
            f"messages wait for a slave, and consumers for them: {self.messages} ({self.bytes} bytes), since "
            f"{self._since()}: {self._limit.why()}"
        )

    def _since(self) -> str:
        assert self._waiting_since is not None, "something waits"
        return iso_of(self._wall.now_ms() / 1000 - (self._clock.seconds() - self._waiting_since))

    def facts(self) -> dict[str, Any]:
        """For the status: what waits; since when and why if it has waited for long, else None."""
        is_stalled = self._stalled_at is not None and self._waiting_since is not None
        return {
            "waitingBytes": self.bytes,
            "waitingMessages": self.messages if is_stalled else None,
            "stalledSince": self._since() if is_stalled else None,
            "reason": self._limit.why() if is_stalled else None,
        }
