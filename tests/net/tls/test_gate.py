"""Handshakes in memory: which peers a client and a server accept, and how long they wait."""

from pathlib import Path

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.gate import CLOSE_SECONDS, HANDSHAKE_SECONDS, GateFactory, looks_like_tls, peer_names
from tests.fixtures import new_folder
from tests.net.tls.authority import Authority
from tests.net.tls.line import PEER, Heard, Line, files_of

HOST = "broker-a.example"


class GateTestCase(SynchronousTestCase):
    """Authorities and certificates of the test's own."""

    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.ca = Authority(self.folder / "ca")
        self.trusting = files_of(authority=self.ca.path).client()

    def line(self, certificate: Path | None = None, verify: bool = False) -> Line:
        """A server with this certificate; one for HOST if none is given."""
        return Line(files_of(certificate or self.ca.issue(HOST), self.ca.path), verify)

    def assert_over(self, line: Line) -> None:
        """Nobody waits for anything any more."""
        line.carry()
        self.assertEqual([str(call) for call in line.clock.getDelayedCalls()], [])


class ClientTests(GateTestCase):
    """Whom a client believes."""

    def refusal(self, certificate: Path, host: str, authority: Path | None = None) -> str:
        """Why the client does not believe that the server with this certificate is ``host``."""
        line = self.line(certificate)
        trusting = files_of(authority=authority or self.ca.path).client()
        connecting, heard = line.dial(trusting, host)
        line.carry()
        error = self.failureResultOf(connecting, TLSError)
        self.assertIsNone(heard.transport)
        self.assertEqual(line.served[0].pieces, [])
        self.assert_over(line)
        return str(error.value)

    def test_a_certificate_for_the_host_is_believed(self) -> None:
        for certificate, host in (
            (self.ca.issue(HOST), HOST),
            (self.ca.issue("other.example", HOST), HOST.upper()),
            (self.ca.issue("*.cluster.example"), "a.cluster.example"),
            (self.ca.issue("192.0.2.7"), "192.0.2.7"),
            (self.ca.issue("2001:db8::7"), "2001:DB8::7"),
        ):
            with self.subTest(host=host):
                line = self.line(certificate)
                connecting, heard = line.dial(self.trusting, host)
                self.assertNoResult(connecting)
                line.carry()
                self.assertIs(self.successResultOf(connecting), heard)
                heard.transport.write(b"hello")
                line.carry()
                self.assertEqual(b"".join(line.served[0].pieces), b"hello")
                heard.transport.loseConnection()
                self.assert_over(line)

    def test_a_certificate_for_another_host_is_not(self) -> None:
        for certificate, host in (
            (self.ca.issue("other.example"), HOST),
            (self.ca.issue("other.example", common_name=HOST), HOST),
            (self.ca.issue(HOST), "192.0.2.7"),
            (self.ca.issue("192.0.2.8"), "192.0.2.7"),
            (self.ca.issue("*.cluster.example"), "a.b.cluster.example"),
        ):
            with self.subTest(host=host):
                self.assertIn("its certificate is not for this host", self.refusal(certificate, host))

    def test_a_certificate_that_names_no_host_is_not_taken_for_one_that_names_ours(self) -> None:
        """Twisted's own check lets it pass, even though an authority we trust has signed it for somebody else."""
        for common_name in ("somebody else", HOST):
            with self.subTest(common_name):
                certificate = self.ca.issue_without_names(common_name)
                self.assertIn("does not contain any `subjectAltName`s", self.refusal(certificate, HOST))

    def test_what_is_wrong_with_a_chain_is_told(self) -> None:
        stranger = Authority(self.folder / "stranger", "stranger")
        self.assertIn("is signed by none of the authorities", self.refusal(stranger.issue(HOST), HOST))
        self.assertIn("has expired", self.refusal(self.ca.issue_expired(HOST), HOST))

    def test_giving_up_a_connection_drops_it(self) -> None:
        line = self.line()
        connecting, heard = line.dial(self.trusting, HOST)
        connecting.cancel()
        self.failureResultOf(connecting, CancelledError)
        self.assert_over(line)
        self.assertIsNone(heard.transport)

    def test_a_server_that_does_not_shake_hands_is_given_up_in_time(self) -> None:
        line = self.line()
        connecting, _ = line.dial(self.trusting, HOST)
        line.clock.advance(HANDSHAKE_SECONDS - 0.5)
        self.assertNoResult(connecting)
        line.clock.advance(0.5)
        line.pump.client.transport.loseConnection()
        line.pump.client.connectionLost(Failure(ConnectionDone()))
        error = self.failureResultOf(connecting, TLSError)
        self.assertEqual(str(error.value), f"no handshake within {HANDSHAKE_SECONDS:g} s")

    def test_all_of_a_read_is_handed_out_at_once(self) -> None:
        line = self.line()
        connecting, heard = line.dial(self.trusting, HOST)
        line.carry()
        self.successResultOf(connecting)
        data = bytes(range(256)) * 4096
        line.served[0].transport.write(data)
        line.carry()
        self.assertEqual([len(piece) for piece in heard.pieces], [len(data)])
        self.assertTrue(heard.pieces[0] == data)

    def test_what_came_before_the_end_is_handed_out_before_it(self) -> None:
        line = self.line()
        connecting, heard = line.dial(self.trusting, HOST)
        line.carry()
        self.successResultOf(connecting)
        line.served[0].transport.write(b"last words")
        line.served[0].transport.loseConnection()
        line.carry()
        self.assertEqual(heard.pieces, [b"last words"])
        self.assertIsNotNone(heard.lost)

    def test_nothing_is_handed_out_after_the_protocol_has_aborted(self) -> None:
        line = self.line()
        connecting, heard = line.dial(self.trusting, HOST)
        line.carry()
        self.successResultOf(connecting)
        line.served[0].transport.write(b"x" * 100_000)
        gate = heard.transport
        gate.dataReceived(b"y")
        gate.abortConnection()
        self.assert_over(line)
        self.assertEqual(heard.pieces, [])

    def test_a_close_that_the_peer_does_not_answer_takes_no_longer_than_it_may(self) -> None:
        line = self.line()
        connecting, heard = line.dial(self.trusting, HOST)
        line.carry()
        self.successResultOf(connecting)
        heard.transport.loseConnection()
        carrier = line.pump.clientIO
        line.clock.advance(CLOSE_SECONDS - 0.5)
        self.assertFalse(carrier.disconnecting)
        line.clock.advance(0.5)
        self.assertTrue(carrier.disconnecting or carrier.disconnected)


class ServerTests(GateTestCase):
    """Whom a server serves."""

    def test_names_are_those_of_the_certificate(self) -> None:
        for certificate, names in (
            (self.ca.issue("Slave-A", "b.example"), ("slave-a", "b.example")),
            (self.ca.issue("slave-a", common_name="boss"), ("slave-a",)),
            (self.ca.issue_without_names("Slave-A"), ("slave-a",)),
            (self.ca.issue_without_names("../../etc/passwd"), ()),
            (self.ca.issue_without_names(".hidden"), ()),
            (self.ca.issue_without_names("two\nlines"), ()),
            (self.ca.issue("192.0.2.1"), ()),
        ):
            with self.subTest(names=names):
                line = self.line(verify=True)
                connecting, _ = line.dial(files_of(certificate, self.ca.path).client(), HOST)
                line.carry()
                self.successResultOf(connecting)
                self.assertEqual(peer_names(line.served[0].transport), names)

    def test_a_peer_that_was_not_asked_has_no_name(self) -> None:
        line = self.line()
        line.dial(files_of(self.ca.issue("slave-a"), self.ca.path).client(), HOST)
        line.carry()
        self.assertEqual(peer_names(line.served[0].transport), ())

    def test_a_peer_is_refused_with_a_reason_and_its_protocol_only_loses_its_connection(self) -> None:
        stranger = Authority(self.folder / "stranger", "stranger")
        for certificate, reason in (
            (None, "it shows no certificate"),
            (stranger.issue("slave-a"), "is signed by none of the authorities trusted here"),
            (self.ca.issue_expired("slave-a"), "has expired"),
        ):
            with self.subTest(reason):
                line = self.line(verify=True)
                line.dial(files_of(certificate, self.ca.path).client(), HOST)
                line.carry()
                ((host, told),) = line.refused
                self.assertEqual(host, PEER.host)
                self.assertIn(reason, told)
                (served,) = line.served
                self.assertEqual(served.pieces, [])
                self.assertIsNotNone(served.lost)
                self.assert_over(line)

    def test_what_is_written_before_the_handshake_is_not_sent_to_a_peer_that_fails_it(self) -> None:
        line = self.line(verify=True)
        connecting, heard = line.dial(self.trusting, HOST)
        line.served[0].transport.write(b"the log")
        line.carry()
        self.successResultOf(connecting)  # TLS 1.3: the client is done before the server has judged it
        self.assertEqual(heard.pieces, [])
        self.assertIn("the peer ended TLS", str(heard.lost))

    def test_a_peer_that_speaks_no_tls_is_refused(self) -> None:
        line = self.line()
        client = Heard()
        line.attach(client)
        client.transport.write(b"GET / HTTP/1.0\r\n\r\n")
        line.carry()
        self.assertIn("it does not use TLS", line.refused[0][1])

    def test_a_peer_that_says_nothing_is_dropped_in_time(self) -> None:
        line = self.line()
        line.attach(Heard())
        line.carry()
        line.clock.advance(HANDSHAKE_SECONDS - 0.5)
        line.carry()
        self.assertEqual(line.refused, [])
        line.clock.advance(0.5)
        line.carry()
        self.assertEqual(line.refused, [(PEER.host, f"no handshake within {HANDSHAKE_SECONDS:g} s")])
        self.assert_over(line)

    def test_a_factory_that_takes_nobody_is_asked_before_any_tls(self) -> None:
        class Full(Factory[Heard]):
            def buildProtocol(self, addr: object) -> None:
                return None

        line = self.line()
        assert isinstance(line.factory, GateFactory)
        line.factory.wrappedFactory = Full()
        self.assertIsNone(line.factory.buildProtocol(PEER))


class LooksLikeTLSTests(SynchronousTestCase):
    def test_a_hello_and_an_alert_do(self) -> None:
        for data in (b"\x16\x03\x01\x02\0", b"\x16\x03\x03", b"\x15\x03\x01\0\x02\x02F"):
            self.assertTrue(looks_like_tls(data), data)

    def test_reports_and_frames_do_not(self) -> None:
        for data in (
            b"",
            b"\x16\x03",
            bytes(8),
            (1 << 40).to_bytes(8, "big"),
            b"GET / HTTP",
            b"\x16\x04\x01",
            b"\x16\x03\x09",
        ):
            self.assertFalse(looks_like_tls(data), data)
