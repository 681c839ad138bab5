"""The witness without processes: commits, leases, a disk that is full or fails, watches, and what strangers send."""

import base64
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination import state
from rmqha.coordination.address import Login
from rmqha.coordination.interface import Change, CoordinatorRefused, CoordinatorUnavailable, LeaseGone, Put
from rmqha.coordination.state import End, KeysAndLeases, Write
from rmqha.coordination.witness import http, shares, witnessservice
from rmqha.coordination.witness.calls import MAX_TOKENS, CallRefused, Logins, WitnessCalls
from rmqha.coordination.witness.http import WitnessFactory
from rmqha.coordination.witness.witnessservice import Commit, WitnessService
from tests.coordination.peers import PeersDouble
from tests.fixtures import new_folder


class Thread:
    """Runs functions in this thread: at once, or when the test says so."""

    def __init__(self) -> None:
        self.is_slow = False
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, function: Callable[[], None]) -> Deferred[None]:
        done: Deferred[None] = Deferred()

        def run() -> None:
            try:
                function()
            except Exception:  # as deferToThread does
                done.errback(Failure())
            else:
                done.callback(None)

        self.waiting.append(run)
        if not self.is_slow:
            self.go_on()
        return done

    def go_on(self) -> None:
        """Run what waits."""
        waiting, self.waiting = self.waiting, []
        for run in waiting:
            run()


class Watcher:
    """Takes changes while it is ready."""

    def __init__(self) -> None:
        self.is_ready = True
        self.told: list[tuple[int, dict[str, bytes | None]]] = []
        self.revisions: list[int] = []
        self.ends: list[int] = []

    def changed(self, revision: int, changes: tuple[Change, ...]) -> None:
        self.told.append((revision, {each.key: None if each.value is None else each.value.value for each in changes}))

    def progress(self, revision: int) -> None:
        self.revisions.append(revision)

    def ended(self, compacted: int) -> None:
        self.ends.append(compacted)


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.asleep = 0.0
        self.thread = Thread()
        self.folder = new_folder(self)
        self.witness = self.start()

    def start(self, folder: Path | None = None) -> WitnessService:
        witness = WitnessService(self.clock, folder or self.folder, self.thread, self.boot_seconds)
        witness.startService()
        self.addCleanup(lambda: self.stop(witness) if witness.running else None)
        return witness

    def boot_seconds(self) -> float:
        return self.clock.seconds() + self.asleep

    def stop(self, witness: WitnessService) -> None:
        self.thread.is_slow = False
        self.thread.go_on()
        self.successResultOf(witness.stopService())

    def ask(self, decide: Callable[[Commit], Any]) -> Deferred[Any]:
        asked = self.witness.ask(decide)
        self.clock.advance(0)
        return asked

    def put(self, key: str, value: bytes = b"", lease: int = 0) -> Deferred[Any]:
        def decide(commit: Commit) -> int:
            write = commit.state.transaction([], [Put(key, value, lease)])
            assert write is not None
            commit.do(write)
            return commit.state.revision

        return self.ask(decide)

    def keys(self) -> dict[str, bytes]:
        found = self.successResultOf(self.ask(lambda commit: dict(commit.state.keys)))
        return {key: each.value for key, each in found.items()}

    def grant(self, ttl: int) -> int:
        def decide(commit: Commit) -> int:
            grant = commit.state.grant(ttl, self.witness.new_lease())
            commit.do(grant)
            return grant.lease

        lease: int = self.successResultOf(self.ask(decide))
        return lease

    def pass_time(self, seconds: float) -> None:
        self.clock.pump([0.5] * round(2 * seconds))
        self.clock.advance(0)


class CommitTests(Case):
    def test_no_answer_comes_before_the_disk_has_it(self) -> None:
        self.thread.is_slow = True
        first = self.put("/k", b"1")
        watcher = Watcher()
        self.witness.pump(self.witness.watch("", 1, watcher))
        others = [self.put("/k", b"2"), self.ask(lambda commit: commit.state.keys["/k"].value)]
        self.assertNoResult(first)
        self.assertEqual(len(self.thread.waiting), 1)
        self.thread.go_on()
        self.successResultOf(first)
        self.assertEqual(watcher.told, [(2, {"/k": b"1"})])
        for other in others:  # the read has seen a write that is on its way
            self.clock.advance(0)
            self.assertNoResult(other)
        self.thread.go_on()
        self.assertEqual([self.successResultOf(other) for other in others], [3, b"2"])

    def test_calls_that_wait_share_an_entry(self) -> None:
        self.thread.is_slow = True
        calls = [self.put(f"/{number}") for number in range(50)]
        self.thread.go_on()
        self.clock.advance(0)
        self.assertEqual(len(self.thread.waiting), 1)
        self.thread.go_on()
        for call in calls:
            self.successResultOf(call)

    def test_a_turn_is_short_however_many_calls_wait(self) -> None:
        turns: list[Commit] = []

        def slow(commit: Commit) -> None:
            self.clock.rightNow += 0.004
            turns.append(commit)

        calls = [self.witness.ask(slow) for _ in range(20)]
        self.clock.advance(0)
        for call in calls:
            self.successResultOf(call)
        self.assertEqual([turns.count(commit) for commit in dict.fromkeys(turns)], [3, 3, 3, 3, 3, 3, 2])

    def test_too_many_calls_are_turned_away(self) -> None:
        calls = [self.witness.ask(lambda _: None) for _ in range(witnessservice.MAX_WAITING)]
        self.failureResultOf(self.witness.ask(lambda _: None), CoordinatorUnavailable)
        self.clock.advance(0)
        self.successResultOf(calls[-1])

    def test_a_bug_in_one_call_is_not_the_others_fault(self) -> None:
        bad = self.witness.ask(lambda commit: 1 // 0)
        good = self.put("/k")
        self.failureResultOf(bad, CoordinatorUnavailable)
        self.successResultOf(good)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_a_stop_answers_everything(self) -> None:
        self.thread.is_slow = True
        on_its_way, waiting = self.put("/a"), self.put("/b")
        stopping = self.witness.stopService()
        self.failureResultOf(waiting, CoordinatorUnavailable)
        self.assertNoResult(stopping)
        self.thread.go_on()
        self.successResultOf(stopping)
        self.successResultOf(on_its_way)
        self.thread.is_slow = False
        self.witness = self.start()
        self.assertEqual(self.keys(), {"/a": b""})


class LeaseTests(Case):
    def test_a_lease_ends_with_its_keys_and_the_journal_knows(self) -> None:
        self.successResultOf(self.put("/leader", b"a", self.grant(3)))
        self.pass_time(2.5)
        self.assertEqual(self.keys(), {"/leader": b"a"})
        self.pass_time(1)
        self.assertEqual(self.keys(), {})
        self.stop(self.witness)
        self.witness = self.start()
        self.assertEqual((self.keys(), self.witness.state.leases, self.witness.revision), ({}, {}, 3))

    def test_a_start_gives_each_lease_its_whole_time(self) -> None:
        lease = self.grant(6)
        self.successResultOf(self.put("/leader", b"a", lease))
        self.pass_time(5)
        self.stop(self.witness)
        self.witness = self.start()
        self.pass_time(5.5)
        self.assertEqual(self.keys(), {"/leader": b"a"})
        self.pass_time(1)
        self.assertEqual(self.keys(), {})

    def test_a_machine_that_slept_ends_no_lease_at_once(self) -> None:
        lease = self.grant(6)
        self.pass_time(4)
        self.asleep = 3600
        self.pass_time(1)
        self.assertEqual(self.witness.keep_alive(lease), 6)
        self.pass_time(7)
        self.assertRaises(LeaseGone, self.witness.keep_alive, lease)

    def test_a_slow_disk_does_not_keep_leases_from_living(self) -> None:
        lease = self.grant(3)
        self.successResultOf(self.put("/leader", b"a", lease))
        self.thread.is_slow = True
        self.put("/k")
        for _ in range(10):
            self.pass_time(1)
            self.assertEqual(self.witness.keep_alive(lease), 3)
        self.thread.is_slow = False
        self.thread.go_on()
        self.assertEqual(self.keys(), {"/leader": b"a", "/k": b""})


class DiskTests(Case):
    def fail_writes(self, number: int) -> None:
        def failing(fd: int, data: Any, offset: int) -> int:
            raise OSError(number, os.strerror(number))

        self.patch(os, "pwrite", failing)

    def test_a_full_disk_refuses_writes_and_nothing_else(self) -> None:
        lease, short = self.grant(10), self.grant(2)
        self.successResultOf(self.put("/leader", b"a", lease))
        self.successResultOf(self.put("/short", b"", short))
        pwrite = os.pwrite
        self.fail_writes(errno.ENOSPC)
        failure = self.failureResultOf(self.put("/k"), CoordinatorRefused)
        self.assertEqual(str(failure.value), "The disk of the witness is full: it cannot write. Make room.")
        for _ in range(20):
            self.pass_time(1)
            self.assertEqual(self.witness.keep_alive(lease), 10)
            self.assertEqual(self.keys(), {"/leader": b"a", "/short": b""})
        self.patch(os, "pwrite", pwrite)
        self.pass_time(1)
        self.successResultOf(self.put("/k"))
        self.assertEqual(self.keys(), {"/leader": b"a", "/k": b""})

    def test_a_lease_that_was_kept_alive_while_the_disk_filled_up_lives(self) -> None:
        lease = self.grant(3)
        self.pass_time(2.5)
        self.thread.is_slow = True
        self.put("/k").addErrback(lambda _: None)
        self.assertEqual(self.witness.keep_alive(lease), 3)
        self.fail_writes(errno.ENOSPC)
        self.thread.is_slow = False
        self.thread.go_on()
        self.pass_time(2)
        self.assertEqual(self.witness.state.overdue(self.clock.seconds()), [])

    def test_a_disk_that_fails_ends_all_answers(self) -> None:
        lease = self.grant(10)
        watcher = Watcher()
        self.witness.pump(self.witness.watch("", 1, watcher))
        self.fail_writes(errno.EIO)
        failure = self.failureResultOf(self.put("/k"), CoordinatorUnavailable)
        self.assertIn("Look after it, and start the process again", str(failure.value))
        self.failureResultOf(self.ask(lambda commit: commit.state.keys), CoordinatorUnavailable)
        self.assertRaises(CoordinatorUnavailable, self.witness.keep_alive, lease)
        self.assertEqual(watcher.ends, [0])
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)

    def test_a_long_journal_is_replaced_while_calls_wait(self) -> None:
        for number in range(100):
            self.successResultOf(self.put("/k", bytes([number]) * 60_000))
        (path,) = self.folder.glob("journal-*")
        self.assertLess(path.stat().st_size, 4.5 * 1024**2)
        self.assertEqual(self.keys(), {"/k": bytes([99]) * 60_000})


class WatchTests(Case):
    def test_a_watch_that_is_not_read_gets_the_rest_later(self) -> None:
        watcher = Watcher()
        watch = self.witness.watch("/a", 1, watcher)
        self.witness.pump(watch)
        self.successResultOf(self.put("/a", b"1"))
        watcher.is_ready = False
        for number in (b"2", b"3"):
            self.successResultOf(self.put("/a", number))
            self.successResultOf(self.put("/b", number))
        self.assertEqual(watcher.told, [(2, {"/a": b"1"})])
        watcher.is_ready = True
        self.witness.pump(watch)
        self.assertEqual(watcher.told[1:], [(3, {"/a": b"2"}), (5, {"/a": b"3"})])

    def test_a_watch_that_is_not_read_for_long_ends(self) -> None:
        watcher = Watcher()
        watch = self.witness.watch("", 1, watcher)
        watcher.is_ready = False
        self.patch(state, "MAX_CHANGES", 20)
        for _ in range(20):
            self.successResultOf(self.put("/a"))
        self.witness.pump(watch)
        self.assertEqual((watcher.ends, self.witness.watch_count), ([], 1))
        self.successResultOf(self.put("/a"))
        self.assertEqual((watcher.told, watcher.ends, self.witness.watch_count), ([], [2], 0))

    def test_a_silent_watch_hears_how_far_it_is(self) -> None:
        watcher = Watcher()
        self.witness.pump(self.witness.watch("/none", 1, watcher))
        self.successResultOf(self.put("/a"))
        self.pass_time(4)
        self.assertEqual(watcher.revisions, [2, 2])

    def test_watches_are_limited(self) -> None:
        watches = [self.witness.watch("", 1, Watcher()) for _ in range(witnessservice.MAX_WATCHES)]
        self.assertRaises(CoordinatorRefused, self.witness.watch, "", 1, Watcher())
        self.witness.forget(watches[0])
        self.witness.watch("", 1, Watcher())


def text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ALL = {"key": "AA==", "range_end": "AA=="}


class PortTests(Case):
    def setUp(self) -> None:
        super().setUp()
        self.logins = Logins(None)
        self.peers = PeersDouble()
        self.factory = WitnessFactory(WitnessCalls(self.witness, self.logins), self.clock, self.peers)

    def connect(self) -> tuple[Any, StringTransport]:
        channel = self.factory.buildProtocol(None)
        assert channel is not None
        transport = StringTransport()
        channel.makeConnection(transport)
        return channel, transport

    def send(self, path: str, body: object, headers: str = "", method: str = "POST") -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        channel, transport = self.connect()
        head = f"{method} {path} HTTP/1.1\r\nHost: w\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
        channel.dataReceived(head.encode() + content)
        self.clock.advance(0)
        answer = transport.value()
        channel.connectionLost(Failure(ConnectionError()))
        head_bytes, _, found = answer.partition(b"\r\n\r\n")
        return int(head_bytes.split()[1]), json.loads(found) if found else None

    def test_what_it_does_not_know_is_refused_in_words(self) -> None:
        compare = {"key": text64("k"), "target": "VERSION", "version": "1"}
        for path, body, words in (
            ("/v3/kv/put", {}, "does not know this call"),
            ("/", {}, "does not know this call"),
            ("/v3/kv/range", {**ALL, "limit": "5"}, "the field 'limit'"),
            ("/v3/kv/range", {"key": text64("a")}, "only ranges of all keys with a prefix"),
            ("/v3/kv/range", {"key": text64("a"), "range_end": text64("c")}, "only ranges"),
            ("/v3/lease/grant", {"TTL": "5", "ID": "7"}, "chooses the ids"),
            ("/v3/kv/txn", {"failure": []}, "the field 'failure'"),
            ("/v3/kv/txn", {"compare": [compare]}, "the field 'version'"),
            ("/v3/kv/txn", {"compare": [{"key": text64("k"), "result": "GREATER"}]}, "only with EQUAL"),
            ("/v3/kv/txn", {"compare": [{"key": text64("k"), "target": "LEASE"}]}, "CREATE, MOD or VALUE"),
            ("/v3/watch", {"cancel_request": {}}, "the field 'cancel_request'"),
        ):
            status, answer = self.send(path, body)
            self.assertEqual((status, answer["code"]), (501, 12), path)
            self.assertIn(words, answer["message"])
        self.assertEqual(self.send("/v3/kv/range", ALL, method="GET")[0], 501)

    def test_wrong_bodies_are_refused_and_change_nothing(self) -> None:
        put = {"request_put": {"key": text64("k"), "value": "AA=="}}
        deep = b"[" * 100_000
        wrong: tuple[object, ...] = (
            b"", b"null", b"[]", b"{", b"\xff", deep, b'{"compare":' + deep, b'{"compare":{}}', b'{"success":[null]}',
            {"success": [{}]},
            {"success": [{**put, "request_delete_range": {"key": text64("k")}}]},
            {"success": [{"request_put": {"key": "*", "value": ""}}]},
            {"success": [{"request_put": {"key": "_-8=", "value": ""}}]},
            {"success": [{"request_put": {"key": base64.b64encode(b"\xff").decode(), "value": ""}}]},
            {"success": [{"request_put": {"key": "", "value": ""}}]},
            {"success": [{"request_put": {"key": text64("k"), "value": 5}}]},
            {"success": [{"request_put": {"key": text64("k"), "lease": "x"}}]},
            {"success": [{"request_put": {"key": text64("k"), "lease": 1.5}}]},
            {"success": [{"request_put": {"key": text64("k"), "lease": True}}]},
            {"success": [{"request_put": {"key": text64("k"), "lease": str(2**63)}}]},
            {"success": [{"request_put": {"key": text64("k"), "lease": "9" * 10_000}}]},
            {"success": [{"request_put": {"key": text64("k"), "lease": "\u0661"}}]},
            {"success": [put, put]},
            {"success": [{"request_put": {"key": text64(str(n)), "value": ""}} for n in range(100)]},
            {"success": [{"request_put": {"key": text64("k"), "value": text64("x" * 70_000)}}]},
        )  # fmt: skip
        for body in wrong:
            status, answer = self.send("/v3/kv/txn", body)
            self.assertEqual((status, answer["code"]), (400, 3), body)
        gone = {"success": [{"request_put": {"key": text64("k"), "lease": "5"}}]}
        self.assertEqual(self.send("/v3/kv/txn", gone)[0], 404)
        for ttl in ("0", "-1", 10**9, None, "x"):
            self.assertEqual(self.send("/v3/lease/grant", {"TTL": ttl})[0], 400)
        self.assertEqual((self.keys(), self.witness.revision, self.witness.state.leases), ({}, 1, {}))

    def test_bodies_are_limited_before_they_are_read(self) -> None:
        for header, status in (
            (f"Content-Length: {http.MAX_BODY_BYTES + 1}", b"413"),
            ("Transfer-Encoding: chunked", b"411"),
        ):
            channel, transport = self.connect()
            channel.dataReceived(f"POST /v3/kv/txn HTTP/1.1\r\nHost: w\r\n{header}\r\n\r\n".encode())
            self.assertTrue(transport.value().startswith(b"HTTP/1.1 " + status))
            self.assertTrue(transport.disconnecting)
            channel.connectionLost(Failure(ConnectionError()))
        self.assertEqual(self.factory.bodies_bytes, 0)

    def test_all_bodies_together_are_limited(self) -> None:
        head = f"POST /v3/kv/txn HTTP/1.1\r\nHost: w\r\nContent-Length: {http.MAX_BODY_BYTES}\r\n\r\n".encode()
        self.patch(http, "MAX_CONNECTIONS_OF_ADDRESS", 10_000)
        channels = []
        for _ in range(http.MAX_BODIES_BYTES // http.MAX_BODY_BYTES + 1):
            channel, transport = self.connect()
            channel.dataReceived(head)
            channels.append(channel)
        self.assertTrue(transport.value().startswith(b"HTTP/1.1 503"))
        for channel in channels:
            channel.connectionLost(Failure(ConnectionError()))
        self.assertEqual(self.factory.bodies_bytes, 0)

    def test_one_address_gets_a_part_of_the_keys_and_leases(self) -> None:
        """Also if a stranger at another address takes what it can get, for a day: without a login nobody stops it."""
        self.patch(shares, "MAX_KEYS", 40)
        self.patch(shares, "MAX_LEASES", 20)
        self.peers.network = "stranger"
        puts = [{"request_put": {"key": text64(f"/rmqha/C/b/{number}"), "value": ""}} for number in range(10)]
        self.assertEqual(self.send("/v3/kv/txn", {"success": puts})[0], 200)
        self.assertEqual(self.send("/v3/kv/txn", {"success": puts})[0], 200)
        more = {"success": [{"request_put": {"key": text64("/rmqha/C/b/more"), "value": ""}}]}
        for _ in range(5):
            self.assertEqual(self.send("/v3/lease/grant", {"TTL": "86400"})[0], 200)
        for path, fields in (("/v3/kv/txn", more), ("/v3/lease/grant", {"TTL": "86400"})):
            status, answer = self.send(path, fields)
            self.assertEqual(status, 400)
            self.assertIn("Address stranger has", answer["message"])
        large = {"success": [{"request_put": {"key": text64("/rmqha/C/b/1"), "value": text64("x" * 60_000)}}]}
        self.patch(shares, "MAX_STATE_BYTES", 200_000)
        self.assertIn("may have 50000 bytes", self.send("/v3/kv/txn", large)[1]["message"])
        self.peers.network = "member"
        self.assertEqual(self.send("/v3/kv/txn", more)[0], 200)
        self.assertEqual(self.send("/v3/lease/grant", {"TTL": "15"})[0], 200)
        self.peers.network = "stranger"
        deletions = [{"request_delete_range": {"key": text64("/rmqha/C/b/0")}}, *more["success"]]
        self.assertEqual(self.send("/v3/kv/txn", {"success": deletions})[0], 200)

    def test_idle_connections_of_an_address_keep_no_other_of_it_out(self) -> None:
        found = [self.connect() for _ in range(http.MAX_CONNECTIONS_OF_ADDRESS)]
        for _, (channel, transport) in zip(range(3), found, strict=False):
            self.connect()
            self.assertTrue(transport.disconnected)
            channel.connectionLost(Failure(ConnectionError()))
        self.assertEqual(len(self.factory.channels), http.MAX_CONNECTIONS_OF_ADDRESS)

    def test_connections_are_limited_and_idle_ones_end(self) -> None:
        found = [self.connect() for _ in range(http.MAX_CONNECTIONS_OF_ADDRESS)]
        for channel, _ in found:
            channel.is_answering = True
        self.assertIsNone(self.factory.buildProtocol(None))
        self.clock.advance(http.IDLE_SECONDS)
        self.assertTrue(all(transport.disconnected for _, transport in found))
        for channel, _ in found:
            channel.connectionLost(Failure(ConnectionError()))
        self.peers.allowed = False
        self.assertIsNone(self.factory.buildProtocol(None))
        self.assertEqual(self.factory.channels, {})

    def test_a_login(self) -> None:
        self.assertEqual(self.send(http.LOGIN, {"name": "a", "password": "b"})[1]["code"], 9)
        self.logins.renew(Login("rmqha", "secret"))
        self.assertEqual(self.send("/v3/kv/range", ALL)[0], 401)
        self.assertEqual(self.send("/v3/watch", {"create_request": ALL})[0], 401)
        self.assertEqual(self.send("/v3/kv/range", ALL, "Authorization: x\r\n")[0], 401)
        token = self.send(http.LOGIN, {"name": "rmqha", "password": "secret"})[1]["token"]
        self.assertEqual(self.send("/v3/kv/range", ALL, f"Authorization: {token}\r\n")[0], 200)
        self.logins.renew(Login("rmqha", "secret"))
        self.assertEqual(self.send("/v3/kv/range", ALL, f"Authorization: {token}\r\n")[0], 200)
        self.logins.renew(Login("rmqha", "other"))
        self.assertEqual(self.send("/v3/kv/range", ALL, f"Authorization: {token}\r\n")[0], 401)

    def test_a_wrong_login_is_answered_late(self) -> None:
        self.logins.renew(Login("rmqha", "secret"))
        wrong: list[dict[str, object]] = [{"name": "rmqha", "password": "secret2"}, {"name": "x"}, {"name": 5}, {}]
        for body in wrong:
            channel, transport = self.connect()
            content = json.dumps(body).encode()
            head = f"POST {http.LOGIN} HTTP/1.1\r\nHost: w\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            channel.dataReceived(head + content)
            self.assertEqual(transport.value(), b"")
            self.clock.advance(http.WRONG_LOGIN_SECONDS)
            self.assertTrue(transport.value().startswith(b"HTTP/1.1 400"))
            channel.connectionLost(Failure(ConnectionError()))

    def test_tokens_are_limited(self) -> None:
        self.logins.renew(Login("rmqha", "secret"))
        first = self.logins.log_in("rmqha", "secret")
        for _ in range(MAX_TOKENS):
            last = self.logins.log_in("rmqha", "secret")
        self.logins.check(last)
        self.assertRaises(CallRefused, self.logins.check, first)

    def test_a_client_that_does_not_read_its_watch_loses_it(self) -> None:
        channel, transport = self.connect()
        content = json.dumps({"create_request": ALL}).encode()
        head = f"POST /v3/watch HTTP/1.1\r\nHost: w\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        channel.dataReceived(head + content)
        self.assertEqual(self.witness.watch_count, 1)
        channel.pauseProducing()
        sent = len(transport.value())
        self.successResultOf(self.put("/k", bytes(1000)))
        self.assertEqual(len(transport.value()), sent)
        self.clock.advance(http.UNREAD_SECONDS)
        self.assertTrue(transport.disconnected)
        channel.connectionLost(Failure(ConnectionError()))
        self.assertEqual((self.witness.watch_count, self.factory.channels), (0, {}))


class BoundsTests(SynchronousTestCase):
    def test_a_state_is_bounded(self) -> None:
        found = KeysAndLeases()
        for number in range(state.MAX_KEYS):
            found.apply(Write((Put(f"/{number}", b""),)), 0.0)
        self.assertRaises(CoordinatorRefused, found.transaction, [], [Put("/new", b"")])
        self.assertIsNotNone(found.transaction([], [Put("/0", b"1")]))
        large = bytes(state.MAX_VALUE_BYTES)
        for number in range(state.MAX_STATE_BYTES // state.MAX_VALUE_BYTES - 1):
            found.apply(Write((Put(f"/{number}", large),)), 0.0)
        self.assertRaises(CoordinatorRefused, found.transaction, [], [Put("/2000", large)])
        for lease in range(state.MAX_LEASES):
            found.apply(found.grant(5, lease + 1), 0.0)
        self.assertRaises(CoordinatorRefused, found.grant, 5, 9_999_999)
        found.apply(End(1), 0.0)
        found.grant(5, 9_999_999)
