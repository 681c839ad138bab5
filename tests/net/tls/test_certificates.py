"""What is shown of a peer's certificate."""

import warnings
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from OpenSSL import crypto
from twisted.trial.unittest import SynchronousTestCase

from rmqha.net.tls.certificates import common_name

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def certificate(*names: str) -> crypto.X509:
    """A certificate whose subject has these CNs."""
    key = Ed25519PrivateKey.generate()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name, _validate=False) for name in names])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + timedelta(days=1))
    signed = builder.sign(key, None)
    return crypto.X509.from_cryptography(signed)


class CommonNameTests(SynchronousTestCase):
    def test_the_first_cn_is_shown(self) -> None:
        self.assertEqual(common_name(certificate("slave-a", "slave-b")), "slave-a")
        self.assertEqual(common_name(certificate("größe")), "größe")

    def test_a_subject_may_have_none(self) -> None:
        self.assertEqual(common_name(certificate()), "no CN")

    def test_a_stranger_cannot_write_lines_or_escapes_into_the_log(self) -> None:
        shown = common_name(certificate("a\nERROR b\x1b[31m"))
        self.assertEqual(shown, "'a\\nERROR b\\x1b[31m'")

    def test_a_long_name_is_cut(self) -> None:
        self.assertEqual(common_name(certificate("x" * 5000)), "x" * 100)

    def test_no_deprecated_call_is_made(self) -> None:
        peer = certificate("slave-a")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            common_name(peer)
