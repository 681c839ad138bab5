"""The HA channel between master and slave (spec/ha.md 2).

::

    slave to master, a report:          0 i64 slaveMaxOffset: the next byte the slave wants
    master to slave, a transfer frame:  0 i64 physicOffset of the first body byte
                                        8 i32 bodySize, 0 for a heartbeat
                                       12     body: commit log bytes, cut anywhere, never across a segment's end

With automatic failover our slave shows who it is before its first report. No other master is sent this: only one of
ours leads such a cluster::

    slave to master, a hello:           0 i64 HELLO, or HELLO_OF_GUEST for one that counts for no put
                                        8 i64 epoch in which the slave follows this master
                                       16     session: 16 bytes, the slave's secret for the time that its process runs

A reader of the log that keeps no copy, such as a task of Spark, shows that before its first report::

    reader to master:                   0 i64 READER
"""

from collections.abc import Generator, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

TRANSFER_HEADER = Struct(">qi")
REPORT_HEADER = Struct(">q")
HELLO = -0x524D514841484931
HELLO_OF_GUEST = HELLO - 1
READER = HELLO - 2
"""Comes before the first report of a reader, which keeps no copy. All reports differ from it."""
HELLO_FRAME = Struct(">qq16s")
HELLO_REPORTS = HELLO_FRAME.size // REPORT_HEADER.size
"""A hello is as long as this many reports."""
assert (TRANSFER_HEADER.size, REPORT_HEADER.size) == (8 + 4, 8)

MAX_TRANSFER_BODY_BYTES = 4 * 1024 * 1024 - TRANSFER_HEADER.size  # what Java's slave can receive


class FrameError(ValueError):
    """The peer's bytes break the channel's framing."""


class Transfer(NamedTuple):
    """A piece of the master's commit log. An empty body is a heartbeat.

    The body may be a view of a receive buffer: use or copy it before the next read.
    """

    physic_offset: int
    body: bytes | memoryview

    @property
    def end_offset(self) -> int:
        """The offset that follows the body's last byte."""
        return self.physic_offset + len(self.body)


class Hello(NamedTuple):
    """What a member of a failover cluster shows its leader when it connects."""

    epoch: int
    session: bytes

    def encode(self, is_guest: bool = False) -> bytes:
        """Encode the hello: 32 bytes."""
        return HELLO_FRAME.pack(HELLO_OF_GUEST if is_guest else HELLO, self.epoch, self.session)

    @classmethod
    def from_reports(cls, numbers: list[int]) -> "Hello":
        """The hello whose bytes were taken for reports. ``numbers`` are HELLO_REPORTS of them."""
        _, epoch, session = HELLO_FRAME.unpack(b"".join(map(REPORT_HEADER.pack, numbers)))
        return cls(epoch, session)


def encode_transfer(transfer: Transfer) -> bytes:
    """Encode a frame. Raises FrameError if a Java slave could not receive a body of this size."""
    if len(transfer.body) > MAX_TRANSFER_BODY_BYTES:
        raise FrameError(f"a body of {len(transfer.body)} bytes is larger than {MAX_TRANSFER_BODY_BYTES}")
    return TRANSFER_HEADER.pack(transfer.physic_offset, len(transfer.body)) + transfer.body


def encode_report(slave_max_offset: int) -> bytes:
    """Encode a report: eight bytes."""
    return REPORT_HEADER.pack(slave_max_offset)


def encode_reader() -> bytes:
    """Encode what a reader sends before its first report: eight bytes."""
    return REPORT_HEADER.pack(READER)


class TransferDecoder:
    """Takes bytes of the channel and yields whole frames. Keeps at most one unfinished frame."""

    def __init__(self, max_body_bytes: int = MAX_TRANSFER_BODY_BYTES) -> None:
        self._max_body_bytes = max_body_bytes
        self._held = bytearray()
        self._needed_bytes = TRANSFER_HEADER.size

    def feed(self, data: bytes) -> Iterable[Transfer]:
        """The frames that become complete. To iterate raises FrameError if a body size or an offset is impossible.

        The frames must be taken before the next call.
        """
        if not self._held and len(data) >= TRANSFER_HEADER.size:  # usually a read brings one whole frame
            physic_offset, body_size = TRANSFER_HEADER.unpack_from(data)
            is_whole = 0 <= body_size == len(data) - TRANSFER_HEADER.size
            if is_whole and body_size <= self._max_body_bytes and physic_offset >= 0:
                return (Transfer(physic_offset, memoryview(data)[TRANSFER_HEADER.size :]),)
        return self._frames(data)

    def _frames(self, data: bytes) -> Iterator[Transfer]:
        view = memoryview(data)
        if self._held:
            view = yield from self._finish_held(view)
        while len(view) >= TRANSFER_HEADER.size:
            physic_offset, frame_bytes = self._head(view)
            if len(view) < frame_bytes:
                self._needed_bytes = frame_bytes
                break
            yield Transfer(physic_offset, view[TRANSFER_HEADER.size : frame_bytes])
            view = view[frame_bytes:]
        self._held += view

    def _finish_held(self, view: memoryview) -> Generator[Transfer, None, memoryview]:
        """Complete the unfinished frame from ``view``, and return the rest of the view."""
        while view and self._held:
            missing = self._needed_bytes - len(self._held)
            self._held += view[:missing]
            view = view[missing:]
            if len(self._held) == self._needed_bytes:
                physic_offset, self._needed_bytes = self._head(self._held)
                if len(self._held) == self._needed_bytes:
                    whole, self._held = self._held, bytearray()
                    self._needed_bytes = TRANSFER_HEADER.size
                    yield Transfer(physic_offset, memoryview(whole)[TRANSFER_HEADER.size :])
        return view

    def _head(self, view: memoryview | bytearray) -> tuple[int, int]:
        """The offset and the size of a frame that begins so. Raises FrameError."""
        physic_offset, body_size = TRANSFER_HEADER.unpack_from(view)
        if not 0 <= body_size <= self._max_body_bytes:
            raise FrameError(f"a body size of {body_size} bytes is not between 0 and {self._max_body_bytes}")
        if physic_offset < 0:
            raise FrameError(f"an offset of {physic_offset} is negative")
        return physic_offset, TRANSFER_HEADER.size + body_size


class ReportDecoder:
    """Takes bytes of the channel and yields reported offsets. Keeps at most seven bytes."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[int]:
        """The reports that are complete now, oldest first."""
        if len(data) == REPORT_HEADER.size and not self._held:  # nearly always, while a put waits
            return list(REPORT_HEADER.unpack(data))
        data = self._held + data
        whole = len(data) - len(data) % REPORT_HEADER.size
        self._held = data[whole:]
        return [offset for (offset,) in REPORT_HEADER.iter_unpack(data[:whole])]
