"""Keeps snapshots of the tables while a node runs, for ``rmqha restore``: see ``store.tablesnapshots``."""

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred, succeed

from rmqha.kit.threads import RunInThread
from rmqha.store.messagestore import MessageStore
from rmqha.store.tablesnapshots import delete_old_snapshots, read_snapshot, read_tables, write_snapshot

SNAPSHOT_SECONDS = 60.0


class TableSnapshots:
    """Writes a snapshot if a table's file has changed since the last one. A periodic service calls it.

    All file work is done by ``run_in_thread``. ``now_ms`` gives the time in milliseconds since 1970. What
    ``topics_written`` gives fires when all topics so far are on the disk.
    """

    def __init__(
        self,
        store: MessageStore,
        run_in_thread: RunInThread,
        now_ms: Callable[[], int],
        topics_written: Callable[[], Deferred[None]] = lambda: succeed(None),
    ) -> None:
        self._store = store
        self._run_in_thread = run_in_thread
        self._now_ms = now_ms
        self._topics_written = topics_written

    def write_if_changed(self) -> Deferred[None]:
        """Fires when a snapshot is on the disk, or none was needed. Fails with OSError."""
        log, store = self._store.commit_log, self._store
        up_to = store.topics_up_to if store.is_slave else log.verified_offset
        write = partial(self._write, log.verified_offset, log.min_offset, self._now_ms(), up_to)
        return self._topics_written().addCallback(lambda _: self._run_in_thread(write))

    def _write(self, end: int, min_offset: int, now_ms: int, topics_up_to: int | None) -> None:
        root = self._store.root
        tables = read_tables(root)
        last = read_snapshot(root, end)
        if tables and (last is None or last.tables != tables):
            write_snapshot(root, end, now_ms, tables, topics_up_to)
        delete_old_snapshots(root, min_offset)
