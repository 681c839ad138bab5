"""What a master knows of one slave's copy of the log (spec/ha.md 7 and 14).

It is made when the slave's first report is accepted, and is gone with the connection. Whoever asks how far a slave
has got reads it here: group transfer, flow control, the status.
"""

from dataclasses import dataclass, field

UNKNOWN_FACTS = dict.fromkeys(("requestOffset", "ackOffset", "sentOffset", "lagBytes"))
"""Of a connection before its first report."""


@dataclass(slots=True, eq=False)
class SlaveProgress:
    """How far the slave of one connection has got. All numbers are offsets in the log.

    Invariant: ``0 <= request <= reported <= sent`` and ``request <= start <= sent``; none of them goes back.

    - ``identity``: which slave it is; several connections can have the same one.
    - ``request``: the first report. It says where to start, and proves nothing: a slave whose log has diverged and an
      observer send one like any other.
    - ``start``: where sending started: at ``request``, or at the last segment's start for a request of 0.
    - ``at_segment_start``: the request was for the first byte of a segment, so the slave may be empty below it.
    - ``sent``: the end of what the transport was given.
    - ``reported``: the last report.
    - ``acknowledged``: the last report, if it counts for puts; else None. A report counts if it is beyond ``request``
      and, after ``doubt``, beyond all that was sent until then.
    """

    identity: str
    request: int
    start: int
    at_segment_start: bool
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
        """The slave reports ``offset``, which must be proved before. Returns whether it is further than before."""
        if offset == self.reported:
            return False
        assert offset > self.reported, (offset, self)
        self.reported = offset
        if offset > self._counts_above:
            self.acknowledged = offset
        self._check()
        return True

    def doubt(self) -> None:
        """Do not count this connection until its slave reports more than it was sent so far."""
        self._counts_above = self.sent
        self.acknowledged = None

    def facts(self, end: int) -> dict[str, int]:
        """The offsets by the names that ``rmqha status`` uses, and how far the slave is behind ``end``."""
        return {
            "requestOffset": self.request,
            "ackOffset": self.reported,
            "sentOffset": self.sent,
            "lagBytes": end - self.reported,
        }

    def room_bytes(self, bytes_in_flight: int) -> int:
        """How much more may be sent, if the slave may have so many bytes that it has not reported; can be negative."""
        return max(self.reported, self.start) + bytes_in_flight - self.sent

    def holds_from(self, offset: int | None) -> bool:
        """Whether the slave surely holds the log from ``offset`` on, up to what it acknowledged. None: no matter."""
        return not self.at_segment_start or offset is None or offset > self.start
