"""Where --http-port listens."""

from typing import Any

from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ops.listening import HttpPort
from rmqha.settings.settings import SettingsError


class HttpPortTests(SynchronousTestCase):
    def test_a_bare_port_is_on_loopback(self) -> None:
        self.assertEqual(HttpPort.parse("9879"), HttpPort("127.0.0.1", 9879))
        self.assertEqual(HttpPort.parse("0"), HttpPort("127.0.0.1", 0))

    def test_an_address_is_taken_as_it_is(self) -> None:
        self.assertEqual(HttpPort.parse("10.0.0.1:9879"), HttpPort("10.0.0.1", 9879))
        self.assertEqual(HttpPort.parse("[::1]:9879"), HttpPort("::1", 9879))
        self.assertEqual(HttpPort.parse("*:9879"), HttpPort("", 9879))

    def test_what_is_no_port_is_refused_with_the_reason(self) -> None:
        for text in ("", "http", "70000", ":9879", "localhost:9879", "10.0.0.1:", "10.0.0.1:x", "-1", "1.2.3:80", "☃"):
            with self.assertRaises(SettingsError) as raised:
                HttpPort.parse(text)
            self.assertIn("http-port", str(raised.exception))

    def test_it_listens_there(self) -> None:
        for text, where in (("9879", "127.0.0.1"), ("*:9879", ""), ("[::1]:9879", "::1")):
            reactor: Any = MemoryReactorClock()
            HttpPort.parse(text).endpoint(reactor).listen(Factory())
            port, _, _, address = reactor.tcpServers[0]
            self.assertEqual((port, address), (9879, where))
