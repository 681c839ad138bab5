"""A leader's right to act, with automatic failover: until when, in which epoch, and for whom its puts wait.

The node's agent (``rmqha.failover``) changes it; the data path asks it before each append and before each answer.
"""

from collections.abc import Callable, Mapping

from rmqha.wire.transfer import Hello


def _nothing() -> None:
    """Nobody wants to know of changes."""


class Leadership:
    """The right to act as the leader in one epoch. It starts with ``until``, and can only be extended or ended.

    ``now`` is a clock in seconds that neither stops while the machine sleeps nor follows the wall clock
    (CLOCK_BOOTTIME): what it shows is compared with ``until`` at each use, so that a process that was stopped meets
    this check first when it goes on.
    """

    def __init__(self, epoch: int, now: Callable[[], float], until: float) -> None:
        self.epoch = epoch
        self._now = now
        self._until = until
        self._is_ended = False
        self._takes_puts = True
        self.required: frozenset[str] = frozenset()
        """The names of the members that must hold a message before its put is answered with PUT_OK."""
        self.sessions: Mapping[str, str] = {}
        """The names of the members that may follow, by the session that each shows when it connects."""
        self._changed = _nothing

    @property
    def until(self) -> float:
        """When the right ends, in seconds of ``now``."""
        return self._until

    def extend(self, until: float) -> None:
        """The right lasts at least until then."""
        self._until = max(self._until, until)

    def is_held(self) -> bool:
        """Whether the node may append and answer now."""
        return not self._is_ended and self._now() < self._until

    def takes_puts(self) -> bool:
        """Whether the node may take a new message now."""
        return self._takes_puts and self.is_held()

    def hold_puts(self, are_held: bool) -> None:
        """Refuse new messages while a successor catches up, or take them again."""
        self._takes_puts = not are_held

    def end(self) -> None:
        """The node does not lead any more. That is for good: a later epoch has a leadership of its own."""
        self._is_ended = True
        self._changed()

    @property
    def is_ended(self) -> bool:
        """Whether ``end`` was called."""
        return self._is_ended

    def require(self, names: frozenset[str]) -> None:
        """Puts wait for these members from now on.

        A member may be left out only after the coordinator's ``sync`` has been written without it.
        """
        if names != self.required:
            self.required = names
            self._changed()

    def member_of(self, hello: Hello) -> str | None:
        """The member that shows this when it connects; None if it is not known, or follows another epoch."""
        is_ours = hello.epoch == self.epoch and not self._is_ended
        return self.sessions.get(hello.session.hex()) if is_ours else None

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each change of ``required``, and at the end."""
        self._changed = changed
