"""What all connections of a remoting port may make us keep together.

Two things are counted. **Requests**: the frames that are not whole yet, and the requests that wait for an answer. A
small frame is taken as it comes. A large one first reserves room for all of its bytes; without room its connection is
not read until there is some. The smallest frame that waits goes first, so an honest message goes before a hostile
frame of 16 MiB; each second of waiting counts as ``LEAST_BYTES`` less, so no crowd of small frames keeps it out. While
somebody waits, whoever has a reservation and does not use it is dropped: of a frame ``LEAST_BYTES`` must come in each
``GRACE_SECONDS``. **Answers**: those that clients do not read. Beyond the limit, the connection with the most bytes for
the longest time is dropped.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

SMALL_FRAME_BYTES = 64 * 1024
"""Frames up to this size reserve nothing."""
GRACE_SECONDS = 1.0
LEAST_BYTES = 1024 * 1024
LOOK_SECONDS = 0.25
"""How often slow frames are looked for while somebody waits."""
LEAST_UNREAD_SECONDS = 0.1
"""Answers are as old as this at least, when it is decided whose are the most and the oldest."""
TELL_SECONDS = 10.0
"""How often dropped connections are logged, at most."""
MIB = 1024 * 1024
DEFAULT_REQUEST_BYTES = 96 * MIB
DEFAULT_ANSWER_BYTES = 128 * MIB


class Holder(Protocol):
    """A connection, as the budget sees it."""

    @property
    def received_bytes(self) -> int:
        """How many bytes of its unfinished frame have come."""

    def room_given(self) -> None:
        """There is room for what it waits for: it may be read again."""

    def hang_up(self) -> None:
        """Close it."""


@dataclass(slots=True)
class _Reservation:
    """Room for one frame; how many of its bytes had come at a time, in seconds."""

    length: int
    since: float
    received: int = 0


class _Waiting(NamedTuple):
    """A frame that waits for room, since a time in seconds."""

    length: int
    since: float

    @property
    def rank(self) -> float:
        """The smallest goes first. Whoever waited longer has a smaller rank than a frame of the same length."""
        return self.length + self.since * LEAST_BYTES


@dataclass(slots=True)
class _Unread:
    """Answers that wait for their client to read them, the oldest since a time in seconds."""

    since: float
    bytes: int = 0

    def weight(self, now: float) -> float:
        """Bytes times seconds: an honest client may have many bytes waiting, but not for long."""
        return self.bytes * max(LEAST_UNREAD_SECONDS, now - self.since)


class PortBudget:
    """The budget of one port."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        request_bytes: int = DEFAULT_REQUEST_BYTES,
        answer_bytes: int = DEFAULT_ANSWER_BYTES,
    ) -> None:
        self._clock = clock
        self._request_bytes = request_bytes
        self._answer_bytes = answer_bytes
        self._reserved: dict[Holder, _Reservation] = {}
        self._small: dict[Holder, int] = {}
        self._waiting: dict[Holder, _Waiting] = {}
        self._kept: dict[Holder, int] = {}
        self._crowded: set[Holder] = set()
        self._unread: dict[Holder, _Unread] = {}
        self._unread_bytes = 0
        self._look: IDelayedCall | None = None
        self._told_at: float | None = None
        self._untold = 0
        self.used_bytes = 0
        """Reserved for large frames, or kept of them while their requests are in progress."""
        self.kept_bytes = 0
        """Of small requests in progress."""
        self.small_bytes = 0
        """Pieces of small frames, and of those that wait for room."""

    def admit(self, holder: Holder, length: int, received: int) -> bool:
        """Whether a frame of ``length`` bytes, of which some have come, may go on; if not, ``room_given`` follows."""
        if holder in self._reserved:
            return True
        self._count_small(holder, received)
        if length <= SMALL_FRAME_BYTES:
            return True
        if not self._waiting and self._has_room(length):
            self._reserve(holder, length)
            return True
        self._waiting[holder] = _Waiting(length, self._clock.seconds())
        self._look_after_slow_ones()
        return False

    def received(self, holder: Holder, received: int) -> None:
        """So many bytes of the holder's frame have come. Counted unless the frame has a reservation."""
        if holder not in self._reserved:
            self._count_small(holder, received)

    def _has_room(self, length: int) -> bool:
        return not self.used_bytes or self.used_bytes + length <= self._request_bytes

    def _reserve(self, holder: Holder, length: int) -> None:
        self._count_small(holder, 0)
        self._reserved[holder] = _Reservation(length, self._clock.seconds())
        self.used_bytes += length

    def _count_small(self, holder: Holder, received: int) -> None:
        self.small_bytes += received - self._small.pop(holder, 0)
        if received:
            self._small[holder] = received
        while self.small_bytes > self._request_bytes:
            self._drop(next(iter(self._small)), "the pieces of frames are too many bytes, and its piece is the oldest")

    def whole(self, holder: Holder) -> None:
        """The holder's frame is whole, or gone."""
        self.small_bytes -= self._small.pop(holder, 0)
        self._waiting.pop(holder, None)
        reservation = self._reserved.pop(holder, None)
        if reservation is not None:
            self.release(reservation.length)

    def keep(self, holder: Holder, size: int) -> bool:
        """Count a request in progress; whether the holder may have another one.

        Where the port is full, that is so while the holder has no more than its share.
        """
        if size > SMALL_FRAME_BYTES:
            self.used_bytes += size
            return True
        self._kept[holder] = self._kept.get(holder, 0) + size
        self.kept_bytes += size
        if self._has_share(holder):
            return True
        self._crowded.add(holder)
        return False

    def _has_share(self, holder: Holder) -> bool:
        full = self.kept_bytes > self._request_bytes
        return not full or self._kept.get(holder, 0) <= self._request_bytes // len(self._kept)

    def let_go(self, holder: Holder, size: int) -> None:
        """A request that was kept has its answer."""
        if size > SMALL_FRAME_BYTES:
            self.release(size)
            return
        self.kept_bytes -= size
        left = self._kept.pop(holder, 0) - size
        if left > 0:
            self._kept[holder] = left
        if self._crowded:
            for crowded in [crowded for crowded in self._crowded if self._has_share(crowded)]:
                self._crowded.discard(crowded)
                crowded.room_given()

    def release(self, length: int) -> None:
        """What was reserved for a large frame is needed no more."""
        self.used_bytes -= length
        while self._waiting:
            holder, waiting = min(self._waiting.items(), key=lambda item: item[1].rank)
            wanted = waiting.length
            if not self._has_room(wanted):
                break
            del self._waiting[holder]
            self._reserve(holder, wanted)
            holder.room_given()

    def _look_after_slow_ones(self) -> None:
        if self._look is None:
            self._look = self._clock.callLater(LOOK_SECONDS, self._drop_slow_ones)

    def _drop_slow_ones(self) -> None:
        """Drop the frames that stand in the way of others, the oldest first, as many as are needed."""
        self._look = None
        now = self._clock.seconds()
        for holder, reservation in list(self._reserved.items()):
            if not self._waiting:
                return
            if now - reservation.since < GRACE_SECONDS:
                continue
            received = holder.received_bytes
            if received - reservation.received < LEAST_BYTES:
                self._drop(holder, "others wait for room, and its frame comes too slowly")
            reservation.since, reservation.received = now, received
        if self._waiting:
            self._look_after_slow_ones()

    def _drop(self, holder: Holder, reason: str) -> None:
        """Close a connection. A crowd of them is logged in few lines."""
        self._untold += 1
        now = self._clock.seconds()
        if self._told_at is None or now - self._told_at >= TELL_SECONDS:
            self._log.warn(
                "closed {count} connections to bound the memory of a port, the last one because {reason}",
                count=self._untold,
                reason=reason,
            )
            self._told_at, self._untold = now, 0
        holder.hang_up()
        self.forget(holder)

    def unread(self, holder: Holder, size: int) -> None:
        """So many more bytes of answers wait for the client to read them."""
        now = self._clock.seconds()
        self._unread.setdefault(holder, _Unread(now)).bytes += size
        self._unread_bytes += size
        while self._unread_bytes > self._answer_bytes and self._unread:
            heaviest, _ = max(self._unread.items(), key=lambda item: item[1].weight(now))
            self._drop(heaviest, f"{self._unread_bytes} bytes of answers are not read, and it reads least")

    def all_read(self, holder: Holder) -> None:
        """The client has read its answers, or is gone."""
        unread = self._unread.pop(holder, None)
        if unread is not None:
            self._unread_bytes -= unread.bytes

    def forget(self, holder: Holder) -> None:
        """The connection is gone."""
        self.whole(holder)
        self.all_read(holder)
        self._crowded.discard(holder)
        if not self._waiting and self._look is not None:
            self._look.cancel()
            self._look = None
