"""A broker on a clock of its own, with its pass over sends or without, and all that a script of events makes of it."""

import errno
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from rmqha.acl.files import AclFiles
from rmqha.acl.gate import AclGate
from rmqha.broker.brokerservice import BrokerService, Surroundings, broker_limits
from rmqha.remoting.budgets import PortBudget
from rmqha.remoting.protocol import RemotingFactory
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import TopicConfig, TopicFilterType
from tests.broker.brokerstore import NOW_MS, WallClockOf
from tests.broker.requests.sendframes import APP, TOPICS
from tests.ha.doubles import LineTransport, content_of
from tests.store.derived.test_putnotes import contents
from tests.store.test_putwaits import FakeReplicas

BASE = {
    "brokerRole": "ASYNC_MASTER",
    "mappedFileSizeCommitLog": "8192",
    "maxMessageSize": "4000",
    "maxHashSlotNum": "10",
    "maxIndexNum": "1000",
}
SETTINGS: tuple[dict[str, str], ...] = (
    *({},) * 6,
    {"brokerRole": "SYNC_MASTER"},
    {"flushDiskType": "SYNC_FLUSH"},
    {"flushDiskType": "SYNC_FLUSH"},
    {"brokerRole": "SYNC_MASTER"},
    {"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH"},
    {"brokerPermission": "4"},
    {"startAcceptSendRequestTimeStamp": str(NOW_MS + 1000)},
    {"serverMaxRequestsInProgress": "3", "brokerRole": "SYNC_MASTER"},
    {"maxMessageSize": "2950", "autoCreateTopicEnable": "false"},
    {"timerWheelEnable": "true", "traceOn": "false", "regionId": '%s"é'},
)
ACCOUNTS = (
    f"accounts:\n- accessKey: {APP.access_key}\n  secretKey: {APP.secret_key}\n"
    "  defaultTopicPerm: DENY\n  topicPerms:\n  - T=PUB|SUB\n  - é漢=PUB\n  - New=PUB\n"
    "- accessKey: administrator\n  secretKey: admin-secret\n  admin: true\n"
)


class Event(NamedTuple):
    """Bytes that come on a connection, or something that happens: then ``name`` says what."""

    connection: int = 0
    data: bytes = b""
    name: str = ""
    number: int = 0


@dataclass
class Leadership:
    """The right to lead, as the test says."""

    takes: bool = True
    held: bool = True

    def takes_puts(self) -> bool:
        return self.takes

    def is_held(self) -> bool:
        return self.held


@dataclass
class SlowThread:
    """Runs functions at once, or when it is told."""

    is_slow: bool = False
    waiting: list[tuple[Callable[[], None], "Deferred[None]"]] = field(default_factory=list)

    def __call__(self, function: Callable[[], None], /) -> "Deferred[None]":
        if not self.is_slow:
            function()
            return succeed(None)
        self.waiting.append((function, Deferred()))
        return self.waiting[-1][1]

    def run(self) -> None:
        """Do all that waits."""
        while self.waiting:
            function, done = self.waiting.pop(0)
            function()
            done.callback(None)


class Side:
    """A broker and its connections. ``end`` says all that can be seen of what it did."""

    def __init__(self, folder: Path, changed: Mapping[str, str], has_acl: bool, has_pass: bool) -> None:
        self.clock = Clock()
        wall = WallClockOf(self.clock)
        settings = make_settings({**BASE, "storePathRootDir": str(folder), **changed})
        self.store = MessageStore(settings, wall=wall)
        self.failures: list[Failure] = []
        self.thread, self.tables_thread = SlowThread(), SlowThread()
        self.flusher = self.store.start_flushing(self.clock, self.thread, self.failures.append)
        self.store.start_dispatching(self.clock, self.failures.append)
        self.replicas: FakeReplicas | None = None
        if changed.get("brokerRole") == "SYNC_MASTER":
            self.replicas = FakeReplicas(self.clock)
            self.store.replicate_by(self.replicas)
        self.leadership = self.store.puts.leadership = Leadership()
        self.room: int | None = None
        self._limit_the_log()
        surroundings = Surroundings("127.0.0.1")
        self.broker = BrokerService(settings, self.store, self.clock, self.tables_thread, surroundings, wall)
        for topic in TOPICS:
            self.broker.topics.update(TopicConfig(topic, 4, 4))
        self.broker.topics.update(TopicConfig("Several", 4, 4, topic_filter_type=TopicFilterType.MULTI_TAG))
        self.broker.startService()
        self.gate = self._gate(folder) if has_acl else None
        processors = self.broker.processors()
        self.factory = RemotingFactory(
            processors if self.gate is None else self.gate.guard(processors),
            self.clock,
            broker_limits(settings, 10_000),
            PortBudget(self.clock),
            self.broker.turns,
            self.broker.ordinary_sends(self.gate) if has_pass else None,
        )
        self.lines: list[LineTransport] = []

    def _line(self, connection: int) -> LineTransport:
        """That of this connection. They are numbered in their order."""
        if connection == len(self.lines):
            line = LineTransport(self.clock)
            protocol = self.factory.buildProtocol(line.getPeer())
            assert protocol is not None
            line.attach(protocol)
            self.lines.append(line)
        return self.lines[connection]

    def _gate(self, folder: Path) -> AclGate:
        (folder / "config").mkdir(exist_ok=True)
        (folder / "config" / "plain_acl.yml").write_text(ACCOUNTS)
        gate = AclGate(AclFiles(folder / "config"), self.clock, self.tables_thread)
        gate.startService()
        return gate

    def _limit_the_log(self) -> None:
        """Let the log refuse what goes beyond ``room``."""
        log = self.store.commit_log
        append: Any = log.append_records

        def append_if_it_fits(data: bytes, store_timestamp: int, last_at: int = 0) -> int:
            if self.room is not None and log.max_offset + len(data) > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(append(data, store_timestamp, last_at))

        log.append_records = append_if_it_fits  # type: ignore[method-assign]  # a disk with a limit of our own

    def happen(self, event: Event) -> None:
        """Let this happen."""
        match event.name:
            case "":
                self._line(event.connection).deliver(event.data)
            case "time":
                self.clock.advance(event.number / 100)
            case "slow disk":
                self.thread.is_slow = True
            case "flushed":
                self.thread.run()
            case "full":
                self.room = self.store.commit_log.max_offset + event.number * 25
            case "room":
                self.room = None
            case "lease":
                self.leadership.takes, self.leadership.held = bool(event.number & 1), bool(event.number & 2)
            case "replicated" if self.replicas is not None:
                self.replicas.reached(self.store.commit_log.max_offset)
            case "replicas" if self.replicas is not None:
                self.replicas.enough, self.replicas.here = bool(event.number & 1), bool(event.number & 2)

    def end(self) -> dict[str, Any]:
        """Wait until nothing happens any more, and close. What was answered, stored and counted."""
        for name in ("room", "flushed", "replicated"):
            self.happen(Event(name=name))
        self.thread.is_slow = False
        self.clock.pump([0.02] * 50 + [1.0] * 8)
        held = {queue: len(pulls) for queue, pulls in self.broker.held_pulls._queues.items()}
        stats = {
            topic: (traffic.calls, traffic.messages, traffic.bytes)
            for topic, traffic in self.broker.stats.topic_puts.items()
        }
        found = {
            "connections": [(line.disconnecting, line.aborted) for line in self.lines],
            "answers": [line.take() for line in self.lines],
            "log": content_of(self.store.commit_log),
            "queue ends": dict(self.store.puts.appender.queue_offsets),
            "behind": self.store.derived.dispatcher.behind_bytes,
            "held pulls": held,
            "statistics": stats,
            "figures": self.store.put_figures.by_status(),
            "topics": sorted(self.broker.topics.table.rows),
            "failures": len(self.failures),
        }
        for line in self.lines:
            line.lose()
        self.broker.stopService()
        if self.gate is not None:
            self.gate.stopService()
        self.clock.pump([0.0] * 5)
        self.store.derived.dispatcher.write_pending()
        closed: list[object] = []
        self.store.close(self.flusher).addBoth(closed.append)
        self.clock.pump([0.0] * 5)
        assert closed == [None], closed
        root = self.store.root
        return {**found, "queues": contents(root / "consumequeue"), "keys": contents(root / "index", named=False)}


class Scenario(NamedTuple):
    """Settings, and what happens."""

    changed: Mapping[str, str]
    has_acl: bool
    requests_per_turn: int
    script: Sequence[Event]

    def play(self, folder: Path, has_pass: bool) -> tuple[dict[str, Any], BrokerService]:
        """What comes of it, with a pass or without, and the broker."""
        random.seed(1)  # a negative queue id takes any queue
        with capturedLogs() as events:
            side = Side(folder, self.changed, self.has_acl, has_pass)
            for event in self.script:
                side.happen(event)
            found = side.end()
        found["log lines"] = sorted(line for each in events if (line := formatEvent(each)) and str(folder) not in line)
        return found, side.broker
