"""A broker's store on a clock, and a client that asks what the test serves."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.broker.addresses import OwnAddresses
from rmqha.broker.interfaces import IConfigured, NoNode
from rmqha.broker.runtimeinfo import runtime_processors
from rmqha.broker.tables.clients import Allowed
from rmqha.broker.tables.configmanager import ITableObserver, TableStorage
from rmqha.broker.tables.deletedtopics import DeletedTopics, Deleting
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.offsets import ConsumerOffsetManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.protocol import IRequestPass, Processors, RemotingProtocol
from rmqha.remoting.rights import Rights
from rmqha.remoting.turns import Turns
from rmqha.settings.settings import Settings, make_settings
from rmqha.store.derived.dispatch import SLAVE_PAUSE_SECONDS, UNREAD_PAUSE_SECONDS
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import SubscriptionGroupConfig
from rmqha.wire.command import OUR_VERSION, RemotingCommand
from rmqha.wire.record import Blank, Record, decode_record
from tests.ha.doubles import LineTransport, content_of
from tests.remoting.test_protocol import commands_in, frame

SEGMENT_SIZE = 64 * 1024
OWN_HOST = "192.0.2.200"
NOW_MS = 1_795_000_000_000


def bodies_in(data: bytes) -> list[bytes]:
    """The bodies of records one after another."""
    bodies = []
    while data:
        record = decode_record(memoryview(data))
        assert not isinstance(record, Blank)
        bodies.append(bytes(record.body))
        data = data[record.total_size :]
    return bodies


def any_header(fields: Iterable[str]) -> st.SearchStrategy[dict[str, object]]:
    """Headers with some of these fields, some of them with numbers of any size, and some with any text."""
    numbers = st.integers(-2, 10) | st.integers(-(2**64), 2**64) | st.sampled_from([2**31, -(2**31), 2**63 - 1])
    texts = st.sampled_from(["T", "G", "*", "||", "true"]) | st.text(st.characters(exclude_categories=["Cs"]))
    return st.fixed_dictionaries({}, optional=dict.fromkeys(fields, numbers | texts))


class Client:
    """One connection to what is served; each request has the next opaque."""

    def __init__(
        self, processors: Processors, clock: Clock, host: str | None = None, request_pass: IRequestPass | None = None
    ) -> None:
        """It comes from the address ``host``, if given."""
        self.line = LineTransport(clock)
        if host is not None:
            self.line.peerAddr = IPv4Address("TCP", host, 4711)
            self.line.hostAddr = IPv4Address("TCP", OWN_HOST, 9876)
        self.protocol = RemotingProtocol(processors, clock, request_pass=request_pass)
        self.line.attach(self.protocol)
        self._clock = clock
        self._opaque = 0
        self.version = OUR_VERSION

    def send(self, code: int, fields: Mapping[str, object], body: bytes = b"") -> None:
        """Ask without waiting; a field of None is left out."""
        self._opaque += 1
        texts = {name: str(value) for name, value in fields.items() if value is not None}
        self.line.deliver(frame(RemotingCommand(code, self._opaque, ext_fields=texts, body=body, version=self.version)))

    def answers(self) -> list[RemotingCommand]:
        """What has come since the last call."""
        return commands_in(self.line.take())

    def ask(self, code: int, body: bytes = b"", /, **fields: object) -> RemotingCommand:
        """What is answered at once, or in the next turn where many requests were taken in this one."""
        self.send(code, fields, body)
        answers = self.answers()
        if not answers:
            self._clock.advance(0)
            answers = self.answers()
        (answer,) = answers
        assert answer.opaque == self._opaque
        return answer


@implementer(IWallClock)
class WallClockOf:
    """A time of day that goes on with a clock, or is set ``ahead_ms``."""

    def __init__(self, clock: Clock, started_ms: int = NOW_MS) -> None:
        self._clock = clock
        self._started_ms = started_ms
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._started_ms + int(self._clock.seconds() * 1000) + self.ahead_ms


@implementer(IWallClock)
class SetWallClock:
    """A time of day that stays until it is set."""

    def __init__(self, ms: int = NOW_MS) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


@implementer(ITableObserver)
class ToldRows:
    """What was told of the changes of a table."""

    def __init__(self) -> None:
        self.rows: list[object | None] = []

    def table_changed(self, row: object | None) -> None:
        self.rows.append(row)


@implementer(IConfigured)
class TellingNode(NoNode):
    """A node, and its broker, that tell this."""

    def __init__(
        self,
        table: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        ha_status: Mapping[str, Any] | None = None,
    ) -> None:
        self._table = {} if table is None else table
        self._config = {} if config is None else config
        self._ha_status = {} if ha_status is None else ha_status

    def runtime_info(self) -> Mapping[str, str]:
        return self._table

    def config(self) -> Mapping[str, str]:
        return self._config

    def ha_status(self) -> Mapping[str, Any]:
        return self._ha_status

    def runtime_processors(self) -> Processors:
        """Answers about both."""
        return runtime_processors(self, self)


class Everybody(Allowed):
    """No account is left out."""

    def may(self, rights: Rights) -> bool:
        return True


EVERYBODY = Everybody()


def own_addresses(broker_addr: str) -> OwnAddresses:
    """The addresses of a broker whose main port is this HOST:PORT."""
    host, _, port = broker_addr.rpartition(":")
    return OwnAddresses(Settings(broker_ip1=host, listen_port=int(port)), "", {})


class BrokerStoreTestCase(SynchronousTestCase):
    """``open`` opens a store of a role; ``put`` fills a master's, ``copy_to_slave`` makes a slave's of it."""

    def setUp(self) -> None:
        for name in ("fsync", "fdatasync"):  # what they promise is no matter here, and they take most of the time
            self.patch(os, name, lambda fd: None)
        self.clock = Clock()
        self.wall = WallClockOf(self.clock)
        self.failures: list[Failure] = []
        self.closed: list[MessageStore] = []
        self.close_store: Callable[[], None] = lambda: None
        """Closes the store that was opened last."""

    def open(self, role: str = "ASYNC_MASTER", **properties: str) -> MessageStore:
        """Open a store, which flushes and dispatches on the clock. It is a new one, unless the properties say where."""
        settings = {
            "storePathRootDir": self.mktemp(),
            "brokerRole": role,
            "mappedFileSizeCommitLog": str(SEGMENT_SIZE),
            **properties,
        }
        self.settings = make_settings(settings)
        self.store = store = MessageStore(self.settings, wall=WallClockOf(self.clock))
        flusher = store.start_flushing(self.clock, execute, self.failures.append)
        store.start_dispatching(self.clock, self.failures.append)

        def close() -> None:
            self.close_store = lambda: None
            if store not in self.closed:
                self.closed.append(store)
                closed = store.close(flusher)
                self.clock.advance(0)
                self.successResultOf(closed)

        self.close_store = close
        self.addCleanup(close)
        return store

    @property
    def folder(self) -> Path:
        """The store's config folder."""
        return self.store.root / "config"

    def put(self, *bodies: bytes, topic: str = "T", queue_id: int = 0, **properties: str) -> list[Record]:
        """Put messages with these bodies and properties (those that are not empty), and let dispatch come to them."""
        properties = {name: value for name, value in properties.items() if value}
        records = []
        for body in bodies:
            message = Message(topic, body, properties, queue_id, born_timestamp=NOW_MS)
            appended = self.successResultOf(self.store.put_message(message)).append
            assert appended is not None
            record = self.store.reader.message_at(appended.wrote_offset)
            assert record is not None
            records.append(record)
        self.dispatch()
        return records

    def dispatch(self) -> None:
        """Let dispatch come to the log's end."""
        pause = UNREAD_PAUSE_SECONDS if self.store.is_slave else SLAVE_PAUSE_SECONDS
        self.clock.pump([pause / 4] * 8)
        self.assertEqual(self.store.derived.dispatcher.behind_bytes, 0)

    def copy_to_slave(self, **properties: str) -> MessageStore:
        """A slave's store that has what the master's has."""
        content = content_of(self.store.commit_log)
        slave = self.open("SLAVE", **properties)
        slave.commit_log.append_data(0, content)
        slave.commit_log.verify()
        self.dispatch()
        return slave

    def client(self, processors: Processors, request_pass: IRequestPass | None = None) -> Client:
        """A new connection, which ends with the test."""
        client = Client(processors, self.clock, request_pass=request_pass)
        self.addCleanup(client.line.lose)
        return client

    def assert_answer(self, answer: RemotingCommand, code: int, fields: Mapping[str, object]) -> None:
        """The answer has this code and exactly these fields."""
        self.assertEqual(
            (answer.code, dict(answer.ext_fields)),
            (code, {name: str(value) for name, value in fields.items()}),
            answer.remark,
        )

    def assert_refused(self, answers: Iterable[RemotingCommand], code: int, remark: str) -> None:
        """Each answer has this code, and a remark with this in it."""
        for answer in answers:
            self.assertEqual(answer.code, code, answer.remark)
            self.assertIn(remark, answer.remark or "")


def deleted_topics(
    case: BrokerStoreTestCase, topics: TopicConfigManager, offsets: ConsumerOffsetManager
) -> DeletedTopics:
    """The deleted topics of the case's store. There are no groups but G."""
    groups = SubscriptionGroupManager(Path(case.mktemp()), case.settings, SetWallClock())
    groups.update(SubscriptionGroupConfig("G"))
    deleting = Deleting(topics, offsets, groups, Turns(case.clock), SetWallClock())
    return DeletedTopics(TableStorage(case.folder), case.store, deleting)
