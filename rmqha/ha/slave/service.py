"""Keeps a slave connected to its master, acts on verdicts, and decides when a ``--once`` run is done."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial

from twisted.application.internet import backoffPolicy
from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.ha.admission.throttle import ReceiveThrottle
from rmqha.ha.framing import TransferReceiver
from rmqha.ha.slave.contact import Contact, iso_of
from rmqha.ha.slave.protocol import ConnectionOptions, HASlaveFactory, HASlaveProtocol, IConnectionOwner, SlaveTimes
from rmqha.ha.slave.replica import (
    Ahead,
    Diverged,
    Gap,
    MasterView,
    Misfit,
    Replica,
    ReplicaError,
    StartFrom,
    UnsupportedMaster,
    Verdict,
)
from rmqha.ha.slave.states import VERDICTS, ReplicaState
from rmqha.kit.connecting import GROWING_RETRIES, Reconnecting, RetryLines, WatchedEndpoint, connect_protocol, reason_of
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.services import PeriodicService
from rmqha.kit.trouble import Trouble
from rmqha.settings.settings import FlushDiskType
from rmqha.store.errors import is_disk_full
from rmqha.store.log.flush import Flusher
from rmqha.store.messagestore import MessageStore
from rmqha.wire.brokerinfo import settling_seconds
from rmqha.wire.transfer import FrameError, Transfer

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 30.0
ONCE_CONNECT_ATTEMPTS = 5
ONCE_FRUITLESS_CONNECTIONS = 5
FRUITLESS_CONNECTIONS_THAT_PROVE_A_GAP = 4
"""Our masters refuse a request for deleted bytes; Java masters only send heartbeats."""
MISFIT_RETRY_SECONDS = 60.0
"""Between two attempts at a master that cannot be copied as it is: its configuration may change."""
CONTACT_GRACE_SECONDS = 10.0
"""A busy machine may write state.json so late."""
QUEUES_LOOK_SECONDS = 0.1
QUEUES_PROGRESS_SECONDS = 5.0
QUEUES_STUCK_SECONDS = 60.0
"""A ``--once`` run ends if its queues do not grow for this time: the disk may be full."""
ACL_WORDS = ("aclexception", "no accesskey", "accesskey is configured", "acl")
PROBE_TIMEOUT_SECONDS = 8.0
"""If a master's last segment is empty, it answers a probe with a heartbeat, after at most six seconds."""
MORE_QUESTIONS = 2
"""How often a slave without a log asks again in all, if its master does not answer in time."""


class OnGap(Enum):
    """What to do when the master no longer has the bytes that come next."""

    STOP = "stop"
    RESEED = "reseed"


class OnFork(Enum):
    """What to do when our log and the master's part."""

    STOP = "stop"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True)
class SlaveOptions:
    """Options of a slave that are not settings. ``hello`` shows a failover cluster's leader which member it is."""

    start_from: StartFrom = StartFrom()
    on_gap: OnGap = OnGap.STOP
    once: bool = False
    observer: bool = False
    on_diverged: OnFork = OnFork.STOP
    on_ahead: OnFork = OnFork.STOP
    hello: bytes = b""


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


@dataclass(frozen=True, slots=True)
class MasterAccess:
    """How a slave reaches its master.

    ``endpoint`` leads to the HA port. ``view`` asks the remoting port, for the segment size too if it is called with
    True; None if there is no such port. ``address`` gives the address of the HA port, if it is known, for log lines.
    """

    endpoint: IStreamClientEndpoint
    view: Callable[[bool], Awaitable[MasterView]] | None = None
    address: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True)
class SlaveHooks:
    """What a slave calls in the node around it.

    ``finished`` is called with an exit code when a ``--once`` run is done, ``disk_failed`` when a read or write of the
    disk fails, ``in_state`` after each change of state. ``queues_behind`` gives how many bytes of the log are in no
    queue yet, ``wall_clock`` the seconds since 1970. ``rewind`` is called if the log is to be cut back to where it and
    the master's part; it returns false if the node cannot do that now. ``state_written`` fires when no thread writes
    state.json, and none starts to in the same turn of the reactor.
    """

    finished: Callable[[ExitCode, str], None]
    disk_failed: Callable[[Failure], None]
    in_state: Callable[[ReplicaState], None] = lambda _: None
    queues_behind: Callable[[], int] = lambda: 0
    wall_clock: Callable[[], float] = time.time
    rewind: Callable[[], bool] = lambda: False
    state_written: Callable[[], Deferred[None]] = lambda: succeed(None)


@implementer(IConnectionOwner)
class HASlaveService(Service):
    """A slave: its replica, its connection, and the questions it asks on the master's remoting port."""

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        options: SlaveOptions,
        master: MasterAccess,
        hooks: SlaveHooks,
        clock: IReactorTime,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._options = options
        self._endpoint = master.endpoint
        self._view_of_master = master.view
        self._more_questions = MORE_QUESTIONS
        self._told_warning: str | None = None
        self._master_address = master.address
        self._clock = clock
        self._finished = hooks.finished
        self._disk_failed = hooks.disk_failed
        self._in_state = hooks.in_state
        self._queues_behind = hooks.queues_behind
        self._rewind = hooks.rewind
        self._state_written = hooks.state_written
        self._sync_flush = store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._target: int | None = None
        self._fruitless_connections = 0
        self._waits_for_room = False
        self._no_room = Trouble()
        self.refusals: Counter[str] = Counter()
        """How many connections ended because of what the master sent, by the error's name."""
        self._verified_at_connect = -1
        self._remoting_answers = True
        self._settling_seconds: float | None = None
        self._failure, self._failure_is_told = "the connection is gone", False
        self._obstacle: str | None = None
        self._acl_warning: str | None = None
        self._told_verdict: str | None = None
        self._copied_to: int | None = None
        self._queues_look: IDelayedCall | None = None
        self._progress_mark: tuple[float, int] | None = None
        self._last_bytes_time = clock.seconds()
        log = store.commit_log
        self.replica = Replica(log, options.start_from, self._state_changed)
        if store.node_state.unproved_from is not None:
            self.replica.doubt(store.node_state.unproved_from)
        self._times = SlaveTimes(
            store.settings.ha_send_heartbeat_interval_ms / 1000, store.settings.ha_housekeeping_interval_ms / 1000
        )
        self._contact = Contact(
            self.replica, log, clock, hooks.wall_clock, 2 * self._times.heartbeat_interval, store.node_state
        )
        rate = store.settings.max_ha_receive_bytes_in_second
        self._throttle = ReceiveThrottle(rate, clock) if rate else None
        self._factory = HASlaveFactory(self._make_protocol)
        watched = WatchedEndpoint(master.endpoint, self._connect_failed)
        self._client = Reconnecting(watched, self._factory, retryPolicy=self._retry_delay, clock=clock)
        self._retries = RetryLines(self._log, self._master_name, clock)
        self._backoff = backoffPolicy(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        interval = self._times.heartbeat_interval
        self._looks = PeriodicService("polling the master", interval, self._look, clock, first_after=interval)
        self._stalled_looks = 0
        self._asking: Deferred[None] = succeed(None)
        self._asking_why: Deferred[None] = succeed(None)
        self.describe_fork: Callable[[], Awaitable[str]] | None = None
        """Finds where our log and the master's part. Gives a line that names the first record that differs."""
        self._describing: Deferred[None] = succeed(None)
        self._described: str | None = None
        flusher.subscribe(self._progressed)

    @property
    def lag_bytes(self) -> int | None:
        """The bytes from our end to the master's last known end; None if that end is not known."""
        return self._contact.lag_bytes

    @property
    def lag_seconds(self) -> float | None:
        """For how many seconds we have not held the master's whole log; None if that is not known."""
        return self._contact.lag_seconds

    @property
    def last_contact(self) -> str | None:
        """When the master last sent something, in ISO 8601; None for never."""
        return None if self._contact.last_contact is None else iso_of(self._contact.last_contact)

    @property
    def contact_limit(self) -> float:
        """The longest time in seconds between two contacts while we copy: then the connection is given up.

        A node needs some time to write state.json, so that is added.
        """
        return self._times.housekeeping_interval + max(CONTACT_GRACE_SECONDS, 2 * self._times.heartbeat_interval)

    @property
    def since(self) -> str:
        """When the current state started, in ISO 8601."""
        return iso_of(self._contact.since)

    @property
    def reason(self) -> str:
        """Why the slave is in its current state."""
        if self.replica.state in VERDICTS or self.replica.state is ReplicaState.STOPPED:
            return self._contact.reason
        if self._obstacle is not None:
            return self._obstacle
        if self.replica.state is ReplicaState.CONNECTING and self._failure:
            return self._failure
        if self.replica.state is ReplicaState.HANDSHAKE and self._fruitless_connections:
            return f"connected, and waiting for the master; the connection before ended: {self._failure}"
        return self._contact.reason

    @property
    def is_observer(self) -> bool:
        """Whether it never counts as a replica."""
        return self._options.observer

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator, in any state."""
        return [warning for warning in (self._acl_warning, self._told_warning) if warning is not None]

    def _master_name(self) -> str:
        address = self._master_address()
        return "the master" if address is None else f"the master at {address}"

    def _make_protocol(self) -> HASlaveProtocol:
        self._verified_at_connect = self._store.commit_log.verified_offset
        return HASlaveProtocol(
            self.replica,
            self._store.commit_log,
            self._clock,
            self,
            ConnectionOptions(self._times, self._options.observer, self._throttle, self._is_quiet, self._options.hello),
        )

    @property
    def _is_quiet(self) -> bool:
        """Whether enough connections have brought nothing, or the disk is full, so the next one needs no log lines."""
        return self._no_room.lasts or self._fruitless_connections >= GROWING_RETRIES

    def _retry_delay(self, failed_attempts: int) -> float:
        """Back off by failed attempts and by connections that brought nothing, whichever are more."""
        seconds: float = self._backoff(max(failed_attempts, self._fruitless_connections))
        if self._obstacle is not None:
            seconds = max(seconds, MISFIT_RETRY_SECONDS)
        self._retries.retry(self._obstacle or self._failure, seconds, self._failure_is_told)
        self._failure_is_told = False
        return seconds

    def startService(self) -> None:
        Service.startService(self)
        self._client.startService()
        self._expect_connection()
        self._looks.startService()

    def _expect_connection(self) -> None:
        if self._options.once and self._client.running:
            self._client.whenConnected(failAfterFailures=ONCE_CONNECT_ATTEMPTS).addErrback(self._cannot_connect)

    def _cannot_connect(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            reason = f"cannot connect to the master, {ONCE_CONNECT_ATTEMPTS} times: {reason_of(failure.value)}"
            self._finish(ExitCode.CANNOT_CONNECT, reason)

    def _connect_failed(self, failure: Failure) -> None:
        """The HA port cannot be reached. Ask the remoting port why."""
        if failure.check(CancelledError) is not None:
            return
        self._failure = reason_of(failure.value)
        if self._view_of_master is not None and self._asking_why.called:
            self._asking_why = Deferred.fromCoroutine(self._ask_why(self._view_of_master))
            self._asking_why.addErrback(self._look_failed)

    async def _ask_why(self, view_of_master: Callable[[bool], Awaitable[MasterView]]) -> None:
        """Ask the master's remoting port what kind of master it is, and where its log ends."""
        try:
            view = await view_of_master(True)
        except CancelledError:
            raise
        except UnsupportedMaster as misfit:
            self._met(misfit)
        except Exception:  # it does not answer either, so we keep the reason that we have
            pass
        else:
            self._obstacle = None
            self._contact.master_ends_at(view.max_offset)

    def _met(self, misfit: Misfit) -> None:
        """This master cannot be copied with our configuration: log it once, and retry rarely."""
        reason = str(misfit)
        if self._obstacle != reason:
            self._log.error("{reason}", event=Event.MASTER_UNSUITABLE, reason=reason)
        self._obstacle = reason
        self._finish(ExitCode.USAGE, reason)

    def ask_master(self) -> Deferred[MasterView | None]:
        """What can be learned about the master before the first report."""
        return Deferred.fromCoroutine(self._ask_master())

    async def _ask_master(self) -> MasterView | None:
        """Find out about the master before the first report: from its remoting port, or else by a probe of its HA port.

        None if neither answers.
        """
        if self._options.observer and self.holds_records():
            await self._let_waits_end()
        view: MasterView | None = None
        if self._view_of_master is not None:
            view = await self._ask_remoting(partial(self._ask_patiently, self._view_of_master), with_segment_size=True)
        if view is None:
            try:
                view = MasterView(last_segment_offset=await probe_last_segment(self._endpoint, self._clock))
            except CancelledError:  # the connection is gone
                raise
            except Exception as error:  # the connection itself will show what is wrong
                if not self._is_quiet:
                    self._log.info(
                        "the master did not answer a probe of its HA port: {error}",
                        event=Event.MASTER_PROBE_FAILED,
                        error=reason_of(error),
                    )
                self._take_segment_size(None)
                return None
        if self._options.once and self._target is None:
            self._target = view.max_offset
        self._take_segment_size(view.segment_size)
        self._store.adopt_derived_file_settings(view.derived_file_settings)
        return view

    async def _ask_patiently(
        self, view_of_master: Callable[[bool], Awaitable[MasterView]], with_segment_size: bool
    ) -> MasterView:
        """Ask a busy master again if we have no log yet: its answer decides the sizes of our files."""
        while self._more_questions > 0 and not self._store.commit_log.segment_bases:
            self._more_questions -= 1
            with suppress(DeferredTimeoutError):
                return await view_of_master(with_segment_size)
        return await view_of_master(with_segment_size)

    def _take_segment_size(self, size: int | None) -> None:
        """Use the master's segment size, unless ours is configured. None means that the master did not give it."""
        if self._store.settings.mapped_file_size_commit_log is not None:
            return
        if size is not None:
            self._store.adopt_segment_size(size)
        log = self._store.commit_log
        self.replica.knows_segment_size = size is not None or log.verified_offset - log.min_offset > log.segment_size
        if self._acl_warning is not None and not self.replica.knows_segment_size:
            self._log.warn(
                "the master's segment size is not known: using mappedFileSizeCommitLog={size}. If the master has "
                "another size, configure that size here",
                event=Event.SEGMENT_SIZE_UNKNOWN,
                size=log.segment_size,
            )

    async def _let_waits_end(self) -> None:
        """Wait until no producer can be waiting for bytes that we hold, because our first report would confirm them.

        The master says how long its puts wait. If it never has, they may wait as long as ours, or for twice as long.
        """
        view: MasterView | None = None
        if self._view_of_master is not None:
            view = await self._ask_remoting(self._view_of_master, with_segment_size=True)
        if view is not None and view.settling_seconds is not None:
            self._settling_seconds = view.settling_seconds
        quiet_seconds = self._settling_seconds
        if quiet_seconds is None:
            quiet_seconds = max(settling_seconds({}), 2 * self._store.settings.slave_timeout_ms / 1000)
        remaining = self._last_bytes_time + quiet_seconds - self._clock.seconds()
        if remaining > 0:
            await deferLater(self._clock, remaining)

    async def _ask_remoting(
        self, view_of_master: Callable[[bool], Awaitable[MasterView]], with_segment_size: bool
    ) -> MasterView | None:
        try:
            view = await view_of_master(with_segment_size)
        except CancelledError:  # the connection is gone, or the service stops
            raise
        except UnsupportedMaster:
            raise
        except Exception as error:  # without an answer of any kind, we rely on the HA channel
            if self.replica.state is ReplicaState.CONNECTING:
                return None  # the HA port does not answer either, and that is logged already
            if self._remoting_answers:
                self._tell_no_answer(reason_of(error))
            self._remoting_answers = False
            return None
        self._remoting_answers = True
        self._obstacle = self._acl_warning = None
        if with_segment_size and view.warning != self._told_warning:
            self._told_warning = view.warning
            if view.warning is not None:
                self._log.warn("{warning}", event=Event.MASTER_WARNING, warning=view.warning)
        self._contact.master_ends_at(view.max_offset)
        self._contact.heard()
        return view

    def _tell_no_answer(self, reason: str) -> None:
        if not any(word in reason.lower() for word in ACL_WORDS):
            self._log.warn(
                "the master's remoting port does not answer ({error}); using only its HA port",
                event=Event.MASTER_REMOTING_SILENT,
                error=reason,
            )
            return
        self._acl_warning = (
            f"the master's ACL refuses this slave: give it an account (docs/acl.md), or add {self._own_host()} to "
            "globalWhiteRemoteAddresses in the master's conf/plain_acl.yml. Until then the log is copied, but its "
            "topics, groups and offsets are not"
        )
        self._log.warn("{warning} ({error})", event=Event.MASTER_ACL_REFUSES, warning=self._acl_warning, error=reason)

    def _own_host(self) -> str:
        """Our address on the connection to the master."""
        connection = self._factory.connection
        host = None
        if connection is not None and connection.transport is not None:
            host = getattr(connection.transport.getHost(), "host", None)
        return "this machine's address" if host is None else str(host)

    def _look(self) -> None:
        """Compare periodically with what the master's remoting port says. The loop does not wait for the answer."""
        self._check_done()
        self._tell_progress()
        if self._view_of_master is not None and self._client.running and self._asking.called:
            self._asking = Deferred.fromCoroutine(self._look_once(self._view_of_master))
            self._asking.addErrback(self._look_failed)
        self._stalled_looks = self._stalled_looks + 1 if self.replica.state is ReplicaState.STALLED else 0
        if self._stalled_looks * self._times.heartbeat_interval >= self._times.housekeeping_interval:
            self._finish(ExitCode.STALLED, f"STALLED: {self.replica.lag_bytes} bytes behind, and nothing comes")

    def _look_failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("polling the master failed", failure, event=Event.MASTER_POLL_FAILED)

    async def _look_once(self, view_of_master: Callable[[bool], Awaitable[MasterView]]) -> None:
        connection, verified_when_asked = self._factory.connection, self._store.commit_log.verified_offset
        try:
            view = await self._ask_remoting(view_of_master, with_segment_size=False)
        except UnsupportedMaster as misfit:
            self._met(misfit)
            return
        if view is not None and connection is not None and connection is self._factory.connection:
            connection.look(view, verified_when_asked)

    def _tell_progress(self) -> None:
        """While catching up, log how much is left, the rate, and the remaining time."""
        lag, now, end = self.lag_bytes, self._clock.seconds(), self._store.commit_log.verified_offset
        if self.replica.state is not ReplicaState.CATCHING_UP or not lag:
            self._progress_mark = None
            return
        if self._progress_mark is not None and now > self._progress_mark[0]:
            rate = (end - self._progress_mark[1]) / (now - self._progress_mark[0])
            self._log.info(
                "copied up to {end}, {lag} bytes to go, {rate:.1f} MiB/s{left}",
                event=Event.CATCH_UP_PROGRESS,
                end=end,
                lag=lag,
                rate=rate / 2**20,
                left=f", about {lag / rate:.0f} s left" if rate else "",
            )
        self._progress_mark = now, end

    def durable_offset(self) -> int:
        log = self._store.commit_log
        return log.durable_offset if self._sync_flush else log.max_offset

    def read_completed(self) -> None:
        """A read has brought data or a heartbeat from the master."""
        self._contact.heard()
        if self.replica.unproved_from is None and self._store.node_state.unproved_from is not None:
            self._store.log_proved()
        self._progressed()

    def _progressed(self) -> None:
        self._last_bytes_time = self._clock.seconds()
        if self._sync_flush:
            self._flusher.flush()
        if self._factory.connection is not None:
            self._factory.connection.report_progress()
        self._check_done()

    def _check_done(self) -> None:
        reached = self.replica.reportable_offset
        if not self._options.once or self._copied_to is not None or reached is None:
            return
        if self.replica.holds_all or (self._target is not None and reached >= self._target):
            self._copied_to = reached
            self._wait_for_queues(self._queues_behind(), self._clock.seconds(), self._clock.seconds())

    def _wait_for_queues(self, least_behind: int, grown_at: float, told_at: float) -> None:
        """The log is copied: end the run when its queues and index are complete too."""
        self._queues_look = None
        copied = f"holds all up to {self._copied_to}"
        behind, now = self._queues_behind(), self._clock.seconds()
        if behind <= 0 or self._store.commit_log.verified_offset - behind >= (self._copied_to or 0):
            self._finish(ExitCode.FINE, copied)
            return
        if behind < least_behind:
            least_behind, grown_at = behind, now
        elif now - grown_at >= QUEUES_STUCK_SECONDS:
            self._finish(
                ExitCode.IO_ERROR, f"{copied}, but {behind} bytes are missing from the queues, which are stuck"
            )
            return
        if now - told_at >= QUEUES_PROGRESS_SECONDS or now == told_at:
            told_at = now + 1e-9
            self._log.info(
                "{copied}; {behind} bytes are still missing from queues and index",
                event=Event.QUEUES_PROGRESS,
                copied=copied,
                behind=behind,
            )
        self._queues_look = self._clock.callLater(
            QUEUES_LOOK_SECONDS, self._wait_for_queues, least_behind, grown_at, told_at
        )

    def _finish(self, code: ExitCode, reason: str) -> None:
        """End a ``--once`` run; other runs continue."""
        if self._options.once and self.running:
            self._finished(code, reason)

    def _state_changed(self, state: ReplicaState, reason: str) -> None:
        self._contact.state_changed(state, reason)
        if not (self._is_quiet and state in (ReplicaState.HANDSHAKE, ReplicaState.CONNECTING)):
            self._log.info("slave is {state}: {reason}", event=Event.SLAVE_STATE, state=state.name, reason=reason)
        if state is ReplicaState.IN_SYNC:
            self._no_room.ends()
        if state is ReplicaState.IN_SYNC or (state is ReplicaState.CATCHING_UP and not self._no_room.lasts):
            self._retries.connected()
        self._in_state(state)

    def gave_up(self, failure: Failure) -> None:
        """Our side has ended the connection."""
        error = failure.value
        if isinstance(error, ReplicaError):
            self.refusals[type(error).__name__] += 1
        self._failure, self._failure_is_told = reason_of(error), not self._is_quiet
        if isinstance(error, Misfit):
            self._met(error)
        elif isinstance(error, Verdict):
            self._tell_verdict(error)
            self.replica.give_up(error)
            if isinstance(error, Gap) and self._options.on_gap is OnGap.RESEED and self.holds_records():
                self._start_reseed()
            elif not (self._may_rewind(error) and self._rewind()) and not self._describe(error):
                self._finish(error.exit_code, f"{error.state.name}: {error}")
        elif isinstance(error, ReplicaError):
            if not self._is_quiet:
                self._log.warn("closing the connection to the master: {reason}", event=error.event, reason=str(error))
        elif isinstance(error, OSError):
            self._disk_refused(error)
        else:
            self._log.failure("closing the connection to the master", failure, event=Event.MASTER_CONNECTION_FAILED)

    def _describe(self, verdict: Verdict) -> bool:
        """Look for the first record that differs, once for each verdict. False if there is nothing to look for."""
        if not isinstance(verdict, Diverged) or verdict.noticed_at is None or self.describe_fork is None:
            return False
        if self._describing.called and self._described != str(verdict):
            self._describing = Deferred.fromCoroutine(self._describe_verdict(verdict, self.describe_fork))
            self._describing.addErrback(self._look_failed)
        return True

    async def _describe_verdict(self, verdict: Diverged, describe_fork: Callable[[], Awaitable[str]]) -> None:
        self._described, found = str(verdict), str(verdict)
        try:
            found = await describe_fork()
        except CancelledError:
            raise
        except Exception as error:  # of any kind: the verdict stands, but we know less about it
            self._log.warn(
                "the first record that differs is not found: {reason}",
                event=Event.FORK_NOT_FOUND,
                reason=reason_of(error),
            )
            self._described = None
        else:
            if self.replica.state is verdict.state:
                self._contact.reason = found
                self._log.error("{state}: {reason}", event=Event.FORK_FOUND, state=verdict.state.name, reason=found)
                self._in_state(verdict.state)
        self._finish(verdict.exit_code, f"{verdict.state.name}: {found}")

    def _may_rewind(self, verdict: Verdict) -> bool:
        if isinstance(verdict, Ahead):
            return self._options.on_ahead is OnFork.REWIND
        return isinstance(verdict, Diverged) and self._options.on_diverged is OnFork.REWIND

    def _tell_verdict(self, verdict: Verdict) -> None:
        """Log a verdict, but only once while it stays the same. Retries have their own log lines."""
        if self.replica.state is not verdict.state or self._told_verdict != str(verdict):
            self._told_verdict = str(verdict)
            self._log.error(
                "{state}: {reason}", event=Event.SLAVE_VERDICT, state=verdict.state.name, reason=str(verdict)
            )

    def ended_by_peer(self, reason: str) -> None:
        """The connection ended, but not from our side."""
        self._failure, self._failure_is_told = reason, not self._is_quiet

    def holds_records(self) -> bool:
        """Whether the log has anything to set aside. Without it, a reseed would only lead to the same gap."""
        log = self._store.commit_log
        return log.verified_offset > log.min_offset

    def _start_reseed(self) -> None:
        try:
            self._store.check_room()
        except OSError as error:
            self._disk_refused(error)
            return
        Deferred.fromCoroutine(self.reseed()).addErrback(self._disk_failed)

    async def reseed(self) -> None:
        """Set the old files aside, and start again with an empty log. Raises OSError."""
        await self._client.stopService()
        await self._flusher.drained()
        self._flusher.flush()  # in its thread: setting aside would flush in the reactor
        await self._flusher.drained()
        await self._state_written()  # setting aside writes the new epoch, which a thread must not take back
        old_end = self._store.commit_log.verified_offset
        aside = self._store.set_aside(int(time.time() * 1000))
        self._log.warn(
            "reseeding: the log up to {old_end} is set aside in {aside}",
            event=Event.LOG_SET_ASIDE,
            old_end=old_end,
            aside=str(aside),
        )
        if self.running:
            self._client.startService()
            self._expect_connection()

    def _disk_refused(self, error: OSError) -> None:
        """The log could not be written. If the disk is full, the next connection goes on from here.

        A run that ends by itself (``--once``) ends now.
        """
        if not is_disk_full(error) or self._options.once:
            self._disk_failed(Failure(error))
            return
        self._waits_for_room = True
        if self._no_room.begins():
            self._log.error(
                "{what} are not written: {error}", event=Event.WAITS_FOR_ROOM, what="copied bytes", error=str(error)
            )

    def connection_lost(self) -> None:
        try:
            self.replica.connection_lost()
        except OSError as error:
            self._disk_refused(error)
            if not self._waits_for_room:
                return
        if self._waits_for_room:  # it is not the master's fault that this connection brought little
            self._waits_for_room = False
            if self.running:
                self._clock.callLater(0, self._expect_connection)
            return
        brought_nothing = self._store.commit_log.verified_offset == self._verified_at_connect
        if not self.replica.is_doubt_refused:  # the next connection asks for later bytes
            self._fruitless_connections = self._fruitless_connections + 1 if brought_nothing else 0
        self.replica.asks_earlier = self._fruitless_connections >= FRUITLESS_CONNECTIONS_THAT_PROVE_A_GAP
        if not self.running:
            return
        if self._fruitless_connections >= FRUITLESS_CONNECTIONS_THAT_PROVE_A_GAP and self._is_before_last_segment():
            what = f"the master closed {self._fruitless_connections} connections in a row and has a later segment"
            self.gave_up(Failure(Gap(f"{what}: it has deleted the bytes that come next", None)))
        if self._fruitless_connections >= ONCE_FRUITLESS_CONNECTIONS:
            reason = f"{self._fruitless_connections} connections to the master brought nothing"
            self._finish(ExitCode.STALLED, reason)
        self._clock.callLater(0, self._expect_connection)  # until then ClientService considers itself connected

    def _is_before_last_segment(self) -> bool:
        """Whether a probe has shown that the master's last segment starts after our end."""
        last = self.replica.master.last_segment_offset
        return last is not None and last > self._store.commit_log.verified_offset

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        self._looks.stopService()
        self._asking.cancel()
        self._asking_why.cancel()
        self._describing.cancel()
        if self._queues_look is not None:
            self._queues_look.cancel()
            self._queues_look = None
        stopped: Deferred[None] = self._client.stopService()
        return stopped.addCallback(lambda _: self.replica.stop())
