"""All metrics: names, kinds, labels and meanings. docs/observability.md shows them; a test keeps both equal.

A name of RocketMQ 5 is used where the meaning is the same, without the labels that we do not know. All other names
begin with ``rmqha_``. Every metric also has the labels of RocketMQ 5 that say whose it is: COMMON_LABELS.
"""

from typing import NamedTuple

from rmqha.store.nodefacts import facts_of
from rmqha.store.nodestate import NodeState

COMMON_LABELS = ("cluster", "node_type", "node_id")
OTHER = "other"
"""The label of all topics, groups or slaves together that have no series of their own."""


class Metric(NamedTuple):
    """One metric. ``kind`` is gauge, counter or histogram. The name of a counter ends with ``_total``."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, help_: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help_, labels)


def _counter(name: str, help_: str, *labels: str) -> Metric:
    return Metric(name, "counter", help_, labels)


def _histogram(name: str, help_: str) -> Metric:
    return Metric(name, "histogram", help_)


def gauges_of(kind: type) -> tuple[Metric, ...]:
    """The gauges of the facts of ``NodeState``."""
    return tuple(_gauge(each.metric, each.meaning) for each in facts_of(kind) if each.metric)


BUILD_INFO = _gauge(
    "rmqha_build_info",
    "1; its labels are the versions of rmqha, Python and Twisted, and which code runs: kernel or plain Python.",
    *("version", "python", "twisted", "implementation"),
)
CONNECTIONS = _gauge("rmqha_connections", "Open connections of a port.", "port")
CONNECTIONS_REFUSED = _counter(
    "rmqha_connections_refused_total", "Connections and HTTP requests that a limit refused.", "port", "reason"
)
REACTOR_TURN_SECONDS = _histogram(
    "rmqha_reactor_turn_seconds", "How long the reactor's turns took, without its waits for something to do."
)
WARNINGS = _counter("rmqha_log_events_total", "Logged events from level warn up.", "level")
CERTIFICATE_EXPIRY = _gauge(
    "rmqha_certificate_expiry_timestamp_seconds", "When the TLS certificate of a node, or of a name server, ends."
)

NODE = (
    BUILD_INFO,
    _gauge("rmqha_role", "1 for the node's role, 0 for all others.", "role"),
    _gauge("rmqha_state", "1 for the node's state, as rmqha status names it, 0 for all others.", "state"),
    _gauge(
        "rmqha_log_offset_bytes",
        "Offsets in the log: its start (min), and the ends of its confirmed, flushed, verified and written parts.",
        "kind",
    ),
    *gauges_of(NodeState),
    _gauge("rmqha_slave_ack_offset_bytes", "The last offset that a connected slave has reported.", "slave"),
    _gauge("rmqha_slave_lag_bytes", "Bytes from a connected slave's last report to the log's end.", "slave"),
    _gauge("rmqha_slave_ack_age_seconds", "Seconds since a connected slave's last report.", "slave"),
    _gauge("rmqha_in_sync_slaves", "Connected slaves with a lag below haSlaveFallbehindMax."),
    _gauge("rmqha_in_sync_slaves_needed", "How many slaves must have a message before a SYNC_MASTER answers SEND_OK."),
    _gauge("rmqha_slot_retained_bytes", "With --hold: bytes of the log from a slave's slot to the end.", "slot"),
    _gauge("rmqha_slot_active", "With --hold: 1 if the slot's slave is connected, else 0.", "slot"),
    _gauge(
        "rmqha_timer_messages_waiting",
        "Master: timer messages that wait to be delivered, those that cancel others included.",
    ),
    _gauge("rmqha_takes_puts", "Master: 1 if it accepts messages, 0 if its disk is full or it stops."),
    _gauge("rmqha_failover_leader", "Failover cluster: 1 if the node leads, else 0."),
    _gauge("rmqha_failover_epoch", "Failover cluster: the epoch; it grows with each change of the leader."),
    _gauge("rmqha_failover_sync_members", "Failover cluster: members that hold every message, the leader included."),
    _gauge(
        "rmqha_failover_lease_seconds",
        "Failover cluster: how long a leader may lead without another answer. Missing if the node does not lead.",
    ),
    _gauge("rmqha_coordinator_up", "Failover cluster: 1 if the coordinator answered last, else 0."),
    _counter("rmqha_puts_total", "Requests to store messages, by result. A batch is one request.", "status"),
    _counter("rmqha_sends_taken_total", "Master: sends that were put in one pass over what a connection has brought."),
    _counter("rmqha_sends_declined_total", "Master: sends that the pass left to a slower way, by reason.", "reason"),
    _histogram(
        "rmqha_put_seconds",
        "How long requests to store messages took, waits for disk and slaves included. Of those that wait for nothing, "
        "one in 8 is timed.",
    ),
    _histogram("rmqha_replication_wait_seconds", "How long puts waited for slaves."),
    _histogram("rmqha_flush_seconds", "How long flushes of the log to the disk took."),
    REACTOR_TURN_SECONDS,
    _counter(
        "rmqha_records_refused_total", "Slave: connections ended because of what the master sent, by reason.", "reason"
    ),
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    WARNINGS,
    _gauge("rmqha_progress_done_bytes", "Of a long work (start, catching up, queues and index): bytes that are done."),
    _gauge("rmqha_progress_total_bytes", "Its bytes in all. Both are missing if there is no such work."),
    _gauge("rmqha_disk_used_ratio", "How full the disk of the log is, 0 to 1. At most 5 s old."),
    _gauge("rmqha_disk_free_bytes", "Free bytes on the disk of the log. At most 5 s old."),
    CERTIFICATE_EXPIRY,
    _gauge("rocketmq_broker_permission", "brokerPermission: 2 is write, 4 is read, 6 is both."),
    _gauge("rocketmq_topic_number", "Topics of the broker."),
    _gauge("rocketmq_consumer_group_number", "Consumer groups of the broker."),
    _gauge("rocketmq_producer_connections", "Connections of producers, once for each group of a connection."),
    _gauge("rocketmq_consumer_connections", "Connections of a consumer group.", "consumer_group"),
    _gauge("rocketmq_storage_flush_behind_bytes", "Bytes of the log that are written and not flushed."),
    _gauge("rocketmq_storage_dispatch_behind_bytes", "Bytes of the log that are in no queue yet."),
    _counter("rocketmq_messages_in_total", "Messages stored.", "topic"),
    _counter("rocketmq_throughput_in_total", "Bytes of the records of stored messages.", "topic"),
    _counter("rocketmq_messages_out_total", "Messages read by consumers.", "topic", "consumer_group"),
    _counter("rocketmq_throughput_out_total", "Bytes of the messages read.", "topic", "consumer_group"),
    _gauge(
        "rocketmq_consumer_lag_messages",
        "Messages after a group's offset, in the queues in which it has one.",
        *("topic", "consumer_group"),
    ),
)
"""The metrics of a node, in the order of the page."""

NAME_SERVER = (
    BUILD_INFO,
    _gauge("rmqha_namesrv_brokers", "Registered addresses of brokers."),
    _gauge("rmqha_namesrv_masters", "Masters that are registered under a broker's name. 2 is a split brain.", "broker"),
    _gauge("rmqha_namesrv_broker_age_seconds", "Seconds since a broker's last registration.", "broker", "address"),
    REACTOR_TURN_SECONDS,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    WARNINGS,
    CERTIFICATE_EXPIRY,
)
"""The metrics of a name server."""

BY_NAME = {metric.name: metric for metric in (*NODE, *NAME_SERVER)}
