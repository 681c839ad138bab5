"""What a master knows about one slave's copy of the log (spec/ha.md 7 and 14).

A ``SlaveProgress`` exists from the slave's first accepted report until the connection ends. Group transfer, flow
control and the status all read a slave's offsets from it.
"""

from dataclasses import dataclass, field
from typing import Protocol

UNKNOWN_FACTS = dict.fromkeys(("requestOffset", "ackOffset", "sentOffset", "lagBytes"))
"""The facts of a connection before its first report."""


@dataclass(slots=True, eq=False)
class SlaveProgress:
    """How much of the log the slave of one connection holds. All numbers are offsets in the log.

    Invariant: ``0 <= request <= reported <= sent`` and ``request <= start <= sent``; none of them decreases.

    - ``identity``: which slave it is; several connections can have the same one.
    - ``member``: its name in the failover cluster that this node leads; None if it is not a member.
    - ``session``: that of the member's process.
    - ``request``: the first report. It says where to start, but proves nothing: a slave with a diverged log sends one
      too, and so does an observer.
    - ``start``: where sending started: at ``request``, or at the last segment's start for a request of 0.
    - ``at_segment_start``: the request was for the first byte of a segment, so the slave may be empty below it.
    - ``sent``: the end of what the transport was given.
    - ``reported``: the last report.
    - ``acknowledged``: the last report, if it counts for puts; else None. A report counts if it is beyond ``request``
      and, after ``doubt``, beyond everything sent before that call.
    """

    identity: str
    request: int
    start: int
    at_segment_start: bool
    member: str | None = None
    session: str = ""
    sent: int = field(init=False)
    reported: int = field(init=False)
    acknowledged: int | None = field(init=False, default=None)
    _counts_above: int = field(init=False)

    def __post_init__(self) -> None:
        self.sent = self.start
        self.reported = self._counts_above = self.request
        self._check()

    def _check(self) -> None:
        assert 0 <= self.request <= self.reported <= self.sent, self
        assert self.request <= self.start <= self.sent, self

    def send(self, end: int) -> None:
        """The transport was given the log up to ``end``."""
        assert end >= self.sent, (end, self)
        self.sent = end

    def report(self, offset: int) -> bool:
        """The slave reports ``offset``, which the caller has checked. Returns whether it is higher than before."""
        if offset == self.reported:
            return False
        assert offset > self.reported, (offset, self)
        self.reported = offset
        if offset > self._counts_above:
            self.acknowledged = offset
        self._check()
        return True

    def doubt(self) -> None:
        """Do not count this connection until its slave reports an offset beyond what it was sent so far."""
        self._counts_above = self.sent
        self.acknowledged = None

    def facts(self, end: int) -> dict[str, int]:
        """The offsets under the names that ``rmqha status`` uses, and the lag behind ``end`` in bytes."""
        return {
            "requestOffset": self.request,
            "ackOffset": self.reported,
            "sentOffset": self.sent,
            "lagBytes": end - self.reported,
        }

    def is_near(self, end: int, near_bytes: int) -> bool:
        """Whether the slave counts as in sync: its last report is less than ``near_bytes`` before the log's ``end``.

        It must have acknowledged something, or have reported the end. An observer does neither.
        """
        is_near = end - self.reported < near_bytes
        return is_near and (self.reported == end or self.acknowledged is not None)

    def room_bytes(self, bytes_in_flight: int) -> int:
        """How many more bytes may be sent if at most ``bytes_in_flight`` may be unreported; can be negative."""
        return max(self.reported, self.start) + bytes_in_flight - self.sent

    def holds_from(self, offset: int | None) -> bool:
        """Whether the slave is sure to hold the log from ``offset`` to what it acknowledged; True for None."""
        return not self.at_segment_start or offset is None or offset > self.start


class FollowsSlaves(Protocol):
    """What follows every slave's offsets."""

    def joined(self, slave: SlaveProgress) -> None:
        """A slave's first report was accepted."""

    def reported(self, slave: SlaveProgress) -> None:
        """A slave that has joined has reported a higher offset."""

    def forget(self, slave: SlaveProgress) -> None:
        """The slave's connection has ended."""
