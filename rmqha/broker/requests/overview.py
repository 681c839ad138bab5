"""Operators ask about all groups, all producers and single queues, and for cleaning (spec/remoting.md 2.19)."""

from collections.abc import Iterable, Mapping
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmqha.broker.addresses import OwnAddresses
from rmqha.broker.interfaces import IBrokersNode
from rmqha.broker.requests.admin import QUEUES_AT_ONCE, StatsProcessor
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.clients import ClientChannelInfo, ConsumerManager, ProducerManager
from rmqha.kit.events import Event
from rmqha.kit.steps import Steps
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.header import Header, refused, shown
from rmqha.remoting.protocol import Answer, Processor, Processors, RemotingProtocol
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_compact

ROWS_AT_ONCE = 64
UNITS_AT_ONCE = 128
TOPICS_AT_ONCE = 4
"""Rows, units of a queue, and topics of a group, handled per reactor turn."""
KEPT = (
    "the retention rules were applied: what they allow was deleted, and nothing else. "
    "The queues of a topic stay as long as their messages"
)


class Pieces:
    """The rows of a long answer. Raises RequestRefused if they do not fit a frame."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._size = 0

    def add(self, row: bytes) -> bool:
        """Add a row. Returns whether others should have a turn now."""
        self._rows.append(row)
        self._size += len(row) + 1
        if self._size > FRAME_MAX_LENGTH:
            raise refused(f"one answer cannot hold all: {len(self._rows)} rows take {self._size} bytes")
        return len(self._rows) % ROWS_AT_ONCE == 0

    def joined(self) -> bytes:
        """The rows with commas between them."""
        return b",".join(self._rows)


class OverviewProcessor:
    """Tells how far all groups are, who produces, and what is in a queue; copies the offsets of a group."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        tables: BrokerTables,
        clients: tuple[ProducerManager, ConsumerManager],
        stats: StatsProcessor,
        own: OwnAddresses,
        clocks: tuple[IReactorTime, IWallClock],
    ) -> None:
        """``clocks`` are that of heartbeats, and the time of day."""
        self._store = store
        self._topics, self._groups = tables.topics, tables.groups
        self._consumer_offsets = tables.consumer_offsets
        self._producers, self._consumers = clients
        self._stats = stats
        self._own = own
        self._clock, wall = clocks
        self._now_ms = wall.now_ms

    def processors(self) -> Processors:
        """By request code."""
        return {
            RequestCode.GET_BROKER_CONSUME_STATS: self.get_broker_consume_stats,
            RequestCode.GET_ALL_PRODUCER_INFO: self.get_all_producer_info,
            RequestCode.QUERY_CONSUME_QUEUE: self.query_consume_queue,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_group_offset,
        }

    # -- all groups ---------------------------------------------------------------------------------------------

    def get_broker_consume_stats(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The offsets of all groups, as GET_CONSUME_STATS tells them of one. ``isOrder`` wants ordered topics only.

        No topic of ours is ordered, because ``order`` is not stored: then each group's list is empty, as in Java.
        """
        return connection.turns.run(self._all_groups(Header(request).boolean("isOrder")))

    def _all_groups(self, only_ordered: bool) -> Steps[RemotingCommand]:
        topics = yield from self._consumer_offsets.grouping_topics()
        pieces, behind = Pieces(), 0
        for name in list(self._groups.table.subscription_group_table):
            of_group: list[bytes] = []
            for count, topic in enumerate(() if only_ordered else topics.get(name, ()), 1):
                if count % TOPICS_AT_ONCE == 0:
                    yield
                found = yield from self._stats.progress_of(name, topic)
                if found is not None:
                    of_group.append(found.body)
                    behind += found.behind
            if pieces.add(b"{%s:[%s]}" % (dumps_compact(name), b",".join(of_group))):
                yield
        head = dumps_compact({"brokerAddr": self._own.broker_addr})[:-1]
        body = b'%s,"consumeStatsList":[%s],"totalDiff":%d}' % (head, pieces.joined(), behind)
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    # -- producers ----------------------------------------------------------------------------------------------

    def get_all_producer_info(self, connection: RemotingProtocol, _: RemotingCommand) -> Answer:
        """All connected producers, by group."""
        return connection.turns.run(self._all_producers())

    def _all_producers(self) -> Steps[RemotingCommand]:
        groups = Pieces()
        for name, channels in list(self._producers.groups.items()):
            clients = Pieces()
            for client in list(channels.values()):
                if clients.add(dumps_compact(self._producer(client))):
                    yield
            if groups.add(b"%s:[%s]" % (dumps_compact(name), clients.joined())):
                yield
        return RemotingCommand(ResponseCode.SUCCESS, body=b'{"data":{%s}}' % groups.joined())

    def _producer(self, client: ClientChannelInfo) -> dict[str, Any]:
        """A ProducerInfo in Java's form and order."""
        host, port = client.connection.peer_host
        silent_ms = round((self._clock.seconds() - client.last_heartbeat) * 1000)
        return {
            "clientId": client.client_id,
            "language": client.language,
            "lastUpdateTimestamp": self._now_ms() - silent_ms,
            "remoteIP": f"/{host}:{port}",
            "version": client.version,
        }

    # -- a queue ------------------------------------------------------------------------------------------------

    def query_consume_queue(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """The units of a queue from ``index`` on, and the subscription of a group to the topic if one is named."""
        header = Header(request)
        topic, queue_id = header.text("topic"), header.integer("queueId")
        if self._store.reader.min_offset(topic, queue_id) < 0:
            raise refused(f"{queue_id}@{shown(topic)} is not exist!")
        return connection.turns.run(
            self._queue(topic, queue_id, header.integer("index"), header.integer("count"), self._asked_group(header))
        )

    def _asked_group(self, header: Header) -> Mapping[str, Any]:
        """What the answer says about the group."""
        name, topic = header.text("consumerGroup", None), header.text("topic")
        if name is None:
            return {}
        group = self._consumers.get(name)
        subscription = None if group is None else group.subscription(topic)
        if subscription is None:
            return {"filterData": f"{name}@{topic} is not online!"}
        return {"filterData": "null", "subscriptionData": subscription.to_json()}

    def _queue(
        self, topic: str, queue_id: int, index: int, count: int, of_group: Mapping[str, Any]
    ) -> Steps[RemotingCommand]:
        reader = self._store.reader
        pieces, at, end = Pieces(), index, index + max(0, count)
        while at < end:
            units = reader.units(topic, queue_id, at, min(UNITS_AT_ONCE, end - at))
            if not units:
                break
            for unit in units:
                pieces.add(
                    dumps_compact(
                        {
                            "eval": False,
                            "physicOffset": unit.physical_offset,
                            "physicSize": unit.size,
                            "tagsCode": unit.tags_code,
                        }
                    )
                )
            at += len(units)
            yield
        limits = {
            "maxQueueIndex": reader.max_offset(topic, queue_id),
            "minQueueIndex": max(0, reader.min_offset(topic, queue_id)),
        }
        filter_data = {name: value for name, value in of_group.items() if name == "filterData"}
        head = dumps_compact({**filter_data, **limits})[:-1]
        rest = {name: value for name, value in of_group.items() if name != "filterData"}
        tail = b"," + dumps_compact(rest)[1:] if rest else b"}"
        remark = f"Index {index} of {queue_id}@{shown(topic)} is not exist!" if at == index else None
        body = b'%s,"queueData":[%s]%s' % (head, pieces.joined(), tail)
        return RemotingCommand(ResponseCode.SUCCESS, remark=remark, body=body)

    # -- offsets of a group -------------------------------------------------------------------------------------

    def clone_group_offset(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Give a group the offsets of another one, in a topic or in all of its topics.

        With ``offline`` also in topics to which the connected consumers of the other group do not subscribe.
        """
        header = Header(request)
        source, target = header.text("srcGroup"), header.text("destGroup")
        topic, is_offline = header.text("topic", "").strip(), header.boolean("offline", False)
        host, port = connection.peer_host
        self._log.warn(
            "{host}:{port} gives group {target} the offsets of group {source}",
            event=Event.OFFSETS_CLONED,
            host=host,
            port=port,
            target=shown(target),
            source=shown(source),
        )
        return connection.turns.run(self._cloning(source, target, topic, is_offline, f"{host}:{port}"))

    def _cloning(self, source: str, target: str, topic: str, is_offline: bool, who: str) -> Steps[RemotingCommand]:
        topics: Iterable[str] = [topic] if topic else (yield from self._consumer_offsets.finding_topics(source))
        online = None if is_offline else self._consumers.get(source)
        copied = 0
        for name in topics:
            is_left_out = online is not None and online.subscriptions and name not in online.subscriptions
            if self._topics.get(name) is None or is_left_out:
                continue
            for queue_id, offset in self._consumer_offsets.of_queues(source, name).items():
                self._consumer_offsets.order(target, name, queue_id, offset, who)
                copied += 1
                if copied % QUEUES_AT_ONCE == 0:
                    yield
        return RemotingCommand(ResponseCode.SUCCESS)


class CleaningProcessor:
    """Requests to delete what nobody needs. They apply the retention rules now, and delete nothing else.

    Java also deletes the queues of topics that were deleted, while their messages are in the log. Then offsets start
    at 0 again, and slaves, which still have these queues, skip new messages.
    """

    _log = Logger()

    def __init__(self, node: IBrokersNode) -> None:
        self._node = node

    def processors(self) -> Processors:
        """By request code."""
        codes = (
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
        )
        return dict[int, Processor].fromkeys(codes, self.clean)

    async def clean(self, connection: RemotingProtocol, request: RemotingCommand) -> RemotingCommand:
        """Apply the retention rules now. The remark says what this means."""
        host, port = connection.peer_host
        name = RequestCode(request.code).name
        self._log.warn(
            "{host}:{port} asks for cleaning ({name})", event=Event.CLEANING_REQUESTED, host=host, port=port, name=name
        )
        await self._node.clean_now()
        return RemotingCommand(ResponseCode.SUCCESS, remark=KEPT)
