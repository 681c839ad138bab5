"""Messages whose handler failed: the broker keeps them, and delivers them again later (spec/remoting.md 2.9)."""

from rmqha.client.errors import MQBrokerError, NoMaster
from rmqha.client.instance import MQClient
from rmqha.client.message import UNIQ_KEY, Message, MessageQueue
from rmqha.client.producer import Producer
from rmqha.client.route import MASTER_ID
from rmqha.wire.command import RequestCode
from rmqha.wire.record import TRANSACTION_TYPE_MASK, Record
from rmqha.wire.topics import RETRY_PREFIX

SEND_BACK_TIMEOUT_SECONDS = 5.0
FIRST_RETRY_LEVEL = 3
"""The delay level of the first retry; each further retry has the next one."""
TAKEN_BY_OTHERS = frozenset({"KEYS", "TAGS", "DELAY", "WAIT", "TRAN_MSG"})
"""Properties that are fields of a Message, or must not come again."""


class SendBack:
    """Gives messages of a group back to brokers."""

    def __init__(self, client: MQClient, group: str, max_reconsume_times: int | None) -> None:
        self._client = client
        self._group = group
        self._max = max_reconsume_times
        self._producer = Producer(client, group)

    async def send(self, queue: MessageQueue, record: Record, delay_level: int = 0) -> None:
        """Give a message back. Level 0 lets the broker choose, -1 is the dead letter topic.

        If the broker that has the message refuses, a copy goes to the group's retry topic on any broker. Raises
        MQClientError, MQBrokerError.
        """
        try:
            await self._to_its_broker(queue, record, delay_level)
        except MQBrokerError:
            if delay_level < 0:
                raise
            await self._producer.send(self._copy(record))

    async def _to_its_broker(self, queue: MessageQueue, record: Record, delay_level: int) -> None:
        address = (await self._client.addresses_of(queue.broker_name, queue.topic)).get(MASTER_ID)
        if address is None:
            self._client.forget_route(queue.topic)
            raise NoMaster(f"broker {queue.broker_name} has no master now")
        fields = {
            "offset": str(record.physical_offset),
            "group": self._group,
            "delayLevel": str(delay_level),
            "originMsgId": record.properties.get(UNIQ_KEY) or record.msg_id,
            "originTopic": record.topic,
            "unitMode": "false",
        }
        if self._max is not None:
            fields["maxReconsumeTimes"] = str(self._max)
        await self._client.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout=SEND_BACK_TIMEOUT_SECONDS)

    def _copy(self, record: Record) -> Message:
        """The message as a client itself sends it to the retry topic."""
        properties = record.properties
        kept = {name: value for name, value in properties.items() if name not in TAKEN_BY_OTHERS}
        kept.setdefault("RETRY_TOPIC", record.topic)
        kept.setdefault("ORIGIN_MESSAGE_ID", record.msg_id)
        return Message(
            f"{RETRY_PREFIX}{self._group}",
            record.body,
            properties.get("TAGS", ""),
            properties.get("KEYS", ""),
            kept,
            record.flag,
            FIRST_RETRY_LEVEL + record.reconsume_times,
            sys_flag=record.sys_flag & ~TRANSACTION_TYPE_MASK,
            reconsume_times=record.reconsume_times + 1,
            max_reconsume_times=self._max,
        )
