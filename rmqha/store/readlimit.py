"""Where reads end: at the confirmed end of the log, if ``readUpTo=confirmed``.

A master confirms what its slaves hold (``rmqha.ha.master.insyncslaves``), a slave what its master says. Everything that
consumers see asks the ``ReadLimit``, through the ``MessageReader``. A message that is in the log but not confirmed yet
is waited for here, so that a growing log wakes nobody.
"""

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from pathlib import Path
from time import perf_counter

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from rmqha.kit.threads import Failed
from rmqha.store.interfaces import Call, ICommitLog
from rmqha.store.log.mappedfile import Disk
from rmqha.store.nodestate import NODE_FOLDER, NodeState

LIMIT_FILE = "read-limit"
DIGITS = 20
"""The offset in the file has this many digits, so each write replaces the one before it completely."""
TURN_SECONDS = 0.004
"""How long waits are woken in one reactor turn."""
MIN_DEAD_WAITS = 1024
NO_LIMIT = 2**63 - 1


class Wait:
    """A wait for the limit to reach ``offset``. ``call`` is None when it is over, or cancelled."""

    __slots__ = ("_limit", "call", "offset")

    def __init__(self, limit: "ReadLimit", offset: int, call: Call) -> None:
        self._limit = limit
        self.offset = offset
        self.call: Call | None = call

    def __lt__(self, other: "Wait") -> bool:
        return self.offset < other.offset

    def cancel(self) -> None:
        """Wait no more. Does nothing if the wait is over."""
        if self.call is not None:
            self.call = None
            self._limit.cancelled()


class LimitFile:
    """Keeps the limit over a restart, in ``<store>/rmqha/read-limit``.

    A write only reaches the page cache: it outlives the process. state.json has the same number, at most a second
    older, and outlives a loss of power. A store without this file has served all of its log.
    """

    def __init__(self, store: Path) -> None:
        self._path = store / NODE_FOLDER / LIMIT_FILE
        self._fd: int | None = None
        self._close: weakref.finalize[..., object] | None = None

    def read(self) -> int | None:
        """The limit; None without a file. An unreadable number counts as 0. Raises OSError."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        text = content.strip()
        return int(text) if text.isdigit() and len(text) <= DIGITS else 0

    def write(self, offset: int) -> None:
        """Replace the number. Raises OSError."""
        created = self._fd is None and not self._path.exists()
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._close = weakref.finalize(self, os.close, self._fd)
        os.pwrite(self._fd, b"%0*d\n" % (DIGITS, offset), 0)
        if created:
            os.fsync(self._fd)

    def remove(self) -> None:
        """From now on all of the log is served. Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file. It also closes once nothing refers to this object."""
        if self._close is not None:
            self._close()
        self._fd = None


class ReadLimit:
    """Reads end at ``offset``: no failover takes back what is before it. It decreases only if the log is cut.

    ``why`` says why it does not grow; its owner sets it. ``save`` is called with each new limit, before anybody reads
    up to it.
    """

    def __init__(self, clock: IReactorTime, offset: int, save: Callable[[int], None] = lambda offset: None) -> None:
        self._clock = clock
        self._save = save
        self._waits: list[Wait] = []
        self._dead = 0
        self._waking: IDelayedCall | None = None
        self.offset = offset
        self.grown_at = clock.seconds()
        """When it grew last, by the clock."""
        self.why: Callable[[], str] = lambda: "no slave is known yet"

    def __len__(self) -> int:
        return len(self._waits) - self._dead

    @property
    def is_lifted(self) -> bool:
        """Whether an operator has lifted it: reads end at the log's end then."""
        return self.offset == NO_LIMIT

    def grow(self, offset: int) -> None:
        """Everything before ``offset`` is confirmed. A lower offset than before changes nothing. Raises OSError."""
        if offset <= self.offset:
            return
        self._save(offset)
        self.offset = offset
        self.grown_at = self._clock.seconds()
        if self._waits and self._waits[0].offset <= offset and self._waking is None:
            self._waking = self._clock.callLater(0, self._wake)

    def take_back(self, offset: int) -> None:
        """The log was cut at ``offset``. Other bytes may follow there. Raises OSError."""
        if offset < self.offset != NO_LIMIT:
            self._save(offset)
            self.offset = offset

    def wait(self, offset: int, call: Call) -> Wait:
        """Call ``call`` once, in a later reactor turn, when the limit has reached ``offset``."""
        wait = Wait(self, offset, call)
        heappush(self._waits, wait)
        if offset <= self.offset and self._waking is None:
            self._waking = self._clock.callLater(0, self._wake)
        return wait

    def reached(self, offset: int) -> Deferred[None]:
        """Fires when the limit has reached ``offset``; at once if it has. It can be cancelled."""
        waits: list[Wait] = []
        done: Deferred[None] = Deferred(lambda _: waits[0].cancel())
        if offset <= self.offset:
            done.callback(None)
        else:
            waits.append(self.wait(offset, lambda: done.callback(None)))
        return done

    def cancelled(self) -> None:
        """A wait was cancelled. Very many of them are removed together."""
        self._dead += 1
        if self._dead > max(MIN_DEAD_WAITS, len(self._waits) // 2):
            self._waits = [wait for wait in self._waits if wait.call is not None]
            heapify(self._waits)
            self._dead = 0

    def _wake(self) -> None:
        """Call those whose offset is reached, oldest first: as many as fit a turn, then the others."""
        self._waking = None
        end = perf_counter() + TURN_SECONDS
        while self._waits and self._waits[0].offset <= self.offset:
            wait = heappop(self._waits)
            call, wait.call = wait.call, None
            if call is None:
                self._dead -= 1
                continue
            call()
            if perf_counter() > end:
                break
        if self._waking is None and self._waits and self._waits[0].offset <= self.offset:
            self._waking = self._clock.callLater(0, self._wake)

    def stop(self) -> None:
        """Wake nobody any more."""
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._waits.clear()
        self._dead = 0


class LimitedReads:
    """Where reads of an open store end, and how that outlives the process. ``failed`` is called if it cannot."""

    def __init__(self, root: Path, log: ICommitLog, disk: Disk, failed: Failed) -> None:
        self._root = root
        self._commit_log = log
        self._disk = disk
        self._failed = failed
        self._file = LimitFile(root)
        self.limit: ReadLimit | None = None

    def _kept(self, state: NodeState) -> int | None:
        """Where reads ended when the node stopped; None if they had no limit. Raises OSError."""
        kept = (self._file.read(), state.read_limit)
        return max((offset for offset in kept if offset is not None), default=None)

    def confirmed(self, state: NodeState) -> int:
        """``MessageStore.confirmed_without_node``. Raises OSError."""
        log, kept = self._commit_log, self._kept(state)
        return log.verified_offset if kept is None else max(log.min_offset, min(log.verified_offset, kept))

    def settled(self, state: NodeState) -> NodeState:
        """Lower the limit in state.json to the end of a log that was cut since. Raises OSError."""
        kept, start = self._kept(state), self.confirmed(state)
        if kept is not None and kept > start:  # other bytes may come after the cut: the old number is not for them
            state = replace(state, read_limit=start)
            state.write(self._root, self._disk)
        return state

    def begin(self, clock: IReactorTime, state: NodeState) -> ReadLimit:
        """``MessageStore.limit_reads``, with a ``settled`` state. Raises OSError."""
        start = self.confirmed(state)
        self._file.write(start)
        self.limit = ReadLimit(clock, start, self._save)
        return self.limit

    def _save(self, offset: int) -> None:
        try:
            self._file.write(offset)
        except OSError:
            self._failed(Failure())

    def lift(self) -> None:
        """``MessageStore.lift_read_limit``. Raises OSError."""
        if self.limit is not None:
            self.limit.grow(NO_LIMIT)
        self._file.remove()

    def take_back(self, offset: int) -> None:
        """The log was cut at ``offset``. Raises OSError."""
        if self.limit is not None:
            self.limit.take_back(offset)

    def close(self) -> None:
        """Wake nobody any more."""
        if self.limit is not None:
            self.limit.stop()
        self._file.close()
