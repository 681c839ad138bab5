"""How far consumer groups have read, and where queues start and end (spec/remoting.md 2.4, 2.5)."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.broker.tables.clients import ConsumerManager
from rmqha.broker.tables.configmanager import breathe
from rmqha.broker.tables.groups import check_group
from rmqha.broker.tables.topics import topic_problem
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps, at_once
from rmqha.kit.threads import RunInThread
from rmqha.kit.trouble import Trouble
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import Processors, RemotingProtocol, RequestRefused
from rmqha.remoting.turns import Turns
from rmqha.store.derived.consumequeue import BoundaryType
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import TOPIC_GROUP_SEPARATOR, ConsumerOffsetTable, TableFile, topic_at_group
from rmqha.wire.beans import INT_BITS
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode

NO_OFFSET = -1
V5_0_0 = 413
"""The first version whose searches by time mean LOWER if they name nothing."""
MAX_QUEUE_ID = 2 ** (INT_BITS - 1) - 1
MAX_OFFSETS = 1_000_000
"""For all groups and queues together."""
MAX_TABLE_BYTES = FRAME_MAX_LENGTH - 64 * 1024
"""For the table as JSON, which slaves get in one frame."""
BYTES_OF_A_KEY = 6
BYTES_OF_AN_OFFSET = 34
"""A queue id, the largest offset, and the characters between them."""
RESET_SECONDS = 120.0
"""A group's consumers go on at a reset offset within this time; otherwise their own offsets count again."""
ALONE_SECONDS = 30.0
"""Consumers that get the push of a reset go on at its offset by themselves within this time.

Java's drops the queue, waits 10 s, and begins again. The pull that it held meanwhile ends after 15 s. If that were
answered with the new offset, Java's consumer would begin again a second time, 10 s later.
"""
RESET_STANDS = (
    f"the offset stays where a reset has set it, until a consumer reads there, at most {RESET_SECONDS:.0f} s long, or "
    "until no consumer of the group is connected"
)
"""The answer to a commit that does not count."""
KEYS_AT_ONCE = 1000
"""Keys copied per reactor turn."""


@dataclass(frozen=True, slots=True)
class OffsetLimits:
    """How many offsets a broker keeps, and how many bytes the table may have as JSON."""

    offsets: int = MAX_OFFSETS
    table_bytes: int = MAX_TABLE_BYTES


class ConsumerOffsetManager(PeriodicService):
    """The next offset of each group in each queue: consumerOffset.json, written periodically and at the end.

    The latest commit counts, as upstream. An offset that moves back is logged.
    """

    _log = Logger()

    def __init__(
        self,
        folder: Path,
        clock: IReactorTime,
        flush_interval_ms: int,
        run_in_thread: RunInThread,
        turns: Turns | None = None,
        limits: OffsetLimits = OffsetLimits(),
    ) -> None:
        """Reads consumerOffset.json of ``folder``. Raises StoreError, OSError."""
        seconds = flush_interval_ms / 1000
        super().__init__("writing consumer offsets", seconds, self.persist, clock, first_after=seconds)
        self._file = TableFile(folder, ConsumerOffsetTable)
        self._turns = Turns(clock) if turns is None else turns
        self._limits = limits
        self._run_in_thread = run_in_thread
        self.table = self._file.read()
        self._count = sum(map(len, self.table.offset_table.values()))
        self._key_bytes = sum(map(_key_bytes, self.table.offset_table))
        self.changes = 0
        """The number of changes. If it is unchanged, the table is unchanged."""
        self._is_changed = False
        self._refusing = Trouble()
        self._lock = DeferredLock()
        self._resets: dict[tuple[str, int], float] = {}
        """Queues whose offset was reset, by topic@group and queue id: until when consumers must go on there."""

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The group's next offset in the queue; -1 if it has none."""
        return self.table.offset_table.get(topic_at_group(topic, group), {}).get(queue_id, NO_OFFSET)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, client: str) -> bool:
        """Set the group's next offset. ``client`` is the client that commits it, for the log. Raises RequestRefused.

        After a reset it counts only when a consumer has gone on at the new offset: until then consumers commit what
        they held before. Whether it counts.
        """
        if self.reset_offset(group, topic, queue_id) is not None:
            return False
        self._set(group, topic, queue_id, offset, client)
        return True

    def order(self, group: str, topic: str, queue_id: int, offset: int, client: str) -> None:
        """Set the group's next offset as an operator wants, which ends a reset of the queue. Raises RequestRefused."""
        self._set(group, topic, queue_id, offset, client)
        self._resets.pop((topic_at_group(topic, group), queue_id), None)

    def reset(self, group: str, topic: str, queue_id: int, offset: int, client: str) -> None:
        """Set the next offset of a group whose consumers are connected, as an operator wants. Raises RequestRefused."""
        self._set(group, topic, queue_id, offset, client)
        self._resets[topic_at_group(topic, group), queue_id] = self._time.seconds() + RESET_SECONDS

    def reset_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group's consumers have to go on in a queue; None if no reset waits for them."""
        queue = topic_at_group(topic, group), queue_id
        until = self._resets.get(queue)
        if until is None:
            return None
        offset = self.query(group, topic, queue_id)
        if offset == NO_OFFSET or until <= self._time.seconds():
            del self._resets[queue]
            return None
        return offset

    def must_send_to_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset has waited so long that the group's consumers do not go on at its offset by themselves."""
        until = self._resets.get((topic_at_group(topic, group), queue_id))
        return until is not None and until - self._time.seconds() <= RESET_SECONDS - ALONE_SECONDS

    def went_on(self, group: str, topic: str, queue_id: int) -> None:
        """A consumer reads at the offset that a reset has set."""
        self._resets.pop((topic_at_group(topic, group), queue_id), None)

    def _set(self, group: str, topic: str, queue_id: int, offset: int, client: str) -> None:
        key = topic_at_group(topic, group)
        offsets = self.table.offset_table.get(key, {})
        stored = offsets.get(queue_id)
        if stored == offset:
            return
        if stored is not None and offset < stored:
            self._log.warn(
                "{client} moves group {group} back in queue {queue_id} of {topic}, from {stored} to {offset}",
                event=Event.OFFSET_MOVED_BACK,
                client=client,
                group=group,
                queue_id=queue_id,
                topic=topic,
                stored=stored,
                offset=offset,
            )
        if stored is None:
            self._take_new(group, topic, key)
            self.table.offset_table[key] = offsets
        offsets[queue_id] = offset
        self._changed()

    def _take_new(self, group: str, topic: str, key: str) -> None:
        """Count the first offset of a group in a queue. Raises RequestRefused."""
        key_bytes = 0
        if key not in self.table.offset_table:
            _check_names(group, topic)
            key_bytes = _key_bytes(key)
        held_bytes = self._key_bytes + key_bytes + (self._count + 1) * BYTES_OF_AN_OFFSET
        if self._count >= self._limits.offsets or held_bytes > self._limits.table_bytes:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"{self._count} offsets are kept; no more are accepted")
        self._count += 1
        self._key_bytes += key_bytes

    def merge(self, table: ConsumerOffsetTable) -> None:
        """Like ``merging``, without pauses."""
        at_once(self.merging(table))

    def merging(self, table: ConsumerOffsetTable) -> Steps[None]:
        """Copy a master's offsets. A topic and group that the master has replaces ours; others stay.

        The unknown fields of the master's table replace ours too.
        """
        if self.table.unknown != table.unknown:
            self.table.unknown = table.unknown
            self._changed()
        for count, (key, offsets) in enumerate(table.offset_table.items(), 1):
            if count % KEYS_AT_ONCE == 0:
                yield
            held = self.table.offset_table.get(key)
            if held == offsets:
                continue
            moves = [
                f"queue {queue_id} from {offset} to {offsets.get(queue_id, 'none')}"
                for queue_id, offset in (held or {}).items()
                if offsets.get(queue_id, NO_OFFSET) < offset
            ]
            if moves:
                self._log.warn(
                    "the master's offsets move {key} back: {moves}",
                    event=Event.MASTER_OFFSETS_MOVED_BACK,
                    key=key,
                    moves=", ".join(moves),
                )
            self.table.offset_table[key] = dict(offsets)
            self._count += len(offsets) - len(held or ())
            self._key_bytes += _key_bytes(key) if held is None else 0
            self._changed()

    def _changed(self) -> None:
        self._is_changed = True
        self.changes += 1

    def finding_topics(self, group: str) -> Steps[list[str]]:
        """The topics in which a group has offsets, found in steps."""
        found = yield from self._finding_keys(end=f"{TOPIC_GROUP_SEPARATOR}{group}")
        return [topic for topic, key_group in found if key_group == group]

    def finding_groups(self, topic: str) -> Steps[list[str]]:
        """The groups that have offsets in a topic, found in steps."""
        found = yield from self._finding_keys(start=f"{topic}{TOPIC_GROUP_SEPARATOR}")
        return [group for key_topic, group in found if key_topic == topic]

    def grouping_topics(self) -> Steps[dict[str, list[str]]]:
        """The topics in which each group has offsets, in steps."""
        found: dict[str, list[str]] = {}
        keys = list(self.table.offset_table)
        for at in range(0, len(keys), KEYS_AT_ONCE):
            if at:
                yield
            for topic, _, group in (key.partition(TOPIC_GROUP_SEPARATOR) for key in keys[at : at + KEYS_AT_ONCE]):
                found.setdefault(group, []).append(topic)
        return found

    def of_queues(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets by queue; empty if it has none."""
        return dict(self.table.offset_table.get(topic_at_group(topic, group), {}))

    def _finding_keys(self, start: str = "", end: str = "") -> Steps[list[tuple[str, str]]]:
        """Topics and groups of the keys that start and end so. A topic's name cannot contain the separator."""
        found: list[tuple[str, str]] = []
        keys = list(self.table.offset_table)
        for at in range(0, len(keys), KEYS_AT_ONCE):
            if at:
                yield
            fitting = (key for key in keys[at : at + KEYS_AT_ONCE] if key.startswith(start) and key.endswith(end))
            found.extend(
                (topic, group) for topic, _, group in (key.partition(TOPIC_GROUP_SEPARATOR) for key in fitting)
            )
        return found

    def removing(self, group: str) -> Steps[bool]:
        """Delete all offsets of a group, in steps. Whether there were any."""
        topics = yield from self.finding_topics(group)
        yield from self._removing_keys([topic_at_group(topic, group) for topic in topics])
        return bool(topics)

    def removing_of(self, topics: Container[str], groups: Container[str] = ()) -> Steps[None]:
        """Delete what groups have read of these topics, and all offsets of these groups, in steps."""
        found: list[str] = []
        keys = list(self.table.offset_table)
        for at in range(0, len(keys), KEYS_AT_ONCE):
            if at:
                yield
            parts = ((key, key.partition(TOPIC_GROUP_SEPARATOR)) for key in keys[at : at + KEYS_AT_ONCE])
            found.extend(key for key, (topic, _, group) in parts if topic in topics or group in groups)
        yield from self._removing_keys(found)

    def removing_queues(self, topics: Container[str], ends: Mapping[tuple[str, int], int]) -> Steps[int]:
        """Delete what groups have read in queues of these topics without messages: ``ends`` has 0 for them, or nothing.

        Returns how many offsets.
        """
        removed = 0
        keys = list(self.table.offset_table)
        for count, key in enumerate(keys, 1):
            topic = key.partition(TOPIC_GROUP_SEPARATOR)[0]
            if topic in topics:
                offsets = self.table.offset_table[key]
                for queue_id in [id_ for id_, offset in offsets.items() if offset and not ends.get((topic, id_))]:
                    del offsets[queue_id]
                    self._count -= 1
                    removed += 1
                    self._changed()
                if not offsets:
                    yield from self._removing_keys([key])
            if count % KEYS_AT_ONCE == 0:
                yield
        return removed

    def _removing_keys(self, keys: list[str]) -> Steps[None]:
        for count, key in enumerate(keys, 1):
            offsets = self.table.offset_table.pop(key, None)
            if offsets is not None:
                self._count -= len(offsets)
                self._key_bytes -= _key_bytes(key)
                self._changed()
            if count % KEYS_AT_ONCE == 0:
                yield

    def stopService(self) -> Deferred[None]:
        """Write the remaining changes. Fires when that is done, or has failed."""
        return super().stopService().addBoth(lambda _: self.persist())

    def persist(self) -> Deferred[None]:
        """Write the changes durably. An error of the disk is logged, and the next call tries again."""
        return self._lock.run(self._write_if_changed)

    def _write_if_changed(self) -> Deferred[None]:
        now = self._time.seconds()
        self._resets = {queue: until for queue, until in self._resets.items() if until > now}
        if not self._is_changed:
            return succeed(None)
        self._is_changed = False
        return Deferred.fromCoroutine(self._write()).addErrback(self._not_written)

    async def _write(self) -> None:
        """Write a copy, made in turns. The offsets of one group are copied at one moment."""
        copy: dict[str, dict[int, int]] = {}
        keys = list(self.table.offset_table)
        for at in range(0, len(keys), KEYS_AT_ONCE):
            if at:
                await self._turns.next()
            copy.update(self.table.some(keys[at : at + KEYS_AT_ONCE]))
        await self._run_in_thread(
            partial(self._file.write, ConsumerOffsetTable(copy, unknown=self.table.unknown), breathe)
        )
        self._refusing.ends()

    def _not_written(self, failure: Failure) -> None:
        failure.trap(OSError)
        self._is_changed = True
        if self._refusing.begins():
            self._log.error(
                "consumer offsets are not written: {error}",
                event=Event.OFFSETS_NOT_WRITTEN,
                error=failure.getErrorMessage(),
            )


def _key_bytes(key: str) -> int:
    """Bytes of a topic and group in the table as JSON. An escaped character takes up to six."""
    return BYTES_OF_A_KEY + (len(key) if key.isascii() and key.isprintable() else 6 * len(key))


def _check_names(group: str, topic: str) -> None:
    """Raises RequestRefused for names that a group or topic cannot have: such rows would never leave the table."""
    check_group(group)
    problem = topic_problem(topic)
    if problem is not None:
        raise refused(problem)


class OffsetProcessors:
    """Answers requests for offsets of consumers and of queues."""

    def __init__(
        self, store: MessageStore, consumer_offsets: ConsumerOffsetManager, consumers: ConsumerManager
    ) -> None:
        self._store = store
        self._consumer_offsets = consumer_offsets
        self._consumers = consumers

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset_by_timestamp,
            RequestCode.GET_MAX_OFFSET: self.get_max_offset,
            RequestCode.GET_MIN_OFFSET: self.get_min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.get_earliest_msg_storetime,
        }

    def query_consumer_offset(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """A group's offset. In a young topic, whose first message still exists, a new group starts at 0.

        Unless a client of 5.x says that it does not want to.
        """
        header = Header(request)
        group, topic, queue_id = header.text("consumerGroup"), header.text("topic"), queue_id_of(header)
        offset = self._consumer_offsets.query(group, topic, queue_id)
        if offset < 0:
            reader = self._store.reader
            may_be_0 = header.boolean("setZeroIfNotFound", True)
            if not may_be_0 or reader.min_offset(topic, queue_id) > 0 or reader.is_in_disk(topic, queue_id, 0):
                raise RequestRefused(
                    ResponseCode.QUERY_NOT_FOUND, f"group {group} has no offset in queue {queue_id} of {topic}"
                )
            offset = 0
        return _answer(offset=offset)

    def update_consumer_offset(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """Store a group's offset. On a slave it counts until the master's table is copied.

        A consumer that outlives the deletion of its topic still commits what it has read of the old one. That is
        refused: the group would miss messages of a new topic of this name.

        Tools send it too, if no consumer of the group is connected. Consumers of Java send it one-way.
        """
        header = Header(request)
        host, port = connection.peer_host
        group, topic, queue_id = header.text("consumerGroup"), header.text("topic"), queue_id_of(header)
        offset, client = header.integer("commitOffset"), f"{host}:{port}"
        if self._store.is_of_deleted(topic, queue_id, offset):
            end = self._store.reader.next_offset(topic, queue_id)
            raise refused(
                f"queue {queue_id} of {shown(topic)} began again when the topic was deleted, and ends at {end}: "
                f"{offset} is an offset of before"
            )
        if not request.is_oneway and self._consumers.get(group) is None:
            self._consumer_offsets.order(group, topic, queue_id, offset, client)
        elif not self._consumer_offsets.commit(group, topic, queue_id, offset, client):
            return RemotingCommand(ResponseCode.SUCCESS, remark=RESET_STANDS)
        return _answer()

    def search_offset_by_timestamp(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """Where a time is in a queue; 0 for an empty queue. Raises RequestRefused for an unknown boundaryType."""
        header = Header(request)
        topic, queue_id, timestamp = header.text("topic"), queue_id_of(header), header.integer("timestamp")
        offset = self._store.reader.offset_by_time(topic, queue_id, timestamp, _boundary_of(request, header))
        return _answer(offset=offset)

    def get_max_offset(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """The offset that comes next in a queue."""
        header = Header(request)
        return _answer(offset=self._store.reader.max_offset(header.text("topic"), queue_id_of(header)))

    def get_min_offset(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """A queue's first offset; 0 if there is no such queue."""
        header = Header(request)
        return _answer(offset=max(0, self._store.reader.min_offset(header.text("topic"), queue_id_of(header))))

    def get_earliest_msg_storetime(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """STORETIMESTAMP in ms of a queue's first message; -1 for an empty queue."""
        header = Header(request)
        return _answer(timestamp=self._store.reader.earliest_message_time(header.text("topic"), queue_id_of(header)))


def queue_id_of(header: Header) -> int:
    """The field ``queueId``. Raises RequestRefused if it does not fit a Java int, because it would spoil a table."""
    queue_id = header.integer("queueId")
    if not -MAX_QUEUE_ID - 1 <= queue_id <= MAX_QUEUE_ID:
        raise refused(f"the custom field <queueId> is not an int: {queue_id}")
    return queue_id


def _boundary_of(request: RemotingCommand, header: Header) -> BoundaryType:
    """What ``boundaryType`` says; else what brokers of the client's release do. Raises RequestRefused."""
    name = header.text("boundaryType", "").upper()
    if not name:
        return BoundaryType.LOWER if request.version >= V5_0_0 else BoundaryType.NEAREST
    if name not in (BoundaryType.LOWER.name, BoundaryType.UPPER.name):
        raise refused(f"the custom field <boundaryType> is not LOWER or UPPER: {shown(name)}")
    return BoundaryType[name]


def _answer(**numbers: int) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, ext_fields={name: str(number) for name, number in numbers.items()})
