"""Java brokers, clients and mqadmin with a name server of ours, and brokers of ours with Java's name server."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqha.ha.slave.states import ReplicaState
from rmqha.testing.nodes import NameServerNode, free_port
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient
from tests.interop.conftest import MasterFactory, OurBrokerFactory, SlaveFactory
from tests.interop.nodes import OurBroker, assert_equal_logs, log_end_of
from tests.interop.requests import any_answer, ask
from tests.interop.rocketmq import V5, VERSION, Broker, Driver, NameServer, messages_sha256
from tests.waiting import WAIT_SECONDS, wait_until

TOPIC = "TNameServer"
COUNT = 200
BODY_BYTES = 300
AT_ONCE_S = 100.0
"""Less than the two minutes after which a silent broker is forgotten: only a lost connection is seen before."""
NO_PERMISSION = 16
TOPIC_FIELDS = {
    "defaultTopic": "TBW102",
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
QUICK: dict[str, Any] = {"registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 1000}


def brokers(namesrv: str, name: str) -> dict[str, str]:
    """The addresses of a brokerName by brokerId, as this name server knows them."""
    table = loads_lenient(ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO).body)["brokerAddrTable"]
    addresses = table.get(name, {}).get("brokerAddrs", {})
    return {str(broker_id): address for broker_id, address in addresses.items()}


def wait_for_brokers(
    namesrv: str, name: str, *expected: tuple[int, Broker | OurBroker], seconds: float = WAIT_SECONDS
) -> None:
    """Wait until these, by their brokerIds, are all that is registered."""
    addresses = {str(broker_id): broker.address for broker_id, broker in expected}
    wait_until(lambda: brokers(namesrv, name) == addresses, f"the brokers {addresses}", seconds)


def assert_consumed(driver: Driver, group: str, broker_id: int | None = None, seconds: float = WAIT_SECONDS) -> None:
    """All that was sent is read, once each and as it was; of a slave, as soon as it has the topic."""
    deadline = time.monotonic() + seconds
    while (report := driver.consume(TOPIC, group, COUNT, 30, broker_id)).count < COUNT:
        assert time.monotonic() < deadline, report
    assert (report.count, report.distinct) == (COUNT, COUNT)
    assert report.sha256 == messages_sha256(range(COUNT), BODY_BYTES)


def test_a_java_pair_and_java_clients_work_with_our_name_server(
    our_namesrv: NameServerNode, our_driver: Driver, java_master: MasterFactory, java_slave: SlaveFactory
) -> None:
    namesrv = our_namesrv.address
    names: dict[str, Any] = {"name": "broker-ns", "cluster": "cluster-ns"}
    master = java_master(namesrv=namesrv, **names, **QUICK)
    wait_for_brokers(namesrv, "broker-ns", (0, master))
    slave = java_slave(namesrv=namesrv, **names, **QUICK)  # our answer tells it where the HA port is
    wait_for_brokers(namesrv, "broker-ns", (0, master), (1, slave))
    our_driver.create_topic("cluster-ns", TOPIC)
    assert our_driver.send(TOPIC, COUNT, BODY_BYTES).statuses == {"SEND_OK": COUNT}
    slave.wait_for_offset(master.commit_log_range()[1])
    assert_consumed(our_driver, "GMaster")
    assert_consumed(our_driver, "GSlave", broker_id=1)
    master.kill()
    wait_for_brokers(namesrv, "broker-ns", (1, slave), seconds=AT_ONCE_S)
    assert_consumed(our_driver, "GLate")
    slave.stop()
    wait_for_brokers(namesrv, "broker-ns", seconds=AT_ONCE_S)
    assert our_driver.mqadmin([["topicList"]])[0].split() == []
    assert our_namesrv.stop() == 0
    assert our_namesrv.errors() == []


@pytest.mark.story
def test_a_java_broker_may_register_compressed_and_only_when_something_changes(
    our_namesrv: NameServerNode, our_driver: Driver, java_master: MasterFactory
) -> None:
    master = java_master(
        namesrv=our_namesrv.address, cluster="cluster-ns", compressedRegister=True, forceRegister=False, **QUICK
    )
    our_driver.create_topics("cluster-ns", {TOPIC: 3, "TOther": 5})
    route = loads_lenient(ask(our_namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TOther"}).body)
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (5, 5, 6)
    assert our_driver.send(TOPIC, COUNT, BODY_BYTES).stored == COUNT
    assert_consumed(our_driver, "G")
    assert brokers(our_namesrv.address, master.name) == {"0": master.address}


@pytest.mark.story
def test_mqadmin_is_answered_by_our_name_server_as_by_javas(
    namesrv: NameServer, our_namesrv: NameServerNode, our_driver: Driver, driver: Driver, java_master: MasterFactory
) -> None:
    master = java_master(namesrv=f"{namesrv.address};{our_namesrv.address}", name="broker-both", cluster="cluster-both")
    for each in (driver, our_driver):
        each.create_topic("cluster-both", TOPIC, 4)
    commands = [
        ["topicRoute", "-t", TOPIC],
        ["topicRoute", "-t", "TUnknown"],
        ["topicClusterList", "-t", TOPIC],
        ["updateKvConfig", "-s", "Space", "-k", "key", "-v", "value"],
        ["deleteKvConfig", "-s", "Space", "-k", "key"],
        ["deleteKvConfig", "-s", "Space", "-k", "none"],
        ["wipeWritePerm", "-b", master.name],
        ["topicRoute", "-t", TOPIC],
        ["addWritePerm", "-b", master.name],
        ["topicRoute", "-t", TOPIC],
    ]
    java, ours = driver.mqadmin(commands), our_driver.mqadmin(commands)
    for command, from_java, from_us in zip(commands, java, ours, strict=True):
        assert from_us.replace(our_namesrv.address, namesrv.address) == from_java, command
    (listed,) = our_driver.mqadmin([["clusterList"]])
    (line,) = [line for line in listed.splitlines() if master.name in line]
    assert line.split()[:4] == ["cluster-both", master.name, "0", master.address]
    topics = our_driver.mqadmin([["topicList"]])[0].split()
    assert {TOPIC, "TBW102", "cluster-both", master.name} <= set(topics)


def perm(namesrv: str, topic: str) -> int | None:
    """What clients may do with a topic; None without a route."""
    answer = any_answer(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    return None if answer.code else int(loads_lenient(answer.body)["queueDatas"][0]["perm"])


@pytest.mark.parametrize("version", [VERSION, V5])
@pytest.mark.story
def test_a_new_name_server_has_all_topics_of_a_java_broker_and_lets_nobody_take_it(
    version: str, java_master: MasterFactory, tmp_path: Path
) -> None:
    """The broker registers one topic first, which is created meanwhile, and then all with the same version."""
    options = (f"--port={free_port()}",)
    with NameServerNode(tmp_path, options, "before") as server:
        server.port("name server")
        master = java_master(version=version, namesrv=server.address, **QUICK)
        wait_for_brokers(server.address, master.name, (0, master))
        for topic in ("TOld", "TDeleted"):
            ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC_FIELDS, "topic": topic})
        server.kill()
    with NameServerNode(tmp_path, options, "after") as server:
        server.port("name server")
        namesrv = server.address
        ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC_FIELDS, "topic": "TNew"})
        for topic in ("TNew", "TOld", "TDeleted", "SELF_TEST_TOPIC"):
            wait_until(lambda topic=topic: perm(namesrv, topic) is not None, topic)  # type: ignore[misc]
        ask(master.address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TDeleted"})
        wait_until(lambda: perm(namesrv, "TDeleted") is None, "the topic to end with the next registration")

        place = {
            "brokerName": master.name, "brokerAddr": master.address, "clusterName": master.cluster, "brokerId": "0",
        }  # fmt: skip
        stranger = "127.0.0.2"
        elsewhere = {**place, "brokerAddr": f"{stranger}:10911", "haServerAddr": f"{stranger}:10912"}
        assert any_answer(namesrv, RequestCode.UNREGISTER_BROKER, place, source=stranger).code == NO_PERMISSION
        refusal = any_answer(namesrv, RequestCode.REGISTER_BROKER, elsewhere, source=stranger)
        assert refusal.code == NO_PERMISSION, refusal
        assert "is alive" in (refusal.remark or ""), refusal
        assert brokers(namesrv, master.name) == {"0": master.address}
        assert perm(namesrv, "TOld") == 6
        master.stop()
        wait_for_brokers(namesrv, master.name, seconds=AT_ONCE_S)


@pytest.mark.parametrize("version", [VERSION, V5])
@pytest.mark.story
def test_our_brokerpermission_reaches_the_routes_of_javas_name_server(
    version: str, java_class_path: str, tmp_path: Path
) -> None:
    with ExitStack() as running:
        server = NameServer(tmp_path / "java", version=version)
        running.callback(server.kill)
        server.start()
        broker = running.enter_context(OurBroker(tmp_path, "async-master", server.address, brokerPermission=4))
        wait_until(lambda: perm(server.address, "SELF_TEST_TOPIC") == 4, "the permission of the start")
        for permission in (6, 4):
            body = f"brokerPermission={permission}".encode()
            ask(broker.address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
            wait_until(
                lambda permission=permission: perm(server.address, "SELF_TEST_TOPIC") == permission,  # type: ignore[misc]
                f"the permission {permission}",
            )


@pytest.mark.story
def test_clients_find_our_pair_by_javas_name_server(
    namesrv: NameServer, driver: Driver, our_broker: OurBrokerFactory
) -> None:
    master = our_broker("async-master")
    wait_for_brokers(namesrv.address, master.broker_name, (0, master))
    slave = our_broker("slave", name=master.broker_name, cluster=master.cluster)  # Java's answer tells it its master
    wait_for_brokers(namesrv.address, master.broker_name, (0, master), (1, slave))
    driver.create_topic(master.cluster, TOPIC)
    assert driver.send(TOPIC, COUNT, BODY_BYTES).statuses == {"SEND_OK": COUNT}
    assert_consumed(driver, "GOurMaster")
    slave.wait_for(ReplicaState.IN_SYNC)
    assert_consumed(driver, "GOurSlave", broker_id=1)
    master.kill()
    wait_for_brokers(namesrv.address, master.broker_name, (1, slave), seconds=AT_ONCE_S)
    assert_consumed(driver, "GOurLate")
    slave.stop_cleanly()
    wait_for_brokers(namesrv.address, master.broker_name, seconds=AT_ONCE_S)


@pytest.mark.story
def test_a_slave_of_ours_finds_its_java_master_by_javas_name_server(
    namesrv: NameServer, java_master: MasterFactory, our_broker: OurBrokerFactory, driver: Driver
) -> None:
    master = java_master(**QUICK)
    wait_for_brokers(namesrv.address, master.name, (0, master))
    slave = our_broker("slave", name=master.name, cluster=master.cluster)
    driver.create_topic(master.cluster, TOPIC)
    assert driver.send(TOPIC, COUNT, BODY_BYTES).stored == COUNT
    end = master.commit_log_range()[1]
    slave.wait_for_offset(end)
    assert_equal_logs(slave.store, master.store, 0, end)


@pytest.mark.story
def test_a_java_slave_finds_our_master_by_our_name_server(
    our_namesrv: NameServerNode, our_driver: Driver, java_slave: SlaveFactory, tmp_path: Path
) -> None:
    names: dict[str, Any] = {"name": "broker-ours", "cluster": "cluster-ours"}
    with OurBroker(tmp_path, "async-master", our_namesrv.address, **names) as master:
        our_driver.create_topic("cluster-ours", TOPIC)
        assert our_driver.send(TOPIC, COUNT, BODY_BYTES).stored == COUNT
        slave = java_slave(namesrv=our_namesrv.address, **names, **QUICK)
        end = log_end_of(master.address)
        slave.wait_for_offset(end)
        assert_equal_logs(slave.store, master.store, 0, end)
        wait_for_brokers(our_namesrv.address, "broker-ours", (0, master), (1, slave))
