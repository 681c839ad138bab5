"""Which slaves are allowed, and what is logged about the others."""

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.ha.admission.allowlist import LOGGED_AGAIN_SECONDS, MAX_LOGGED, AllowList, SlaveCheck
from rmqha.ha.master.enoughslaves import EnoughSlaves
from rmqha.ha.master.followers import Copies, Followers
from rmqha.ha.master.protocol import HAMasterFactory, HAMasterProtocol, MasterOptions
from rmqha.settings.settings import make_settings
from rmqha.store.message import PutMessageStatus
from rmqha.wire.transfer import encode_report
from tests.ha.doubles import PEER, LineTransport, log_lines, make_image, memory_log

IMAGE = make_image([300] * 10)


class CertifiedTransport(LineTransport):
    """A line whose TLS has proved these names."""

    def __init__(self, clock: Clock, *names: str) -> None:
        super().__init__(clock)
        self.peer_names = names


class AllowListTests(SynchronousTestCase):
    def test_addresses_and_networks(self) -> None:
        allowed = AllowList.parse("10.0.0.1, 192.0.2.0/24,2001:db8::/32")
        for host in ("10.0.0.1", "192.0.2.255", "::ffff:10.0.0.1", "2001:db8::5", "2001:DB8::5%eth0"):
            self.assertTrue(allowed.has_address(host), host)
        for host in ("10.0.0.2", "192.0.3.0", "::1", "slave-a", "", "None"):
            self.assertFalse(allowed.has_address(host), host)

    def test_names_are_compared_whole_and_without_case(self) -> None:
        allowed = AllowList.parse("Slave-A.example,10.0.0.1")
        self.assertEqual(allowed.listed_name(("other", "slave-a.example")), "slave-a.example")
        for names in ((), ("slave-a",), ("slave-a.example.com",), ("10.0.0.1",)):
            self.assertIsNone(allowed.listed_name(names))


class SlaveCheckTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def check(self, text: str) -> SlaveCheck:
        return SlaveCheck(self.clock, AllowList.parse(text))

    def test_all_may_connect_where_there_is_no_list(self) -> None:
        check = SlaveCheck(self.clock)
        self.assertTrue(check.may_connect("192.0.2.1"))
        self.assertEqual(check.identify("192.0.2.1", ()), "192.0.2.1")
        self.assertEqual(check.identify("192.0.2.1", ("a", "b")), "a")

    def test_a_list_of_addresses_decides_at_once(self) -> None:
        check = self.check("192.0.2.0/24")
        self.assertTrue(check.may_connect("192.0.2.1"))
        self.assertFalse(check.may_connect("192.0.3.1"))

    def test_a_list_with_names_waits_for_the_certificate(self) -> None:
        check = self.check("192.0.2.0/24,slave-a")
        self.assertTrue(check.may_connect("192.0.3.1"))
        self.assertEqual(check.identify("192.0.3.1", ("x", "slave-a")), "slave-a")
        self.assertEqual(check.identify("192.0.2.1", ("x",)), "x")
        self.assertEqual(check.identify("192.0.2.1", ()), "192.0.2.1")
        self.assertIsNone(check.identify("192.0.3.1", ("x",)))
        self.assertIsNone(check.identify("192.0.3.1", ()))

    def test_a_refusal_is_told_once_in_a_while_and_again_for_another_reason(self) -> None:
        check = self.check("192.0.2.0/24")
        with log_lines() as lines:
            for _ in range(100):
                check.refused("192.0.3.1", "why")
            check.refused("192.0.3.1", "another why")
            check.refused("192.0.3.2", "why")
        self.assertEqual(
            lines().split("\n"),
            [f"warn: refusing {host}: {why}" for host, why in (("192.0.3.1", "why"), ("192.0.3.1", "another why"))]
            + ["warn: refusing 192.0.3.2: why"],
        )
        self.clock.advance(LOGGED_AGAIN_SECONDS)
        with log_lines() as lines:
            check.refused("192.0.3.1", "why")
        self.assertEqual(lines(), "warn: refusing 192.0.3.1: why")

    def test_refusals_of_a_million_addresses_do_not_fill_the_log(self) -> None:
        check = self.check("192.0.2.0/24")
        with log_lines() as lines:
            for number in range(10 * MAX_LOGGED):
                check.may_connect(f"10.0.{number // 256}.{number % 256}")
        self.assertEqual(len(lines().split("\n")), MAX_LOGGED + 1)
        self.assertIn("further ones are not logged", lines())


class MasterTests(SynchronousTestCase):
    """A master that serves a list of slaves."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.log = memory_log(IMAGE)
        settings = make_settings({"storePathRootDir": self.mktemp(), "brokerRole": "SYNC_MASTER"})
        self.transfer = Followers(EnoughSlaves(Copies(self.log, 0), settings), settings, self.clock)

    def serve(self, text: str) -> HAMasterFactory:
        check = SlaveCheck(self.clock, AllowList.parse(text))
        factory = HAMasterFactory(self.log, self.clock, MasterOptions(1000), [self.transfer], check=check)
        factory.doStart()
        self.addCleanup(factory.doStop)
        return factory

    def request(self, factory: HAMasterFactory, *names: str) -> tuple[HAMasterProtocol, CertifiedTransport]:
        """A slave with these names connects and reports that it holds everything."""
        connection = factory.buildProtocol(PEER)
        assert connection is not None
        transport = CertifiedTransport(self.clock, *names)
        transport.attach(connection)
        self.addCleanup(transport.lose)
        for offset in (IMAGE.last_message, IMAGE.end):
            transport.deliver(encode_report(offset))
        return connection, transport

    def put_status(self) -> PutMessageStatus | None:
        """What a put gets whose message ends where the log does; None if it has to wait."""
        found: list[PutMessageStatus] = []
        waiting = self.transfer.wait(IMAGE.end)
        waiting.addCallback(found.append)
        self.clock.advance(0)
        return found[0] if found else None

    def test_a_slave_that_is_listed_is_known_by_its_name(self) -> None:
        factory = self.serve("slave-a")
        connection, transport = self.request(factory, "x", "slave-a")
        self.assertEqual(connection.facts()["identity"], "slave-a")
        self.assertEqual(factory.acknowledged(), {"slave-a": IMAGE.end})
        self.assertFalse(transport.disconnecting)
        self.assertEqual(self.put_status(), PutMessageStatus.PUT_OK)

    def test_a_slave_that_is_not_gets_no_byte_and_never_counts(self) -> None:
        for names in ((), ("slave-b",), (PEER.host,)):
            with self.subTest(names), log_lines() as lines:
                factory = self.serve("slave-a")
                _, transport = self.request(factory, *names)
                self.assertEqual(transport.value(), b"")
                self.assertTrue(transport.aborted)
                self.assertEqual(factory.acknowledged(), {})
                self.assertEqual(self.put_status(), PutMessageStatus.SLAVE_NOT_AVAILABLE)
                self.assertIn(f"warn: refusing {PEER.host}", lines())

    def test_an_address_that_is_not_listed_is_not_let_in(self) -> None:
        factory = self.serve("198.51.100.0/24")
        self.assertIsNone(factory.buildProtocol(PEER))
        self.assertIsNotNone(factory.buildProtocol(IPv4Address("TCP", "198.51.100.3", 1)))
        self.assertEqual(len(factory.connections), 1)

    def test_a_slave_is_known_by_its_host_where_it_shows_no_name(self) -> None:
        factory = self.serve("192.0.2.0/24")
        connection, _ = self.request(factory)
        self.assertEqual(connection.facts()["identity"], PEER.host)
        self.assertEqual(factory.acknowledged(), {PEER.host: IMAGE.end})

    def test_tls_at_a_plain_port_is_called_by_its_name(self) -> None:
        factory = self.serve("192.0.2.0/24")
        connection = factory.buildProtocol(PEER)
        assert connection is not None
        transport = LineTransport(self.clock)
        transport.attach(connection)
        self.addCleanup(transport.lose)
        with log_lines() as lines:
            transport.deliver(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03")
        self.assertIn("starts a TLS handshake, but this port has no TLS", lines())
        self.assertTrue(transport.aborted)
