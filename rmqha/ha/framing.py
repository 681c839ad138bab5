"""Framing for the HA channel, in the manner of ``twisted.protocols.basic``.

A subclass gets one call for each frame, and one call at the end of each read. It does its costly work (verifying,
reporting) in the second, once a read.
"""

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.protocols.policies import TimeoutMixin

from rmqha.kit.sending import send_at_once
from rmqha.wire.transfer import FrameError, ReportDecoder, Transfer, TransferDecoder, encode_report


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
        """Report the end of the log that we hold."""
        assert self.transport is not None, "only a connected protocol reports"
        send_at_once(self.transport, encode_report(slave_max_offset))

    def transfer_received(self, transfer: Transfer) -> None:
        """One frame has arrived. Its body is valid only during this call."""
        raise NotImplementedError

    def read_completed(self) -> None:
        """``transfer_received`` has been called for all complete frames of one read."""

    def frame_refused(self, error: FrameError) -> None:
        """The peer's bytes are not a frame, so nothing after them can be read either."""
        raise NotImplementedError


class ReportReceiver(Protocol):
    """The master's end: receives reports. Subclasses write the transfer frames themselves, many in one write."""

    def __init__(self) -> None:
        self._decoder = ReportDecoder()

    def dataReceived(self, data: bytes) -> None:
        reports = self._decoder.feed(data)
        if reports:
            self.reports_received(reports)

    def reports_received(self, reports: list[int]) -> None:
        """The offsets that arrived in one read, oldest first; never empty."""
        raise NotImplementedError


class ClockTimeouts(TimeoutMixin):
    """Time limits of a connection by ``_clock``, which it must have, and not by the global reactor."""

    _clock: IReactorTime

    def callLater(self, period: float, func: Callable[[], None]) -> IDelayedCall:
        return self._clock.callLater(period, func)
