"""A client of etcd v3's JSON calls, for etcd itself and for the witness of a name server."""

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.coordination.address import CoordinatorAccess, CoordinatorAddress, Endpoint, Login, login_of
from rmqha.coordination.gateway import (
    NO_LOGINS,
    NothingDone,
    TokenInvalid,
    compare_json,
    error_of,
    key_value_of,
    range_of,
    write_json,
)
from rmqha.coordination.interface import (
    DEFAULT_TIMEOUT_SECONDS,
    Change,
    Compare,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    Delete,
    ICoordinator,
    IWatch,
    LeaseGone,
    NoCoordinator,
    Put,
    Snapshot,
    TransactionResult,
)
from rmqha.coordination.state import check_transaction, check_ttl
from rmqha.coordination.streams import Body, Connecting, Content, cause_of
from rmqha.coordination.watch import Watch
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.net.endpoints import CancellableEndpoint, make_endpoint
from rmqha.net.tls.endpoints import ClientTLS, TLSFiles
from rmqha.settings.settings import SettingsError

IDLE_CONNECTION_SECONDS = 60
CLOSED = "This client of the coordinator is closed."
CONNECTIONS_KEPT = 2
MAX_KEYS = 10_000
"""That are read at once: those of a thousand clusters."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Attempt:
    """What one call may do at one endpoint."""

    path: str
    content: Mapping[str, Any]
    repeatable: bool
    """Whether it may be sent again when nobody knows whether it was done."""
    proves_term: bool = True
    """Whether the answer waits for a majority of etcd's members: then none that is behind them can give it."""


@implementer(ICoordinator)
class EtcdCoordinator:
    """A client. It stays with the endpoint that answered last, and moves on to the next one when that fails."""

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        address: CoordinatorAddress,
        tls: ClientTLS | None = None,
        login: Callable[[], Login | None] = lambda: None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        """``tls`` has our certificate and authorities. ``login`` is asked now and at each login: it may read a file.

        Raises SettingsError, as ``login`` does.
        """
        from treq.client import HTTPClient
        from twisted.web.client import Agent, HTTPConnectionPool

        self.timeout = timeout
        self.cluster_id: int | None = None
        self.clock = IReactorTime(reactor)
        self._reactor = reactor
        self._tls = tls or ClientTLS()
        self._login = login
        self._logs_in = self._has_login = login() is not None
        self._endpoints = list(address.endpoints)
        self._token: str | None = None
        self._raft_term = 0
        self._pool = HTTPConnectionPool(reactor, persistent=True)
        self._pool._factory.noisy = False  # else the log has two lines for each connection
        self._pool.maxPersistentPerHost = CONNECTIONS_KEPT
        self._pool.cachedConnectionTimeout = IDLE_CONNECTION_SECONDS
        self._pool.retryAutomatically = False  # we know which calls may be repeated
        self._http = HTTPClient(Agent.usingEndpointFactory(reactor, self, self._pool))
        self._stream_http = HTTPClient(Agent.usingEndpointFactory(reactor, self))
        self._calls: set[Deferred[Any]] = set()
        self._watches: set[Watch] = set()
        self._told: str | None = None
        self._is_closed = False

    def endpointForURI(self, uri: Any) -> IStreamClientEndpoint:
        """The endpoint of a URL, as Twisted's Agent asks for it."""
        host, port = uri.host.decode("ascii"), uri.port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        endpoint: IStreamClientEndpoint = make_endpoint(self._reactor, address)
        if uri.scheme == b"https":
            endpoint = self._tls.endpoint(endpoint, host, self._reactor)
        return Connecting(CancellableEndpoint(endpoint), self.timeout / len(self._endpoints), self.clock)

    # The calls

    def grant(self, ttl: int) -> Deferred[int]:
        """See ``ICoordinator``. An answer that got lost leaves a lease behind, which ends by itself."""
        return self.within_time(self._grant(ttl))

    async def _grant(self, ttl: int) -> int:
        check_ttl(ttl)
        answer = await self._call(_Attempt("/v3/lease/grant", {"TTL": str(ttl)}, True))
        if "error" in answer:  # etcd's LeaseGrantResponse has such a field
            raise CoordinatorRefused(f"The coordinator granted no lease: {answer['error']}")
        return int(answer["ID"])

    def keep_alive(self, lease: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self.within_time(self._keep_alive(lease))

    async def _keep_alive(self, lease: int) -> int:
        answer = await self._call(_Attempt("/v3/lease/keepalive", {"ID": str(lease)}, True, proves_term=False))
        ttl = int(answer.get("TTL", 0))
        if ttl <= 0:
            raise LeaseGone(f"The lease {lease} has ended.")
        return ttl

    def time_to_live(self, lease: int) -> Deferred[int]:
        """See ``ICoordinator``."""
        return self.within_time(self._time_to_live(lease))

    async def _time_to_live(self, lease: int) -> int:
        # a member that is behind asks the leader for the time, and adds a header of its own
        answer = await self._call(_Attempt("/v3/lease/timetolive", {"ID": str(lease)}, True, proves_term=False))
        seconds = int(answer.get("TTL", 0))
        if seconds < 0 or "grantedTTL" not in answer:
            raise LeaseGone(f"The lease {lease} has ended.")
        return seconds

    def revoke(self, lease: int) -> Deferred[None]:
        """See ``ICoordinator``."""
        return self.within_time(self._revoke(lease))

    async def _revoke(self, lease: int) -> None:
        with suppress(LeaseGone):
            await self._call(_Attempt("/v3/lease/revoke", {"ID": str(lease)}, True))

    def range(self, prefix: str) -> Deferred[Snapshot]:
        """See ``ICoordinator``."""
        return self.within_time(self._range(prefix))

    async def _range(self, prefix: str) -> Snapshot:
        answer = await self._call(_Attempt("/v3/kv/range", range_of(prefix), True))
        found = answer.get("kvs", ())
        if len(found) > MAX_KEYS:
            raise CoordinatorRefused(f"There are {len(found)} keys below {prefix}, more than {MAX_KEYS}.")
        keys = map(key_value_of, found)
        return Snapshot(int(answer["header"].get("revision", 0)), {each.key: each for each in keys})

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        """See ``ICoordinator``."""
        return self.within_time(self._transact(compares, writes))

    async def _transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        check_transaction(compares, writes)
        content = {"compare": list(map(compare_json, compares)), "success": list(map(write_json, writes))}
        answer = await self._call(_Attempt("/v3/kv/txn", content, False))
        return TransactionResult(bool(answer.get("succeeded", False)), int(answer["header"].get("revision", 0)))

    def watch(
        self,
        prefix: str,
        revision: int,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> IWatch:
        """See ``ICoordinator``."""
        watch = Watch(self, prefix, revision, changed, ended)
        self._watches.add(watch)
        watch.start()
        return watch

    def close(self) -> Deferred[None]:
        """See ``ICoordinator``."""
        self._is_closed = True
        for watch in list(self._watches):
            watch.stop()
        for call in list(self._calls):
            call.cancel()
        closing: Deferred[Any] = self._pool.closeCachedConnections()
        return closing.addCallback(lambda _: None)

    # How a call is made

    def within_time(self, work: Coroutine[Deferred[Any], Any, Result]) -> Deferred[Result]:
        """Run a call, or a part of a watch, within its time. Whoever cancels it always gets CancelledError."""
        running = Deferred.fromCoroutine(work)
        is_cancelled = False

        def cancel(_: Deferred[Result]) -> None:
            nonlocal is_cancelled
            is_cancelled = True
            running.cancel()

        result: Deferred[Result] = Deferred(cancel)
        self._calls.add(running)

        def end(outcome: Result | Failure) -> None:
            self._calls.discard(running)
            if limit.active():
                limit.cancel()
            if not is_cancelled:
                result.callback(outcome)

        limit = self.clock.callLater(self.timeout, running.cancel)
        running.addErrback(self._as_coordinator_error).addBoth(end)
        return result

    def _as_coordinator_error(self, failure: Failure) -> Failure:
        """Only the time limit, and ``close``, cancel a call. Other errors mean that the answer was a strange one."""
        if failure.check(CoordinatorError):
            return failure
        if failure.check(CancelledError):
            if self._is_closed:
                return Failure(CoordinatorUnavailable(CLOSED))
            told = f"The coordinator did not answer within {self.timeout:g} s."
            self._note_change(told)
            return Failure(CoordinatorUnavailable(told))
        if failure.check(KeyError, ValueError, TypeError, AttributeError):
            return Failure(NoCoordinator(f"The answer cannot be read ({failure.value!r}): is it a coordinator?"))
        return Failure(CoordinatorUnavailable(f"The call failed: {reason_of(failure.value)}."))

    async def _call(self, attempt: _Attempt) -> dict[str, Any]:
        """Ask endpoint after endpoint. Fails with the reason of the last one."""
        if self._is_closed:
            raise CoordinatorUnavailable(CLOSED)
        deadline = self.clock.seconds() + self.timeout
        last: CoordinatorError | None = None
        for left in range(len(self._endpoints), 0, -1):
            endpoint = self._endpoints[0]
            share = (deadline - self.clock.seconds()) / left
            try:
                answer = await self._with_token(endpoint, attempt, share)
            except CancelledError:
                if self.clock.seconds() >= deadline:
                    self._move_on(endpoint)
                raise
            except CoordinatorUnavailable as error:
                self._move_on(endpoint)
                last = error
                if not attempt.repeatable and not isinstance(error, NothingDone):
                    break
            else:
                self._note_change(None)
                return answer
        assert last is not None, "there is an endpoint"
        self._note_change(str(last))
        raise CoordinatorUnavailable(str(last))

    def _move_on(self, endpoint: Endpoint) -> None:
        """Ask another endpoint from now on, if this is still the one that is asked."""
        if self._endpoints[0] is endpoint:
            self._endpoints.append(self._endpoints.pop(0))

    def _note_change(self, problem: str | None) -> None:
        if problem is not None and self._told is None:
            self._log.warn(
                "the coordinator cannot be reached: {reason}", event=Event.COORDINATOR_UNREACHABLE, reason=problem
            )
        elif problem is None and self._told is not None:
            self._log.info("the coordinator answers again", event=Event.COORDINATOR_REACHABLE)
        self._told = problem

    async def _with_token(self, endpoint: Endpoint, attempt: _Attempt, seconds: float) -> dict[str, Any]:
        """Ask one endpoint within ``seconds``, or in all the time if the request cannot be repeated elsewhere."""
        limit = seconds if attempt.repeatable else None

        async def ask(token: str | None) -> dict[str, Any]:
            return await self._ask(endpoint, attempt.path, attempt.content, token, limit, attempt.proves_term)

        return await self._logged_in(endpoint, seconds, ask)

    async def _logged_in(
        self, endpoint: Endpoint, seconds: float, ask: Callable[[str | None], Coroutine[Deferred[Any], Any, Result]]
    ) -> Result:
        """Ask with the token of our login, if any. A token that is no longer valid is renewed once."""
        token = await self._token_at(endpoint, seconds)
        try:
            return await ask(token)
        except TokenInvalid as error:
            if not self._has_login:
                raise CoordinatorRefused(f"{error} (a login is needed)") from error
            if self._token == token:
                self._token = None
            self._logs_in = True
        try:
            return await ask(await self._token_at(endpoint, seconds))
        except TokenInvalid as error:
            raise CoordinatorRefused(str(error)) from error

    async def _token_at(self, endpoint: Endpoint, seconds: float) -> str | None:
        """Log in if we have no token. A coordinator that knows no logins gets none."""
        if self._token is not None or not self._logs_in:
            return self._token
        try:
            login = self._login()
        except SettingsError as error:
            raise CoordinatorRefused(f"The login cannot be read: {error}.") from error
        if login is None:
            raise CoordinatorRefused("There is no login any more.")
        content = {"name": login.user, "password": login.password}
        try:
            answer = await self._ask(endpoint, "/v3/auth/authenticate", content, None, seconds, proves_term=True)
        except CoordinatorUnavailable as error:
            raise NothingDone(str(error)) from error
        except CoordinatorRefused as error:
            if NO_LOGINS not in str(error):
                raise
            self._logs_in = False
            return None
        except TokenInvalid as error:
            raise CoordinatorRefused(str(error)) from error
        self._token = str(answer["token"])
        return self._token

    async def _ask(
        self,
        endpoint: Endpoint,
        path: str,
        content: Mapping[str, Any],
        token: str | None,
        seconds: float | None,
        proves_term: bool = False,
    ) -> dict[str, Any]:
        """One request to one endpoint. Raises CoordinatorError."""
        sent_in_term = self._raft_term if proves_term else None
        asking = Deferred.fromCoroutine(self._exchange(endpoint, path, content, token))
        if seconds is not None:
            asking.addTimeout(max(0.0, seconds), self.clock)
        try:
            status, body = await asking
        except DeferredTimeoutError as error:
            raise CoordinatorUnavailable(f"{endpoint} did not answer in time.") from error
        return self._answer_of(endpoint, status, body, sent_in_term)

    async def _exchange(
        self, endpoint: Endpoint, path: str, content: Mapping[str, Any], token: str | None
    ) -> tuple[int, bytes]:
        response = await self._post(self._http, endpoint, path, content, token)
        body = Body()
        response.deliverBody(body)
        return response.code, await body.collected

    async def _post(
        self, http: Any, endpoint: Endpoint, path: str, content: Mapping[str, Any], token: str | None
    ) -> Any:
        """Send a request. Returns Twisted's response with its body to come. Raises CoordinatorUnavailable."""
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if token is not None:
            headers["Authorization"] = token
        try:
            return await http.post(
                endpoint.url + path,
                data=Content(json.dumps(content).encode()),
                headers=headers,
                allow_redirects=False,
                unbuffered=True,
            )
        except (CancelledError, DeferredTimeoutError):
            raise
        except NothingDone as error:
            raise NothingDone(f"{endpoint}: {error}") from error
        except Exception as error:  # whatever broke: the other endpoints may work
            cause = cause_of(error)
            if isinstance(cause, CancelledError):
                raise cause from error
            raise CoordinatorUnavailable(f"{endpoint} gave no answer: {reason_of(cause)}.") from error

    def _answer_of(self, endpoint: Endpoint, status: int, body: bytes, sent_in_term: int | None) -> dict[str, Any]:
        try:
            answer = json.loads(body.partition(b"\n")[0] or b"null")
        except ValueError:
            answer = None
        if status != 200:
            raise error_of(status, answer, str(endpoint))
        if not isinstance(answer, dict):
            raise NoCoordinator(f"{endpoint} is not a coordinator: its answer is not JSON.")
        if isinstance(answer.get("error"), dict):  # of a stream, as a keepalive is one
            raise error_of(status, answer["error"], str(endpoint))
        if isinstance(answer.get("result"), dict):
            answer = dict(answer["result"])
        if not isinstance(answer.get("header"), dict):
            raise NoCoordinator(f"{endpoint} is not a coordinator: its answer has no header.")
        found: dict[str, Any] = answer
        self.check_header(endpoint, found["header"], sent_in_term)
        return found

    def check_header(self, endpoint: Endpoint, header: Mapping[str, Any], sent_in_term: int | None = None) -> None:
        """Raises CoordinatorUnavailable for the answer of a member that is behind the others.

        With ``sent_in_term`` the answer has the consent of a majority, and that term was known when it was asked for:
        a lower one then proves that the whole of etcd went back, and what it answers counts from now on.
        """
        cluster_id, raft_term = int(header.get("cluster_id", 0)), int(header.get("raft_term", 0))
        if cluster_id != self.cluster_id:
            if self.cluster_id is not None:
                self._log.warn(
                    "the coordinator is another one than before: its cluster id is {cluster_id}, not {before}",
                    event=Event.COORDINATOR_CHANGED,
                    cluster_id=f"{cluster_id:x}",
                    before=f"{self.cluster_id:x}",
                )
            self.cluster_id, self._raft_term = cluster_id, 0
        elif sent_in_term is not None and raft_term < min(sent_in_term, self._raft_term):
            self._log.warn(
                "etcd went back: {endpoint} answers in raft term {term}, and it was in term {before} already",
                event=Event.COORDINATOR_WENT_BACK,
                endpoint=str(endpoint),
                term=raft_term,
                before=self._raft_term,
            )
            self._raft_term = raft_term
        if raft_term < self._raft_term:
            raise CoordinatorUnavailable(f"{endpoint} is behind the other members.")
        self._raft_term = raft_term

    # For watches

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that is asked now."""
        return self._endpoints[0]

    async def open_stream(self, endpoint: Endpoint, path: str, content: Mapping[str, Any]) -> Any:
        """See ``Client`` in ``watch``."""

        async def ask(token: str | None) -> Any:
            response = await self._post(self._stream_http, endpoint, path, content, token)
            if response.code == HTTPStatus.UNAUTHORIZED:
                raise TokenInvalid(f"{endpoint} answers: HTTP status 401")
            return response

        return await self._logged_in(endpoint, self.timeout, ask)

    async def probe(self, endpoint: Endpoint, prefix: str) -> int:
        """See ``Client`` in ``watch``."""
        attempt = _Attempt("/v3/kv/range", {**range_of(prefix), "count_only": True}, True)
        answer = await self._with_token(endpoint, attempt, self.timeout)
        return int(answer["header"].get("revision", 0))

    def gave_up(self, watch: Watch, endpoint: Endpoint | None) -> None:
        """See ``Client`` in ``watch``."""
        self._watches.discard(watch)
        if endpoint is not None:
            self._move_on(endpoint)


def make_coordinator(
    reactor: Any, address: CoordinatorAddress, access: CoordinatorAccess, tls: ClientTLS | None = None
) -> EtcdCoordinator:
    """A client for an address. It reads the PEM files now, and the login again at each login.

    With ``tls`` the PEM files are read again when those of ``tls`` are. Raises SettingsError, TLSError.
    """
    files = check_access(address, access)
    client = files.client() if tls is None else tls.with_files(*_pem_files(access))
    return EtcdCoordinator(reactor, address, client, partial(login_of, access.login_file))


def check_access(address: CoordinatorAddress, access: CoordinatorAccess) -> TLSFiles:
    """The PEM files, which can be used, as the login can be. Raises SettingsError, TLSError."""
    paths = _pem_files(access)
    if any(paths) and not address.uses_tls:
        raise SettingsError(f"{address} uses no TLS, so it takes no certificates: write https://")
    login_of(access.login_file)
    return TLSFiles.load(*paths)


def _pem_files(access: CoordinatorAccess) -> tuple[str | None, str | None, str | None]:
    """The paths of the certificate, its key and the authorities."""
    certificate, key, authorities = (
        None if path is None else str(path) for path in (access.certificate, access.key, access.authorities)
    )
    return certificate, key, authorities
