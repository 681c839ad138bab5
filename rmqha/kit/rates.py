"""Rates of events: a burst after a quiet time, and then a number per second.

The caller gives the time, because some rates run by the reactor's clock and others by the time of day. ``now`` is in
seconds. If it goes back, no tokens are gained or lost.
"""

from dataclasses import dataclass

MAX_ADDRESSES = 4096
"""The buckets of addresses that are kept."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A burst after a quiet time, then a rate per second."""

    at_once: float
    per_second: float

    @property
    def half(self) -> "Rate":
        """Half of the rate, at least 1."""
        return Rate(max(1, self.at_once // 2), max(1, self.per_second // 2))


class TokenBucket:
    """Holds at most ``at_once`` tokens, and gains ``per_second``. It starts full, and can go below zero."""

    __slots__ = ("_filled_at", "_tokens", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._tokens = rate.at_once
        self._filled_at = now

    def tokens(self, now: float) -> float:
        """The number of tokens; negative for a debt."""
        if now > self._filled_at:
            rate = self.rate
            self._tokens = min(rate.at_once, self._tokens + (now - self._filled_at) * rate.per_second)
        self._filled_at = now
        return self._tokens

    def take(self, tokens: float, now: float) -> None:
        """Take this many tokens, even if it has fewer."""
        self._tokens = self.tokens(now) - tokens

    def take_one(self, now: float) -> bool:
        """Take a token. False if none is left."""
        if self.tokens(now) < 1:
            return False
        self._tokens -= 1
        return True

    def seconds_until(self, tokens: float, now: float) -> float:
        """The seconds until it has this many tokens; 0 if it has them."""
        return max(0.0, (tokens - self.tokens(now)) / self.rate.per_second)


class AddressBuckets:
    """A bucket for each of MAX_ADDRESSES addresses. A new one replaces the one used the longest ago."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: dict[str, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def get(self, address: str, now: float) -> TokenBucket:
        """The bucket of this address, made if there is none. It becomes the one used last."""
        bucket = self._buckets.pop(address, None) or TokenBucket(self._rate, now)
        self._buckets[address] = bucket
        if len(self._buckets) > MAX_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        return bucket
