"""A watch at etcd or at a witness: changes from one stream after the other."""

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.coordination.address import Endpoint
from rmqha.coordination.gateway import TokenInvalid, error_of, key_value_of, range_of
from rmqha.coordination.interface import (
    Change,
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    IWatch,
)
from rmqha.coordination.streams import Body, Lines

PROBE_SECONDS = 4.0
"""A watch that is silent for this long is probed. A witness is never silent for so long while it works."""

Result = TypeVar("Result")


class Client(Protocol):
    """The client whose watch it is."""

    clock: IReactorTime

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that is asked now."""

    def within_time(self, work: Coroutine[Deferred[Any], Any, Result]) -> Deferred[Result]:
        """Run something within the time of a call. Fails with CoordinatorError, or CancelledError."""

    async def open_stream(self, endpoint: Endpoint, path: str, content: Mapping[str, Any]) -> Any:
        """Send a request on a connection of its own, logged in. Returns Twisted's response with its body to come."""

    def check_header(self, endpoint: Endpoint, header: Mapping[str, Any]) -> None:
        """Raises CoordinatorUnavailable for the answer of a member that is behind the others."""

    async def probe(self, endpoint: Endpoint, prefix: str) -> int:
        """The revision at this endpoint, from an answer of a leader."""

    def gave_up(self, watch: "Watch", endpoint: Endpoint | None) -> None:
        """A watch is over; if its endpoint failed, calls ask another one."""


@implementer(IWatch)
class Watch:
    """Changes below a prefix, from one stream after the other.

    A stream that is silent is probed at its endpoint: a dead or frozen endpoint does not answer, and one that has seen
    further revisions is asked again from the last change that we know, on a new stream.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        revision: int,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._revision = revision
        self._changed = changed
        self._ended = ended
        self._endpoint = client.endpoint
        self._stream: Lines | None = None
        self._work: Deferred[Any] | None = None
        self._created: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None
        self._is_over = False

    def start(self) -> None:
        """Open the first stream, in a later turn."""
        self._timer = self._client.clock.callLater(0, self._open)

    def stop(self) -> None:
        self._finish(None)

    def _finish(self, failed: Endpoint | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._client.gave_up(self, failed)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        if self._stream is not None:
            self._stream.close()
        if self._work is not None:
            self._work.cancel()

    def _end(self, error: CoordinatorError) -> None:
        if isinstance(error, TokenInvalid):  # the next watch logs in again
            error = CoordinatorUnavailable(str(error))
        if not self._is_over:
            self._finish(self._endpoint if isinstance(error, CoordinatorUnavailable) else None)
            self._ended(error)

    def _run(self, work: Deferred[Any], done: Callable[[Any], None]) -> None:
        """Go on with ``done`` when the work has succeeded. A failure ends the watch."""

        def failed(failure: Failure) -> None:
            if failure.check(CoordinatorError):
                assert isinstance(failure.value, CoordinatorError), "it was checked"
                self._end(failure.value)

        def finished(result: Any) -> Any:
            self._work = None
            return result

        self._work = work
        work.addBoth(finished).addCallbacks(lambda result: None if self._is_over else done(result), failed)

    def _open(self) -> None:
        self._run(self._client.within_time(self._opening()), lambda _: self._wait())

    async def _opening(self) -> None:
        """Open a stream. It has succeeded when the endpoint says that the watch exists."""
        request = {**range_of(self._prefix), "start_revision": str(self._revision + 1), "progress_notify": True}
        before, self._stream = self._stream, None
        if before is not None:
            before.close()
        response = await self._client.open_stream(self._endpoint, "/v3/watch", {"create_request": request})
        if response.code != HTTPStatus.OK:
            body = Body()
            response.deliverBody(body)
            raise error_of(response.code, _json_or_none(await body.collected), str(self._endpoint))
        self._created = Deferred()
        self._stream = Lines(self._line, self._broke)
        response.deliverBody(self._stream)
        try:
            await self._created
        finally:
            self._created = None

    def _broke(self, reason: str) -> None:
        self._problem(CoordinatorUnavailable(f"{self._endpoint} ended the watch: {reason}."))

    def _problem(self, error: CoordinatorError) -> None:
        """The stream cannot go on: its opening fails, or the watch ends."""
        created, self._created = self._created, None
        if created is not None and not created.called:
            created.errback(error)
        else:
            self._end(error)

    def _line(self, line: bytes) -> None:
        if self._is_over:
            return
        try:
            answer = json.loads(line)
            if isinstance(answer.get("error"), dict):
                self._problem(error_of(200, answer["error"], str(self._endpoint)))
                return
            self._take(answer["result"])
        except CoordinatorError as error:
            self._problem(error)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            self._problem(CoordinatorUnavailable(f"{self._endpoint} sends a watch what cannot be read ({error!r})."))

    def _take(self, result: Mapping[str, Any]) -> None:
        self._client.check_header(self._endpoint, result["header"])
        if result.get("canceled"):
            raise _cancellation(result, self._endpoint)
        events = result.get("events", ())
        self._report(events)
        if self._is_over:
            return
        if not events and not result.get("created"):  # progress: everything up to this revision was told
            self._revision = max(self._revision, int(result["header"].get("revision", 0)))
        if result.get("created") and self._created is not None and not self._created.called:
            self._created.callback(None)
        elif self._created is None:
            self._wait()

    def _report(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Pass on the changes, those of one revision together."""
        by_revision: dict[int, list[Change]] = {}
        for event in events:
            found = key_value_of(event["kv"])
            value = None if event.get("type") == "DELETE" else found
            by_revision.setdefault(found.mod_revision, []).append(Change(found.key, value))
        for revision in sorted(by_revision):
            if revision > self._revision and not self._is_over:
                self._revision = revision
                self._changed(revision, by_revision[revision])

    def _wait(self) -> None:
        """Probe after a time without a line."""
        if self._timer is not None and self._timer.active():
            self._timer.reset(PROBE_SECONDS)
        else:
            self._timer = self._client.clock.callLater(PROBE_SECONDS, self._probe)

    def _probe(self) -> None:
        if self._work is None:
            self._run(self._client.within_time(self._client.probe(self._endpoint, self._prefix)), self._probed)

    def _probed(self, revision: int) -> None:
        if revision > self._revision:
            self._open()
        else:
            self._wait()


def _json_or_none(body: bytes) -> object:
    try:
        found: object = json.loads(body)
    except ValueError:
        return None
    return found


def _cancellation(result: Mapping[str, Any], endpoint: Endpoint) -> CoordinatorError:
    compacted = int(result.get("compact_revision", 0))
    if compacted:
        return CoordinatorRefused(f"The changes up to revision {compacted} are no longer kept.")
    reason = str(result.get("cancel_reason", "no reason given"))[:300]
    error = error_of(200, {"message": reason}, str(endpoint))
    return CoordinatorRefused(str(error)) if "permission denied" in reason else error
