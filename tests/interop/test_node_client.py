"""A Node client, npm's `ali-ons`, with a name server and brokers of ours. It has no batches and no transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqha.wire.command import RequestCode
from tests.interop.nodeclient import missing_tools, node_client
from tests.interop.nodes import ask
from tests.interop.otherclient import BODY_BYTES, ClientProgram, OurPair, as_sent, message_of, our_pair
from tests.interop.requests import any_answer
from tests.interop.test_acl import TOPIC as QUEUES
from tests.interop.test_failover import wait_for_topics
from tests.interop.test_promotion import promote
from tests.needs import need
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.story]

TOPIC = "TNode"
COUNT = 100
COMPRESSED_BYTES = 5000
"""The client compresses bodies from 4 KiB on."""
MORE = 20
NUMBERS = range(COUNT)


@pytest.fixture(scope="module")
def node() -> ClientProgram:
    """The client: without Node or npm tests are skipped, but on CI they fail."""
    need(missing_tools())
    return node_client()


@pytest.fixture
def pair(node: ClientProgram, tmp_path: Path) -> Iterator[OurPair]:
    """A SYNC_MASTER of ours, its slave, and their name server, with a topic: this client sends to no new one."""
    with our_pair(tmp_path, messageDelayLevel="1s 1s 1s 1s", enablePropertyFilter=True) as found:
        ask(found.master, RequestCode.UPDATE_AND_CREATE_TOPIC, QUEUES | {"topic": TOPIC})
        wait_for_topics(found.slave, [TOPIC])
        wait_until(lambda: has_route(found.namesrv), "the topic's route")
        yield found


def has_route(namesrv: str) -> bool:
    """Whether the name server knows the topic."""
    return any_answer(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).code == 0


@pytest.mark.parametrize(
    ("mode", "body_bytes"),
    [("sync", BODY_BYTES), ("async", BODY_BYTES), ("delay", BODY_BYTES), ("sync", COMPRESSED_BYTES)],
)
def test_what_it_sends_it_gets_once_and_as_it_was(
    mode: str, body_bytes: int, node: ClientProgram, pair: OurPair, tmp_path: Path
) -> None:
    answers = node.produce(pair.namesrv, TOPIC, mode, NUMBERS, body_bytes)
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    with node.consumers(tmp_path, pair.namesrv, TOPIC, "g-all") as consumers:
        messages = consumers.wait_for(COUNT)
    assert sorted(map(as_sent, messages)) == sorted(message_of(number, body_bytes) for number in NUMBERS)
    assert {message["reconsumed"] for message in messages} == {0}
    if mode != "delay":  # then the schedule's log has another place for it
        assert sorted(answer["msg_id"] for answer in answers) == sorted(message["msg_id"] for message in messages)


@pytest.mark.parametrize("tags", ["tag1 || tag3", "sql:TAGS = 'tag1' OR TAGS = 'tag3'"])
def test_a_consumer_gets_what_it_asks_for_and_nothing_else(
    tags: str, node: ClientProgram, pair: OurPair, tmp_path: Path
) -> None:
    node.produce(pair.namesrv, TOPIC, "sync", NUMBERS, BODY_BYTES)
    wanted = [number for number in NUMBERS if number % 4 in (1, 3)]
    with node.consumers(tmp_path, pair.namesrv, TOPIC, "g-tags", tags) as consumers:
        assert sorted(map(as_sent, consumers.wait_for(len(wanted)))) == sorted(map(message_of, wanted))


def test_of_a_group_each_member_has_a_share_and_of_a_broadcast_each_has_all(
    node: ClientProgram, pair: OurPair, tmp_path: Path
) -> None:
    node.produce(pair.namesrv, TOPIC, "sync", NUMBERS, BODY_BYTES)
    with (
        node.consumers(tmp_path, pair.namesrv, TOPIC, "g-broadcast", members="broadcast") as all_of_it,
        node.consumers(tmp_path, pair.namesrv, TOPIC, "g-members", members=2) as shares,
    ):
        all_of_it.wait_until(lambda found: len(found) >= 2 * COUNT, "all messages twice")
        assert Counter(message["member"] for message in all_of_it.received()) == {0: COUNT, 1: COUNT}
        shares.wait_for(COUNT)
        with node.producer(tmp_path, pair.namesrv, TOPIC, "steady", BODY_BYTES):
            shares.wait_until(lambda found: len({each["member"] for each in found}) == 2, "both members to get some")


def test_a_message_that_fails_is_tried_again(node: ClientProgram, pair: OurPair, tmp_path: Path) -> None:
    node.produce(pair.namesrv, TOPIC, "sync", NUMBERS, BODY_BYTES)
    with node.consumers(tmp_path, pair.namesrv, TOPIC, "g-failing", members="failing") as consumers:
        messages = consumers.wait_for(COUNT)
    assert {as_sent(message) for message in messages} == {message_of(number) for number in NUMBERS}
    assert {message["reconsumed"] for message in messages} == {1}


def test_it_reads_from_the_slave_when_the_master_is_killed(node: ClientProgram, pair: OurPair, tmp_path: Path) -> None:
    node.produce(pair.namesrv, TOPIC, "sync", range(1), BODY_BYTES)
    with node.consumers(tmp_path, pair.namesrv, TOPIC, "g-running") as running:
        running.wait_for(1)
        node.produce(pair.namesrv, TOPIC, "sync", NUMBERS, BODY_BYTES)
        pair.master.kill()
        with node.consumers(tmp_path, pair.namesrv, TOPIC, "g-late") as late:
            for consumers in (running, late):
                assert set(map(as_sent, consumers.wait_for(COUNT))) == set(map(message_of, NUMBERS))


def test_it_goes_on_when_our_slave_is_promoted(node: ClientProgram, pair: OurPair, tmp_path: Path) -> None:
    def accepted(found: list[dict[str, Any]]) -> set[str]:
        return {answer["keys"] for answer in found if answer["status"] == "SEND_OK"}

    with (
        node.producer(tmp_path, pair.namesrv, TOPIC, "steady", BODY_BYTES) as producer,
        node.consumers(tmp_path, pair.namesrv, TOPIC, "g-failover") as consumer,
    ):
        producer.wait_until(lambda found: len(accepted(found)) >= MORE, "messages to be sent")
        consumer.wait_for(MORE)
        pair.master.kill()
        promote(pair.slave, "async-master")
        before = len(accepted(producer.received()))
        producer.wait_until(lambda found: len(accepted(found)) >= before + MORE, "more messages to be sent")
        sent = accepted(producer.received())
        consumer.wait_until(lambda found: sent <= {message["keys"] for message in found}, "all that was sent")
