"""Makes ops/grafana-dashboard.json: ``make pages``."""

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("grafana-dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_NODE = 'cluster=~"$cluster", node_id=~"$node"'

# Title, unit, and for each line its expression and its legend. OF is replaced by the labels of the chosen nodes.
PANELS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("Roles", "none", [("rmqha_role{OF} == 1", "{{instance}} {{role}}")]),
    ("States", "none", [("rmqha_state{OF} == 1", "{{instance}} {{state}}")]),
    (
        "Slaves in sync",
        "none",
        [
            ("rmqha_in_sync_slaves{OF}", "{{instance}}"),
            ("rmqha_in_sync_slaves_needed{OF}", "{{instance}} needed"),
        ],
    ),
    (
        "Failover: who leads, and how many hold every message",
        "none",
        [
            ("rmqha_failover_leader{OF} == 1", "{{instance}} leads"),
            ("rmqha_failover_sync_members{OF} and rmqha_failover_leader{OF} == 1", "{{node_id}} in the sync set"),
        ],
    ),
    (
        "Failover: epoch, and the leader's lease",
        "none",
        [
            ("rmqha_failover_epoch{OF}", "{{instance}} epoch"),
            ("rmqha_failover_lease_seconds{OF}", "{{instance}} lease, s"),
        ],
    ),
    ("Failover: the coordinator answers", "none", [("rmqha_coordinator_up{OF}", "{{instance}}")]),
    ("Messages in", "ops", [("sum by (instance) (rate(rocketmq_messages_in_total{OF}[1m]))", "{{instance}}")]),
    ("Messages out", "ops", [("sum by (instance) (rate(rocketmq_messages_out_total{OF}[1m]))", "{{instance}}")]),
    (
        "Puts that failed",
        "ops",
        [
            (
                'sum by (instance, status) (rate(rmqha_puts_total{OF, status!="PUT_OK"}[1m])) > 0',
                "{{instance}} {{status}}",
            ),
        ],
    ),
    (
        "Put time, 99 %",
        "s",
        [
            (
                "histogram_quantile(0.99, sum by (instance, le) (rate(rmqha_put_seconds_bucket{OF}[1m])))",
                "{{instance}}",
            ),
        ],
    ),
    (
        "Wait for slaves, 99 %",
        "s",
        [
            (
                "histogram_quantile(0.99, sum by (instance, le) (rate(rmqha_replication_wait_seconds_bucket{OF}[1m])))",
                "{{instance}}",
            ),
        ],
    ),
    (
        "Flush, 99 %",
        "s",
        [
            (
                "histogram_quantile(0.99, sum by (instance, le) (rate(rmqha_flush_seconds_bucket{OF}[1m])))",
                "{{instance}}",
            ),
        ],
    ),
    ("Lag of slaves, as the slave knows it", "bytes", [("rmqha_lag_bytes{OF}", "{{instance}}")]),
    ("Lag of slaves, as the master knows it", "bytes", [("rmqha_slave_lag_bytes{OF}", "{{instance}} {{slave}}")]),
    ("Lag in time", "s", [("rmqha_lag_seconds{OF}", "{{instance}}")]),
    (
        "Log that is not confirmed",
        "bytes",
        [
            (
                'rmqha_log_offset_bytes{OF, kind="written"} - ignoring (kind) '
                'rmqha_log_offset_bytes{OF, kind="confirmed"}',
                "{{instance}}",
            ),
        ],
    ),
    ("Log kept for slots", "bytes", [("rmqha_slot_retained_bytes{OF}", "{{instance}} {{slot}}")]),
    ("Disk used", "percentunit", [("rmqha_disk_used_ratio{OF}", "{{instance}}")]),
    (
        "Largest lags of groups",
        "none",
        [
            ("topk(10, rocketmq_consumer_lag_messages{OF})", "{{consumer_group}} {{topic}}"),
        ],
    ),
    (
        "Reactor turns, 99 %",
        "s",
        [
            (
                "histogram_quantile(0.99, sum by (instance, le) (rate(rmqha_reactor_turn_seconds_bucket{OF}[1m])))",
                "{{instance}}",
            ),
        ],
    ),
    (
        "Connections refused, and warnings",
        "ops",
        [
            (
                "sum by (instance, port, reason) (rate(rmqha_connections_refused_total{OF}[1m])) > 0",
                "{{port}} {{reason}}",
            ),
            ("sum by (instance, level) (rate(rmqha_log_events_total{OF}[1m])) > 0", "{{instance}} {{level}}"),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "rmqha",
        "uid": "rmqha",
        "tags": ["rocketmq"],
        "schemaVersion": 38,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [_source_variable(), _variable("cluster", ""), _variable("node", 'cluster=~"$cluster"')]
        },
        "panels": [_panel(number, *panel) for number, panel in enumerate(PANELS)],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(name: str, of: str) -> dict[str, Any]:
    label = "node_id" if name == "node" else name
    query = f"label_values(rmqha_build_info{{{of}}}, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, title: str, unit: str, lines: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": SOURCE,
        "gridPos": {"h": 8, "w": 8, "x": 8 * (number % 3), "y": 8 * (number // 3)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": expr.replace("{OF", "{" + OF_NODE),
                "legendFormat": legend,
            }
            for at, (expr, legend) in enumerate(lines)
        ],
    }


def page() -> str:
    """The content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"
