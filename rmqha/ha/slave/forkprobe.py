"""Finds where our log parts from a master's, over the HA conversation (spec/ha.md 4): any master's, Java's too.

Each comparison is a connection of its own that asks for a range and hangs up. To a Java SYNC_MASTER the place that it
asks for is also a word that all before it was copied. So nothing after the master's end is asked for, and a Java
master's end counts only when all puts that may wait for it have ended.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.task import deferLater

from rmqha.ha.slave.probe import probe_last_segment
from rmqha.ha.slave.selfrepair import SourceUnreachable, fetch
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.offline.fork import Compared, Fork, OtherLog, Run, find_fork, run_here
from rmqha.store.offline.storerepair import RepairError
from rmqha.wire.brokerinfo import MasterRange, settling_seconds
from rmqha.wire.transfer import FrameError


@dataclass(frozen=True, slots=True)
class OurLog:
    """A log whose sound records end at ``end``. From ``doubted_from`` on all of it is compared (``find_fork``)."""

    log: CommitLog
    end: int
    doubted_from: int | None = None


class ComparedRange:
    """A range of our log that the bytes of another one are held against, as they come."""

    def __init__(self, log: CommitLog, start: int, end: int) -> None:
        self._commit_log = log
        self.end = start
        self._limit = end
        self.differs_at: int | None = None
        self.done = start >= end

    @property
    def ask(self) -> int:
        """The offset from which bytes are wanted next."""
        return self.end

    def feed(self, data: bytes | memoryview) -> None:
        """Compare these bytes. Raises OSError."""
        view = memoryview(data)
        while view and not self.done:
            ours = self._commit_log.get_data(self.end, min(len(view), self._limit - self.end))
            assert ours is not None, "our log holds the range"
            if ours != view[: len(ours)]:
                self.differs_at = self.end + next(at for at, byte in enumerate(ours) if byte != view[at])
                self.end, self.done = self.differs_at, True
                return
            self.end += len(ours)
            view = view[len(ours) :]
            self.done = self.end >= self._limit

    def source_ended(self, reason: str) -> None:
        """The other log ends here: so does the comparison."""
        self.done = True


async def find_fork_with_master(
    ours: OurLog,
    master: IStreamClientEndpoint,
    ask_range: Callable[[], Awaitable[MasterRange]] | None,
    clock: IReactorTime,
    notice: Callable[[str], None] = lambda _: None,
    run: Run = run_here,
) -> Fork:
    """Where our log parts from that of the master.

    ``ask_range`` asks the master's remoting port; without it the master's last segment is compared from its start, and
    what the master has before it as far as a proof needs it. ``notice`` is called with a line for people if something
    takes long. ``run`` runs what reads a whole segment.

    Raises NothingInCommon, SourceUnreachable, RepairError if the port is not an HA port, StoreError, what ``ask_range``
    raises, OSError.
    """
    if ask_range is not None:
        theirs = await ask_range()
        their_min, their_end, settling = theirs.min, theirs.end, theirs.settling_seconds
    else:
        their_min, their_end, settling = await _last_segment(master, clock), None, settling_seconds({})
    if ask_range is None or not theirs.is_ours:
        notice(f"waiting {settling:.0f} s: a Java master may take our questions for a replica's reports")
        await deferLater(clock, settling)

    async def compare(start: int, end: int) -> Compared:
        wanted = ComparedRange(ours.log, start, end)
        while not wanted.done:
            before = wanted.end
            try:
                await fetch(master, clock, wanted)
            except SourceUnreachable as error:
                if error.heard and wanted.end > before:
                    continue  # a master hangs up on one that has reported nothing for haHousekeepingInterval
                if error.heard or their_end is not None or start >= their_min:
                    raise
                return Compared(None, start)  # one of our masters closes a connection that asks for deleted bytes
        return Compared(wanted.differs_at, wanted.end)

    other = OtherLog(their_min, their_end, compare)
    return await find_fork(ours.log, ours.end, other, run, ours.doubted_from)


async def _last_segment(master: IStreamClientEndpoint, clock: IReactorTime) -> int:
    """Where the master's last segment begins. Raises SourceUnreachable, RepairError."""
    try:
        return await probe_last_segment(master, clock)
    except CancelledError:  # the caller has given up
        raise
    except FrameError as error:
        raise RepairError(f"it is not an HA port: {error}") from error
    except Exception as error:  # any failure to connect may be temporary
        raise SourceUnreachable(f"cannot connect: {error or type(error).__name__}") from error
