"""Certificates that are read again: new connections use them, and a bad file changes nothing."""

import gc
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from OpenSSL import SSL
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import ClientTLS, TLSFiles, TLSSources
from tests.fixtures import new_folder
from tests.net.tls.authority import Authority
from tests.net.tls.line import Line, files_of

HOST = "localhost"
NOW = datetime.now(UTC).timestamp()
NEXT_YEAR = (datetime.now(UTC) + timedelta(days=365)).replace(microsecond=0)


class RenewalTestCase(SynchronousTestCase):
    """A node's files, whose content the test replaces."""

    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.ca, self.other_ca = Authority(self.folder / "ca"), Authority(self.folder / "other", "other")
        self.certificate, self.authority = self.folder / "node.pem", self.folder / "authority.pem"
        shutil.copy(self.ca.issue(HOST), self.certificate)
        shutil.copy(self.ca.path, self.authority)
        self.sources = TLSSources(str(self.certificate), None, str(self.authority), serves=True)

    def line(self) -> Line:
        """The node's server, as its clients reach it."""
        line = Line(self.sources.files)
        server = self.sources.server
        assert server is not None
        return line.of(server)

    def reread(self) -> list[bool]:
        """Read the files again. Returns which of them have changed."""
        return [source.use(files) for source, files in self.sources.read(NOW)]

    def assert_served(self, line: Line, by: Path) -> None:
        """A client that trusts this authority only gets through."""
        connecting, heard = line.dial(files_of(authority=by).client(), HOST)
        line.carry()
        self.successResultOf(connecting)
        self.assertIsNotNone(heard.transport)


class ServerTests(RenewalTestCase):
    """Our ports."""

    def test_new_connections_use_the_new_certificate(self) -> None:
        line = self.line()
        self.assert_served(line, self.ca.path)
        shutil.copy(self.other_ca.issue(HOST, expires=NEXT_YEAR), self.certificate)
        self.assert_served(line, self.ca.path)
        self.assertEqual(self.reread(), [True])
        self.assert_served(line, self.other_ca.path)
        assert self.sources.server is not None
        self.assertEqual(self.sources.server.expires_at, NEXT_YEAR.timestamp())

    def test_the_same_files_are_no_change(self) -> None:
        self.assertEqual(self.reread(), [False])

    def test_a_bad_file_changes_nothing(self) -> None:
        line = self.line()
        good = self.certificate.read_bytes()
        for content, reason in (
            (b"", "there is no certificate in PEM format"),
            (good[: len(good) // 2], "PEM format"),
            (self.other_ca.issue_expired(HOST).read_bytes(), "the certificate is valid only from"),
            (self.ca.path.read_bytes(), "there is no private key"),
        ):
            self.certificate.write_bytes(content)
            with self.assertRaisesRegex(TLSError, f"{self.certificate}: .*{reason}"):
                self.sources.read(NOW)
            self.assert_served(line, self.ca.path)
        self.certificate.unlink()
        with self.assertRaisesRegex(TLSError, "No such file"):
            self.sources.read(NOW)
        self.certificate.write_bytes(good)
        self.authority.write_bytes(b"no certificate")
        with self.assertRaisesRegex(TLSError, f"{self.authority}: "):
            self.sources.read(NOW)
        self.assert_served(line, self.ca.path)

    def test_an_expired_certificate_may_be_replaced_by_another(self) -> None:
        shutil.copy(self.ca.issue_expired(HOST), self.certificate)
        sources = TLSSources(str(self.certificate), None, None, serves=True)
        shutil.copy(self.ca.issue_expired("other"), self.certificate)
        self.assertEqual([source.use(files) for source, files in sources.read(NOW)], [True])


class ClientTests(RenewalTestCase):
    """Our connections to others."""

    def test_other_authorities_count_for_new_connections(self) -> None:
        theirs = Line(TLSFiles.load(str(self.other_ca.issue(HOST)), None, None))
        endpoint = self.sources.client.endpoint(theirs, HOST, theirs.clock)  # made once, as for a master
        connecting = endpoint.connect(Factory.forProtocol(theirs.heard))
        theirs.carry()
        self.failureResultOf(connecting, TLSError)
        shutil.copy(self.other_ca.path, self.authority)
        self.assertEqual(self.reread(), [True])
        connecting = endpoint.connect(Factory.forProtocol(theirs.heard))
        theirs.carry()
        self.successResultOf(connecting)

    def test_files_that_an_address_names_are_read_too(self) -> None:
        own = self.folder / "own.pem"
        shutil.copy(self.ca.path, own)
        endpoint = make_endpoint(Clock(), f"tls:{HOST}:10912:trustRoots={own}", self.sources.client)
        self.assertEqual(self.reread(), [False, False])
        shutil.copy(self.other_ca.path, own)
        self.assertEqual(self.reread(), [False, True])
        own.unlink()
        with self.assertRaisesRegex(TLSError, "own.pem"):
            self.sources.read(NOW)
        del endpoint
        gc.collect()
        self.assertEqual(self.reread(), [False])

    def test_a_client_without_files_needs_none(self) -> None:
        self.assertIsInstance(ClientTLS().options.getContext(), SSL.Context)
        self.assertFalse(TLSSources(None, None, None).is_used)
