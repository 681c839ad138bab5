"""Keeps snapshots of the tables while a node runs, for ``rmqha restore``: see ``store.tablesnapshots``."""

from collections.abc import Callable
from functools import partial

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.store.log.flush import RunInThread
from rmqha.store.messagestore import MessageStore
from rmqha.store.tablesnapshots import delete_old_snapshots, read_snapshot, read_tables, write_snapshot

SNAPSHOT_SECONDS = 60.0


class TableSnapshotService(Service):
    """Writes a snapshot at the start, and once a minute if a table's file has changed since the last one.

    All file work is done by ``run_in_thread``. A snapshot that cannot be written is told of, and tried again: nothing
    else of the node needs it. ``now_ms`` gives the time in milliseconds since 1970.
    """

    _log = Logger()

    def __init__(
        self, store: MessageStore, clock: IReactorTime, run_in_thread: RunInThread, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._run_in_thread = run_in_thread
        self._now_ms = now_ms
        self._writing: Deferred[None] = succeed(None)
        self._loop = LoopingCall(self._start_one)
        self._loop.clock = clock

    def startService(self) -> None:
        Service.startService(self)
        self._loop.start(SNAPSHOT_SECONDS, now=True)

    def _start_one(self) -> Deferred[None]:
        log = self._store.commit_log
        write = partial(self._write_if_changed, log.verified_offset, log.min_offset, self._now_ms())
        self._writing = maybeDeferred(self._run_in_thread, write).addErrback(self._refused)
        return self._writing

    def _write_if_changed(self, end: int, min_offset: int, now_ms: int) -> None:
        root = self._store.root
        tables = read_tables(root)
        last = read_snapshot(root, end)
        if tables and (last is None or last.tables != tables):
            write_snapshot(root, end, now_ms, tables)
        delete_old_snapshots(root, min_offset)

    def _refused(self, failure: Failure) -> None:
        self._log.warn(
            "no snapshot of the tables: {error}; trying again in {seconds:.0f} s",
            error=failure.getErrorMessage(),
            seconds=SNAPSHOT_SECONDS,
        )

    def stopService(self) -> Deferred[None]:
        """Fires when nothing is being written any more."""
        Service.stopService(self)
        if self._loop.running:
            self._loop.stop()
        stopped: Deferred[None] = Deferred()
        self._writing.addBoth(lambda _: stopped.callback(None))
        return stopped
