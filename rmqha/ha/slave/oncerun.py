"""A ``--once`` run: when it is done. Other runs never are."""

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from rmqha.ha.slave.owner import ISlaveOwner
from rmqha.ha.slave.replica import Replica
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.messagestore import MessageStore

QUEUES_LOOK_SECONDS = 0.1
QUEUES_PROGRESS_SECONDS = 5.0
QUEUES_STUCK_SECONDS = 60.0
"""A ``--once`` run ends if its queues do not grow for this time: the disk may be full."""


class OnceRun:
    """Ends when all is copied that the master had at first, and its queues and index are complete too.

    If ``is_wanted`` is false, nothing here ends anything.
    """

    _log = Logger()

    def __init__(
        self, is_wanted: bool, store: MessageStore, replica: Replica, owner: ISlaveOwner, clock: IReactorTime
    ) -> None:
        self.is_wanted = is_wanted
        self._store = store
        self._replica = replica
        self._owner = owner
        self._clock = clock
        self._runs = False
        self._target: int | None = None
        self._copied_to: int | None = None
        self._queues_look: IDelayedCall | None = None

    def start(self) -> None:
        """The slave runs."""
        self._runs = True

    def stop(self) -> None:
        """The slave stops: nothing ends the run any more."""
        self._runs = False
        if self._queues_look is not None:
            self._queues_look.cancel()
            self._queues_look = None

    def finish(self, code: ExitCode, reason: str) -> None:
        """End the run, if it is one that ends."""
        if self.is_wanted and self._runs:
            self._owner.finished(code, reason)

    def aim_at(self, offset: int | None) -> None:
        """The master's log ends there. What it says first is what is to be copied."""
        if self._target is None:
            self._target = offset

    def check(self) -> None:
        """See whether the log is copied."""
        if not self.is_wanted or self._copied_to is not None:
            return
        reached = self._replica.reportable_offset
        if reached is None:
            return
        if self._replica.holds_all or (self._target is not None and reached >= self._target):
            self._copied_to = reached
            self._wait_for_queues(self._owner.queues_behind(), self._clock.seconds(), self._clock.seconds())

    def _wait_for_queues(self, least_behind: int, grown_at: float, told_at: float) -> None:
        """The log is copied: end the run when its queues and index are complete too."""
        self._queues_look = None
        copied = f"holds all up to {self._copied_to}"
        behind, now = self._owner.queues_behind(), self._clock.seconds()
        if behind <= 0 or self._store.commit_log.verified_offset - behind >= (self._copied_to or 0):
            self.finish(ExitCode.FINE, copied)
            return
        if behind < least_behind:
            least_behind, grown_at = behind, now
        elif now - grown_at >= QUEUES_STUCK_SECONDS:
            self.finish(ExitCode.IO_ERROR, f"{copied}, but {behind} bytes are missing from the queues, which are stuck")
            return
        if now - told_at >= QUEUES_PROGRESS_SECONDS or now == told_at:
            told_at = now + 1e-9
            self._log.info(
                "{copied}; {behind} bytes are still missing from queues and index",
                event=Event.QUEUES_PROGRESS,
                copied=copied,
                behind=behind,
            )
        self._queues_look = self._clock.callLater(
            QUEUES_LOOK_SECONDS, self._wait_for_queues, least_behind, grown_at, told_at
        )
