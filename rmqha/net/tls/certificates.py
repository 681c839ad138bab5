"""Certificates and keys from PEM files, and the names in a peer's certificate."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from re import compile as compile_pattern
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto
from twisted.internet.ssl import Certificate, CertificateOptions, TLSVersion

_PEER_NAME = compile_pattern(r"[A-Za-z0-9_*][A-Za-z0-9_.*-]{0,199}")
"""Only such names count, because a name can become a slot's file name and a part of a log line."""
MAX_SHOWN_NAME = 100
VERIFY_ERRORS = {  # the common X509_V_ERR_…; others are shown by number
    9: "is not valid yet",
    10: "has expired",
    18: "is signed by itself",
    19: "is signed by none of the authorities trusted here",
    20: "is signed by none of the authorities trusted here",
    21: "is signed by none of the authorities trusted here",
    26: "is not meant for this use",
}


class TLSError(ValueError):
    """A PEM file cannot be used, or a peer's certificate is not accepted."""


def names_in(certificate: crypto.X509) -> tuple[str, ...]:
    with suppress(ValueError):  # a malformed certificate has no names
        content = certificate.to_cryptography()
        names: list[str] = []
        with suppress(x509.ExtensionNotFound):
            extension = content.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            names = extension.value.get_values_for_type(x509.DNSName)
        if not names:
            names = [str(attribute.value) for attribute in content.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return tuple(name.lower() for name in names if _PEER_NAME.fullmatch(name))
    return ()


def common_name(certificate: crypto.X509) -> str:
    """The CN of a certificate that may be anybody's, for a log line: short, and escaped if it is not plain text."""
    try:
        attributes = certificate.to_cryptography().subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:
        return "no readable subject"
    if not attributes:
        return "no CN"
    name = str(attributes[0].value)[:MAX_SHOWN_NAME]
    return name if name.isprintable() else ascii(name)


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """Our own key, and the certificate that we show to peers, with the intermediate certificates."""

    key: crypto.PKey
    chain: tuple[crypto.X509, ...]

    @classmethod
    def load(cls, certificate_path: str, key_path: str | None) -> "OwnCertificate":
        """Read PEM files. Without ``key_path`` the key is in the certificate's file. Raises TLSError."""
        content = _read(certificate_path)
        chain = _certificates(content, certificate_path)
        place = key_path if key_path is not None else certificate_path
        key_content = content if key_path is None else _read(key_path)
        try:
            key = load_pem_private_key(key_content, password=None)
            own = cls(crypto.PKey.from_cryptography_key(key), chain)  # type: ignore[arg-type]  # others raise TypeError
        except TypeError as error:
            raise TLSError(f"{place}: the private key needs a password, or is of an unknown kind") from error
        except ValueError as error:
            raise TLSError(f"{place}: there is no private key in PEM format") from error
        try:
            make_options(own, None).getContext()
        except SSL.Error as error:
            raise TLSError(f"{place}: not the key of {certificate_path} ({words_of(error)})") from error
        return own

    @property
    def expires_at(self) -> float:
        """When the certificate ends, in seconds since 1970."""
        return self.chain[0].to_cryptography().not_valid_after_utc.timestamp()

    def is_valid_at(self, now: float) -> bool:
        """Whether peers accept its dates at this time, in seconds since 1970."""
        return self.chain[0].to_cryptography().not_valid_before_utc.timestamp() <= now <= self.expires_at

    def check_valid_at(self, now: float, path: str) -> None:
        """Raises TLSError if peers would refuse it because of its dates."""
        if not self.is_valid_at(now):
            dates = self.chain[0].to_cryptography()
            begins, ends = dates.not_valid_before_utc, dates.not_valid_after_utc
            raise TLSError(f"{path}: the certificate is valid only from {begins:%F %R} to {ends:%F %R} UTC")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TLSError(f"{path}: {error.strerror}") from error


def _certificates(content: bytes, path: str) -> tuple[crypto.X509, ...]:
    try:
        return tuple(map(crypto.X509.from_cryptography, x509.load_pem_x509_certificates(content)))
    except ValueError as error:
        raise TLSError(f"{path}: there is no certificate in PEM format") from error


def load_authorities(path: str) -> tuple[Certificate, ...]:
    """The certificates of a PEM file, or of the ``.pem`` files of a folder. Raises TLSError."""
    folder = Path(path)
    files = [str(file) for file in sorted(folder.glob("*.pem"))] if folder.is_dir() else [path]
    found = tuple(Certificate(certificate) for file in files for certificate in _certificates(_read(file), file))
    if not found:
        raise TLSError(f"{path}: there is no .pem file in this folder")
    return found


def make_options(own: OwnCertificate | None, trust: Any) -> CertificateOptions:
    return CertificateOptions(
        privateKey=own.key if own is not None else None,
        certificate=own.chain[0] if own is not None else None,
        extraCertChain=list(own.chain[1:]) if own is not None else None,
        trustRoot=trust,
        raiseMinimumTo=TLSVersion.TLSv1_2,
    )


def words_of(error: SSL.Error) -> str:
    entries = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return ", ".join(str(entry[-1]) for entry in entries) or repr(error)
