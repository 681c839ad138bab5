"""How long strangers wait for refusals."""

from math import inf

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl import patience
from rmqha.acl.patience import ALL_FREE_TRIES, FREE_TRIES, MAX_WAIT_SECONDS, REFUSALS_PER_SECOND, Patience


class PatienceTests(SynchronousTestCase):
    """Each call of ``seconds`` counts a refusal."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1_000_000)
        self.patience = Patience(self.clock)

    def waits(self, address: str, count: int) -> list[float]:
        """The waits of so many refusals, to a thousandth of a second."""
        return [round(self.patience.seconds(address), 3) for _ in range(count)]

    def test_a_host_waits_by_its_rate(self) -> None:
        waits = self.waits("192.0.2.1", FREE_TRIES + 3)
        self.assertEqual(waits, [0.0] * FREE_TRIES + [0.1, 0.2, 0.3])
        self.clock.advance(0.3)
        self.assertEqual(self.waits("192.0.2.1", 1), [0.1])
        self.clock.advance(FREE_TRIES / REFUSALS_PER_SECOND + 0.1)
        self.assertEqual(self.waits("192.0.2.1", FREE_TRIES), [0.0] * FREE_TRIES)

    def test_a_wait_has_a_limit_and_ends(self) -> None:
        waits = [self.patience.seconds("192.0.2.1") for _ in range(10_000)]
        most = int(FREE_TRIES + MAX_WAIT_SECONDS * REFUSALS_PER_SECOND)
        self.assertLessEqual(waits[most - 1], MAX_WAIT_SECONDS)
        self.assertEqual(set(waits[most + 1 :]), {inf})
        self.clock.advance(MAX_WAIT_SECONDS + FREE_TRIES / REFUSALS_PER_SECOND)
        self.assertEqual(self.waits("192.0.2.1", 1), [0.0])

    def test_the_addresses_of_one_network_are_one_host(self) -> None:
        for number in range(FREE_TRIES):
            self.patience.seconds(f"2001:db8::{number:x}")
        self.assertGreater(self.patience.seconds("2001:db8::ffff"), 0)
        self.assertEqual(self.patience.seconds("2001:db8:0:1::1"), 0)

    def test_all_hosts_together_have_a_rate(self) -> None:
        waits = [self.patience.seconds(f"192.0.{number // 250}.{number % 250}") for number in range(2000)]
        self.assertEqual(set(waits[:ALL_FREE_TRIES]), {0.0})
        self.assertGreater(min(waits[ALL_FREE_TRIES:]), 0)

    def test_few_hosts_are_remembered(self) -> None:
        self.patch(patience, "MAX_HOSTS", 20)
        for number in range(100):
            self.patience.seconds(f"192.0.2.{number}")
        self.assertLessEqual(self.patience.hosts, 21)
        self.assertGreater(self.patience.seconds("192.0.2.250"), 0)  # with all who came too late
        self.assertEqual(self.patience.seconds("192.0.2.1"), 0)
        self.clock.advance(60)
        for number in range(15):
            self.assertEqual(self.patience.seconds(f"198.51.100.{number}"), 0)
        self.assertLessEqual(self.patience.hosts, 21)

    def test_quiet_hosts_are_forgotten(self) -> None:
        for number in range(5000):
            self.patience.seconds(f"198.51.{number // 250}.{number % 250}")
            self.clock.advance(1)
        self.assertLessEqual(self.patience.hosts, 3)
