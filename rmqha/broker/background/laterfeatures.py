"""Finds messages of RocketMQ 5.x in the log that this broker cannot handle, and warns of them.

It looks for two kinds, in queues: messages of the timer wheel, and operations of transactions in batches.
"""

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.tables.topics import TRANS_OP_HALF_TOPIC
from rmqha.services import PeriodicService
from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import MessageReader
from rmqha.wire.record import Blank, RecordError, decode_record

LOOK_SECONDS = 10.0
TIMER_TOPIC = "rmq_sys_wheel_timer"
QUEUE_ID = 0
SEPARATOR = b","
"""Follows each queue offset in a body of 5.x. 4.x writes one offset without it."""
OLDEST_EXAMINED = 8


class LaterFeatures(PeriodicService):
    """Looks at a store at the start, and then every LOOK_SECONDS. It warns once of each kind that it finds."""

    _log = Logger()

    def __init__(self, store: MessageStore, clock: IReactorTime) -> None:
        super().__init__("looking for messages of RocketMQ 5.x", LOOK_SECONDS, self.look, clock)
        self._store = store
        self._operations_end = 0
        self._kinds: tuple[tuple[str, Callable[[], bool]], ...] = (
            (f"timer messages (topic {TIMER_TOPIC})", self._has_timers),
            ("transactions whose operations are batched", self._has_batched_operations),
        )
        self.warnings: list[str] = []

    def look(self) -> None:
        """Warn of the kinds that were not there the last time. Raises OSError."""
        left = []
        for kind, is_there in self._kinds:
            if is_there():
                self._tell(kind)
            else:
                left.append((kind, is_there))
        self._kinds = tuple(left)

    def _tell(self, kind: str) -> None:
        when = "when this slave becomes a master, they will not be" if self._store.is_slave else "they are not"
        warning = (
            f"the log has {kind} of RocketMQ 5.x, which rmqha does not support: {when} handled. Timer messages are not "
            "delivered, and transactions that have ended are checked again. A Java 5.x broker can open this store"
        )
        self.warnings.append(warning)
        self._log.warn("{warning}", warning=warning)

    def _has_timers(self) -> bool:
        return self._reader.max_offset(TIMER_TOPIC, QUEUE_ID) > 0

    def _has_batched_operations(self) -> bool:
        """Whether the newest operation or, at the first look, one of the oldest is of 5.x."""
        end, seen = self._reader.max_offset(TRANS_OP_HALF_TOPIC, QUEUE_ID), self._operations_end
        if end == seen:
            return False
        self._operations_end = end
        newest = self._bodies(end - 1, 1)
        oldest = [] if seen else self._bodies(self._reader.min_offset(TRANS_OP_HALF_TOPIC, QUEUE_ID), OLDEST_EXAMINED)
        return any(SEPARATOR in body for body in (*newest, *oldest))

    @property
    def _reader(self) -> MessageReader:
        return self._store.reader  # it changes when queues are rebuilt

    def _bodies(self, offset: int, most: int) -> list[bytes]:
        found = self._reader.get_message(TRANS_OP_HALF_TOPIC, QUEUE_ID, offset, most)
        bodies = []
        for raw in found.records:
            try:
                record = decode_record(raw)
            except RecordError:
                continue
            if not isinstance(record, Blank):
                bodies.append(bytes(record.body))
        return bodies
