"""Framing for the HA channel, in the manner of ``twisted.protocols.basic``.

A subclass gets one call for each frame, and one when a read has been taken apart: what is costly (proving, reporting)
is done once a read.
"""

from typing import Any

from twisted.internet.interfaces import IWriteDescriptor
from twisted.internet.protocol import Protocol

from rmqha.wire.transfer import FrameError, ReportDecoder, Transfer, TransferDecoder, encode_report


def send_at_once(transport: Any, data: bytes) -> None:
    """Write, and have a plain socket take it now instead of in the reactor's next round: a put waits for it.

    A transport that is told to close its connection does that when the reactor has it write the rest: it must do so.
    """
    transport.write(data)
    if IWriteDescriptor.providedBy(transport) and not getattr(transport, "disconnecting", False):
        transport.doWrite()  # an error shows again in the reactor's next round: the socket is watched for writing


class TransferReceiver(Protocol):
    """The slave's end: receives transfer frames, sends reports."""

    def __init__(self) -> None:
        self._decoder = TransferDecoder()

    def dataReceived(self, data: bytes) -> None:
        try:
            for transfer in self._decoder.feed(data):
                self.transfer_received(transfer)
        except FrameError as error:
            self.frame_refused(error)
        else:
            self.read_completed()

    def send_report(self, slave_max_offset: int) -> None:
        """Report how far we have got."""
        assert self.transport is not None, "only a connected protocol reports"
        send_at_once(self.transport, encode_report(slave_max_offset))

    def transfer_received(self, transfer: Transfer) -> None:
        """One frame has come. Its body is valid during this call."""
        raise NotImplementedError

    def read_completed(self) -> None:
        """All whole frames of one read have been handed out."""

    def frame_refused(self, error: FrameError) -> None:
        """The peer's bytes are no frames; nothing after them can be understood."""
        raise NotImplementedError


class ReportReceiver(Protocol):
    """The master's end: receives reports. Subclasses write the transfer frames themselves, many at once."""

    def __init__(self) -> None:
        self._decoder = ReportDecoder()

    def dataReceived(self, data: bytes) -> None:
        reports = self._decoder.feed(data)
        if reports:
            self.reports_received(reports)

    def reports_received(self, reports: list[int]) -> None:
        """Offsets that one read brought, oldest first; never empty."""
        raise NotImplementedError
