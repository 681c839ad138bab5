"""A real node whose tables have hostile names: what Prometheus' tool, a browser's page and terminals get of them."""

import html
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqha.testing.nodes import NameServerNode, TwistdNode
from tests.commands import RMQHA, output_of
from tests.node.test_terminal import Screen
from tests.waiting import wait_until
from tests.web.test_exposition import HOSTILE

pytestmark = pytest.mark.process

PROMTOOL = shutil.which("promtool")
NAMES = [name for name in HOSTILE if name and name.isascii()] + [
    "\x9b31m",
    "\u202egnp.exe",
    "<b>bold</b>",
    "[red]x[/red]",
]
ALLOWED = re.compile(r"\x1b\[[0-9;?]*[mhlHJKA-G]")
"""What rich writes itself: colours, and moves of the cursor."""


class Hostile(NamedTuple):
    """The nodes that have such names."""

    broker: TwistdNode
    name_server: NameServerNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """A master that knows these topics and groups from its files, and registers them with a name server of ours."""
    work = tmp_path_factory.mktemp("hostile")
    config = work / "store" / "config"
    config.mkdir(parents=True)
    topics = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
        for name in (*NAMES, "TopicTest")
    }
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics, "dataVersion": {}}))
    offsets = {f"{topic}@{group}": {"0": 0} for topic in ("TopicTest",) for group in NAMES}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    groups = {name: {"groupName": name} for name in NAMES}
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": groups, "dataVersion": {}}))
    with NameServerNode(work, ["--port=0", "--http-port=0"]) as names:
        options = [
            "--role=async-master",
            "--port=0",
            "--http-port=0",
            f"--namesrv={names.address}",
            "--name=b\x1b[2J<i>",
        ]
        with TwistdNode(work, options, store=work / "store") as found:
            broker = f"127.0.0.1:{found.port('remoting')}"
            output_of("put", "TopicTest", "hello", "--count=5", f"--broker={broker}")
            wait_until(lambda: "<i>" in html.unescape(get(names.port("http"), "/")), "the name server to know the node")
            yield Hostile(found, names)


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as page:
        text: str = page.read().decode()
    return text


def ports_of(node: Hostile) -> tuple[int, int]:
    """The HTTP ports of the node and of the name server."""
    return node.broker.port("http"), node.name_server.port("http")


@pytest.mark.skipif(
    PROMTOOL is None and "CI" not in os.environ, reason="promtool is missing (Debian's package prometheus)"
)
def test_promtool_finds_the_metrics_of_both_valid(node: Hostile) -> None:
    """``promtool check metrics`` also complains about names, units and missing help."""
    assert PROMTOOL is not None, "CI installs Debian's package prometheus"
    for port in ports_of(node):
        text = get(port, "/metrics")
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
        assert all(line.isprintable() for line in text.splitlines())


def test_metrics_have_a_series_for_each_hostile_group(node: Hostile) -> None:
    text = get(ports_of(node)[0], "/metrics")
    lags = [line for line in text.splitlines() if line.startswith("rocketmq_consumer_lag_messages{")]
    assert len(lags) >= len(NAMES)


def test_pages_have_no_markup_of_strangers(node: Hostile) -> None:
    for port in ports_of(node):
        page = get(port, "/")
        assert not re.search(r"<(b|i|script|img)\b", page)
        assert all(line.isprintable() for line in page.splitlines())
        json.loads(get(port, "/status.json"))


@pytest.mark.parametrize(
    "command",
    [
        ("lag", "--broker", "BROKER"),
        ("status", "BROKER"),
        ("top", "BROKER", "-n", "1"),
        ("top", "--namesrv", "NAMES", "-n", "1"),
        ("doctor", "BROKER", "--all"),
        ("queues", "STORE"),
        ("status", "STORE"),
    ],
    ids=" ".join,
)
def test_a_terminal_obeys_nothing_of_them(node: Hostile, tmp_path: Path, command: tuple[str, ...]) -> None:
    places = {
        "BROKER": f"127.0.0.1:{node.broker.port('remoting')}",
        "NAMES": node.name_server.address,
        "STORE": str(node.broker.store),
    }
    screen = Screen([RMQHA, *(places.get(word, word) for word in command)], tmp_path)
    try:
        assert screen.ends() in (0, 1)
    finally:
        screen.close()
    rest = ALLOWED.sub("", screen.text)
    assert all(line.isprintable() for line in re.split(r"[\r\n\t]+", rest)), ascii(rest)
    assert "\x1b[2J<i>" not in screen.text
    if command[0] == "lag":
        assert "[red]x[/red]" in re.sub(r"\s+", "", screen.plain), screen.plain
