"""What the HA port takes from strangers: how many connections, how fast, and how many lines in the log.

Whoever has sent a valid first report is a slave, and never loses its place. Until then a connection is *silent*, and
where places are short a new connection takes that of the silent one that waits longest among those of the address with
most of them: idle connections never keep a slave out, and those of one address never cost another's a place. New ones
are not refused instead, because they would find no place for as long as the deadline of those who only wait.

Java's slaves are silent for the first 6 s. Therefore one address may open fewer connections in that time (at once, and
a second) than it has places: no slave that only connects as it must is pushed out by those that follow it, not even
when a thousand slaves come back at once from behind one address.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.ha.admission.throttle import TokenBucket

WAITING_BYTES = 32 * 1024 * 1024
"""In large writes, so many bytes may wait for all slow slaves together; beyond that, writes get smaller."""
REMEMBERED_ADDRESSES = 4096
LINES_AT_ONCE = 100
LINES_A_SECOND = 5.0
SUMMARY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class HALimits:
    """How much the HA port takes. Of the rate of new connections, ``at_once`` may come after a quiet time.

    Without ``first_report_seconds`` the first report is due as any other. ``bytes_in_flight`` bounds what one slave was
    sent and has not acknowledged; None by default, for an observer acknowledges nothing, and would be stopped by it:
    what waits in our memory for a slave is bounded anyway.
    """

    connections: int = 2048
    silent_connections: int = 1792
    connections_per_address: int = 1792
    connects_at_once: int = 1024
    connects_per_second: int = 100
    first_report_seconds: float | None = None
    bytes_in_flight: int | None = None


class Guest(Protocol):
    """A connection, as far as places go."""

    host: str

    def give_place(self) -> None:
        """Close: others need the place."""


GuestType = TypeVar("GuestType", bound=Guest)


class Places(Generic[GuestType]):
    """Who may connect. A connection has its place from ``enter`` on until ``leave``.

    ``slaves`` are those whose first report was valid.
    """

    def __init__(self, limits: HALimits, clock: IReactorTime) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self.slaves: dict[GuestType, None] = {}
        self._places: Counter[str] = Counter()
        self._silent: dict[str, dict[GuestType, None]] = {}
        self._silent_places = 0

    def refusal(self, host: str) -> str | None:
        """Why nobody may connect from ``host`` now; None if one may, and there is room: somebody may have lost it."""
        limits = self._limits
        bucket = self._bucket(host)
        if bucket.tokens < 1:
            return f"its address connects more than {limits.connects_per_second} times a second"
        bucket.take(1)
        if self._places[host] >= limits.connections_per_address and not self._free_place(self._silent.get(host)):
            return f"its address has {limits.connections_per_address} slaves"
        if self._is_full() and not self._free_place(max(self._silent.values(), key=len, default=None)):
            return f"{limits.connections} slaves are connected"
        return None

    def _is_full(self) -> bool:
        limits = self._limits
        silent = self._silent_places
        return silent + len(self.slaves) >= limits.connections or silent >= limits.silent_connections

    def _bucket(self, host: str) -> TokenBucket:
        """The address's; those that did not connect for longest are forgotten where there are too many."""
        bucket = self._buckets.pop(host, None)
        if bucket is None:
            bucket = TokenBucket(self._limits.connects_per_second, self._limits.connects_at_once, self._clock)
        self._buckets[host] = bucket
        if len(self._buckets) > REMEMBERED_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        return bucket

    def _free_place(self, silent: dict[GuestType, None] | None) -> bool:
        if not silent:
            return False
        oldest = next(iter(silent))
        self.leave(oldest)
        oldest.give_place()
        return True

    def enter(self, guest: GuestType) -> None:
        """A connection is there, silent as yet."""
        self._places[guest.host] += 1
        self._silent.setdefault(guest.host, {})[guest] = None
        self._silent_places += 1

    def reported(self, guest: GuestType) -> None:
        """Its first report was valid: it keeps its place."""
        self._forget_silent(guest)
        self.slaves[guest] = None

    def _forget_silent(self, guest: GuestType) -> bool:
        silent = self._silent.get(guest.host, {})
        if guest not in silent:
            return False
        del silent[guest]
        self._silent_places -= 1
        if not silent:
            del self._silent[guest.host]
        return True

    def leave(self, guest: GuestType) -> None:
        """It is gone, or about to be; may be told twice."""
        if self._forget_silent(guest) or guest in self.slaves:
            self.slaves.pop(guest, None)
            self._places[guest.host] -= 1
            if not self._places[guest.host]:
                del self._places[guest.host]


class LineLimit:
    """Lets a bounded number of lines about strangers into the log; what it keeps back it counts, by kind.

    ``tell`` is called with the counts, at most once in SUMMARY_SECONDS.
    """

    def __init__(self, clock: IReactorTime, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._bucket = TokenBucket(LINES_A_SECOND, LINES_AT_ONCE, clock)
        self._kept_back: Counter[str] = Counter()
        self._next_summary: IDelayedCall | None = None

    def allows(self, kind: str) -> bool:
        """Whether one more line may be written; else it is counted."""
        if self._bucket.tokens >= 1:
            self._bucket.take(1)
            return True
        self._kept_back[kind] += 1
        if self._next_summary is None:
            self._next_summary = self._clock.callLater(SUMMARY_SECONDS, self._summarise)
        return False

    def _summarise(self) -> None:
        self._next_summary = None
        counts, self._kept_back = self._kept_back, Counter()
        self._tell(", ".join(f"{count} {kind}" for kind, count in counts.items()))

    def stop(self) -> None:
        """Tell what is still to be told."""
        if self._next_summary is not None:
            self._next_summary.cancel()
            self._summarise()


class WriteSize:
    """How much is handed to a transport at once: less, the more slaves there are that do not take what they got."""

    def __init__(self, most_bytes: int, least_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._least_bytes = min(least_bytes, most_bytes)
        self._paused = 0
        self.bytes = most_bytes

    def paused(self, change: int) -> None:
        """One slave more, or less (-1), takes nothing."""
        self._paused += change
        share = WAITING_BYTES // max(1, self._paused)
        self.bytes = min(self._most_bytes, max(self._least_bytes, share))
