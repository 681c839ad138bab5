"""Names of topics that brokers and clients make for their own purposes (spec/store.md 12)."""

from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.timers import TIMER_TOPIC

HALF_TOPIC, OPERATION_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The group whose consumer offsets are the progress in both topics of transactions."""
RETRY_PREFIX, DEAD_PREFIX = "%RETRY%", "%DLQ%"
"""The topics of a group's messages that are to be tried again, and of those that were tried too often."""
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
"""After the name of a cluster: see ``reply_topic``."""
AUTO_CREATE_TOPIC_KEY_TOPIC = "TBW102"
"""The template of a topic that is created by its first message."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
LIGHT_QUEUE_PREFIX = "%LMQ%"
"""Queues of light messages of RocketMQ 5.x. Their units lead to messages of other topics."""
SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        BENCHMARK_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
    }
)
"""No application reads their messages."""
NO_SENDS_TO = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OPERATION_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
"""Only the broker itself puts messages here. They decide what becomes of messages of others.

The timer topic apart these are TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET of 4.9.7 and 5.3.3."""


def reply_topic(cluster: str) -> str:
    """The topic of the answers to requests between the clients of a cluster."""
    return f"{cluster}{REPLY_TOPIC_SUFFIX}"
