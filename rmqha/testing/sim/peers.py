"""Strangers: peers that speak the protocol, and lie or hold back."""

from collections.abc import Callable
from random import Random

from twisted.internet.interfaces import ITransport
from twisted.internet.protocol import Protocol

from rmqha.testing.sim.nodes import SimNode
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, Record, RecordError, decode_record, encode_record
from rmqha.wire.transfer import REPORT_HEADER, TRANSFER_HEADER, encode_report


class Bogus(Protocol):
    """A stranger. It sends what a step says, and takes what comes."""


class OtherMaster(Bogus):
    """Answers a slave's first report with the slave's own bytes and one more message, with one byte flipped.

    The byte is one that the slave can know to be wrong: any of its own log, or one of the new message's body. A slave
    that repairs its log gets that of the master, ``written``, with one byte of a body flipped.
    """

    transport: ITransport

    def __init__(self, node: SimNode, random: Random, say: Callable[[str], None], written: bytearray) -> None:
        self._written = written
        self._node = node
        self._random = random
        self._say = say
        self._heard = bytearray()

    def dataReceived(self, data: bytes) -> None:
        had = len(self._heard)
        self._heard += data
        if had < REPORT_HEADER.size <= len(self._heard):
            (request,) = REPORT_HEADER.unpack_from(self._heard)
            if self._node.runs:
                self._answer(max(request, 0))
            else:
                self._repair(request)

    def _repair(self, start: int) -> None:
        """Send the master's bytes from there on, with one byte of a body flipped."""
        size = self._node.settings.mapped_file_size_commit_log
        assert size is not None
        written, bodies, at = bytes(self._written), [], start if start > 1 else 0
        while at < len(written):
            try:
                found = decode_record(written, at)
            except RecordError:  # the slave's log is not a copy of this one: it asks from within a record
                return
            if isinstance(found, Record) and found.body:
                bodies.append(written.index(found.body, at) + self._random.randrange(len(found.body)))
            at += found.total_size if isinstance(found, Record) else found.size
        if bodies:
            at = self._random.choice(bodies)
            data = bytearray(written[start:])
            data[at - start] ^= 1 << self._random.randrange(8)
            self._say(f"sends {len(data)} bytes from {start} to one who repairs, the one at {at} is flipped")
            self._send(start, bytes(data), size)

    def _answer(self, start: int) -> None:
        log = self._node.log
        end = log.verified_offset
        body = self._random.randbytes(self._random.randint(1, 300))
        record = encode_record(Record("T", body, "k\x01v", physical_offset=end, store_timestamp=1))
        room = log.segment_size - end % log.segment_size
        if start > end or start < log.min_offset or len(record) + END_FILE_MIN_BLANK_LENGTH > room:
            return
        data = bytearray(self._node.disk.bytes_at(log.folder, log.segment_size, start, end, durable=False) + record)
        if len(data) != end - start + len(record):
            return
        if end - start > 1 and self._random.random() < 0.7:
            at = self._random.randrange(1 if start == 0 else 0, end - start)
        else:
            at = data.index(body, end - start) + self._random.randrange(len(body))
        data[at] ^= 1 << self._random.randrange(8)
        self._say(f"sends {len(data)} bytes from {start}, the one at {start + at} is flipped")
        self._send(start, bytes(data), log.segment_size)

    def _send(self, start: int, data: bytes, segment_size: int) -> None:
        at = 0
        while at < len(data):
            room = segment_size - (start + at) % segment_size
            size = min(room, len(data) - at, self._random.choice((1, 50, 500, 5000)))
            self.transport.write(TRANSFER_HEADER.pack(start + at, size) + data[at : at + size])
            at += size


class SlowSlave(Bogus):
    """Takes the log from some offset on, and acknowledges as much of it as a step says, mostly parts of records."""

    transport: ITransport

    def __init__(self, start: int) -> None:
        self.acknowledged = start
        self.received = start
        self._held = bytearray()

    def connectionMade(self) -> None:
        self.transport.write(encode_report(self.acknowledged))

    def dataReceived(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= TRANSFER_HEADER.size:
            offset, size = TRANSFER_HEADER.unpack_from(self._held)
            if len(self._held) < TRANSFER_HEADER.size + size:
                return
            del self._held[: TRANSFER_HEADER.size + size]
            self.received = max(self.received, offset + size)

    def acknowledge(self, random: Random) -> int | None:
        """Report more than before, and no more than has come; gives how far, None if nothing more has come."""
        if self.received <= self.acknowledged:
            return None
        some = random.randint(self.acknowledged + 1, self.received)
        all_but_a_byte = max(self.received - 1, self.acknowledged + 1)
        self.acknowledged = random.choice((all_but_a_byte, all_but_a_byte, some, self.received))
        self.transport.write(encode_report(self.acknowledged))
        return self.acknowledged
