"""Requests of operators that a broker passes on to connected consumers (spec/remoting.md 2.20).

A consumer may answer on the connection on which the operator asked. So these requests never hold up their connection
while they wait for a consumer.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.logger import Logger

from rmqha.acl.signing import SIGNING_FIELDS
from rmqha.broker.requests.admin import MAX_QUEUES, by_queue, queue_key
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import CLIENTS_AT_ONCE, AllowedToConsume, ClientChannelInfo, ConsumerManager
from rmqha.broker.tables.locks import MessageQueue
from rmqha.kit.events import Event
from rmqha.kit.steps import Steps, in_slices
from rmqha.remoting.calls import RemotingError
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import Answer, Processors, RemotingProtocol, RequestRefused
from rmqha.remoting.turns import Turns
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact
from rmqha.wire.offsettable import MESSAGE_QUEUE_TABLE, OFFSET_TABLE, reading_offsets
from rmqha.wire.record import parse_msg_id
from rmqha.wire.topics import DEAD_PREFIX, RETRY_PREFIX

NEWEST = -1
"""As a time: each queue's end."""
ALL_QUEUES = -1
NO_OFFSET = -1
V3_0_7, V3_1_8 = 28, 62
"""The first versions of clients that know these requests."""
STATUS_TIMEOUT_SECONDS = 5.0
CALL_TIMEOUT_SECONDS = 10.0
ASKED_AT_ONCE = 16
"""Clients asked per reactor turn."""
BYTES_AT_ONCE = 1024 * 1024
"""Bytes pushed to clients per reactor turn."""


class Reset(NamedTuple):
    """What INVOKE_BROKER_TO_RESET_OFFSET asks for.

    ``timestamp`` is in ms, or ``NEWEST``. ``queue_id`` and ``offset`` are those of tools of 5.x, which may reset one
    queue to an offset.
    """

    topic: str
    group: str
    timestamp: int
    is_forced: bool
    queue_id: int
    offset: int

    @classmethod
    def of(cls, request: RemotingCommand) -> "Reset":
        """From a request. Raises RequestRefused."""
        header = Header(request)
        return cls(
            header.text("topic"),
            header.text("group"),
            header.integer("timestamp"),
            header.boolean("isForce"),
            header.integer("queueId", ALL_QUEUES),
            header.integer("offset", NO_OFFSET),
        )

    def fields(self) -> Mapping[str, str]:
        """The header of the request that clients get."""
        return {"topic": self.topic, "group": self.group, "timestamp": str(self.timestamp), "isForce": "false"}


class ToClientsProcessor:
    """Resets offsets of connected consumers, and asks consumers how they are doing."""

    _log = Logger()

    def __init__(self, store: MessageStore, broker_name: str, tables: BrokerTables, consumers: ConsumerManager) -> None:
        self._store = store
        self._broker_name = broker_name
        self._topics = tables.topics
        self._consumer_offsets = tables.consumer_offsets
        self._consumers = consumers

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.get_consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.get_consumer_running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_message_directly,
        }

    def reset_offset(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Tell a group's connected consumers to go on at a time, or at each queue's end.

        As in Java 4.9, a group that has not consumed each queue, and a group without connected consumers, are refused:
        a tool then changes the offsets itself. Without ``isForce`` no queue moves forward. The broker's own offsets
        change at once, as in 5.x. What consumers commit does not count until they read at the new offset.
        """
        host, port = connection.peer_host
        return connection.turns.run(self._resetting(Reset.of(request), request.language == "CPP", f"{host}:{port}"))

    def _resetting(self, reset: Reset, as_list: bool, who: str) -> Steps[RemotingCommand]:
        offsets = yield from in_slices(self._new_offsets(reset))
        clients = self._reset_clients(reset)
        yield from in_slices(self._taking(reset.group, offsets, who))
        rows = ((queue_key(queue), offset) for queue, offset in offsets.items())
        answer = yield from by_queue({}, OFFSET_TABLE, rows)
        body = answer.body if not as_list else _as_list(offsets)
        count = 0
        for sent, client in enumerate(clients, 1):
            client.connection.push(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset.fields(), body)
            count += client.connection.is_open
            if sent % max(1, min(CLIENTS_AT_ONCE, BYTES_AT_ONCE // len(body))) == 0:
                yield
        self._log.warn(
            "{who} resets group {group} in {topic} to {time}: {queues} queues; {count} consumers get it",
            event=Event.OFFSETS_RESET,
            who=who,
            group=shown(reset.group),
            topic=shown(reset.topic),
            time="their ends" if reset.timestamp == NEWEST else f"{reset.timestamp} ms",
            queues=len(offsets),
            count=count,
        )
        return answer

    def _new_offsets(self, reset: Reset) -> Steps[dict[MessageQueue, int]]:
        """Where the group goes on in each queue. Raises RequestRefused."""
        offsets: dict[MessageQueue, int] = {}
        for queue_id in self._queue_ids(reset):
            held = self._consumer_offsets.query(reset.group, reset.topic, queue_id)
            if held == NO_OFFSET:
                raise refused(f"THe consumer group <{shown(reset.group)}> not exist")
            wanted = yield from self._wanted_offset(reset, queue_id)
            is_taken = reset.is_forced or reset.offset != NO_OFFSET or wanted < held
            offsets[MessageQueue(reset.topic, self._broker_name, queue_id)] = wanted if is_taken else held
            yield
        return offsets

    def _taking(self, group: str, offsets: Mapping[MessageQueue, int], who: str) -> Steps[None]:
        for queue, offset in offsets.items():
            self._consumer_offsets.reset(group, queue.topic, queue.queue_id, offset, who)
            yield

    def _queue_ids(self, reset: Reset) -> Iterable[int]:
        """The queues to reset. Raises RequestRefused."""
        topic = self._topics.get(reset.topic)
        if topic is None:
            raise refused(f"[reset-offset] reset offset failed, no topic in this broker. topic={shown(reset.topic)}")
        if reset.queue_id == ALL_QUEUES:
            if reset.offset != NO_OFFSET:
                raise refused(f"offset {reset.offset} needs a queueId: it cannot be the offset of all queues")
            return range(topic.write_queue_nums)
        if not 0 <= reset.queue_id < min(topic.read_queue_nums, MAX_QUEUES):
            raise refused(f"topic {shown(reset.topic)} has no queue {reset.queue_id}")
        return [reset.queue_id]

    def _wanted_offset(self, reset: Reset, queue_id: int) -> Steps[int]:
        """Where the requested time, or the requested offset, is in a queue. Raises RequestRefused."""
        reader = self._store.reader
        low, high = max(0, reader.min_offset(reset.topic, queue_id)), reader.max_offset(reset.topic, queue_id)
        if reset.offset != NO_OFFSET:
            if not low <= reset.offset <= high:
                raise refused(f"Target offset {reset.offset} not in consume queue range [{low}-{high}]")
            return reset.offset
        if reset.timestamp == NEWEST:
            return high
        return max(0, (yield from reader.finding_offset_by_time(reset.topic, queue_id, reset.timestamp)))

    def _reset_clients(self, reset: Reset) -> list[ClientChannelInfo]:
        """The connected clients of the group. Raises RequestRefused if there are none, or one cannot do it."""
        clients = self._clients(reset.group, reset.topic)
        if not clients:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {shown(reset.group)} "
                f"Topic: {shown(reset.topic)} Timestamp: {reset.timestamp}",
            )
        _check_versions(clients)
        return clients

    def _clients(self, group: str, topic: str) -> list[ClientChannelInfo]:
        """The connected clients of a group whose accounts may consume the topic in it."""
        found = self._consumers.get(group)
        allowed = AllowedToConsume(group, topic)
        clients = () if found is None else found.channels.values()
        return [client for client in clients if allowed[client.connection.rights]]

    def get_consumer_status(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """What each connected consumer of a group has consumed of a topic, or one consumer (``clientAddr`` is its id).

        Consumers that do not answer are left out, as in Java.
        """
        header = Header(request)
        topic, name, wanted = header.text("topic"), header.text("group"), header.text("clientAddr", "").strip()
        clients = self._clients(name, topic)
        if not clients:
            raise refused(f"No Any Consumer online in the consumer group: [{shown(name)}]")
        _check_versions(clients)
        asked = [client for client in clients if not wanted or client.client_id == wanted]
        return Deferred.fromCoroutine(
            self._statuses(connection.turns, asked[: 1 if wanted else None], {"topic": topic, "group": name})
        )

    async def _statuses(
        self, turns: Turns, clients: list[ClientChannelInfo], fields: Mapping[str, str]
    ) -> RemotingCommand:
        asked: list[Deferred[bytes | None]] = []
        for client in clients:
            asked.append(Deferred.fromCoroutine(self._status(turns, client, fields)))
            if len(asked) % ASKED_AT_ONCE == 0:
                await turns.next()
        tables: dict[str, bytes] = {}
        size = 0
        for client, waiting in zip(clients, asked, strict=True):
            found = await waiting
            if found is not None:
                tables[client.client_id] = found
                size += len(client.client_id) + len(found)
            if size > FRAME_MAX_LENGTH:
                raise refused(f"the offsets of {len(tables)} consumers are too much for one answer; name one (-i)")
        rows = b",".join(dumps_compact(client_id) + b":" + table for client_id, table in tables.items())
        return RemotingCommand(ResponseCode.SUCCESS, body=b'{"consumerTable":{%s}}' % rows)

    async def _status(self, turns: Turns, client: ClientChannelInfo, fields: Mapping[str, str]) -> bytes | None:
        """A consumer's offsets as the text of a table; None if it gives none."""
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            answer = await client.connection.call(code, fields, timeout=STATUS_TIMEOUT_SECONDS)
            offsets = await turns.run(reading_offsets(answer.body, MESSAGE_QUEUE_TABLE))
        except (RemotingError, DeferredTimeoutError, ValueError) as error:
            self._log.warn(
                "{client} does not tell its offsets: {error}",
                event=Event.CLIENT_OFFSETS_UNKNOWN,
                client=shown(client.client_id),
                error=str(error),
            )
            return None
        if not answer.body:
            return None
        rows = ((queue_key(MessageQueue(*queue)), offset) for queue, offset in offsets.items())
        table = await turns.run(by_queue({}, MESSAGE_QUEUE_TABLE, rows))
        return table.body[len(MESSAGE_QUEUE_TABLE) + len('{"":') : -1]

    def get_consumer_running_info(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        """What a connected consumer says about itself: its settings, queues, rates and, if wanted, its threads."""
        return self._passed_on(request, self._client(request), {}, b"")

    def consume_message_directly(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Let a connected consumer handle one stored message now. Answers what its handler said."""
        try:
            _host, offset = parse_msg_id(Header(request).text("msgId"))
        except ValueError as error:
            raise refused(f"the message id is invalid: {error}") from error
        data = self._store.reader.record_at(offset)
        record = self._store.reader.message_at(offset)
        if data is None or record is None:
            raise refused(f"can not find message by the offset, {offset}")
        group, client = Header(request).text("consumerGroup"), self._client(request)
        is_of_group = record.topic in (f"{RETRY_PREFIX}{group}", f"{DEAD_PREFIX}{group}")
        if not is_of_group and not client.connection.rights.may_read(record.topic):
            raise refused(f"the account of consumer <{shown(client.client_id)}> may not read topic {record.topic}")
        return self._passed_on(request, client, {"brokerName": self._broker_name}, data)

    def _passed_on(
        self, request: RemotingCommand, client: ClientChannelInfo, fields: Mapping[str, str], body: bytes
    ) -> Deferred[RemotingCommand]:
        """What a consumer answers. It does not get the signature of who asks, which it could use for itself."""
        asked = {name: text for name, text in request.ext_fields.items() if name not in SIGNING_FIELDS}
        return Deferred.fromCoroutine(_answer_of(client, request.code, {**asked, **fields}, body))

    def _client(self, request: RemotingCommand) -> ClientChannelInfo:
        """The consumer that a request names. Raises RequestRefused if it is not connected."""
        header = Header(request)
        group, client_id = header.text("consumerGroup"), header.text("clientId", "")
        client = self._consumers.find_client(group, client_id)
        if client is None:
            raise refused(f"The Consumer <{shown(group)}> <{shown(client_id)}> not online")
        if client.version < V3_1_8:
            raise refused(
                f"The Consumer <{shown(client_id)}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT"
            )
        return client


async def _answer_of(client: ClientChannelInfo, code: int, fields: Mapping[str, str], body: bytes) -> RemotingCommand:
    try:
        return await client.connection.call(code, fields, body, CALL_TIMEOUT_SECONDS)
    except DeferredTimeoutError as error:
        raise RequestRefused(
            ResponseCode.CONSUME_MSG_TIMEOUT,
            f"consumer <{shown(client.client_id)}> does not answer in {CALL_TIMEOUT_SECONDS:g} s",
        ) from error
    except RemotingError as error:
        if error.answer is None:
            raise refused(f"invoke consumer <{shown(client.client_id)}> Exception: {error}") from error
        return error.answer


def _check_versions(clients: Iterable[ClientChannelInfo]) -> None:
    """Raises RequestRefused if a client is too old for these requests."""
    version = min(client.version for client in clients)
    if version < V3_0_7:
        raise refused(f"the client does not support this feature. version={version}")


def _as_list(offsets: Mapping[MessageQueue, int]) -> bytes:
    """As Java sends it if a C++ client asks: MessageQueueForC."""
    rows = [
        {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
        for queue, offset in offsets.items()
    ]
    return dumps_compact({OFFSET_TABLE: rows})
