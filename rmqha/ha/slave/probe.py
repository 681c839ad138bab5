"""Asks a master's HA port where its last segment starts, on a connection of its own."""

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from rmqha.ha.framing import TransferReceiver
from rmqha.kit.connecting import connect_protocol
from rmqha.wire.transfer import FrameError, Transfer

PROBE_TIMEOUT_SECONDS = 8.0
"""If a master's last segment is empty, it answers a probe with a heartbeat, after at most six seconds."""


class ProbeProtocol(TransferReceiver):
    """Requests a master's last segment, to find out where it starts. ``found`` fires with the offset."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Deferred[int] = Deferred(lambda _: self._hang_up())
        self._answered = False

    def connectionMade(self) -> None:
        self.send_report(0)

    def transfer_received(self, transfer: Transfer) -> None:
        if not self._answered:
            self._answered = True
            self.found.callback(transfer.physic_offset)
            self._hang_up()

    def frame_refused(self, error: FrameError) -> None:
        if not self._answered:
            self._answered = True
            self.found.errback(error)
            self._hang_up()

    def _hang_up(self) -> None:
        self._answered = True
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]  # every stream transport has it

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._answered:
            self._answered = True
            self.found.errback(reason)


async def probe_last_segment(endpoint: IStreamClientEndpoint, clock: IReactorTime) -> int:
    """Find out, on a separate connection, where the master's last segment starts.

    Raises FrameError, TimeoutError, or what connecting raises.
    """
    connecting = connect_protocol(endpoint, ProbeProtocol())
    protocol = await connecting.addTimeout(PROBE_TIMEOUT_SECONDS, clock)
    found: int = await protocol.found.addTimeout(PROBE_TIMEOUT_SECONDS, clock)
    return found
