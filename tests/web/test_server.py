"""The HTTP port: what it answers, what it refuses, and what one client can cost the others."""

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.httpchannel import MAX_HEADER_BYTES, MAX_HEADERS
from rmqha.web.server import (
    ANSWER_SECONDS,
    MAX_CONNECTIONS,
    PIECE_BYTES,
    REQUEST_SECONDS,
    REQUESTS_AT_ONCE,
    Page,
    Query,
    Server,
    text_page,
)

BIG = bytes(range(256)) * 1024


class Line(StringTransport):
    """A transport that tells what became of it."""

    def abortConnection(self) -> None:
        self.disconnecting = True
        self.aborted = True

    aborted = False


class ServerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.later: list[Deferred[Page]] = []
        self.queries: list[Query] = []
        self.server = Server(
            {
                "/": self.root,
                "/late": self.late,
                "/big": lambda _: Page(200, "application/octet-stream", BIG),
                "/broken": self.broken,
            },
            self.clock,
        )
        self.server.doStart()

    def root(self, query: Query) -> Page:
        self.queries.append(query)
        return text_page(200, "fine")

    def late(self, query: Query) -> Deferred[Page]:
        self.later.append(Deferred())
        return self.later[-1]

    def broken(self, query: Query) -> Page:
        raise RuntimeError("planned")

    def connect(self) -> tuple[Any, Line]:
        channel: Any = self.server.buildProtocol(None)
        line = Line()
        channel.makeConnection(line)
        return channel, line

    def ask(self, request: str) -> str:
        channel, line = self.connect()
        channel.dataReceived(request.encode("latin-1"))
        return str(line.value(), "latin-1")

    def get(self, path: str, *headers: str) -> str:
        return self.ask("\r\n".join([f"GET {path} HTTP/1.1", "Host: h", *headers, "", ""]))

    def test_a_page_with_its_parameters_and_headers(self) -> None:
        answer = self.get("/?lag=10m&lag=3s", "Accept: application/json", "Accept-Encoding: gzip, deflate")
        head, _, body = answer.partition("\r\n\r\n")
        self.assertTrue(head.startswith("HTTP/1.1 200 OK"), head)
        self.assertIn("X-Content-Type-Options: nosniff", head)
        self.assertIn("Cache-Control: no-store", head)
        self.assertNotIn("Twisted", head)
        self.assertEqual(body, "fine\n")
        self.assertEqual(self.queries, [Query({"lag": "3s"}, "application/json", True)])

    def test_what_is_refused(self) -> None:
        self.assertIn(" 404 ", self.get("/nothing"))
        self.assertIn("/late", self.get("/nothing"))
        self.assertIn(" 405 ", self.ask("DELETE / HTTP/1.1\r\nHost: h\r\n\r\n"))
        self.assertIn("Allow: GET, HEAD", self.ask("PUT / HTTP/1.1\r\nHost: h\r\n\r\n"))
        self.assertIn(" 413 ", self.ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"))
        self.assertIn(
            " 413 ", self.ask("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        )
        self.assertIn(" 400 ", self.ask("no HTTP at all\r\n\r\n"))
        self.assertEqual(self.queries, [])

    def test_a_refused_body_is_not_read_and_asks_nothing_more(self) -> None:
        channel, line = self.connect()
        channel.dataReceived(
            b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        channel.dataReceived(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        self.assertEqual(self.queries, [])
        self.assertTrue(line.disconnecting)
        self.assertEqual(line.value().count(b"HTTP/1.1"), 1)

    def test_long_and_many_headers_are_refused(self) -> None:
        self.assertIn(" 400 ", self.get("/", f"X: {'a' * MAX_HEADER_BYTES}"))
        self.assertIn(" 400 ", self.get("/", *(f"X-{number}: a" for number in range(MAX_HEADERS + 1))))
        channel, line = self.connect()
        channel.dataReceived(b"GET /" + b"a" * 2 * MAX_HEADER_BYTES)  # a line that never ends
        self.assertTrue(line.disconnecting)
        self.assertEqual(self.queries, [])

    def test_head_has_the_length_and_no_body(self) -> None:
        answer = self.ask("HEAD /big HTTP/1.1\r\nHost: h\r\n\r\n")
        self.assertIn(f"Content-Length: {len(BIG)}", answer)
        self.assertTrue(answer.endswith("\r\n\r\n"))

    def test_an_error_is_an_answer_without_details(self) -> None:
        answer = self.get("/broken")
        self.assertIn(" 500 ", answer)
        self.assertNotIn("planned", answer)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_later_answer(self) -> None:
        channel, line = self.connect()
        channel.dataReceived(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n")
        self.assertEqual(line.value(), b"")
        self.later[0].callback(text_page(200, "at last"))
        self.assertIn(b"at last", line.value())

    def test_an_answer_for_a_client_that_has_gone(self) -> None:
        channel, line = self.connect()
        channel.dataReceived(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n")
        channel.connectionLost()
        self.later[0].callback(text_page(200, "at last"))
        self.assertEqual(line.value(), b"")
        self.assertEqual(len(self.server.channels), 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_long_answer_goes_out_as_its_client_reads(self) -> None:
        channel, line = self.connect()
        channel.dataReceived(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
        channel.pauseProducing()
        self.assertLess(len(line.value()), 3 * PIECE_BYTES)

    def test_single_bytes_do_not_keep_a_connection(self) -> None:
        channel, line = self.connect()
        for byte in b"GET / HTTP/1.1\r\nHost: h\r\nX: aaaaaaa"[: int(REQUEST_SECONDS)]:
            channel.dataReceived(bytes([byte]))
            self.assertFalse(line.aborted)
            self.clock.advance(1.0)
        self.assertTrue(line.aborted)
        self.assertEqual(self.server.pages.refused["too slow"], 1)

    def test_an_answer_that_is_never_ready_or_read_ends(self) -> None:
        channel, line = self.connect()
        channel.dataReceived(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n")
        self.clock.advance(REQUEST_SECONDS)
        self.assertFalse(line.aborted)
        self.clock.advance(ANSWER_SECONDS)
        self.assertTrue(line.aborted)

    def test_a_connection_serves_requests_until_it_is_idle_for_too_long(self) -> None:
        channel, line = self.connect()
        for _ in range(3):
            channel.dataReceived(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            self.clock.advance(REQUEST_SECONDS - 1)
        self.assertEqual(line.value().count(b"200 OK"), 3)
        self.assertFalse(line.aborted)
        self.clock.advance(1)
        self.assertTrue(line.aborted)

    def test_a_new_connection_displaces_the_oldest_idle_one(self) -> None:
        """A thousand idle strangers do not keep Prometheus out."""
        lines = [self.connect()[1] for _ in range(1000)]
        self.assertEqual(len(self.server.channels), MAX_CONNECTIONS)
        self.assertEqual(
            [line.aborted for line in lines], [True] * (1000 - MAX_CONNECTIONS) + [False] * MAX_CONNECTIONS
        )
        self.assertIn("200 OK", self.get("/"))

    def test_connections_that_wait_for_answers_keep_their_places(self) -> None:
        for _ in range(MAX_CONNECTIONS):
            self.connect()[0].dataReceived(b"GET /late HTTP/1.1\r\nHost: h\r\n\r\n")
        self.assertIsNone(self.server.buildProtocol(None))
        self.assertEqual(self.server.pages.refused["too many connections"], 1)

    def test_too_many_requests_are_told_to_come_again(self) -> None:
        channel, line = self.connect()
        for _ in range(REQUESTS_AT_ONCE + 1):
            channel.dataReceived(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        self.assertEqual(len(self.queries), REQUESTS_AT_ONCE)
        self.assertIn(b" 503 ", line.value())
        self.assertIn(b"Retry-After: 2", line.value())
        self.clock.advance(1.0)
        self.assertIn("200 OK", self.get("/"))
