"""Waits until a flush or a replica has reached an offset. Each wait ends at its own deadline."""

from collections import deque
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.kit.histogram import Histogram


@dataclass(slots=True)
class GroupCommitRequest:
    """A wait for ``next_offset`` until ``deadline``, in the clock's seconds.

    ``done`` fires with True when the offset is reached, or with False at the deadline.
    """

    next_offset: int
    deadline: float
    done: Deferred[bool]


class GroupCommit:
    """Keeps requests in the order of their offsets, which is the order in which messages were put.

    All wait for ``timeout`` seconds, so they are in the order of their deadlines too.
    """

    def __init__(self, clock: IReactorTime, timeout: float) -> None:
        self._clock = clock
        self._timeout = timeout
        self._requests: deque[GroupCommitRequest] = deque()
        self._timer: IDelayedCall | None = None
        self.durations = Histogram()
        """How long the requests waited that have ended, in time or not."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def first_offset(self) -> int | None:
        """The lowest offset that a request waits for; None without requests."""
        return self._requests[0].next_offset if self._requests else None

    def wait(self, next_offset: int) -> Deferred[bool]:
        """Wait for ``next_offset``. It must not be lower than that of an earlier call."""
        request = GroupCommitRequest(next_offset, self._clock.seconds() + self._timeout, Deferred(self._forget))
        self._requests.append(request)
        if self._timer is None:
            self._timer = self._clock.callLater(self._timeout, self._expire)
        return request.done

    def _forget(self, cancelled: Deferred[bool]) -> None:
        self._requests = deque(request for request in self._requests if request.done is not cancelled)
        if not self._requests:
            self._stop_timer()

    def reached(self, offset: int) -> None:
        """Everything before ``offset`` is done. Fire the waits for it with True, oldest first."""
        if self._requests and self._requests[0].next_offset <= offset:
            earliest = self._clock.seconds() + self._timeout
            while self._requests and self._requests[0].next_offset <= offset:
                request = self._requests.popleft()
                request.done.callback(True)
                self.durations.observe(earliest - request.deadline)
        if not self._requests:
            self._stop_timer()

    def give_up(self) -> None:
        """Fire all waits with False, because no further offset will be reached."""
        self._stop_timer()
        requests, self._requests = self._requests, deque()
        for request in requests:
            request.done.callback(False)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        while self._requests and self._requests[0].deadline <= now:
            self.durations.observe(self._timeout)
            self._requests.popleft().done.callback(False)
        if self._requests and self._timer is None:
            self._timer = self._clock.callLater(self._requests[0].deadline - now, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
