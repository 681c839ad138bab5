"""Moves and removes old queues and index of an open store, which may be many. A thread does what waits for the disk."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from twisted.internet.defer import Deferred, execute, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.threads import RunInThread
from rmqha.store.derived.derived import Derived
from rmqha.store.derived.replacing import new_retired_folder, remove_retired
from rmqha.store.log.mappedfile import Disk

TOPICS_RETIRED = 16
"""Topics whose queues are moved away in one turn of the reactor."""


class Removals:
    """Folders that are being removed. What is not removed goes at the next start."""

    _log = Logger()

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self.run_in_thread: RunInThread = execute
        self.done: Deferred[None] = succeed(None)
        """Fires when all of them are gone, or cannot be removed. The store closes after that."""

    async def build_again(self, derived: Derived, rebuilt: Mapping[str, int]) -> bool:
        """Move the queues of topics away, some in each turn, and let dispatch build them from these offsets on.

        Returns when the disk has that, or False if queues and index were closed meanwhile: opening them does the rest.
        After each turn, queues and dispatch are sound. The thread does its work in order, and no checkpoint counts on
        new queues before the old ones are gone durably. Raises OSError.
        """
        topics, folder = list(rebuilt), None
        for at in range(0, len(topics), TOPICS_RETIRED):
            some = topics[at : at + TOPICS_RETIRED]
            start = min(rebuilt[topic] for topic in some)
            while not derived.is_closed and derived.must_mark(start):
                await self._counted(self.run_in_thread(partial(derived.mark, start)))
            if derived.is_closed:
                return False
            folder = new_retired_folder(self._root, self._disk) if folder is None else folder
            changed = derived.build_again(some, start, folder)
            await self._counted(self.run_in_thread(partial(self._flush, changed)))
        if folder is None or derived.is_closed:  # the store may be another process's by now: its next start removes it
            return not derived.is_closed
        self.remove(folder)
        return True

    def _flush(self, folders: Iterable[Path]) -> None:
        for folder in sorted(folders):
            with suppress(FileNotFoundError):  # all queues may have been moved away since
                self._disk.sync_folder(folder)

    def remove(self, retired: Path) -> None:
        """Let the thread remove a folder."""
        removing = self.run_in_thread(partial(remove_retired, retired, self._disk))
        self._counted(removing).addErrback(self._not_removed)

    def _counted(self, running: Deferred[None]) -> Deferred[None]:
        """What the thread does: ``done`` waits for it, however it ends."""
        before, ended = self.done, Deferred[None]()

        def has_ended(result: Failure | None) -> Failure | None:
            ended.callback(None)
            return result

        self.done = ended.addCallback(lambda _: before)
        return running.addBoth(has_ended)

    def _not_removed(self, failure: Failure) -> None:
        """A disk that cannot remove files may still take messages."""
        self._log.warn(
            "old queues and index are not removed before the next start: {error}",
            event=Event.RETIRED_NOT_REMOVED,
            error=str(failure.value),
        )
