"""TLS addresses: what Twisted's parser makes of their strings with our plugin."""

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, quoteStringArgument
from twisted.internet.interfaces import IProtocol, IStreamClientEndpoint, IStreamClientEndpointStringParserWithReactor
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.plugin import IPlugin, getPlugins
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.addresses import PREFIX, TLSAddress, parse_tls_address, uses_tls
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import ClientTLS


class PluginTests(SynchronousTestCase):
    def test_one_plugin_has_our_prefix(self) -> None:
        (ours,) = [
            plugin
            for plugin in getPlugins(IStreamClientEndpointStringParserWithReactor)
            if plugin.prefix.lower() == PREFIX
        ]
        verifyObject(IStreamClientEndpointStringParserWithReactor, ours)
        verifyObject(IPlugin, ours)

    def test_any_program_with_twisted_can_connect_to_our_addresses(self) -> None:
        reactor = MemoryReactorClock()
        endpoint = clientFromString(reactor, "rmqtls:10.0.0.1:10912:timeout=7")
        verifyObject(IStreamClientEndpoint, endpoint)
        endpoint.connect(Factory.forProtocol(Protocol))
        ((_, port, _, timeout, _),) = reactor.tcpClients
        self.assertEqual((port, timeout), (10912, 7))

    def test_files_that_cannot_be_read_fail_the_attempt_to_connect(self) -> None:
        endpoint = clientFromString(MemoryReactorClock(), "rmqtls:h:1:trustRoots=/nowhere")
        attempt: Deferred[IProtocol] = endpoint.connect(Factory.forProtocol(Protocol))
        self.failureResultOf(attempt, TLSError)


class AddressTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()

    def parse(self, address: str) -> TLSAddress:
        return parse_tls_address(self.reactor, address)

    def test_the_case_of_the_prefix_does_not_matter(self) -> None:
        """Twisted's own endpoint, which ``TLS:`` would lead to, accepts certificates without a name."""
        for address in ("TLS:broker-a:10912", "Ssl:broker-a:10912", "RmqTls:broker-a:10912"):
            with self.subTest(address):
                self.assertTrue(uses_tls(address))
                self.assertEqual(repr(make_endpoint(self.reactor, address)), "<TLS to broker-a>")

    def test_other_addresses_are_not_tls_addresses(self) -> None:
        for address in ("broker-a:10912", "tcp:tls:10912", "tlsx:h:1", "", ":", "[::1]:5"):
            self.assertFalse(uses_tls(address), address)

    def test_positions_and_names_can_be_mixed(self) -> None:
        for address in ("tls:h:5", "tls:host=h:port=5", "tls:h:port=5", "tls:5:host=h", "tls:port=5:h", "tls:h:5:"):
            with self.subTest(address):
                found = self.parse(address)
                self.assertEqual((found.host, found.port), ("h", 5))

    def test_values_may_contain_any_character(self) -> None:
        for value in ("/etc/ca:1.pem", "a=b", "C:\\x", "\\", "::", "größe"):
            with self.subTest(value):
                found = self.parse(f"tls:h:5:trustRoots={quoteStringArgument(value)}")
                self.assertEqual(found.parameters["trustRoots"], value)
                below = found.below(1)
                assert below is not None
                again = self.parse(below)
                self.assertEqual((again.host, again.port, again.parameters["trustRoots"]), ("h", 4, value))

    def test_a_backslash_at_the_end_is_an_error_in_one_line(self) -> None:
        """Twisted's parser fails with a RuntimeError."""
        for address in ("tls:h:1\\", "tcp:h:1\\", "unix:\\"):
            with self.subTest(address):
                error = self.assertRaises(ValueError, make_endpoint, self.reactor, address)
                self.assertIn("is neither HOST:PORT nor a Twisted client endpoint", str(error))
                self.assertNotIn("\n", str(error))

    def test_the_certificates_of_the_process_are_used_unless_the_address_names_its_own(self) -> None:
        own = ClientTLS(authorities=())
        self.assertEqual(repr(self.parse("tls:h:1").endpoint(own)), "<TLS to h>")
        self.assertRaises(TLSError, self.parse("tls:h:1:trustRoots=/nowhere").endpoint, own)
