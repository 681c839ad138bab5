"""What ``rmqha status`` shows of stores and of brokers."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from twisted.internet.defer import Deferred, TimeoutError, fail, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.test.iosim import FakeTransport, IOPump, connect
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import seconds_of
from rmqha.ops.brokerstatus import status_of_broker
from rmqha.ops.status import NodeStatus, judge
from rmqha.ops.storestatus import status_of_store
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS, RemotingError
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.settings.settings import make_settings
from rmqha.store.examining import LOCK_FILE
from rmqha.store.log.lockfile import LockFile
from rmqha.store.log.mappedfile import DISK
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState, Offsets, state_path
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.brokerinfo import NODE_STATE_KEY
from tests.broker.brokerstore import TellingNode
from tests.fixtures import copy_of, max_offset, new_folder, unpacked

PEER = {"peer": "10.0.0.2:5", "state": "TRANSFER", "ackOffset": 50, "lagBytes": 10}
SLAVE_STATE = NodeState(
    "1f" * 16,
    role="SLAVE",
    state="IN_SYNC",
    offsets=Offsets(min=0, written=70, verified=60, flushed=50, confirmed=50),
    lag_bytes=12,
    lag_seconds=0.5,
)
JAVA_TABLE = {
    "brokerVersionDesc": "V4_9_3",
    "commitLogMinOffset": "1073741824",
    "commitLogMaxOffset": "1073750000",
    "runtime": "[ 0 days, 0 hours, 1 minutes, 5 seconds ]",
}


class StoreTests(SynchronousTestCase):
    def status(self, store: Path) -> NodeStatus:
        reader = StoreReader(store)
        self.addCleanup(reader.close)
        return status_of_store(reader)

    def test_a_store_of_a_java_broker_tells_its_end(self) -> None:
        for name in ("master-crash", "master-clean", "slave"):
            with self.subTest(name):
                expected = NodeStatus.of_other("UNKNOWN", False, 0, max_offset(name))
                self.assertEqual(self.status(unpacked(name)), expected)

    def test_of_a_store_without_a_node_only_role_state_and_the_logs_ends_are_told(self) -> None:
        found = self.status(new_folder(self)).as_json()
        known = {"role": "UNKNOWN", "state": "STOPPED", "running": False, "min": 0, "written": 0}
        self.assertEqual(found, {**dict.fromkeys(found), "warnings": [], "peers": [], **known})

    @pytest.mark.long
    def test_an_empty_store(self) -> None:
        self.assertEqual(self.status(new_folder(self)), NodeStatus.of_other("UNKNOWN", False, 0, 0))

    def test_a_store_that_somebody_else_has_open_is_running(self) -> None:
        store = copy_of("slave", new_folder(self) / "store")
        self.addCleanup(LockFile(store / LOCK_FILE).release)
        self.assertEqual(self.status(store), NodeStatus.of_other("UNKNOWN", True, 0, max_offset("slave")))

    def test_a_node_of_ours_that_stopped_has_no_lag_and_no_peers(self) -> None:
        store = copy_of("slave", new_folder(self) / "store")
        replace(SLAVE_STATE, peers=(PEER,)).write(store)
        expected = NodeStatus(
            NodeState("1f" * 16, role="SLAVE", state="STOPPED", offsets=Offsets(0, 70, 60, 50, 50)), running=False
        )
        self.assertEqual(self.status(store), expected)

    def test_a_copy_is_only_shown(self) -> None:
        """``rmqha backup`` keeps the facts of the source's node, but no node has run on the copy."""
        store = copy_of("slave", new_folder(self) / "store")
        (store / "abort").unlink(missing_ok=True)
        replace(SLAVE_STATE, role="", state="STOPPED").write(store)
        found = self.status(store)
        self.assertEqual((found.node.role, found.node.state, found.node.offsets.confirmed), ("UNKNOWN", "STOPPED", 50))
        self.assertIn("a copy", found.node.reason or "")
        self.assertEqual(judge(found), (ExitCode.FINE, ""))

    def test_a_node_of_ours_that_runs_tells_all(self) -> None:
        store = new_folder(self)
        running = MessageStore(make_settings({"storePathRootDir": str(store)}))
        replace(
            SLAVE_STATE,
            peers=(PEER,),
            master="broker-a:10912",
            last_contact="2026-11-22T10:00:00.000Z",
            since="2026-11-22T09:00:00.000Z",
            reason="at the master's end",
            tables={"inSync": True},
            warnings=("mind",),
            read_limit=40,
            reads={"waitingBytes": 20},
        ).write(store)
        self.assertEqual(
            self.status(store).as_json(),
            {
                "role": "SLAVE",
                "state": "IN_SYNC",
                "running": True,
                "min": 0,
                "written": 70,
                "verified": 60,
                "flushed": 50,
                "confirmed": 50,
                "lagBytes": 12,
                "lagSeconds": 0.5,
                "master": "broker-a:10912",
                "lastContact": "2026-11-22T10:00:00.000Z",
                "since": "2026-11-22T09:00:00.000Z",
                "reason": "at the master's end",
                "tables": {"inSync": True},
                "readLimit": 40,
                "reads": {"waitingBytes": 20},
                "failover": None,
                "warnings": ["mind"],
                "peers": [PEER],
            },
        )
        self.successResultOf(running.close())

    def test_on_a_full_disk_the_last_state_that_was_written_is_not_told_as_the_present(self) -> None:
        """The node cannot write state.json: a leader that has lost the lead would go on to lead there."""
        store = new_folder(self)
        running = MessageStore(make_settings({"storePathRootDir": str(store)}))
        NodeState("1f" * 16, role="SYNC_MASTER", state="SERVING", warnings=("mind",)).write(store)
        os.utime(state_path(store), (1795654786, 1795654786))
        self.assertEqual(judge(self.status(store)), (ExitCode.FINE, ""))
        self.patch(DISK, "free_bytes", lambda _: 4096)
        found = self.status(store)
        code, reason = judge(found)
        self.assertEqual(code, ExitCode.IO_ERROR)
        self.assertIn("the disk is full, with 4096 bytes free", reason)
        self.assertIn("written at 2026-11-26T00:59:46.000Z", reason)
        self.assertEqual(found.node.warnings, ("mind", reason))
        self.successResultOf(running.close())
        self.assertEqual(self.status(store).node.warnings, (), "it does not run")


class JudgeTests(SynchronousTestCase):
    """Of a slave that runs, says that it copies, and may note no contact for 30 s."""

    NOW = seconds_of("2026-11-22T10:00:00Z") or 0.0

    def judged(self, **facts: Any) -> tuple[ExitCode, str]:
        node = replace(SLAVE_STATE, last_contact="2026-11-22T09:59:30Z", contact_limit=30.0, tables={"inSync": True})
        return judge(NodeStatus(replace(node, **facts), running=True), now=self.NOW)

    def test_one_that_copies_and_notes_no_contact_for_longer_than_its_limit_hangs(self) -> None:
        for state in ("IN_SYNC", "CATCHING_UP"):
            self.assertEqual(self.judged(state=state), (ExitCode.FINE, ""))
            code, reason = self.judged(state=state, last_contact="2026-11-22T09:59:29Z")
            self.assertIs(code, ExitCode.STALLED)
            self.assertIn("the node hangs", reason)

    def test_one_whose_tables_are_not_the_masters_is_not_fine(self) -> None:
        code, reason = self.judged(tables={"inSync": False, "reason": "code 1: No accessKey"})
        self.assertIs(code, ExitCode.IO_ERROR)
        self.assertIn("not the master's: code 1: No accessKey", reason)
        self.assertIs(self.judged(tables={})[0], ExitCode.IO_ERROR)


@implementer(IStreamClientEndpoint)
class MemoryEndpoint:
    """Ways to a server in memory; ``pump`` carries what waits on them."""

    def __init__(self, make_server: Callable[[], Protocol]) -> None:
        self._make_server = make_server
        self._pumps: list[IOPump] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        client: Any = protocolFactory.buildProtocol(None)  # type: ignore[arg-type]  # nobody looks at the address
        server = self._make_server()
        ends = (FakeTransport(server, isServer=True), FakeTransport(client, isServer=False))
        self._pumps.append(connect(server, ends[0], client, ends[1], greet=False))
        return succeed(client)

    def pump(self) -> None:
        for number in range(10):
            for pump in self._pumps[:number]:
                pump.flush()

    @property
    def connections(self) -> int:
        """How many were made; all must have been closed."""
        assert all(pump.clientIO.disconnected for pump in self._pumps)
        return len(self._pumps)


@implementer(IStreamClientEndpoint)
class NobodyThere:
    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return fail(ConnectionRefusedError())


@implementer(IStreamClientEndpoint)
class NeverThere:
    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return Deferred()


class BrokerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def endpoint(self, table: Mapping[str, str], config: Mapping[str, str] | None = None) -> MemoryEndpoint:
        processors = TellingNode(table, config).runtime_processors()
        return MemoryEndpoint(lambda: RemotingProtocol(processors, self.clock))

    def ask(self, endpoint: Any) -> "Deferred[NodeStatus]":
        asked = Deferred.fromCoroutine(status_of_broker(endpoint, self.clock))
        if isinstance(endpoint, MemoryEndpoint):
            endpoint.pump()
        return asked

    def test_a_node_of_ours_tells_its_state(self) -> None:
        state = replace(
            SLAVE_STATE, role="SYNC_MASTER", state="SERVING", lag_bytes=None, lag_seconds=None, peers=(PEER,)
        )
        endpoint = self.endpoint({**JAVA_TABLE, NODE_STATE_KEY: orjson.dumps(state.as_json()).decode()})
        offsets = Offsets(0, 70, 60, 50, 50)
        told = NodeState("1f" * 16, 1, 0, "SYNC_MASTER", "SERVING", offsets, peers=(PEER,), contact_limit=math.inf)
        expected = NodeStatus(told, running=True)
        self.assertEqual(self.successResultOf(self.ask(endpoint)), expected)
        self.assertEqual(endpoint.connections, 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_node_that_answers_does_not_hang_whatever_its_clock_says(self) -> None:
        state = replace(SLAVE_STATE, last_contact="2026-11-22T10:00:00.000Z", contact_limit=30.0)
        endpoint = self.endpoint({**JAVA_TABLE, NODE_STATE_KEY: orjson.dumps(state.as_json()).decode()})
        found = self.successResultOf(self.ask(endpoint))
        self.assertEqual(judge(found, now=seconds_of("2026-11-23T10:00:00Z") or 0.0), (ExitCode.FINE, ""))

    def test_a_java_broker_tells_role_and_range(self) -> None:
        endpoint = self.endpoint(JAVA_TABLE, {"brokerRole": "SYNC_MASTER", "brokerName": "broker-a"})
        expected = NodeStatus.of_other("SYNC_MASTER", True, 1073741824, 1073750000)
        self.assertEqual(self.successResultOf(self.ask(endpoint)), expected)
        self.assertEqual(endpoint.connections, 2)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_an_empty_java_broker_says_its_min_is_minus_one(self) -> None:
        endpoint = self.endpoint({"commitLogMinOffset": "-1", "commitLogMaxOffset": "0"})
        self.assertEqual(self.successResultOf(self.ask(endpoint)), NodeStatus.of_other("UNKNOWN", True, 0, 0))

    def test_a_table_that_makes_no_sense_is_a_remoting_error(self) -> None:
        tables: list[dict[str, str]] = [
            {},
            {"commitLogMinOffset": "0"},
            {"commitLogMinOffset": "x", "commitLogMaxOffset": "0"},
            {"commitLogMinOffset": "7", "commitLogMaxOffset": "6"},
            {**JAVA_TABLE, NODE_STATE_KEY: "{}"},
            {**JAVA_TABLE, NODE_STATE_KEY: "no json"},
            {**JAVA_TABLE, NODE_STATE_KEY: "[]"},
        ]
        for table in tables:
            with self.subTest(table):
                self.failureResultOf(self.ask(self.endpoint(table)), RemotingError)
                self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_peer_that_hangs_up_is_a_remoting_error(self) -> None:
        class HangsUp(Protocol):
            def dataReceived(self, data: bytes) -> None:
                assert self.transport is not None
                self.transport.loseConnection()

        self.failureResultOf(self.ask(MemoryEndpoint(HangsUp)), RemotingError)

    def test_a_peer_that_is_no_broker_is_a_remoting_error(self) -> None:
        class TalksHttp(Protocol):
            def connectionMade(self) -> None:
                assert self.transport is not None
                self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        self.failureResultOf(self.ask(MemoryEndpoint(TalksHttp)), RemotingError)

    def test_nobody_there(self) -> None:
        self.failureResultOf(self.ask(NobodyThere()), ConnectionRefusedError)

    def test_a_peer_that_never_answers_is_given_up(self) -> None:
        for endpoint in (NeverThere(), MemoryEndpoint(Protocol)):
            with self.subTest(type(endpoint).__name__):
                asked = self.ask(endpoint)
                self.assertNoResult(asked)
                self.clock.advance(CALL_TIMEOUT_SECONDS)
                self.failureResultOf(asked, TimeoutError)
