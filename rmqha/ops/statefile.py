"""Keeps ``<store>/rmqha/state.json`` current: it is written soon after a change of state, or else once a second."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.threads import RunInThread
from rmqha.kit.trouble import Trouble
from rmqha.store.errors import is_disk_full
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodestate import NodeState

WRITE_INTERVAL_SECONDS = 1.0


class StateFileService(Service):
    """Writes ``current()`` when it has changed. ``failed`` is called with the error if the disk fails.

    While the disk is full, it tries again each second, and the file stays as it was.

    Offsets change all the time, and are written once a second. ``write_soon`` is for changes that are also logged, so
    that the file is not older than the log except for the time of the write. One write runs at a time.
    """

    _log = Logger()

    def __init__(
        self,
        store: Path,
        current: Callable[[], NodeState],
        clock: IReactorTime,
        run_in_thread: RunInThread,
        failed: Callable[[Failure], None],
        disk: Disk = DISK,
    ) -> None:
        self._store = store
        self._disk = disk
        self._current = current
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._failed = failed
        self._written: NodeState | None = None
        self._writing: Deferred[None] | None = None
        self._soon: IDelayedCall | None = None
        self._is_refused = False
        self._no_room = Trouble()
        self._loop = PeriodicService("writing state.json", WRITE_INTERVAL_SECONDS, self._write_periodically, clock)

    def startService(self) -> None:
        Service.startService(self)
        self._loop.startService()

    def write_soon(self) -> None:
        """Write in the next turn of the reactor, or after the write that runs."""
        if self._is_writing and self._soon is None:
            self._soon = self._clock.callLater(0, self._write_now)

    def _write_now(self) -> None:
        self._soon = None
        if self._writing is not None and not self._writing.called:
            self._writing.addCallback(self._write_again)
        elif self._is_writing:
            self._write_periodically()

    def _write_again(self, result: None) -> None:
        self.write_soon()
        return result

    @property
    def _is_writing(self) -> bool:
        return bool(self.running) and not self._is_refused

    def _write_periodically(self) -> Deferred[None] | None:
        writing = self._write_if_changed()
        return None if writing is None else writing.addErrback(self._refused)

    def _write_if_changed(self) -> Deferred[None] | None:
        if self._writing is not None and not self._writing.called:
            return None  # the next write includes later changes
        state = self._current()
        if state == self._written:
            return None
        self._written = state
        self._writing = self._run_in_thread(partial(state.write, self._store, self._disk)).addCallback(self._has_room)
        return self._writing

    def _has_room(self, result: None) -> None:
        self._no_room.ends()
        return result

    def _refused(self, failure: Failure) -> None:
        """A full disk may have room later. Otherwise it has failed: report it once, and write nothing more."""
        if isinstance(failure.value, OSError) and is_disk_full(failure.value):
            self._written = None
            if self._no_room.begins():
                error = failure.getErrorMessage()
                self._log.error(
                    "{what} is not written: {error}", event=Event.WAITS_FOR_ROOM, what="state.json", error=error
                )
            return
        self._is_refused = True
        self._stop_writing()
        self._failed(failure)

    def _stop_writing(self) -> None:
        self._loop.stopService()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def stopService(self) -> Deferred[None]:
        """Fires when no write is running. Closing the store writes the last state."""
        Service.stopService(self)
        self._stop_writing()
        return self.written()

    def written(self) -> Deferred[None]:
        """Fires when no write is running, also if a write has failed. None starts in the same turn of the reactor."""
        written: Deferred[None] = Deferred()
        if self._writing is None or self._writing.called:
            written.callback(None)
        else:
            self._writing.addBoth(lambda _: written.callback(None))
        return written
