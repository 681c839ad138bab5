"""The slave's end of one connection: passes frames to the replica, and the replica's offsets to the master."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime, ITCPTransport
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import LoopingCall
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from zope.interface import Interface

from rmqha.ha.admission.throttle import ReceiveThrottle
from rmqha.ha.framing import ClockTimeouts, TransferReceiver
from rmqha.ha.slave.replica import MasterView, PeerBreach, Replica, ReplicaError
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.net.tls.gate import looks_like_tls
from rmqha.store.interfaces import ICommitLog
from rmqha.wire.transfer import FrameError, Transfer

READ_BYTES = 2 * 1024 * 1024
"""The maximum size of one read. It is large because verifying many records together is cheaper."""
LEAST_READ_BYTES = 64 * 1024
"""The size of a read while little comes at once."""


@dataclass(frozen=True, slots=True)
class SlaveTimes:
    """Seconds between our heartbeats, and seconds of silence after which we close the connection."""

    heartbeat_interval: float = 5.0
    housekeeping_interval: float = 20.0


class ConnectionState(Enum):
    """How far a slave's connection is."""

    NEW = "not connected yet"
    ASKING = "connected, asking what the master's log has"
    REQUESTED = "the first report is sent"
    RECEIVING = "the master has sent bytes"
    ENDED = "closed, by us or by the master"


CONNECTION_TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    ConnectionState.NEW: frozenset({ConnectionState.ASKING}),
    ConnectionState.ASKING: frozenset({ConnectionState.REQUESTED, ConnectionState.ENDED}),
    ConnectionState.REQUESTED: frozenset({ConnectionState.RECEIVING, ConnectionState.ENDED}),
    ConnectionState.RECEIVING: frozenset({ConnectionState.ENDED}),
    ConnectionState.ENDED: frozenset(),
}
"""The allowed moves."""

REPORTING = (ConnectionState.REQUESTED, ConnectionState.RECEIVING)


class IConnectionOwner(Interface):
    """What a slave's connection asks of its owner, and tells it."""

    def ask_master() -> Deferred[MasterView | None]:
        """What is known about the master's log; None if nothing is.

        Fails with UnsupportedMaster, or if it is cancelled.
        """

    def durable_offset() -> int:
        """The end of the bytes that may be reported, as far as the disk is concerned."""

    def read_completed() -> None:
        """The bytes of one read were received."""

    def gave_up(failure: Failure) -> None:
        """We closed the connection, for this reason. ``connection_lost`` follows."""

    def ended_by_peer(reason: str) -> None:
        """The connection was closed, and not by us. ``connection_lost`` follows."""

    def connection_lost() -> None:
        """The connection is gone."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a slave's connection behaves.

    One that ``observes`` reports its starting offset and nothing more, so that no SYNC_MASTER counts it. A ``throttle``
    pauses its transport from time to time. One that is ``quiet`` does not log ordinary events. ``hello`` is sent before
    the first report.
    """

    times: SlaveTimes = SlaveTimes()
    observes: bool = False
    throttle: ReceiveThrottle | None = None
    quiet: bool = False
    hello: bytes = b""


class HASlaveProtocol(TransferReceiver, ClockTimeouts):
    """One connection to a master. ``owner`` is an IConnectionOwner."""

    _log = Logger()

    def __init__(
        self,
        replica: Replica,
        commit_log: ICommitLog,
        clock: IReactorTime,
        owner: IConnectionOwner,
        options: ConnectionOptions = ConnectionOptions(),
    ) -> None:
        super().__init__()
        self._quiet = options.quiet
        self._hello = options.hello
        self._replica = replica
        self._commit_log = commit_log
        self._times = options.times
        self._clock = clock
        self._owner = owner
        self._observes = options.observes
        self._throttle = options.throttle
        self._pause: IDelayedCall | None = None
        self._reads: _Reads | None = None
        self.state = ConnectionState.NEW
        self._reported = -1
        self._last_report_time = 0.0
        self._handshaking: Deferred[None] | None = None
        self._heartbeat = LoopingCall(self._beat)
        self._heartbeat.clock = clock

    def _move(self, new: ConnectionState) -> None:
        """Go to another state. Raises ValueError for a move that is not allowed."""
        if new not in CONNECTION_TRANSITIONS[self.state]:
            raise ValueError(f"a connection cannot go from {self.state.name} to {new.name}")
        self.state = new

    @property
    def _is_open(self) -> bool:
        return self.state not in (ConnectionState.NEW, ConnectionState.ENDED)

    def connectionMade(self) -> None:
        self._move(ConnectionState.ASKING)
        assert self.transport is not None, "Twisted sets it before this call"
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        if self._throttle is None:
            self._reads = _Reads(self.transport)
        else:
            _socket_of(self.transport).bufferSize = self._throttle.read_bytes
        if isinstance(self.transport, Connection):
            _read_directly(self.transport, self)
        self._replica.connected()
        self._handshaking = Deferred.fromCoroutine(self._handshake())
        self._handshaking.addErrback(self._failed)

    async def _handshake(self) -> None:
        view = await self._owner.ask_master()
        if not self._is_open:
            return
        request = self._replica.request(view or MasterView(), self._owner.durable_offset())
        self._move(ConnectionState.REQUESTED)
        if not self._quiet:
            self._log.info(
                "asking the master to start at {request_offset}", event=Event.TRANSFER_REQUESTED, request_offset=request
            )
        if self._hello:
            assert self.transport is not None, "it is connected"
            self.transport.write(self._hello)
        self._report(request)
        self.setTimeout(self._times.housekeeping_interval)
        self._heartbeat.start(self._times.heartbeat_interval / 2, now=False).addErrback(self._failed)

    def dataReceived(self, data: bytes) -> None:
        if not self._is_open:
            return
        try:
            if self.state is not ConnectionState.RECEIVING:
                self._received_first(data)
            super().dataReceived(data)
        except (ReplicaError, OSError):
            self._failed(Failure())
        self.resetTimeout()  # and what else can wait until we have reported
        if self._reads is not None:
            self._reads.brought(len(data))
        if self._throttle is not None and self._is_open:
            self._pause_for(self._throttle.received(len(data)))

    def _received_first(self, data: bytes) -> None:
        """The master has sent its first bytes. Raises PeerBreach if they cannot be an answer to our first report."""
        if looks_like_tls(data):
            raise PeerBreach("the master's port uses TLS: give --master=tls:HOST:PORT")
        if self.state is ConnectionState.ASKING:
            raise PeerBreach("bytes before our first report")
        self._move(ConnectionState.RECEIVING)

    def _pause_for(self, seconds: float) -> None:
        """Stop reading for this time, so that the master waits. The pause must not count as the master's silence."""
        if seconds <= 0:
            return
        if self._pause is not None:  # TLS passes on what it has already read, even when paused
            self._pause.reset(seconds)
            return
        self.setTimeout(None)
        self._pause = self._clock.callLater(seconds, self._go_on_reading)
        assert self.transport is not None, "it is connected"
        self.transport.pauseProducing()  # type: ignore[attr-defined]  # every stream transport has it

    def _go_on_reading(self) -> None:
        self._pause = None
        self.setTimeout(self._times.housekeeping_interval if self.state in REPORTING else None)
        assert self.transport is not None, "it is connected"
        self.transport.resumeProducing()  # type: ignore[attr-defined]  # as above

    def transfer_received(self, transfer: Transfer) -> None:
        self._replica.receive(transfer)

    def read_completed(self) -> None:
        self._replica.read_completed()
        self._owner.read_completed()

    def frame_refused(self, error: FrameError) -> None:
        raise PeerBreach(str(error)) from error

    def report_progress(self) -> None:
        """Report our offset to the master, if it is higher than the last report."""
        reportable = self._replica.reportable_offset
        if self._is_open and reportable is not None and not self._observes:
            offset = min(reportable, self._owner.durable_offset())
            if offset > self._reported:
                self._report(offset)

    def _report(self, offset: int) -> None:
        self._reported = max(self._reported, offset)
        self._last_report_time = self._clock.seconds()
        self.send_report(offset)

    def _beat(self) -> None:
        """Send the last report again, as a heartbeat, if none was sent for half an interval."""
        if self._clock.seconds() - self._last_report_time >= self._times.heartbeat_interval / 2:
            self._report(self._reported)

    def look(self, view: MasterView, verified_when_asked: int) -> None:
        """Compare with the answer that the master's remoting port gave while we were connected."""
        if self.state in REPORTING:
            try:
                self._replica.look(view, verified_when_asked)
            except ReplicaError:
                self._failed(Failure())

    def timeoutConnection(self) -> None:
        seconds = self._times.housekeeping_interval
        self._failed(Failure(PeerBreach(f"nothing came from the master for {seconds:g} s", Event.MASTER_SILENT)))

    def _failed(self, failure: Failure) -> None:
        if self._is_open:
            self._end()
            self._owner.gave_up(failure)

    def _end(self) -> None:
        self._move(ConnectionState.ENDED)
        if self._handshaking is not None:
            self._handshaking.cancel()
        self.setTimeout(None)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._heartbeat.running:
            self._heartbeat.stop()
        assert self.transport is not None, "it was connected"
        self.transport.abortConnection()  # type: ignore[attr-defined]  # every stream transport has it

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._is_open:
            hint = ""
            if self.state is not ConnectionState.RECEIVING:
                hint = "; it sent nothing: perhaps its port uses TLS (--master=tls:HOST:PORT) or refuses this node"
            self._end()
            text = reason_of(reason.value) + hint
            if not self._quiet:
                self._log.info(
                    "the connection to the master is gone: {reason}", event=Event.MASTER_CONNECTION_LOST, reason=text
                )
            self._owner.ended_by_peer(text)
        self._owner.connection_lost()


def _socket_of(transport: Any) -> Any:
    """The socket's transport, below TLS if it is used."""
    while isinstance(transport, ProtocolWrapper):
        transport = transport.transport
    return transport


def _read_directly(transport: Any, protocol: Protocol) -> None:
    """A plain socket hands its bytes to the protocol itself, past the wrappers of its endpoint and its service.

    These pass them on unchanged, which takes longer than to read the frame. They still learn of the connection's end.
    """
    transport.protocol.dataReceived = protocol.dataReceived


class _Reads:
    """Fits the buffer of a socket's reads to what they bring.

    Catching up, one read brings as much as the kernel holds. A put brings a few kilobytes, for which the C library
    would map and unmap the pages of a large buffer each time. Below TLS we do not see what a read brings.
    """

    def __init__(self, transport: Any) -> None:
        self._socket = _socket_of(transport)
        self._fits = self._socket is transport
        self._size = self._socket.bufferSize = LEAST_READ_BYTES if self._fits else READ_BYTES

    def brought(self, size: int) -> None:
        """A read has brought this number of bytes."""
        if self._fits:
            if size == self._size < READ_BYTES:
                self._size = self._socket.bufferSize = READ_BYTES
            elif size <= LEAST_READ_BYTES < self._size:
                self._size = self._socket.bufferSize = LEAST_READ_BYTES


class HASlaveFactory(Factory[HASlaveProtocol]):
    """Builds a slave's connections, one after another, with ``make_protocol``."""

    noisy = False

    def __init__(self, make_protocol: Callable[[], HASlaveProtocol]) -> None:
        self._make_protocol = make_protocol
        self.connection: HASlaveProtocol | None = None

    def buildProtocol(self, addr: IAddress | None) -> HASlaveProtocol:
        self.connection = self._make_protocol()
        return self.connection
