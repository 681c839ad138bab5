"""The JSON of etcd v3's calls, as far as our client uses them: requests are checked, answers are written."""

import hmac
import secrets
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson
from twisted.internet.defer import Deferred, succeed

from rmqha.coordination.address import Login
from rmqha.coordination.interface import (
    Change,
    Compare,
    CompareTarget,
    CoordinatorError,
    CoordinatorUnavailable,
    Delete,
    KeyValue,
    LeaseGone,
    Put,
)
from rmqha.coordination.state import MAX_OPERATIONS, End
from rmqha.coordination.witness.shares import Shares
from rmqha.coordination.witness.witnessservice import Commit, WitnessService

INVALID_ARGUMENT, NOT_FOUND, PRECONDITION, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 3, 5, 9, 12, 14, 16
HTTP_STATUS = {
    INVALID_ARGUMENT: 400,
    NOT_FOUND: 404,
    PRECONDITION: 400,
    UNIMPLEMENTED: 501,
    UNAVAILABLE: 503,
    UNAUTHENTICATED: 401,
}
"""HTTP's status by gRPC's code, as in etcd's gateway."""
RAFT_TERM = "1"
"""There are no elections: one process decides."""
MAX_TOKENS = 256
INT64 = 2**63


class CallRefused(Exception):
    """A call that is answered with an error: gRPC's code, and words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Answer(NamedTuple):
    """The answer to a call."""

    status: int
    body: bytes


def refusal(error: CallRefused | CoordinatorError) -> Answer:
    """The answer that reports an error."""
    code = INVALID_ARGUMENT
    words = str(error)
    if isinstance(error, CallRefused):
        code = error.code
    elif isinstance(error, LeaseGone):
        code, words = NOT_FOUND, "etcdserver: requested lease not found"
    elif isinstance(error, CoordinatorUnavailable):
        code = UNAVAILABLE
    return Answer(HTTP_STATUS[code], orjson.dumps({"error": words, "code": code, "message": words}))


def _wrong(words: str) -> CallRefused:
    return CallRefused(INVALID_ARGUMENT, words)


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises CallRefused."""
    try:
        found = orjson.loads(body)
    except ValueError:
        raise _wrong("the body is not JSON") from None
    return _object(found, "the body")


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{name} is not an object")
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    found = fields.get(name)
    if found is not None and not isinstance(found, list):
        raise _wrong(f"{name} is not a list")
    if found is not None and len(found) > MAX_OPERATIONS:  # before each of them is looked at
        raise _wrong(f"{name} has more than {MAX_OPERATIONS} entries")
    return found or []


def _only(fields: Mapping[str, Any], *names: str) -> None:
    """Raises CallRefused for a field that the witness does not know: it must not be ignored."""
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise CallRefused(UNIMPLEMENTED, f"the witness does not know the field {unknown[0][:50]!r}")


def _number(fields: Mapping[str, Any], name: str) -> int:
    """A whole number of 64 bits, as a number or as a text; 0 if it is not there."""
    found = fields.get(name, 0)
    if isinstance(found, str) and len(found) <= 20 and found.isascii() and found.removeprefix("-").isdecimal():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or not -INT64 <= found < INT64:
        raise _wrong(f"{name} is not a whole number of 64 bits")
    return found


def _data(fields: Mapping[str, Any], name: str) -> bytes:
    found = fields.get(name, "")
    if not isinstance(found, str):
        raise _wrong(f"{name} is not base64")
    try:
        return b64decode(found, validate=True)
    except ValueError:
        raise _wrong(f"{name} is not base64") from None


def _key(fields: Mapping[str, Any]) -> str:
    try:
        return _data(fields, "key").decode()
    except UnicodeDecodeError:
        raise _wrong("the key is not UTF-8") from None


def read_prefix(fields: Mapping[str, Any]) -> str:
    """The prefix that ``key`` and ``range_end`` select. Raises CallRefused for any other range."""
    key, end = _data(fields, "key"), _data(fields, "range_end")
    whole = key.rstrip(b"\xff")
    if end == b"\0" and key == b"\0":
        return ""
    if not whole or end != whole[:-1] + bytes([whole[-1] + 1]):
        raise CallRefused(UNIMPLEMENTED, "the witness knows only ranges of all keys with a prefix")
    return _key(fields)


def _read_compare(value: object) -> Compare:
    fields = _object(value, "a comparison")
    _only(fields, "key", "target", "result", "create_revision", "mod_revision", "value")
    if fields.get("result", "EQUAL") != "EQUAL":
        raise CallRefused(UNIMPLEMENTED, "the witness compares only with EQUAL")
    match fields.get("target"):
        case "CREATE":
            return Compare(_key(fields), CompareTarget.CREATE, _number(fields, "create_revision"))
        case "MOD":
            return Compare(_key(fields), CompareTarget.MOD, _number(fields, "mod_revision"))
        case "VALUE":
            return Compare(_key(fields), CompareTarget.VALUE, _data(fields, "value"))
    raise CallRefused(UNIMPLEMENTED, "the witness compares CREATE, MOD or VALUE")


def _read_write(value: object) -> Put | Delete:
    fields = _object(value, "an operation")
    _only(fields, "request_put", "request_delete_range")
    if len(fields) != 1:
        raise _wrong("an operation is one put or one deletion")
    if "request_put" in fields:
        put = _object(fields["request_put"], "request_put")
        _only(put, "key", "value", "lease")
        return Put(_key(put), _data(put, "value"), _number(put, "lease"))
    delete = _object(fields["request_delete_range"], "request_delete_range")
    _only(delete, "key")
    return Delete(_key(delete))


def _key_json(key: KeyValue) -> dict[str, str]:
    found = {
        "key": b64encode(key.key.encode()).decode("ascii"),
        "create_revision": str(key.create_revision),
        "mod_revision": str(key.mod_revision),
        "value": b64encode(key.value).decode("ascii"),
    }
    return found | {"lease": str(key.lease)} if key.lease else found


def _event_json(revision: int, change: Change) -> dict[str, Any]:
    if change.value is not None:
        return {"kv": _key_json(change.value)}
    key = b64encode(change.key.encode()).decode("ascii")
    return {"type": "DELETE", "kv": {"key": key, "mod_revision": str(revision)}}


class Logins:
    """Who may call. Without a login everybody who can connect may."""

    def __init__(self, login: Login | None) -> None:
        self.login = login
        self._tokens: OrderedDict[str, None] = OrderedDict()

    def log_in(self, name: str, password: str) -> str:
        """A new token. Raises CallRefused."""
        if self.login is None:
            raise CallRefused(PRECONDITION, "etcdserver: authentication is not enabled")
        is_name = hmac.compare_digest(name.encode("utf-8", "replace"), self.login.user.encode())
        is_password = hmac.compare_digest(password.encode("utf-8", "replace"), self.login.password.encode())
        if not (is_name and is_password):
            raise CallRefused(INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password")
        token = secrets.token_urlsafe(24)
        self._tokens[token] = None
        while len(self._tokens) > MAX_TOKENS:
            self._tokens.popitem(last=False)
        return token

    def renew(self, login: Login | None) -> None:
        """Use another login from now on. Tokens of the old one are not valid any more."""
        if login != self.login:
            self.login = login
            self._tokens.clear()

    def check(self, token: str | None) -> None:
        """Raises CallRefused for a call that is not logged in."""
        if self.login is not None and token not in self._tokens:
            raise CallRefused(UNAUTHENTICATED, "etcdserver: invalid auth token")
        if self.login is not None and token is not None:
            self._tokens.move_to_end(token)


class WitnessCalls:
    """Answers the calls by their paths."""

    def __init__(self, service: WitnessService, logins: Logins) -> None:
        self.service = service
        self.logins = logins
        self._shares = Shares()
        self._network = ""
        """The address whose call is being read."""
        self.by_path: dict[str, Callable[[dict[str, Any]], Deferred[bytes]]] = {
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/timetolive": self._time_to_live,
            "/v3/lease/revoke": self._revoke,
            "/v3/kv/range": self._range,
            "/v3/kv/txn": self._transact,
        }

    def call(self, path: str, fields: dict[str, Any], network: str) -> Deferred[bytes]:
        """Begin a call of this address. Raises CallRefused."""
        self._network = network
        return self.by_path[path](fields)

    def header(self, revision: int) -> dict[str, str]:
        """Begins each answer."""
        return {
            "cluster_id": str(self.service.cluster_id),
            "member_id": "1",
            "revision": str(revision),
            "raft_term": RAFT_TERM,
        }

    def _of(self, commit: Commit, **fields: Any) -> bytes:
        return orjson.dumps({"header": self.header(commit.state.revision), **fields})

    def log_in(self, fields: dict[str, Any]) -> bytes:
        """/v3/auth/authenticate. Raises CallRefused."""
        token = self.logins.log_in(str(fields.get("name", "")), str(fields.get("password", "")))
        return orjson.dumps({"header": self.header(self.service.revision), "token": token})

    def _grant(self, fields: dict[str, Any]) -> Deferred[bytes]:
        _only(fields, "TTL", "ID")
        ttl = _number(fields, "TTL")
        if _number(fields, "ID"):
            raise CallRefused(UNIMPLEMENTED, "the witness chooses the ids of leases")
        network = self._network

        def decide(commit: Commit) -> bytes:
            if self.logins.login is None:
                self._shares.check_grant(network, commit.state)
            grant = commit.state.grant(ttl, self.service.new_lease())
            commit.do(grant)
            self._shares.granted(network, grant.lease)
            return self._of(commit, ID=str(grant.lease), TTL=str(grant.ttl))

        return self.service.ask(decide)

    def _keep_alive(self, fields: dict[str, Any]) -> Deferred[bytes]:
        _only(fields, "ID")
        lease = _number(fields, "ID")
        found: dict[str, Any] = {"header": self.header(self.service.revision), "ID": str(lease)}
        with suppress(LeaseGone):  # then there is no TTL, as with etcd
            found["TTL"] = str(self.service.keep_alive(lease))
        return succeed(orjson.dumps({"result": found}))

    def _time_to_live(self, fields: dict[str, Any]) -> Deferred[bytes]:
        _only(fields, "ID")
        lease = _number(fields, "ID")
        found: dict[str, Any] = {"header": self.header(self.service.revision), "ID": str(lease), "TTL": "-1"}
        with suppress(LeaseGone):  # then it is -1, as with etcd
            seconds, ttl = self.service.time_to_live(lease)
            found.update(TTL=str(seconds), grantedTTL=str(ttl))
        return succeed(orjson.dumps(found))

    def _revoke(self, fields: dict[str, Any]) -> Deferred[bytes]:
        _only(fields, "ID")
        lease = _number(fields, "ID")

        def decide(commit: Commit) -> bytes:
            commit.state.check_lease(lease)
            commit.do(End(lease))
            return self._of(commit)

        return self.service.ask(decide)

    def _range(self, fields: dict[str, Any]) -> Deferred[bytes]:
        _only(fields, "key", "range_end", "count_only")
        prefix = read_prefix(fields)

        def decide(commit: Commit) -> bytes:
            keys = commit.state.range(prefix).keys
            if fields.get("count_only"):
                return self._of(commit, count=str(len(keys)))
            return self._of(commit, kvs=[_key_json(keys[key]) for key in sorted(keys)], count=str(len(keys)))

        return self.service.ask(decide)

    def _transact(self, fields: dict[str, Any]) -> Deferred[bytes]:
        _only(fields, "compare", "success")
        compares = [_read_compare(each) for each in _list(fields, "compare")]
        writes = [_read_write(each) for each in _list(fields, "success")]
        network = self._network

        def decide(commit: Commit) -> bytes:
            write = commit.state.transaction(compares, writes)
            if write is None:
                return self._of(commit)
            if self.logins.login is None:
                self._shares.check_writes(network, commit.state, writes)
            commit.do(write)
            self._shares.wrote(network, writes)
            return self._of(commit, succeeded=True)

        return self.service.ask(decide)

    # The lines of a watch

    def read_watch(self, fields: dict[str, Any]) -> tuple[str, int]:
        """The prefix and the last known revision of a new watch. Raises CallRefused."""
        _only(fields, "create_request")
        request = _object(fields.get("create_request"), "create_request")
        _only(request, "key", "range_end", "start_revision", "progress_notify")
        start = _number(request, "start_revision")
        return read_prefix(request), start - 1 if start > 0 else self.service.revision

    def line(self, revision: int, **fields: Any) -> bytes:
        """A line of a watch."""
        return orjson.dumps({"result": {"header": self.header(revision), **fields}}) + b"\n"

    def changes_line(self, revision: int, changes: tuple[Change, ...]) -> bytes:
        """A line with the changes of a revision."""
        return self.line(revision, events=[_event_json(revision, each) for each in changes])
