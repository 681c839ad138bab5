"""Whole pages of docs/, typed from top to bottom in a fresh folder, with real nodes."""

import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.needs import need
from tests.pages.pages import all_blocks, shell_blocks
from tests.pages.reader import Reader

pytestmark = [pytest.mark.process, pytest.mark.story]


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
    reader.waits_until_copied(reader.starts(slave, reader.slave), "/data/replica")


def a_pair_and_a_configuration(reader: Reader) -> None:
    """And the store and the broker.conf of a slave on this machine."""
    a_pair(reader)
    (reader.folder / "slave").symlink_to("replica")
    (reader.folder / "broker.conf").write_text("brokerClusterName=DefaultCluster\n")


def a_broker_with_accounts(reader: Reader) -> None:
    """A broker-a with the accounts of the page, one of which is that of a replica."""
    found = [block for block in all_blocks() if block.page == "acl" and block.language == "yaml"]
    tools_yml, plain_acl = ("\n".join(block.lines) for block in found)
    keys = "accessKey: administrator\nsecretKey: another-long-random-text\n"
    assert keys.replace("\n", "\n  ").strip() in plain_acl
    (reader.folder / "tools.yml").write_text(keys)
    (reader.folder / "conf").mkdir()
    replica = tools_yml.replace("accessKey", "- accessKey").replace("secretKey", "  secretKey")
    assert replica.strip() in plain_acl
    (reader.folder / "conf" / "plain_acl.yml").write_text(f"{plain_acl}\n")
    (reader.folder / "conf" / "broker.conf").write_text("aclEnable=true\n")
    master = "twistd -n --pidfile= rmqha --role=async-master --conf=conf/broker.conf --store=/data/master --port=10911"
    reader.starts(master, reader.master)


def nothing(_: Reader) -> None:
    """The page starts what it needs."""


def tools(reader: Reader) -> None:
    """What the pages use besides rmqha."""
    for tool in ("curl", "promtool"):
        need(None if shutil.which(tool) else f"{tool} is missing")


STORIES: dict[str, Callable[[Reader], None]] = {
    "acl": a_broker_with_accounts,
    "checks": a_pair_and_a_configuration,
    "copy": a_broker,
    "events": nothing,
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
