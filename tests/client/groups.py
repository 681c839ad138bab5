"""A broker in memory that knows consumer groups: heartbeats, offsets, long polls, retries and locks."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from rmqha.client import MessageQueue
from rmqha.remoting.protocol import Answer, IConnectionObserver, Processors, RemotingProtocol, RequestRefused
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import dumps_strict, loads_lenient
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record, encode_record
from tests.client.cluster import ClusterTestCase, Server, broker_data, queue_data

PORTION = 3
TOPIC = "T"


@implementer(IConnectionObserver)
class GroupBroker:
    """A master called ``name`` with the queues of its topics in memory."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.queues: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.first: dict[tuple[str, int], int] = defaultdict(int)
        """The first offset of each queue: what comes before was deleted."""
        self.kept: dict[tuple[str, int], int] = {}
        self.heartbeats: list[Any] = []
        self.clients: list[str] = []
        """The clients of the group besides those of heartbeats."""
        self.known: dict[RemotingProtocol, str] = {}
        self.returned: list[tuple[int, int]] = []
        """The physical offsets that were given back, with their delay levels."""
        self.refuse: dict[int, int] = {}
        """Request codes that are answered with an error, and its code."""
        self.locks: dict[MessageQueue, str] = {}
        self.left: list[dict[str, str]] = []
        self.sent: list[RemotingCommand] = []
        self.send_code = 0
        """How sends are answered."""
        self.ended: list[dict[str, str]] = []
        self._polls: list[tuple[Deferred[RemotingCommand], RemotingCommand]] = []

    def processors(self) -> Processors:
        codes: dict[int, Callable[[RemotingProtocol, RemotingCommand], Answer]] = {
            RequestCode.PULL_MESSAGE: self.pull,
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.take_back,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.END_TRANSACTION: self.end_transaction,
        }
        return {code: self._refusing(code, processor) for code, processor in codes.items()}

    def _refusing(self, code: int, processor: Callable[[RemotingProtocol, RemotingCommand], Answer]) -> Any:
        def answer(connection: RemotingProtocol, request: RemotingCommand) -> Answer:
            if code in self.refuse:
                raise RequestRefused(self.refuse[code], "the test wants it so")
            return processor(connection, request)

        return answer

    # -- messages -----------------------------------------------------------------------------------------------

    def put(self, queue_id: int, *tags: str, topic: str = TOPIC, **fields: Any) -> None:
        """Put a message with each of these tags, and wake those that wait."""
        own = self.queues[topic, queue_id]
        for tag in tags:
            offset = self.first[topic, queue_id] + len(own)
            properties = {"UNIQ_KEY": f"{topic}-{queue_id}-{offset}", **({"TAGS": tag} if tag else {})}
            properties.update(fields.pop("properties", {}))
            own.append(
                Record(
                    topic=topic,
                    body=fields.get("body", b"%s %d %d" % (topic.encode(), queue_id, offset)),
                    properties_stored=format_properties(properties),
                    queue_id=queue_id,
                    queue_offset=offset,
                    physical_offset=queue_id * 1_000_000 + offset,
                    sys_flag=fields.get("sys_flag", 0),
                    reconsume_times=fields.get("reconsume_times", 0),
                )
            )
        polls, self._polls = self._polls, []
        for answer, request in polls:
            if not answer.called:
                self._poll(answer, request)

    def pull(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        answer: Deferred[RemotingCommand] = Deferred()
        self._poll(answer, request)
        return answer

    def _poll(self, answer: Deferred[RemotingCommand], request: RemotingCommand) -> None:
        fields = request.ext_fields
        key = fields["topic"], int(fields["queueId"])
        first, end = self.first[key], self.first[key] + len(self.queues[key])
        at = int(fields["queueOffset"])
        if at < first or at > end:
            answer.callback(self._pulled(ResponseCode.PULL_OFFSET_MOVED, first if at < first else end, first, end))
        elif at < end:
            found = self.queues[key][at - first : at - first + PORTION]
            body = b"".join(map(encode_record, found))
            answer.callback(self._pulled(ResponseCode.SUCCESS, at + len(found), first, end, body))
        else:
            self._polls.append((answer, request))

    @staticmethod
    def _pulled(code: int, next_offset: int, first: int, end: int, body: bytes = b"") -> RemotingCommand:
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(next_offset)}
        return RemotingCommand(code, ext_fields={**fields, "minOffset": str(first), "maxOffset": str(end)}, body=body)

    # -- offsets ------------------------------------------------------------------------------------------------

    @staticmethod
    def _key(request: RemotingCommand) -> tuple[str, int]:
        return request.ext_fields["topic"], int(request.ext_fields["queueId"])

    def query_offset(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        if self._key(request) not in self.kept:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "there is none")
        return RemotingCommand(0, ext_fields={"offset": str(self.kept[self._key(request)])})

    def update_offset(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        self.kept[self._key(request)] = int(request.ext_fields["commitOffset"])
        return RemotingCommand(0)

    def min_offset(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        return RemotingCommand(0, ext_fields={"offset": str(self.first[self._key(request)])})

    def max_offset(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        key = self._key(request)
        return RemotingCommand(0, ext_fields={"offset": str(self.first[key] + len(self.queues[key]))})

    def search_offset(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        return RemotingCommand(0, ext_fields={"offset": request.ext_fields["timestamp"]})

    # -- groups -------------------------------------------------------------------------------------------------

    def heart_beat(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        content = loads_lenient(request.body)
        self.heartbeats.append(content)
        if connection not in self.known:
            connection.on_closed(self)
        self.known[connection] = content["clientID"]
        return RemotingCommand(0)

    def connection_closed(self, connection: RemotingProtocol) -> None:
        """A connection is closed."""
        self.known.pop(connection, None)

    def unregister(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        self.left.append(dict(request.ext_fields))
        self.known.pop(connection, None)
        return RemotingCommand(0)

    def consumer_list(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        return RemotingCommand(0, body=dumps_strict({"consumerIdList": [*self.clients, *self.known.values()]}))

    def tell_clients(self, group: str) -> None:
        """Say that the clients of the group have changed."""
        for connection in self.known:
            connection.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def take_back(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        self.returned.append((int(request.ext_fields["offset"]), int(request.ext_fields["delayLevel"])))
        return RemotingCommand(0)

    def lock(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        content = loads_lenient(request.body)
        locked = []
        for item in content["mqSet"]:
            queue = MessageQueue.from_json(item)
            if self.locks.setdefault(queue, content["clientId"]) == content["clientId"]:
                locked.append(item)
        return RemotingCommand(0, body=dumps_strict({"lockOKMQSet": locked}))

    def unlock(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        for item in loads_lenient(request.body)["mqSet"]:
            self.locks.pop(MessageQueue.from_json(item), None)
        return RemotingCommand(0)

    # -- producers ----------------------------------------------------------------------------------------------

    def send(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        self.sent.append(request)
        fields = {"msgId": "C000021400002A9F0000000000001000", "queueId": request.ext_fields["e"], "queueOffset": "7"}
        return RemotingCommand(self.send_code, ext_fields=fields)

    def end_transaction(self, _: RemotingProtocol, request: RemotingCommand) -> Answer:
        self.ended.append(dict(request.ext_fields))
        return RemotingCommand(0)


class GroupTestCase(ClusterTestCase):
    """One broker ``a`` with a topic of four queues."""

    queues = 4

    def setUp(self) -> None:
        super().setUp()
        self.broker = GroupBroker("a", self.clock)
        self.server: Server = self.serve("a:1", self.broker.processors())
        self.routes[TOPIC] = [broker_data("a", master="a:1")], [queue_data("a", self.queues, self.queues)]

    def pass_time(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, and deliver what waits."""
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            self.carry()

    def queue_ids(self, queues: Iterable[MessageQueue]) -> list[int]:
        return [queue.queue_id for queue in queues]
