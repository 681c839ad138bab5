"""What a slave asks of the node around it."""

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from zope.interface import Interface

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.exitcodes import ExitCode


class ISlaveOwner(Interface):
    """The node that a slave belongs to."""

    def finished(code: ExitCode, reason: str) -> None:
        """A ``--once`` run is done."""

    def disk_failed(failure: Failure) -> None:
        """A read or write of the disk has failed."""

    def in_state(state: ReplicaState) -> None:
        """The slave has changed its state, or knows more about why it is in it."""

    def queues_behind() -> int:
        """How many bytes of the log are in no queue yet."""

    def wall_seconds() -> float:
        """The seconds since 1970."""

    def rewind() -> bool:
        """Cut the log back to where it and the master's part. Returns false if the node cannot do that now."""

    def state_written() -> Deferred[None]:
        """Fires when no thread writes state.json, and none starts to in the same turn of the reactor."""
