"""The metrics of a node, read from its live objects at each scrape."""

import platform
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric as Family

import rmqha
import twisted
from rmqha.kit.steps import Steps
from rmqha.settings.settings import BrokerRole
from rmqha.store.nodefacts import facts_of
from rmqha.store.nodestate import NodeState
from rmqha.web.catalogue import BY_NAME, OTHER
from rmqha.web.exposition import Common, CounterPlaces, ManySeries, MetricsText, TextFormat, capped, exposing, label
from rmqha.web.interfaces import ILiveNode
from rmqha.web.server import Server
from rmqha.web.watchednode import (
    STATES,
    WatchedNode,
    consumer_lags,
    is_master,
    puts_by_status,
    slaves_of,
    slots_of,
)
from rmqha.wire.compiled import implementation
from rmqha.wire.sends.run import Declined

ROLES = tuple(role.value for role in BrokerRole)
LEADER = "LEADER"
Families = Iterator[Family | ManySeries]


class NodeMetrics(MetricsText):
    """Makes the text of all metrics. It keeps nothing but which topics and groups have counters of their own.

    ``server`` is the one that answers: its connections are counted too.
    """

    def __init__(self, facts: WatchedNode, server: Server) -> None:
        self._facts = facts
        self._server = server
        self._topics = CounterPlaces()
        self._reads = CounterPlaces()

    def text(self, form: TextFormat) -> Steps[bytes]:
        """See ``MetricsText``."""
        live = self._facts.node.live_node()
        lags = {} if live is None else (yield from consumer_lags(live))
        if self._facts.node.live_node() is not live:  # the store was closed in between: read nothing of it
            live = None
        return (yield from exposing(self._families(live, lags), form))

    def _families(self, live: ILiveNode | None, lags: Mapping[tuple[str, str], int]) -> Families:
        facts, settings = self._facts, self._facts.node.settings
        common = Common(settings.broker_cluster_name, "broker", settings.broker_name)
        state = None if live is None else live.state()
        yield build_info(common)
        yield common.choice("rmqha_role", facts.role, ROLES)
        yield common.choice("rmqha_state", facts.name_of_state(state), STATES)
        if live is not None and state is not None:
            yield from self._of_log(common, live, state)
            yield from self._of_slaves(common, live)
            yield from self._of_puts(common, live)
        cluster = facts.node.cluster(0)
        if cluster is not None:
            yield from _of_cluster(common, cluster)
        yield from of_process(common, facts.ports(self._server), facts)
        progress = facts.sampler.progress
        yield common.value("rmqha_progress_done_bytes", None if progress is None else progress.done_bytes)
        yield common.value("rmqha_progress_total_bytes", None if progress is None else progress.total_bytes)
        disk = facts.sampler.disk
        yield common.value("rmqha_disk_used_ratio", disk.used_ratio)
        yield common.value("rmqha_disk_free_bytes", disk.free_bytes)
        yield common.value(
            "rmqha_certificate_expiry_timestamp_seconds", None if facts.tls is None else facts.tls.expires_at
        )
        if live is not None and live.broker is not None and facts.node.live_node() is live:
            yield from self._of_broker(common, live, lags)

    def _of_log(self, common: Common, live: ILiveNode, state: NodeState) -> Families:
        offsets = state.offsets
        for each in facts_of(type(state)):
            if each.metric:
                yield common.value(each.metric, each.number(state))
        kinds = ("min", "confirmed", "flushed", "verified", "written")
        yield common.family("rmqha_log_offset_bytes", {(kind,): getattr(offsets, kind) for kind in kinds})
        yield common.value("rocketmq_storage_flush_behind_bytes", max(0, offsets.written - offsets.flushed))
        yield common.value("rocketmq_storage_dispatch_behind_bytes", max(0, live.store.derived.dispatcher.behind_bytes))
        refusals = {} if live.slave is None else {(reason,): count for reason, count in live.slave.refusals.items()}
        yield common.family("rmqha_records_refused_total", refusals)

    def _of_slaves(self, common: Common, live: ILiveNode) -> Families:
        slaves = [slave for slave in slaves_of(live) if slave["ackOffset"] is not None]
        farthest: dict[str, dict[str, Any]] = {}
        for slave in slaves:  # of several connections of one slave, the one that is farthest behind
            known = farthest.setdefault(slave["identity"], slave)
            if slave["ackOffset"] < known["ackOffset"]:
                farthest[slave["identity"]] = slave
        for name, fact in (
            ("rmqha_slave_ack_offset_bytes", "ackOffset"),
            ("rmqha_slave_lag_bytes", "lagBytes"),
            ("rmqha_slave_ack_age_seconds", "silentSeconds"),
        ):
            yield common.many(name, capped({(who,): slave[fact] for who, slave in farthest.items()}))
        if live.serving is not None:
            yield common.value("rmqha_in_sync_slaves", sum(slave["inSync"] for slave in farthest.values()))
        settings = self._facts.node.settings
        if settings.broker_role is BrokerRole.SYNC_MASTER:
            yield common.value("rmqha_in_sync_slaves_needed", settings.in_sync_replicas - 1)
        slots = slots_of(self._facts, live)
        yield common.many(
            "rmqha_slot_retained_bytes", capped({(slot["slot"],): slot["retainedBytes"] for slot in slots})
        )
        yield common.many("rmqha_slot_active", {(label(slot["slot"]),): float(slot["active"]) for slot in slots})

    def _of_puts(self, common: Common, live: ILiveNode) -> Families:
        if is_master(self._facts.node.settings):
            yield common.value("rmqha_takes_puts", float(live.store.takes_puts))
        puts = {(status,): count for status, count in puts_by_status(live.store).items()}
        yield common.family("rmqha_puts_total", puts)
        yield common.histogram("rmqha_put_seconds", live.store.put_figures.durations)
        group_transfer = None if live.serving is None else live.serving.group_transfer
        waits = None if group_transfer is None else group_transfer.waits
        yield common.histogram("rmqha_replication_wait_seconds", waits)
        yield common.histogram("rmqha_flush_seconds", live.store.flush_durations)

    def _of_broker(self, common: Common, live: ILiveNode, lags: Mapping[tuple[str, str], int]) -> Families:
        broker = live.broker
        assert broker is not None, "the caller has looked"
        yield common.value("rocketmq_broker_permission", self._facts.node.settings.broker_permission)
        if is_master(self._facts.node.settings):
            yield common.value("rmqha_timer_messages_waiting", broker.timers.waiting)
            yield common.value("rmqha_sends_taken_total", broker.stats.sends_taken)
            declined = broker.stats.sends_declined
            reasons = {(reason.name.lower(),): float(declined[reason]) for reason in Declined if reason.is_counted}
            yield common.family("rmqha_sends_declined_total", reasons)
        yield common.value("rocketmq_topic_number", len(broker.topics.table.rows))
        yield common.value("rocketmq_consumer_group_number", len(broker.groups.table.rows))
        yield common.value("rocketmq_producer_connections", broker.producers.memberships)
        groups = {(name,): float(len(group.channels)) for name, group in list(broker.consumers.groups.items())}
        yield common.many("rocketmq_consumer_connections", capped(groups))
        stats = broker.stats
        chosen, rest = self._topics.choose(
            stats.topic_puts, lambda traffic: (traffic.messages, traffic.bytes), (stats.puts.messages, stats.puts.bytes)
        )
        yield from _counters(
            common,
            ("rocketmq_messages_in_total", "rocketmq_throughput_in_total"),
            {(topic,): counts for topic, counts in chosen.items()},
            rest,
        )
        read, rest = self._reads.choose(
            stats.group_gets, lambda traffic: (traffic.messages, traffic.bytes), (stats.gets.messages, stats.gets.bytes)
        )
        yield from _counters(
            common,
            ("rocketmq_messages_out_total", "rocketmq_throughput_out_total"),
            {(topic, group): counts for (group, topic), counts in read.items()},
            rest,
        )
        yield common.many("rocketmq_consumer_lag_messages", capped(lags))


def _of_cluster(common: Common, found: Mapping[str, Any]) -> Families:
    yield common.value("rmqha_failover_leader", float(found["state"] == LEADER))
    yield common.value("rmqha_failover_epoch", found["epoch"])
    yield common.value("rmqha_failover_sync_members", len(found["sync"]))
    yield common.value("rmqha_failover_lease_seconds", found["leaseSeconds"])
    yield common.value("rmqha_coordinator_up", float(found["coordinator"]))


def _counters(
    common: Common,
    names: tuple[str, ...],
    chosen: Mapping[tuple[str, ...], tuple[int, ...]],
    rest: tuple[int, ...] | None,
) -> Families:
    """Counters that have the same labels. ``rest`` is what all others have together."""
    for at, name in enumerate(names):
        values = capped({labels: counts[at] for labels, counts in chosen.items()})
        if rest is not None:
            values[(OTHER,) * len(BY_NAME[name].labels)] = rest[at]
        yield common.many(name, values)


def build_info(common: Common) -> Family:
    """The versions of this process, and which code runs."""
    versions = (rmqha.__version__, platform.python_version(), twisted.__version__, implementation())
    return common.family("rmqha_build_info", {versions: 1.0})


def of_process(common: Common, ports: Mapping[str, tuple[int, Mapping[str, int]]], facts: Any) -> Families:
    """What nodes and name servers have in common: ``facts`` has ``turns`` and ``warnings``."""
    yield common.family("rmqha_connections", {(name,): count for name, (count, _) in ports.items()})
    refused = {(name, reason): count for name, (_, reasons) in ports.items() for reason, count in reasons.items()}
    yield common.family("rmqha_connections_refused_total", refused)
    yield common.histogram("rmqha_reactor_turn_seconds", facts.turns)
    yield common.family("rmqha_log_events_total", {(name,): count for name, count in facts.warnings.counts.items()})
