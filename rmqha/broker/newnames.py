"""How many groups and topics may be made, a second and in all (README, "Limits and rates").

Every new one is written to a table that slaves and name servers take over. A stranger may name as many as it likes, so
a broker and each connection have a bucket: so many at once after a quiet time, then so many a second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

from twisted.logger import Logger

from rmqha.broker.remoting import RequestRefused
from rmqha.settings import Settings
from rmqha.wire.command import ResponseCode

TELL_SECONDS = 60.0
"""How often refusals are logged, at most."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many at once after a quiet time, then so many a second."""

    at_once: int
    per_second: int


@dataclass(frozen=True, slots=True)
class NewNameLimits:
    """Of groups, or of topics. ``most`` is how many there may be in all."""

    broker: Rate
    connection: Rate
    most: int

    @classmethod
    def of_groups(cls, settings: Settings) -> Self:
        """Those that the settings have for groups."""
        return cls(
            Rate(settings.max_new_groups_at_once, settings.max_new_groups_per_second),
            Rate(settings.max_new_groups_at_once_per_connection, settings.max_new_groups_per_second_per_connection),
            settings.max_groups,
        )

    @classmethod
    def of_topics(cls, settings: Settings) -> Self:
        """Those that the settings have for topics."""
        return cls(
            Rate(settings.max_new_topics_at_once, settings.max_new_topics_per_second),
            Rate(settings.max_new_topics_at_once_per_connection, settings.max_new_topics_per_second_per_connection),
            settings.max_topics,
        )


class Bucket:
    """Tokens that come back at a rate. ``now`` is a clock's time in seconds."""

    __slots__ = ("_rate", "_since", "_tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.at_once)
        self._since = now

    def has_one(self, now: float) -> bool:
        """Whether there is a token."""
        self._tokens = min(self._rate.at_once, self._tokens + max(0.0, now - self._since) * self._rate.per_second)
        self._since = now
        return self._tokens >= 1

    def take(self) -> None:
        """Use the token that there is."""
        self._tokens -= 1


class NewNames:
    """Decides whether a new group or topic may be made. ``what`` names the kind in answers and in the log."""

    _log = Logger()

    def __init__(self, what: str, limits: NewNameLimits, seconds: Callable[[], float]) -> None:
        self._what = what
        self._limits = limits
        self._seconds = seconds
        self._broker = Bucket(limits.broker, seconds())
        self._connections: WeakKeyDictionary[object, Bucket] = WeakKeyDictionary()
        self._told_at: float | None = None
        self._untold = 0

    def take(self, held: int, by: object | None = None) -> None:
        """Count a new one beside the ``held`` there are; ``by`` is the connection that asks. Raises RequestRefused."""
        now = self._seconds()
        if held >= self._limits.most:
            self._refuse(f"there are {held} {self._what}s already, and no more are made", now)
        buckets = [(self._broker, self._limits.broker)]
        if by is not None:
            bucket = self._connections.get(by)
            if bucket is None:
                bucket = self._connections[by] = Bucket(self._limits.connection, now)
            buckets.append((bucket, self._limits.connection))
        for bucket, rate in buckets:
            if not bucket.has_one(now):
                self._refuse(f"too many new {self._what}s: {rate.per_second} a second are made, try again later", now)
        for bucket, _ in buckets:
            bucket.take()

    def _refuse(self, reason: str, now: float) -> None:
        self._untold += 1
        if self._told_at is None or now - self._told_at >= TELL_SECONDS:
            self._log.warn(
                "refused {count} new {what}s since the last such line: {reason}",
                count=self._untold,
                what=self._what,
                reason=reason,
            )
            self._told_at, self._untold = now, 0
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, reason)
