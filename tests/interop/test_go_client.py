"""The official Go client with a name server and a broker of ours: every message exactly as sent, and none missing."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rmqha.events import Event
from rmqha.testing.nodes import NameServerNode, TwistdNode
from tests.interop.goclient import Consumers, go_client, go_compiler, produce
from tests.interop.nodes import OurBroker
from tests.interop.rocketmq import message_body
from tests.needs import need

pytestmark = [pytest.mark.process, pytest.mark.story]

TOPIC = "TGo"
COUNT = 200
BODY_BYTES = 700
ROUND = 8
"""Two messages for each queue of a topic made in sending."""


@pytest.fixture(scope="module")
def built() -> None:
    """The client: without a compiler tests are skipped, but on CI they fail."""
    need(None if go_compiler() else "no Go compiler")
    go_client()


@pytest.fixture
def namesrv(built: None, tmp_path: Path) -> Iterator[str]:
    """The address of a name server of ours that knows a SYNC_MASTER and its slave."""
    with NameServerNode(tmp_path) as name_server:
        master = OurBroker(tmp_path, "sync-master", name_server.address, node_name="master")
        with master:
            slave = OurBroker(tmp_path, "slave", name_server.address, master=master, node_name="slave")
            with slave:
                wait_for_sync(slave)
                yield name_server.address


def wait_for_sync(slave: TwistdNode) -> None:
    """Wait until what a producer sends can be replicated."""
    slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")


def expected(number: int) -> tuple[bytes, str, str, str]:
    """Body, tags, keys and the property of message `number`."""
    return message_body(number, BODY_BYTES), f"tag{number % 4}", f"k{number}", str(number)


def as_sent(message: dict[str, Any]) -> tuple[bytes, str, str, str]:
    """The same of a message that came."""
    return base64.b64decode(message["body"]), message["tags"], message["keys"], message["properties"]["number"]


@pytest.mark.parametrize("mode", ["sync", "async", "batch"])
def test_what_a_go_producer_sends_a_go_consumer_gets_once_and_as_it_was(
    mode: str, namesrv: str, tmp_path: Path
) -> None:
    answers = produce(namesrv, TOPIC, mode, range(COUNT), BODY_BYTES)
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    messages = consume_all(namesrv, tmp_path)
    if mode != "batch":
        assert sorted(answer["msg_id"] for answer in answers) == sorted(message["msg_id"] for message in messages)


def test_nor_is_anything_lost_that_it_sends_without_waiting_for_answers(namesrv: str, tmp_path: Path) -> None:
    (last,) = produce(namesrv, TOPIC, "oneway", range(COUNT), BODY_BYTES)
    assert last["status"] == "SEND_OK"
    consume_all(namesrv, tmp_path)


def consume_all(namesrv: str, work: Path) -> list[dict[str, Any]]:
    """All messages are there, each once and at the first try."""
    with Consumers(work, namesrv, TOPIC, "g-all") as consumers:
        messages = consumers.wait_for(COUNT)
    assert sorted(map(as_sent, messages)) == sorted(map(expected, range(COUNT)))
    assert {message["reconsumed"] for message in messages} == {0}
    return messages


def test_a_go_consumer_gets_the_tags_it_asks_for_and_no_others(namesrv: str, tmp_path: Path) -> None:
    produce(namesrv, TOPIC, "sync", range(COUNT), BODY_BYTES)
    wanted = [number for number in range(COUNT) if number % 4 in (1, 3)]
    with Consumers(tmp_path, namesrv, TOPIC, "g-tags", "tag1 || tag3") as consumers:
        assert sorted(map(as_sent, consumers.wait_for(len(wanted)))) == sorted(map(expected, wanted))


def test_what_comes_while_go_consumers_wait_is_theirs_at_once_and_each_has_a_share(
    namesrv: str, tmp_path: Path
) -> None:
    """Two members of a group: while queues change hands a message may come twice, but none is left out."""
    produce(namesrv, TOPIC, "sync", range(ROUND), BODY_BYTES)
    with Consumers(tmp_path, namesrv, TOPIC, "g-members", members=2) as consumers:
        for start in count(ROUND, ROUND):
            messages = consumers.wait_for(start)
            if len(Counter(message["member"] for message in messages)) == 2:
                break
            assert start < 10 * COUNT, "the second member gets nothing"
            produce(namesrv, TOPIC, "sync", range(start, start + ROUND), BODY_BYTES)
    assert set(map(as_sent, messages)) == set(map(expected, range(start)))
