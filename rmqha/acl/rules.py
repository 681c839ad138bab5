"""The accounts of plain_acl.yml, and whether they allow a request (spec/remoting.md 13.2)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from types import MappingProxyType
from typing import Any

from rmqha.acl.addresses import Matches, address_of, never, parse_pattern
from rmqha.acl.needs import (
    ANY,
    DENY,
    PUB,
    SOMEWHERE,
    SUB,
    WHOLE_BROKER,
    Need,
    needs_of,
    retry_topic,
)
from rmqha.acl.signing import ACCESS_KEY, SIGNATURE, Credentials, SigningKey, signed_fields
from rmqha.acl.usual import UsualSends
from rmqha.remoting.header import shown
from rmqha.wire.command import RemotingCommand
from rmqha.wire.mixedtopics import is_mixed
from rmqha.wire.topics import DEAD_PREFIX, RETRY_PREFIX, TRACE_TOPIC

MAX_ACCOUNTS = 10_000
MAX_PERMISSIONS = 100_000
MAX_WHITE_ADDRESSES = 10_000
THE_WHOLE_BROKER = Need(WHOLE_BROKER, SUB)
FREE_FOR_ALL = Need(TRACE_TOPIC, PUB)
MAX_KEPT_PAIRS = 10_000
ANY_OTHER_TOPIC = "ANY_OTHER_TOPIC"
"""Stands for the topics that no account lists."""
PERMISSIONS = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}


class Refused(Exception):
    """A request is not allowed. The text is Java's. ``is_stranger`` says that nobody known has signed it."""

    def __init__(self, reason: str, is_stranger: bool = False) -> None:
        super().__init__(reason)
        self.is_stranger = is_stranger


@dataclass(frozen=True, slots=True)
class Account:
    """An account. ``permissions`` are by topic, and by the retry topic of a group; None if the account lists none."""

    credentials: Credentials
    admin: bool = False
    is_white: Matches = field(default=never, repr=False)
    default_topic: int = DENY
    default_group: int = DENY
    permissions: Mapping[str, int] | None = field(default=None, repr=False)
    key: SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", SigningKey(self.credentials.secret_key))

    @property
    def may_do_all(self) -> bool:
        """An administrator that lists permissions is bound by them, as in Java."""
        return self.admin and self.permissions is None

    def problem(self, need: Need, strict: bool = True) -> str | None:
        """Why the account may not do this; None if it may."""
        if need.resource is SOMEWHERE:
            topics = (each for name, each in (self.permissions or {}).items() if not name.startswith(RETRY_PREFIX))
            may = any(_has(need.permission, each) for each in (self.default_topic, *topics))
            return None if may else f"No permission to {'read' if need.permission == SUB else 'send to'} any topic"
        if _has(need.permission, self._given(need.resource, strict)):
            return None
        if need.resource == WHOLE_BROKER:
            return f"No permission for what is of the whole broker: topicPerms needs {WHOLE_BROKER}=SUB"
        is_group = need.resource.startswith(RETRY_PREFIX)
        name = f"group:{need.resource[len(RETRY_PREFIX) :]}" if is_group else f"topic:{need.resource}"
        return f"No default permission for {shown(name)}"

    def _given(self, resource: str, strict: bool) -> int:
        """The permission that the account has for a topic or group. No default gives topics with messages of others."""
        own = None if self.permissions is None else self.permissions.get(resource)
        if own is not None:
            return own
        if resource.startswith(RETRY_PREFIX):
            return self.default_group
        if resource == WHOLE_BROKER:
            return PUB | SUB if self.admin else DENY
        if not strict:
            return self.default_topic
        if is_mixed(resource):
            return DENY
        if resource.startswith(DEAD_PREFIX):  # the dead letters of a group are for who may consume in it
            of_group = self._given(retry_topic(resource.removeprefix(DEAD_PREFIX)), strict)
            return self.default_topic if _has(SUB, of_group) else DENY
        return self.default_topic


def _has(needed: int, owned: int) -> bool:
    if owned & DENY:
        return False
    return bool(owned & (PUB | SUB)) if needed == ANY else bool(needed & owned)


def _is_white(host: str, *patterns: Matches) -> bool:
    address = address_of(host)
    return address is not None and any(matches(address) for matches in patterns)


@dataclass(frozen=True, slots=True)
class AclRules:
    """All accounts by access key, and who needs none."""

    accounts: Mapping[str, Account] = field(default_factory=lambda: MappingProxyType({}))
    white: tuple[Matches, ...] = ()
    strict: bool = True
    usual: UsualSends = field(default_factory=UsualSends, init=False, repr=False, compare=False)
    """Sends that these rules allowed. What it allows, ``check`` allows too, but takes longer."""
    _shared: dict[tuple[str, str], bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def check(self, request: RemotingCommand, host: str) -> Account | None:
        """The account that signed the request; None if the peer's address needs none. Raises Refused."""
        if self.white and _is_white(host, *self.white):
            return None
        fields = request.ext_fields
        access_key = fields.get(ACCESS_KEY)
        if access_key is None:
            raise Refused("No accessKey is configured", is_stranger=True)
        account = self.accounts.get(access_key)
        if account is None:
            raise Refused(f"No acl config for {shown(access_key)}", is_stranger=True)
        if account.is_white is not never and _is_white(host, account.is_white):
            return None
        signature = account.key.signature(signed_fields(fields, request.version), request.body)
        if not compare_digest(fields.get(SIGNATURE, "").encode(), signature):
            raise Refused(f"Check signature failed for accessKey={access_key}", is_stranger=True)
        self._check_permissions(request, account)
        self.usual.remember(request, account.key)
        return account

    def may(self, access_key: str, need: Need) -> bool:
        """Whether the account may do what a request leads to. Without ``strict`` nobody asks."""
        account = self.accounts.get(access_key)
        if account is None:
            return False
        return account.may_do_all or need == FREE_FOR_ALL or account.problem(need) is None

    def share_a_topic(self, sending: str, reading: str) -> bool:
        """Whether there can be a topic to which the one account may send, and which the other may read."""
        pair = sending, reading
        known = self._shared.get(pair)
        if known is None:
            if len(self._shared) >= MAX_KEPT_PAIRS:
                self._shared.clear()
            known = self._shared[pair] = self._share(*map(self.accounts.get, pair))
        return known

    @staticmethod
    def _share(sending: Account | None, reading: Account | None) -> bool:
        if sending is None or reading is None:
            return False
        named = {*(sending.permissions or ()), *(reading.permissions or ()), ANY_OTHER_TOPIC}
        return any(
            (sending.may_do_all or sending.problem(Need(topic, PUB)) is None)
            and (reading.may_do_all or reading.problem(Need(topic, SUB)) is None)
            for topic in named
            if not topic.startswith(RETRY_PREFIX)
        )

    def _check_permissions(self, request: RemotingCommand, account: Account) -> None:
        try:
            needs = needs_of(request, self.strict)
        except ValueError as error:
            raise Refused(str(error)) from error
        if needs.admin and not account.admin:
            raise Refused(
                f"Need admin permission for request code={request.code}, "
                f"but accessKey={account.credentials.access_key} is not"
            )
        if account.may_do_all or (needs.is_figure and account.problem(THE_WHOLE_BROKER) is None):
            return
        for need in needs.resources:
            if need == FREE_FOR_ALL:
                continue
            problem = account.problem(need, self.strict)
            if problem is not None:
                raise Refused(problem)


@dataclass(frozen=True, slots=True)
class FileRules:
    """What one file says."""

    accounts: tuple[Account, ...]
    white: tuple[Matches, ...]


def parse_rules(content: Mapping[str, Any]) -> FileRules:
    """The accounts and white addresses in a file. Raises ValueError, whose text shows no secret."""
    white = _list(content.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses")
    accounts = _list(content.get("accounts"), "accounts")
    if len(white) > MAX_WHITE_ADDRESSES or len(accounts) > MAX_ACCOUNTS:
        raise ValueError(f"more than {MAX_ACCOUNTS} accounts or {MAX_WHITE_ADDRESSES} white addresses")
    patterns = tuple(parse_pattern(str(each)) for each in white if each is not None)
    return FileRules(tuple(_account(each, number) for number, each in enumerate(accounts, 1)), patterns)


def _list(found: Any, name: str) -> list[Any]:
    if found is None:
        return []
    if not isinstance(found, list):
        raise ValueError(f"{name} is not a list")
    return found


def _account(content: Any, number: int) -> Account:
    if not isinstance(content, dict):
        raise ValueError(f"account {number} is not a mapping")
    try:
        keys = [_scalar(content, name) for name in ("accessKey", "secretKey")]
        credentials = Credentials(*keys)
        return Account(
            credentials,
            _boolean(content.get("admin")),
            parse_pattern(_scalar(content, "whiteRemoteAddress")),
            permission_of(content.get("defaultTopicPerm")),
            permission_of(content.get("defaultGroupPerm")),
            _permissions(content),
        )
    except ValueError as error:
        raise ValueError(f"account {number}: {error}") from None


def _scalar(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if isinstance(value, dict | list):
        raise ValueError(f"{name} is not a text")
    return "" if value is None else str(value)


def _boolean(value: Any) -> bool:
    return value is True or str(value).lower() == "true"


def permission_of(text: Any) -> int:
    """The bits of a permission's text. What is not known denies, as in Java."""
    return PERMISSIONS.get(str(text).strip(), DENY)


def _permissions(content: Mapping[str, Any]) -> Mapping[str, int] | None:
    """By topic, and by the retry topic of a group. Raises ValueError, also if a name has two permissions."""
    found: dict[str, int] = {}
    for key, is_of_groups in (("topicPerms", False), ("groupPerms", True)):
        entries: Iterable[Any] = _list(content.get(key), key)
        for entry in entries:
            name, separator, text = str(entry).partition("=")
            if not separator or not name.strip() or "=" in text:
                raise ValueError(f"{key}: {shown(str(entry))!r} is not NAME=PERMISSION")
            permission = permission_of(text)
            resource = retry_topic(name.strip()) if is_of_groups else name.strip()
            if found.setdefault(resource, permission) != permission:
                raise ValueError(f"{key}: {shown(name.strip())} is there twice, with different permissions")
    if len(found) > MAX_PERMISSIONS:
        raise ValueError(f"more than {MAX_PERMISSIONS} permissions")
    return MappingProxyType(found) if found else None
