"""Limits how many groups and topics are created, per second and in total (docs/limits.md).

Each new group or topic is a row of a table that slaves and name servers copy. A stranger can send any number of names.
So the broker, each address and each connection have a token bucket: a burst after a quiet time, then a rate per second.
An address gets half of the broker's rate, so that one address cannot use up the rate of all others.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

from twisted.logger import Logger

from rmqha.kit.events import Event
from rmqha.kit.rates import AddressBuckets, Rate, TokenBucket
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.networks import network_of
from rmqha.remoting.protocol import RemotingProtocol, RequestRefused
from rmqha.settings.settings import Settings
from rmqha.wire.command import FRAME_MAX_LENGTH, ResponseCode

TELL_SECONDS = 60.0
"""Refusals are logged at most once in this time."""
LINES_AT_ONCE = 50
"""The most new rows that the log names in this time."""
TIMES_A_NAME_STANDS = 2
"""A name occurs this often in a row of a table."""
MAX_TABLE_BYTES = FRAME_MAX_LENGTH - 64 * 1024
"""Of a table as JSON. Slaves and name servers get it in one frame."""
MAX_BYTES_OF_NAMED = MAX_TABLE_BYTES // 8 * 7
"""Up to this size of a table clients may create rows. The rest is for %RETRY% and %DLQ% topics."""


@dataclass(frozen=True, slots=True)
class NewNameLimits:
    """Limits for groups, or for topics. ``most`` is the limit of their number."""

    broker: Rate
    connection: Rate
    most: int

    @classmethod
    def of_groups(cls, settings: Settings) -> Self:
        """The limits for groups, from the settings."""
        return cls(
            Rate(settings.max_new_groups_at_once, settings.max_new_groups_per_second),
            Rate(settings.max_new_groups_at_once_per_connection, settings.max_new_groups_per_second_per_connection),
            settings.max_groups,
        )

    @classmethod
    def of_topics(cls, settings: Settings) -> Self:
        """The limits for topics, from the settings."""
        return cls(
            Rate(settings.max_new_topics_at_once, settings.max_new_topics_per_second),
            Rate(settings.max_new_topics_at_once_per_connection, settings.max_new_topics_per_second_per_connection),
            settings.max_topics,
        )


class NewNames:
    """Decides whether a new group or topic may be created. ``what`` names the kind in answers and in the log.

    Call ``hold``, ``added`` and ``removed`` for the existing rows, because all rows together must fit one frame.
    """

    _log = Logger()

    def __init__(
        self,
        what: str,
        limits: NewNameLimits,
        wall: IWallClock,
        longest_row: int = 0,
        most_bytes: int = MAX_BYTES_OF_NAMED,
    ) -> None:
        """``longest_row`` is the maximum size of a row as JSON, in bytes and without its name.

        If the table has more than ``most_bytes``, clients cannot create rows.
        """
        self._most_bytes = most_bytes
        self._what = what
        self._limits = limits
        self._wall = wall
        self._longest_row = longest_row
        self._table_bytes = 0
        self._broker = TokenBucket(limits.broker, self._seconds())
        self._addresses = AddressBuckets(limits.broker.half)
        self._connections: WeakKeyDictionary[object, TokenBucket] = WeakKeyDictionary()
        self._told_at: float | None = None
        self._untold = 0
        self._lines_from: float | None = None
        self._lines = 0

    def _seconds(self) -> float:
        """Since 1970."""
        return self._wall.now_ms() / 1000

    def hold(self, names: Collection[str], unknown: int = 0) -> None:
        """Count these rows, and only these. All their unknown fields together have ``unknown`` bytes as JSON."""
        self._table_bytes = len(names) * self._longest_row + TIMES_A_NAME_STANDS * sum(map(len, names)) + unknown

    def added(self, name: str, unknown: int = 0) -> None:
        """Count one more row. Its unknown fields have ``unknown`` bytes as JSON."""
        self._table_bytes += self._row_bytes(name) + unknown

    def removed(self, name: str, unknown: int = 0) -> None:
        """Count one row less. Its unknown fields have ``unknown`` bytes as JSON."""
        self._table_bytes -= self._row_bytes(name) + unknown

    def _row_bytes(self, name: str) -> int:
        return self._longest_row + TIMES_A_NAME_STANDS * len(name)

    def gets_line(self) -> bool:
        """Whether the log gets a line of its own about a row that is created now.

        A heartbeat may create a thousand groups. After LINES_AT_ONCE lines within TELL_SECONDS one line says that the
        next ones get none.
        """
        now = self._seconds()
        if self._lines_from is None or now - self._lines_from >= TELL_SECONDS:
            self._lines_from, self._lines = now, 0
        self._lines += 1
        if self._lines == LINES_AT_ONCE + 1:
            self._log.info(
                "{count} {what}s were created: the log does not name the next ones of {seconds:g} s",
                event=Event.NEW_NAMES_NOT_LOGGED,
                count=LINES_AT_ONCE,
                what=self._what,
                seconds=TELL_SECONDS,
            )
        return self._lines <= LINES_AT_ONCE

    def check_room(self, name: str, most: int = MAX_TABLE_BYTES, unknown: int = 0) -> None:
        """Raises RequestRefused if the table would have more than ``most`` bytes with this one.

        Its unknown fields have ``unknown`` bytes as JSON.
        """
        if self._table_bytes + self._row_bytes(name) + unknown > most:
            reason = f"the existing {self._what}s take {self._table_bytes} bytes; no more are created"
            self._refuse(reason, self._seconds())

    def take(self, name: str, held: int, by: object | None = None) -> None:
        """Count a new row in addition to ``held`` rows. ``by`` is the connection that asks. Raises RequestRefused."""
        now = self._seconds()
        if held >= self._limits.most:
            self._refuse(f"there are {held} {self._what}s already; no more are created", now)
        self.check_room(name, self._most_bytes)
        buckets = [self._broker]
        if by is not None:
            address = network_of(by.peer_host[0]) if isinstance(by, RemotingProtocol) else ""
            buckets.append(self._addresses.get(address, now))
            buckets.append(self._connections.setdefault(by, TokenBucket(self._limits.connection, now)))
        for bucket in buckets:
            if bucket.tokens(now) < 1:
                rate = bucket.rate.per_second
                self._refuse(f"too many new {self._what}s: {rate} per second are created, try again later", now)
        for bucket in buckets:
            bucket.take(1, now)

    def _refuse(self, reason: str, now: float) -> None:
        self._untold += 1
        if self._told_at is None or now - self._told_at >= TELL_SECONDS:
            self._log.warn(
                "refused {count} new {what}s since the last such line: {reason}",
                event=Event.NEW_NAMES_REFUSED,
                count=self._untold,
                what=self._what,
                reason=reason,
            )
            self._told_at, self._untold = now, 0
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, reason)
