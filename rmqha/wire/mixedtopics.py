"""Topics in which brokers keep messages, or facts, of many other topics (spec/store.md 12)."""

from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.topics import (
    HALF_TOPIC,
    OFFSET_MOVED_EVENT,
    OPERATION_TOPIC,
    REPLY_TOPIC_SUFFIX,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)

INTERNAL_PREFIX = "rmq_sys_"
"""Of the topic of timer messages, and of the topics in which RocketMQ 5.x keeps what its consumers have popped."""
_INTERNAL = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC))
_MIXED = _INTERNAL | {TRANS_CHECK_MAX_TIME_TOPIC, OFFSET_MOVED_EVENT, TRACE_TOPIC}


def is_internal(topic: str) -> bool:
    """Whether no consumer gets messages from this topic: what it needs of them comes in another topic later."""
    return topic in _INTERNAL or topic.startswith(INTERNAL_PREFIX)


def is_mixed(topic: str) -> bool:
    """Whether the messages of a topic belong to other topics, or tell of them."""
    return topic in _MIXED or topic.startswith(INTERNAL_PREFIX) or topic.endswith(REPLY_TOPIC_SUFFIX)
