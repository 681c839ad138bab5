"""Rates in bytes a second: what a master sends to all its slaves together, and what a slave receives.

Both spend from a bucket that holds less than a tenth of a second: over two seconds and more, however they are chosen,
not five percent above the rate can pass, and nothing is lost to timers that are late.
"""

from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

TURN_SECONDS = 0.02
"""A sender alone sends, and a receiver reads, so much of its rate at once."""
LONGEST_TURN_SECONDS = 0.05
LEAST_TURN_BYTES = 2048
"""A low rate goes in pieces of this size, as far as they take no more than LONGEST_TURN_SECONDS."""
LATE_SECONDS = 0.04
"""So late a timer may be, and nothing is lost."""
SHORTEST_WAIT_SECONDS = 0.001


class TokenBucket:
    """Tokens, ``rate`` more each second and never more than ``capacity``; full to begin with. It may go into debt."""

    def __init__(self, rate: float, capacity: float, clock: IReactorTime) -> None:
        self.capacity = capacity
        self._rate = rate
        self._clock = clock
        self._tokens = capacity
        self._filled_at = clock.seconds()

    @property
    def tokens(self) -> float:
        """What there is now, below 0 for a debt."""
        now = self._clock.seconds()
        self._tokens = min(self.capacity, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        return self._tokens

    def take(self, tokens: float) -> None:
        """Take so many, whether they are there or not."""
        self._tokens = self.tokens - tokens

    def seconds_until(self, tokens: float) -> float:
        """How long it takes until so many are there; 0 if they are."""
        return max(0.0, (tokens - self.tokens) / self._rate)


def turn_bytes_at(bytes_per_second: int) -> int:
    """How much goes at once at this rate."""
    least = min(LEAST_TURN_BYTES, bytes_per_second * LONGEST_TURN_SECONDS)
    return max(1, int(least), int(bytes_per_second * TURN_SECONDS))


def _bucket(bytes_per_second: int, clock: IReactorTime) -> TokenBucket:
    capacity = turn_bytes_at(bytes_per_second) + bytes_per_second * LATE_SECONDS
    return TokenBucket(bytes_per_second, capacity, clock)


class Sender(Protocol):
    """Somebody who sends within a rate."""

    def log_grew(self) -> None:
        """Send what there is to send, asking for an allowance before each piece."""


class SendThrottle:
    """Shares a rate among senders: whoever may not send now gets a turn, the one who waits longest first."""

    def __init__(self, bytes_per_second: int, clock: IReactorTime) -> None:
        self._clock = clock
        self._bucket = _bucket(bytes_per_second, clock)
        self._turn_bytes = turn_bytes_at(bytes_per_second)
        self._least_bytes = min(self._turn_bytes, LEAST_TURN_BYTES)
        self._waiting: dict[Sender, int] = {}
        self._turn_of: Sender | None = None
        self._next_turn: IDelayedCall | None = None

    def allowance(self, sender: Sender, wanted_bytes: int) -> int:
        """How many bytes it may send now, at least one wanted; 0 puts it into the row, and its turn will come."""
        share = max(self._least_bytes, self._turn_bytes // (len(self._waiting) + 1))
        least = min(wanted_bytes, share)
        if self._turn_of is sender:
            self._turn_of = None
        elif self._waiting or self._bucket.tokens < least:
            self._waiting.setdefault(sender, least)
            self._schedule()
            return 0
        there = max(1, int(self._bucket.tokens))
        return min(wanted_bytes, there, share if self._waiting else there)

    def sent(self, size: int) -> None:
        """So many bytes have gone out, allowed or, like heartbeats and the heads of frames, not asked for."""
        self._bucket.take(size)

    def forget(self, sender: Sender) -> None:
        """It is gone, and waits no more."""
        self._waiting.pop(sender, None)
        if not self._waiting and self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None

    def _schedule(self) -> None:
        if self._next_turn is None and self._waiting:
            least = next(iter(self._waiting.values()))
            delay = max(SHORTEST_WAIT_SECONDS, self._bucket.seconds_until(least))
            self._next_turn = self._clock.callLater(delay, self._give_turns)

    def _give_turns(self) -> None:
        self._next_turn = None
        turns = len(self._waiting)
        while turns and self._waiting and self._bucket.tokens >= next(iter(self._waiting.values())):
            turns -= 1
            sender = next(iter(self._waiting))
            del self._waiting[sender]
            self._turn_of = sender
            sender.log_grew()
            self._turn_of = None
        self._schedule()


class ReceiveThrottle:
    """Tells a receiver how long to read nothing. It outlives connections, so that a new one brings no more."""

    def __init__(self, bytes_per_second: int, clock: IReactorTime) -> None:
        self._bucket = _bucket(bytes_per_second, clock)
        self._turn_bytes = turn_bytes_at(bytes_per_second)

    @property
    def read_bytes(self) -> int:
        """How much one read should take at most."""
        return self._turn_bytes

    def received(self, size: int) -> float:
        """So many bytes have come: the seconds for which nothing may be read now."""
        self._bucket.take(size)
        return 0.0 if self._bucket.tokens > 0 else self._bucket.seconds_until(self._turn_bytes)
