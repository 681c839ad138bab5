"""ACL 1.0 with Java's signer, clients and brokers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqha.acl.signing import Credentials, Signer
from rmqha.wire.command import RemotingCommand, RequestCode, decode_command, encode_command
from tests.acl.vectors import CASES, of_java
from tests.interop.conftest import SlaveNodeFactory
from tests.interop.nodes import RmqhaNode
from tests.interop.rocketmq import (
    COMMAND_TIMEOUT_S,
    FAST_START,
    SMALL_FILES,
    Broker,
    NameServer,
    java_command,
)
from tests.waiting import WAIT_SECONDS, wait_until


def run_java(work: Path, *words: str | float) -> Any:
    """The answer of the Java class Acl to a command."""
    command = java_command(work, FAST_START, "rmqha.Acl", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_vectors_are_javas(java_class_path: str, tmp_path: Path) -> None:
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps(CASES))
    signatures = run_java(tmp_path, "sign", str(cases))
    assert [{**case, "signature": each} for case, each in zip(CASES, signatures, strict=True)] == of_java()


PLAIN_ACL = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: administrator
  secretKey: "admin-secret"
  whiteRemoteAddress:
  admin: true
- accessKey: rocketmq-app
  secretKey: "app-secret"
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - TBoth=PUB|SUB
  - TPub=PUB
  - TSub=SUB
  - TDeny=DENY
  groupPerms:
  - GSub=SUB
  - GDeny=DENY
"""
ADMINISTRATOR = Credentials("administrator", "admin-secret")
APPLICATION = Credentials("rocketmq-app", "app-secret")


def tools_yml(folder: Path, keys: Credentials = APPLICATION) -> Path:
    """A tools.yml with these keys."""
    path = folder / f"{keys.access_key}.yml"
    path.write_text(f"accessKey: {keys.access_key}\nsecretKey: {keys.secret_key}\n")
    return path


class AclBroker(Broker):
    """A Java broker with aclEnable: it answers nobody without an account."""

    def _check_ready(self) -> None:
        """It has said that it is ready."""


@pytest.fixture
def acl_master(namesrv: NameServer, java_brokers: ExitStack, tmp_path: Path) -> AclBroker:
    """A running Java master that knows two accounts, and has no white list."""
    work = tmp_path / "acl-master"
    (work / "conf").mkdir(parents=True)
    (work / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    options: dict[str, Any] = {**SMALL_FILES, "aclEnable": True, "name": "acl-a", "cluster": f"acl-{tmp_path.name}"}
    broker = AclBroker(work, namesrv=namesrv.address, segment_size=256 << 10, **options)
    java_brokers.callback(broker.kill)
    broker.start()
    return broker


def signed_ask(address: str, keys: Credentials | None, code: int, fields: dict[str, str], body: bytes = b"") -> Any:
    """The answer of a broker to a request that is signed with these keys."""
    request = RemotingCommand(code, 1, ext_fields=fields, body=body)
    if keys is not None:
        request = request._replace(ext_fields=Signer(keys)(fields, body, request.version))
    return exchange(address, request)


def exchange(address: str, request: RemotingCommand) -> RemotingCommand:
    """The answer to a request, on a connection of its own."""
    host, _, port = address.rpartition(":")
    content = encode_command(request)
    with socket.create_connection((host, int(port)), WAIT_SECONDS) as connection, connection.makefile("rb") as incoming:
        connection.sendall(len(content).to_bytes(4, "big") + content)
        return decode_command(incoming.read(int.from_bytes(incoming.read(4), "big")))


TOPIC = {
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def make_topics(address: str) -> None:
    """The topics that PLAIN_ACL names."""
    for topic in ("TBoth", "TPub", "TSub", "TDeny"):
        answer = signed_ask(address, ADMINISTRATOR, RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": topic})
        assert answer.code == 0, answer


def test_our_slave_copies_log_and_tables_of_a_java_master_with_accounts(
    acl_master: AclBroker, our_slave: SlaveNodeFactory, tmp_path: Path
) -> None:
    make_topics(acl_master.address)
    keys = tools_yml(tmp_path)
    way = [f"--broker={acl_master.address}", f"--acl-file={keys}"]
    assert "SEND_OK 20" in rmqha("put", "TBoth", "hello", "--count=20", *way)
    assert rmqha("pull", "TBoth", "--group=GSub", "--body", *way) == "hello\n" * 20
    denied = slave_state(our_slave(acl_master), lambda facts: facts["tables"]["inSync"] is False)
    assert "No accessKey is configured" in denied["tables"]["reason"]
    assert "aclFile" in denied["tables"]["reason"]
    node = our_slave(acl_master, f"--set=aclFile={keys}")
    state = slave_state(node, lambda facts: facts["tables"]["inSync"] is True)
    assert (state["state"], state["lagBytes"]) == ("IN_SYNC", 0)
    assert b"TBoth" in (node.store / "config" / "topics.json").read_bytes()
    shown = rmqha("status", acl_master.address, f"--acl-file={keys}")
    assert "MASTER" in shown
    for path in (node.work / f"{node.name}.log", node.store / "rmqha" / "state.json"):
        assert "app-secret" not in path.read_text(), path


def slave_state(node: RmqhaNode, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What state.json says once it fits."""
    path = node.store / "rmqha" / "state.json"

    def facts() -> dict[str, Any]:
        return json.loads(path.read_text()) if path.exists() else {}

    wait_until(lambda: facts().get("tables") is not None and fits(facts()), f"{path} to fit")
    return facts()


def rmqha(*words: str) -> str:
    """What a command of ours prints."""
    done = subprocess.run(
        [sys.executable, "-m", "rmqha.cli", *words], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout
