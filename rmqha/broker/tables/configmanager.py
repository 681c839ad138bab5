"""A table of the config folder: read when the broker starts, written when it changes.

A separate thread writes the tables, one write of each table at a time. Changes during a write go into the next write.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface, implementer

from rmqha.broker.tables.newnames import NewNames
from rmqha.kit.events import Event
from rmqha.kit.threads import RunInThread
from rmqha.kit.trouble import Trouble
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.header import refused
from rmqha.settings.settings import Settings
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.metadata import (
    ConfigTable,
    DataVersion,
    NamedTable,
    SubscriptionGroupConfig,
    TableFile,
    TopicConfig,
    unknown_bytes,
)
from rmqha.wire.fastjson import Document

Table = TypeVar("Table", bound=ConfigTable)
Row = TypeVar("Row", bound=TopicConfig | SubscriptionGroupConfig)

MAX_UNKNOWN_BYTES = 16 * 1024
"""Of the unknown fields of one row, as JSON, that a client may set."""

RETRY_SECONDS = 5.0
"""The delay after a write that failed."""
BREATH_SECONDS = 0.0002
"""How long a thread that encodes a table pauses after every few rows, so that others run."""


def breathe() -> None:
    """Let the reactor's thread run."""
    time.sleep(BREATH_SECONDS)


@dataclass(frozen=True, slots=True)
class TableStorage:
    """The folder of a table's file, what runs its writes, and a clock. Without it failed writes are not retried."""

    folder: Path
    run_in_thread: RunInThread = execute
    clock: IReactorTime | None = None
    disk: Disk = DISK


class ITableObserver(Interface):
    """Learns of each change of a table."""

    def table_changed(row: object | None) -> None:
        """This row was added or changed; None after a deletion, or several changes."""


class ITableDocument(Interface):
    """A table that may be asked for as a whole."""

    changes: int = Attribute("The number of changes. If it is unchanged, the table is unchanged.")

    def document() -> Document:
        """The table in JSON's form."""


@implementer(ITableDocument)
class ConfigManager(Service, Generic[Table]):
    """Holds ``table``. ``persist`` starts a write, ``written`` fires when it is done. It stops when all is written.

    A write that fails is tried again at the next change or, with a clock, after ``RETRY_SECONDS``. A failure that
    repeats is logged once.
    """

    _log = Logger()

    def __init__(self, storage: TableStorage, kind: type[Table]) -> None:
        """Reads the table. Raises StoreError, OSError."""
        self._file = TableFile(storage.folder, kind, storage.disk)
        self.table = self._file.read()
        self._run_in_thread = storage.run_in_thread
        self._clock = storage.clock
        self._retry: IDelayedCall | None = None
        self.changes = 0
        """The number of changes. If it is unchanged, the table is unchanged."""
        self._observers: list[ITableObserver] = []
        self._is_changed = False
        self._is_writing = False
        self._refusing = Trouble()
        self._waiting_for_next: list[Deferred[None]] = []
        self._waiting_for_this: list[Deferred[None]] = []

    def document(self) -> Document:
        """The table in JSON's form."""
        return self.table.document()

    def persist(self, row: object | None = None) -> None:
        """Write the changed table durably, soon. ``row`` was added or changed, if only one was."""
        self.changes += 1
        self._is_changed = True
        if not self._is_writing:
            self._write()
        for observer in self._observers:
            observer.table_changed(row)

    def subscribe(self, observer: ITableObserver) -> None:
        """Tell it each change from now on."""
        self._observers.append(observer)

    def written(self) -> Deferred[None]:
        """Fires when all changes so far are on disk. Fails with OSError if the disk refuses them."""
        if not (self._is_changed or self._is_writing):
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        (self._waiting_for_next if self._is_changed else self._waiting_for_this).append(waiting)
        return waiting

    def stopService(self) -> Deferred[None]:
        """Write the remaining changes. Fires when that is done, or has failed."""
        Service.stopService(self)
        self._stop_retrying()
        written = self.written().addErrback(lambda _: self._stop_retrying())
        if self._is_changed and not self._is_writing:
            self._write()  # it may fail at once
        return written

    def _stop_retrying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _write(self) -> None:
        self._stop_retrying()
        self._is_changed, self._is_writing = False, True
        self._waiting_for_this, self._waiting_for_next = self._waiting_for_next, []
        write = partial(self._file.write, self._to_write().snapshot(), breathe)
        self._run_in_thread(write).addCallbacks(self._is_written, self._is_not_written).addErrback(
            lambda failure: self._log.failure(
                "the callbacks after a write of {file} failed",
                failure,
                event=Event.TABLE_CALLBACK_FAILED,
                file=self.table.FILE_NAME,
            )
        )

    def _to_write(self) -> Table:
        """The table that a write brings to the disk."""
        return self.table

    def _is_written(self, _: object) -> None:
        self._is_writing = False
        self._refusing.ends()
        waiting, self._waiting_for_this = self._waiting_for_this, []
        if self._is_changed:
            self._write()
        for waiter in waiting:
            waiter.callback(None)

    def _is_not_written(self, failure: Failure) -> None:
        self._is_writing = False
        failed = [*self._waiting_for_this, *self._waiting_for_next]
        self._waiting_for_this, self._waiting_for_next = [], []
        self._is_changed = True
        if self._refusing.begins():
            self._log.error(
                "{file} is not written: {error}",
                event=Event.TABLE_NOT_WRITTEN,
                file=self.table.FILE_NAME,
                error=failure.getErrorMessage(),
            )
        if self._clock is not None:
            self._retry = self._clock.callLater(RETRY_SECONDS, self._try_again)
        for waiter in failed:
            waiter.errback(failure)

    def _try_again(self) -> None:
        self._retry = None
        if self._is_changed and not self._is_writing:
            self._write()


class NamedConfigManager(ConfigManager[NamedTable[Row]], Generic[Row]):
    """Holds a table of named rows. Each change is written, and gives the table its next version.

    ``settings`` say whether rows may be created. They may change at run time.
    """

    def __init__(
        self,
        storage: TableStorage,
        kind: type[NamedTable[Row]],
        settings: Settings,
        seeds: dict[str, Row],
        new_names: NewNames,
        wall: IWallClock,
    ) -> None:
        """Reads the table, and adds the rows of ``seeds`` that are missing. Raises StoreError, OSError."""
        super().__init__(storage, kind)
        self.settings = settings
        self._now_ms = wall.now_ms
        self._new = new_names
        rows = self.table.rows
        if not rows.keys() >= seeds.keys():
            version = self.table.data_version
            is_new = version == DataVersion()
            next_version = DataVersion(0, wall.now_ms()) if is_new else version.next(wall.now_ms())
            self.table = self.table.changed(next_version, {**seeds, **rows})
            self.persist()
        new_names.hold(self.table.rows, self.table.unknown_bytes)

    def get(self, name: str) -> Row | None:
        """The row with this name, or None."""
        return self.table.rows.get(name)

    def take_new(self, name: str, by: object | None) -> None:
        """Count a row that ``by`` creates, if it is new. Raises RequestRefused if there are too many, or no room."""
        if name not in self.table.rows:
            self._new.take(name, len(self.table.rows), by)

    def check_growth(self, row: Row) -> None:
        """Raises RequestRefused if the row's unknown fields are too long, or if the table has no room for them."""
        size = unknown_bytes(row)
        if size > MAX_UNKNOWN_BYTES:
            raise refused(f"the fields that this broker does not know take {size} bytes, more than {MAX_UNKNOWN_BYTES}")
        former = self.table.rows.get(self.name_of(row))
        if former is None or size > unknown_bytes(former):
            self._new.check_room(self.name_of(row), unknown=size)

    def update(self, row: Row) -> None:
        """Add the row, or replace the row with its name."""
        name = self.name_of(row)
        former = self.table.rows.get(name)
        if former is not None:
            self._new.removed(name, unknown_bytes(former))
        self._new.added(name, unknown_bytes(row))
        self.table.rows[name] = row
        self._changed(row)

    def delete(self, name: str) -> bool:
        """Delete the row. False if it does not exist."""
        former = self.table.rows.pop(name, None)
        if former is None:
            return False
        self._new.removed(name, unknown_bytes(former))
        self._changed(None)
        return True

    def replace(self, table: NamedTable[Row]) -> None:
        """Replace the table and its version, on a slave that copies its master's."""
        self.table = table
        self._new.hold(table.rows, table.unknown_bytes)
        self.persist()

    def _changed(self, row: Row | None) -> None:
        self.table.data_version = self.table.data_version.next(self._now_ms())
        self.persist(row)

    def name_of(self, row: Row) -> str:
        """The row's name."""
        raise NotImplementedError
