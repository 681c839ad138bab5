"""Puts of a leader with automatic failover: a put is PUT_OK when each member of its sync set holds it.

"Any slave", as a plain SYNC_MASTER counts, is not safe with three nodes: another slave, without the message, may be
the next leader. Here each member that may lead next must hold it.
"""

from collections.abc import Callable

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.progress import SlaveProgress
from rmqha.kit.histogram import Histogram
from rmqha.settings.settings import Settings
from rmqha.store.interfaces import ICommitLog
from rmqha.store.log.groupcommit import GroupCommit
from rmqha.store.message import PutMessageStatus


class SyncMembers:
    """Completes the waits of puts in the order of their offsets, each no later than its own deadline.

    ``confirmed_offset`` is the end of the log that every required member holds, or the log's end if none is required.
    It never decreases. ``confirmed`` is called when it has grown: consumers may read up to there.
    """

    def __init__(
        self,
        commit_log: ICommitLog,
        settings: Settings,
        clock: IReactorTime,
        leadership: Leadership,
        confirmed_offset: int,
        confirmed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._commit_log = commit_log
        self._near_bytes = settings.ha_slave_fallbehind_max_bytes
        self._members_for_puts = settings.min_in_sync_replicas - 1
        self._waits = GroupCommit(clock, settings.slave_timeout_ms / 1000)
        self.leadership = leadership
        self.confirmed_offset = confirmed_offset
        self._confirmed = confirmed
        self._members: dict[str, SlaveProgress] = {}
        """The latest connection of each member."""
        self._when_empty: set[SlaveProgress] = set()
        """The connections that began while the log had no message: there was nothing to hold."""
        self._unsubscribe = commit_log.subscribe(self._log_grew)
        leadership.on_change(self._changed)

    @property
    def waits(self) -> Histogram:
        """How long puts waited for members."""
        return self._waits.durations

    @property
    def offset(self) -> int:
        """The confirmed end of the log."""
        return self.confirmed_offset

    def joined(self, slave: SlaveProgress) -> None:
        """A slave's first report was accepted. A member's earlier connection does not count any more."""
        if slave.member is not None:
            log = self._commit_log
            self._when_empty = {each for each in self._when_empty if each.member != slave.member}
            if log.verified_offset == log.min_offset:
                self._when_empty.add(slave)
            self._members[slave.member] = slave
            self._look()

    def reported(self, slave: SlaveProgress) -> None:
        """A slave that has joined has reported a higher offset."""
        if slave.member is not None and self._members.get(slave.member) is slave:
            self._look()

    def forget(self, slave: SlaveProgress) -> None:
        """The slave's connection has ended."""
        if slave.member is not None and self._members.get(slave.member) is slave:
            del self._members[slave.member]
            self._when_empty.discard(slave)

    def held(self, name: str) -> int | None:
        """Up to where a member is known to hold the log; None if it is not connected, or has shown nothing yet.

        A first report shows nothing, even if it is the log's end: the member may have another message that begins
        there, and other bytes before. One of ours always asks for its last message again, and then acknowledges it.
        """
        slave = self._members.get(name)
        if slave is None:
            return None
        if slave.acknowledged is not None:
            return slave.acknowledged
        return slave.request if slave in self._when_empty else None

    def session(self, name: str) -> str | None:
        """The session of the process that shows what a member holds; None if it is not connected."""
        slave = self._members.get(name)
        return None if slave is None else slave.session

    def holds(self, name: str, offset: int) -> bool:
        """Whether a member is known to hold the log up to an offset."""
        held = self.held(name)
        return held is not None and held >= offset

    @property
    def connected(self) -> frozenset[str]:
        """The names of the members that are connected."""
        return frozenset(self._members)

    def start(self) -> None:
        """Without required members all of the log is confirmed."""
        self._look()

    def _log_grew(self) -> None:
        if not self.leadership.required:
            self._look()

    def _changed(self) -> None:
        if self.leadership.is_ended:
            self._waits.give_up()
        else:
            self._look()

    def _look(self) -> None:
        """Complete the waits for messages that all required members hold now."""
        if self.leadership.is_ended:
            return
        reached = self._commit_log.verified_offset
        for name in self.leadership.required:
            held = self.held(name)
            if held is None:
                return
            reached = min(reached, held)
        if reached > self.confirmed_offset:
            self.confirmed_offset = reached
            self._confirmed(reached)
            self._waits.reached(reached)

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are reached by required members less than haSlaveFallbehindMax bytes behind."""
        if not self._members_for_puts:
            return True
        end = self._commit_log.verified_offset
        held = [self.held(name) for name in self.leadership.required]
        near = [offset for offset in held if offset is not None and end - offset < self._near_bytes]
        return len(near) >= self._members_for_puts

    def wait(self, next_offset: int) -> Deferred[PutMessageStatus]:
        """Wait until all required members hold the log up to ``next_offset``, and fire with PUT_OK.

        It fires with FLUSH_SLAVE_TIMEOUT after slaveTimeout. A member that is gone delays puts until the coordinator
        has left it out of ``sync``: then they complete.
        """
        if not self.leadership.required and not self.leadership.is_ended:
            return succeed(PutMessageStatus.PUT_OK)
        if next_offset <= self.confirmed_offset:
            return succeed(PutMessageStatus.PUT_OK)
        return self._waits.wait(next_offset).addCallback(_status)

    def give_up(self) -> None:
        """End all waits, as if their deadlines had passed."""
        self._waits.give_up()

    def stop(self) -> None:
        """The log is closed."""
        self._unsubscribe()

    # What consumers may read: see Confirming

    def is_in_sync(self, slave: SlaveProgress | None) -> bool:
        """Whether consumers read only what this slave holds."""
        return slave is not None and slave.member in self.leadership.required and slave in self._members.values()

    @property
    def in_sync(self) -> list[SlaveProgress]:
        """The connected members that puts wait for."""
        return [slave for name, slave in self._members.items() if name in self.leadership.required]

    def why(self) -> str:
        """Why the confirmed end does not grow."""
        for name in sorted(self.leadership.required):
            held = self.held(name)
            if held is None:
                return f"member {name} is in the sync set, and is not connected"
            if held <= self.confirmed_offset:
                return f"member {name} holds the log only up to {held}"
        return "nothing was put"


def _status(in_time: bool) -> PutMessageStatus:
    return PutMessageStatus.PUT_OK if in_time else PutMessageStatus.FLUSH_SLAVE_TIMEOUT
