"""Keeps ``<store>/rmqha/state.json`` true while a node runs: at most once a second, and at stop."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.store.flush import RunInThread
from rmqha.store.mappedfile import DISK, Disk
from rmqha.store.nodestate import NodeState

WRITE_INTERVAL_SECONDS = 1.0


class StateFileService(Service):
    """Writes ``current()`` whenever it has changed. ``failed`` hears if the disk refuses."""

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
        self._run_in_thread = run_in_thread
        self._failed = failed
        self._written: NodeState | None = None
        self._writing: Deferred[None] | None = None
        self._loop = LoopingCall(self._write_if_changed)
        self._loop.clock = clock

    def startService(self) -> None:
        Service.startService(self)
        self._loop.start(WRITE_INTERVAL_SECONDS, now=True).addErrback(self._failed)

    def _write_if_changed(self) -> Deferred[None] | None:
        state = self._current()
        if state == self._written:
            return None
        self._written = state
        self._writing = self._run_in_thread(partial(state.write, self._store, self._disk))
        return self._writing

    def stopService(self) -> Deferred[None]:
        """Fires when nothing is being written any more: whoever closes the store writes the last state."""
        Service.stopService(self)
        if self._loop.running:
            self._loop.stop()
        written: Deferred[None] = Deferred()
        if self._writing is None or self._writing.called:
            written.callback(None)
        else:
            self._writing.addBoth(lambda _: written.callback(None))
        return written
