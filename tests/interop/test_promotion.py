"""The day the master dies, with Java clients at work: our slave is promoted, they go on, the old master comes back.

One pair is ours; it does so twice around. In the other one the master is a Java broker, which comes back as a stock
Java slave of our node, on its own store.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from rmqha.store.metadata import CONFIG_FOLDER, ConsumerOffsetTable
from rmqha.testing.nodes import NameServerNode
from tests.commands import output_of
from tests.interop.conftest import MasterFactory, SlaveFactory, start_our_broker
from tests.interop.nodes import OurBroker, assert_equal_logs
from tests.interop.rocketmq import Broker, ClientsReport, ClientsRun, Driver, NameServer
from tests.interop.test_failover import wait_for_topics
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.story

QUEUES: Final = 4
WORK, ORDERED, DELAYED, TRANSACTIONS = "TPromoteWork", "TPromoteOrdered", "TPromoteDelayed", "TPromoteTransactions"
TOPICS: Final = {WORK: QUEUES, ORDERED: QUEUES, DELAYED: QUEUES, TRANSACTIONS: QUEUES}
MORE: Final = 40
"""How many more messages each producer sends before something else happens."""
QUICK: Final[dict[str, Any]] = {
    "messageDelayLevel": "1s 2s 3s 4s",
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 10_000,  # else a check overtakes a slow producer, and both commit
}
PRODUCERS: Final[Sequence[Mapping[str, Any]]] = tuple(
    {"name": name, "topic": topic, "kind": kind, "count": 0, "pause_ms": 20, "timeout_ms": 3000, "delays": delays}
    for name, topic, kind, delays in (
        ("sync", WORK, "sync", None),
        ("ordered", ORDERED, "orderly", None),
        ("delay", DELAYED, "delay", [1, 2]),
        ("transaction", TRANSACTIONS, "transaction", None),
    )
)
CONSUMERS: Final = tuple(
    {"name": name, "group": group, "topic": topic, "kind": kind}
    for name, group, topic, kind in (
        ("cluster-1", "GPromoteCluster", WORK, "concurrent"),
        ("cluster-2", "GPromoteCluster", WORK, "concurrent"),
        ("broadcast", "GPromoteBroadcast", WORK, "broadcasting"),
        ("orderly", "GPromoteOrderly", ORDERED, "orderly"),
        ("of-delay", "GPromoteDelay", DELAYED, "concurrent"),
        ("of-transaction", "GPromoteTransaction", TRANSACTIONS, "concurrent"),
    )
)


class Flow(NamedTuple):
    """A producer, and the consumers of one group that share or repeat what it sends."""

    producer: str
    consumers: tuple[str, ...]
    group: str
    topic: str
    answers_tell_places: bool
    """Whether SEND_OK names the place where a consumer finds the message."""


FLOWS: Final = (
    Flow("sync", ("cluster-1", "cluster-2"), "GPromoteCluster", WORK, True),
    Flow("sync", ("broadcast",), "GPromoteBroadcast", WORK, True),
    Flow("ordered", ("orderly",), "GPromoteOrderly", ORDERED, True),
    Flow("delay", ("of-delay",), "GPromoteDelay", DELAYED, False),
    Flow("transaction", ("of-transaction",), "GPromoteTransaction", TRANSACTIONS, False),
)
WITHOUT_CHECKS: Final = FLOWS[:4]
"""Those that need no answer of a producer after its last message."""
SHARED: Final = tuple(flow for flow in FLOWS if flow.consumers != ("broadcast",))
"""Those whose consumers go on, after a restart, where the broker knows that they were."""


def start_producers(driver: Driver, consumers: ClientsRun) -> ClientsRun:
    """They send when these consumers have their queues: what a queue gets while it changes hands may come twice."""
    consumers.wait_until_ready()
    return driver.start_clients({"topics": {}, "producers": PRODUCERS, "consumers": [], "until": [], "seconds": 10**6})


def start_consumers(driver: Driver, consumers: Sequence[Mapping[str, Any]] = CONSUMERS) -> ClientsRun:
    until = [[[consumers[0]["name"]], 10**9]]
    return driver.start_clients({"topics": TOPICS, "consumers": consumers, "until": until, "seconds": 10**6})


def must_come(key: str) -> bool:
    """Whether a message that was answered SEND_OK must be consumed: not if its transaction is rolled back."""
    producer, _, number = key.rpartition("-")
    return producer != "transaction" or int(number) % 5 in (0, 3, 4)


class Clients:
    """Producers that go on until the end, and the runs of consumers, one after another."""

    def __init__(self, producers: ClientsRun, consumers: ClientsRun, may_be_taken_back: bool = False) -> None:
        """``may_be_taken_back`` says whether the brokers let consumers read what a failover may take back."""
        self.producers = producers
        self._may_be_taken_back = may_be_taken_back
        self.runs = [consumers]
        self.reports: list[ClientsReport] = []

    def wait_for_sends(self, count: int = MORE) -> None:
        """Wait until each producer has got so many more SEND_OK."""
        before = {spec["name"]: len(self.producers.consumed(spec["name"])) for spec in PRODUCERS}
        for name, known in before.items():
            wait_until(lambda: len(self.producers.consumed(name)) >= known + count, f"{count} SEND_OK of {name}")  # noqa: B023

    def wait_for_consumed(self, flows: Sequence[Flow] = FLOWS) -> None:
        """Wait until all that was promised by now is consumed by each group."""
        for flow in flows:
            promised = {
                (key, (queue_id, offset))
                for key, queue_id, offset in self.producers.noted(flow.producer)
                if must_come(key)
            }
            wait_until(lambda: not self.missing(flow, promised), f"{flow.group} to have all that was promised")  # noqa: B023

    def missing(self, flow: Flow, promised: set[tuple[str, tuple[int, int]]]) -> set[str]:
        """What these consumers have not consumed, of what was promised.

        Where a consumer had a message that a failover took back, it misses the one that has the place now.
        """
        noted = [row for run in self.runs for row in run.noted(*flow.consumers)]
        had = {key for key, _, _ in noted}
        has_places = self._may_be_taken_back and flow.answers_tell_places
        places = {(queue_id, offset) for _, queue_id, offset in noted} if has_places else set()
        return {key for key, place in promised if key not in had and place not in places}

    def stop_consumers(self) -> None:
        self.reports.append(self.runs[-1].stop())

    def received(self, flow: Flow) -> list[Mapping[str, Any]]:
        return [message for report in self.reports for name in flow.consumers for message in report.received[name]]


def copied_offsets(slave: OurBroker) -> Mapping[str, Mapping[int, int]]:
    """The consumer offsets that a slave has, as soon as it has some of each queue that groups share."""

    def look() -> Mapping[str, Mapping[int, int]] | None:
        own = ConsumerOffsetTable.read(slave.store / CONFIG_FOLDER).offset_table
        groups = [own.get(f"{flow.topic}@{flow.group}", {}) for flow in SHARED]
        return own if all(group.get(queue_id, 0) > 0 for group in groups for queue_id in range(QUEUES)) else None

    return slave.wait_until_found(look, "an offset of each group in each queue", WAIT_SECONDS)


def assert_repeats_are_few(clients: Clients, promotions: Sequence[tuple[Mapping[str, Any], Any]]) -> None:
    """Repeated are only messages past the offsets that a promoted slave had, and those that delay or checks redo."""
    for flow in SHARED:
        times = Counter((one["queue_id"], one["queue_offset"]) for one in clients.received(flow))
        again = {place for place, count in times.items() if count > 1}
        first = [offsets.get(f"{flow.topic}@{flow.group}", {}) for _, offsets in promotions]
        for queue_id, offset in again:
            assert any(offset >= known.get(queue_id, 0) for known in first), (flow, queue_id, offset, first)
    for flow, name in ((FLOWS[3], "delayedMessages"), (FLOWS[4], "halfMessages")):
        places = defaultdict(set)
        for message in clients.received(flow):
            places[message["properties"]["UNIQ_KEY"]].add((message["queue_id"], message["queue_offset"]))
        redone = sum(len(own) - 1 for own in places.values())
        assert redone <= sum(int(told[name]) for told, _ in promotions)


def assert_in_order(clients: Clients) -> None:
    """The orderly consumer saw each queue in its order; after a failover it may have gone back, to go on in order."""
    for report in clients.reports:
        newest: dict[int, int] = defaultdict(lambda: -1)
        for message in report.received["orderly"]:
            queue_id, offset = message["queue_id"], message["queue_offset"]
            assert offset <= newest[queue_id] + 1 or newest[queue_id] < 0, (queue_id, offset, newest[queue_id])
            newest[queue_id] = offset


def assert_gapless(store: Path) -> None:
    """Each queue has the offsets from 0 to its end, each once."""
    queues = defaultdict(list)
    for topic in TOPICS:
        for line in output_of("dump", store, "--json", "--topic", topic).splitlines():
            record = json.loads(line)
            queues[record["topic"], record["queueId"]].append(record["queueOffset"])
    assert {topic for topic, _ in queues} == set(TOPICS)
    for queue, offsets in queues.items():
        assert offsets == list(range(len(offsets))), queue


def promote(slave: OurBroker, role: str) -> dict[str, Any]:
    """Promote it, whose master is dead; what the command tells."""
    slave.wait_for_state(lambda state: state.state == "CONNECTING", "CONNECTING")
    told: dict[str, Any] = json.loads(output_of("promote", slave.store, "--to", role, "--json"))
    assert told["applied"]
    return told


def fail_over(master: OurBroker | Broker, slave: OurBroker, role: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Kill the master and promote its slave; what the command tells, and the consumer offsets that the slave had.

    They are read before the kill: then consumers go on at the slave. Who gets a queue starts where the slave knows,
    and who had it commits more to the slave a moment later.
    """
    known = copied_offsets(slave)
    master.kill()
    return promote(slave, role), known


def end_of(node: OurBroker) -> int:
    return int(json.loads(output_of("status", node.address, "--json"))["verified"])


@pytest.mark.java
def test_our_pair_changes_roles_twice_under_java_clients(
    namesrv: NameServer, driver: Driver, java_brokers: ExitStack, tmp_path: Path
) -> None:
    names: dict[str, Any] = {"name": "broker-promote", "cluster": "cluster-promote", "readUpTo": "confirmed", **QUICK}

    def broker(role: str, master: OurBroker | None = None, **options: Any) -> OurBroker:
        return start_our_broker(namesrv, java_brokers, tmp_path, role, master=master, **{**names, **options})

    first = broker("sync-master")
    second = broker("slave", first)
    driver.create_topics(first.cluster, TOPICS)
    wait_for_topics(second, TOPICS)
    with start_consumers(driver) as running, start_producers(driver, running) as producing:
        clients = Clients(producing, running)
        clients.wait_for_sends()
        promotions = [fail_over(first, second, "sync-master")]
        told = json.loads(output_of("rewind", first.store, "--to", second.ha_address, "--json"))
        assert told["offset"] == promotions[0][0]["end"]
        third = broker("slave", second, store=first.store, listen_port=first.listen_port)
        clients.wait_for_sends()  # a SYNC_MASTER: SEND_OK needs the old master as its slave
        clients.wait_for_consumed()
        clients.stop_consumers()

        clients.wait_for_sends()
        promotions.append(fail_over(second, third, "async-master"))
        with start_consumers(driver) as later:
            clients.runs.append(later)
            output_of("rewind", second.store, "--to", third.ha_address)
            fourth = broker("slave", third, store=second.store, listen_port=second.listen_port)
            clients.wait_for_sends()
            clients.wait_for_consumed()
            producing.stop()
            clients.wait_for_consumed(WITHOUT_CHECKS)
            clients.stop_consumers()
    assert_repeats_are_few(clients, promotions)
    assert_in_order(clients)
    assert not [key for run in clients.runs for key in run.consumed("of-transaction") if not must_come(key)]
    third.stop_cleanly()
    fourth.stop_cleanly()
    assert_gapless(third.store)
    assert "identical" in output_of("verify", fourth.store, "--against", third.store)


@pytest.mark.java
def test_our_slave_takes_over_from_a_java_master_which_comes_back_as_a_java_slave(
    our_namesrv: NameServerNode,
    our_driver: Driver,
    java_master: MasterFactory,
    java_slave: SlaveFactory,
    java_brokers: ExitStack,
    tmp_path: Path,
) -> None:
    master = java_master(role="SYNC_MASTER", namesrv=our_namesrv.address, **QUICK)
    slave = start_our_broker(our_namesrv, java_brokers, tmp_path, "slave", master=master, **QUICK)
    our_driver.create_topics(master.cluster, TOPICS)
    wait_for_topics(slave, TOPICS)
    with start_consumers(our_driver) as running, start_producers(our_driver, running) as producing:
        clients = Clients(producing, running, may_be_taken_back=True)
        clients.wait_for_sends()
        promotions = [fail_over(master, slave, "sync-master")]
        conf = master.work / "conf" / "main.conf"  # it says how long messages are delayed
        output_of("rewind", master.store, "--to", slave.ha_address, "--conf", conf)
        back = java_slave(
            store=master.store,
            ha_master=slave.ha_address,
            name=master.name,
            cluster=master.cluster,
            namesrv=our_namesrv.address,
            haSendHeartbeatInterval=1000,
            **QUICK,
        )
        clients.wait_for_sends()  # a SYNC_MASTER: SEND_OK needs the Java slave
        clients.wait_for_consumed()
        producing.stop()
        clients.wait_for_consumed(WITHOUT_CHECKS)
        clients.stop_consumers()
    assert_repeats_are_few(clients, promotions)
    assert not [key for key in running.consumed("of-transaction") if not must_come(key)]
    slave.wait_for_state(lambda state: state.offsets.flushed == state.offsets.written, "a flushed log")
    end = end_of(slave)
    back.wait_for_offset(end)
    assert_equal_logs(back.store, slave.store, 0, end)
    back.stop()
    slave.stop_cleanly()
    assert_gapless(slave.store)
    assert "identical" in output_of("verify", back.store, "--against", slave.store, "--conf", conf)
