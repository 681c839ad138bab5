"""Certificates for tests, as PEM files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


class Authority:
    """A CA that keeps what it issues below ``folder``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self.ca = trustme.CA(organization_name=name)
        self.path = folder / f"{name}.pem"
        self.ca.cert_pem.write_to_path(str(self.path))

    def issue(self, *names: str, common_name: str | None = None, expires: datetime | None = None) -> Path:
        """A file with a key and its certificate, for these host names or addresses."""
        certificate = self.ca.issue_cert(*names, common_name=common_name, not_after=expires)
        return self._save("-".join(names), certificate.private_key_and_cert_chain_pem.bytes())

    def issue_expired(self, *names: str) -> Path:
        """As ``issue``; it was good until yesterday."""
        return self.issue(*names, expires=YESTERDAY)

    def issue_without_names(self, common_name: str) -> Path:
        """A certificate that has a CN and no subjectAltName."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        issuer_key = serialization.load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(YESTERDAY)
            .not_valid_after(YESTERDAY + timedelta(days=30))
            .sign(issuer_key, hashes.SHA256())
        )
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._save(f"cn-{common_name}", key_pem + certificate.public_bytes(serialization.Encoding.PEM))

    def _save(self, name: str, content: bytes) -> Path:
        path = self._folder / f"{self._name}-{name.replace('/', '_')}-{len(list(self._folder.iterdir()))}.pem"
        path.write_bytes(content)
        return path
