"""What a slave's connections have brought, and so how long it waits before the next one."""

from twisted.application.internet import backoffPolicy

from rmqha.ha.slave.states import VERDICTS, ReplicaState
from rmqha.kit.connecting import GROWING_RETRIES, RetryLines
from rmqha.kit.trouble import Trouble

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 30.0
MISFIT_RETRY_SECONDS = 60.0
"""Between two attempts at a master that cannot be copied as it is: its configuration may change."""
FRUITLESS_CONNECTIONS_THAT_PROVE_A_GAP = 4
"""Our masters refuse a request for deleted bytes; Java masters only send heartbeats."""


class Attempts:
    """Counts the connections in a row that have brought nothing, and remembers why the last one ended.

    ``obstacle`` is why the master cannot be copied with our configuration, if that is so.
    """

    def __init__(self, lines: RetryLines) -> None:
        self._lines = lines
        self._backoff = backoffPolicy(FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS)
        self._end_at_connect = -1
        self._no_room = Trouble()
        self._waits_for_room = False
        self._failure_is_told = False
        self.failure = "the connection is gone"
        self.fruitless = 0
        self.obstacle: str | None = None

    @property
    def are_quiet(self) -> bool:
        """Whether enough connections have brought nothing, or the disk is full, so the next one needs no log lines."""
        return self._no_room.lasts or self.fruitless >= GROWING_RETRIES

    @property
    def prove_a_gap(self) -> bool:
        """Whether enough have brought nothing: the master may have deleted what comes next."""
        return self.fruitless >= FRUITLESS_CONNECTIONS_THAT_PROVE_A_GAP

    def begin(self, end: int) -> None:
        """A connection begins while our log ends at ``end``."""
        self._end_at_connect = end

    def failed(self, reason: str) -> None:
        """There is no connection."""
        self.failure = reason

    def ended(self, reason: str) -> None:
        """The connection ends, and the log says why unless it is quiet."""
        self.failure, self._failure_is_told = reason, not self.are_quiet

    def explain(self, state: ReplicaState) -> str | None:
        """Why the slave is in this state, if that is because of its attempts; else None."""
        if state in VERDICTS or state is ReplicaState.STOPPED:
            return None
        if self.obstacle is not None:
            return self.obstacle
        if state is ReplicaState.CONNECTING:
            return self.failure
        if state is ReplicaState.HANDSHAKE and self.fruitless:
            return f"connected, and waiting for the master; the connection before ended: {self.failure}"
        return None

    def delay(self, failed_attempts: int) -> float:
        """Back off by failed attempts and by connections that brought nothing, whichever are more."""
        seconds: float = self._backoff(max(failed_attempts, self.fruitless))
        if self.obstacle is not None:
            seconds = max(seconds, MISFIT_RETRY_SECONDS)
        self._lines.retry(self.obstacle or self.failure, seconds, self._failure_is_told)
        self._failure_is_told = False
        return seconds

    def copy(self, is_in_sync: bool) -> None:
        """The slave copies, or holds all."""
        if is_in_sync:
            self._no_room.ends()
        if not self._no_room.lasts:
            self._lines.connected()

    def found_no_room(self) -> bool:
        """The disk is full: the connection ends, and the next one goes on from there. True if that is new."""
        self._waits_for_room = True
        return self._no_room.begins()

    def take_want_of_room(self) -> bool:
        """Whether the connection that is gone ended because the disk is full."""
        waited, self._waits_for_room = self._waits_for_room, False
        return waited

    def brought(self, end: int) -> None:
        """The connection is gone, and our log ends at ``end``."""
        self.fruitless = self.fruitless + 1 if end == self._end_at_connect else 0
