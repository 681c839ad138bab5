"""The grammar of white addresses."""

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.acl.addresses import address_of, parse_pattern
from tests import examples


def matches(pattern: str, host: str) -> bool:
    """Whether a peer at this host matches the pattern."""
    address = address_of(host)
    assert address is not None
    return parse_pattern(pattern)(address)


class AddressTests(SynchronousTestCase):
    """Patterns that RocketMQ documents, and wrong ones."""

    def test_what_matches(self) -> None:
        for pattern, hosts in {
            "*": ("1.2.3.4", "fe80::1"),
            "*.*.*.*": ("1.2.3.4",),
            "192.168.0.7": ("192.168.0.7", "::ffff:192.168.0.7"),
            "192.168.0.*": ("192.168.0.0", "192.168.0.255"),
            "192.168.*.*": ("192.168.7.9",),
            "192.168.4-6.*": ("192.168.4.1", "192.168.6.255"),
            "10.10.103.4-9": ("10.10.103.4", "10.10.103.9"),
            "10.0.0.1,10.0.0.2": ("10.0.0.1", "10.0.0.2"),
            "10.0.0.{1,2}": ("10.0.0.1", "10.0.0.2"),
            "fe80::1": ("fe80::1", "FE80:0:0:0:0:0:0:1", "fe80::1%eth0"),
            "fe80::{1,A}": ("fe80::1", "fe80::a"),
            "fe80::*": ("fe80::", "fe80::ffff"),
            "fe80::1-f": ("fe80::1", "fe80::f"),
        }.items():
            for host in hosts:
                self.assertTrue(matches(pattern, host), (pattern, host))

    def test_what_does_not_match(self) -> None:
        for pattern, hosts in {
            "": ("1.2.3.4",),
            "192.168.0.7": ("192.168.0.70", "192.168.0.8", "::1"),
            "192.168.0.*": ("192.168.1.0", "192.169.0.1"),
            "10.10.103.4-9": ("10.10.103.3", "10.10.103.10", "10.10.103.40"),
            "10.0.0.{1,2}": ("10.0.0.3", "10.0.0.12"),
            "fe80::*": ("fe80::1:0", "1.2.3.4"),
        }.items():
            for host in hosts:
                self.assertFalse(matches(pattern, host), (pattern, host))

    def test_wrong_patterns_are_refused(self) -> None:
        for pattern in (
            "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.9-4", "1.2.3.-4", "1.*.3.4", "1.2.3.x", "1.2.3.4,", "1.2.3.{}",
            "1.2.{3,4}.5", "localhost", "::1::*", "1-2:*", "fe80::1-fffff", "*" * 5000, "1.2.3.٤-٩", "1.2.3.+1-2",
        ):  # fmt: skip
            self.assertRaises(ValueError, parse_pattern, pattern)

    def test_a_peer_without_an_address_has_none(self) -> None:
        self.assertIsNone(address_of("localhost"))

    @given(st.ip_addresses(v=4), st.integers(0, 255), st.integers(0, 255))
    @settings(max_examples=examples(100))
    def test_a_range_is_a_range(self, address: object, one: int, other: int) -> None:
        least, most = sorted((one, other))
        head, _, last = str(address).rpartition(".")
        self.assertEqual(matches(f"{head}.{least}-{most}", str(address)), least <= int(last) <= most)

    @given(st.text("0123456789.*-,{}:af ", max_size=30))
    @settings(max_examples=examples(200))
    def test_any_text_is_a_pattern_or_is_refused(self, text: str) -> None:
        try:
            found = parse_pattern(text)
        except ValueError:
            return
        for host in ("1.2.3.4", "fe80::1"):
            address = address_of(host)
            assert address is not None
            self.assertIn(found(address), (True, False))
