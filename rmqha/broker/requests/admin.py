"""Requests of operators and their tools: topics, groups, statistics, settings (spec/remoting.md 2.12 to 2.19).

Also the requests for whole tables, which slaves send (spec/remoting.md 9.1).
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from rmqha.broker.tables.attributes import (
    OF_TOPICS_IN_5_3_3,
    SIGNED_VERSIONS,
    altered,
    as_additions,
    attributes_of,
    parse_changes,
    refused_key,
)
from rmqha.broker.tables.brokertables import BrokerTables, CopiedTables
from rmqha.broker.tables.clients import ConsumerManager
from rmqha.broker.tables.configmanager import ConfigManager, ITableDocument, NamedConfigManager, Row
from rmqha.broker.tables.groups import MAX_GROUP_LENGTH, SubscriptionGroupManager, new_group_problem
from rmqha.broker.tables.locks import MessageQueue
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import TopicConfigManager, topic_problem
from rmqha.kit.events import Event
from rmqha.kit.steps import Steps
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import Answer, Later, Processor, Processors, RemotingProtocol, RequestRefused
from rmqha.remoting.turns import Turns
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import (
    ATTRIBUTES,
    CONFIG_FOLDER,
    DataVersion,
    DelayOffsetTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicFilterType,
)
from rmqha.store.timers import TimerCheckPoint
from rmqha.wire.beans import INT_BITS
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import (
    Document,
    ObjectKey,
    Rows,
    dumping_strict,
    dumps_compact,
    dumps_strict,
    loads_request,
)
from rmqha.wire.topics import RETRY_PREFIX

MAX_QUEUES = 65_536
"""Per topic. A larger number is probably a typing error, and each listing would contain all queues."""
ALL_PERMISSIONS = 15
MAX_SYS_FLAG = 2 ** (INT_BITS - 1) - 1
MANY_BYTES = 64 * 1024
QUEUES_AT_ONCE = 64
TOPICS_AT_ONCE = 500
"""Rows handled per reactor turn."""
MAX_ROW_BYTES = 64 * 1024
"""Of one topic or group as JSON."""
MAX_PARTS = 4_096
"""Of one topic or group: commas, objects and arrays."""
LISTED_BYTES_AT_ONCE = 4 * 1024
"""Entries of a list, as JSON, that are read per reactor turn."""
LISTED_ROW_COST = 256
"""Reading any entry takes as long as further bytes of this number."""
ROWS_AT_ONCE = 16
"""Entries of a list that are added to a table per reactor turn."""
REMOVES_OFFSETS = ("removeOffset", "cleanOffset")
"""The field that asks for a group's offsets to go with it: its name in 4.9 and in 5.x."""
NAMES_TOLD = 10
"""The most names of a list in the log."""
REFUSED_BY_SLAVES = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def success(content: Mapping[str, Any] | None = None) -> RemotingCommand:
    """A successful answer with this body."""
    return RemotingCommand(ResponseCode.SUCCESS, body=b"" if content is None else dumps_compact(content))


class WholeTable:
    """Answers with a table, which may be large, and which each slave asks for every ten seconds.

    The table is encoded once per version, and kept until the next version. The answer says in the field ``total``
    how many rows there are: slaves of 5.4 and later ask for more until they have as many.
    """

    def __init__(self, table: ITableDocument, total: str = "") -> None:
        self._table = table
        self._total = total
        self._fields: dict[str, str] = {}
        self._encoded_version: object = None
        self._body: bytes | None = None
        self._waiting: list[Deferred[bytes]] = []

    def answer(self, connection: RemotingProtocol, _: RemotingCommand) -> Answer:
        """The table as it is now."""
        return self._answer(connection)

    async def _answer(self, connection: RemotingProtocol) -> RemotingCommand:
        body = await self.encoded(connection.turns)
        if len(body) > MANY_BYTES:
            await connection.turns.next()  # another request may have encoded it meanwhile
        fields, body = (self._fields, body) if connection.is_open else ({}, b"")
        return RemotingCommand(ResponseCode.SUCCESS, ext_fields=fields, body=body)

    async def encoded(self, turns: Turns) -> bytes:
        """The table as it is now, as JSON."""
        version = self._table.changes
        if self._encoded_version != version:
            self._encoded_version, self._body = version, None
            waiting = self._waiting = []
            document = self._table.document()
            if self._total:
                self._fields = {
                    self._total: str(sum(len(rows.content) for rows in document.values() if type(rows) is Rows))
                }
            # it has only texts and numbers, so encoding does not fail
            body = await turns.run(dumping_strict(document))
            if self._waiting is waiting:
                self._body, self._waiting = body, []
            for waiter in waiting:
                waiter.callback(body)
            return body
        if self._body is not None:
            return self._body
        done: Deferred[bytes] = Deferred()
        self._waiting.append(done)
        return await done


@implementer(ITableDocument)
class _Signed:
    """A table with its attributes as additions."""

    def __init__(
        self, rows: TopicConfigManager | SubscriptionGroupManager, known: Mapping[str, Container[str]]
    ) -> None:
        self._rows = rows
        self._known = known

    @property
    def changes(self) -> int:
        return self._rows.changes

    def document(self) -> Document:
        document = dict(self._rows.document())
        for name, part in document.items():
            if type(part) is Rows:
                document[name] = Rows(part.content, lambda row: as_additions(row.to_json(), self._known))
        return document


@implementer(ITableDocument)
class _VersionedOffsets:
    """The offsets. If there is no version from a 5.x master, a meaningless one: a 5.x slave fails without it."""

    def __init__(self, offsets: ConsumerOffsetManager) -> None:
        self._offsets = offsets

    @property
    def changes(self) -> int:
        return self._offsets.changes

    def document(self) -> Document:
        return {"dataVersion": DataVersion().to_json(), **self._offsets.table.document()}


def by_version(
    rows: TopicConfigManager | SubscriptionGroupManager, total: str, known: Mapping[str, Container[str]]
) -> Processor:
    """Answers with a table, whose attributes are as the version of who asks reads them (``as_additions``)."""

    plain, with_signs = WholeTable(rows, total), WholeTable(_Signed(rows, known), total)

    def answer(connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        return (with_signs if request.version in SIGNED_VERSIONS else plain).answer(connection, request)

    return answer


def by_queue(content: Mapping[str, Any], name: str, rows: Iterable[tuple[str, Any]]) -> Steps[RemotingCommand]:
    """An answer with a table that has a row for each queue. ``rows`` are encoded keys and values.

    Raises RequestRefused if the table does not fit a frame.
    """
    pieces: list[bytes] = []
    size = 0
    for row in rows:
        pieces.append(row[0].encode() + b":" + dumps_compact(row[1]))
        size += len(pieces[-1]) + 1
        if size > FRAME_MAX_LENGTH:
            raise refused(f"there are too many queues for one answer: {len(pieces)} of them take {size} bytes")
        if len(pieces) % QUEUES_AT_ONCE == 0:
            yield
    head = dumps_compact(content)[1:-1]
    table = b"%s%s:{%s}" % (b"," if head else b"", dumps_compact(name), b",".join(pieces))
    return RemotingCommand(ResponseCode.SUCCESS, body=b"{" + head + table + b"}")


class TopicAdminProcessor:
    """Creates, changes and deletes topics and groups, on a master. A slave copies them from its master."""

    _log = Logger()

    def __init__(self, tables: CopiedTables, stats: BrokerStats, is_slave: bool) -> None:
        self._topics = tables.topics
        self._groups = tables.groups
        self._consumer_offsets = tables.consumer_offsets
        self._deleted = tables.deleted
        self._stats = stats
        self._is_slave = is_slave

    def processors(self) -> Processors:
        """By request code."""
        processors: dict[int, Processor] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_and_create_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_and_create_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_and_create_subscription_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_and_create_subscription_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_subscription_group,
        }
        return dict.fromkeys(processors, self._refuse) if self._is_slave else processors

    @staticmethod
    def _refuse(_: RemotingProtocol, __: RemotingCommand) -> RemotingCommand:
        raise refused(REFUSED_BY_SLAVES)

    async def _durable(self, manager: ConfigManager[Any]) -> RemotingCommand:
        """The answer to a change, once it is on disk. Raises RequestRefused."""
        try:
            await manager.written()
        except OSError as error:
            raise refused(f"it is changed in memory, but not written to the disk: {error}") from error
        return success()

    def _answer_when_durable(self, manager: ConfigManager[Any]) -> Deferred[RemotingCommand]:
        return Deferred.fromCoroutine(self._durable(manager))

    def update_and_create_topic(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Create a topic, or change its settings. As in Java ``order`` is required, and not stored.

        Fields that we do not know stay as they are. 5.x's tools send changes of attributes.
        """
        header = Header(request)
        header.text("defaultTopic")
        header.boolean("order")
        topic = TopicConfig(
            self._topic_to_change(header),
            _integer(header, "readQueueNums", MAX_QUEUES),
            _integer(header, "writeQueueNums", MAX_QUEUES),
            _integer(header, "perm", ALL_PERMISSIONS),
            _filter_type(header),
            _integer(header, "topicSysFlag", MAX_SYS_FLAG, default=0),
        )
        topic = replace(topic, unknown=self._unknown_of_topic(topic.topic_name, header.text("attributes", "")))
        self._change(connection, self._topics, topic)
        self._tell(connection, f"creates or changes {topic}")
        return self._answer_when_durable(self._topics)

    @staticmethod
    def _change(connection: RemotingProtocol, table: NamedConfigManager[Row], row: Row) -> None:
        """Create or change a row. Raises RequestRefused."""
        table.check_growth(row)
        table.take_new(table.name_of(row), connection)
        table.update(row)

    def update_and_create_topics(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Create or change the topics of a list (5.x's updateTopicList)."""
        contents = _listed(request, "topicConfigList")
        return self._change_all(connection, self._topics, contents, map(self._listed_topic, contents))

    def update_and_create_subscription_groups(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Create or change the groups of a list (5.x's updateSubGroupList)."""
        contents = _listed(request, "groupConfigList")
        return self._change_all(connection, self._groups, contents, map(self._read_group, contents))

    def _listed_topic(self, content: Any) -> TopicConfig:
        """A topic of a list. Raises RequestRefused."""
        _check_size(content)
        try:
            topic = TopicConfig.from_json(content)
            topic = _with_held_fields(topic, self._topics.get(topic.topic_name))
        except ValueError as error:
            raise refused(f"a topic is invalid: {error}") from error
        self._check_name(topic.topic_name)
        for field, number, most in (
            ("readQueueNums", topic.read_queue_nums, MAX_QUEUES),
            ("writeQueueNums", topic.write_queue_nums, MAX_QUEUES),
            ("perm", topic.perm, ALL_PERMISSIONS),
            ("topicSysFlag", topic.topic_sys_flag, MAX_SYS_FLAG),
        ):
            _check_range(f"{field} of topic {topic.topic_name}", number, most)
        return topic

    async def _change_all(
        self,
        connection: RemotingProtocol,
        table: NamedConfigManager[Row],
        contents: list[Any],
        reading: Iterator[Row],
    ) -> Later:
        await connection.turns.run(self._changing(connection, table, contents, reading))
        return Later(self._answer_when_durable(table))

    def _changing(
        self,
        connection: RemotingProtocol,
        table: NamedConfigManager[Row],
        contents: list[Any],
        reading: Iterator[Row],
    ) -> Steps[None]:
        """``reading`` makes the rows, one by one. Nothing changes if a row is not valid.

        Raises RequestRefused, also where further rows are too many.

        Unlike upstream's, a row that changes nothing does not end the list.
        """
        rows: list[Row] = []
        taken = 0
        for content, row in zip(contents, reading, strict=True):
            rows.append(row)
            taken += len(dumps_strict(content)) + LISTED_ROW_COST
            if taken > LISTED_BYTES_AT_ONCE:
                taken = 0
                yield
        names = ", ".join(map(table.name_of, rows[:NAMES_TOLD])) + (", …" if len(rows) > NAMES_TOLD else "")
        self._tell(connection, f"creates or changes {len(rows)} rows of {table.table.FILE_NAME}: {names}")
        for done, row in enumerate(rows):
            try:
                self._change(connection, table, row)
            except RequestRefused as error:
                code, remark = error.answer.code, error.answer.remark
                raise RequestRefused(code, f"{remark} (done: {done} of {len(rows)})") from error
            if done % ROWS_AT_ONCE == 0:
                yield

    def _unknown_of_topic(self, name: str, changes: str) -> Mapping[Any, Any]:
        """The unknown fields of a topic after these changes of its attributes. Raises RequestRefused."""
        held = self._topics.get(name)
        unknown = {} if held is None else held.unknown
        if not changes:
            return unknown
        try:
            attributes = altered({} if held is None else attributes_of(held), parse_changes(changes))
        except ValueError as error:
            raise refused(f"the attributes are refused: {error}") from error
        return {**unknown, ATTRIBUTES: attributes}

    def _topic_to_change(self, header: Header) -> str:
        name = header.text("topic")
        self._check_name(name)
        return name

    def _check_name(self, name: str) -> None:
        """Raises RequestRefused if tools may not change a topic of this name."""
        problem = topic_problem(name)
        if problem is not None:
            raise refused(problem)
        if self._topics.is_system(name):
            raise refused(f"The topic[{name}] is conflict with system topic.")

    def delete_topic(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Delete a topic with its queues, and what groups have read of it. Its messages stay in the log.

        A topic of the same name starts again from queue offset 0, here and on our slaves.
        """
        name = self._topic_to_change(Header(request))
        self._tell(connection, f"deletes topic {name}")
        return self._delete_topic(connection, name)

    async def _delete_topic(self, connection: RemotingProtocol, topic: str) -> Later:
        await connection.turns.run(self._stats.forgetting_topic(topic))
        return Later(Deferred.fromCoroutine(self._delete_durably(topic)))

    async def _delete_durably(self, topic: str, even_if_missing: bool = False) -> RemotingCommand:
        try:
            await self._deleted.delete(topic, even_if_missing)
        except OSError as error:
            raise refused(
                f"topic {topic} takes no messages now, but its deletion is not written to the disk: {error}; delete "
                "it again"
            ) from error
        return success()

    def update_and_create_subscription_group(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Create a group, or change its settings. Unknown fields that the request does not name stay as they are."""
        try:
            content = loads_request(request.body)
        except ValueError as error:
            raise refused(f"the subscription group is invalid: {error}") from error
        group = self._read_group(content)
        self._change(connection, self._groups, group)
        self._tell(connection, f"creates or changes {group}")
        return self._answer_when_durable(self._groups)

    def _read_group(self, content: Any) -> SubscriptionGroupConfig:
        """The group as it will be. Raises RequestRefused."""
        _check_size(content)
        try:
            group = SubscriptionGroupConfig.from_json(content)
            group = _with_held_fields(group, self._groups.get(group.group_name))
        except ValueError as error:
            raise refused(f"the subscription group is invalid: {error}") from error
        problem = None if group.group_name in self._groups.table.rows else new_group_problem(group.group_name)
        if problem is not None:
            raise refused(f"a group cannot be named {group.group_name[:MAX_GROUP_LENGTH]!r}: {problem}")
        return group

    def delete_subscription_group(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Delete a group. Its offsets, and the topic of its retries, go if that is requested."""
        header = Header(request)
        is_asked = [header.boolean(name, False) for name in REMOVES_OFFSETS]
        return self._delete_group(connection, header.text("groupName"), any(is_asked))

    async def _delete_group(self, connection: RemotingProtocol, name: str, remove_offsets: bool) -> Later:
        self._tell(connection, f"deletes group {shown(name)}{' and its offsets' if remove_offsets else ''}")
        had_something = self._groups.delete(name)
        if remove_offsets:
            had_offsets = await connection.turns.run(self._consumer_offsets.removing(name))
            had_something = had_something or had_offsets
        await connection.turns.run(self._stats.forgetting_group(name))
        return Later(Deferred.fromCoroutine(self._delete_group_durably(name, remove_offsets, had_something)))

    async def _delete_group_durably(self, name: str, removes_offsets: bool, had_something: bool) -> RemotingCommand:
        """A new group of this name begins without offsets, so it would get the old one's retries: they go too.

        The mark of the retry topic tells slaves that the offsets are gone, so a group without retries gets it too.
        """
        if removes_offsets:
            await self._delete_durably(f"{RETRY_PREFIX}{name}", had_something)
        return await self._durable(self._groups)

    def _tell(self, connection: RemotingProtocol, what: str) -> None:
        host, port = connection.peer_host
        self._log.info("{host}:{port} {what}", event=Event.ADMIN_CHANGE, host=host, port=port, what=what)


def _with_held_fields(row: Row, held: Row | None) -> Row:
    """The row with the unknown fields that we hold and the request does not name. Raises ValueError."""
    key = refused_key(row.unknown)
    if key is not None:
        raise ValueError(f"the key {key} is not accepted")
    changes = attributes_of(row)
    unknown = {**({} if held is None else held.unknown), **row.unknown}
    if changes:
        unknown[ATTRIBUTES] = altered({} if held is None else attributes_of(held), changes)
    elif held is not None and ATTRIBUTES in held.unknown:
        unknown[ATTRIBUTES] = held.unknown[ATTRIBUTES]
    return replace(row, unknown=unknown)


def _listed(request: RemotingCommand, field: str) -> list[Any]:
    """The list in this field of the body. Raises RequestRefused."""
    try:
        content = loads_request(request.body)
    except ValueError as error:
        raise refused(f"the body is invalid: {error}") from error
    found = content.get(field) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise refused(f"the body has no list {field}")
    return found


def _check_size(content: Any) -> None:
    """Raises RequestRefused if a topic or group is too large to be read in one turn of the reactor."""
    text = dumps_strict(content)
    parts = sum(map(text.count, (b",", b"{", b"[")))
    if len(text) > MAX_ROW_BYTES or parts > MAX_PARTS:
        raise refused(
            f"it takes {len(text)} bytes with {parts} parts, more than {MAX_ROW_BYTES} bytes or {MAX_PARTS} parts"
        )


def _check_range(what: str, number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise refused(f"{what} is not between 0 and {most}: {number}")


def _integer(header: Header, name: str, most: int, default: int | None = None) -> int:
    """A number from 0 to ``most``. Raises RequestRefused."""
    number = header.integer(name) if default is None else header.integer(name, default)
    _check_range(f"the custom field <{name}>", number, most)
    return number


def _filter_type(header: Header) -> TopicFilterType:
    text = header.text("topicFilterType")
    try:
        return TopicFilterType(text)
    except ValueError as error:
        raise refused(f"the custom field <topicFilterType> is not a TopicFilterType: {text[:40]!r}") from error


class TableProcessor:
    """Whole tables, for slaves and for tools."""

    def __init__(
        self,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        consumer_offsets: ConsumerOffsetManager,
        delay_offsets: ConfigManager[DelayOffsetTable],
        store: MessageStore,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._consumer_offsets = consumer_offsets
        self._delay_offsets = delay_offsets
        self._store = store

    def processors(self) -> Processors:
        """By request code."""
        topics, groups, offsets = self._topics, self._groups, self._consumer_offsets
        all_topics = by_version(topics, "totalTopicNum", OF_TOPICS_IN_5_3_3)
        all_groups = by_version(groups, "totalGroupNum", {})
        all_offsets = WholeTable(_VersionedOffsets(offsets))
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: all_topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: all_offsets.answer,
            RequestCode.GET_ALL_DELAY_OFFSET: lambda _, __: self._all_delay_offsets(),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all_groups,
            RequestCode.GET_TIMER_CHECK_POINT: lambda _, __: self._timer_check_point(),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: lambda _, __: success(
                {"topicList": sorted(self._topics.system_topics)}
            ),
            RequestCode.GET_TOPIC_CONFIG: self._topic_config,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self._group_config,
        }

    def _topic_config(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """A topic, for tools of 5.x. (It has no queue mapping: that belongs to static topics.)"""
        name = Header(request).text("topic")
        topic = self._topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {shown(name)}")
        return success(topic.to_json())

    def _group_config(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """A group, for tools of 5.x."""
        group = self._groups.get(Header(request).text("group"))
        if group is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return success(group.to_json())

    def _all_delay_offsets(self) -> RemotingCommand:
        return RemotingCommand(ResponseCode.SUCCESS, body=dumps_strict(self._delay_offsets.table.to_json()))

    def _timer_check_point(self) -> RemotingCommand:
        """For our slaves: how far a master of 5.x had come with its timer messages when our store was its copy."""
        found = TimerCheckPoint.read(self._store.root / CONFIG_FOLDER, self._store.disk)
        if found is None:
            raise RequestRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this broker has no timer check point")
        return RemotingCommand(ResponseCode.SUCCESS, body=found.encode())


class GroupProgress(NamedTuple):
    """A ConsumeStats as text, and how many messages the group has not consumed yet."""

    body: bytes
    behind: int


class StatsProcessor:
    """Answers requests for the progress of queues and groups, and for statistics."""

    def __init__(
        self,
        store: MessageStore,
        broker_name: str,
        tables: BrokerTables,
        consumers: ConsumerManager,
        stats: BrokerStats,
        wall: IWallClock,
    ) -> None:
        self._store = store
        self._broker_name = broker_name
        self._topics = tables.topics
        self._consumers = consumers
        self._consumer_offsets = tables.consumer_offsets
        self._stats = stats
        self._now_ms = wall.now_ms

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.get_topic_stats_info,
            RequestCode.GET_CONSUME_STATS: self.get_consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.query_topic_consume_by_who,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.query_consume_time_span,
            RequestCode.VIEW_BROKER_STATS_DATA: self.view_broker_stats_data,
        }

    def _topic(self, header: Header) -> TopicConfig:
        """The requested topic. Raises RequestRefused."""
        name = header.text("topic")
        topic = self._topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)

    def get_topic_stats_info(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The first and last offset of each queue of a topic, and the store time of its newest message."""
        topic = self._topic(Header(request))
        name = topic.topic_name
        rows = (
            (queue_key(self._queue(name, queue_id)), self._topic_offset(name, queue_id))
            for queue_id in range(topic.write_queue_nums)
        )
        return connection.turns.run(by_queue({}, "offsetTable", rows))

    def _topic_offset(self, topic: str, queue_id: int) -> dict[str, int]:
        """A TopicOffset in Java's form and order."""
        reader = self._store.reader
        end = reader.max_offset(topic, queue_id)
        return {
            "lastUpdateTimestamp": reader.message_store_timestamp(topic, queue_id, end - 1) if end else 0,
            "maxOffset": end,
            "minOffset": max(0, reader.min_offset(topic, queue_id)),
        }

    def get_consume_stats(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The offsets of a group in each queue of a topic, or of all topics in which it has offsets."""
        header = Header(request)
        return connection.turns.run(self._consume_stats(header.text("consumerGroup"), header.text("topic", "")))

    def _consume_stats(self, group: str, asked: str) -> Steps[RemotingCommand]:
        names = [asked] if asked.strip() else (yield from self._consumer_offsets.finding_topics(group))
        online = self._consumers.get(group)
        subscribed = None if online is None or not online.subscriptions else online.subscriptions
        topics: list[TopicConfig] = []
        tps = 0.0
        for count, name in enumerate(names, 1):
            topic = self._topics.get(name)
            if topic is not None and (subscribed is None or name in subscribed):
                topics.append(topic)
                tps += self._stats.group_get_tps(group, name)
            if count % TOPICS_AT_ONCE == 0:
                yield
        rows = (
            (queue_key(self._queue(topic.topic_name, queue_id)), self._progress(group, topic.topic_name, queue_id))
            for topic in topics
            for queue_id in range(topic.read_queue_nums)
        )
        return (yield from by_queue({"consumeTps": tps}, "offsetTable", rows))

    def progress_of(self, group: str, topic_name: str) -> Steps[GroupProgress | None]:
        """A ConsumeStats of one group and topic; None if they do not belong together (any more).

        Raises RequestRefused if it does not fit a frame.
        """
        topic, online = self._topics.get(topic_name), self._consumers.get(group)
        is_left_out = online is not None and online.subscriptions and topic_name not in online.subscriptions
        if topic is None or is_left_out:
            return None
        rows: list[tuple[str, dict[str, int]]] = []
        for queue_id in range(topic.write_queue_nums):
            queue = queue_key(self._queue(topic_name, queue_id))
            rows.append((queue, self._progress(group, topic_name, queue_id)))
            if len(rows) % QUEUES_AT_ONCE == 0:
                yield
        behind = sum(row["brokerOffset"] - row["consumerOffset"] for _, row in rows)
        tps = self._stats.group_get_tps(group, topic_name)
        return GroupProgress((yield from by_queue({"consumeTps": tps}, "offsetTable", rows)).body, behind)

    def _progress(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        """An OffsetWrapper in Java's form and order.

        5.1.0 added pullOffset: how far the group has pulled. We do not note it, and say that no message is on its way.
        """
        reader = self._store.reader
        offset = max(0, self._consumer_offsets.query(group, topic, queue_id))
        consumed_at = reader.message_store_timestamp(topic, queue_id, offset - 1) if offset else 0
        return {
            "brokerOffset": reader.max_offset(topic, queue_id),
            "consumerOffset": offset,
            "lastTimestamp": max(0, consumed_at),
            "pullOffset": offset,
        }

    def query_topic_consume_by_who(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The groups with connected clients that subscribe to a topic, and those with offsets in it."""
        return connection.turns.run(self._consumed_by(Header(request).text("topic")))

    def _consumed_by(self, topic: str) -> Steps[RemotingCommand]:
        online = yield from self._consumers.finding_groups(topic)
        reading = yield from self._consumer_offsets.finding_groups(topic)
        groups = sorted({*online, *reading})
        return RemotingCommand(ResponseCode.SUCCESS, body=dumps_strict({"groupList": groups}))

    def query_consume_time_span(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The first and last store time of each queue, and the age of the messages that a group has reached."""
        header = Header(request)
        topic, group = self._topic(header), header.text("group")
        return connection.turns.run(self._time_spans(topic, group))

    def _time_spans(self, topic: TopicConfig, group: str) -> Steps[RemotingCommand]:
        spans: list[bytes] = []
        for queue_id in range(topic.write_queue_nums):
            spans.append(dumps_compact(self._time_span(topic.topic_name, group, queue_id)))
            if len(spans) % QUEUES_AT_ONCE == 0:
                yield
        return RemotingCommand(ResponseCode.SUCCESS, body=b'{"consumeTimeSpanSet":[%s]}' % b",".join(spans))

    def _time_span(self, topic: str, group: str, queue_id: int) -> dict[str, Any]:
        """A QueueTimeSpan in Java's form and order; times are -1 for an empty queue."""
        reader = self._store.reader
        earliest = reader.earliest_message_time(topic, queue_id)
        offset, end = max(0, self._consumer_offsets.query(group, topic, queue_id)), reader.max_offset(topic, queue_id)
        next_at = reader.message_store_timestamp(topic, queue_id, offset) if offset < end else -1
        return {
            "consumeTimeStamp": reader.message_store_timestamp(topic, queue_id, offset - 1) if offset else earliest,
            "delayTime": max(0, self._now_ms() - next_at) if next_at >= 0 else 0,
            "maxTimeStamp": reader.message_store_timestamp(topic, queue_id, end - 1),
            "messageQueue": self._queue(topic, queue_id).to_json(),
            "minTimeStamp": earliest,
        }

    def view_broker_stats_data(self, _: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """The last minute, hour and day of a statistic."""
        header = Header(request)
        name, key = header.text("statsName"), header.text("statsKey")
        windows = self._stats.view(name, key)
        if windows is None:
            raise refused(f"The stats <{name}> <{key}> not exist")
        return success(
            {
                window: {"avgpt": data.avgpt, "sum": data.sum, "tps": data.tps}
                for window, data in sorted(windows.items())
            }
        )


def queue_key(queue: MessageQueue) -> ObjectKey:
    """A MessageQueue as the key of a table, in Java's form."""
    return ObjectKey(dumps_compact(queue.to_json()).decode())
