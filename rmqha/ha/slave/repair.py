"""Fetches bad bytes of a log again: from the HA port of a master or of a slave, ours or Java's.

Such a connection asks for a range and hangs up. Its only report is the request, which names bytes that the store has
and that were sound: no SYNC_MASTER takes it for the word of a replica that has more.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.application.internet import backoffPolicy
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import connectProtocol
from twisted.internet.interfaces import IDelayedCall, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.protocols.policies import TimeoutMixin
from twisted.python.failure import Failure

from rmqha.ha.framing import TransferReceiver
from rmqha.ha.slave.replica import HEARTBEATS_THAT_PROVE_SILENCE
from rmqha.store.offline.repair import Gap, Mend, Mended, RepairError, StoreRepair
from rmqha.tls.gate import looks_like_tls
from rmqha.wire.transfer import FrameError, Transfer

CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""A master sends a heartbeat each 5 s when it has nothing else."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
SILENT_CONNECTIONS_THAT_PROVE_A_LACK = 4
"""A master of ours closes the connection of whoever asks for what it has deleted."""

InThread = Callable[[Callable[[], Any]], Deferred[Any]]
"""Runs a function elsewhere and gives its result."""


class SourceUnreachable(Exception):
    """The other node does not answer, or stopped answering. It may do so later.

    ``heard`` is false if it took the connection and closed it without a byte.
    """

    heard = True


class RepairProtocol(TransferReceiver, TimeoutMixin):
    """One connection that fetches one gap. ``finished`` fires when all is there, or fails.

    It fails with RepairError, SourceUnreachable or OSError.
    """

    def __init__(self, mend: Mend, clock: IReactorTime, progress: Callable[[int], None]) -> None:
        super().__init__()
        self._mend = mend
        self._clock = clock
        self._progress = progress
        self._next = mend.ask
        self._heartbeats_in_a_row = 0
        self.heard = False
        self.finished: Deferred[None] = Deferred(lambda _: self._hang_up())
        self._over = False

    def callLater(self, period: float, func: Callable[[], None]) -> IDelayedCall:
        return self._clock.callLater(period, func)

    def connectionMade(self) -> None:
        if self._next == 0:
            # Asked for 0, a master sends its last segment. Byte 0 of a log is the high byte of a size: it is zero.
            self._mend.feed(b"\0")
            self._next = 1
        self.setTimeout(SILENCE_SECONDS)
        self.send_report(self._next)

    def dataReceived(self, data: bytes) -> None:
        if self._over:
            return
        self.resetTimeout()
        if not self.heard and looks_like_tls(data):
            self._fail(RepairError("the port speaks TLS: say tls:HOST:PORT"))
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
            raise RepairError(f"it sends {transfer.physic_offset} where {self._next} was asked for")
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
        self._fail(RepairError(f"it is no HA port: {error}"))

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
            what = "the connection is gone" if self.heard else "it closed the connection before it sent anything"
            self._fail(SourceUnreachable(f"{what} ({reason.getErrorMessage()})"))


async def fetch(
    endpoint: IStreamClientEndpoint, clock: IReactorTime, mend: Mend, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Feed a gap from the HA port at ``endpoint``. Raises RepairError, SourceUnreachable, OSError."""
    protocol = RepairProtocol(mend, clock, progress)
    connecting = connectProtocol(endpoint, protocol)
    try:
        await connecting.addTimeout(CONNECT_SECONDS, clock)
    except CancelledError:  # whoever asked has given up
        raise
    except Exception as error:  # whatever kept it from connecting, it may pass
        raise SourceUnreachable(f"cannot connect: {error or type(error).__name__}") from error
    try:
        await protocol.finished
    except SourceUnreachable as error:
        error.heard = protocol.heard
        raise


class SelfRepair:
    """A slave's repair of its own log from its master, before the store can be opened.

    It tries again for as long as the master is away. ``in_thread`` runs what takes long on the disk.
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
        self._backoff = backoffPolicy(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)

    async def run(self) -> list[Mended]:
        """Bring back all that keeps the store from being opened.

        Raises RepairError where the master cannot help, SourceUnreachable after the last attempt that is allowed,
        StoreError, OSError.
        """
        repair: StoreRepair = await self._in_thread(self._open_repair)
        done: list[Mended] = []
        try:
            while gaps := await self._in_thread(repair.find_as_a_start_does):
                if done and gaps[0].start < done[-1].end:
                    raise RepairError(f"what was fetched for {gaps[0].start} did not stay")
                done += [await self._fetch_one(repair, gap) for gap in gaps]
            return done
        finally:  # in its thread, after whatever is still being done there
            await self._in_thread(repair.close)

    async def _fetch_one(self, repair: StoreRepair, gap: Gap) -> Mended:
        failures = unheard = 0
        while True:
            mend: Mend = await self._in_thread(partial(repair.mend, gap))
            try:
                await fetch(self._endpoint, self._clock, mend)
                mended: Mended = await self._in_thread(partial(repair.place, mend))
            except SourceUnreachable as error:
                failures += 1
                unheard = 0 if error.heard else unheard + 1
                await self._wait(gap, failures, unheard, error)
            else:
                self._tell(mended)
                return mended
            finally:
                await self._in_thread(mend.discard)

    async def _wait(self, gap: Gap, failures: int, unheard: int, error: SourceUnreachable) -> None:
        """Wait for the next attempt. Raises if there will be none."""
        if unheard >= SILENT_CONNECTIONS_THAT_PROVE_A_LACK:
            raise RepairError(f"the master closes each connection that asks for {gap.start}: {error}")
        if self._most_attempts is not None and failures >= self._most_attempts:
            raise error
        seconds: float = self._backoff(failures)
        self._log.warn(
            "cannot fetch {start} to {end} from the master: {error}; trying again in {seconds:.0f} s",
            start=gap.start,
            end=gap.end,
            error=str(error),
            seconds=seconds,
        )
        await deferLater(self._clock, seconds)

    def _tell(self, mended: Mended) -> None:
        self._log.warn(
            "repaired the log from {start} to {end} with {messages} messages of the master; {kept}",
            start=mended.start,
            end=mended.end,
            messages=mended.messages,
            kept=f"the bad bytes are kept in {mended.kept_in}" if mended.kept_in else "there were only zeros",
        )
        if mended.wrong_units is None or mended.wrong_units:
            self._log.warn("queues do not agree with the repaired messages: stop the node and run rmqha rebuild")
        if mended.differs_at is not None:
            self._log.warn("beside it, at {at}, the logs differ in bytes that no checksum covers", at=mended.differs_at)
