"""Limits of the HA port: on connections, on the rate of new ones, on memory and on log lines.

A connection is a slave after its first valid report, and from then on keeps its place. Until then it is *silent*. If
all places are taken, a new connection takes the place of a silent one: the oldest of the address that has the most
silent connections. So idle connections never keep a slave out, and one address never costs another a place. We do not
refuse the new connection instead, because idle ones would then block it until their deadline.

Java's slaves are silent for the first 6 s. Therefore the connections that one address may open in that time (in one
burst, and by rate) are fewer than its places. So a normal slave is never pushed out by those that connect after it,
even if a thousand slaves reconnect together from one address.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.kit.rates import AddressBuckets, Rate, TokenBucket

WAITING_BYTES = 32 * 1024 * 1024
"""Writes have their full size while at most this many bytes can wait for all slow slaves together."""
LINES_BURST = 100
LINES_PER_SECOND = 5.0
SUMMARY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class HALimits:
    """The limits of the HA port.

    ``connects_at_once`` connections may come in one burst from an address, and ``connects_per_second`` after that.
    Without ``first_report_seconds`` the first report has the same deadline as later ones. ``bytes_in_flight`` bounds
    what one slave was sent and has not acknowledged. It is None by default: an observer acknowledges nothing, so a
    bound would stop it, and the memory used for each slave is bounded anyway.
    """

    connections: int = 2048
    silent_connections: int = 1792
    connections_per_address: int = 1792
    connects_at_once: int = 1024
    connects_per_second: int = 100
    first_report_seconds: float | None = None
    bytes_in_flight: int | None = None


class Guest(Protocol):
    """A connection that takes a place."""

    host: str

    def give_place(self) -> None:
        """Close, because another connection needs the place."""


GuestType = TypeVar("GuestType", bound=Guest)


class Places(Generic[GuestType]):
    """Decides who may connect. A connection has a place from ``enter`` until ``leave``.

    ``slaves`` are the connections whose first report was valid.
    """

    def __init__(self, limits: HALimits, clock: IReactorTime) -> None:
        self._limits = limits
        self._clock = clock
        self._rates = AddressBuckets(Rate(limits.connects_at_once, limits.connects_per_second))
        self.slaves: dict[GuestType, None] = {}
        self._places: Counter[str] = Counter()
        self._silent: dict[str, dict[GuestType, None]] = {}
        self._silent_places = 0

    def refusal(self, host: str) -> str | None:
        """The reason to refuse a connection from ``host``; None to accept it. May close a silent connection for it."""
        limits = self._limits
        now = self._clock.seconds()
        if not self._rates.get(host, now).take_one(now):
            return f"its address connects more than {limits.connects_per_second} times a second"
        if self._places[host] >= limits.connections_per_address and not self._free_place(self._silent.get(host)):
            return f"its address has {limits.connections_per_address} slaves"
        if self._is_full() and not self._free_place(max(self._silent.values(), key=len, default=None)):
            return f"{limits.connections} slaves are connected"
        return None

    def _is_full(self) -> bool:
        limits = self._limits
        silent = self._silent_places
        return silent + len(self.slaves) >= limits.connections or silent >= limits.silent_connections

    def _free_place(self, silent: dict[GuestType, None] | None) -> bool:
        if not silent:
            return False
        oldest = next(iter(silent))
        self.leave(oldest)
        oldest.give_place()
        return True

    def enter(self, guest: GuestType) -> None:
        """A new connection takes a place; it is silent."""
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
        """The connection has ended or is being closed. A second call does nothing."""
        if self._forget_silent(guest) or guest in self.slaves:
            self.slaves.pop(guest, None)
            self._places[guest.host] -= 1
            if not self._places[guest.host]:
                del self._places[guest.host]


class LineLimit:
    """Bounds the log lines about connections without a report, and counts the lines left out, by kind.

    ``tell`` is called with the counts, at most once in SUMMARY_SECONDS.
    """

    def __init__(self, clock: IReactorTime, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._bucket = TokenBucket(Rate(LINES_BURST, LINES_PER_SECOND), clock.seconds())
        self._kept_back: Counter[str] = Counter()
        self._next_summary: IDelayedCall | None = None

    def allows(self, kind: str) -> bool:
        """Whether a line may be logged now. If not, it is counted."""
        if self._bucket.take_one(self._clock.seconds()):
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
        """Report the counts that were not reported yet."""
        if self._next_summary is not None:
            self._next_summary.cancel()
            self._summarise()


class WriteSize:
    """The size of one write, ``bytes``. It shrinks as more slaves are slow, so the sum of all writes is bounded."""

    def __init__(self, most_bytes: int, least_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._least_bytes = min(least_bytes, most_bytes)
        self._paused = 0
        self.bytes = most_bytes

    def paused(self, change: int) -> None:
        """One slave more (1) or fewer (-1) is slow: its transport has paused us."""
        self._paused += change
        share = WAITING_BYTES // max(1, self._paused)
        self.bytes = min(self._most_bytes, max(self._least_bytes, share))
