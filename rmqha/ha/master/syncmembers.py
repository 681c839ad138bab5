"""Puts of a leader with automatic failover: a put is PUT_OK when each member of its sync set holds it.

"Any slave", as a plain SYNC_MASTER counts, is not safe with three nodes: another slave, without the message, may be
the next leader. Here each member that may lead next must hold it.
"""

from collections.abc import Sequence

from rmqha.ha.master.followers import Copies, FollowerPolicy, Followers
from rmqha.ha.master.leadership import Leadership
from rmqha.ha.master.progress import SlaveProgress
from rmqha.settings.settings import Settings
from rmqha.store.message import PutMessageStatus


class SyncMembers(FollowerPolicy):
    """The members that the leadership requires count, all of them, and nobody else. The latest connection speaks."""

    def __init__(self, copies: Copies, settings: Settings, leadership: Leadership) -> None:
        super().__init__(copies, settings)
        self._members_for_puts = settings.min_in_sync_replicas - 1
        self.leadership = leadership

    def heed(self, followers: Followers) -> None:
        """Let ``followers`` look: now, when others are required, and when the log grows while nobody is."""

        def changed() -> None:
            if self.leadership.is_ended:
                followers.give_up()
            else:
                followers.look()

        def log_grew() -> None:
            if not self.leadership.required:
                followers.look()

        self.copies.commit_log.subscribe(log_grew)
        self.leadership.on_change(changed)
        followers.look()

    def joins(self, slave: SlaveProgress) -> bool:
        """Follow members. A member's earlier connection does not count any more."""
        if slave.member is None:
            return False
        earlier = self._connection(slave.member)
        if earlier is not None:
            del self.copies.slaves[earlier]
        return True

    def shows(self, slave: SlaveProgress) -> bool:
        """Only of connections that began while the log had no message: there was nothing to hold.

        Otherwise a first report shows nothing, even if it is the log's end: the member may have another message that
        begins there, and other bytes before. One of ours always asks for its last message again, and then acknowledges
        it.
        """
        log = self.copies.commit_log
        return log.verified_offset == log.min_offset

    def counting(self, first_wait: int | None) -> Sequence[SlaveProgress] | None:
        """The connections of all required members; None if one has none, or has shown nothing yet."""
        required = self.leadership.required
        if self.leadership.is_ended:
            return None
        held = self.copies.held
        found = [slave for slave in self.copies.slaves if slave.member in required and held(slave) >= 0]
        return found if len(found) == len(required) else None

    def answer(self, next_offset: int) -> PutMessageStatus | None:
        """PUT_OK if no member is required.

        A member that is gone delays puts until the coordinator has left it out of ``sync``: then they complete.
        """
        return None if self.leadership.required or self.leadership.is_ended else PutMessageStatus.PUT_OK

    def enough_for_puts(self) -> bool:
        """Whether minInSyncReplicas are reached by required members less than haSlaveFallbehindMax bytes behind."""
        if not self._members_for_puts:
            return True
        end = self.copies.commit_log.verified_offset
        held = [self.held(name) for name in self.leadership.required]
        near = [offset for offset in held if offset is not None and end - offset < self._near_bytes]
        return len(near) >= self._members_for_puts

    # What the node's agent asks

    @property
    def confirmed_offset(self) -> int:
        """The end of the log that every required member holds, or the log's end if none is required."""
        return self.copies.confirmed_offset

    def _connection(self, name: str) -> SlaveProgress | None:
        return next((slave for slave in self.copies.slaves if slave.member == name), None)

    def held(self, name: str) -> int | None:
        """Up to where a member is known to hold the log; None if it is not connected, or has shown nothing yet."""
        slave = self._connection(name)
        held = -1 if slave is None else self.copies.held(slave)
        return None if held < 0 else held

    def session(self, name: str) -> str | None:
        """The session of the process that shows what a member holds; None if it is not connected."""
        slave = self._connection(name)
        return None if slave is None else slave.session

    def holds(self, name: str, offset: int) -> bool:
        """Whether a member is known to hold the log up to an offset."""
        held = self.held(name)
        return held is not None and held >= offset

    @property
    def connected(self) -> frozenset[str]:
        """The names of the members that are connected."""
        return frozenset(slave.member for slave in self.copies.slaves if slave.member is not None)

    # What consumers may read: see InSyncSlaves

    def is_in_sync(self, slave: SlaveProgress | None) -> bool:
        """Whether consumers read only what this slave holds."""
        return slave in self.in_sync

    @property
    def in_sync(self) -> list[SlaveProgress]:
        """The connected members that puts wait for."""
        return [slave for slave in self.copies.slaves if slave.member in self.leadership.required]

    def why(self) -> str:
        """Why the confirmed end does not grow."""
        for name in sorted(self.leadership.required):
            held = self.held(name)
            if held is None:
                return f"member {name} is in the sync set, and is not connected"
            if held <= self.confirmed_offset:
                return f"member {name} holds the log only up to {held}"
        return "nothing was put"
