"""The master's end: sends the log to each slave from the offset it requests, and records what each one reports.

We check everything that a peer reports (spec/ha.md 14). The first report must lie in our log. A later one must lie
between the previous report and what this machine had sent when it arrived. A transfer never goes back, so a slave that
needs earlier bytes must reconnect.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from twisted.internet.interfaces import IAddress, IDelayedCall, IPushProducer, IReactorTime, ITCPTransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.ha.admission.allowlist import SlaveCheck
from rmqha.ha.admission.limits import HALimits, LineLimit, Places, WriteSize
from rmqha.ha.admission.throttle import SendThrottle
from rmqha.ha.framing import ClockTimeouts, ReportReceiver
from rmqha.ha.master.handed import HandedOffset
from rmqha.ha.master.insyncslaves import InSyncSlaves
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.progress import UNKNOWN_FACTS, FollowsSlaves, SlaveProgress
from rmqha.ha.master.syncmembers import SyncMembers
from rmqha.kit.events import Event
from rmqha.kit.sending import send_at_once
from rmqha.net.tls.gate import looks_like_tls, peer_names
from rmqha.settings.settings import BrokerRole, ReadUpTo, Settings
from rmqha.store.interfaces import ICommitLog
from rmqha.wire.transfer import HELLO, HELLO_OF_GUEST, HELLO_REPORTS, READER, TRANSFER_HEADER, Hello, encode_report

WRITE_BYTES = 512 * 1024
"""Log bytes in one write. For a slow slave, at most this and the transport's own buffer wait in memory."""
HELLOS = (HELLO, HELLO_OF_GUEST)
AT_ONCE_BYTES = 16 * 1024
"""This many new bytes are sent immediately; fewer may wait for what else this round of the reactor appends."""
WRITTEN_AT_ONCE = 128 * 1024
"""Frames of this size go to the socket immediately. Twisted gives the kernel no more in one call."""
GATHER_SECONDS, GATHERED_BYTES = 0.008, 96 * 1024
"""If no put and no consumer waits for slaves, fewer bytes than these wait as long for further ones: each read costs a
slave. Java's master looks every 100 ms then.
"""


class HAConnectionState(Enum):
    """The states of a slave's connection."""

    REQUEST = "waiting for the slave's first report"
    TRANSFER = "sending the log"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class MasterTimes:
    """Seconds between our heartbeats, and seconds of silence after which we close a slave's connection."""

    heartbeat_interval: float = 5.0
    housekeeping_interval: float = 20.0


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """How a master serves its slaves.

    ``batch_bytes`` is how many bytes of the log a frame holds. ``max_rate`` is how many bytes a second go to all slaves
    together, None for no limit. A few new bytes wait for ``gather_seconds`` for further ones.
    """

    batch_bytes: int
    times: MasterTimes = MasterTimes()
    limits: HALimits = HALimits()
    max_rate: int | None = None
    gather_seconds: float = 0.0

    @classmethod
    def of(cls, settings: Settings, max_connections: int | None = None) -> "MasterOptions":
        """The options in the settings. ``max_connections`` is how many the process can open, None for no limit."""
        first_report_ms = settings.ha_first_report_timeout_ms
        is_waited_for = settings.broker_role is BrokerRole.SYNC_MASTER or settings.read_up_to is ReadUpTo.CONFIRMED
        connections = settings.ha_max_connections
        return cls(
            settings.ha_transfer_batch_size_bytes,
            MasterTimes(settings.ha_send_heartbeat_interval_ms / 1000, settings.ha_housekeeping_interval_ms / 1000),
            HALimits(
                connections=connections if max_connections is None else min(connections, max_connections),
                silent_connections=settings.ha_max_silent_connections,
                connections_per_address=settings.ha_max_connections_per_address,
                connects_at_once=settings.ha_connects_at_once_per_address,
                connects_per_second=settings.ha_connects_per_second_per_address,
                first_report_seconds=first_report_ms / 1000 if first_report_ms is not None else None,
                bytes_in_flight=settings.ha_max_bytes_in_flight,
            ),
            settings.max_ha_transfer_bytes_in_second if settings.ha_flow_control_enable else None,
            0.0 if is_waited_for else GATHER_SECONDS,
        )


class TransferFrames:
    """Makes transfer frames with at most ``batch_bytes`` of the log each.

    While ``shared`` is active, it keeps the frames made last and gives them to every slave that needs the same ones.
    """

    def __init__(self, commit_log: ICommitLog, batch_bytes: int) -> None:
        self._commit_log = commit_log
        self.batch_bytes = batch_bytes
        self._shared = False
        self._kept: tuple[int, int, bytes] | None = None

    def make(self, start: int, limit_bytes: int) -> tuple[int, bytes] | None:
        """The end offset and frames for up to ``limit_bytes`` of the log at ``start``; None if it is not there."""
        if self._kept is not None and self._kept[0] == start and self._kept[1] - start <= limit_bytes:
            return self._kept[1:]
        data = self._commit_log.get_data(start, limit_bytes)
        if data is None:
            return None
        if len(data) <= self.batch_bytes:
            frames = b"".join((TRANSFER_HEADER.pack(start, len(data)), data))
        else:
            pieces: list[bytes | memoryview] = []
            for at in range(0, len(data), self.batch_bytes):
                body = data[at : at + self.batch_bytes]
                pieces += (TRANSFER_HEADER.pack(start + at, len(body)), body)
            frames = b"".join(pieces)
        made = start, start + len(data), frames
        if self._shared:
            self._kept = made
        return made[1:]

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Share frames among slaves during a ``with`` block, in which the log must not change."""
        self._shared = True
        try:
            yield
        finally:
            self._shared, self._kept = False, None


@implementer(IPushProducer)
class HAMasterProtocol(ReportReceiver, ClockTimeouts):
    """One slave's connection. ``progress`` is None until its first report is accepted."""

    _log = Logger()

    def __init__(self, port: "HAMasterFactory", host: str, peer: str) -> None:
        super().__init__()
        self._port = port
        self._commit_log = port.commit_log
        self._times = port.options.times
        self._clock = port.clock
        self._sending_is_limited = port.sending_is_limited
        self._paused = False
        self._last_write_time = self._clock.seconds()
        self._heartbeat = LoopingCall(self._beat)
        self._heartbeat.clock = self._clock
        self._handed: HandedOffset | None = None
        self._connected_at = self._last_report_time = self._clock.seconds()
        self.host = self.identity = host
        self.peer = peer
        self.member: str | None = None
        """Its name, if it is a member of the failover cluster that this node leads."""
        self._session = ""
        self.is_reader = False
        """Whether it has said that it keeps no copy: then it counts for no put, and holds back no retention."""
        self._hello: list[int] = []
        self.state = HAConnectionState.REQUEST
        self.progress: SlaveProgress | None = None

    def facts(self) -> dict[str, str | int | float | None]:
        """What the status shows of this slave. Offsets are None until they are known, times are in seconds."""
        progress = self.progress
        offsets = UNKNOWN_FACTS if progress is None else progress.facts(self._commit_log.verified_offset)
        return {
            "peer": self.peer,
            "identity": self.identity,
            "state": self.state.name,
            **offsets,
            **self._port.sync_facts(progress),
            "connectedSeconds": round(self._clock.seconds() - self._connected_at, 3),
            "silentSeconds": round(self._clock.seconds() - self._last_report_time, 3),
        }

    def connectionMade(self) -> None:
        assert self.transport is not None, "Twisted sets it before this call"
        if self.state is HAConnectionState.CLOSED:
            self._close()
            return
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self._handed = HandedOffset(self.transport, self._port.options.batch_bytes)
        self.transport.registerProducer(self, True)  # type: ignore[attr-defined]  # every stream transport is a consumer
        self.setTimeout(self._port.options.limits.first_report_seconds or self._times.housekeeping_interval)
        if self._port.lines.allows("connected"):
            self._log.info("slave {peer} connected", event=Event.SLAVE_CONNECTED, peer=self.peer)

    def reports_received(self, reports: list[int]) -> None:
        if self.state is HAConnectionState.CLOSED:
            return
        if self.state is HAConnectionState.TRANSFER:
            self._acknowledge(reports)  # first, because puts wait for it
        self._last_report_time = self._clock.seconds()
        self.resetTimeout()  # only complete reports count, so a peer cannot stay by sending single bytes
        if self.state is HAConnectionState.REQUEST:
            self._take_first(reports)

    def _take_first(self, reports: list[int]) -> None:
        """Take reports before the transfer."""
        while reports and (self._hello or reports[0] in HELLOS) and self.state is HAConnectionState.REQUEST:
            reports = self._take_hello(reports)
        if reports and reports[0] == READER and not self.is_reader and self.member is None:
            self.is_reader = True
            reports = reports[1:]
        if reports and self.state is HAConnectionState.REQUEST and self._identify():
            self._begin(*reports)

    def _take_hello(self, reports: list[int]) -> list[int]:
        """Take what belongs to the slave's hello. Returns the reports that follow it."""
        missing = HELLO_REPORTS - len(self._hello)
        self._hello += reports[:missing]
        if len(self._hello) == HELLO_REPORTS:
            leadership = self._port.leadership
            kind, hello, self._hello = self._hello[0], Hello.from_reports(self._hello), []
            member = None if leadership is None else leadership.member_of(hello)
            self.member, self._session = member if kind == HELLO else None, hello.session.hex()
            if member is None:
                self._refuse(
                    Event.SLAVE_NO_MEMBER, "is not a member that follows this node in epoch {epoch}", epoch=hello.epoch
                )
        return reports[missing:]

    def _identify(self) -> bool:
        """Take the slave's identity, which TLS has verified if it is used. Close if the slave is not allowed.

        Returns whether it is allowed.
        """
        identity = self._port.check.identify(self.host, peer_names(self.transport))
        if identity is None:
            self._close()
            return False
        self.identity = identity if self.member is None else self.member
        return True

    def _begin(self, request: int, *others: int) -> None:
        """Start the transfer at the first report. ``others`` came in the same read, before anything was sent."""
        log = self._commit_log
        if looks_like_tls(encode_report(request)):
            self._refuse(Event.SLAVE_USES_TLS, "starts a TLS handshake, but this port has no TLS")
        elif request < 0:
            self._refuse(Event.SLAVE_REPORT_INVALID, "asks for {offset}", offset=request)
        elif request > log.verified_offset:
            self._refuse(
                Event.SLAVE_AHEAD,
                "asks for {offset}, {ahead_bytes} bytes ahead of our end at {end}",
                offset=request,
                ahead_bytes=request - log.verified_offset,
                end=log.verified_offset,
            )
        elif 0 < request < log.min_offset:
            self._refuse(
                Event.SLAVE_TOO_OLD,
                "asks for {offset}, our log starts at {min_offset}",
                offset=request,
                min_offset=log.min_offset,
            )
        elif any(offset != request for offset in others):
            self._refuse(
                Event.SLAVE_REPORT_INVALID,
                "reports {offset} together with its first report, {request}: nothing had been sent to it",
                offset=next(offset for offset in others if offset != request),
                request=request,
            )
        else:
            start = request or log.verified_offset - log.verified_offset % log.segment_size
            assert self._handed is not None, "set when it connected"
            self._handed.begin(start)
            is_at_start = request % log.segment_size == 0
            self.progress = SlaveProgress(self.identity, request, start, is_at_start, self.member, self._session)
            self.state = HAConnectionState.TRANSFER
            self.setTimeout(self._times.housekeeping_interval)
            self._port.slave_joined(self, self.progress)
            self._log.info(
                "slave {peer} asks for {offset}, sending from {start}",
                event=Event.SLAVE_TRANSFER_STARTED,
                peer=self.peer,
                offset=request,
                start=start,
            )
            self._heartbeat.start(self._times.heartbeat_interval / 2, now=False).addErrback(self._heartbeat_failed)
            self.log_grew()

    def _acknowledge(self, reports: list[int]) -> None:
        """Check all reports of one read, and act only on the last: a peer may send thousands a second."""
        progress = self._transfer
        assert self._handed is not None, "set when it connected"
        handed = self._handed.offset
        last = progress.reported
        for offset in reports:
            if not last <= offset <= handed:
                self._refuse(
                    Event.SLAVE_REPORT_INVALID,
                    "reports {offset}, which is not between its last report {last} and what was sent, {sent}",
                    offset=offset,
                    last=last,
                    sent=handed,
                )
                return
            last = offset
        if progress.report(last):
            if not self.is_reader:
                self._port.slave_reported(progress)
            if self._sending_is_limited:
                self.log_grew()

    @property
    def _transfer(self) -> SlaveProgress:
        assert self.progress is not None, "set when the transfer started"
        return self.progress

    def _refuse(self, event: Event, reason: str, **facts: object) -> None:
        if self.state is not HAConnectionState.REQUEST or self._port.lines.allows("closed"):
            self._log.warn("slave {peer} " + reason + ": closing", event=event, peer=self.peer, **facts)
        self._close()

    def give_place(self) -> None:
        """Close the connection: it has sent no report, and another one needs its place."""
        if self.transport is None:
            self.state = HAConnectionState.CLOSED  # its TLS handshake is not complete
        else:
            self._refuse(Event.SLAVE_PLACE_TAKEN, "has sent no report yet, and a new connection takes its place")

    def log_grew(self) -> None:
        """Send the part of the log that was not sent yet, until the transport pauses us."""
        while self.state is HAConnectionState.TRANSFER and not self._paused and self._send_some():
            pass

    def holds(self, offset: int) -> bool:
        """Whether its last report is not before ``offset``."""
        return self.progress is not None and self.progress.reported >= offset

    def _send_some(self) -> bool:
        """Send a part of what was not sent yet. Returns whether more may be sent."""
        log, progress = self._commit_log, self._transfer
        start = progress.sent
        ready_bytes = min(self._port.write_size.bytes, log.verified_offset - start)
        if ready_bytes < 0:
            self._refuse(
                Event.SLAVE_AHEAD, "is at {offset}, our log was cut to {end}", offset=start, end=log.verified_offset
            )
        elif self._sending_is_limited:
            ready_bytes = self._allowed(ready_bytes)
        if ready_bytes <= 0:
            return False
        made = self._port.frames.make(start, ready_bytes)
        if made is None:
            self._refuse(
                Event.SLAVE_TOO_OLD,
                "is at {offset}, which was deleted; our log starts at {min}",
                offset=start,
                min=log.min_offset,
            )
            return False
        end, data = made
        progress.send(end)
        self._write(data, (start, end))
        return end < log.verified_offset

    def _allowed(self, ready_bytes: int) -> int:
        """How many of these bytes may be sent now; ``log_grew`` is called when that changes."""
        limit, throttle = self._port.options.limits.bytes_in_flight, self._port.throttle
        if limit is not None and not self.is_reader:  # a reader acknowledges nothing
            ready_bytes = min(ready_bytes, self._transfer.room_bytes(limit))
        return throttle.allowance(self, ready_bytes) if throttle is not None and ready_bytes > 0 else ready_bytes

    def _beat(self) -> None:
        """Send a heartbeat if nothing was written for half an interval and nothing waits to be sent."""
        self.log_grew()
        if self.state is not HAConnectionState.TRANSFER:
            return
        idle = self._clock.seconds() - self._last_write_time
        if not self._paused and idle >= self._times.heartbeat_interval / 2:
            self._write(TRANSFER_HEADER.pack(self._transfer.sent, 0))

    def _write(self, data: bytes, log: tuple[int, int] | None = None) -> None:
        """Write frames of this range of the log, or a heartbeat if it is None."""
        assert self.transport is not None, "only a connected protocol writes"
        assert self._handed is not None, "set when it connected"
        self._handed.will_write(len(data), log)
        self._last_write_time = self._clock.seconds()
        if self._port.throttle is not None:
            self._port.throttle.sent(len(data))
        if len(data) <= WRITTEN_AT_ONCE and not self._paused:
            send_at_once(self.transport, data)
        else:
            self.transport.write(data)

    def pauseProducing(self) -> None:
        self._set_paused(True)

    def resumeProducing(self) -> None:
        self._set_paused(False)
        self.log_grew()

    def stopProducing(self) -> None:
        self._set_paused(True)

    def _set_paused(self, paused: bool) -> None:
        if paused is not self._paused:
            self._paused = paused
            self._port.write_size.paused(1 if paused else -1)

    def timeoutConnection(self) -> None:
        self._refuse(Event.SLAVE_SILENT, "has sent no report for {seconds} s", seconds=self.timeOut)

    def _heartbeat_failed(self, failure: Failure) -> None:
        self._log.failure("heartbeats to {peer} ended", failure, event=Event.HEARTBEATS_FAILED, peer=self.peer)
        self._close()

    def hang_up(self) -> None:
        """Close after the transport has sent its buffer. A slave that does not read times out."""
        if self.state is not HAConnectionState.CLOSED:
            self._stop_sending()
            assert self.transport is not None, "it was connected"
            self.transport.unregisterProducer()  # type: ignore[attr-defined]  # TLS never closes under a producer
            self.transport.loseConnection()

    def _close(self) -> None:
        self._end()
        assert self.transport is not None, "it was connected"
        self.transport.abortConnection()  # type: ignore[attr-defined]  # every stream transport has it

    def _end(self) -> None:
        self._stop_sending()
        self.setTimeout(None)

    def _stop_sending(self) -> None:
        self.state = HAConnectionState.CLOSED
        if self._heartbeat.running:
            self._heartbeat.stop()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._end()
        if self._handed is not None:
            self._handed.stop()
        self._set_paused(False)
        self._paused = True  # a later pauseProducing must not count it again
        if self.progress is not None or self._port.lines.allows("gone"):
            self._log.info(
                "slave {peer} is gone at {ack_offset}: {reason}",
                event=Event.SLAVE_GONE,
                peer=self.peer,
                ack_offset=None if self.progress is None else self.progress.reported,
                reason=reason.getErrorMessage(),
            )
        self._port.slave_gone(self)


class HAMasterFactory(Factory[HAMasterProtocol]):
    """Serves a log to slaves. ``connections`` are those that are open now.

    Each of ``followers`` gets the progress of each slave. The factory also holds what all connections share:
    ``frames``, and the limits that protect them from each other (``places``, ``lines``, ``write_size``, ``throttle``).
    """

    noisy = False
    _log = Logger()

    def __init__(
        self,
        commit_log: ICommitLog,
        clock: IReactorTime,
        options: MasterOptions,
        followers: Sequence[FollowsSlaves] = (),
        check: SlaveCheck | None = None,
    ) -> None:
        self.commit_log = commit_log
        self.clock = clock
        self.options = options
        self.check = check or SlaveCheck(clock)
        self.frames = TransferFrames(commit_log, options.batch_bytes)
        self.places: Places[HAMasterProtocol] = Places(options.limits, clock)
        self.lines = LineLimit(clock, self._tell_lines_left_out)
        self.write_size = WriteSize(WRITE_BYTES, options.batch_bytes)
        self.throttle = SendThrottle(options.max_rate, clock) if options.max_rate is not None else None
        self.connections: list[HAMasterProtocol] = []
        self.refused: Counter[str] = Counter()
        """How many connections were refused, by reason."""
        self._followers = followers
        self.read_policy: InSyncSlaves | SyncMembers | None = None
        """Which slaves must hold a message before consumers may read it, if reads have a limit."""
        self.leadership: Leadership | None = None
        """The node's right to lead a failover cluster, whose members show who they are."""
        self._offered_offset = 0
        self._next_offer: IDelayedCall | None = None
        self._gathered = 0
        """How often the log grew since ``_next_offer`` was scheduled."""
        self._is_crowded = False
        """Whether it grew more than once before the last one."""
        self._unsubscribe = _nothing

    @property
    def sending_is_limited(self) -> bool:
        """Whether a rate or a bound on bytes in flight limits what may be sent."""
        return self.throttle is not None or self.options.limits.bytes_in_flight is not None

    def startFactory(self) -> None:
        self._offered_offset = self.commit_log.verified_offset
        self._unsubscribe = self.commit_log.subscribe(self._log_grew)

    def stopFactory(self) -> None:
        self._unsubscribe()
        self._unsubscribe = _nothing
        if self._next_offer is not None:
            self._next_offer.cancel()
            self._next_offer = None
        self.lines.stop()

    def _log_grew(self) -> None:
        if not self.places.slaves:
            return  # a new slave gets everything from its first report on
        if self._is_urgent:
            self._offer()
            return
        self._gathered += 1
        if self._next_offer is None:
            self._next_offer = self.clock.callLater(self.options.gather_seconds, self._offer_rest)

    @property
    def _is_urgent(self) -> bool:
        """Whether new bytes are sent now: they are many, or a put waits for a slave that has nothing to do.

        If this round or the last one has appended more often, they wait for what else it appends.
        """
        offered = self._offered_offset
        gathers = self.options.gather_seconds > 0
        if self.commit_log.verified_offset - offered >= (GATHERED_BYTES if gathers else AT_ONCE_BYTES):
            return True
        if gathers or self._is_crowded or self._next_offer is not None:
            return False
        return any(slave.holds(offered) for slave in self.places.slaves)

    def _offer_rest(self) -> None:
        self._next_offer = None
        self._is_crowded, self._gathered = self._gathered > 1, 0
        self._offer()

    def _offer(self) -> None:
        self._offered_offset = self.commit_log.verified_offset
        slaves = tuple(self.places.slaves)
        if len(slaves) == 1:
            slaves[0].log_grew()
            return
        with self.frames.shared():
            for slave in slaves:
                slave.log_grew()

    def acknowledged(self) -> dict[str, int]:
        """The last report of each connected slave, by identity; the lowest if several have the same identity."""
        offsets: dict[str, int] = {}
        for connection in self.connections:
            progress = connection.progress
            if progress is not None and not connection.is_reader:
                name = progress.identity
                offsets[name] = min(offsets.get(name, progress.reported), progress.reported)
        return offsets

    def buildProtocol(self, addr: IAddress | None) -> HAMasterProtocol | None:
        host, peer = _peer_name(addr)
        if self.leadership is not None and self.leadership.is_ended:
            self.refused["this node does not lead any more"] += 1
            return None
        if not self.check.may_connect(host):
            self.refused["not in --allow-slaves"] += 1
            return None
        refusal = self.places.refusal(host)
        if refusal is not None:
            self.refused["too many connections"] += 1
            if self.lines.allows("refused"):
                self._log.warn("refusing {peer}: {reason}", event=Event.SLAVE_LIMIT_REACHED, peer=peer, reason=refusal)
            return None
        connection = HAMasterProtocol(self, host, peer)
        self.connections.append(connection)
        self.places.enter(connection)
        return connection

    def _tell_lines_left_out(self, counts: str) -> None:
        self._log.warn(
            "connections without a report, not logged one by one: {counts}", event=Event.SLAVES_COUNTED, counts=counts
        )

    def slave_joined(self, connection: HAMasterProtocol, progress: SlaveProgress) -> None:
        """The connection's first report was accepted."""
        self.places.reported(connection)
        for follower in () if connection.is_reader else self._followers:
            follower.joined(progress)

    def slave_reported(self, progress: SlaveProgress) -> None:
        """A slave has reported a higher offset."""
        for follower in self._followers:
            follower.reported(progress)

    def slave_gone(self, connection: HAMasterProtocol) -> None:
        """The connection has ended."""
        self.connections.remove(connection)
        self.places.leave(connection)
        if self.throttle is not None:
            self.throttle.forget(connection)
        if connection.progress is not None and not connection.is_reader:
            for follower in self._followers:
                follower.forget(connection.progress)

    def sync_facts(self, progress: SlaveProgress | None) -> dict[str, bool]:
        """Whether a slave is in sync, if consumers may read only what slaves in sync hold; else nothing."""
        return {} if self.read_policy is None else {"inSync": self.read_policy.is_in_sync(progress)}

    def close_connections(self) -> None:
        """Close all connections, after what they wait for was sent."""
        if self._next_offer is not None:
            self._next_offer.cancel()
            self._offer_rest()
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.hang_up()


def _nothing() -> None:
    """Nothing is subscribed to."""


def _peer_name(addr: IAddress | None) -> tuple[str, str]:
    """An address's host, and its name in the log."""
    host, port = getattr(addr, "host", None), getattr(addr, "port", None)
    return (str(host), f"{host}:{port}") if host is not None else (str(addr), str(addr))
