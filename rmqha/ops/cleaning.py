"""Deletes old segments while a node runs, and saves the slots of its slaves (``--hold``)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.services import PeriodicService
from rmqha.store.errors import StoreError
from rmqha.store.messagestore import MessageStore
from rmqha.store.retention import HeldLog, Retention, Slot, SlotFolder

FIRST_RUN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Hold:
    """Whether the log is kept for slaves, and for how many bytes at most (None: no limit)."""

    enabled: bool = False
    max_bytes: int | None = None


class CleaningService(PeriodicService):
    """Cleans every cleanResourceInterval, starting a minute after startup. ``failed`` is called if the disk fails.

    ``acknowledged`` returns the offsets that slaves have acknowledged, by identity. A slot outlives its slave's
    connection and this process.
    """

    _log = Logger()

    def __init__(
        self,
        store: MessageStore,
        hold: Hold,
        acknowledged: Callable[[], Mapping[str, int]],
        clock: IReactorTime,
        failed: Callable[[Failure], None],
    ) -> None:
        seconds = store.settings.clean_resource_interval_ms / 1000
        super().__init__("retention", seconds, self._clean, clock, first_after=FIRST_RUN_SECONDS)
        self._store = store
        self._hold = hold
        self._acknowledged = acknowledged
        self._disk_failed = failed
        self._slots = SlotFolder(store.root)

    def _clean(self) -> None:
        store = self._store
        retention = Retention(
            store.commit_log,
            store.derived.queues,
            store.derived.index,
            store.settings,
            HeldLog(self._held_from, self._hold.max_bytes),
        )
        try:
            if self._hold.enabled:
                self._save_slots()
            cleaning = retention.clean(datetime.now())
        except StoreError as error:
            self._log.error("nothing is deleted: {error}", error=str(error))
            return
        except OSError:
            self._disk_failed(Failure())
            return
        if cleaning.disk_full != store.disk_full:
            store.disk_full = cleaning.disk_full
            state = "too full to accept messages" if cleaning.disk_full else "no longer too full"
            self._log.warn("the disk is {state}", state=state)

    def _save_slots(self) -> None:
        known = {slot.name: slot.offset for slot in self._slots.slots()}
        for name, offset in self._acknowledged().items():
            if known.get(name) != offset:
                self._slots.save(Slot(name, offset))

    def _held_from(self) -> int | None:
        if not self._hold.enabled:
            return None
        return min((slot.offset for slot in self._slots.slots()), default=None)
