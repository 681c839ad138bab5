"""The official C++ client with a name server and brokers of ours. Its C interface has no transactions, and no SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.client_stories import COMPRESSED_BYTES, NUMBERS, ClientStories, stories_with_topic
from tests.interop.cppclient import cpp_client, cpp_problem
from tests.interop.otherclient import BODY_BYTES, ClientProgram
from tests.needs import need

pytestmark = [pytest.mark.process, pytest.mark.story]

TOPIC = "TCpp"


@pytest.fixture(scope="module")
def program() -> ClientProgram:
    """The client: on machines that its library is not built for tests are skipped, but on CI they fail."""
    need(cpp_problem())
    return cpp_client()


@pytest.fixture
def cpp(program: ClientProgram, tmp_path: Path) -> Iterator[ClientStories]:
    """The client, with a SYNC_MASTER of ours, its slave, and a topic."""
    with stories_with_topic(tmp_path, program, TOPIC) as stories:
        yield stories


@pytest.mark.parametrize(
    ("mode", "body_bytes"),
    [("sync", BODY_BYTES), ("async", BODY_BYTES), ("delay", BODY_BYTES), ("sync", COMPRESSED_BYTES)],
)
def test_what_it_sends_it_gets_once_and_as_it_was(mode: str, body_bytes: int, cpp: ClientStories) -> None:
    messages = cpp.send_and_consume(mode, body_bytes=body_bytes)
    assert {message["stored_bytes"] < body_bytes for message in messages} == {body_bytes == COMPRESSED_BYTES}


def test_nor_is_anything_lost_that_it_sends_without_waiting_for_answers(cpp: ClientStories) -> None:
    cpp.send_one_way()


def test_a_batch_of_this_client_is_one_message_as_with_java(cpp: ClientStories) -> None:
    """It marks a batch by `batch=1`, which Java does not take for true: the body of the one message is the batch's."""
    answers = cpp.produce("batch")
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    with cpp.consumers("g-batches") as consumers:
        consumers.wait_until(lambda found: len(found) >= len(answers), "the batches")
        assert [message["keys"] for message in consumers.received()] == [""] * len(answers)


@pytest.mark.parametrize("members", ["orderly", "orderly-failing"])
def test_messages_of_a_key_keep_their_order(members: str, cpp: ClientStories) -> None:
    """Those of a key go to one queue. An orderly consumer that fails for a message gets it again before the next."""
    cpp.produce("ordered")
    with cpp.consumers("g-orderly", members=members) as consumers:
        messages = consumers.wait_for(len(NUMBERS))
    came, queues = defaultdict(list), defaultdict(set)
    for message in messages:
        came[message["tags"]].append(int(message["properties"]["number"]))
        queues[message["tags"]].add(message["queue"])
    assert came == {f"tag{key}": [number for number in NUMBERS if number % 4 == key] for key in range(4)}
    assert sorted(queue for found in queues.values() for queue in found) == [0, 1, 2, 3]


def test_a_consumer_gets_the_tags_it_asks_for_and_no_others(cpp: ClientStories) -> None:
    cpp.consume_some("tag1 || tag3")


def test_of_a_group_each_member_has_a_share(cpp: ClientStories) -> None:
    cpp.share()


def test_of_a_broadcast_each_consumer_gets_all(cpp: ClientStories) -> None:
    cpp.broadcast()


def test_a_message_that_fails_is_tried_again(cpp: ClientStories) -> None:
    cpp.try_again()


def test_it_reads_from_the_slave_when_the_master_is_killed(cpp: ClientStories) -> None:
    cpp.read_from_slave()


def test_it_goes_on_when_our_slave_is_promoted(cpp: ClientStories) -> None:
    cpp.go_on_with_promoted_slave()
