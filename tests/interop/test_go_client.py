"""The official Go client with a name server and a broker of ours: every message exactly as sent, and none missing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.interop.client_stories import ClientStories, stories_with_new_topic
from tests.interop.goclient import go_client, go_compiler
from tests.interop.otherclient import ClientProgram, as_sent, message_of
from tests.needs import need
from tests.waiting import WAIT_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.story]

TOPIC = "TGo"
NUMBERS = range(200)
ROUND = 8
"""Two messages for each queue of a topic made in sending."""


@pytest.fixture(scope="module")
def program() -> ClientProgram:
    """The client: without a compiler tests are skipped, but on CI they fail."""
    need(None if go_compiler() else "no Go compiler")
    return go_client()


@pytest.fixture
def go(program: ClientProgram, tmp_path: Path) -> Iterator[ClientStories]:
    """The client, with a SYNC_MASTER of ours and its slave."""
    with stories_with_new_topic(tmp_path, program, TOPIC) as stories:
        yield stories


@pytest.mark.parametrize("mode", ["sync", "async", "batch"])
def test_what_a_go_producer_sends_a_go_consumer_gets_once_and_as_it_was(mode: str, go: ClientStories) -> None:
    go.send_and_consume(mode, NUMBERS, same_ids=mode != "batch")


def test_nor_is_anything_lost_that_it_sends_without_waiting_for_answers(go: ClientStories) -> None:
    go.send_one_way(NUMBERS)


def test_a_go_consumer_gets_the_tags_it_asks_for_and_no_others(go: ClientStories) -> None:
    go.consume_some("tag1 || tag3", NUMBERS)


def test_what_comes_while_go_consumers_wait_is_theirs_at_once_and_each_has_a_share(go: ClientStories) -> None:
    """Two members of a group: while queues change hands a message may come twice, but none is left out."""
    go.produce("sync", range(ROUND))
    deadline = time.monotonic() + WAIT_SECONDS
    with go.consumers("g-members", members=2) as consumers:
        for start in count(ROUND, ROUND):
            messages = consumers.wait_for(start)
            if len(Counter(message["member"] for message in messages)) == 2:
                break
            assert time.monotonic() < deadline, "the second member gets nothing"
            go.produce("sync", range(start, start + ROUND))
    assert set(map(as_sent, messages)) == set(map(message_of, range(start)))
