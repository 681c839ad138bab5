"""Keeps a slave connected to its master, and acts on verdicts."""

import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.ha.admission.throttle import ReceiveThrottle
from rmqha.ha.slave.attempts import Attempts
from rmqha.ha.slave.contact import Contact, iso_of
from rmqha.ha.slave.oncerun import OnceRun
from rmqha.ha.slave.owner import ISlaveOwner
from rmqha.ha.slave.protocol import ConnectionOptions, HASlaveFactory, HASlaveProtocol, IConnectionOwner, SlaveTimes
from rmqha.ha.slave.questions import MasterAccess, MasterQuestions
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
from rmqha.ha.slave.states import COPYING, ReplicaState
from rmqha.ha.slave.verdicts import VerdictReport
from rmqha.kit.connecting import Reconnecting, RetryLines, WatchedEndpoint, reason_of
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.services import PeriodicService
from rmqha.settings.settings import FlushDiskType
from rmqha.store.errors import is_disk_full
from rmqha.store.log.flush import Flusher
from rmqha.store.messagestore import MessageStore

ONCE_CONNECT_ATTEMPTS = 5
ONCE_FRUITLESS_CONNECTIONS = 5
CONTACT_GRACE_SECONDS = 10.0
"""A busy machine may write state.json so late."""


class OnGap(Enum):
    """What to do when the master no longer has the bytes that come next."""

    STOP = "stop"
    RESEED = "reseed"


class OnFork(Enum):
    """What to do when our log and the master's part."""

    STOP = "stop"
    REWIND = "rewind"


class NextStep(Enum):
    """What follows from a verdict."""

    REPORT = "tell where the logs part; a run that ends by itself ends"
    RESEED = "set the log aside, and copy the master's from its start"
    REWIND = "cut the log back to where the logs part, if the node can do that now"


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

    def step_after(self, verdict: Verdict, holds_records: bool) -> NextStep:
        """What follows from a verdict. ``holds_records`` is whether our log has anything to set aside."""
        if isinstance(verdict, Gap) and self.on_gap is OnGap.RESEED and holds_records:
            return NextStep.RESEED
        rewinds_if_ahead = isinstance(verdict, Ahead) and self.on_ahead is OnFork.REWIND
        rewinds_if_diverged = isinstance(verdict, Diverged) and self.on_diverged is OnFork.REWIND
        return NextStep.REWIND if rewinds_if_ahead or rewinds_if_diverged else NextStep.REPORT


_log = Logger()


async def set_log_aside(store: MessageStore, flusher: Flusher, owner: ISlaveOwner) -> None:
    """Set a slave's old files aside, and begin an empty log. Nothing may append meanwhile. Raises OSError."""
    await flusher.drained()
    flusher.flush()  # in its thread: setting aside would flush in the reactor
    await flusher.drained()
    await owner.state_written()  # setting aside writes the new epoch, which a thread must not take back
    old_end = store.commit_log.verified_offset
    aside = store.set_aside(int(time.time() * 1000))
    _log.warn(
        "reseeding: the log up to {old_end} is set aside in {aside}",
        event=Event.LOG_SET_ASIDE,
        old_end=old_end,
        aside=str(aside),
    )


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
        owner: ISlaveOwner,
        clock: IReactorTime,
    ) -> None:
        log, settings = store.commit_log, store.settings
        self._store = store
        self._flusher = flusher
        self._options = options
        self._master = master
        self._owner = owner
        self._clock = clock
        self._sync_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.refusals: Counter[str] = Counter()
        """How many connections ended because of what the master sent, by the error's name."""
        self._last_bytes_time = clock.seconds()
        self.replica = Replica(log, options.start_from, self._state_changed)
        if store.node_state.unproved_from is not None:
            self.replica.doubt(store.node_state.unproved_from)
        self._times = SlaveTimes(
            settings.ha_send_heartbeat_interval_ms / 1000, settings.ha_housekeeping_interval_ms / 1000
        )
        interval = self._times.heartbeat_interval
        self._contact = Contact(self.replica, log, clock, owner, 2 * interval, store.node_state)
        rate = settings.max_ha_receive_bytes_in_second
        self._throttle = ReceiveThrottle(rate, clock) if rate else None
        self._factory = HASlaveFactory(self._make_protocol)
        self._attempts = Attempts(RetryLines(self._log, self._master_name, clock))
        watched = WatchedEndpoint(master.endpoint, self._connect_failed)
        self._client = Reconnecting(watched, self._factory, retryPolicy=self._attempts.delay, clock=clock)
        self._questions = MasterQuestions(master, store, self._contact, self._attempts, self._factory, clock)
        self._once = OnceRun(options.once, store, self.replica, owner, clock)
        self.verdicts = VerdictReport(self._contact, owner, self._once)
        self._looks = PeriodicService("polling the master", interval, self._look, clock, first_after=interval)
        self._stalled_looks = 0
        self._asking: Deferred[None] = succeed(None)
        self._asking_why: Deferred[None] = succeed(None)
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
        return self._attempts.explain(self.replica.state) or self._contact.reason

    @property
    def is_observer(self) -> bool:
        """Whether it never counts as a replica."""
        return self._options.observer

    @property
    def warnings(self) -> list[str]:
        """Warnings for the operator, in any state."""
        return self._questions.warnings

    def _master_name(self) -> str:
        address = self._master.address()
        return "the master" if address is None else f"the master at {address}"

    def _make_protocol(self) -> HASlaveProtocol:
        log, options, is_quiet = self._store.commit_log, self._options, self._attempts.are_quiet
        self._attempts.begin(log.verified_offset)
        behaviour = ConnectionOptions(self._times, options.observer, self._throttle, is_quiet, options.hello)
        return HASlaveProtocol(self.replica, log, self._clock, self, behaviour)

    def startService(self) -> None:
        Service.startService(self)
        self._once.start()
        self._client.startService()
        self._expect_connection()
        self._looks.startService()

    def _expect_connection(self) -> None:
        if self._options.once and self._client.running:
            self._client.whenConnected(failAfterFailures=ONCE_CONNECT_ATTEMPTS).addErrback(self._cannot_connect)

    def _cannot_connect(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            reason = f"cannot connect to the master, {ONCE_CONNECT_ATTEMPTS} times: {reason_of(failure.value)}"
            self._once.finish(ExitCode.CANNOT_CONNECT, reason)

    def _connect_failed(self, failure: Failure) -> None:
        """The HA port cannot be reached. Ask the remoting port why."""
        if failure.check(CancelledError) is not None:
            return
        self._attempts.failed(reason_of(failure.value))
        if self._master.view is not None and self._asking_why.called:
            self._asking_why = Deferred.fromCoroutine(self._ask_why())
            self._asking_why.addErrback(self._look_failed)

    async def _ask_why(self) -> None:
        try:
            await self._questions.ask_why()
        except UnsupportedMaster as misfit:
            self._met(misfit)

    def _met(self, misfit: Misfit) -> None:
        self._questions.met(misfit)
        self._once.finish(ExitCode.USAGE, str(misfit))

    def ask_master(self) -> Deferred[MasterView | None]:
        """What can be learned about the master before the first report."""
        return Deferred.fromCoroutine(self._ask_master())

    async def _ask_master(self) -> MasterView | None:
        if self._options.observer and self.holds_records():
            await self._questions.let_waits_end(self._last_bytes_time)
        view = await self._questions.before_first_report()
        if view is not None:
            self._once.aim_at(view.max_offset)
        return view

    def _look(self) -> None:
        """Compare periodically with what the master's remoting port says. The loop does not wait for the answer."""
        self._once.check()
        self._contact.tell_progress()
        if self._master.view is not None and self._client.running and self._asking.called:
            self._asking = Deferred.fromCoroutine(self._look_once())
            self._asking.addErrback(self._look_failed)
        self._stalled_looks = self._stalled_looks + 1 if self.replica.state is ReplicaState.STALLED else 0
        if self._stalled_looks * self._times.heartbeat_interval >= self._times.housekeeping_interval:
            reason = f"STALLED: {self.replica.lag_bytes} bytes behind, and nothing comes"
            self._once.finish(ExitCode.STALLED, reason)

    def _look_failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self._log.failure("polling the master failed", failure, event=Event.MASTER_POLL_FAILED)

    async def _look_once(self) -> None:
        connection, verified_when_asked = self._factory.connection, self._store.commit_log.verified_offset
        try:
            view = await self._questions.ask(with_segment_size=False)
        except UnsupportedMaster as misfit:
            self._met(misfit)
            return
        if view is not None and connection is not None and connection is self._factory.connection:
            connection.look(view, verified_when_asked)

    def durable_offset(self) -> int:
        log = self._store.commit_log
        return log.durable_offset if self._sync_flush else log.max_offset

    def read_completed(self) -> None:
        """A read has brought data or a heartbeat from the master."""
        if self.replica.unproved_from is None and self._store.node_state.unproved_from is not None:
            self._store.log_proved()
        self._note_agreement()
        self._progressed()
        self._contact.heard()  # last, because puts wait for the report

    def _note_agreement(self) -> None:
        self._store.has_masters_log = self.replica.state in COPYING and self.replica.unproved_from is None

    def _progressed(self) -> None:
        self._last_bytes_time = self._clock.seconds()
        if self._sync_flush:
            self._flusher.flush()
        if self._factory.connection is not None:
            self._factory.connection.report_progress()
        self._once.check()

    def _state_changed(self, state: ReplicaState, reason: str) -> None:
        self._note_agreement()
        self._contact.state_changed(state, reason)
        if not (self._attempts.are_quiet and state in (ReplicaState.HANDSHAKE, ReplicaState.CONNECTING)):
            self._log.info("slave is {state}: {reason}", event=Event.SLAVE_STATE, state=state.name, reason=reason)
        if state in COPYING:
            self._attempts.copy(state is ReplicaState.IN_SYNC)
        self._owner.in_state(state)

    def gave_up(self, failure: Failure) -> None:
        """Our side has ended the connection."""
        error = failure.value
        if isinstance(error, ReplicaError):
            self.refusals[type(error).__name__] += 1
        self._attempts.ended(reason_of(error))
        if isinstance(error, Misfit):
            self._met(error)
        elif isinstance(error, Verdict):
            self._act_on(error)
        elif isinstance(error, ReplicaError):
            if not self._attempts.are_quiet:
                self._log.warn("closing the connection to the master: {reason}", event=error.event, reason=str(error))
        elif isinstance(error, OSError):
            self._disk_refused(error)
        else:
            self._log.failure("closing the connection to the master", failure, event=Event.MASTER_CONNECTION_FAILED)

    def _act_on(self, verdict: Verdict) -> None:
        self.verdicts.tell(verdict)
        self.replica.give_up(verdict)
        step = self._options.step_after(verdict, self.holds_records())
        if step is NextStep.RESEED:
            self._start_reseed()
        elif not (step is NextStep.REWIND and self._owner.rewind()) and not self.verdicts.describe(verdict):
            self._once.finish(verdict.exit_code, f"{verdict.state.name}: {verdict}")

    def ended_by_peer(self, reason: str) -> None:
        """The connection ended, but not from our side."""
        self._attempts.ended(reason)

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
        Deferred.fromCoroutine(self.reseed()).addErrback(self._owner.disk_failed)

    async def reseed(self) -> None:
        """Set the old files aside, and start again with an empty log. Raises OSError."""
        await self._client.stopService()
        await set_log_aside(self._store, self._flusher, self._owner)
        if self.running:
            self._client.startService()
            self._expect_connection()

    def _disk_refused(self, error: OSError) -> None:
        """The log could not be written. If the disk is full, the next connection goes on from here.

        A run that ends by itself (``--once``) ends now.
        """
        if not is_disk_full(error) or self._options.once:
            self._owner.disk_failed(Failure(error))
        elif self._attempts.found_no_room():
            self._log.error(
                "{what} are not written: {error}", event=Event.WAITS_FOR_ROOM, what="copied bytes", error=str(error)
            )

    def connection_lost(self) -> None:
        attempts = self._attempts
        is_cut = True
        try:
            self.replica.connection_lost()
        except OSError as error:
            self._disk_refused(error)
            is_cut = False
        if attempts.take_want_of_room():  # it is not the master's fault that this connection brought little
            if self.running:
                self._clock.callLater(0, self._expect_connection)
            return
        if not is_cut:
            return
        if not self.replica.is_doubt_refused:  # else the next connection asks for later bytes
            attempts.brought(self._store.commit_log.verified_offset)
        self.replica.asks_earlier = attempts.prove_a_gap
        if not self.running:
            return
        if attempts.prove_a_gap and self.replica.is_before_last_segment:
            what = f"the master closed {attempts.fruitless} connections in a row and has a later segment"
            self.gave_up(Failure(Gap(f"{what}: it has deleted the bytes that come next", None)))
        if attempts.fruitless >= ONCE_FRUITLESS_CONNECTIONS:
            self._once.finish(ExitCode.STALLED, f"{attempts.fruitless} connections to the master brought nothing")
        self._clock.callLater(0, self._expect_connection)  # until then ClientService considers itself connected

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        self._looks.stopService()
        self._asking.cancel()
        self._asking_why.cancel()
        self.verdicts.stop()
        self._once.stop()
        stopped: Deferred[None] = self._client.stopService()
        return stopped.addCallback(lambda _: self.replica.stop())
