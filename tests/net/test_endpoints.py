"""Addresses as people write them."""

from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred, execute
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, UNIXClientEndpoint
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import IAddress, IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmqha.net.endpoints import (
    MAX_MACHINES,
    MAX_WAIT_SECONDS,
    CancellableEndpoint,
    LoopbackEndpoint,
    ToldEndpoint,
    endpoints_behind,
    fast_address_of,
    look_up,
    make_endpoint,
    remoting_address_of,
    wait_for_address,
)
from rmqha.net.tls.addresses import uses_tls
from rmqha.net.tls.endpoints import ClientTLS
from tests.fixtures import new_folder
from tests.ha.doubles import log_lines
from tests.net.tls.authority import Authority


class Names:
    """A reactor's resolver, with the addresses of each name. A name without any is not known."""

    def __init__(self, **known: list[str]) -> None:
        self.known = known

    def resolveHostName(self, receiver: Any, host: str) -> None:
        for address in self.known.get(host, []):
            kind = IPv6Address if ":" in address else IPv4Address
            receiver.addressResolved(kind("TCP", address, 0))
        receiver.resolutionComplete()


class MachinesTests(SynchronousTestCase):
    """The machines behind the name of a name server."""

    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()
        names = Names(
            three=["10.0.0.3", "10.0.0.1", "10.0.0.2", "10.0.0.1", "fd00::1"],
            one=["10.0.0.1", "fd00::1"],
            six=["10.0.0.1", "fd00::2", "fd00::1"],
            many=[f"10.0.0.{number}" for number in range(100)],
        )
        self.patch(self.reactor, "nameResolver", names)

    def behind(self, address: str, tls: ClientTLS | None = None) -> dict[str, str]:
        finding = Deferred.fromCoroutine(endpoints_behind(self.reactor, address, tls))
        return {name: repr(endpoint) for name, endpoint in self.successResultOf(finding)}

    def test_each_machine_has_its_own_endpoint(self) -> None:
        self.assertEqual(
            self.behind("three:9876"),
            {f"three:9876 (10.0.0.{n})": f"<HostnameEndpoint 10.0.0.{n}:9876>" for n in (1, 2, 3)},
        )
        self.assertEqual(list(self.behind("six:9876")), ["six:9876 (fd00::1)", "six:9876 (fd00::2)"])
        self.assertEqual(len(self.behind("many:9876")), MAX_MACHINES)

    def test_one_machine_or_an_address_needs_none(self) -> None:
        for address in ("one:9876", "10.0.0.1:9876", "[::1]:9876", "unix:/run/x", "tls:one:9876"):
            self.assertEqual(self.behind(address), {}, address)

    def test_by_tls_each_must_show_a_certificate_of_the_name(self) -> None:
        self.assertEqual(set(self.behind("tls:three:9876").values()), {"<TLS to three>"})

    def test_an_unknown_name_fails(self) -> None:
        finding = Deferred.fromCoroutine(endpoints_behind(self.reactor, "nobody:9876"))
        self.failureResultOf(finding, DNSLookupError)


class OwnNameTests(SynchronousTestCase):
    """brokerIP1 and --bind may be names that a resolver knows only later."""

    def setUp(self) -> None:
        self.clock = MemoryReactorClock()
        self.known: dict[str, str] = {}

    def look_up(self, name: str) -> str:
        if name not in self.known:
            raise OSError("Name or service not known")
        return self.known[name]

    def test_it_waits_and_tells_once_until_the_name_is_known(self) -> None:
        with log_lines() as lines:
            waiting = Deferred.fromCoroutine(
                wait_for_address("brokerIP1", "broker-a", lambda call: execute(call), self.clock, self.look_up)
            )
            self.clock.pump([1] * 5)
            self.assertNoResult(waiting)
            self.known["broker-a"] = "10.0.0.1"
            self.clock.pump([1])
        self.assertEqual(self.successResultOf(waiting), "10.0.0.1")
        self.assertEqual(lines().count("warn: brokerIP1=broker-a cannot be looked up: Name or service not known"), 1)
        self.assertIn("info: brokerIP1=broker-a is 10.0.0.1", lines())
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_waiting_may_end_before(self) -> None:
        waiting = Deferred.fromCoroutine(
            wait_for_address("bind", "broker-a", lambda call: execute(call), self.clock, self.look_up)
        )
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_what_is_no_name_is_not_known(self) -> None:
        for name in ("nobody.invalid", "a" * 300, "x..y"):
            self.assertRaises(OSError, look_up, name)
        self.assertEqual(look_up("127.0.0.1"), "127.0.0.1")


class MakeEndpointTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()

    def test_host_and_port(self) -> None:
        for address in ("broker-a:10912", "10.0.0.1:10912", "[::1]:10912", "[fe80::1]:1", "h:65535"):
            with self.subTest(address):
                endpoint = make_endpoint(self.reactor, address)
                self.assertIsInstance(endpoint.endpoint, HostnameEndpoint)
                self.assertEqual(repr(endpoint), f"<HostnameEndpoint {address}>")

    def test_a_twisted_endpoint_says_where_to_connect(self) -> None:
        endpoint = make_endpoint(self.reactor, "tcp:10.0.0.1:10912:timeout=7")
        self.assertIsInstance(endpoint.endpoint, TCP4ClientEndpoint)
        endpoint.connect(Factory.forProtocol(Protocol))
        ((host, port, _, timeout, _),) = self.reactor.tcpClients
        self.assertEqual((host, port, timeout), ("10.0.0.1", 10912, 7))

    def test_other_kinds_of_twisted_endpoints(self) -> None:
        self.assertIsInstance(make_endpoint(self.reactor, "unix:/run/rmqha").endpoint, UNIXClientEndpoint)

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


@implementer(IStreamClientEndpoint)
class OddEndpoint:
    """Its attempts fail with an error of their own when they are cancelled, as those of Twisted's HostnameEndpoint."""

    def __init__(self) -> None:
        self.attempt: Deferred[IProtocol] = Deferred(lambda attempt: attempt.errback(ConnectError(string="odd")))

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return self.attempt


class CancelTests(SynchronousTestCase):
    """Whoever cancels an attempt to connect must not take that for a failure of the other end."""

    def test_a_cancelled_attempt_fails_with_cancelled_error(self) -> None:
        reactor = MemoryReactorClock()
        for address in ("127.0.0.1:1", "tcp:127.0.0.1:1"):
            with self.subTest(address):
                connecting = make_endpoint(reactor, address).connect(Factory.forProtocol(Protocol))
                self.assertNoResult(connecting)
                connecting.cancel()
                self.failureResultOf(connecting, CancelledError)

    def test_whatever_the_other_endpoint_makes_of_it(self) -> None:
        connecting = CancellableEndpoint(OddEndpoint()).connect(Factory.forProtocol(Protocol))
        connecting.cancel()
        self.failureResultOf(connecting, CancelledError)

    def test_other_failures_and_protocols_come_through(self) -> None:
        failing, connected = OddEndpoint(), OddEndpoint()
        connecting = CancellableEndpoint(failing).connect(Factory.forProtocol(Protocol))
        failing.attempt.errback(ConnectError(string="refused"))
        self.failureResultOf(connecting, ConnectError)
        protocol = Protocol()
        connecting = CancellableEndpoint(connected).connect(Factory.forProtocol(Protocol))
        connected.attempt.callback(protocol)
        self.assertIs(self.successResultOf(connecting), protocol)


class TLSAddressTests(SynchronousTestCase):
    """Addresses whose certificate is checked."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.ca = Authority(new_folder(self))

    def name_to_check(self, address: str) -> str:
        """Whose certificate is expected at this address."""
        endpoint = make_endpoint(self.reactor, address)
        self.assertTrue(uses_tls(address))
        return repr(endpoint)

    def test_the_certificate_is_to_be_for_the_host_whatever_the_prefix(self) -> None:
        for address, host in (
            ("tls:broker-a:10912", "broker-a"),
            ("ssl:broker-a:10912", "broker-a"),
            ("tls:host=broker-a:port=10912", "broker-a"),
            ("tls:10.0.0.1:10912:timeout=7", "10.0.0.1"),
            ("tls:[2001:db8::1]:10912", "2001:db8::1"),
            ("tls:2001\\:db8\\:\\:1:10912", "2001:db8::1"),
            ("ssl:10.0.0.1:10912:hostname=broker-a", "broker-a"),
            ("tls:broker-a:10912:endpoint=tcp\\:10.0.0.1\\:10912", "broker-a"),
        ):
            with self.subTest(address):
                self.assertEqual(self.name_to_check(address), f"<TLS to {host}>")

    def test_it_connects_to_the_port_in_the_time_given(self) -> None:
        make_endpoint(self.reactor, "tls:broker-a:10912:timeout=7").connect(Factory.forProtocol(Protocol))
        ((_, port, _, timeout, _),) = self.reactor.tcpClients
        self.assertEqual((port, timeout), (10912, 7))

    def test_a_string_may_name_certificates_of_its_own_as_twisteds_may(self) -> None:
        own, folder = self.ca.issue("slave-a"), self.ca.path.parent
        for address in (
            f"tls:h:1:trustRoots={folder}",
            f"tls:h:1:certificate={own}:privateKey={own}:trustRoots={self.ca.path}",
            f"ssl:h:1:certKey={own}:caCertsDir={folder}",
        ):
            with self.subTest(address):
                self.assertEqual(self.name_to_check(address), "<TLS to h>")

    def test_what_is_wrong_is_told_in_one_line(self) -> None:
        for address, told in (
            ("tls:h:1:trustRoots=/nowhere", "/nowhere: No such file or directory"),
            (f"tls:h:1:privateKey={self.ca.path}", "a key needs its certificate"),
            (f"tls:h:1:certificate={self.ca.path}", "there is no private key in PEM format"),
            ("tls:h:1:colour=red", "colour= is not a parameter of a TLS address"),
            ("tls:h:1:2", "2 is one too many after host and port"),
            ("ssl:h:0", "a port is between 1 and 65535"),
            ("tls:h:70000", "a port is between 1 and 65535"),
            ("tls:h..x:1", "is not a host name"),
            ("tls:h", "is neither HOST:PORT nor a Twisted client endpoint"),
            ("tls:h:1:timeout=long", "is neither HOST:PORT nor a Twisted client endpoint"),
        ):
            with self.subTest(address):
                error = self.assertRaises(ValueError, make_endpoint, self.reactor, address)
                self.assertIn(told, str(error))
                self.assertIn(repr(address), str(error))
                self.assertNotIn("\n", str(error))


class RemotingAddressTests(SynchronousTestCase):
    def test_it_is_one_below_the_ha_port(self) -> None:
        for ha_address, expected in (
            ("broker-a:10912", "broker-a:10911"),
            ("10.0.0.1:10912", "10.0.0.1:10911"),
            ("[::1]:10912", "[::1]:10911"),
            ("tcp:broker-a:10912", "broker-a:10911"),
            ("tls:broker-a:10912", "tls:host=broker-a:port=10911"),
            ("ssl:broker-a:10912", "tls:host=broker-a:port=10911"),
            ("tls:[::1]:10912", "tls:host=\\:\\:1:port=10911"),
            (
                "tls:h:10912:trustRoots=/ca\\:x:hostname=b:timeout=5",
                "tls:host=h:port=10911:trustRoots=/ca\\:x:hostname=b:timeout=5",
            ),
        ):
            with self.subTest(ha_address):
                self.assertEqual(remoting_address_of(ha_address), expected)

    def test_the_fast_port_is_two_below_the_remoting_port(self) -> None:
        for address, expected in (
            ("broker-a:10911", "broker-a:10909"),
            ("[::1]:10911", "[::1]:10909"),
            ("tls:broker-a:10911", "tls:host=broker-a:port=10909"),
            ("h:3", "h:1"),
            ("h:2", None),
            ("tls:h:2", None),
            ("unix:/run/broker", None),
        ):
            with self.subTest(address):
                self.assertEqual(fast_address_of(address), expected)

    def test_there_is_none_where_the_address_does_not_tell_a_port(self) -> None:
        for ha_address in (
            "tls:broker-a",
            "tls:h:10912:endpoint=unix\\:/run/ha",
            "unix:/run/ha",
            "tcp:h:10912:timeout=5",
            "tcp:host=h:port=10912",
            "",
        ):
            with self.subTest(ha_address):
                self.assertIsNone(remoting_address_of(ha_address))

    def test_there_is_no_port_below_the_first(self) -> None:
        self.assertIsNone(remoting_address_of("h:1"))
        self.assertIsNone(remoting_address_of("tls:h:1"))
        self.assertEqual(remoting_address_of("h:2"), "h:1")


class ToldEndpointTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.endpoint = ToldEndpoint(self.reactor)

    def connect(self) -> Deferred[IProtocol]:
        return self.endpoint.connect(Factory.forProtocol(Protocol))

    def connected_to(self) -> list[tuple[str, int]]:
        """Hosts and ports of all attempts until now."""
        return [(host, port) for host, port, *_ in self.reactor.tcpClients]

    def test_it_connects_to_the_address_told_last(self) -> None:
        self.endpoint.tell("tcp:10.0.0.1:10912")
        self.connect()
        self.endpoint.tell("tcp:10.0.0.2:10912")
        self.connect()
        self.connect()
        self.assertEqual(self.connected_to(), [("10.0.0.1", 10912), ("10.0.0.2", 10912), ("10.0.0.2", 10912)])

    def test_attempts_wait_for_the_first(self) -> None:
        self.connect()
        self.connect()
        self.reactor.advance(MAX_WAIT_SECONDS - 1)
        self.assertEqual(self.connected_to(), [])
        self.endpoint.tell("tcp:10.0.0.1:10912")
        self.assertEqual(self.connected_to(), [("10.0.0.1", 10912)] * 2)

    def test_but_not_for_ever(self) -> None:
        attempt = self.connect()
        self.reactor.advance(MAX_WAIT_SECONDS)
        self.failureResultOf(attempt, ConnectError)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.endpoint.tell("tcp:10.0.0.1:10912")
        self.assertEqual(self.connected_to(), [])

    def test_one_that_is_cancelled_leaves_nothing(self) -> None:
        attempt = self.connect()
        attempt.cancel()
        self.failureResultOf(attempt, CancelledError)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.endpoint.tell("tcp:10.0.0.1:10912")
        self.assertEqual(self.connected_to(), [])

    def test_an_address_that_is_none_fails_the_attempt(self) -> None:
        self.endpoint.tell("somewhere")
        self.failureResultOf(self.connect(), ValueError)


class LoopbackEndpointTests(SynchronousTestCase):
    """What goes over the connection takes turns of the reactor: see ``tests.stories.test_namesrv``."""

    def setUp(self) -> None:
        self.clock = MemoryReactorClock()
        self.built: list[Protocol] = []

    def connect(self, server: Callable[[], Protocol | None]) -> Deferred[IProtocol]:
        return LoopbackEndpoint(FunctionFactory(server), self.clock).connect(FunctionFactory(self.build))

    def build(self) -> Protocol:
        self.built.append(Protocol())
        return self.built[-1]

    def test_both_ends_are_connected_a_turn_later(self) -> None:
        connecting = self.connect(self.build)
        self.assertNoResult(connecting)
        self.clock.advance(0)
        client, server = self.built
        self.assertIs(self.successResultOf(connecting), client)
        self.assertTrue(client.connected)
        self.assertTrue(server.connected)

    def test_a_server_may_refuse(self) -> None:
        connecting = self.connect(lambda: None)
        self.clock.advance(0)
        self.failureResultOf(connecting, ConnectError)
        self.assertFalse(self.built[0].connected)


class FunctionFactory(Factory[Protocol]):
    """Builds by a function."""

    def __init__(self, build: Callable[[], Protocol | None]) -> None:
        self._build = build

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        return self._build()
