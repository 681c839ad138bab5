"""Rates in bytes a second: what a master sends to all its slaves together, and what a slave receives.

Each uses a token bucket that holds less than 0.1 s of its rate. So any period of two seconds or more exceeds the rate
by less than 5 %, and late timers do not lower it.
"""

from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.kit.rates import Rate, TokenBucket

TURN_SECONDS = 0.02
"""One write of a single sender, or one read of a receiver, is this much of its rate."""
MAX_TURN_SECONDS = 0.05
MIN_TURN_BYTES = 2048
"""At a low rate, pieces have this size, unless one would take longer than MAX_TURN_SECONDS."""
LATE_SECONDS = 0.04
"""A timer that is this late does not lower the rate."""
MIN_WAIT_SECONDS = 0.001


def turn_bytes_at(bytes_per_second: int) -> int:
    """The bytes in one piece at this rate."""
    least = min(MIN_TURN_BYTES, bytes_per_second * MAX_TURN_SECONDS)
    return max(1, int(least), int(bytes_per_second * TURN_SECONDS))


def _bucket(bytes_per_second: int, clock: IReactorTime) -> TokenBucket:
    at_once = turn_bytes_at(bytes_per_second) + bytes_per_second * LATE_SECONDS
    return TokenBucket(Rate(at_once, bytes_per_second), clock.seconds())


class Sender(Protocol):
    """Sends within a shared rate."""

    def log_grew(self) -> None:
        """Send what is ready, with a call of ``allowance`` before each piece."""


class SendThrottle:
    """Shares a rate among senders. A sender that may not send now gets a turn later, in the order of waiting."""

    def __init__(self, bytes_per_second: int, clock: IReactorTime) -> None:
        self._clock = clock
        self._bucket = _bucket(bytes_per_second, clock)
        self._turn_bytes = turn_bytes_at(bytes_per_second)
        self._least_bytes = min(self._turn_bytes, MIN_TURN_BYTES)
        self._waiting: dict[Sender, int] = {}
        self._turn_of: Sender | None = None
        self._next_turn: IDelayedCall | None = None

    def allowance(self, sender: Sender, wanted_bytes: int) -> int:
        """How many of ``wanted_bytes`` (at least 1) it may send now. 0 puts it into the queue for a later turn."""
        now = self._clock.seconds()
        share = max(self._least_bytes, self._turn_bytes // (len(self._waiting) + 1))
        least = min(wanted_bytes, share)
        if self._turn_of is sender:
            self._turn_of = None
        elif self._waiting or self._bucket.tokens(now) < least:
            self._waiting.setdefault(sender, least)
            self._schedule()
            return 0
        there = max(1, int(self._bucket.tokens(now)))
        return min(wanted_bytes, there, share if self._waiting else there)

    def sent(self, size: int) -> None:
        """``size`` bytes were sent. This includes heartbeats and frame headers, which need no allowance."""
        self._bucket.take(size, self._clock.seconds())

    def forget(self, sender: Sender) -> None:
        """The sender has gone and no longer waits."""
        self._waiting.pop(sender, None)
        if not self._waiting and self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None

    def _schedule(self) -> None:
        if self._next_turn is None and self._waiting:
            least = next(iter(self._waiting.values()))
            delay = max(MIN_WAIT_SECONDS, self._bucket.seconds_until(least, self._clock.seconds()))
            self._next_turn = self._clock.callLater(delay, self._give_turns)

    def _give_turns(self) -> None:
        self._next_turn = None
        turns = len(self._waiting)
        while turns and self._waiting:
            sender, least = next(iter(self._waiting.items()))
            if self._bucket.tokens(self._clock.seconds()) < least:
                break
            turns -= 1
            del self._waiting[sender]
            self._turn_of = sender
            sender.log_grew()
            self._turn_of = None
        self._schedule()


class ReceiveThrottle:
    """Tells a receiver how long to stop reading. It outlives connections, so that reconnecting gains nothing."""

    def __init__(self, bytes_per_second: int, clock: IReactorTime) -> None:
        self._clock = clock
        self._bucket = _bucket(bytes_per_second, clock)
        self._turn_bytes = turn_bytes_at(bytes_per_second)

    @property
    def read_bytes(self) -> int:
        """The maximum size of one read."""
        return self._turn_bytes

    def received(self, size: int) -> float:
        """``size`` bytes have arrived. Returns for how many seconds to stop reading."""
        now = self._clock.seconds()
        self._bucket.take(size, now)
        return 0.0 if self._bucket.tokens(now) > 0 else self._bucket.seconds_until(self._turn_bytes, now)
