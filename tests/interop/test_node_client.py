"""A Node client, npm's `ali-ons`, with a name server and brokers of ours. It has no batches and no transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.client_stories import COMPRESSED_BYTES, ClientStories, stories_with_topic
from tests.interop.nodeclient import missing_tools, node_client
from tests.interop.otherclient import BODY_BYTES, ClientProgram
from tests.needs import need

pytestmark = [pytest.mark.process, pytest.mark.story]

TOPIC = "TNode"


@pytest.fixture(scope="module")
def program() -> ClientProgram:
    """The client: without Node or npm tests are skipped, but on CI they fail."""
    need(missing_tools())
    return node_client()


@pytest.fixture
def node(program: ClientProgram, tmp_path: Path) -> Iterator[ClientStories]:
    """The client, with a SYNC_MASTER of ours, its slave, and a topic: this client sends to no new one."""
    with stories_with_topic(tmp_path, program, TOPIC) as stories:
        yield stories


@pytest.mark.parametrize(
    ("mode", "body_bytes"),
    [("sync", BODY_BYTES), ("async", BODY_BYTES), ("delay", BODY_BYTES), ("sync", COMPRESSED_BYTES)],
)
def test_what_it_sends_it_gets_once_and_as_it_was(mode: str, body_bytes: int, node: ClientStories) -> None:
    # The schedule's log has another place for a delayed message, and its id tells the place.
    node.send_and_consume(mode, body_bytes=body_bytes, same_ids=mode != "delay")


@pytest.mark.parametrize("tags", ["tag1 || tag3", "sql:TAGS = 'tag1' OR TAGS = 'tag3'"])
def test_a_consumer_gets_what_it_asks_for_and_nothing_else(tags: str, node: ClientStories) -> None:
    node.consume_some(tags)


def test_of_a_group_each_member_has_a_share(node: ClientStories) -> None:
    node.share()


def test_of_a_broadcast_each_consumer_gets_all(node: ClientStories) -> None:
    node.broadcast()


def test_a_message_that_fails_is_tried_again(node: ClientStories) -> None:
    node.try_again()


def test_it_reads_from_the_slave_when_the_master_is_killed(node: ClientStories) -> None:
    node.read_from_slave()


def test_it_goes_on_when_our_slave_is_promoted(node: ClientStories) -> None:
    node.go_on_with_promoted_slave()
