"""The signature of a request by RocketMQ's ACL 1.0 (spec/remoting.md 13.1).

``Signature`` is the base64 form of HMAC-SHA1 over the values of all other header fields, ordered by their names, and
then the body. The field ``AccessKey`` names the account, whose secret key is the key of the HMAC.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import digest

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
LAST_VERSION_WITHOUT_UNIQUE_KEY = 399
"""Clients up to 4.9.3 do not sign the field ``_UNIQUE_KEY_QUERY``. Later ones do."""
MIN_KEY_CHARACTERS = 7
"""An access key and a secret key have more than six characters. Java refuses shorter ones."""


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


def signed_content(fields: Mapping[str, str], body: bytes, version: int) -> bytes:
    """The bytes that a client of this version signs. Raises UnicodeEncodeError for half a surrogate pair."""
    names = [name for name in fields if name != SIGNATURE]
    if version <= LAST_VERSION_WITHOUT_UNIQUE_KEY and UNIQUE_KEY_QUERY in fields:
        names.remove(UNIQUE_KEY_QUERY)
    names.sort(key=None if all(map(str.isascii, names)) else _utf16)  # Java compares UTF-16 units
    return "".join([fields[name] for name in names]).encode() + body


def signature_of(content: bytes, secret_key: str) -> str:
    """The signature of signed bytes."""
    return b64encode(digest(secret_key.encode(), content, "sha1")).decode("ascii")


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
