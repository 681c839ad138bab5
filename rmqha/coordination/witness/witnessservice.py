"""Puts the calls of all clients in order, and commits them together.

While one entry of the journal is on its way to the disk, further calls wait; then all that wait are decided one after
the other, and their operations make the next entry. A call is answered only after that entry is on the disk, reads
too: they may have seen what is not on the disk yet. Only a keepalive is answered at once, because it changes no key.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.coordination.interface import Change, CoordinatorError, CoordinatorRefused, CoordinatorUnavailable
from rmqha.coordination.state import Compacted, History, KeysAndLeases, Operation
from rmqha.coordination.witness.journal import DiskFull, Journal, JournalError
from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.threads import RunInThread

SLICE_SECONDS = 0.01
"""Calls are decided for about this long in a turn."""
TICK_SECONDS = 0.5
PAUSE_SECONDS = 2.0
"""A process that did not run for this long could not take keepalives."""
PROGRESS_TICKS = 4
"""A watch hears at least so often how far it is."""
MAX_WAITING = 1000
MAX_WATCHES = 512
FULL = "The disk of the witness is full: it cannot write. Make room."

Answer = TypeVar("Answer")


def boot_seconds() -> float:
    """Seconds since the start of the machine. They go on while it sleeps, and nobody can set them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Commit:
    """The state, for the calls that are decided together."""

    def __init__(self, state: KeysAndLeases, now: float, is_writable: bool) -> None:
        self.state = state
        self.now = now
        self.operations: list[Operation] = []
        self.changes: list[tuple[int, tuple[Change, ...]]] = []
        self.before: KeysAndLeases | None = None
        self._is_writable = is_writable

    def do(self, operation: Operation) -> None:
        """Do what was decided. Raises CoordinatorRefused if nothing can be written."""
        if not self._is_writable:
            raise CoordinatorRefused(FULL)
        if self.before is None:
            self.before = self.state.copy()
        changes = self.state.apply(operation, self.now)
        self.operations.append(operation)
        if changes:
            self.changes.append((self.state.revision, changes))


Decide = Callable[[Commit], Answer]
"""Decides a call: what it does, and its answer. Raises CoordinatorError."""


@dataclass(frozen=True, slots=True)
class _Call:
    decide: Decide[object]
    answered: Deferred[object]


class Watcher(Protocol):
    """Gets the changes of a watch."""

    def changed(self, revision: int, changes: tuple[Change, ...]) -> None:
        """The changes of one revision."""

    def progress(self, revision: int) -> None:
        """All changes up to this revision were told."""

    def ended(self, compacted: int) -> None:
        """The watch is over: the changes up to ``compacted`` are gone before they were told; 0: the witness fails."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes more now."""


class Watch:
    """One watch: how far its client has been told."""

    def __init__(self, prefix: str, revision: int, watcher: Watcher) -> None:
        self.prefix = prefix
        self.revision = revision
        self.watcher = watcher
        self.silent_ticks = 0

    def pump(self, history: History, revision: int) -> bool:
        """Tell what is new, as far as the client takes it. Returns False when the watch is over."""
        try:
            changes = history.after(self.revision, self.prefix)
        except Compacted:
            self.watcher.ended(history.compacted)
            return False
        for at, found in changes:
            if not self.watcher.is_ready:
                return True
            self.watcher.changed(at, found)
            self.revision, self.silent_ticks = at, 0
        self.revision = max(self.revision, revision)
        return True


class WitnessService(Service):
    """The witness's state, its journal and its timers."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        folder: Path,
        run_in_thread: RunInThread,
        boot_seconds: Callable[[], float] = boot_seconds,
    ) -> None:
        """Open the journal. Raises JournalError, OSError."""
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._boot_seconds = boot_seconds
        self._journal = Journal(folder)
        self.cluster_id = self._journal.cluster_id
        self.state = self._journal.state
        self._seen = boot_seconds()
        self.state.start_leases(self._seen)
        self._history = History(self.state.revision)
        self._committed = self.state.revision
        self._calls: deque[_Call] = deque()
        self._committing: Deferred[None] | None = None
        self._turn: IDelayedCall | None = None
        self._is_full = False
        self._may_write = True
        self.failure: str | None = None
        """Why it answers nothing any more; None while it works."""
        self._watches: dict[Watch, None] = {}
        self._ticks = PeriodicService("the witness's leases", TICK_SECONDS, self._tick, clock)
        self._tell_opening(folder)

    def _tell_opening(self, folder: Path) -> None:
        cut = self._journal.cut
        if cut is not None:
            self._log.warn(
                "the last entry of the witness's journal was not written as a whole: kept in {kept}, and cut",
                event=Event.WITNESS_TAIL_CUT,
                kept=str(cut.kept),
            )
        if self._journal.renewed is not None:
            self._log.error(
                "the journal of the witness is older than what was answered ({reason}): it goes on as another cluster",
                event=Event.WITNESS_RENEWED,
                reason=self._journal.renewed,
            )
        if self._journal.is_new:
            self._log.warn(
                "the witness begins in {folder} as a new cluster, without keys",
                event=Event.WITNESS_CREATED,
                folder=str(folder),
            )
        else:
            self._log.info(
                "the witness has {keys} keys and {leases} leases, revision {revision}",
                event=Event.WITNESS_OPENED,
                keys=len(self.state.keys),
                leases=len(self.state.leases),
                revision=self.state.revision,
            )

    def startService(self) -> None:
        Service.startService(self)
        self._ticks.startService()

    def stopService(self) -> Deferred[None]:
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._ticks.stopService()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._fail_all("The witness stops.")
        if self._committing is not None:
            await self._committing
        self._journal.close()

    @property
    def watch_count(self) -> int:
        """How many watches there are."""
        return len(self._watches)

    @property
    def revision(self) -> int:
        """The revision that is on the disk."""
        return self._committed

    def ask(self, decide: Decide[Answer]) -> Deferred[Answer]:
        """Decide a call in its turn. Fires when what it did, and what it has seen, is on the disk.

        Fails with CoordinatorError.
        """
        answered: Deferred[Answer] = Deferred()
        if self.failure is not None:
            answered.errback(CoordinatorUnavailable(self.failure))
        elif len(self._calls) >= MAX_WAITING or not self.running:
            answered.errback(CoordinatorUnavailable("The witness has too many requests, or stops."))
        else:
            self._calls.append(_Call(decide, answered))  # type: ignore[arg-type]  # each call has its own answer
            self._soon()
        return answered

    def keep_alive(self, lease: int) -> int:
        """The lease's time starts anew. Returns its ttl. Raises CoordinatorError."""
        if self.failure is not None:
            raise CoordinatorUnavailable(self.failure)
        return self.state.keep_alive(lease, self._now())

    def time_to_live(self, lease: int) -> tuple[int, int]:
        """For how many seconds the lease lives, and its ttl. Raises CoordinatorError."""
        if self.failure is not None:
            raise CoordinatorUnavailable(self.failure)
        return self.state.time_to_live(lease, self._now()), self.state.leases[lease]

    def new_lease(self) -> int:
        """An id that no lease had before, of this witness or of another one."""
        return secrets.randbits(62) + 1

    def _now(self) -> float:
        """The time of leases. Nobody could keep one alive while this process did not run."""
        now = self._boot_seconds()
        pause = now - self._seen
        self._seen = now
        if pause > PAUSE_SECONDS and self.running:
            self._log.warn(
                "the witness did not run for {seconds:.1f} s: leases end later by this time",
                event=Event.WITNESS_PAUSED,
                seconds=pause,
            )
            self.state.prolong(pause)
        return now

    def _tick(self) -> None:
        now = self._now()
        self._may_write = True
        end = self.state.next_end
        if end is not None and end <= now:
            self._soon()
        for watch in list(self._watches):
            watch.silent_ticks += 1
            if watch.silent_ticks >= PROGRESS_TICKS and watch.watcher.is_ready:
                watch.silent_ticks = 0
                watch.watcher.progress(watch.revision)

    def _soon(self) -> None:
        if self._turn is None and self._committing is None and self.failure is None:
            self._turn = self._clock.callLater(0, self._commit)

    def _commit(self) -> None:
        """Decide calls for a while, and bring what they did to the disk."""
        self._turn = None
        commit = Commit(self.state, self._now(), self._may_write)
        decided: list[tuple[_Call, object]] = []
        started = self._clock.seconds()
        for end in self.state.overdue(commit.now) if self._may_write else ():
            commit.do(end)
            if self._clock.seconds() - started >= SLICE_SECONDS:
                break  # the next tick ends more of them
        while self._calls and self._clock.seconds() - started < SLICE_SECONDS:
            call = self._calls.popleft()
            try:
                decided.append((call, call.decide(commit)))
            except CoordinatorError:
                decided.append((call, Failure()))
            except Exception:  # a bug in one call is not the others' fault
                self._log.failure("a call of the witness failed", event=Event.HTTP_REQUEST_FAILED)
                decided.append((call, Failure(CoordinatorUnavailable("A bug: the log of the witness says why."))))
        if not commit.operations:
            self._answer(decided)
            return
        write = partial(self._journal.append, commit.operations, self.state.revision)
        self._committing = self._run_in_thread(write)
        self._committing.addCallbacks(
            lambda _: self._written(commit, decided), lambda failure: self._not_written(commit, decided, failure)
        )

    def _answer(self, decided: list[tuple[_Call, object]]) -> None:
        for call, answer in decided:
            call.answered.callback(answer)
        if self._calls:
            self._soon()

    def _written(self, commit: Commit, decided: list[tuple[_Call, object]]) -> None:
        self._committing = None
        for revision, changes in commit.changes:
            self._history.add(revision, changes)
        self._committed = self.state.revision
        if self._is_full:
            self._is_full = False
            self._log.info("the witness writes its journal again", event=Event.WITNESS_DISK_WORKS)
        if self._journal.is_long:
            self._rotate()
        self._answer(decided)
        if commit.changes:
            for watch in list(self._watches):
                self.pump(watch)

    def _rotate(self) -> None:
        """Replace the journal by a shorter one; no call is decided meanwhile."""
        rotating = self._run_in_thread(partial(self._journal.rotate, self.state.copy()))

        def ended(result: object) -> None:
            self._committing = None
            if isinstance(result, Failure) and result.check(JournalError):
                self._fail(result, [])
            elif isinstance(result, Failure):
                self._log.warn(
                    "the journal of the witness cannot be replaced by a shorter one: {reason}",
                    event=Event.WITNESS_JOURNAL_LONG,
                    reason=result.getErrorMessage(),
                )
            self._soon()

        self._committing = rotating
        rotating.addBoth(ended)

    def _not_written(self, commit: Commit, decided: list[tuple[_Call, object]], failure: Failure) -> None:
        self._committing = None
        assert commit.before is not None, "it has operations"
        if failure.check(DiskFull) is None:
            self._fail(failure, decided)
            return
        commit.before.keep_later_ends(self.state)
        self.state = commit.before
        self._calls.extendleft(call for call, _ in reversed(decided))
        self._may_write = False  # until the next tick
        if not self._is_full:
            self._is_full = True
            self._log.error(
                "the witness cannot write its journal: {reason}",
                event=Event.WITNESS_DISK_FULL,
                reason=failure.getErrorMessage(),
            )
        self._soon()

    def _fail(self, failure: Failure, decided: list[tuple[_Call, object]]) -> None:
        """The disk has failed: nobody knows what it has. Answer nothing from now on."""
        self.failure = (
            f"The disk of the witness fails ({failure.getErrorMessage()}). Look after it, and start the process again."
        )
        self._log.failure("the disk of the witness fails", failure, event=Event.WITNESS_FAILED)
        self._calls.extendleft(call for call, _ in reversed(decided))
        self._fail_all(self.failure)
        for watch in list(self._watches):
            self.forget(watch)
            watch.watcher.ended(0)

    def _fail_all(self, reason: str) -> None:
        calls, self._calls = self._calls, deque()
        for call in calls:
            call.answered.errback(CoordinatorUnavailable(reason))

    def watch(self, prefix: str, revision: int, watcher: Watcher) -> Watch:
        """Tell the changes after ``revision``, from the next call of ``pump`` on. Raises CoordinatorError."""
        if self.failure is not None:
            raise CoordinatorUnavailable(self.failure)
        if len(self._watches) >= MAX_WATCHES:
            raise CoordinatorRefused(f"There are {MAX_WATCHES} watches already.")
        watch = Watch(prefix, revision, watcher)
        self._watches[watch] = None
        return watch

    def pump(self, watch: Watch) -> None:
        """Tell what a watch has not heard: it has just begun, or its client reads again."""
        if watch in self._watches and not watch.pump(self._history, self._committed):
            self.forget(watch)

    def forget(self, watch: Watch) -> None:
        """The watch is over."""
        self._watches.pop(watch, None)
