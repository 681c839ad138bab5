"""The HTTP port of real nodes: pages, TLS, strangers, and a Prometheus that watches a pair."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port
from tests.commands import output_of
from tests.waiting import wait_until

pytestmark = pytest.mark.process

PROMETHEUS = shutil.which("prometheus")
OPS = Path(__file__).parents[2] / "ops"
STRANGERS = 300


def get(port: int, path: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """The code and the text of a page."""
    scheme = "http" if context is None else "https"
    try:
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}{path}", timeout=60, context=context) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def master_of(work: Path, *options: str) -> TwistdNode:
    patient = "--set=slaveTimeout=60000"  # a slave answers each put, however busy the machine
    return TwistdNode(work, ["--role=sync-master", "--port=0", "--http-port=0", patient, *options], name="master")


def slave_of(work: Path, master: TwistdNode, *options: str) -> TwistdNode:
    return TwistdNode(
        work,
        [
            "--role=slave",
            "--port=0",
            f"--master=127.0.0.1:{master.port()}",
            f"--master-remoting=127.0.0.1:{master.port('remoting')}",
            *options,
        ],
        name="slave",
    )


def put(port: int, count: int) -> str:
    return output_of("put", "TopicTest", "hello", f"--count={count}", f"--broker=127.0.0.1:{port}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[TwistdNode]:
    with master_of(tmp_path) as node:
        yield node


def test_a_pair_shows_its_roles_and_a_change_shows_at_once(tmp_path: Path, master: TwistdNode) -> None:
    http = master.port("http")
    with slave_of(tmp_path, master, "--http-port=0") as slave:
        of_slave = slave.port("http")
        slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        assert get(http, "/primary")[0] == 200
        assert get(http, "/replica")[0] == 503
        assert get(of_slave, "/sync")[0] == 200
        assert "SEND_OK 20" in put(master.port("remoting"), 20)
        metrics = get(http, "/metrics")[1]
        assert 'topic="TopicTest"} 20.0' in metrics
        assert "rmqha_reactor_turn_seconds_count" in metrics
        status = json.loads(get(http, "/status.json")[1])
        assert (status["inSyncSlaves"], status["state"]) == (1, "SERVING")
        master.kill()
        slave.wait_for_event(Event.SLAVE_STATE, state="CONNECTING")
        code, line = get(of_slave, "/replica")
        assert code == 503
        assert "CONNECTING" in line
        assert "CONNECTING" in get(of_slave, "/")[1]
        found = get(of_slave, "/metrics")[1].splitlines()
        assert next(line for line in found if 'state="CONNECTING"' in line).endswith(" 1.0")
        assert slave.stop() == 0


def test_strangers_on_the_port_harm_no_put(master: TwistdNode, tmp_path: Path) -> None:
    """Idle connections, endless headers, and connections that do not read: messages are stored meanwhile."""
    http = master.port("http")
    lines = []
    for number in range(STRANGERS):
        line = socket.create_connection(("127.0.0.1", http))
        lines.append(line)
        with suppress(OSError):  # it has lost its place already
            line.sendall((b"", b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" * 3, b"GET / HTTP/1.1\r\nX: ")[number % 3])
    with slave_of(tmp_path, master) as slave:
        slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        assert "SEND_OK 50" in put(master.port("remoting"), 50)
    wait_until(lambda: get(http, "/liveness")[0] == 200, "an answer among strangers")
    refused = json.loads(get(http, "/status.json")[1])["ports"]["http"]["refused"]
    assert sum(refused.values()) > 0
    for line in lines:
        line.close()


def test_it_uses_tls_as_the_other_ports_do(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "node.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with master_of(tmp_path, f"--tls-cert={tmp_path / 'node.pem'}") as node:
        port = node.port("http")
        code, text = get(port, "/metrics", context)
        assert code == 200
        assert "rmqha_certificate_expiry_timestamp_seconds" in text
        with pytest.raises((OSError, urllib.error.URLError)):
            get(port, "/metrics")


def test_a_name_server_shows_its_brokers(tmp_path: Path) -> None:
    port = free_port()
    with (
        NameServerNode(tmp_path, [f"--port={port}", "--http-port=0"]) as names,
        master_of(tmp_path, f"--namesrv=127.0.0.1:{port}") as node,
    ):
        http = names.port("http")
        address = f":{node.port('remoting')}"
        wait_until(lambda: address in get(http, "/")[1], "the broker on the page")
        assert get(http, "/readiness")[0] == 200
        assert "rmqha_namesrv_masters" in get(http, "/metrics")[1]


@pytest.mark.skipif(PROMETHEUS is None and "CI" not in os.environ, reason="prometheus is missing (Debian's package)")
@pytest.mark.story
def test_prometheus_raises_alerts_when_a_master_is_killed_and_clears_them(tmp_path: Path) -> None:
    """The rules of ops/, with shorter waits."""
    assert PROMETHEUS is not None, "CI installs Debian's package prometheus"
    http, own = free_port(), free_port()
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0", f"--http-port={http}"], name="master") as master:
        master.port("http")
        for rules in ("recording.yml", "alerts.yml"):
            text = (OPS / rules).read_text().replace("for: 1m", "for: 1s").replace("interval: 30s", "interval: 1s")
            (tmp_path / rules).write_text(text)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["recording.yml", "alerts.yml"],
            "scrape_configs": [{"job_name": "rmqha", "static_configs": [{"targets": [f"127.0.0.1:{http}"]}]}],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        with (tmp_path / "prometheus.log").open("w") as log:
            prometheus = subprocess.Popen(
                [
                    PROMETHEUS,
                    f"--config.file={tmp_path / 'prometheus.yml'}",
                    f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{own}",
                ],
                stdout=log,
                stderr=log,
                cwd=tmp_path,
            )
        try:
            wait_until(lambda: firing(own) is not None, "Prometheus")
            wait_until(lambda: asked(own, 'rmqha_state{state="SERVING"} == 1') != [], "a scrape")
            wait_until(lambda: firing(own) == set(), "no alert")  # a scrape may have taken too long
            master.kill()
            wait_until(lambda: is_firing(own, "RmqhaNodeDown") is True, "the alert RmqhaNodeDown")
            master.start()
            wait_until(lambda: is_firing(own, "RmqhaNodeDown") is False, "its end")
            wait_until(lambda: asked(own, "rmqha_takes_puts == 1") != [], "a scrape of the new process")
        finally:
            prometheus.terminate()
            prometheus.wait()


def asked(port: int, query: str) -> list[Any]:
    """What Prometheus answers to a query; empty while it does not answer."""
    try:
        _, text = get(port, f"/api/v1/query?query={urllib.parse.quote(query)}")
        found: list[Any] = json.loads(text)["data"]["result"]
    except (OSError, ValueError, KeyError):
        return []
    return found


def is_firing(port: int, name: str) -> bool | None:
    """Whether an alert fires; None while Prometheus does not answer."""
    found = firing(port)
    return None if found is None else name in found


def firing(port: int) -> set[str] | None:
    """The names of the alerts that fire; None while Prometheus does not answer."""
    try:
        _, text = get(port, "/api/v1/alerts")
        return {
            alert["labels"]["alertname"] for alert in json.loads(text)["data"]["alerts"] if alert["state"] == "firing"
        }
    except (OSError, ValueError, KeyError):
        return None
