"""What both coordinators for tests keep: keys and leases in memory. Leases end by a clock."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.coordination.interface import Change, Compare, Delete, Put, Snapshot, TransactionResult
from rmqha.coordination.state import End, KeysAndLeases, Operation


class KeyStore(ABC):
    """Does what clients ask, at once. Subclasses bring requests and answers, and tell watches."""

    def __init__(self, clock: IReactorTime) -> None:
        self.clock = clock
        self.cluster_id = 1
        self.state = KeysAndLeases()
        self._is_up = True
        self._expiry: IDelayedCall | None = None

    # What differs

    @abstractmethod
    def new_lease(self) -> int:
        """An id that no lease had before."""

    @abstractmethod
    def changed(self, changes: tuple[Change, ...]) -> None:
        """The state has these changes, at its newest revision."""

    def lease_ends(self, lease: int) -> None:  # noqa: B027  # who need not know of it does nothing
        """The time of this lease is over."""

    # What a client asks. All raise CoordinatorError.

    def grant(self, ttl: int) -> int:
        """A new lease."""
        operation = self.state.grant(ttl, self.new_lease())
        self.do(operation)
        return operation.lease

    def keep_alive(self, lease: int) -> int:
        """The lease's ttl, which begins again."""
        ttl = self.state.keep_alive(lease, self.clock.seconds())
        self._schedule_expiry()
        return ttl

    def time_to_live(self, lease: int) -> int:
        """For how many seconds the lease lives."""
        return self.state.time_to_live(lease, self.clock.seconds())

    def revoke(self, lease: int) -> None:
        """The lease ends, if there is one."""
        self.do(End(lease))

    def range(self, prefix: str) -> Snapshot:
        """The keys that start with this."""
        return self.state.range(prefix)

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        """Write, if all comparisons are true."""
        write = self.state.transaction(compares, writes)
        if write is not None:
            self.do(write)
        return self.state.result(write)

    # Time

    def do(self, operation: Operation) -> None:
        """Change the state, and tell the watches."""
        changes = self.state.apply(operation, self.clock.seconds())
        if changes:
            self.changed(changes)
        self._schedule_expiry()

    def go_down(self) -> None:
        """No lease ends for some time."""
        self._is_up = False
        self._schedule_expiry()

    def go_up(self) -> None:
        """Go on after that."""
        self._is_up = True
        self.start_again(self.state)

    def start_again(self, state: KeysAndLeases) -> None:
        """Go on with this state. Each lease has its whole time again."""
        self.state = state
        state.start_leases(self.clock.seconds())
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()
        self._expiry = None
        end = self.state.next_end
        if end is not None and self._is_up:
            self._expiry = self.clock.callLater(max(0.0, end - self.clock.seconds()), self._expire)

    def _expire(self) -> None:
        for end in self.state.overdue(self.clock.seconds()):
            self.lease_ends(end.lease)
            self.do(end)
        self._schedule_expiry()
