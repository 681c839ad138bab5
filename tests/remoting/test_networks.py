"""Which addresses count as one peer."""

from twisted.trial.unittest import SynchronousTestCase

from rmqha.remoting.networks import network_of


class NetworkTests(SynchronousTestCase):
    def test_an_address_of_ipv6_is_its_network(self) -> None:
        self.assertEqual(network_of("2001:db8::1"), network_of("2001:db8::ffff:1"))
        self.assertNotEqual(network_of("2001:db8::1"), network_of("2001:db8:0:1::1"))
        self.assertEqual([network_of("::ffff:192.0.2.1"), network_of("a host")], ["192.0.2.1", "a host"])
