"""Header fields of requests that clients send and brokers read (spec/remoting.md)."""

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter

COMMIT_OFFSET_FLAG = 1
SUSPEND_FLAG = 2
SUBSCRIPTION_FLAG = 4
"""Bits of a pull's sysFlag: it commits an offset, it waits for messages, it brings a subscription."""


class SendFields:
    """The names of the fields in a send request's header, in order.

    Each request has those in ``texts`` and ``integers``.
    """

    def __init__(self, names: Iterable[str]) -> None:
        (
            self.producer_group,
            self.topic,
            self.default_topic,
            self.default_topic_queue_nums,
            self.queue_id,
            self.sys_flag,
            self.born_timestamp,
            self.flag,
            self.properties,
            self.reconsume_times,
            self.unit_mode,
            self.max_reconsume_times,
            self.batch,
        ) = self.names = tuple(names)
        self.texts = (self.producer_group, self.topic, self.default_topic)
        self.integers = (
            self.default_topic_queue_nums,
            self.queue_id,
            self.sys_flag,
            self.born_timestamp,
            self.flag,
        )
        self.required: Callable[[Mapping[str, str]], tuple[str, ...]] = itemgetter(*self.texts, *self.integers)


V1_FIELDS = SendFields(
    (
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
        "properties",
        "reconsumeTimes",
        "unitMode",
        "maxReconsumeTimes",
        "batch",
    )
)
V2_FIELDS = SendFields("abcdefghijklm")
