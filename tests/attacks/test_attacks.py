"""What each attack costs honest clients and the node: findings D3, D4, D6 and D9.

The figures are printed. What is asserted holds on a busy machine too: what the node answered, how much memory it took,
and that the honest producer got an answer to everything. ``make bench-attacks`` asserts times. ``test_every_code``
proves without a clock that no request holds the reactor.
"""

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmqha.store.metadata import SubscriptionGroupTable, TopicConfigTable
from rmqha.testing.nodes import NameServerNode, TwistdNode
from rmqha.wire.command import FRAME_MAX_LENGTH, RequestCode
from tests.attacks import strangers
from tests.attacks.probe import Figures, Probe
from tests.attacks.strangers import MIB
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process

MAX_GROWTH_MIB = 256
MIN_GROUPS = 1000
HELD = 72
"""Frames of 4 MiB that do not end: three times as many as the node holds at a time."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwistdNode]:
    """A master that all tests here attack."""
    with TwistdNode(tmp_path_factory.mktemp("attacks"), ["--role=async-master", "--port=0"], name="master") as node:
        node.port("fast remoting")
        yield node
        assert node.stop() == 0


@pytest.fixture(scope="module")
def probe(master: TwistdNode) -> Iterator[Probe]:
    """Watches it, with an honest producer at work."""
    with Probe(master, least_seconds=0) as watching:
        print()
        print(Figures.HEAD)
        print(watching.watch("nothing", lambda: ""))
        yield watching


Attack = Callable[[int], str]
ATTACKS: dict[str, tuple[Attack, str]] = {
    "a pull of each of 100 new groups": (lambda port: strangers.pulls_of_new_groups(port, "pull", 100), "{0: 100}"),
    "names that no group may have": (strangers.wrong_names, "[26, 26, 26, 26]"),
    "a heartbeat of 14 MiB with a comma": (strangers.slow_json, "code 1: the body has 1468"),
    "a heartbeat of 1 MB with a comma": (strangers.slow_json_within_limits, "code 1: the heartbeat is invalid"),
    "320,000 subscriptions": (lambda port: strangers.many_subscriptions(port, 320_000), "code 1: the body has"),
    "4,000 subscriptions": (lambda port: strangers.many_subscriptions(port, 4000), "code 0"),
    "a pull with 11 MiB of subscription": (lambda port: strangers.long_subscription(port, 11 * MIB), "hung up"),
    "a pull with 200 kB of subscription": (lambda port: strangers.long_subscription(port, 200_000), "code 23"),
    "100 pulls, each with 16 kB of it": (lambda port: strangers.long_subscriptions(port, 100), "100 answers"),
    "a batch of 180,000 empty messages": (lambda port: strangers.batch(port, 180_000), "code 13"),
    "a batch of 30,000 small messages": (lambda port: strangers.batch(port, 30_000, b"x" * 10), "code 0"),
    "statistics of 1,024 queues, 50 times": (
        lambda port: strangers.asked_often(port, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "BenchmarkTest"}, 50),
        "{0: 50}",
    ),
    "50 clients that read no answer": (lambda port: strangers.deaf_readers(port, 50), "50 connections"),
}


@pytest.mark.parametrize(("attack", "outcome"), ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_costs_little(
    master: TwistdNode,
    probe: Probe,
    request: pytest.FixtureRequest,
    attack: Attack,
    outcome: str,
) -> None:
    figures = probe.watch(request.node.callspec.id, lambda: attack(master.port("remoting")))
    print(figures)
    assert outcome in figures.outcome
    assert figures.memory_mib <= MAX_GROWTH_MIB


def test_a_thousand_new_groups_in_one_heartbeat(master: TwistdNode, probe: Probe) -> None:
    """Each unknown group cost two whole tables and four flushes in the reactor: 52 s (finding D3)."""
    figures = probe.watch(
        "1,000 new groups in a heartbeat", lambda: strangers.new_groups(master.port("remoting"), "new", MIN_GROUPS)
    )
    print(figures)
    assert figures.outcome == "code 0"
    config = master.store / "config"

    def all_written() -> bool | None:
        groups = SubscriptionGroupTable.read(config).subscription_group_table
        topics = TopicConfigTable.read(config).topic_config_table
        names = [f"new-{number}" for number in range(MIN_GROUPS)]
        return (groups.keys() >= set(names) and topics.keys() >= {f"%RETRY%{name}" for name in names}) or None

    assert master.wait_until_found(all_written, "all groups on disk", WAIT_SECONDS)


@pytest.mark.parametrize(
    ("size", "connections"), [(FRAME_MAX_LENGTH, 24), (4 * MIB - 2000, 200)], ids=["16 MiB", "4 MiB"]
)
def test_frames_that_do_not_end(master: TwistdNode, probe: Probe, size: int, connections: int) -> None:
    """200 of them took 3.4 GB (finding D4). Honest clients are served meanwhile, with large messages too.

    They have more bytes than the node may take, and more than it may hold at a time.
    """
    assert size * connections > MAX_GROWTH_MIB * MIB
    port = master.port("remoting")
    figures = probe.watch(
        f"{connections} unfinished frames of {size // 1_000_000} MB",
        lambda: strangers.unfinished_frames(port, connections, size),
    )
    print(figures)
    assert figures.memory_mib <= MAX_GROWTH_MIB


def test_a_large_message_gets_through_while_frames_do_not_end(master: TwistdNode, probe: Probe) -> None:
    port = master.port("remoting")
    large: list[str] = []

    def attack() -> str:
        with strangers.frames_held(port, HELD, 4 * MIB - 2000):
            large.append(strangers.asked_once(port, 310, strangers.SEND, bytes(4 * MIB - 4096)))
        return large[0]

    print(probe.watch(f"a 4 MB message among {HELD} of them", attack))
    assert large == ["code 0"]


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerNode]:
    """A name server that the tests below attack."""
    with NameServerNode(tmp_path_factory.mktemp("namesrv")) as node:
        node.port("name server")
        yield node
        assert node.stop() == 0


@pytest.fixture(scope="module")
def name_server_probe(name_server: NameServerNode) -> Iterator[Probe]:
    """Watches it, with an honest client that asks."""
    with Probe(name_server, "name server", only_pings=True, least_seconds=0) as watching:
        yield watching


REGISTRATIONS: dict[str, tuple[Attack, str]] = {
    "a broker with 1,000,000 topics": (lambda port: strangers.registration(port, 1_000_000), "more than"),
    "a broker with 100,000 topics": (lambda port: strangers.registration(port, 100_000), "code 0"),
    "the same as Java sends it": (lambda port: strangers.plain_registration(port, 100_000, "java"), "code 0"),
    "all topics, 20 times": (lambda port: strangers.asked_often(port, 206, None, 20), "{0: 20}"),
    "2,000 texts": (lambda port: strangers.kv_puts(port, 2000), "{0: 2000}"),
    "5 MB of texts": (lambda port: strangers.kv_puts(port, 100, "v" * 50_000), "2: "),
}


@pytest.mark.parametrize(("attack", "outcome"), REGISTRATIONS.values(), ids=REGISTRATIONS.keys())
def test_a_name_server_is_not_held(
    name_server: NameServerNode,
    name_server_probe: Probe,
    request: pytest.FixtureRequest,
    attack: Attack,
    outcome: str,
) -> None:
    """A registration with 10^6 topics held it for 16 s and took 476 MB; 2,000 texts took 15 s (finding D9)."""
    figures = name_server_probe.watch(request.node.callspec.id, lambda: attack(name_server.port("name server")))
    print(figures)
    assert outcome in figures.outcome
    assert figures.memory_mib <= MAX_GROWTH_MIB


HTTP_STRANGERS = 1000
SLOW_HEADERS = b"GET /metrics HTTP/1.1\r\nHost: h\r\nX-Slow: "
HUGE_HEADERS = b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1000) for number in range(64))
UNREAD = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" * 20


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[TwistdNode]:
    """A master with an HTTP port."""
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0", "--http-port=0"], name="watched") as node:
        node.port("http")
        yield node
        assert node.stop() == 0


def test_a_thousand_strangers_on_the_http_port(watched: TwistdNode) -> None:
    """Idle connections, headers that do not end, huge headers, answers that nobody reads: all at once."""
    sent = (b"", SLOW_HEADERS, HUGE_HEADERS, UNREAD)
    lines: list[socket.socket] = []

    def attack() -> str:
        for number in range(HTTP_STRANGERS):
            line = socket.create_connection(("127.0.0.1", watched.port("http")), WAIT_SECONDS)
            lines.append(line)
            with suppress(OSError):  # it has lost its place already
                line.sendall(sent[number % len(sent)])
        for line in lines:
            with suppress(OSError):
                line.sendall(b"x")  # the slow ones go on
        return f"{len(lines)} connections"

    try:
        with Probe(watched) as probe:
            figures = probe.watch("1,000 strangers on the HTTP port", attack)
    finally:
        for line in lines:
            line.close()
    print(figures)
    assert figures.puts.count > 0, "messages were put meanwhile"
    assert figures.memory_mib <= MAX_GROWTH_MIB
    status = _status_of(watched)
    assert sum(status["ports"]["http"]["refused"].values()) > HTTP_STRANGERS // 2
    assert set(status["puts"]) - {"PUT_OK"} == {name for name, count in status["puts"].items() if not count}


def _status_of(node: TwistdNode) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.port('http')}/status.json", timeout=WAIT_SECONDS) as page:
        return json.load(page)
