"""Whole pages of docs/, typed from top to bottom in a fresh folder, with real nodes."""

import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.needs import need
from tests.pages import shell_blocks
from tests.reader import Reader

pytestmark = pytest.mark.process


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    found = Reader(tmp_path_factory.mktemp("folder"))
    try:
        yield found
        found.stops()
    finally:
        found.kills()


def a_broker(reader: Reader) -> None:
    """A master with some messages, which stands for the reader's broker-a."""
    reader.starts("twistd -n --pidfile= rmqha --role=async-master --store=/data/master --port=10911", reader.master)
    reader.runs("rmqha put TopicTest hello --keys=order-17 --count=200 --broker=127.0.0.1:10911")


def a_pair(reader: Reader) -> None:
    """A name server, broker-a, and its slave, which stands for the reader's broker-b."""
    reader.starts("twistd -n --pidfile= rmqha-namesrv", reader.name_server)
    a_broker(reader)
    slave = "twistd -n --pidfile= rmqha --role=slave --master=127.0.0.1:10912 --store=/data/replica --port=10921"
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")


def a_pair_and_a_configuration(reader: Reader) -> None:
    """And the store and the broker.conf of a slave on this machine."""
    a_pair(reader)
    (reader.folder / "slave").symlink_to("replica")
    (reader.folder / "broker.conf").write_text("brokerClusterName=DefaultCluster\n")


def tools(reader: Reader) -> None:
    """What the pages use besides rmqha."""
    for tool in ("curl", "promtool"):
        need(None if shutil.which(tool) else f"{tool} is missing")


STORIES: dict[str, Callable[[Reader], None]] = {
    "checks": a_pair_and_a_configuration,
    "copy": a_broker,
    "faq": a_pair,
    "observability": tools,
}
"""Pages by name, with what is there before their first command."""


@pytest.mark.parametrize("page", STORIES)
def test_a_page_typed_from_top_to_bottom(reader: Reader, page: str) -> None:
    blocks = [block for block in shell_blocks() if block.page == page and block.not_run is None]
    assert blocks
    STORIES[page](reader)
    for block in blocks:
        reader.types(block)
