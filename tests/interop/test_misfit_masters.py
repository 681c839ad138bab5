"""Java masters that cannot be copied as they are, and brokers in each other's place: each is named in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqha.kit.events import Event
from tests.commands import rmqha
from tests.interop.conftest import MasterFactory, OurBrokerFactory
from tests.interop.nodes import WAIT_S, OurBroker, RmqhaNode
from tests.interop.rocketmq import SMALL_FILES, Broker, Driver, NameServer, free_ports
from tests.interop.test_namesrv import brokers, wait_for_brokers
from tests.waiting import wait_until

pytestmark = pytest.mark.story

TOPIC = "TMisfit"
SEGMENT_SIZE = 256 * 1024
USAGE, NO_CONTACT, REFUSED = 2, 7, 8
ELSEWHERE = "127.0.0.2"
"""An address of this machine that is on no white list."""
QUICK: dict[str, Any] = {"registerNameServerPeriod": 10_000}
SMALL: dict[str, Any] = {**SMALL_FILES}


def can_send(driver: Driver, cluster: str) -> bool:
    try:
        driver.create_topic(cluster, TOPIC)
        return driver.send(TOPIC, 10, 100).statuses == {"SEND_OK": 10}
    except Exception:  # there is no leader yet
        return False


def test_a_dledger_master_and_its_store_are_named(namesrv: NameServer, tmp_path: Path) -> None:
    own: dict[str, Any] = {"namesrv": namesrv.address, "name": "dledger", "cluster": "dledger"}
    dledger: dict[str, Any] = {
        "enableDLegerCommitLog": True,
        "dLegerGroup": "dledger",
        "dLegerPeers": f"n0-127.0.0.1:{free_ports()}",
        "dLegerSelfId": "n0",
    }
    with Broker(tmp_path / "master", **own, **dledger, **SMALL) as master:
        driver = Driver(namesrv.address, tmp_path / "driver")
        wait_until(lambda: can_send(driver, master.cluster), "the group to have a leader", 2 * WAIT_S, 1.0)
        options = ["--role=slave", f"--master={master.ha_address}", "--port=0"]
        with RmqhaNode(tmp_path, [*options, "--once"], name="once") as once:
            ended = once.ended()
        assert ended.status == USAGE
        (complaint,) = ended.complaints
        assert "DLedger mode (enableDLegerCommitLog=true)" in complaint
        with RmqhaNode(tmp_path, options, name="slave") as slave:
            slave.wait_for_state(lambda state: "DLedger" in (state.reason or ""), "the reason in state.json", WAIT_S)
            status = rmqha("status", slave.store)
            assert (status.returncode, status.stderr.count("\n")) == (NO_CONTACT, 1)
            assert "DLedger mode" in status.stderr
            (told,) = slave.events(Event.MASTER_UNSUITABLE, level="error")
            assert "DLedger mode" in told["reason"]
    for command in ("verify", "dump"):
        done = rmqha(command, master.store)
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert "is the store of a broker in DLedger mode" in done.stderr


def test_an_acl_is_reported_with_a_remedy_and_an_unknown_size_is_not_diverged(
    namesrv: NameServer, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"namesrv": namesrv.address, "name": "acl", "cluster": "acl", "segment_size": SEGMENT_SIZE}
    conf = tmp_path / "master" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text("globalWhiteRemoteAddresses:\n- 127.0.0.1\naccounts: []\n")
    with Broker(tmp_path / "master", aclEnable=True, **own, **SMALL) as master:
        driver = Driver(namesrv.address, tmp_path / "driver")
        wait_until(lambda: can_send(driver, master.cluster), "the topic", WAIT_S, 1.0)
        host, port = master.ha_address.split(":")
        way = f"--master=tcp:host={host}:port={port}:bindAddress={ELSEWHERE}"
        remoting = f"--master-remoting=tcp:host={host}:port={master.listen_port}:bindAddress={ELSEWHERE}"
        options = ["--role=slave", way, remoting, "--port=0"]
        with RmqhaNode(tmp_path, options, name="slave") as slave:
            slave.wait_for_state(lambda state: state.state == "IN_SYNC", "the log to be in sync", WAIT_S)
            state = slave.wait_for_state(
                lambda state: state.tables is not None and state.tables["inSync"] is False, "the tables' state", WAIT_S
            )
            (warning,) = [text for text in state.warnings if "ACL" in text]
            assert f"add {ELSEWHERE} to globalWhiteRemoteAddresses" in warning
            status = rmqha("status", slave.store)
            assert status.returncode == REFUSED
            assert "topics, groups and offsets are not the master's" in status.stderr
            assert len(slave.events(Event.TABLES_NOT_COPIED)) == 1
            assert len(slave.events(Event.SEGMENT_SIZE_UNKNOWN)) >= 1
            driver.send(TOPIC, 2 * SEGMENT_SIZE // 1000, 1000)
            state = slave.wait_for_state(
                lambda state: "segment size" in (state.reason or ""), "the reason in state.json", WAIT_S
            )
            assert state.state != "DIVERGED"
            assert f"probably {SEGMENT_SIZE}" in (state.reason or "")
            assert slave.events(Event.SLAVE_VERDICT, state="DIVERGED") == []
        sized = [*options, f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}"]
        with RmqhaNode(tmp_path, sized, name="sized") as slave:
            slave.wait_for_offset(master.commit_log_range()[1])
            slave.wait_for_state(lambda state: state.state == "IN_SYNC", "the log to be in sync", WAIT_S)


def test_a_java_broker_that_takes_our_place_is_told(
    namesrv: NameServer, java_master: MasterFactory, our_broker: OurBrokerFactory
) -> None:
    """Java's name server gives the place to whoever registers last."""
    ours: OurBroker = our_broker("async-master", name="rival", cluster="rival", **QUICK)
    wait_for_brokers(namesrv.address, "rival", (0, ours))
    theirs = java_master(name="rival", cluster="rival", namesrv=namesrv.address, **QUICK)
    event = ours.wait_for_event(Event.RIVAL_BROKER)
    for text in (ours.address, theirs.address, "brokerId 0"):
        assert text in event["message"]
    ours.wait_for_state(lambda state: any(theirs.address in text for text in state.warnings), "the warning", WAIT_S)
    assert theirs.address in rmqha("status", ours.address).stdout


def test_a_slave_that_has_diverged_leaves_javas_name_server(
    namesrv: NameServer, java_master: MasterFactory, driver: Driver, tmp_path: Path
) -> None:
    names: dict[str, Any] = {"name": "parting", "cluster": "parting", "namesrv": namesrv.address, **QUICK}
    master = java_master(segment_size=SEGMENT_SIZE, **names)
    wait_until(lambda: can_send(driver, "parting"), "the topic", WAIT_S, 1.0)
    slave = OurBroker(
        tmp_path, "slave", namesrv.address, master=master, options=["--broker-id=1"], **QUICK, node_name="slave"
    )
    with slave:
        wait_for_brokers(namesrv.address, "parting", (0, master), (1, slave))
        slave.wait_for_state(lambda state: state.state == "IN_SYNC" and state.offsets.verified > 0, "a copy", WAIT_S)
        master.kill()
        other = Broker(tmp_path / "other", listen_port=master.listen_port, segment_size=SEGMENT_SIZE, **names, **SMALL)
        with other:  # an empty log in the place of the old one
            slave.wait_for_state(lambda state: state.state == "AHEAD", "the verdict", 2 * WAIT_S)
            wait_until(lambda: "1" not in brokers(namesrv.address, "parting"), "the slave to leave")
            assert slave.events(Event.REGISTRATION_WITHDRAWN)
            assert rmqha("status", slave.store).returncode == 4
