"""How much of the log a connection's peer can have received (spec/ha.md 14).

A transport buffers what its socket does not take yet, and the kernel keeps what the peer's TCP has not acknowledged. A
slave cannot hold those bytes, so a report that includes them is false. We count the bytes that the socket takes, ask
the kernel how many of them it still keeps, and remember where in this stream each piece of the log lies.
"""

from collections import deque
from collections.abc import Callable, Iterable
from fcntl import ioctl
from struct import Struct
from termios import TIOCOUTQ
from typing import Any, NamedTuple

from twisted.protocols.policies import ProtocolWrapper

from rmqha.wire.transfer import TRANSFER_HEADER

INT = Struct("i")
ROOM_FOR_INT = bytes(INT.size)
PIECES_KEPT = 256
"""With more pieces of the log on the way, those that have arrived are looked for at each write, too."""


class _Piece(NamedTuple):
    """Frames with the log from ``start`` to ``end``; their first byte is byte ``position`` of the connection."""

    position: int
    start: int
    end: int
    size: int


class HandedOffset:
    """Follows one connection; ``offset`` is the end of the log that its peer may hold.

    Over TCP the offset is exact. Over TLS it is an upper bound: we count bytes below TLS, and do not know how many of
    them TLS added. It is too high by at most what TLS added to the current write, some 30 bytes for each 16 KiB. A
    transport without a socket, as in tests, passes everything on at once.
    """

    def __init__(self, transport: Any, batch_bytes: int) -> None:
        """``batch_bytes`` is how many bytes of the log a frame holds; only the last frame of a piece holds fewer."""
        socket = transport
        while isinstance(socket, ProtocolWrapper):
            socket = socket.transport
        self._socket = socket if hasattr(socket, "writeSomeData") else None
        self._is_wrapped = socket is not transport
        self._frame_bytes = TRANSFER_HEADER.size + batch_bytes
        self._batch_bytes = batch_bytes
        self._taken = 0
        self._written = 0
        self._position = 0
        self._offset = 0
        self._pieces: deque[_Piece] = deque()
        if self._socket is not None:
            self._count(self._socket)

    def _count(self, socket: Any) -> None:
        """Count what the socket takes and, below TLS, also what was written to it."""
        write_some: Callable[[bytes], int | BaseException] = socket.writeSomeData

        def count_taken(data: bytes) -> int | BaseException:
            taken = write_some(data)
            if isinstance(taken, int) and taken > 0:
                self._taken += taken
            return taken

        socket.writeSomeData = count_taken
        if self._is_wrapped:
            self._count_written(socket)

    def _count_written(self, socket: Any) -> None:
        write = socket.write
        write_sequence = socket.writeSequence

        def count_write(data: bytes) -> None:
            self._written += len(data)
            write(data)

        def count_write_sequence(pieces: Iterable[bytes]) -> None:
            whole = list(pieces)
            self._written += sum(map(len, whole))
            write_sequence(whole)

        socket.write, socket.writeSequence = count_write, count_write_sequence

    def begin(self, offset: int) -> None:
        """Sending of the log starts at ``offset``."""
        self._offset = offset

    def will_write(self, size: int, log: tuple[int, int] | None = None) -> None:
        """``size`` bytes are about to be written: frames of this range of the log, or a heartbeat if it is None."""
        if self._socket is None:
            self._offset = self._offset if log is None else log[1]
            return
        self._position = max(self._position, self._written)
        if log is not None:
            if len(self._pieces) >= PIECES_KEPT:
                self._settle()
            self._pieces.append(_Piece(self._position, *log, size))
        self._position += size

    def _settle(self) -> int:
        """Forget the pieces that have arrived completely. Returns how many bytes of the connection have arrived."""
        arrived, pieces = self._taken - self._kept_by_the_kernel(), self._pieces
        while pieces and arrived >= pieces[0].position + pieces[0].size:
            self._offset = pieces.popleft().end
        return arrived

    def _kept_by_the_kernel(self) -> int:
        """How many bytes the peer's TCP has not acknowledged yet (Linux: SIOCOUTQ); 0 where nobody tells."""
        handle = getattr(self._socket, "socket", None)
        if handle is None:
            return 0
        try:
            (kept,) = INT.unpack(ioctl(handle, TIOCOUTQ, ROOM_FOR_INT))
        except OSError:  # another system, or the connection has just ended
            return 0
        return int(kept)

    @property
    def offset(self) -> int:
        """The end of what can have arrived of the log."""
        arrived = self._settle()
        if not self._pieces:
            return self._offset
        first = self._pieces[0]
        frames, rest = divmod(max(0, arrived - first.position), self._frame_bytes)
        in_frame = max(0, rest - TRANSFER_HEADER.size)
        return min(first.end, first.start + frames * self._batch_bytes + in_frame)

    def stop(self) -> None:
        """The connection has ended: stop counting."""
        if self._socket is not None:
            for name in ("writeSomeData", "write", "writeSequence"):
                vars(self._socket).pop(name, None)
        self._pieces.clear()
