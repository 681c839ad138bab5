"""The files for Prometheus and Grafana in ops/: they are valid, and name only metrics that exist."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rmqha.web.catalogue import BY_NAME

OPS = Path(__file__).parents[2] / "ops"
PROMTOOL = shutil.which("promtool")
NAMES = re.compile(r"\b(?:rmqha|rocketmq)_[a-z0-9_]+\b")
SUFFIXES = ("_bucket", "_sum", "_count")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None and "CI" not in os.environ, reason="promtool is missing (Debian's package prometheus)"
)


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None, "CI installs Debian's package prometheus"
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, cwd=OPS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.process
def test_the_rules_are_valid() -> None:
    promtool("check", "rules", "recording.yml", "alerts.yml")


@needs_promtool
@pytest.mark.process
def test_the_alerts_fire_and_clear_as_their_tests_say() -> None:
    promtool("test", "rules", "alerts_test.yml")


def expressions_of(text: str) -> str:
    """Without what is only for people."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s*(#|summary:|description:|- alert:)", line))


@pytest.mark.parametrize("name", ["alerts.yml", "recording.yml", "grafana-dashboard.json"])
def test_only_metrics_that_exist_are_named(name: str) -> None:
    used = set(NAMES.findall(expressions_of((OPS / name).read_text())))
    assert used
    known = set(BY_NAME) | {f"{metric}{suffix}" for metric in BY_NAME for suffix in SUFFIXES}
    assert used <= known | {"rmqha_dashboard"}, used - known


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    dashboard = json.loads((OPS / "grafana-dashboard.json").read_text())
    assert dashboard["title"]
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        assert panel["title"]
        assert panel["targets"]
        assert all(target["expr"] for target in panel["targets"])
        assert panel["datasource"]["uid"] == "${datasource}"
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "cluster", "node"}


def test_what_a_failover_cluster_tells_is_watched_and_shown() -> None:
    metrics = {name for name in BY_NAME if name.startswith(("rmqha_failover_", "rmqha_coordinator_"))}
    assert len(metrics) >= 5
    alerts = expressions_of((OPS / "alerts.yml").read_text())
    assert metrics - set(NAMES.findall(alerts)) == {"rmqha_failover_lease_seconds"}  # without a lease nobody leads
    assert metrics <= set(NAMES.findall((OPS / "grafana-dashboard.json").read_text()))
