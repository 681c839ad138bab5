"""What a master's slaves confirm, so that consumers may read it (``readUpTo=confirmed``).

A message is confirmed when every slave in sync holds it, so that any of them can be promoted: nothing that a consumer
has read is missing there. At least ``max(inSyncReplicas, 2) - 1`` slaves must be in sync, or nothing is confirmed.

A slave is in sync from the moment when it holds all that is confirmed until its connection ends. So a new slave, which
copies for hours, holds up nobody. Neither does one that is more than haSlaveFallbehindMax bytes behind, if there are
enough others.
"""

from collections.abc import Sequence

from twisted.logger import Logger

from rmqha.ha.master.followers import Copies, FollowerPolicy
from rmqha.ha.master.progress import SlaveProgress
from rmqha.kit.events import Event
from rmqha.settings.settings import Settings


class InSyncSlaves(FollowerPolicy):
    """All slaves in sync count."""

    _log = Logger()

    def __init__(self, copies: Copies, settings: Settings) -> None:
        super().__init__(copies, settings)
        self._needed = max(settings.in_sync_replicas, 2) - 1
        self._in_sync: dict[SlaveProgress, None] = {}

    def shows(self, slave: SlaveProgress) -> bool:
        """Whether it holds all before its first report.

        That proves nothing, unless it is the log's end: a Java slave that holds the whole log acknowledges nothing more
        until the log grows. (An observer reports an offset before the log's end, see ``EnoughSlaves``.)
        """
        return slave.reported == self.copies.commit_log.verified_offset

    def left(self, slave: SlaveProgress) -> bool:
        """It holds up nobody any more."""
        self._leave(slave, "its connection has ended")
        return True

    def _leave(self, slave: SlaveProgress, reason: str) -> None:
        if slave in self._in_sync:
            del self._in_sync[slave]
            self._log.info(
                "slave {slave} is not in sync any more: {reason}",
                event=Event.SLAVE_OUT_OF_SYNC,
                slave=slave.identity,
                reason=reason,
            )

    def counting(self, first_wait: int | None) -> Sequence[SlaveProgress] | None:
        """Those in sync now."""
        held, end = self.copies.held, self.copies.commit_log.verified_offset
        holding = [slave for slave in self.copies.slaves if held(slave) >= self.copies.confirmed_offset]
        near = [slave for slave in holding if end - held(slave) <= self._near_bytes]
        in_sync = near if len(near) >= self._needed else holding
        for slave in [slave for slave in self._in_sync if slave not in in_sync]:
            self._leave(slave, f"it is {end - max(held(slave), 0)} bytes behind")
        for slave in in_sync:
            if slave not in self._in_sync:
                self._in_sync[slave] = None
                self._log.info(
                    "slave {slave} is in sync: consumers read what it holds",
                    event=Event.SLAVE_IN_SYNC,
                    slave=slave.identity,
                )
        return self.in_sync if len(self._in_sync) >= self._needed else None

    @property
    def in_sync(self) -> list[SlaveProgress]:
        """The slaves that hold all that consumers may read."""
        return list(self._in_sync)

    def is_in_sync(self, slave: SlaveProgress | None) -> bool:
        """Whether consumers read only what this slave holds: it can be promoted."""
        return slave in self._in_sync

    def why(self) -> str:
        """Why the confirmed end does not grow."""
        slaves, held = self.copies.slaves, self.copies.held
        if not slaves:
            return "no slave is connected"
        if len(self._in_sync) < self._needed:
            return (
                f"{len(self._in_sync)} of {len(slaves)} connected slaves hold all that consumers have read, and "
                f"{self._needed} must (inSyncReplicas; an observer never counts)"
            )
        last = min(self._in_sync, key=held)
        return f"slave {last.identity} holds the log only up to {held(last)}"
