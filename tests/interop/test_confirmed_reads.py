"""Java consumers of a pair of ours with readUpTo=confirmed: they read what the slave holds, and nothing that is cut."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode
from rmqha.testing.proxy import FaultProxy
from tests.commands import output_of
from tests.freezing import frozen
from tests.interop.conftest import OurBrokerFactory, start_our_broker
from tests.interop.nodes import OurBroker, log_end_of
from tests.interop.our_clients import OurClients
from tests.interop.rocketmq import ClientsRun, Driver, sha256_of_message
from tests.interop.test_failover import BODY_BYTES, QUEUES, TOPIC, consumer, wait_for_topics
from tests.interop.test_promotion import promote
from tests.waiting import wait_until

pytestmark = pytest.mark.story

FIRST, SECOND = 40, 60
CONFIRMED, HELD, LOST, AFTER = range(40), range(40, 64), range(64, 100), range(100, 160)
"""Messages of a failover: the slave reports them, has them and cannot say so, never gets them; then the new ones."""
KEPT = (*CONFIRMED, *HELD, *AFTER)
SEND_TIMEOUT_MS = 120_000
"""A busy machine may be slow: no send is to fail."""


def waits(master: OurBroker, count: int) -> bool:
    """Whether the master says that so many messages wait for a slave."""
    state = master.state()
    return state is not None and state.reads is not None and state.reads["waitingMessages"] == count


@pytest.mark.java
def test_a_push_consumer_reads_what_the_slave_holds(our_broker: OurBrokerFactory, driver: Driver) -> None:
    master = our_broker("async-master", readUpTo="confirmed")
    slave = our_broker("slave", master=master, readUpTo="confirmed")
    driver.create_topic(master.cluster, TOPIC, QUEUES)
    wait_for_topics(slave)
    with consumer(driver, "GConfirmed") as running:
        assert driver.send(TOPIC, FIRST, BODY_BYTES, send_timeout_ms=SEND_TIMEOUT_MS).statuses == {"SEND_OK": FIRST}
        wait_until(lambda: len(set(running.consumed())) == FIRST, "the first messages")
        with frozen(slave.pid):
            sent = driver.send(TOPIC, SECOND, BODY_BYTES, first=FIRST, send_timeout_ms=SEND_TIMEOUT_MS)
            assert sent.statuses == {"SEND_OK": SECOND}
            wait_until(lambda: waits(master, SECOND), "the master to say that messages wait")
            assert len(set(running.consumed())) == FIRST
            ends = driver.queue_ends(TOPIC)[TOPIC]
            assert sum(high for _, high in ends.values()) == FIRST
        wait_until(lambda: len(set(running.consumed())) == FIRST + SECOND, "the messages that waited")
        report = running.stop()
    bodies = [message["body_sha256"] for message in report.received["GConfirmed"]]
    assert sorted(bodies) == sorted(sha256_of_message(number, BODY_BYTES) for number in range(FIRST + SECOND))


Send = Callable[[range], None]


def lose_the_master(
    start: Callable[..., OurBroker], make_topic: Send, send: Send, seen: Callable[[], set[str]]
) -> None:
    """A master dies with messages that its slave does not have; the slave is promoted, and the old master follows it.

    ``seen`` gives what the consumer has had so far.
    """
    # The slave is silent while HELD is sent, and must not look like one that has gone.
    master = start("async-master", readUpTo="confirmed", haHousekeepingInterval=600_000)
    with FaultProxy(master.ha_address) as line:
        way = (f"--master={line.address}", f"--master-remoting={master.address}")
        slave = start("slave", master=master, readUpTo="confirmed", options=way)
        make_topic(CONFIRMED)
        wait_for_topics(slave)
        wait_until(lambda: len(seen()) == len(CONFIRMED), "what is confirmed")
        line.command("up hold")
        send(HELD)
        slave.wait_for_offset(log_end_of(master.address))
        line.command("both hold")
        send(LOST)
        wait_until(lambda: waits(master, len(HELD) + len(LOST)), "the master to say that messages wait")
        assert len(seen()) == len(CONFIRMED)
        master.kill()
        line.command("accept refuse")
        line.command("cut rst")

        promote(slave, "async-master")
        told = json.loads(output_of("rewind", master.store, "--to", slave.ha_address, "--json"))
        assert told["messages"] == {TOPIC: len(LOST)}
        options = {"store": master.store, "listen_port": master.listen_port, "readUpTo": "confirmed"}
        start("slave", master=slave, **options).wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        send(AFTER)
        wait_until(lambda: len(seen()) >= len(KEPT), "what came through the failover")


def assert_each_place_has_one_message(messages: Iterable[tuple[int, int, str]]) -> None:
    """Nothing that was seen was replaced: given are queue ids, queue offsets, and what was there."""
    places = defaultdict(set)
    for queue_id, offset, message in messages:
        places[queue_id, offset].add(message)
    assert {place: own for place, own in places.items() if len(own) > 1} == {}


@pytest.mark.process
def test_a_consumer_never_sees_what_a_failover_cuts_and_goes_on_after_it(tmp_path: Path) -> None:
    """With our own consumer, which a dead master does not hold up."""
    with ExitStack() as stack:
        name_server = stack.enter_context(NameServerNode(tmp_path))
        spec = {"name": "consumer", "group": "GCut", "topic": TOPIC, "kind": "concurrent"}
        ours = OurClients(tmp_path / "consumer", name_server.address, consumers=[spec])

        def start(role: str, **options: Any) -> OurBroker:
            names = {"name": "broker-cut", "cluster": "cluster-cut"}
            return start_our_broker(name_server, stack, tmp_path, role, **names, **options)

        def send(numbers: range) -> None:
            name = f"from-{numbers.start}"
            producer = {"name": name, "topic": TOPIC, "kind": "sync", "count": len(numbers)}
            with OurClients(tmp_path / name, name_server.address, producers=[producer]) as sending:
                sending.wait_for("produced")
                sent = sending.stop()["sent"][name]
            assert [message["status"] for message in sent] == ["SEND_OK"] * len(numbers)

        def make_topic(numbers: range) -> None:
            send(numbers)
            stack.enter_context(ours)

        lose_the_master(start, make_topic, send, lambda: ours.keys_of("consumer"))
        received = ours.stop()["received"]["consumer"]
    batches = (CONFIRMED, HELD, AFTER)
    expected = {f"from-{numbers.start}-{number}" for numbers in batches for number in range(len(numbers))}
    assert {message["keys"] for message in received} == expected
    assert_each_place_has_one_message((one["queue_id"], one["queue_offset"], one["keys"]) for one in received)


@pytest.mark.java
@pytest.mark.proof
def test_a_java_push_consumer_never_sees_what_a_failover_cuts(our_broker: OurBrokerFactory, driver: Driver) -> None:
    """The long form: Java's pulls at the dead master end only after 30 s."""
    with ExitStack() as stack:
        runs: list[ClientsRun] = []

        def make_topic(numbers: range) -> None:
            driver.create_topic("cluster-cut-java", TOPIC, QUEUES)
            runs.append(stack.enter_context(consumer(driver, "GCut")))
            send(numbers)

        def send(numbers: range) -> None:
            count = len(numbers)
            report = driver.send(TOPIC, count, BODY_BYTES, first=numbers.start, send_timeout_ms=SEND_TIMEOUT_MS)
            assert report.statuses == {"SEND_OK": count}

        def start(role: str, **options: Any) -> OurBroker:
            return our_broker(role, name="broker-cut-java", cluster="cluster-cut-java", **options)

        lose_the_master(start, make_topic, send, lambda: set(runs[0].consumed()))
        received = runs[0].stop().received["GCut"]
    assert {m["body_sha256"] for m in received} == {sha256_of_message(number, BODY_BYTES) for number in KEPT}
    assert_each_place_has_one_message((m["queue_id"], m["queue_offset"], m["body_sha256"]) for m in received)
