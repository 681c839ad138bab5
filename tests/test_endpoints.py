"""Addresses as people write them."""

from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, UNIXClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.endpoints import make_endpoint, remoting_address_of


class MakeEndpointTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()

    def test_host_and_port(self) -> None:
        for address in ("broker-a:10912", "10.0.0.1:10912", "[::1]:10912", "[fe80::1]:1", "h:65535"):
            with self.subTest(address):
                endpoint = make_endpoint(self.reactor, address)
                self.assertIsInstance(endpoint, HostnameEndpoint)
                self.assertEqual(repr(endpoint), f"<HostnameEndpoint {address}>")

    def test_a_twisted_endpoint_says_where_to_connect(self) -> None:
        endpoint = make_endpoint(self.reactor, "tcp:10.0.0.1:10912:timeout=7")
        self.assertIsInstance(endpoint, TCP4ClientEndpoint)
        endpoint.connect(Factory.forProtocol(Protocol))
        ((host, port, _, timeout, _),) = self.reactor.tcpClients
        self.assertEqual((host, port, timeout), ("10.0.0.1", 10912, 7))

    def test_other_kinds_of_twisted_endpoints(self) -> None:
        self.assertIsInstance(make_endpoint(self.reactor, "unix:/run/rmqha"), UNIXClientEndpoint)
        tls = make_endpoint(self.reactor, "tls:broker-a:10912")
        self.assertIn("Wrapper", type(tls).__name__)

    def test_what_is_no_address_is_refused_by_name(self) -> None:
        for address in ("", "h", "h:", ":5", "::1:5", "h:port", "tcp:h", "tcp:h:port", "tls:", "carrier-pigeon:h:1"):
            with self.subTest(address):
                error = self.assertRaises(ValueError, make_endpoint, self.reactor, address)
                self.assertIn(f"{address!r} is neither HOST:PORT nor a Twisted client endpoint", str(error))

    def test_a_port_that_cannot_be_is_refused_and_not_taken_modulo_65536(self) -> None:
        for address in ("h:0", "h:65536", "127.0.0.1:99999", "tcp:h:70000", "[::1]:65536"):
            with self.subTest(address):
                error = self.assertRaises(ValueError, make_endpoint, self.reactor, address)
                self.assertEqual(str(error), f"{address!r}: a port is between 1 and 65535")


class RemotingAddressTests(SynchronousTestCase):
    def test_it_is_one_below_the_ha_port(self) -> None:
        for ha_address, expected in (
            ("broker-a:10912", "broker-a:10911"),
            ("10.0.0.1:10912", "10.0.0.1:10911"),
            ("[::1]:10912", "[::1]:10911"),
            ("tcp:broker-a:10912", "broker-a:10911"),
        ):
            with self.subTest(ha_address):
                self.assertEqual(remoting_address_of(ha_address), expected)

    def test_there_is_none_where_the_address_is_not_plain_tcp(self) -> None:
        for ha_address in ("tls:broker-a:10912", "unix:/run/ha", "tcp:h:10912:timeout=5", "tcp:host=h:port=10912", ""):
            with self.subTest(ha_address):
                self.assertIsNone(remoting_address_of(ha_address))

    def test_there_is_no_port_below_the_first(self) -> None:
        self.assertIsNone(remoting_address_of("h:1"))
        self.assertEqual(remoting_address_of("h:2"), "h:1")
