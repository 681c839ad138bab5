"""Transactions: messages that are delivered only after their producer commits them (spec/remoting.md 2.11).

A message of a transaction is put as a *half message* into a separate topic. Its end, commit or rollback, is an
*operation message* in another topic, which contains the half message's queue offset. One of 5.x ends several half
messages: it has their queue offsets, each with a comma after it. We write one for each, which 5.x reads too. A commit
puts the message itself first. The half messages are checked periodically. If one has not ended in time, the broker asks
a producer. For each check it puts the half message again, with the number of checks, and the request names the new
offset.

All state is in the log, and the progress in both queues is among the consumer offsets. A node that restarts, or becomes
the master, continues from there. It may begin with half messages that were checked and ended since. So before it does
anything about one it looks in the log for what came later (``Decisions``). And the progress must never be ahead of the
log: a half message that it has passed may have been put again, or ended, in the part that is missing, and nobody would
ask about it. It counts only when the log
is flushed, and a slave takes its master's only when its own log is flushed as far. Only masters ask.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Self

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.broker.requests.ordinarysends import CODES
from rmqha.broker.requests.send import REMARKS, ITransactions
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import Allowed, ProducerManager
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps, in_slices
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol, RequestRefused
from rmqha.remoting.rights import Rights
from rmqha.settings.settings import Settings
from rmqha.store.message import NEVER_STORED, Message, PutMessageResult, PutMessageStatus, put_again
from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import GetMessageStatus
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.properties import format_properties
from rmqha.wire.record import (
    MAX_PROPERTIES_BYTES,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    TRANSACTION_TYPE_MASK,
    Blank,
    Record,
    decode_record,
    encode_record,
    parse_msg_id,
)
from rmqha.wire.timers import UNIQUE_KEY
from rmqha.wire.topics import (
    HALF_TOPIC,
    NO_SENDS_TO,
    OPERATION_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
)

QUEUE_ID = 0
"""The only queue of both topics."""
REMOVE_TAG = "d"
SEPARATOR = ","
"""Follows each queue offset in an operation message of 5.x."""
MAX_OPERATION_BYTES = 64 * 1024
"""Of an operation message. 5.x writes up to 4096 by default (transactionOpMsgMaxSize)."""
OPERATION_PROPERTIES = format_properties({"WAIT": "true", "TAGS": REMOVE_TAG})

CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

OPERATIONS_AT_ONCE = 32
STEPS_AT_ONCE = 32
"""Half messages checked, or reads of operations, per reactor turn."""
MAX_LATE_ENDS = 10_000
MAX_UNASKED = 10_000
"""Half messages that wait for producers that are not there. Further ones are put again by each check, which counts."""
LONGEST_UNASKED_MS = 1_800_000
MAX_WITH_A_KEY = 64
"""Messages with one unique key that are looked at, the newest ones."""
LATEST_MS = 2**62
DISPATCH_LOOKS, DISPATCH_LOOK_SECONDS = 100, 0.01
"""How often, and when, to look whether the index has come to the log's end."""
MAX_DIGITS = 18
ROOM_FOR_CHECKS = sum(len(name) + 2 + MAX_DIGITS for name in (TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET))
"""Bytes that the properties of a half message must leave, so that it can be put again."""
HOUR_MS = 3_600_000


class CheckAction(Enum):
    """What to do about a half message that has not ended."""

    WAIT = "it is young: it and all after it can wait"
    POSTPONE = "it asked for more time: check it again after the others"
    CHECK = "ask a producer"
    DISCARD = "it is too old, was checked too often, or no producer can be asked"


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A half message and its properties. Without a group or a destination no producer can be asked."""

    record: Record
    properties: dict[str, str]
    producer_group: str
    real_topic: str
    real_queue_id: int | None
    check_times: int
    immunity_ms: int | None
    prepared_queue_offset: int | None
    """Its first queue offset, if it was postponed. Its producer knows only that offset."""

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """From a record of the half topic."""
        properties = record.properties
        seconds = _number(properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS))
        return cls(
            record,
            properties,
            properties.get("PGROUP", ""),
            properties.get("REAL_TOPIC", ""),
            _number(properties.get("REAL_QID")),
            _number(properties.get(TRANSACTION_CHECK_TIMES)) or 0,
            None if seconds is None else seconds * 1000,
            _number(properties.get(TRAN_PREPARED_QUEUE_OFFSET)),
        )

    @property
    def is_again(self) -> bool:
        """Whether a check put it again."""
        return TRANSACTION_CHECK_TIMES in self.properties or TRAN_PREPARED_QUEUE_OFFSET in self.properties

    def is_copy_of(self, other: Self) -> bool:
        """Whether both are the same message of the same producer. No other client can send a second one."""
        mine, theirs = (
            (
                half.real_topic,
                half.real_queue_id,
                half.producer_group,
                half.properties.get(UNIQUE_KEY),
                half.record.flag,
            )
            for half in (self, other)
        )
        own, its = self.record, other.record
        born = (own.born_timestamp, own.born_host) == (its.born_timestamp, its.born_host)
        return mine == theirs and born and own.body == its.body

    @property
    def has_destination(self) -> bool:
        """Whether it can be committed."""
        return bool(self.real_topic) and self.real_topic not in NO_SENDS_TO and self.real_queue_id is not None

    def verdict(self, settings: Settings, now_ms: int) -> CheckAction:
        """What to do now, if it has not ended. If the producer's clock is ahead, a producer is asked."""
        age_ms = now_ms - self.record.born_timestamp
        if not self.has_destination or not self.producer_group:
            return CheckAction.DISCARD
        if self.check_times >= settings.transaction_check_max or age_ms > settings.file_reserved_time_hours * HOUR_MS:
            return CheckAction.DISCARD
        if self.immunity_ms is not None:
            return CheckAction.POSTPONE if age_ms < self.immunity_ms else CheckAction.CHECK
        return CheckAction.WAIT if 0 <= age_ms < settings.transaction_time_out_ms else CheckAction.CHECK

    def may_be_checked(self, settings: Settings, now_ms: int) -> bool:
        """Whether a check may have put a copy of it, or whether it is one itself."""
        return self.is_again or not 0 <= now_ms - self.record.born_timestamp < settings.transaction_time_out_ms

    def again(self, **properties: int) -> Message:
        """The half message, to be put again with these additional properties."""
        texts = {name: str(value) for name, value in properties.items()}
        return put_again(self.record, HALF_TOPIC, QUEUE_ID, format_properties({**self.properties, **texts}))


def _number(text: str | None) -> int | None:
    """The number in a property; None if it is missing or invalid."""
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS:
        return None
    return int(text)


def committed_message(half: HalfMessage) -> Message:
    """The message itself, as a commit puts it, with all properties (spec/store.md 3.6)."""
    record = half.record
    assert half.real_queue_id is not None, "it has a destination"
    return Message(
        half.real_topic,
        record.body,
        {"WAIT": half.properties.get("WAIT", "true")},
        half.real_queue_id,
        record.flag,
        record.sys_flag & ~TRANSACTION_TYPE_MASK | TRANSACTION_COMMIT_TYPE,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.physical_offset,
        record.properties_stored,
        is_again=True,
    )


class Operations:
    """The operation queue, read only as far as needed. It shows which half messages have ended.

    ``offset`` is the queue offset from which it must be read after a restart.
    """

    _log = Logger()

    def __init__(self, store: MessageStore, offset: int) -> None:
        self._store = store
        self.offset = offset
        self._next = offset
        self._ended: dict[int, int] = {}
        """The operation's queue offset by that of the half message, for half messages that were not checked yet."""
        self._needed: dict[int, int] = {}
        """How many half messages in ``_ended`` each operation has."""
        self._late: dict[int, None] = {}  # half messages that ended after they were checked, the oldest first
        self._done: set[int] = set()  # operations after ``offset`` that are no longer needed

    def take(self, half_offset: int) -> bool:
        """Whether the next half message has ended, as far as we have read. Its operation is no longer needed then."""
        operation = self._ended.pop(half_offset, None)
        if operation is None:
            return False
        self._needed[operation] -= 1
        if not self._needed[operation]:
            del self._needed[operation]
            self._finish(operation)
        return True

    def ended_late(self, half_offset: int | None) -> bool:
        """Whether a half message that had not ended at its check has ended since, as far as we have read."""
        return half_offset in self._late

    def skip_to(self, half_offset: int) -> None:
        """Drop what is known about half messages before this one, which were deleted."""
        for passed in [ended for ended in self._ended if ended < half_offset]:
            self.take(passed)

    def read_more(self, half_offset: int) -> bool:
        """Read more operations, if there are any. ``half_offset`` is the next half message. Raises OSError."""
        found = self._store.reader.get_message(OPERATION_TOPIC, QUEUE_ID, self._next, OPERATIONS_AT_ONCE)
        if found.next_begin_offset <= self._next:
            return False
        records = {record.queue_offset: record for record in map(_decode, found.records)}
        if found.status is GetMessageStatus.OFFSET_TOO_SMALL:  # earlier ones were deleted
            self.offset = self._next = found.next_begin_offset
            self._done.clear()
        for operation in range(self._next, found.next_begin_offset):
            self._read(operation, records.get(operation), half_offset)
        self._next = found.next_begin_offset
        return True

    def _read(self, operation: int, record: Record | None, half_offset: int) -> None:
        for ended in [] if record is None else self._half_offsets_in(record):
            if ended < half_offset:
                self._late[ended] = None
                if len(self._late) > MAX_LATE_ENDS:
                    del self._late[next(iter(self._late))]
            elif ended not in self._ended:
                self._ended[ended] = operation
                self._needed[operation] = self._needed.get(operation, 0) + 1
        if operation not in self._needed:
            self._finish(operation)

    def _half_offsets_in(self, record: Record) -> list[int]:
        """The queue offsets of the half messages that ended. An invalid one is left out, with a log line."""
        text = record.body[: MAX_OPERATION_BYTES + 1].decode("utf-8", "replace")
        if record.properties.get("TAGS") != REMOVE_TAG or len(record.body) > MAX_OPERATION_BYTES:
            self._log.error(
                "{msg_id} is not an operation message: {text}",
                event=Event.OPERATION_INVALID,
                msg_id=record.msg_id,
                text=text[:40],
            )
            return []
        parts = text.removesuffix(SEPARATOR).split(SEPARATOR)
        offsets = [offset for part in parts if (offset := _number(part)) is not None]
        if len(offsets) < len(parts):
            self._log.error(
                "{msg_id} is not an operation message: {count} of its {parts} offsets are invalid: {text}",
                event=Event.OPERATION_INVALID,
                msg_id=record.msg_id,
                count=len(parts) - len(offsets),
                parts=len(parts),
                text=text[:40],
            )
        return offsets

    def _finish(self, operation: int) -> None:
        self._done.add(operation)
        while self.offset in self._done:
            self._done.discard(self.offset)
            self.offset += 1


def _decode(raw: bytes) -> Record:
    record = decode_record(raw)
    assert not isinstance(record, Blank), "queues point only to messages"
    return record


class Unasked(NamedTuple):
    """A half message about which nobody could be asked."""

    producer_group: str
    operation_offset: int
    """From where the operations must be read after a restart, to know whether those from it on have ended."""
    until_ms: int
    """Then it is put again, so that retention does not take it, and the progress goes on."""


class Decisions:
    """What the log tells of a half message after it. The index finds it by the unique key.

    The progress in the queues of transactions is copied from time to time only. A node that takes over may begin with
    half messages that were checked, and then ended, since. Without an index, or a unique key, they are asked about once
    more.
    """

    def __init__(self, store: MessageStore) -> None:
        self._reader = store.reader

    def finding(self, half: HalfMessage, operations: Operations) -> Steps[bool]:
        """Whether nothing is to be done about a half message: it was put again, committed or given up later.

        ``operations`` show which half messages have ended. Raises OSError.
        """
        for record in (yield from self._with_key_of(half, HALF_TOPIC, 0)):
            other = HalfMessage.from_record(record)
            is_later = record.queue_offset > half.record.queue_offset
            if other.is_copy_of(half) and (other.is_again if is_later else operations.ended_late(record.queue_offset)):
                return True
        since = half.record.store_timestamp
        for record in (yield from self._with_key_of(half, TRANS_CHECK_MAX_TIME_TOPIC, since)):
            is_later = record.physical_offset > half.record.physical_offset
            if is_later and HalfMessage.from_record(record).is_copy_of(half):
                return True
        return (yield from self.finding_committed(half))

    def finding_committed(self, half: HalfMessage) -> Steps[bool]:
        """Whether the message itself is in its topic, from this half message or a copy of it. Raises OSError."""
        for record in (yield from self._with_key_of(half, half.real_topic, 0)):
            if record.sys_flag & TRANSACTION_TYPE_MASK != TRANSACTION_COMMIT_TYPE or record.body != half.record.body:
                continue  # what a client sent as an ordinary message
            at = record.prepared_transaction_offset  # 0 is also that of a message that a client sent with this flag
            source = self._reader.message_at(at) if at else None
            if source is None or source.topic != HALF_TOPIC:
                continue
            its = HalfMessage.from_record(source)
            if (its.producer_group, its.properties.get(UNIQUE_KEY)) == (
                half.producer_group,
                half.properties.get(UNIQUE_KEY),
            ):
                return True
        return False

    def _with_key_of(self, half: HalfMessage, topic: str, since: int) -> Steps[list[Record]]:
        key = half.properties.get(UNIQUE_KEY)
        if key is None:
            return []
        query = self._reader.query_message_in_steps
        return (yield from query(topic, key, MAX_WITH_A_KEY, since, LATEST_MS, only_confirmed=False))


class AllowedToDecide(Allowed):
    """Who may know a half message, and end it.

    Such an account may send to its topic. While the producer that sent it is connected, it is also that one's account.
    """

    def __init__(self, half: HalfMessage, producers: ProducerManager) -> None:
        super().__init__()
        self._half = half
        self._producers = producers

    def may(self, rights: Rights) -> bool:
        if not rights.may_send_to(self._half.real_topic):
            return False
        sender = None if rights.account is None else self._producers.account_at(self._half.record.born_host)
        return sender is None or sender == rights.account


@implementer(ITransactions)
class TransactionalMessageService(PeriodicService):
    """Puts half messages and ends them. While it runs it asks producers about those that do not end."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        tables: BrokerTables,
        producers: ProducerManager,
        stamps: Stamps,
        clock: IReactorTime,
    ) -> None:
        seconds = settings.transaction_check_interval_ms / 1000
        super().__init__("checking half messages", seconds, self.check, clock, first_after=seconds)
        self._store = store
        self._topics = tables.topics
        self._consumer_offsets = tables.consumer_offsets
        self._producers = producers
        self.settings = settings
        self._own = stamps.own
        self._clock = clock
        self._now_ms = stamps.wall.now_ms
        self._half_offset = 0
        self._operations = Operations(store, 0)
        self._decisions = Decisions(store)
        self._unasked: dict[int, Unasked] = {}
        """Half messages that the check has passed without a question, by their queue offsets, which ascend."""
        self._checking: Deferred[None] | None = None

    def prepare(self, message: Message) -> Deferred[PutMessageResult]:
        """Put a message, whose properties are complete, as a half message. A delay level is ignored.

        It is refused if its properties leave no room for those that a check adds.
        """
        properties = {name: value for name, value in message.properties.items() if name != "DELAY"}
        properties |= {"REAL_TOPIC": message.topic, "REAL_QID": str(message.queue_id)}
        size = sum(len(f"{name}{value}".encode("utf-8", "surrogateescape")) + 2 for name, value in properties.items())
        if size > MAX_PROPERTIES_BYTES - ROOM_FOR_CHECKS:
            return succeed(PutMessageResult(PutMessageStatus.PROPERTIES_SIZE_EXCEEDED))
        self._topics.create_in_send_back(HALF_TOPIC, 1)
        sys_flag = message.sys_flag & ~TRANSACTION_TYPE_MASK
        return self._store.put_message(
            replace(message, topic=HALF_TOPIC, queue_id=QUEUE_ID, properties=properties, sys_flag=sys_flag)
        )

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.END_TRANSACTION: self._end_transaction,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self._resume_check,
        }

    def _resume_check(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Ask the producers again about a half message that was given up.

        Unlike Java we refuse a message that was not given up: it could be committed twice.
        """
        if self._store.is_slave:
            raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave checks no transactions")
        msg_id = Header(request).text("msgId")
        try:
            _host, offset = parse_msg_id(msg_id)  # after a failover another host has the message
        except ValueError as error:
            raise refused(f"the message id is invalid: {error}") from error
        record = self._store.reader.message_at(offset)
        if record is None or record.topic != TRANS_CHECK_MAX_TIME_TOPIC or not self._store.has_record(record):
            raise refused(f"{shown(msg_id)} is not in {TRANS_CHECK_MAX_TIME_TOPIC}: it was not given up")
        host, port = connection.peer_host
        self._log.warn(
            "{host}:{port} has {msg_id} checked again",
            event=Event.TRANSACTION_CHECKED_AGAIN,
            host=host,
            port=port,
            msg_id=record.msg_id,
        )
        message = HalfMessage.from_record(record).again(**{TRANSACTION_CHECK_TIMES: 0})
        return self._store.put_message(message).addCallback(_answer)

    def _end_transaction(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Commit or roll back. Unlike Java we also answer a producer that does not know the end yet."""
        if self._store.is_slave:
            raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions")
        header = Header(request)
        end = header.integer("commitOrRollback")
        if end == TRANSACTION_COMMIT_TYPE:
            half = self._half_message(header, connection.rights)
            if half.may_be_checked(self.settings, self._now_ms()):
                return self._commit_once(connection, half)
            return self._store.put_message(committed_message(half)).addCallback(self._committed, half)
        if end == TRANSACTION_ROLLBACK_TYPE:
            return self._put_operation(self._half_message(header, connection.rights)).addCallback(_answer)
        host, port = connection.peer_host
        self._log.info(
            "{client} does not know the end of the transaction at {offset} yet",
            event=Event.TRANSACTION_UNDECIDED,
            client=f"{host}:{port}",
            offset=header.integer("commitLogOffset"),
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    async def _commit_once(self, connection: RemotingProtocol, half: HalfMessage) -> RemotingCommand:
        """Commit, unless a copy of the half message is committed already.

        A producer that commits late, and then is asked, names the first place and the place of the copy.
        """
        await self._dispatched()
        if await connection.turns.run(self._decisions.finding_committed(half)):
            return _answer(await self._put_operation(half))
        result = await self._store.put_message(committed_message(half))
        if not result.is_stored:
            return _answer(result)
        await self._put_operation(half)
        return RemotingCommand(ResponseCode.SUCCESS)

    async def _dispatched(self) -> None:
        """Wait until the index has what is in the log, but not long: it may wait for room on the disk."""
        end = self._store.commit_log.verified_offset
        for _ in range(DISPATCH_LOOKS):
            if self._store.derived.dispatcher.reput_offset >= end:
                return
            await deferLater(self._clock, DISPATCH_LOOK_SECONDS)

    def _half_message(self, header: Header, rights: Rights) -> HalfMessage:
        """The half message that a request names, if it is the sender's to end. Raises RequestRefused, OSError."""
        record = self._store.reader.message_at(header.integer("commitLogOffset"))
        is_half = record is not None and record.topic == HALF_TOPIC and self._store.has_record(record)
        half = HalfMessage.from_record(record) if record is not None and is_half else None
        if half is None or not AllowedToDecide(half, self._producers).may(rights):  # nobody learns which of the two
            raise refused("Find prepared transaction message failed")
        record = half.record
        if half.producer_group != header.text("producerGroup"):
            raise refused("The producer group wrong")
        if record.queue_offset != header.integer("tranStateTableOffset"):
            raise refused("The transaction state table offset wrong")
        if not half.has_destination:
            raise refused("the half message has no valid destination")
        return half

    def _committed(self, result: PutMessageResult, half: HalfMessage) -> RemotingCommand | Deferred[RemotingCommand]:
        if not result.is_stored:
            return _answer(result)
        return self._put_operation(half).addCallback(lambda _: RemotingCommand(ResponseCode.SUCCESS))

    def _put_operation(self, half: HalfMessage) -> Deferred[PutMessageResult]:
        """Put the operation message that ends a half message."""
        self._topics.create_in_send_back(OPERATION_TOPIC, 1)
        host = self._own.store_host
        put = self._store.put_message(
            Message(
                OPERATION_TOPIC,
                str(half.record.queue_offset).encode("ascii"),
                {"WAIT": "false", "TAGS": REMOVE_TAG},
                QUEUE_ID,
                born_timestamp=self._now_ms(),
                born_host=host,
                store_host=host,
                properties_stored=OPERATION_PROPERTIES,
            )
        )
        return put.addCallback(self._operation_put, half)

    def _operation_put(self, result: PutMessageResult, half: HalfMessage) -> PutMessageResult:
        if not result.is_stored:
            self._log.error(
                "the end of {msg_id} is not stored; its producer will be asked: {status}",
                event=Event.TRANSACTION_END_NOT_STORED,
                msg_id=half.record.msg_id,
                status=result.status.name,
            )
        return result

    def startService(self) -> None:
        """Check the half messages every ``transactionCheckInterval`` from now on. Raises OSError."""
        self._half_offset = self._stored_offset(HALF_TOPIC)
        self._operations = Operations(self._store, self._stored_offset(OPERATION_TOPIC))
        self._unasked.clear()
        self._commit_offsets()
        super().startService()

    def _stored_offset(self, topic: str) -> int:
        """Where to continue, at most the queue's end: a log that lost its end assigns the later offsets again."""
        offset = self._consumer_offsets.query(TRANSACTION_GROUP, topic, QUEUE_ID)
        return max(0, min(offset, self._store.reader.next_offset(topic, QUEUE_ID)))

    def stopService(self) -> Deferred[None]:
        """Stop asking. Half messages can still end."""
        if self._checking is not None:
            self._checking.cancel()
        return super().stopService()

    def check(self) -> Deferred[None]:
        """Check the current half messages. After an error the next call continues."""
        self._checking = Deferred.fromCoroutine(self._check())
        return self._checking.addErrback(self._check_failed)

    def _check_failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("the check of half messages failed", failure, event=Event.TRANSACTION_CHECK_FAILED)

    async def _check(self) -> None:
        self._topics.create_in_send_back(HALF_TOPIC, 1)
        if self._store.read_limit is not None:  # an operation that is not confirmed yet may end what we would ask about
            await self._store.read_limit.reached(self._store.commit_log.verified_offset)
        end = self._store.reader.max_offset(HALF_TOPIC, QUEUE_ID)
        try:
            await self._check_to(end)
        except CancelledError:  # the node stops, and will flush its log
            self._commit_offsets()
            raise
        except Exception:  # of any kind: what was done before counts
            await self._commit_when_flushed()
            raise
        await self._commit_when_flushed()

    async def _check_to(self, end: int) -> None:
        steps = 0
        while self._half_offset < end and await self._step():
            steps += 1
            if steps % STEPS_AT_ONCE == 0:
                await self._pause()
        if self._unasked:
            await self._check_unasked()

    async def _pause(self) -> None:
        """Let others work, and count the progress."""
        await self._commit_when_flushed()
        await deferLater(self._clock, 0)

    async def _check_unasked(self) -> None:
        """Ask about half messages for which no producer was there before."""
        while self._operations.read_more(self._half_offset):
            await deferLater(self._clock, 0)
        for count, (offset, unasked) in enumerate(list(self._unasked.items()), 1):
            if count % STEPS_AT_ONCE == 0:
                await self._pause()
            is_early = self._now_ms() < unasked.until_ms
            if not self._operations.ended_late(offset):
                if is_early and not self._producers.get(unasked.producer_group):
                    continue
                queue = self._store.derived.queues.get(HALF_TOPIC, QUEUE_ID)
                record = None if queue is None else self._store.reader.message_in(queue, offset)
                half = None if record is None else HalfMessage.from_record(record)
                if half is not None and not await self._is_decided(half):
                    producer = self._producer_of(half)
                    if producer is None and is_early:
                        continue
                    if not await self._act(half, half.verdict(self.settings, self._now_ms()), producer):
                        return
            del self._unasked[offset]

    async def _commit_when_flushed(self) -> None:
        """Count the progress when what was put for it is on the disk."""
        await self._store.flushed()
        if not self._store.is_broken:
            self._commit_offsets()

    def _commit_offsets(self) -> None:
        """Count the progress, but only up to the first half message that nobody could be asked about."""
        half_offset, operation_offset = self._half_offset, self._operations.offset
        if self._unasked:
            half_offset, first = next(iter(self._unasked.items()))
            operation_offset = first.operation_offset
        for topic, offset in ((HALF_TOPIC, half_offset), (OPERATION_TOPIC, operation_offset)):
            self._consumer_offsets.commit(TRANSACTION_GROUP, topic, QUEUE_ID, offset, "the transaction check")

    async def _step(self) -> bool:
        """Handle the next half message, or read more operations. False to stop until the next check."""
        offset, operations = self._half_offset, self._operations
        if operations.take(offset):
            self._half_offset += 1
            return True
        found = self._store.reader.get_message(HALF_TOPIC, QUEUE_ID, offset, 1)
        if not found.records:
            self._half_offset = max(offset, found.next_begin_offset)
            operations.skip_to(self._half_offset)
            return self._half_offset > offset
        half = HalfMessage.from_record(_decode(found.records[0]))
        verdict = half.verdict(self.settings, self._now_ms())
        if verdict is CheckAction.WAIT:
            return False
        if operations.read_more(offset):
            return True
        if not await self._is_decided(half):
            producer = self._producer_of(half) if verdict is CheckAction.CHECK else None
            if verdict is CheckAction.CHECK and producer is None and len(self._unasked) < MAX_UNASKED:
                self._set_aside(half)
            elif not await self._act(half, verdict, producer):
                return False
        self._half_offset = half.record.queue_offset + 1
        return True

    async def _is_decided(self, half: HalfMessage) -> bool:
        """Whether the log shows that nothing is to be done about a half message. Raises OSError."""
        operations = self._operations
        if operations.ended_late(half.prepared_queue_offset):
            return True
        steps = in_slices(self._decisions.finding(half, operations))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: bool = done.value
                return found
            await deferLater(self._clock, 0)

    def _set_aside(self, half: HalfMessage) -> None:
        """Pass a half message without a question, because no producer is there that could be asked.

        Only questions that a producer gets count. It is put again more and more seldom, so that the log does not grow
        while a producer is away for long.
        """
        now = self._now_ms()
        most = max(LONGEST_UNASKED_MS, self.settings.transaction_check_interval_ms)
        wait = min(max((now - half.record.born_timestamp) // 2, self.settings.transaction_check_interval_ms), most)
        self._unasked[half.record.queue_offset] = Unasked(half.producer_group, self._operations.offset, now + wait)
        self._tell_no_producer(half)

    async def _act(self, half: HalfMessage, verdict: CheckAction, producer: RemotingProtocol | None) -> bool:
        """Act on a half message. ``producer`` is who can be asked. True if this queue offset needs no further work."""
        if verdict is CheckAction.DISCARD:
            return await self._discard(half)
        if verdict is CheckAction.POSTPONE:
            original = half.prepared_queue_offset
            message = half.again(TRAN_PREPARED_QUEUE_OFFSET=half.record.queue_offset if original is None else original)
        else:
            counts = producer is not None or len(self._unasked) >= MAX_UNASKED
            message = half.again(TRANSACTION_CHECK_TIMES=half.check_times + counts)
        result = await self._store.put_message(message)
        if result.status in NEVER_STORED:  # from another broker, which leaves no room: it is asked about where it is
            self._ask(producer, half, half.record)
            return await self._discard(half)
        if result.append is None or not result.is_stored:
            self._log.warn(
                "half message {msg_id} is not put again: {status}",
                event=Event.HALF_MESSAGE_NOT_STORED,
                msg_id=half.record.msg_id,
                status=result.status.name,
            )
            return False
        if verdict is CheckAction.CHECK:
            appended = result.append
            assert message.properties_stored is not None, "it was just put"
            again = replace(
                half.record,
                queue_offset=appended.logics_offset,
                physical_offset=appended.wrote_offset,
                store_timestamp=appended.store_timestamp,
                properties_stored=message.properties_stored,
            )
            self._ask(producer, half, again)
        return True

    async def _discard(self, half: HalfMessage) -> bool:
        """Give up the message, and keep it in a separate topic. False if the put should be tried again."""
        self._topics.create_in_send_back(TRANS_CHECK_MAX_TIME_TOPIC, 1)
        record = half.record
        given_up = put_again(record, TRANS_CHECK_MAX_TIME_TOPIC, QUEUE_ID, record.properties_stored)
        result = await self._store.put_message(given_up)
        self._log.error(
            "half message {msg_id} of group {group} is given up after {check_times} checks, to {topic}: {status}",
            event=Event.HALF_MESSAGE_GIVEN_UP,
            msg_id=record.msg_id,
            group=half.producer_group,
            check_times=half.check_times,
            topic=TRANS_CHECK_MAX_TIME_TOPIC,
            status=result.status.name,
        )
        return result.is_stored or result.status in NEVER_STORED

    def _producer_of(self, half: HalfMessage) -> RemotingProtocol | None:
        """A producer of its group that can be asked, the next one each time; None if there is none."""
        return self._producers.available(half.producer_group, AllowedToDecide(half, self._producers))

    def _tell_no_producer(self, half: HalfMessage) -> None:
        self._log.warn(
            "no producer of group {group} is connected that could be asked about {msg_id}",
            event=Event.NO_PRODUCER_TO_ASK,
            group=half.producer_group,
            msg_id=half.record.msg_id,
        )

    def _ask(self, producer: RemotingProtocol | None, half: HalfMessage, record: Record) -> None:
        """Ask for the end of a half message, if a producer is there. ``record`` is its newest copy."""
        if producer is None:
            self._tell_no_producer(half)
            return
        assert half.real_queue_id is not None, "others are not checked"
        unique_key = half.properties.get(UNIQUE_KEY)
        fields = {
            "tranStateTableOffset": str(record.queue_offset),
            "commitLogOffset": str(record.physical_offset),
            "offsetMsgId": record.msg_id,
            **({} if unique_key is None else {"msgId": unique_key, "transactionId": unique_key}),
        }
        asked = replace(record, topic=half.real_topic, queue_id=half.real_queue_id)
        producer.push(RequestCode.CHECK_TRANSACTION_STATE, fields, encode_record(asked))


def _answer(result: PutMessageResult) -> RemotingCommand:
    """The answer to the end of a transaction. A stored message is always a success (spec/remoting.md 4.2)."""
    if result.is_stored:
        return RemotingCommand(ResponseCode.SUCCESS)
    status = result.status
    return RemotingCommand(CODES.get(status, ResponseCode.SYSTEM_ERROR), remark=REMARKS.get(status, status.name))
