"""Deletes old segments while a node runs, and saves the slots of its slaves (``--hold``)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.services import PeriodicService
from rmqha.kit.steps import Steps
from rmqha.kit.trouble import Trouble
from rmqha.remoting.turns import Turns
from rmqha.store.errors import StoreError, is_disk_full
from rmqha.store.messagestore import MessageStore
from rmqha.store.retention import Cleaning, HeldLog, Retention, Slot, SlotFolder

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
        self._no_room = Trouble()
        self._turns = Turns(clock)
        self._lock = DeferredLock()

    def _clean(self) -> Deferred[None]:
        return self._lock.run(self._run, False)

    def clean_now(self) -> Deferred[None]:
        """Apply the retention rules once, at any hour. Waits for a run that is under way."""
        return self._lock.run(self._run, True)

    def _run(self, at_any_hour: bool) -> Deferred[None]:
        return Deferred.fromCoroutine(self._turns.run(self._cleaning(at_any_hour)))

    def _cleaning(self, at_any_hour: bool) -> Steps[None]:
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
            cleaning = yield from self._while_running(retention.cleaning(datetime.now(), at_any_hour))
        except StoreError as error:
            self._log.error("nothing is deleted: {error}", event=Event.NOTHING_DELETED, error=str(error))
            return
        except OSError:
            self._disk_failed(Failure())
            return
        if cleaning is None:
            return
        if cleaning.disk_full != store.puts.disk_full:
            store.puts.disk_full = cleaning.disk_full
            state = "too full to accept messages" if cleaning.disk_full else "no longer too full"
            self._log.warn(
                "the disk is {state}", event=Event.DISK_FULL if cleaning.disk_full else Event.DISK_HAS_ROOM, state=state
            )

    def _while_running(self, steps: Steps[Cleaning]) -> Steps[Cleaning | None]:
        """What the steps give; None if this service is stopped before: then the store may be closed."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: Cleaning = done.value
                return result
            yield
            if self.is_stopping:
                return None

    def _save_slots(self) -> None:
        """Raises StoreError, OSError. On a full disk older slots do: they hold more, and deleting makes room."""
        try:
            self._save_changed_slots()
        except OSError as error:
            if not is_disk_full(error):
                raise
            if self._no_room.begins():
                self._log.error(
                    "{what} are not written: {error}", event=Event.WAITS_FOR_ROOM, what="the slots", error=str(error)
                )
        else:
            self._no_room.ends()

    def _save_changed_slots(self) -> None:
        known = {slot.name: slot.offset for slot in self._slots.slots()}
        for name, offset in self._acknowledged().items():
            if known.get(name) != offset:
                self._slots.save(Slot(name, offset))

    def _held_from(self) -> int | None:
        if not self._hold.enabled:
            return None
        saved = {slot.name: slot.offset for slot in self._slots.slots()}
        return min({**self._acknowledged(), **saved}.values(), default=None)  # a new slave's may wait for room
