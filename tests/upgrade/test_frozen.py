"""What the tree of commit 8200a57 wrote to disks, opened by today's tree: see ``freeze``."""

import json
import shutil
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmqha.acl.credentials import read_credentials
from rmqha.acl.rules import parse_rules
from rmqha.acl.yamlfile import read_yaml
from rmqha.cli import main
from rmqha.coordination.address import read_login
from rmqha.coordination.witness.journal import Journal
from rmqha.failover.knownfile import read_known
from rmqha.pipeline.jobs.manifest import Archive, archived_paths
from rmqha.pipeline.jobs.tablelog import TableFormat
from rmqha.settings.settings import BrokerRole, make_settings, read_properties
from rmqha.store.keptsettings import read_kept_settings
from rmqha.store.nodestate import NodeState
from rmqha.testing.archive import unpack
from rmqha.testing.nodes import NameServerNode, TwistdNode
from tests.commands import rmqha
from tests.failover.cluster import running_cluster
from tests.pipeline.lake import rows_of
from tests.pipeline.tables import table_offsets
from tests.upgrade.conftest import FROZEN
from tests.upgrade.freeze import CLEAN, EXPECTED, PACKAGE, STORES, UNCLEAN, facts_of
from tests.waiting import wait_until

KNOWN: dict[str, Any] = json.loads((FROZEN / EXPECTED).read_text("utf-8"))
STORE_NAMES = sorted(KNOWN["stores"])


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("frozen")
    unpack(FROZEN / STORES, folder)
    yield folder
    shutil.rmtree(folder)


def messages_in(store: str, topic: str) -> int:
    """How many messages of a topic the store had."""
    queues: dict[str, list[int]] = KNOWN["stores"][store]["queues"]
    return sum(count for name, (_, count) in queues.items() if name.startswith(f"{topic}/"))


def test_they_have_what_an_upgrade_must_keep() -> None:
    """Every kind is there, so that the tests below can fail."""
    assert STORE_NAMES == [CLEAN, UNCLEAN, "member-a", "member-b", "slave"]
    for name in (CLEAN, UNCLEAN, "slave"):
        facts = KNOWN["stores"][name]
        assert {
            *("Orders", "Bestellungen", "%RETRY%shipping", "%DLQ%shipping", "SCHEDULE_TOPIC_XXXX"),
            *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"),
        } == set(facts["bodies"])
        assert messages_in(name, "RMQ_SYS_TRANS_HALF_TOPIC") > messages_in(name, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
        assert facts["end"] > 2 * 16384  # several segments
        assert facts["timers"] == 2
        assert {"Orders@shipping", "Bestellungen@reading"} <= set(facts["tables"]["offsets"])
    assert [KNOWN["stores"][name]["unclean"] for name in (CLEAN, UNCLEAN, "slave")] == [False, True, False]


def test_the_package_of_that_tree_is_whole() -> None:
    with tarfile.open(FROZEN / PACKAGE) as packed:
        names = packed.getnames()
    assert {"rmqha/tap.py", "rmqha/namesrv_tap.py", "twisted/plugins/rmqha_plugin.py"} <= set(names)


@pytest.mark.parametrize("name", STORE_NAMES)
def test_a_store_reads_as_it_was(read_only: Path, name: str) -> None:
    store = read_only / name
    assert facts_of(store) == KNOWN["stores"][name]
    result = CliRunner().invoke(main, ["verify", str(store)])
    assert result.exit_code == 0, result.output
    state = NodeState.read(store)
    assert state is not None
    assert 0 < state.confirmed_offset <= KNOWN["stores"][name]["end"]


def test_a_kept_setting_counts(read_only: Path) -> None:
    for name in (CLEAN, UNCLEAN):
        kept = read_kept_settings(read_only / name)["fileReservedTime"]
        assert (kept.value, kept.configured) == ("720", "48")


def test_members_know_their_cluster(read_only: Path) -> None:
    cluster = KNOWN["cluster"]
    for name in cluster["sync"]:
        known = read_known(read_only / f"member-{name}")
        assert (known.epoch, known.cluster_id) == (cluster["epoch"], cluster["cluster_id"])
        assert known.leader == cluster["leader"]


def test_the_witness_has_its_keys_and_leases(frozen: Path) -> None:
    cluster = KNOWN["cluster"]
    journal = Journal(frozen / "witness" / "witness")
    try:
        prefix = f"/rmqha/{cluster['cluster']}/{cluster['broker']}/"
        keys = {name.removeprefix(prefix): each for name, each in journal.state.keys.items() if name.startswith(prefix)}
        assert journal.cluster_id == cluster["cluster_id"]
        assert json.loads(keys["config"].value)["ttl"] == cluster["ttl"]
        assert set(json.loads(keys["sync"].value)["holders"]) == set(cluster["sync"])
        leading = keys["leader"]
        assert leading.lease in journal.state.leases
        assert {name for name in keys if name.startswith("members/")} == {f"members/{each}" for each in cluster["sync"]}
    finally:
        journal.close()


@pytest.mark.long
def test_an_archive_and_its_tables_read_as_they_were(read_only: Path) -> None:
    queues = KNOWN["stores"][CLEAN]["queues"]
    count = sum(count for _, count in queues.values())
    offsets = None
    for kind in TableFormat:
        lake = read_only / kind.value
        rows = rows_of(list(archived_paths(lake)))
        assert len(rows) == count
        assert Archive(lake).manifests()[-1].end == KNOWN["stores"][CLEAN]["end"]
        offsets = offsets or [row["physicalOffset"] for row in rows]
        assert [row["physicalOffset"] for row in rows] == offsets
        if kind is TableFormat.DELTA:
            assert table_offsets(lake, kind) == offsets


def test_files_of_settings_are_read(read_only: Path) -> None:
    folder = read_only / "settings"
    settings = make_settings(read_properties(folder / "broker.conf"))
    assert settings.broker_role is BrokerRole.SYNC_MASTER
    assert settings.acl_enable
    assert make_settings(read_properties(folder / "master.conf")).broker_name == "broker-a"
    assert make_settings(read_properties(folder / "slave.conf")).broker_role is BrokerRole.SLAVE
    assert {each.credentials.access_key for each in parse_rules(read_yaml(folder / "plain_acl.yml")).accounts} == {
        "RocketMQ",
        "rocketmq2",
    }
    assert read_credentials(folder / "tools.yml").access_key == "rocketmq2"
    assert read_login(folder / "login").user == "rmqha"


def offsets_in(store: str, topic: str) -> set[tuple[int, int]]:
    """Queue and queue offset of each message of a topic that the store had."""
    queues: dict[str, list[int]] = KNOWN["stores"][store]["queues"]
    return {
        (int(name.rpartition("/")[2]), first + index)
        for name, (first, count) in queues.items()
        if name.startswith(f"{topic}/")
        for index in range(count)
    }


def serves(name_server: str, store: str, topic: str) -> bool:
    """Whether a client reads all messages of a topic that the store had. Delayed ones that are due since come after."""
    done = rmqha("pull", topic, f"--namesrv={name_server}", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["queueId"], row["queueOffset"]) for row in rows} >= offsets_in(store, topic)


@pytest.mark.process
def test_a_node_of_today_serves_the_store_of_a_killed_one(frozen: Path) -> None:
    with NameServerNode(frozen) as names:
        options = ["--role=async-master", "--name=broker-a", "--port=0", f"--namesrv={names.address}"]
        with TwistdNode(frozen, options, store=frozen / UNCLEAN) as node:
            for topic in ("Orders", "Bestellungen", "%DLQ%shipping"):
                wait_until(partial(serves, names.address, UNCLEAN, topic), f"all messages of {topic}")
            assert node.stop() == 0


@pytest.mark.process
def test_a_failover_pair_of_today_goes_on_with_its_stores_and_its_witness(frozen: Path) -> None:
    (frozen / "witness").rename(frozen / "kept")
    work = frozen / "work"
    shutil.copytree(frozen / "kept", work / "witness")
    for name in "ab":
        shutil.copytree(frozen / f"member-{name}", work / f"{name}-store")
    with running_cluster(work) as cluster:
        kept = KNOWN["cluster"]["epoch"]  # the state that the old leader left says that it leads
        wait_until(
            lambda: any(m.leads and int(m.failover["epoch"]) > kept for m in cluster.members.values()), "a leader"
        )
        wait_until(
            lambda: serves(cluster.name_server, "member-b", "Failover"),
            "all messages that the old pair had answered",
        )
