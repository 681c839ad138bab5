"""Stores messages of clients: SEND_MESSAGE (10, 310), batches (320), and CONSUMER_SEND_MSG_BACK (36).

See spec/remoting.md 2.1, 2.9 and 4.2. Most sends are ordinary, and do not come here: see ``ordinarysends``, which
equals this.
"""

import random
from functools import partial
from uuid import uuid4

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from zope.interface import Interface

from rmqha.broker.requests.ordinarysends import CODES, answer_fields, cluster_property
from rmqha.broker.requests.stamps import Stamps
from rmqha.broker.requests.timersends import RecallHandle, TimerRefused, TimerSends
from rmqha.broker.tables.brokertables import BrokerTables
from rmqha.broker.tables.stats import BrokerStats
from rmqha.broker.tables.topics import UNIT_FLAG, UNIT_SUB_FLAG, topic_problem
from rmqha.kit.events import Event
from rmqha.kit.steps import Steps
from rmqha.remoting.header import Header
from rmqha.remoting.protocol import (
    Answer,
    Later,
    Processors,
    RemotingProtocol,
    RequestRefused,
)
from rmqha.settings.settings import Settings
from rmqha.store.message import (
    AppendMessageResult,
    Message,
    MessageBatch,
    PutMessageResult,
    PutMessageStatus,
    put_again,
)
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import PERM_WRITE, SubscriptionGroupConfig, TopicConfig, TopicFilterType
from rmqha.store.put import PutRefused
from rmqha.wire.batch import BatchError, entries_of
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    WAIT_TRUE,
    format_properties,
    parse_properties,
    property_in,
)
from rmqha.wire.record import MAX_TOPIC_BYTES, MULTI_TAGS_FLAG, Record
from rmqha.wire.requestfields import V1_FIELDS, V2_FIELDS, SendFields
from rmqha.wire.sends.run import TRANSACTION_ID
from rmqha.wire.timers import TIMER_CANCELS, TIMES, UNIQUE_KEY
from rmqha.wire.topics import DEAD_PREFIX, NO_SENDS_TO, RETRY_PREFIX

DLQ_NUMS_PER_GROUP = 1
MANY_MESSAGES = 1000
FIRST_RETRY_LEVEL = 3
"""The delay level of a message that comes back for the first time, unless its consumer requests another."""
VERSION_WITH_MAX_RECONSUME_TIMES = 121

LOOKED_AT = tuple(
    f"{PROPERTY_SEPARATOR}{name}{NAME_VALUE_SEPARATOR}" for name in ("WAIT", "DELAY", "TRAN_MSG", "CLUSTER")
)
"""If the properties of a message contain one of these, they are parsed one by one."""
NOT_IN_BATCHES = ("DELAY", "TRAN_MSG", "TIMER_DEL")
"""If a message of a batch has no property with such a name, it has none that asks for more than to store it."""
TIMER_START = f"{PROPERTY_SEPARATOR}TIMER_DEL"
"""The start of each property of 5.x that asks for a delivery at a time, or cancels one."""

REMARKS = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: (
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full or "
        "refuses, messages are put to the slave, message store has been shut down, etc."
    ),
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: "in-sync replicas not enough",
    PutMessageStatus.CREATE_MAPEDFILE_FAILED: "create mapped file failed, server is busy or broken.",
    PutMessageStatus.MESSAGE_ILLEGAL: (
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit is "
        "maxMessageSize, msg properties length limit 32k."
    ),
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: "the message's properties are longer than 32767 bytes",
    PutMessageStatus.OS_PAGECACHE_BUSY: "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
}


class ITransactions(Interface):
    """Puts half messages."""

    def prepare(message: Message) -> Deferred[PutMessageResult]:
        """Put a message, whose properties are complete, as a half message."""


class SendMessageProcessor:
    """Puts the messages that clients send, on a master. ``stats`` counts them."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        tables: BrokerTables,
        stamps: Stamps,
        transactions: ITransactions,
        stats: BrokerStats,
    ) -> None:
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self.settings = settings
        """The settings now."""
        self._own = stamps.own
        self._now_ms = stamps.wall.now_ms
        self.timers = TimerSends(store, stamps.wall)
        """What becomes of timer messages."""
        self._transactions = transactions
        self._messages_put = stats.messages_put
        self._cluster = cluster_property(settings)
        self.in_every_answer = answer_fields(settings)
        """The fields of each answer, successful or not."""

    @property
    def _is_writable(self) -> bool:
        """Whether the broker takes messages of clients now."""
        return bool(self.settings.broker_permission & PERM_WRITE)

    def processors(self) -> Processors:
        """By request code."""
        sends = partial(self.send, names=V2_FIELDS)
        return {
            RequestCode.SEND_MESSAGE: partial(self.send, names=V1_FIELDS),
            RequestCode.SEND_MESSAGE_V2: sends,
            RequestCode.SEND_BATCH_MESSAGE: sends,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
        }

    def _refused(self, code: ResponseCode, remark: str) -> RequestRefused:
        return RequestRefused(code, remark, self.in_every_answer)

    def send(self, connection: RemotingProtocol, request: RemotingCommand, names: SendFields) -> Answer:
        """Put the message of a request, or its batch."""
        message = self.message_of(connection, request, names)
        fields = request.ext_fields
        properties = fields.get(names.properties) or ""
        if fields.get(names.batch) == "true":
            return self._put_batch(message, properties, connection)
        if message.topic.startswith(RETRY_PREFIX):
            return self._put_retry(message, properties, request, names, connection)
        return self._put(message, properties)

    def message_of(self, connection: RemotingProtocol, request: RemotingCommand, names: SendFields) -> Message:
        """The message in a request, without its properties. Its topic and queue exist. Raises RequestRefused."""
        fields = request.ext_fields
        if self.settings.start_accept_send_request_time_stamp:
            self._check_time()
        try:
            _, topic, _, _, queue_id, sys_flag, born_timestamp, flag = names.required(fields)
            message = Message(
                topic,
                request.body,
                {},
                int(queue_id),
                int(flag),
                int(sys_flag),
                int(born_timestamp),
                connection.born_host,
                self._own.store_host,
                int(fields.get(names.reconsume_times) or 0),
            )
        except (KeyError, ValueError):
            _check(names, request)
            raise
        config = self._topics.get(topic)
        if config is None or topic in NO_SENDS_TO or not self._is_writable:
            config = self._topic_to_write(topic, request, names, connection)
        if not 0 <= message.queue_id < config.write_queue_nums:
            message.queue_id = self._other_queue_id(config, message.queue_id)
        if config.topic_filter_type is TopicFilterType.MULTI_TAG:
            message.sys_flag |= MULTI_TAGS_FLAG
        return message

    def _check_time(self) -> None:
        since = self.settings.start_accept_send_request_time_stamp
        if self._now_ms() < since:
            raise self._refused(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {since}")

    def _topic_to_write(
        self, topic: str, request: RemotingCommand, names: SendFields, connection: RemotingProtocol
    ) -> TopicConfig:
        """The topic, created if needed. Raises RequestRefused if writing to it is not allowed."""
        problem = topic_problem(topic)
        if problem is not None:
            raise self._refused(ResponseCode.SYSTEM_ERROR, problem)
        if topic in NO_SENDS_TO:
            raise self._refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        config = self._topics.get(topic) or self._make_topic(topic, request, names, connection)
        if config is None:
            raise self._refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        if config.order and not self._is_writable:
            raise self._refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self.settings.broker_name}] sending message is forbidden"
            )
        return config

    def _make_topic(
        self, topic: str, request: RemotingCommand, names: SendFields, connection: RemotingProtocol
    ) -> TopicConfig | None:
        header = Header(request)
        in_unit = header.boolean(names.unit_mode, False)
        retried = topic.startswith(RETRY_PREFIX)
        config = self._topics.create_in_send(
            topic,
            header.text(names.default_topic),
            header.integer(names.default_topic_queue_nums),
            (UNIT_SUB_FLAG if retried else UNIT_FLAG) if in_unit else 0,
            connection,
        )
        if config is None and retried:
            self._topics.take_new(topic, connection)
            return self._topics.create_in_send_back(topic, 1, topic_sys_flag=UNIT_SUB_FLAG if in_unit else 0)
        return config

    def _other_queue_id(self, config: TopicConfig, queue_id: int) -> int:
        """The queue for an id that is not a write queue; a random one for a negative id. Raises RequestRefused."""
        if queue_id < 0 and config.write_queue_nums > 0:
            return random.randrange(config.write_queue_nums)
        if 0 <= queue_id < config.read_queue_nums:  # as in Java: a queue that is being removed still takes messages
            return queue_id
        raise self._refused(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic {config.topic_name} has {config.write_queue_nums} queues",
        )

    def _put(self, message: Message, properties: str) -> Answer:
        """Put a message with these properties."""
        padded = _padded(properties)
        if TIMER_START in padded:
            return self._put_timed(message, parse_properties(properties))
        for name in LOOKED_AT:
            if name in padded:
                return self._put_parsed(message, parse_properties(properties))
        message.properties_stored = self._with_cluster(padded)
        return self._store.put_message(message).addCallback(self._answer, message, message.queue_id)

    def _with_cluster(self, padded: str) -> str:
        """Properties as they are stored, with the cluster's name."""
        own = padded.strip(PROPERTY_SEPARATOR)
        return f"{own}{PROPERTY_SEPARATOR}{self._cluster}" if own else self._cluster

    def _put_timed(self, message: Message, properties: dict[str, str]) -> Answer:
        """Put a message that asks for a time of delivery, or for another one to be cancelled."""
        try:
            waiting = self.timers.waiting(message, properties, self.settings)
        except TimerRefused as refusal:
            raise self._refused(ResponseCode.MESSAGE_ILLEGAL, str(refusal)) from refusal
        if waiting is None:
            return self._put_parsed(message, properties)
        return self._store.put_message(waiting).addCallback(self._answer_timed, message, waiting)

    def _answer_timed(self, result: PutMessageResult, message: Message, waiting: Message) -> RemotingCommand:
        """As to any other message, and how to take it back."""
        message.properties_stored = waiting.properties_stored
        answer = self._answer(result, message, message.queue_id)
        handle = RecallHandle.of(parse_properties(waiting.properties_stored or ""), self.settings.broker_name)
        if handle is None or not result.is_stored:
            return answer
        return answer._replace(ext_fields={**answer.ext_fields, "recallHandle": str(handle)})

    def _put_parsed(self, message: Message, properties: dict[str, str]) -> Answer:
        """Put a message whose properties control how it is handled (WAIT, DELAY, TRAN_MSG)."""
        queue_id = message.queue_id
        properties["CLUSTER"] = self.settings.broker_cluster_name
        message.properties = properties
        is_retry = message.topic.startswith((RETRY_PREFIX, DEAD_PREFIX))  # its transaction was committed before
        if properties.get("TRAN_MSG", "").lower() == "true" and not is_retry:
            if self.settings.reject_transaction_message:
                raise self._refused(
                    ResponseCode.NO_PERMISSION,
                    f"the broker[{self.settings.broker_name}] sending transaction message is forbidden",
                )
            properties.setdefault(UNIQUE_KEY, uuid4().hex.upper())  # clients of 5.x end a transaction by it
            return self._transactions.prepare(message).addCallback(self._answer, message, queue_id)
        message.properties_stored = format_properties({name: properties[name] for name in properties if name != "WAIT"})
        return self._store.put_message(message).addCallback(self._answer, message, queue_id)

    def _put_batch(self, batch: Message, properties: str, connection: RemotingProtocol) -> Answer:
        """Put the messages in the body, all or none. ``batch`` has what they share."""
        if len(batch.topic) > MAX_TOPIC_BYTES or len(batch.body) > self.settings.max_message_size_bytes:
            raise self._refused(ResponseCode.MESSAGE_ILLEGAL, REMARKS[PutMessageStatus.MESSAGE_ILLEGAL])
        if batch.topic.startswith(RETRY_PREFIX):
            raise self._refused(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {batch.topic}"
            )
        batch.properties = {**parse_properties(properties), "CLUSTER": self.settings.broker_cluster_name}
        return connection.turns.run(self._put_entries(batch))

    def _put_entries(self, batch: Message) -> Steps[Later]:
        """Encode the messages in turns, and append them in one."""
        messages = MessageBatch(
            batch.topic,
            (
                Message(batch.topic, body, flag=flag, properties_stored=_check_alike(own))
                for body, own, flag in entries_of(batch.body)
            ),
            batch.properties,
            batch.queue_id,
            batch.sys_flag,
            batch.born_timestamp,
            batch.born_host,
            batch.store_host,
            batch.reconsume_times,
            batch.is_wait_store_msg_ok,
        )
        try:
            _check_alike(format_properties(batch.properties))
            prepared = yield from self._store.prepare_messages(messages)
        except BatchError as error:
            raise self._refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is refused: {error}") from error
        except PutRefused as refusal:
            put = succeed(refusal.result)
        else:
            put = self._store.put_prepared(prepared)
            if len(prepared.starts) > MANY_MESSAGES:
                yield  # the append used up this turn, and the answer names each message
        return Later(put.addCallback(self._answer, batch, batch.queue_id))

    def _put_retry(
        self,
        message: Message,
        properties: str,
        request: RemotingCommand,
        names: SendFields,
        connection: RemotingProtocol,
    ) -> Answer:
        """Put a message that a consumer sends to its %RETRY% topic. After too many tries it becomes a dead letter."""
        group = self._group(message.topic.removeprefix(RETRY_PREFIX), connection)
        if message.reconsume_times < self._most_reconsume_times(request, names.max_reconsume_times, group):
            return self._put(message, properties)
        message.topic = self._dead_letter_topic(group).topic_name
        message.queue_id = 0
        parsed = parse_properties(properties)
        parsed.pop("DELAY", None)
        return self._put_parsed(message, parsed)

    def _group(self, name: str, connection: RemotingProtocol) -> SubscriptionGroupConfig:
        group = self._groups.find_or_create(name, connection)
        if group is None:
            raise self._refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} See FAQ"
            )
        return group

    @staticmethod
    def _most_reconsume_times(request: RemotingCommand, name: str, group: SubscriptionGroupConfig) -> int:
        asked = Header(request).integer(name, None) if request.version >= VERSION_WITH_MAX_RECONSUME_TIMES else None
        return group.retry_max_times if asked is None else asked

    def _dead_letter_topic(self, group: SubscriptionGroupConfig) -> TopicConfig:
        return self._topics.create_in_send_back(f"{DEAD_PREFIX}{group.group_name}", DLQ_NUMS_PER_GROUP)

    def _answer(self, result: PutMessageResult, message: Message, queue_id: int) -> RemotingCommand:
        """The answer to a put. It names the queue of the request in any case (spec/remoting.md 4.2)."""
        status, appended = result
        if appended is None or not result.is_stored:
            code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
            return RemotingCommand(code, remark=REMARKS.get(status, status.name), ext_fields=self.in_every_answer)
        self._messages_put(message.topic, len(appended.message_offsets), appended.wrote_bytes)
        stored = message.properties_stored
        key = message.properties.get(UNIQUE_KEY) if stored is None else property_in(stored, UNIQUE_KEY)
        return self._success(status, appended, queue_id, key or "")

    def _success(
        self, status: PutMessageStatus, appended: AppendMessageResult, queue_id: int, key: str
    ) -> RemotingCommand:
        """The answer to a message that is stored. ``key`` is its unique key, empty if it has none."""
        return RemotingCommand(
            ResponseCode.SUCCESS if status is PutMessageStatus.PUT_OK else CODES[status],
            ext_fields={
                **self.in_every_answer,
                "msgId": appended.msg_id,
                "queueId": str(queue_id),
                "queueOffset": str(appended.logics_offset),
                **({TRANSACTION_ID: key} if key.isprintable() and key else {}),
            },
        )

    def _send_back(self, connection: RemotingProtocol, request: RemotingCommand) -> Answer:
        """Put a message that a consumer could not consume into the retry topic, or among the dead letters."""
        header = Header(request)
        offset, delay_level = header.integer("offset"), header.integer("delayLevel")
        name = header.text("group")
        group = self._groups.find_or_create(name, connection)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} See FAQ"
            )
        if not self._is_writable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{self.settings.broker_name}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return RemotingCommand(ResponseCode.SUCCESS)
        retry = self._topics.create_in_send_back(
            f"{RETRY_PREFIX}{name}",
            group.retry_queue_nums,
            topic_sys_flag=UNIT_SUB_FLAG if header.boolean("unitMode", False) else 0,
        )
        if not retry.perm & PERM_WRITE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic[{retry.topic_name}] sending is forbidden")
        record = self._store.reader.delivered_at(offset)
        if record is None or not connection.rights.may_read(record.topic):  # nobody learns which of the two
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        message = _back_from(record)
        is_dead = record.reconsume_times >= self._most_reconsume_times(request, "maxReconsumeTimes", group)
        if is_dead or delay_level < 0:
            message.topic = self._dead_letter_topic(group).topic_name
            message.properties["DELAY"] = "0"
        else:
            message.topic = retry.topic_name
            message.queue_id = random.randrange(max(1, retry.write_queue_nums))
            message.properties["DELAY"] = str(delay_level or FIRST_RETRY_LEVEL + record.reconsume_times)
        put = self._store.put_message(message).addCallback(self._put_dead_if_too_long, record, group)
        return put.addCallback(self._answer_to_send_back)

    def _put_dead_if_too_long(
        self, result: PutMessageResult, record: Record, group: SubscriptionGroupConfig
    ) -> Deferred[PutMessageResult]:
        """Where properties leave no room for those of a later try, make the message a dead letter as it is.

        Else its consumer would send it back again and again, and get no further.
        """
        if result.status is not PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
            return succeed(result)
        message = put_again(record, self._dead_letter_topic(group).topic_name, 0, record.properties_stored)
        message.reconsume_times += 1
        self._log.warn(
            "{msg_id} becomes a dead letter of group {group}: its properties of {size} bytes leave no room for a retry",
            event=Event.DEAD_AT_ONCE,
            msg_id=record.msg_id,
            group=group.group_name,
            size=len(record.properties_stored.encode("utf-8", "surrogateescape")),
        )
        return self._store.put_message(message)

    @staticmethod
    def _answer_to_send_back(result: PutMessageResult) -> RemotingCommand:
        if result.status is PutMessageStatus.PUT_OK:
            return RemotingCommand(ResponseCode.SUCCESS)
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=result.status.name)


def _padded(properties: str) -> str:
    """Properties between separators, so that a name can be found with its separators, and without WAIT=true."""
    padded = f"{PROPERTY_SEPARATOR}{properties}{PROPERTY_SEPARATOR}"
    return padded.replace(WAIT_TRUE, PROPERTY_SEPARATOR) if WAIT_TRUE in padded else padded


def _check_alike(properties: str) -> str:
    """The properties of a batch or of a message in it. Raises BatchError if they ask for what no batch can have.

    Java gives such a message to consumers at once, as if it did not ask.
    """
    if any(name in properties for name in NOT_IN_BATCHES):
        parsed = parse_properties(properties)
        names = [name for name in (*TIMES, TIMER_CANCELS) if name in parsed]
        names += ["DELAY"] if parsed.get("DELAY", "0") != "0" else []
        names += ["TRAN_MSG"] if parsed.get("TRAN_MSG", "").lower() == "true" else []
        if names:
            raise BatchError(f"a message has the property {names[0]}={parsed[names[0]][:40]}: send it alone")
    return properties


def _back_from(record: Record) -> Message:
    """The message of a record, to be put again with its first id, without a wait (spec/remoting.md 2.9)."""
    properties = record.properties
    properties.setdefault("RETRY_TOPIC", record.topic)
    properties.setdefault("ORIGIN_MESSAGE_ID", record.msg_id)
    properties["WAIT"] = "false"
    return Message(
        record.topic,
        record.body,
        properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times + 1,
        is_again=True,
    )


def slave_processors(settings: Settings) -> Processors:
    """The processors of a slave, which refuse messages (spec/remoting.md 5.5)."""
    status = PutMessageStatus.SERVICE_NOT_AVAILABLE
    to_send = RemotingCommand(
        ResponseCode.SERVICE_NOT_AVAILABLE, remark=REMARKS[status], ext_fields=answer_fields(settings)
    )
    to_send_back = RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=status.name)
    return {
        RequestCode.SEND_MESSAGE: lambda _, __: to_send,
        RequestCode.SEND_MESSAGE_V2: lambda _, __: to_send,
        RequestCode.SEND_BATCH_MESSAGE: lambda _, __: to_send,
        RequestCode.SEND_REPLY_MESSAGE: lambda _, __: to_send,
        RequestCode.SEND_REPLY_MESSAGE_V2: lambda _, __: to_send,
        RequestCode.CONSUMER_SEND_MSG_BACK: lambda _, __: to_send_back,
        RequestCode.RECALL_MESSAGE: lambda _, __: RemotingCommand(
            ResponseCode.SLAVE_NOT_AVAILABLE, remark="recall failed, this broker is a slave"
        ),
    }


def _check(names: SendFields, request: RemotingCommand) -> None:
    """Raises RequestRefused that names the field that is missing, or is not a number."""
    header = Header(request)
    for name in names.texts:
        header.text(name)
    for name in names.integers:
        header.integer(name)
    header.integer(names.reconsume_times, 0)
