"""The signature of a request by RocketMQ's ACL 1.0 (spec/remoting.md 13.1).

``Signature`` is the base64 form of HMAC-SHA1 over the values of all other header fields, ordered by their names, and
then the body. The field ``AccessKey`` names the account, whose secret key is the key of the HMAC.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from operator import itemgetter

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
SIGNING_FIELDS = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
LAST_VERSION_WITHOUT_UNIQUE_KEY = 399
"""Clients up to 4.9.3 do not sign the field ``_UNIQUE_KEY_QUERY``. Later ones do."""
MIN_KEY_CHARACTERS = 7
"""An access key and a secret key have more than six characters. Java refuses shorter ones."""

HMAC_BLOCK_BYTES = 64
MAX_PICKS = 256
MAX_KEPT_CHARACTERS = 1024
INNER_PAD, OUTER_PAD = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account's keys. Neither ``repr`` nor ``str`` shows the secret key or the token."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, key in (("accessKey", self.access_key), ("secretKey", self.secret_key)):
            if len(key) < MIN_KEY_CHARACTERS:
                raise ValueError(f"{name} has fewer than {MIN_KEY_CHARACTERS} characters")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


Pick = Callable[[Mapping[str, str]], Iterable[str]]
_PICKS: dict[tuple[bool, tuple[str, ...]], Pick] = {}
"""What picks the signed values in their order, by the names of the fields: clients send the same names again."""


def signed_fields(fields: Mapping[str, str], version: int) -> bytes:
    """What a client of this version signs of the header fields. Raises UnicodeEncodeError for half a surrogate pair."""
    return "".join(pick_of(fields, version)(fields)).encode()


def pick_of(fields: Mapping[str, str], version: int) -> Pick:
    """What gives the signed values, in their order, of all header fields with these names."""
    kind = version <= LAST_VERSION_WITHOUT_UNIQUE_KEY, tuple(fields)
    return _PICKS.get(kind) or _make_pick(*kind)


def _make_pick(is_old: bool, names: tuple[str, ...]) -> Pick:
    """Keeps few of them, and none with long names: a stranger may send any names."""
    unsigned = {SIGNATURE, UNIQUE_KEY_QUERY} if is_old else {SIGNATURE}
    signed = sorted(set(names) - unsigned, key=None if "".join(names).isascii() else _utf16)  # Java compares UTF-16
    if len(signed) > 1:
        pick: Pick = itemgetter(*signed)
        if sum(map(len, names)) <= MAX_KEPT_CHARACTERS:
            if len(_PICKS) >= MAX_PICKS:
                _PICKS.clear()
            _PICKS[is_old, names] = pick
        return pick
    return lambda fields: [fields[name] for name in signed]


def signed_content(fields: Mapping[str, str], body: bytes, version: int) -> bytes:
    """The bytes that a client of this version signs. Raises UnicodeEncodeError for half a surrogate pair."""
    return signed_fields(fields, version) + body


class SigningKey:
    """A secret key that signs often: HMAC (RFC 2104) with the hash of its two padded keys computed only once.

    The functions of ``hmac`` set up the key for each message, which takes several times as long as the rest.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > HMAC_BLOCK_BYTES:
            key = sha1(key).digest()
        key = key.ljust(HMAC_BLOCK_BYTES, b"\0")
        self._inner = sha1(key.translate(INNER_PAD))
        self._outer = sha1(key.translate(OUTER_PAD))

    def signature(self, fields: bytes, body: bytes = b"") -> bytes:
        """The signature of the signed header fields and the body, in base64."""
        inner = self._inner.copy()
        inner.update(fields)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


def signature_of(content: bytes, secret_key: str) -> str:
    """The signature of signed bytes."""
    return SigningKey(secret_key).signature(content).decode("ascii")


class Signer:
    """Signs the requests of a connection. The credentials can be replaced while it is in use."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials

    def __call__(self, fields: Mapping[str, str], body: bytes, version: int) -> dict[str, str]:
        """The header fields with the account's access key and the signature."""
        credentials = self.credentials
        signed = {**fields, ACCESS_KEY: credentials.access_key}
        if credentials.security_token is not None:
            signed[SECURITY_TOKEN] = credentials.security_token
        signed[SIGNATURE] = signature_of(signed_content(signed, body, version), credentials.secret_key)
        return signed
