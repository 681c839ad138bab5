"""Limits the memory that all connections of a remoting port use together.

It limits two things:

- **Requests**: incomplete frames, and requests that wait for an answer. A small frame is accepted as it arrives. A
  large one first reserves memory for all its bytes. If there is too little, its connection is not read until there is
  enough. The smallest waiting frame goes first, so an honest message goes before a hostile frame of 16 MiB. Each second
  of waiting counts as ``MIN_BYTES`` less, so a large frame gets its turn even among very many small ones. While any
  frame waits, a connection with a reservation must send ``MIN_BYTES`` in each ``GRACE_SECONDS``, or it is closed.
- **Answers** that clients do not read. Beyond the limit, the connection with the most unread bytes, weighted by their
  age, is closed.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from rmqha.kit.events import Event

SMALL_FRAME_BYTES = 64 * 1024
"""Frames up to this size reserve nothing."""
GRACE_SECONDS = 1.0
MIN_BYTES = 1024 * 1024
LOOK_SECONDS = 0.25
"""How often to check for slow frames while a frame waits."""
MIN_UNREAD_SECONDS = 0.1
"""The minimum age of answers in the weight that decides which connection to close."""
LOG_SECONDS = 10.0
"""The minimum time between two log lines about closed connections."""
MIB = 1024 * 1024
DEFAULT_REQUEST_BYTES = 96 * MIB
DEFAULT_ANSWER_BYTES = 128 * MIB


class Holder(Protocol):
    """A connection that uses the budget."""

    @property
    def received_bytes(self) -> int:
        """How many bytes of its incomplete frame have arrived."""

    def room_given(self) -> None:
        """There is memory for the frame that waited, so the connection may be read again."""

    def hang_up(self) -> None:
        """Close it."""


@dataclass(slots=True)
class _Reservation:
    """Memory reserved for one frame. ``received`` bytes of it had arrived at ``since``, in seconds."""

    length: int
    since: float
    received: int = 0


class _Waiting(NamedTuple):
    """A frame that has waited for memory since a time in seconds."""

    length: int
    since: float

    @property
    def rank(self) -> float:
        """The frame with the smallest rank goes first. The older of two equally long frames has a smaller rank."""
        return self.length + self.since * MIN_BYTES


@dataclass(slots=True)
class _Unread:
    """Answers that their client has not read, the oldest of them since a time in seconds."""

    since: float
    bytes: int = 0

    def weight(self, now: float) -> float:
        """Bytes times seconds. An honest client may have many unread bytes, but not for long."""
        return self.bytes * max(MIN_UNREAD_SECONDS, now - self.since)


class PortBudget:
    """The memory budget of one port."""

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
        self._logged_at: float | None = None
        self._not_logged = 0
        self.used_bytes = 0
        """Bytes reserved for large frames, and bytes of large requests in progress."""
        self.kept_bytes = 0
        """Bytes of small requests in progress."""
        self.small_bytes = 0
        """Bytes that have arrived of small frames, and of frames that wait for memory."""

    def admit(self, holder: Holder, length: int, received: int) -> bool:
        """Whether the rest of a frame of ``length`` bytes may be read now. If not, ``room_given`` follows later."""
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
        """``received`` bytes of the holder's frame have arrived. They count unless the frame has a reservation."""
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
            self._drop(next(iter(self._small)), "incomplete frames use too much memory, and its frame is the oldest")

    def whole(self, holder: Holder) -> None:
        """The holder's frame is complete, or its connection has ended."""
        self.small_bytes -= self._small.pop(holder, 0)
        self._waiting.pop(holder, None)
        reservation = self._reserved.pop(holder, None)
        if reservation is not None:
            self.release(reservation.length)

    def keep(self, holder: Holder, size: int) -> bool:
        """Count a request in progress. Returns whether the holder may send another one.

        If the port is full, it may only while it has no more than its share.
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
        """A request that was counted by ``keep`` is answered."""
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
        """Return the memory of a large frame, and give it to the frames that wait."""
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
        """Close connections with slow frames, the oldest first, until no frame waits."""
        self._look = None
        now = self._clock.seconds()
        for holder, reservation in list(self._reserved.items()):
            if not self._waiting:
                return
            if now - reservation.since < GRACE_SECONDS:
                continue
            received = holder.received_bytes
            if received - reservation.received < MIN_BYTES:
                self._drop(holder, "others wait for memory, and its frame arrives too slowly")
            reservation.since, reservation.received = now, received
        if self._waiting:
            self._look_after_slow_ones()

    def _drop(self, holder: Holder, reason: str) -> None:
        """Close a connection. Many closed connections make only a few log lines."""
        self._not_logged += 1
        now = self._clock.seconds()
        if self._logged_at is None or now - self._logged_at >= LOG_SECONDS:
            self._log.warn(
                "closed {count} connections to limit the memory of a port, the last one because {reason}",
                event=Event.CONNECTIONS_CLOSED_FOR_MEMORY,
                count=self._not_logged,
                reason=reason,
            )
            self._logged_at, self._not_logged = now, 0
        holder.hang_up()
        self.forget(holder)

    def unread(self, holder: Holder, size: int) -> None:
        """``size`` more bytes of answers wait for the client to read them."""
        now = self._clock.seconds()
        self._unread.setdefault(holder, _Unread(now)).bytes += size
        self._unread_bytes += size
        while self._unread_bytes > self._answer_bytes and self._unread:
            heaviest, _ = max(self._unread.items(), key=lambda item: item[1].weight(now))
            self._drop(heaviest, f"{self._unread_bytes} bytes of answers are not read, most of them by this client")

    def all_read(self, holder: Holder) -> None:
        """The client has read its answers, or its connection has ended."""
        unread = self._unread.pop(holder, None)
        if unread is not None:
            self._unread_bytes -= unread.bytes

    def forget(self, holder: Holder) -> None:
        """The connection has ended."""
        self.whole(holder)
        self.all_read(holder)
        self._crowded.discard(holder)
        if not self._waiting and self._look is not None:
            self._look.cancel()
            self._look = None
