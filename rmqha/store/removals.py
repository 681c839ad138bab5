"""Removes old queues and index of an open store, which may be many, in a thread."""

from functools import partial
from pathlib import Path

from twisted.internet.defer import Deferred, execute, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event
from rmqha.kit.threads import RunInThread
from rmqha.store.derived.replacing import remove_retired
from rmqha.store.log.mappedfile import Disk


class Removals:
    """Folders that are being removed. What is not removed goes at the next start."""

    _log = Logger()

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.run_in_thread: RunInThread = execute
        self.done: Deferred[None] = succeed(None)
        """Fires when all of them are gone, or cannot be removed. The store closes after that."""

    def remove(self, retired: Path) -> None:
        """Let the thread remove a folder."""
        before = self.done
        removing = self.run_in_thread(partial(remove_retired, retired, self._disk)).addErrback(self._not_removed)
        self.done = removing.addCallback(lambda _: before)

    def _not_removed(self, failure: Failure) -> None:
        """A disk that cannot remove files may still take messages."""
        self._log.warn(
            "old queues and index are not removed before the next start: {error}",
            event=Event.RETIRED_NOT_REMOVED,
            error=str(failure.value),
        )
