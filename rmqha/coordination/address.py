"""Where a coordinator is, as people write it, and how we log in there."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self

from rmqha.net.tls.addresses import MAX_PORT
from rmqha.settings.settings import Settings, SettingsError, read_properties

MAX_ENDPOINTS = 16
USER_VARIABLE = "RMQHA_COORDINATOR_USER"
PASSWORD_VARIABLE = "RMQHA_COORDINATOR_PASSWORD"
EXAMPLE = "etcd:https://a:2379,b:2379,c:2379 or witness:a:9877"
_ENDPOINT = re.compile(
    r"(?:(?P<scheme>https?)://)?(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/@\[\]]+)):(?P<port>[0-9]{1,5})/?"
)


class CoordinatorKind(Enum):
    """What answers. Both speak the same calls."""

    ETCD = "etcd"
    WITNESS = "witness"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member of a coordinator."""

    host: str
    port: int
    uses_tls: bool

    @property
    def url(self) -> str:
        """Its URL, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.uses_tls else 'http'}://{host}:{self.port}"

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """The value of ``--failover``."""

    kind: CoordinatorKind
    endpoints: tuple[Endpoint, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``etcd:https://a:2379,b:2379`` or ``witness:a:9877``. A scheme counts for the endpoints after it too.

        Without any, there is no TLS. Raises SettingsError.
        """
        name, colon, rest = text.strip().partition(":")
        try:
            kind = CoordinatorKind(name)
        except ValueError:
            raise SettingsError(f"a coordinator is written like {EXAMPLE}, not {_shown(text)!r}") from None
        entries = [entry.strip() for entry in rest.split(",")]
        if not colon or not rest.strip():
            raise SettingsError(f"{name}: needs an address, like {EXAMPLE}")
        if len(entries) > MAX_ENDPOINTS:
            raise SettingsError(f"{name}: has {len(entries)} addresses; at most {MAX_ENDPOINTS} are allowed")
        endpoints: list[Endpoint] = []
        for entry in entries:
            endpoints.append(_parse_endpoint(entry, bool(endpoints) and endpoints[-1].uses_tls))
        if len(set(endpoints)) < len(endpoints):
            raise SettingsError(f"{name}: names an address twice")
        if len({each.uses_tls for each in endpoints}) > 1:
            raise SettingsError(f"{name}: has addresses with and without TLS; all must be the same")
        return cls(kind, tuple(endpoints))

    @property
    def uses_tls(self) -> bool:
        """Whether its connections use TLS."""
        return self.endpoints[0].uses_tls

    def __str__(self) -> str:
        scheme = "https://" if self.uses_tls else ""
        return f"{self.kind.value}:{scheme}{','.join(each.url.partition('://')[2] for each in self.endpoints)}"


def _shown(text: str) -> str:
    """The text without what may be a password before an @."""
    return re.sub(r"[^/,]*@", "…@", text)


def _parse_endpoint(text: str, uses_tls: bool) -> Endpoint:
    if "@" in text:
        raise SettingsError(
            f"{_shown(text)!r}: a user and a password do not belong into an address: put them into a file"
        )
    found = _ENDPOINT.fullmatch(text)
    if found is None:
        raise SettingsError(f"{text!r} is not an address of a coordinator: HOST:PORT, http://HOST:PORT or https://…")
    port = int(found["port"])
    if not 0 < port <= MAX_PORT:
        raise SettingsError(f"{text!r}: a port is between 1 and {MAX_PORT}")
    host = found["v6"] or found["host"]
    if not host.isascii():
        raise SettingsError(f"{text!r}: write the host's name in ASCII (xn--…)")
    return Endpoint(host, port, uses_tls if found["scheme"] is None else found["scheme"] == "https")


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the coordinator."""

    user: str
    password: str = field(repr=False)


def read_login(path: Path) -> Login:
    """The ``user`` and the ``password`` in a properties file. Raises SettingsError, which never shows the content."""
    found = read_properties(path)
    missing = [name for name in ("user", "password") if not found.get(name)]
    if missing:
        raise SettingsError(f"{path}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    return Login(found["user"], found["password"])


def login_of(path: Path | None, environment: Mapping[str, str] = os.environ) -> Login | None:
    """The login in the file; without a file that of the environment, if any. Raises SettingsError."""
    if path is not None:
        return read_login(path)
    user, password = environment.get(USER_VARIABLE), environment.get(PASSWORD_VARIABLE)
    if not user and not password:
        return None
    if not user or not password:
        missing = PASSWORD_VARIABLE if user else USER_VARIABLE
        raise SettingsError(f"{missing} must be set too: a login is a user and a password")
    return Login(user, password)


@dataclass(frozen=True, slots=True)
class CoordinatorAccess:
    """How we log in at a coordinator: a file with user and password, and PEM files. All may be None."""

    login_file: Path | None = None
    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings of a node say."""
        return cls(
            settings.failover_login_file,
            settings.failover_ca_file,
            settings.failover_certificate_file,
            settings.failover_key_file,
        )
