"""What a master's slaves confirm, so that consumers may read it (``readUpTo=confirmed``).

A message is confirmed when every slave in sync holds it, so that any of them can be promoted: nothing that a consumer
has read is missing there. At least ``max(inSyncReplicas, 2) - 1`` slaves must be in sync, or nothing is confirmed.

A slave is in sync from the moment when it holds all that is confirmed until its connection ends. So a new slave, which
copies for hours, holds up nobody. Neither does one that is more than haSlaveFallbehindMax bytes behind, if there are
enough others.
"""

from collections.abc import Callable

from twisted.logger import Logger

from rmqha.ha.master.progress import SlaveProgress
from rmqha.kit.events import Event
from rmqha.settings.settings import Settings
from rmqha.store.interfaces import ICommitLog


class Confirming:
    """Follows the slaves, and calls ``confirmed`` with the confirmed end of the log whenever it grows."""

    _log = Logger()

    def __init__(
        self, commit_log: ICommitLog, settings: Settings, offset: int, confirmed: Callable[[int], None]
    ) -> None:
        """``offset`` is the confirmed end so far."""
        self._commit_log = commit_log
        self._needed = max(settings.in_sync_replicas, 2) - 1
        self._far_bytes = settings.ha_slave_fallbehind_max_bytes
        self._confirmed = confirmed
        self._slaves: dict[SlaveProgress, bool] = {}
        """The connected slaves, and which of them held the whole log when they connected."""
        self._in_sync: dict[SlaveProgress, None] = {}
        self.offset = offset

    def joined(self, slave: SlaveProgress) -> None:
        """A slave's first report was accepted.

        It proves nothing, unless it is the log's end: a Java slave that holds the whole log acknowledges nothing more
        until the log grows. (An observer reports an offset before the log's end, see ``GroupTransfer``.)
        """
        self._slaves[slave] = slave.reported == self._commit_log.verified_offset
        self._look()

    def reported(self, slave: SlaveProgress) -> None:
        """A slave that has joined has reported a higher offset."""
        self._look()

    def forget(self, slave: SlaveProgress) -> None:
        """The slave's connection has ended."""
        self._slaves.pop(slave, None)
        self._leave(slave, "its connection has ended")
        self._look()

    def _held(self, slave: SlaveProgress) -> int:
        """Up to where a slave is known to hold the log; -1 if that is not known."""
        if slave.acknowledged is not None:
            return slave.acknowledged
        return slave.request if self._slaves[slave] else -1

    def _leave(self, slave: SlaveProgress, reason: str) -> None:
        if slave in self._in_sync:
            del self._in_sync[slave]
            self._log.info(
                "slave {slave} is not in sync any more: {reason}",
                event=Event.SLAVE_OUT_OF_SYNC,
                slave=slave.identity,
                reason=reason,
            )

    def _look(self) -> None:
        """See who is in sync, and what all of them hold."""
        end = self._commit_log.verified_offset
        holding = [slave for slave in self._slaves if self._held(slave) >= self.offset]
        near = [slave for slave in holding if end - self._held(slave) <= self._far_bytes]
        in_sync = near if len(near) >= self._needed else holding
        for slave in [slave for slave in self._in_sync if slave not in in_sync]:
            self._leave(slave, f"it is {end - max(self._held(slave), 0)} bytes behind")
        for slave in in_sync:
            if slave not in self._in_sync:
                self._in_sync[slave] = None
                self._log.info(
                    "slave {slave} is in sync: consumers read what it holds",
                    event=Event.SLAVE_IN_SYNC,
                    slave=slave.identity,
                )
        if len(self._in_sync) < self._needed:
            return
        reached = min(map(self._held, self._in_sync))
        if reached > self.offset:
            self.offset = reached
            self._confirmed(reached)

    @property
    def in_sync(self) -> list[SlaveProgress]:
        """The slaves that hold all that consumers may read."""
        return list(self._in_sync)

    def is_in_sync(self, slave: SlaveProgress | None) -> bool:
        """Whether consumers read only what this slave holds: it can be promoted."""
        return slave in self._in_sync

    def why(self) -> str:
        """Why the confirmed end does not grow."""
        if not self._slaves:
            return "no slave is connected"
        missing = self._needed - len(self._in_sync)
        if missing > 0:
            return (
                f"{len(self._in_sync)} of {len(self._slaves)} connected slaves hold all that consumers have read, and "
                f"{self._needed} must (inSyncReplicas; an observer never counts)"
            )
        last = min(self._in_sync, key=self._held)
        return f"slave {last.identity} holds the log only up to {self._held(last)}"
