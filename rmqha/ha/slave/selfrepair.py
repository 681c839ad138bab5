"""Fetches damaged bytes of a log again, from the HA port of a master or a slave, ours or Java's.

Each connection requests a range, receives it and closes. Its only report is the request. The request's offset is one
that the store holds in sound condition, so a SYNC_MASTER cannot mistake it for a replica that holds more.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from twisted.application.internet import backoffPolicy
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.ha.framing import ClockTimeouts, TransferReceiver
from rmqha.ha.slave.replica import HEARTBEATS_THAT_PROVE_SILENCE
from rmqha.kit.connecting import reason_of
from rmqha.kit.events import Event
from rmqha.net.tls.gate import looks_like_tls
from rmqha.store.derived.replacing import doubt, is_doubted, trust
from rmqha.store.offline.storerepair import Gap, Mend, Mended, RepairError, StoreRepair
from rmqha.wire.transfer import FrameError, Transfer

CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""A master sends a heartbeat each 5 s when it has nothing else."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 30.0
SILENT_CONNECTIONS_THAT_PROVE_DELETION = 4
"""Our masters close a connection that requests deleted bytes."""

InThread = Callable[[Callable[[], Any]], Deferred[Any]]
"""Runs a function in another thread and returns its result."""


class SourceUnreachable(Exception):
    """The other node does not answer, or stopped answering. A later attempt may succeed.

    ``heard`` is false if it accepted the connection and closed it without sending a byte.
    """

    heard = True


class Wanted(Protocol):
    """Bytes of another log that are asked for: a gap to be mended, or a range to be compared."""

    done: bool

    @property
    def ask(self) -> int:
        """The offset from which bytes are wanted next."""

    @property
    def end(self) -> int:
        """How far it has come, for the progress."""

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes. Raises RepairError, OSError."""

    def source_ended(self, reason: str) -> None:
        """The other log has no more bytes. Raises RepairError if more are needed."""


class RepairProtocol(TransferReceiver, ClockTimeouts):
    """One connection that fetches one range. ``finished`` fires when the range is complete.

    It fails with RepairError, SourceUnreachable or OSError.
    """

    def __init__(self, mend: Wanted, clock: IReactorTime, progress: Callable[[int], None]) -> None:
        super().__init__()
        self._mend = mend
        self._clock = clock
        self._progress = progress
        self._next = mend.ask
        self._heartbeats_in_a_row = 0
        self.heard = False
        self.finished: Deferred[None] = Deferred(lambda _: self._hang_up())
        self._over = False

    def connectionMade(self) -> None:
        if self._next == 0:
            # A request for 0 makes a master send its last segment. Byte 0 of a log is the high byte of a size, so 0.
            self._mend.feed(b"\0")
            self._next = 1
        self.setTimeout(SILENCE_SECONDS)
        self.send_report(self._next)

    def dataReceived(self, data: bytes) -> None:
        if self._over:
            return
        self.resetTimeout()
        if not self.heard and looks_like_tls(data):
            self._fail(RepairError("the port uses TLS: give the address as tls:HOST:PORT"))
            return
        self.heard = True
        super().dataReceived(data)

    def transfer_received(self, transfer: Transfer) -> None:
        if self._over:
            return
        try:
            self._take(transfer)
        except (RepairError, OSError) as error:
            self._fail(error)
            return
        if self._mend.done:
            self._end()
            self.finished.callback(None)

    def _take(self, transfer: Transfer) -> None:
        if transfer.physic_offset != self._next:
            raise RepairError(f"it sends {transfer.physic_offset}, but {self._next} comes next")
        if not transfer.body:
            self._heartbeats_in_a_row += 1
            if self._heartbeats_in_a_row >= HEARTBEATS_THAT_PROVE_SILENCE:
                self._mend.source_ended("it sends nothing more")
            return
        self._heartbeats_in_a_row = 0
        self._next = transfer.end_offset
        self._mend.feed(transfer.body)
        self._progress(self._mend.end)

    def frame_refused(self, error: FrameError) -> None:
        self._fail(RepairError(f"it is not an HA port: {error}"))

    def timeoutConnection(self) -> None:
        self._fail(SourceUnreachable(f"nothing came for {SILENCE_SECONDS:g} s"))

    def _fail(self, error: Exception) -> None:
        if not self._over:
            self._end()
            self.finished.errback(error)

    def _hang_up(self) -> None:
        if not self._over:
            self._end()

    def _end(self) -> None:
        self._over = True
        self.setTimeout(None)
        if self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]  # every stream transport has it

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._over:
            what = "the connection was lost" if self.heard else "it closed the connection without sending anything"
            self._fail(SourceUnreachable(f"{what} ({reason.getErrorMessage()})"))


async def fetch(
    endpoint: IStreamClientEndpoint, clock: IReactorTime, mend: Wanted, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Fetch a gap, or a range to compare, from the HA port at ``endpoint`` into ``mend``.

    ``progress`` is called with the end of what has arrived. Raises RepairError, SourceUnreachable or OSError.
    """
    protocol = RepairProtocol(mend, clock, progress)
    connecting = connectProtocol(endpoint, protocol)
    try:
        await connecting.addTimeout(CONNECT_SECONDS, clock)
    except CancelledError:  # the caller has given up
        raise
    except Exception as error:  # any failure to connect may be temporary
        raise SourceUnreachable(f"cannot connect: {reason_of(error)}") from error
    try:
        await protocol.finished
    except SourceUnreachable as error:
        error.heard = protocol.heard
        raise


class SelfRepair:
    """Repairs a slave's log from its master, before the store can be opened.

    It retries while the master is unreachable, for at most ``most_attempts`` failures if that is given. ``in_thread``
    runs the slow file work.
    """

    _log = Logger()

    def __init__(
        self,
        open_repair: Callable[[], StoreRepair],
        endpoint: IStreamClientEndpoint,
        clock: IReactorTime,
        in_thread: InThread,
        most_attempts: int | None = None,
    ) -> None:
        self._open_repair = open_repair
        self._endpoint = endpoint
        self._clock = clock
        self._in_thread = in_thread
        self._most_attempts = most_attempts
        self._backoff = backoffPolicy(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)

    async def run(self) -> list[Mended]:
        """Repair all damage that prevents the store from opening.

        Raises RepairError if the master cannot help, SourceUnreachable after the last allowed attempt, StoreError or
        OSError.
        """
        repair: StoreRepair = await self._in_thread(self._open_repair)
        done: list[Mended] = []
        try:
            while gaps := await self._in_thread(repair.find_as_a_start_does):
                if done and gaps[0].start < done[-1].end:
                    raise RepairError(f"the bytes at {gaps[0].start} are bad again after their repair")
                done += [await self._fetch_one(repair, gap) for gap in gaps]
            return done
        finally:  # in the same thread, after any work that is still running there
            await self._in_thread(repair.close)

    async def _fetch_one(self, repair: StoreRepair, gap: Gap) -> Mended:
        failures = unheard = 0
        while True:
            mend: Mend = await self._in_thread(partial(repair.mend, gap))
            try:
                await fetch(self._endpoint, self._clock, mend)
                mended: Mended = await self._in_thread(partial(self._place, repair, mend))
            except SourceUnreachable as error:
                failures += 1
                unheard = 0 if error.heard else unheard + 1
                await self._wait(gap, failures, unheard, error)
            else:
                self._tell(mended)
                return mended
            finally:
                await self._in_thread(mend.discard)

    def _place(self, repair: StoreRepair, mend: Mend) -> Mended:
        """Write the new bytes. If queues do not match them, or this dies, the next start builds them again."""
        disk = repair.log.disk
        did_match = not is_doubted(repair.root, disk)
        doubt(repair.root, disk)
        mended = repair.place(mend)
        if did_match and mended.wrong_units == 0:
            trust(repair.root, disk)
        return mended

    async def _wait(self, gap: Gap, failures: int, unheard: int, error: SourceUnreachable) -> None:
        """Wait before the next attempt. Raises RepairError or ``error`` if no attempt is left."""
        if unheard >= SILENT_CONNECTIONS_THAT_PROVE_DELETION:
            raise RepairError(f"the master closes each connection that asks for {gap.start}: {error}")
        if self._most_attempts is not None and failures >= self._most_attempts:
            raise error
        seconds: float = self._backoff(failures)
        self._log.warn(
            "cannot fetch {start} to {end} from the master: {error}; trying again in {seconds:.0f} s",
            event=Event.LOG_REPAIR_WAITS,
            start=gap.start,
            end=gap.end,
            error=str(error),
            seconds=seconds,
        )
        await deferLater(self._clock, seconds)

    def _tell(self, mended: Mended) -> None:
        self._log.warn(
            "repaired the log from {start} to {end} with {messages} messages from the master; {kept}",
            event=Event.LOG_REPAIRED,
            start=mended.start,
            end=mended.end,
            messages=mended.messages,
            kept=f"the bad bytes are kept in {mended.kept_in}" if mended.kept_in else "there were only zeros",
        )
        if mended.wrong_units != 0:
            self._log.info(
                "queues do not match the repaired messages: they are built again",
                event=Event.LOG_REPAIR_QUEUES_WRONG,
            )
        if mended.differs_at is not None:
            self._log.warn(
                "near it, at {at}, the logs differ in bytes without a checksum",
                event=Event.LOG_REPAIR_DIFFERS,
                at=mended.differs_at,
            )
