"""The official Go client with a name server and a broker of ours: every message exactly as sent, and none missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.interop.goclient import go_client, go_compiler
from tests.interop.otherclient import BODY_BYTES, ClientProgram, as_sent, message_of, our_pair
from tests.needs import need

pytestmark = [pytest.mark.process, pytest.mark.story]

TOPIC = "TGo"
COUNT = 200
ROUND = 8
"""Two messages for each queue of a topic made in sending."""


@pytest.fixture(scope="module")
def go() -> ClientProgram:
    """The client: without a compiler tests are skipped, but on CI they fail."""
    need(None if go_compiler() else "no Go compiler")
    return go_client()


@pytest.fixture
def namesrv(go: ClientProgram, tmp_path: Path) -> Iterator[str]:
    """The address of a name server of ours that knows a SYNC_MASTER and its slave."""
    with our_pair(tmp_path) as pair:
        yield pair.namesrv


@pytest.mark.parametrize("mode", ["sync", "async", "batch"])
def test_what_a_go_producer_sends_a_go_consumer_gets_once_and_as_it_was(
    mode: str, go: ClientProgram, namesrv: str, tmp_path: Path
) -> None:
    answers = go.produce(namesrv, TOPIC, mode, range(COUNT), BODY_BYTES)
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    messages = consume_all(go, namesrv, tmp_path)
    if mode != "batch":
        assert sorted(answer["msg_id"] for answer in answers) == sorted(message["msg_id"] for message in messages)


def test_nor_is_anything_lost_that_it_sends_without_waiting_for_answers(
    go: ClientProgram, namesrv: str, tmp_path: Path
) -> None:
    (last,) = go.produce(namesrv, TOPIC, "oneway", range(COUNT), BODY_BYTES)
    assert last["status"] == "SEND_OK"
    consume_all(go, namesrv, tmp_path)


def consume_all(go: ClientProgram, namesrv: str, work: Path) -> list[dict[str, Any]]:
    """All messages are there, each once and at the first try."""
    with go.consumers(work, namesrv, TOPIC, "g-all") as consumers:
        messages = consumers.wait_for(COUNT)
    assert sorted(map(as_sent, messages)) == sorted(map(message_of, range(COUNT)))
    assert {message["reconsumed"] for message in messages} == {0}
    return messages


def test_a_go_consumer_gets_the_tags_it_asks_for_and_no_others(go: ClientProgram, namesrv: str, tmp_path: Path) -> None:
    go.produce(namesrv, TOPIC, "sync", range(COUNT), BODY_BYTES)
    wanted = [number for number in range(COUNT) if number % 4 in (1, 3)]
    with go.consumers(tmp_path, namesrv, TOPIC, "g-tags", "tag1 || tag3") as consumers:
        assert sorted(map(as_sent, consumers.wait_for(len(wanted)))) == sorted(map(message_of, wanted))


def test_what_comes_while_go_consumers_wait_is_theirs_at_once_and_each_has_a_share(
    go: ClientProgram, namesrv: str, tmp_path: Path
) -> None:
    """Two members of a group: while queues change hands a message may come twice, but none is left out."""
    go.produce(namesrv, TOPIC, "sync", range(ROUND), BODY_BYTES)
    with go.consumers(tmp_path, namesrv, TOPIC, "g-members", members=2) as consumers:
        for start in count(ROUND, ROUND):
            messages = consumers.wait_for(start)
            if len(Counter(message["member"] for message in messages)) == 2:
                break
            assert start < 10 * COUNT, "the second member gets nothing"
            go.produce(namesrv, TOPIC, "sync", range(start, start + ROUND), BODY_BYTES)
    assert set(map(as_sent, messages)) == set(map(message_of, range(start)))
