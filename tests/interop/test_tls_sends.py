"""The official Java producer over TLS: the pass over ordinary sends takes what it sends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode, TwistdNode
from tests.interop.rocketmq import COMMAND_TIMEOUT_S, FAST_START, java_command
from tests.interop.taken import HTTP_PORT, most_are_taken
from tests.net.tls.authority import Authority

MESSAGES = 500


def test_sends_of_a_java_producer_over_tls_are_taken(java_class_path: str, tmp_path: Path) -> None:
    certificate = f"--tls-cert={Authority(tmp_path / 'tls').issue('127.0.0.1')}"
    over_tls, either = "--set=tls.server.mode=enforcing", "--set=tls.server.mode=permissive"
    with NameServerNode(tmp_path, ("--port=0", certificate, either)) as names:
        options = ["--role=async-master", "--port=0", f"--namesrv={names.address}", HTTP_PORT, certificate, over_tls]
        with TwistdNode(tmp_path, options) as master:
            master.wait_for_event(Event.REGISTERED)
            jvm = (*FAST_START, "-Dtls.enable=true")
            load = ("rmqha.LoadBench", names.address, "OverTLS", 100, 16, 0, MESSAGES)
            command = java_command(tmp_path / "producer", jvm, *load)
            with most_are_taken(master, MESSAGES):
                done = subprocess.run(command, stdout=subprocess.PIPE, timeout=COMMAND_TIMEOUT_S, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["statuses"] == {"SEND_OK": MESSAGES}
