"""The client of etcd's calls, without a network: its time, its endpoints, and answers that are strange."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.coordination import etcd, streams
from rmqha.coordination.address import (
    CoordinatorAccess,
    CoordinatorAddress,
    CoordinatorKind,
    Endpoint,
    Login,
    login_of,
)
from rmqha.coordination.etcd import EtcdCoordinator, make_coordinator
from rmqha.coordination.gateway import range_of
from rmqha.coordination.interface import (
    Change,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    KeyValue,
    LeaseGone,
    Put,
)
from rmqha.coordination.watch import PROBE_SECONDS
from rmqha.kit.events import Event
from rmqha.settings.settings import SettingsError, make_settings
from tests.fixtures import new_folder

Answer = tuple[int, object]


def header(revision: int = 5, raft_term: int = 2, cluster_id: int = 7) -> dict[str, Any]:
    return {"header": {"cluster_id": str(cluster_id), "revision": str(revision), "raft_term": str(raft_term)}}


def error(code: int, message: str, status: int = 400) -> Answer:
    return status, {"code": code, "message": message}


class Wire(StringTransport):
    """A connection to a member: it takes whole requests."""

    def __init__(self, member: "Member", client: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Twisted's
        self._member = member
        self._client = client
        self.is_closed = False

    def write(self, data: bytes) -> None:
        super().write(data)  # type: ignore[no-untyped-call]  # Twisted's
        head, end, body = self.value().partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if end and len(body) == int(fields[b"content-length"]):
            self.clear()
            token = fields.get(b"authorization", b"").decode()
            self._member.takes(self, head.split()[1].decode(), json.loads(body), token)

    def send(self, data: bytes) -> None:
        """Bytes from the member."""
        if not self.is_closed:
            self._client.dataReceived(data)

    def abortConnection(self) -> None:
        self._member.clock.callLater(0, self.loseConnection)

    def loseConnection(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._client.connectionLost(Failure(ConnectionDone()))


@implementer(IStreamClientEndpoint)
class Member:
    """One endpoint. ``answer`` gives the status and the JSON for a path and a body; None: no answer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.connects: bool | None = True
        self.answer: Callable[[str, Any], Answer | None] = lambda path, body: (200, header())
        self.requests: list[tuple[str, Any]] = []
        self.tokens: list[str] = []
        self.watches: list[Wire] = []
        self.unanswered: list[Wire] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        if self.connects is None:
            return Deferred()
        if not self.connects:
            return fail(ConnectionRefusedError())
        protocol = protocolFactory.buildProtocol(None)  # type: ignore[arg-type]  # it does not look
        assert protocol is not None
        protocol.makeConnection(Wire(self, protocol))
        return succeed(protocol)

    def takes(self, wire: Wire, path: str, body: Any, token: str) -> None:
        self.requests.append((path, body))
        self.tokens.append(token)
        if path == "/v3/watch":
            self.watches.append(wire)
            self.clock.callLater(0, wire.send, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self.tell(created=True)
            return
        answered = self.answer(path, body)
        if answered is None:
            self.unanswered.append(wire)
        else:
            self.give(wire, *answered)

    def give(self, wire: Wire, status: int, content: object) -> None:
        """Answer a request."""
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        self.clock.callLater(0, wire.send, head + text)

    def tell(self, revision: int = 5, raft_term: int = 2, **fields: Any) -> None:
        """A line of the last watch."""
        self.line(json.dumps({"result": {**header(revision, raft_term), **fields}}).encode() + b"\n")

    def line(self, line: bytes) -> None:
        """These bytes of the last watch."""
        self.clock.callLater(0, self.watches[-1].send, b"%x\r\n%s\r\n" % (len(line), line))


class Case(SynchronousTestCase):
    members = 1

    def setUp(self) -> None:
        self.clock = Clock()
        self.all = [Member(self.clock) for _ in range(self.members)]
        self.member = self.all[0]
        by_address = {f"m{number}:1": member for number, member in enumerate(self.all)}
        self.patch(etcd, "make_endpoint", lambda reactor, address: by_address[address])
        self.client = self.make()

    def make(self, login: Login | None = None) -> EtcdCoordinator:
        address = CoordinatorAddress.parse("etcd:" + ",".join(f"m{number}:1" for number in range(self.members)))
        client = EtcdCoordinator(self.clock, address, login=lambda: login)
        self.addCleanup(client.close)
        return client

    def result(self, call: Deferred[Any]) -> Any:
        self.settle()
        return self.successResultOf(call)

    def failure(self, call: Deferred[Any], kind: type[CoordinatorError]) -> str:
        self.settle()
        return str(self.failureResultOf(call, kind).value)

    def settle(self) -> None:
        for _ in range(20):
            self.clock.advance(0)


class AnswerTests(Case):
    def test_errors_are_told_apart(self) -> None:
        for answer, kind in (
            (error(5, "etcdserver: requested lease not found", 404), LeaseGone),
            (error(3, "etcdserver: duplicate key given in txn request"), CoordinatorRefused),
            (error(7, "etcdserver: permission denied", 403), CoordinatorRefused),
            (error(8, "etcdserver: mvcc: database space exceeded", 429), CoordinatorRefused),
            (error(8, "etcdserver: too many requests", 429), CoordinatorUnavailable),
            (error(14, "etcdserver: no leader", 503), CoordinatorUnavailable),
            (error(14, "etcdserver: request timed out", 503), CoordinatorUnavailable),
            (error(2, "not a primary lessor", 500), CoordinatorUnavailable),
            (error(16, "etcdserver: invalid auth token", 401), CoordinatorRefused),
            ((404, b"Not Found"), CoordinatorRefused),
            ((502, b"<html>a proxy</html>"), CoordinatorUnavailable),
            ((200, b"hello"), CoordinatorRefused),
            ((200, b"[]"), CoordinatorRefused),
            ((200, {}), CoordinatorRefused),
            ((200, {"header": {"revision": "x"}}), CoordinatorRefused),
            ((200, {**header(), "kvs": [{"key": "*"}]}), CoordinatorRefused),
            ((200, {**header(), "kvs": [{}]}), CoordinatorRefused),
            ((200, {**header(), "kvs": 5}), CoordinatorRefused),
            ((200, {"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}), CoordinatorUnavailable),
        ):
            self.member.answer = lambda path, body, answer=answer: answer  # type: ignore[misc]  # bound now
            words = self.failure(self.client.range("/"), kind)
            self.assertRegex(words, r"\A[A-Z].*[a-z.?)>]\Z|http", words)

    def test_a_range_in_the_words_of_newer_versions(self) -> None:
        key = {"key": base64.b64encode(b"/k").decode(), "createRevision": "9", "create_revision": 3, "mod_revision": 4}
        self.member.answer = lambda path, body: (200, {**header(9), "kvs": [key], "more": False, "count": "1"})
        snapshot = self.result(self.client.range("/"))
        self.assertEqual((snapshot.revision, snapshot.keys), (9, {"/k": KeyValue("/k", b"", 3, 4, 0)}))

    def test_a_lease_that_has_ended(self) -> None:
        self.member.answer = lambda path, body: (200, {"result": {**header(), "ID": "5"}})
        self.failure(self.client.keep_alive(5), LeaseGone)

    def test_an_answer_without_end_is_given_up(self) -> None:
        self.patch(streams, "MAX_ANSWER_BYTES", 100)
        self.member.answer = lambda path, body: (200, bytes(101))
        self.assertIn("larger than 100 bytes", self.failure(self.client.range("/"), CoordinatorUnavailable))

    def test_another_cluster_is_noticed(self) -> None:
        self.assertIsNone(self.client.cluster_id)
        self.result(self.client.range("/"))
        self.assertEqual(self.client.cluster_id, 7)
        self.member.answer = lambda path, body: (200, header(1, 1, 8))
        self.result(self.client.range("/"))
        self.assertEqual(self.client.cluster_id, 8)

    def test_prefixes(self) -> None:
        self.assertEqual(range_of(""), {"key": "AA==", "range_end": "AA=="})
        self.assertEqual(base64.b64decode(range_of("/r/")["range_end"]), b"/r0")


class LoginTests(Case):
    def test_a_token_is_got_once_and_renewed(self) -> None:
        valid = "1"

        def answer(path: str, body: Any) -> Answer:
            if path.endswith("authenticate"):
                self.assertEqual(body, {"name": "u", "password": "p"})
                return 200, {**header(), "token": valid}
            return (200, header()) if self.member.tokens[-1] == valid else error(16, "etcdserver: invalid auth token")

        self.member.answer = answer
        client = self.make(Login("u", "p"))
        self.result(client.range("/"))
        self.result(client.range("/"))
        self.assertEqual(self.member.tokens, ["", "1", "1"])
        valid = "2"
        self.result(client.transact([], [Put("/k", b"")]))
        self.assertEqual(self.member.tokens[3:], ["1", "", "2"])

    def test_a_token_that_is_never_valid_is_not_asked_for_for_ever(self) -> None:
        self.member.answer = lambda path, body: (
            (200, {**header(), "token": "t"}) if path.endswith("authenticate") else error(16, "invalid auth token")
        )
        self.failure(self.make(Login("u", "p")).range("/"), CoordinatorRefused)
        self.assertEqual(len(self.member.requests), 4)

    def test_where_there_are_no_logins_nobody_logs_in(self) -> None:
        self.member.answer = lambda path, body: (
            error(9, "etcdserver: authentication is not enabled") if path.endswith("authenticate") else (200, header())
        )
        client = self.make(Login("u", "p"))
        self.result(client.range("/"))
        self.result(client.range("/"))
        self.assertEqual([path for path, _ in self.member.requests[1:]], ["/v3/kv/range"] * 2)

    def test_a_password_is_in_no_text(self) -> None:
        self.assertNotIn("secret", repr(Login("u", "secret")))


class ThreeTests(Case):
    members = 3

    def asked(self) -> list[int]:
        return [len(member.requests) for member in self.all]

    def test_it_stays_with_the_endpoint_that_answers(self) -> None:
        self.all[0].connects = False
        for _ in range(3):
            self.result(self.client.range("/"))
        self.assertEqual(self.asked(), [0, 3, 0])
        self.all[1].answer = lambda path, body: error(14, "etcdserver: no leader", 503)
        self.result(self.client.range("/"))
        self.result(self.client.range("/"))
        self.assertEqual(self.asked(), [0, 4, 2])

    def test_all_are_asked_within_the_time_of_one_call(self) -> None:
        for member in self.all:
            member.answer = lambda path, body: None
        call = self.client.range("/")
        self.clock.pump([0.1] * 19)
        self.assertNoResult(call)
        self.assertEqual(self.asked(), [1, 1, 1])
        self.clock.advance(0.1)
        self.failureResultOf(call, CoordinatorUnavailable)

    def test_silent_connections_leave_time_for_the_others(self) -> None:
        self.all[0].connects = self.all[1].connects = None
        calls: list[Deferred[Any]] = [self.client.range("/"), self.client.transact([], [Put("/k", b"")])]
        self.clock.pump([0.1] * 15)
        for call in calls:
            self.successResultOf(call)

    def test_what_may_have_been_done_is_not_sent_again(self) -> None:
        self.all[0].answer = lambda path, body: None
        call = self.client.transact([], [Put("/k", b"")])
        self.clock.pump([0.1] * 25)
        self.failureResultOf(call, CoordinatorUnavailable)
        self.assertEqual(self.asked(), [1, 0, 0])
        self.result(self.client.transact([], [Put("/k", b"")]))
        self.assertEqual(self.asked(), [1, 1, 0])  # it has moved on
        self.all[1].answer = lambda path, body: error(14, "etcdserver: request timed out", 503)
        self.failure(self.client.transact([], [Put("/k", b"")]), CoordinatorUnavailable)
        self.assertEqual(self.asked(), [1, 2, 0])

    def test_what_was_certainly_not_done_is_sent_to_another(self) -> None:
        self.all[0].connects = False
        self.all[1].answer = lambda path, body: error(14, "etcdserver: no leader", 503)
        self.result(self.client.transact([], [Put("/k", b"")]))
        self.assertEqual(self.asked(), [0, 1, 1])

    def test_a_refusal_is_not_asked_for_elsewhere(self) -> None:
        self.all[0].answer = lambda path, body: error(7, "etcdserver: permission denied", 403)
        self.failure(self.client.range("/"), CoordinatorRefused)
        self.assertEqual(self.asked(), [1, 0, 0])

    def test_a_member_that_is_behind_is_not_believed(self) -> None:
        """Of the calls only those for the time of a lease can be answered by one."""
        self.all[0].answer = lambda path, body: (200, header(raft_term=9))
        self.result(self.client.range("/"))
        self.all[0].connects = False

        def answer(raft_term: int, seconds: int, path: str) -> Answer:
            found = {**header(raft_term=raft_term), "TTL": str(seconds), "grantedTTL": "15"}
            return 200, {"result": found} if path.endswith("keepalive") else found

        self.all[1].answer = lambda path, body: answer(2, 5, path)
        self.all[2].answer = lambda path, body: answer(9, 7, path)
        for ask in (self.client.keep_alive, self.client.time_to_live):
            self.client._endpoints.sort(key=lambda each: ("m0" in str(each), str(each)))
            self.assertEqual(self.result(ask(1)), 7)
        self.assertEqual(self.asked(), [1, 2, 2])

    def test_what_a_majority_answers_in_an_older_term_proves_that_all_went_back(self) -> None:
        self.all[0].answer = lambda path, body: (200, header(raft_term=9))
        self.result(self.client.range("/"))
        self.all[0].answer = lambda path, body: (200, {**header(revision=3, raft_term=2), "TTL": "7"})
        self.failure(self.client.keep_alive(1), CoordinatorUnavailable)
        self.client._endpoints.sort(key=str)  # the failed call has moved on
        with capturedLogs() as logged:
            self.assertEqual(self.result(self.client.range("/")).revision, 3)
            self.assertEqual(self.result(self.client.range("/")).revision, 3)
        self.assertEqual(self.result(self.client.keep_alive(1)), 7)
        told = [(each["before"], each["term"]) for each in logged if each.get("event") == Event.COORDINATOR_WENT_BACK]
        self.assertEqual(told, [(9, 2)])

    def test_an_answer_that_comes_late_proves_nothing(self) -> None:
        """It was asked for before the newer term was known."""
        self.all[0].answer = lambda path, body: None
        late = self.client.transact([], [Put("/k", b"")])
        self.settle()
        self.all[0].answer = lambda path, body: (200, header(raft_term=9))
        self.result(self.client.range("/"))
        with capturedLogs() as logged:
            self.all[0].give(self.all[0].unanswered[0], 200, header(raft_term=2))
            self.failure(late, CoordinatorUnavailable)
        self.assertEqual([each for each in logged if each.get("event") == Event.COORDINATOR_WENT_BACK], [])

    def test_calls_that_fail_together_move_on_once(self) -> None:
        self.all[0].answer = lambda path, body: None
        calls = [self.client.transact([], [Put("/k", b"")]) for _ in range(3)]
        self.clock.pump([0.1] * 25)
        for call in calls:
            self.failureResultOf(call, CoordinatorUnavailable)
        self.result(self.client.range("/"))
        self.assertEqual(self.asked(), [3, 1, 0])

    def test_a_cancelled_call_asks_nobody_else(self) -> None:
        self.all[0].answer = lambda path, body: None
        calls: list[Deferred[Any]] = [self.client.range("/"), self.client.transact([], [Put("/k", b"")])]
        for call in calls:
            call.cancel()
            self.failureResultOf(call, CancelledError)
        self.settle()
        self.assertEqual(self.asked(), [2, 0, 0])
        self.assertEqual(self.clock.getDelayedCalls(), [])


class WatchTests(Case):
    def setUp(self) -> None:
        super().setUp()
        self.changes: list[tuple[int, list[Change]]] = []
        self.errors: list[CoordinatorError] = []

    def watch(self, revision: int = 5) -> Any:
        watch = self.client.watch(
            "/", revision, lambda at, changes: self.changes.append((at, list(changes))), self.errors.append
        )
        self.settle()
        return watch

    def put_event(self, key: str, revision: int) -> dict[str, Any]:
        found = {"key": base64.b64encode(key.encode()).decode(), "mod_revision": str(revision)}
        return {"type": "PUT", "kv": {**found, "create_revision": str(revision), "value": ""}}

    def test_changes_of_one_revision_come_together_and_old_ones_never_again(self) -> None:
        self.watch()
        events = [self.put_event("/old", 5), self.put_event("/a", 6), self.put_event("/b", 6), self.put_event("/a", 8)]
        self.member.tell(8, events=events)
        self.member.tell(8, events=events[1:])
        self.settle()
        self.assertEqual([(at, [each.key for each in changes]) for at, changes in self.changes], [
            (6, ["/a", "/b"]), (8, ["/a"]),
        ])  # fmt: skip
        self.assertEqual(self.errors, [])

    def test_a_line_in_pieces_and_lines_together(self) -> None:
        self.watch()
        lines = b"".join(
            json.dumps({"result": {**header(n), "events": [self.put_event("/a", n)]}}).encode() + b"\n" for n in (6, 7)
        )
        for start in range(0, len(lines), 10):
            self.member.line(lines[start : start + 10])
        self.settle()
        self.assertEqual([at for at, _ in self.changes], [6, 7])

    def test_a_line_without_end_ends_the_watch(self) -> None:
        self.patch(streams, "MAX_LINE_BYTES", 1000)
        self.watch()
        for _ in range(11):
            self.member.line(b"x" * 100)
        self.settle()
        self.assertEqual(len(self.errors), 1)
        self.assertIn("longer than 1000 bytes", str(self.errors[0]))
        self.assertTrue(self.member.watches[0].is_closed)

    def test_strange_lines_end_the_watch(self) -> None:
        for line in (
            b"{\n",
            b"[]\n",
            b'{"result":5}\n',
            b'{"result":{"header":{},"events":[{}]}}\n',
            b'{"error":{}}\n',
        ):
            self.errors.clear()
            self.watch()
            self.member.line(line)
            self.settle()
            self.assertEqual(len(self.errors), 1, line)
            self.assertIsInstance(self.errors[0], CoordinatorUnavailable)

    def test_a_compaction_ends_the_watch(self) -> None:
        self.watch(1)
        self.member.tell(canceled=True, compact_revision="4")
        self.settle()
        self.assertEqual(list(map(str, self.errors)), ["The changes up to revision 4 are no longer kept."])

    def test_a_silent_watch_is_probed_and_goes_on(self) -> None:
        self.watch()
        for _ in range(5):
            self.clock.advance(PROBE_SECONDS)
            self.settle()
        self.assertEqual([path for path, _ in self.member.requests], ["/v3/watch", *["/v3/kv/range"] * 5])
        self.assertEqual(self.errors, [])

    def test_a_silent_watch_that_has_missed_something_is_opened_anew(self) -> None:
        self.watch()
        self.member.answer = lambda path, body: (200, header(9))
        self.clock.advance(PROBE_SECONDS)
        self.settle()
        self.assertEqual(len(self.member.watches), 2)
        self.assertTrue(self.member.watches[0].is_closed)
        self.member.tell(9, events=[self.put_event("/a", 7)])
        self.settle()
        self.assertEqual([at for at, _ in self.changes], [7])
        self.assertEqual(self.member.requests[-1][1]["create_request"]["start_revision"], "6")
        self.member.tell(9)  # progress: up to here all was told
        self.clock.advance(PROBE_SECONDS)
        self.settle()
        self.assertEqual(len(self.member.watches), 2)
        self.assertEqual(self.errors, [])

    def test_a_frozen_endpoint_is_noticed(self) -> None:
        self.watch()
        self.member.answer = lambda path, body: None
        self.clock.advance(PROBE_SECONDS)
        self.clock.advance(self.client.timeout)
        self.assertEqual(len(self.errors), 1)
        self.assertIsInstance(self.errors[0], CoordinatorUnavailable)
        self.settle()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_watch_that_is_stopped_is_silent(self) -> None:
        watch = self.watch()
        self.member.tell(6, events=[self.put_event("/a", 6)])
        watch.stop()
        watch.stop()
        self.settle()
        self.assertEqual((self.changes, self.errors, self.member.watches[0].is_closed), ([], [], True))
        self.client.watch("/", 5, lambda at, changes: None, self.errors.append).stop()
        self.settle()
        self.assertEqual((self.errors, len(self.member.watches)), ([], 1))

    def test_an_endpoint_that_is_away_ends_the_watch(self) -> None:
        self.member.connects = False
        self.watch()
        self.assertEqual(len(self.errors), 1)


class AddressTests(SynchronousTestCase):
    def test_addresses(self) -> None:
        found = CoordinatorAddress.parse("etcd:https://a:2379, b:2380,https://[::1]:1/")
        expected = (Endpoint("a", 2379, True), Endpoint("b", 2380, True), Endpoint("::1", 1, True))
        self.assertEqual((found.kind, found.endpoints), (CoordinatorKind.ETCD, expected))
        self.assertEqual(str(found), "etcd:https://a:2379,b:2380,[::1]:1")
        self.assertEqual(CoordinatorAddress.parse(str(found)), found)
        plain = CoordinatorAddress.parse("witness:10.0.0.1:9877")
        self.assertEqual((plain.kind, plain.uses_tls, str(plain)), (
            CoordinatorKind.WITNESS, False, "witness:10.0.0.1:9877",
        ))  # fmt: skip

    def test_wrong_ones_are_told(self) -> None:
        for text, words in (
            ("", "is written like etcd:https://"),
            ("zookeeper:a:1", "is written like"),
            ("etcd", "needs an address"),
            ("etcd:", "needs an address"),
            ("etcd:a", "is not an address of a coordinator"),
            ("etcd:a:1,,b:1", "is not an address"),
            ("etcd:ftp://a:1", "is not an address"),
            ("etcd:a:1/x", "is not an address"),
            ("etcd:a:0", "a port is between"),
            ("etcd:a:65536", "a port is between"),
            ("etcd:a:1,a:1", "twice"),
            ("etcd:http://a:1,https://b:1", "with and without TLS"),
            ("etcd:ä:1", "ASCII"),
            ("etcd:https://root:secret@a:1", "do not belong into an address"),
            ("etcd:" + ",".join(f"a{number}:1" for number in range(17)), "at most 16"),
        ):
            with self.subTest(text), self.assertRaises(SettingsError) as raised:
                CoordinatorAddress.parse(text)
            self.assertIn(words, str(raised.exception))
            self.assertNotIn("secret", str(raised.exception))

    def test_a_login_comes_from_a_file_or_from_the_environment(self) -> None:
        folder = new_folder(self)
        path = folder / "login"
        path.write_text("user=u\npassword=from the file\n")
        environment = {"RMQHA_COORDINATOR_USER": "e", "RMQHA_COORDINATOR_PASSWORD": "from it"}
        self.assertEqual(login_of(path, environment), Login("u", "from the file"))
        self.assertEqual(login_of(None, environment), Login("e", "from it"))
        self.assertIsNone(login_of(None, {}))
        del environment["RMQHA_COORDINATOR_USER"]
        self.assertRaisesRegex(SettingsError, "RMQHA_COORDINATOR_USER must be set", login_of, None, environment)
        path.write_text("user=u\n")
        self.assertRaisesRegex(SettingsError, "password is missing", login_of, path)
        self.assertRaisesRegex(SettingsError, "No such file", login_of, folder / "none")

    def test_settings_name_the_files(self) -> None:
        settings = make_settings({"failoverLoginFile": "/l", "failoverCaFile": "/ca", "failoverCertFile": "/c"})
        self.assertEqual(CoordinatorAccess.of(settings), CoordinatorAccess(Path("/l"), Path("/ca"), Path("/c"), None))

    def test_certificates_without_tls_are_a_mistake(self) -> None:
        address = CoordinatorAddress.parse("etcd:a:1")
        access = CoordinatorAccess(authorities=Path("/ca.pem"))
        self.assertRaisesRegex(SettingsError, "write https://", make_coordinator, Clock(), address, access)
