"""ACL 1.0 with Java's signer, clients and brokers."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqha.acl.signing import Credentials, Signer
from rmqha.kit.events import Event
from rmqha.wire.command import RemotingCommand, RequestCode, decode_command, encode_command
from tests.acl.vectors import CASES, of_java
from tests.commands import output_of
from tests.interop.conftest import OurBrokerFactory, SlaveNodeFactory
from tests.interop.nodes import OurBroker, RmqhaNode, wait_until_dispatched
from tests.interop.rocketmq import (
    CLIENT_VERSION,
    COMMAND_TIMEOUT_S,
    FAST_START,
    SMALL_FILES,
    V5,
    VERSION,
    Broker,
    Driver,
    NameServer,
    java_command,
)
from tests.interop.taken import HTTP_PORT, most_are_taken
from tests.waiting import WAIT_SECONDS, wait_until


def run_java(work: Path, *words: str | float, version: str = CLIENT_VERSION) -> Any:
    """The answer of the Java class Acl, compiled for a release, to a command."""
    command = java_command(work, FAST_START, "rmqha.Acl", *words, version=version)
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


def signed_ask(
    address: str, keys: Credentials | None, code: int, fields: dict[str, str], body: bytes = b""
) -> RemotingCommand:
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


def administrator_ask(address: str, code: int) -> RemotingCommand:
    """The answer to a request of the administrator."""
    return signed_ask(address, ADMINISTRATOR, code, {})


@pytest.mark.story
def test_our_slave_copies_log_and_tables_of_a_java_master_with_accounts(
    acl_master: AclBroker, our_slave: SlaveNodeFactory, tmp_path: Path
) -> None:
    make_topics(acl_master.address)
    keys = tools_yml(tmp_path)
    way = [f"--broker={acl_master.address}", f"--acl-file={keys}"]
    assert "SEND_OK 20" in output_of("put", "TBoth", "hello", "--count=20", *way)
    wait_until_dispatched(acl_master.address, administrator_ask)
    assert output_of("pull", "TBoth", "--group=GSub", "--body", *way) == "hello\n" * 20
    denied = slave_state(our_slave(acl_master), lambda facts: facts["tables"]["inSync"] is False)
    assert "No accessKey is configured" in denied["tables"]["reason"]
    assert "aclFile" in denied["tables"]["reason"]
    node = our_slave(acl_master, f"--set=aclFile={keys}")
    slave_state(node, has_all)
    assert b"TBoth" in (node.store / "config" / "topics.json").read_bytes()
    shown = output_of("status", acl_master.address, f"--acl-file={keys}")
    assert "MASTER" in shown
    for path in (node.work / f"{node.name}.log", node.store / "rmqha" / "state.json"):
        assert "app-secret" not in path.read_text(), path


AUTH = "org.apache.rocketmq.auth"
AUTH_OF_5: dict[str, Any] = {
    "authenticationEnabled": True,
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": True,
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": "administrator", "password": "admin-secret"}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "administrator", "secretKey": "admin-secret"}),
}
"""ACL 2.0 of RocketMQ 5.x. Its signature is that of ACL 1.0."""


@pytest.mark.story
def test_our_slave_and_our_client_sign_for_a_5_x_master(
    namesrv: NameServer, java_brokers: ExitStack, our_slave: SlaveNodeFactory, tmp_path: Path
) -> None:
    options: dict[str, Any] = {**SMALL_FILES, **AUTH_OF_5, "name": "auth-5", "cluster": "auth-5"}
    work = tmp_path / "auth-master"
    master = AclBroker(
        work, namesrv=namesrv.address, segment_size=256 << 10, authConfigPath=f"{work}/auth", version=V5, **options
    )
    java_brokers.callback(master.kill)
    master.start()
    created = {**TOPIC, "topic": "TAuth5"}
    for stranger in (None, Credentials("administrator", "wrong-secret")):
        assert signed_ask(master.address, stranger, RequestCode.UPDATE_AND_CREATE_TOPIC, created).code != 0
    assert signed_ask(master.address, ADMINISTRATOR, RequestCode.UPDATE_AND_CREATE_TOPIC, created).code == 0
    keys = tools_yml(tmp_path, ADMINISTRATOR)
    way = [f"--broker={master.address}", f"--acl-file={keys}"]
    assert "SEND_OK 20" in output_of("put", "TAuth5", "hello", "--count=20", *way)
    wait_until_dispatched(master.address, administrator_ask)
    assert output_of("pull", "TAuth5", "--body", *way) == "hello\n" * 20
    node = our_slave(master, f"--set=aclFile={keys}")
    slave_state(node, has_all)
    assert b"TAuth5" in (node.store / "config" / "topics.json").read_bytes()
    without = slave_state(our_slave(master), lambda facts: facts["tables"]["inSync"] is False)
    assert "aclFile" in without["tables"]["reason"]


def slave_state(node: RmqhaNode, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What state.json says once it fits."""
    path = node.store / "rmqha" / "state.json"

    def fitting() -> dict[str, Any] | None:
        facts = json.loads(path.read_text()) if path.exists() else {}
        return facts if facts.get("tables") is not None and fits(facts) else None

    return node.wait_until_found(fitting, f"{path} that fits", WAIT_SECONDS)


def has_all(facts: dict[str, Any]) -> bool:
    """Whether a slave has its master's log and tables, by its state.json."""
    return (facts["tables"]["inSync"], facts["state"], facts["lagBytes"]) == (True, "IN_SYNC", 0)


@pytest.fixture
def our_acl_master(our_broker: OurBrokerFactory, tmp_path: Path) -> OurBroker:
    """A running master of ours with the same accounts."""
    folder = tmp_path / "our-conf"
    folder.mkdir()
    (folder / "plain_acl.yml").write_text(PLAIN_ACL)
    checks = {"transactionTimeOut": "1000", "transactionCheckInterval": "2000"}
    return our_broker("async-master", options=[HTTP_PORT], aclEnable="true", aclFolder=str(folder), **checks)


def heartbeat(group: str, topic: str) -> bytes:
    """The heartbeat of a consumer."""
    subscription = {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    return json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


SEND = {"producerGroup": "PG", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0"}
SEND |= {"bornTimestamp": "1700000000000", "flag": "0"}
SEND_V2 = {"a": "PG", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
PULL = {"queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0"}
PULL |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1"}
OFFSET = {"queueId": "0", "commitOffset": "0"}
GROUP = json.dumps({"groupName": "GSub", "consumeEnable": True}).encode()
TOPICS, GROUPS = ("TBoth", "TPub", "TSub", "TDeny", "TOther"), ("GSub", "GDeny", "GOther")
Call = tuple[str, int, dict[str, str], bytes]


def checked_calls() -> list[Call]:
    """Requests that RocketMQ 4.9 checks, with resources of all permissions."""
    calls: list[Call] = []
    for topic in TOPICS:
        calls += [
            (f"send {topic}", RequestCode.SEND_MESSAGE, SEND | {"topic": topic}, b"x"),
            (f"send v2 {topic}", RequestCode.SEND_MESSAGE_V2, SEND_V2 | {"b": topic}, b"x"),
            (f"query {topic}", RequestCode.QUERY_MESSAGE, QUERY | {"topic": topic}, b""),
        ]
        for group in GROUPS:
            both = {"topic": topic, "consumerGroup": group}
            calls += [
                (f"pull {topic} {group}", RequestCode.PULL_MESSAGE, PULL | both, b""),
                (f"offset {topic} {group}", RequestCode.UPDATE_CONSUMER_OFFSET, OFFSET | both, b""),
                (f"heartbeat {topic} {group}", RequestCode.HEART_BEAT, {}, heartbeat(group, topic)),
            ]
    for group in GROUPS:
        calls += [
            (f"list {group}", RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}, b""),
            (f"leave {group}", RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": group}, b""),
            (f"send back {group}", RequestCode.CONSUMER_SEND_MSG_BACK, BACK | {"group": group}, b""),
        ]
    calls += [
        ("create topic", RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": "TOther"}, b""),
        ("create group", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP),
        ("change settings", RequestCode.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=71"),
        ("delete topic", RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TGone"}, b""),
        ("delete group", RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "GGone"}, b""),
        ("leave as producer", RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "P"}, b""),
        ("trace", RequestCode.SEND_MESSAGE_V2, SEND_V2 | {"b": "RMQ_SYS_TRACE_TOPIC"}, b"x"),
    ]
    return calls


QUERY = {"key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
BACK = {"offset": "0", "delayLevel": "1", "originMsgId": "", "originTopic": "TBoth", "unitMode": "false"}
HOLES: list[Call] = [
    ("batch", RequestCode.SEND_BATCH_MESSAGE, SEND_V2 | {"b": "TDeny", "m": "true"}, b"x"),
    ("lite pull", RequestCode.LITE_PULL_MESSAGE, PULL | {"topic": "TDeny", "consumerGroup": "GSub"}, b""),
    ("offset of", RequestCode.QUERY_CONSUMER_OFFSET, {"topic": "TSub", "consumerGroup": "GDeny", "queueId": "0"}, b""),
    ("max offset", RequestCode.GET_MAX_OFFSET, {"topic": "TDeny", "queueId": "0"}, b""),
    ("min offset", RequestCode.GET_MIN_OFFSET, {"topic": "TDeny", "queueId": "0"}, b""),
    ("by offset", RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}, b""),
    ("lock", RequestCode.LOCK_BATCH_MQ, {}, b'{"consumerGroup":"GDeny","clientId":"c","mqSet":[]}'),
    *((f"read {code}", code, dict[str, str](), b"") for code in (21, 26, 28, 43, 45, 201)),
]
"""Requests that RocketMQ 4.9 serves to any account."""
STRANGERS: dict[str, Credentials | None] = {
    "nobody": None,
    "unknown": Credentials("nobody-here", "app-secret"),
    "wrong key": Credentials("rocketmq-app", "not-this-one"),
}


def refusal(answer: RemotingCommand) -> str | None:
    """Java's reason if access control has refused the request; None for any other answer."""
    _, exception, reason = str(answer.remark).partition("acl.common.AclException: ")
    if answer.code != 1 or not exception:
        return None
    reason = reason.partition(", org.apache")[0]
    return (
        reason.partition(" for ")[0] if reason.startswith("No default permission") else reason
    )  # the first of several


def verdicts(address: str) -> dict[tuple[str, str], str | None]:
    """The reason of each refusal, by account and call."""
    make_topics(address)
    accounts: dict[str, Credentials | None] = {"app": APPLICATION, "admin": ADMINISTRATOR, **STRANGERS}
    calls = checked_calls()
    return {
        (who, name): refusal(signed_ask(address, keys, code, fields, body))
        for who, keys in accounts.items()
        for name, code, fields, body in (calls if who in ("app", "admin") else calls[::9])
    }


def test_verdicts_are_javas_but_for_the_closed_holes(acl_master: AclBroker, our_acl_master: OurBroker) -> None:
    javas, ours = verdicts(acl_master.address), verdicts(our_acl_master.address)
    differing = {call: (javas[call], ours[call]) for call in javas if javas[call] != ours[call]}
    if VERSION == "4.9.3":  # later releases do not check traces
        assert differing.pop(("app", "trace")) == ("No default permission", None)
    assert differing == {}
    assert {reason is None for reason in javas.values()} == {True, False}
    for name, code, fields, body in HOLES:
        assert refusal(signed_ask(acl_master.address, APPLICATION, code, fields, body)) is None, name
        assert refusal(signed_ask(our_acl_master.address, APPLICATION, code, fields, body)) is not None, name
    fast = our_acl_master.address.rpartition(":")
    fast_address = f"{fast[0]}:{int(fast[2]) - 2}"
    assert refusal(signed_ask(fast_address, None, 28, {})) == "No accessKey is configured"
    assert refusal(signed_ask(fast_address, APPLICATION, 10, SEND | {"topic": "TDeny"})) is not None


@pytest.mark.story
def test_javas_clients_put_and_pull_what_their_account_allows(
    our_acl_master: OurBroker, namesrv: NameServer, tmp_path: Path
) -> None:
    check_clients(our_acl_master, namesrv, tmp_path, CLIENT_VERSION)


@pytest.mark.story
def test_a_5_x_client_puts_and_pulls_what_its_account_allows(
    our_acl_master: OurBroker, namesrv: NameServer, tmp_path: Path
) -> None:
    check_clients(our_acl_master, namesrv, tmp_path, version=V5)


def check_clients(master: OurBroker, namesrv: NameServer, work: Path, version: str) -> None:
    """A producer and a pull consumer of a release do what their account may; the rest fails with our reason."""
    make_topics(master.address)

    def java(*words: str, keys: Credentials = APPLICATION) -> dict[str, Any]:
        command, *rest = words
        way = (namesrv.address, keys.access_key, keys.secret_key)
        answer: dict[str, Any] = run_java(work, command, *way, *rest, version=version)
        return answer

    wait_until(lambda: java("put", "TBoth", "1")["sent"] == 1, "the route of TBoth")
    assert java("put", "TBoth", "9")["sent"] == 9
    wait_until_dispatched(master.address, administrator_ask)
    pulled = java("pull", "TBoth", "GSub")
    assert "error" not in pulled
    assert len(pulled["bodies"]) == 10
    denied = java("put", "TSub", "1")
    assert (denied["sent"], "No default permission for topic:TSub" in denied["error"]) == (0, True)
    assert "No default permission for group:GDeny" in java("pull", "TBoth", "GDeny")["error"]
    stranger = java("put", "TBoth", "1", keys=Credentials("rocketmq-app", "not-this-one"))
    assert "Check signature failed" in stranger["error"]
    assert java("put", "TPub", "3")["sent"] == 3
    refused_push_consumer_goes_on(master, namesrv, work, version)
    worked = java("work", "TBoth", "GSub")
    assert sorted(worked["bodies"]) == ["ordinary 1", "transaction 1"]
    assert worked["reply"] == "reply"
    with most_are_taken(master, 100):
        assert java("put", "TPub", "100")["sent"] == 100


def refused_push_consumer_goes_on(master: OurBroker, namesrv: NameServer, work: Path, version: str) -> None:
    """It throws nothing where it is refused: it asks again, and gets the messages once its account may read them."""
    way = (namesrv.address, APPLICATION.access_key, APPLICATION.secret_key)
    command = java_command(work, FAST_START, "rmqha.Acl", "push", *way, "TPub", "GSub", 3, version=version)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
        try:
            master.wait_until_found(lambda: refusal_of(master, "TPub"), "a refusal of TPub", WAIT_SECONDS)
            assert consumer.poll() is None
            rules = work / "our-conf" / "plain_acl.yml"
            rules.write_text(PLAIN_ACL.replace("TPub=PUB", "TPub=PUB|SUB"))
            printed, _ = consumer.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            consumer.kill()
    assert sorted(json.loads(printed.splitlines()[-1])["bodies"]) == ["body0", "body1", "body2"]


def refusal_of(node: RmqhaNode, topic: str) -> str | None:
    """What the node's log says of a request that was refused because of the topic; None if there was none."""
    reasons = (line["reason"] for line in node.events(Event.ACCOUNT_REFUSED))
    return next((reason for reason in reasons if topic in reason), None)


@pytest.mark.story
def test_mqadmin_changes_the_accounts(our_acl_master: OurBroker, namesrv: NameServer, tmp_path: Path) -> None:
    folder = tmp_path / "mqadmin"
    (folder / "conf").mkdir(parents=True)
    tools_yml(folder / "conf", ADMINISTRATOR).rename(folder / "conf" / "tools.yml")
    driver, address = Driver(namesrv.address, folder), our_acl_master.address
    account = ["-a", "rocketmq-new", "-s", "new-secret", "-t", "TBoth=PUB,TSub=SUB", "-m", "false"]
    printed = driver.mqadmin(
        [
            ["updateAclConfig", "-b", address, *account],
            ["clusterAclConfigVersion", "-b", address],
            ["deleteAccessConfig", "-b", address, "-a", "rocketmq-app"],
            ["updateGlobalWhiteAddr", "-b", address, "-g", "10.9.8.*"],
        ]
    )
    assert "success" in printed[0], printed
    content = yaml.safe_load((tmp_path / "our-conf" / "plain_acl.yml").read_text())
    assert [each["accessKey"] for each in content["accounts"]] == ["administrator", "rocketmq-new"], printed
    assert content["globalWhiteRemoteAddresses"] == ["10.9.8.*"], printed
    assert our_acl_master.broker_name in printed[1]
    new = Credentials("rocketmq-new", "new-secret")
    assert refusal(signed_ask(address, new, RequestCode.SEND_MESSAGE, SEND | {"topic": "TBoth"}, b"x")) is None
    denied = signed_ask(address, new, RequestCode.SEND_MESSAGE, SEND | {"topic": "TSub"}, b"x")
    assert refusal(denied) == "No default permission"
    assert refusal(signed_ask(address, APPLICATION, 28, {})) == "No acl config for rocketmq-app"
