"""Java consumers of a pair of ours with readUpTo=confirmed: they read what the slave holds."""

from __future__ import annotations

import pytest

from tests.freezing import frozen
from tests.interop.conftest import OurBrokerFactory
from tests.interop.nodes import OurBroker
from tests.interop.rocketmq import Driver, sha256_of_message
from tests.interop.test_failover import BODY_BYTES, QUEUES, TOPIC, consumer, wait_for_topics
from tests.waiting import wait_until

FIRST, SECOND = 40, 60
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
