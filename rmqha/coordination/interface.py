"""What a coordinator does for the nodes of a cluster: keys, leases, transactions and watches, as etcd has them.

A revision counts the transactions that changed something. It grows by one with each, and with each lease that ends
with its keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

DEFAULT_TIMEOUT_SECONDS = 2.0


class CoordinatorError(Exception):
    """A call of the coordinator failed. Its text is a sentence for people."""


class CoordinatorUnavailable(CoordinatorError):
    """No endpoint answered in time, or none has a leader. Whether a write was done is unknown."""


class CoordinatorRefused(CoordinatorError):
    """The coordinator answered, and said no: the login, a permission, or a bad request. Nothing was written."""


class NoCoordinator(CoordinatorRefused):
    """Something else answers at this address."""


class LeaseGone(CoordinatorError):
    """The lease has ended, and its keys with it."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it was at some revision."""

    key: str
    value: bytes
    create_revision: int
    """The revision at which the key came to exist."""
    mod_revision: int
    """The revision of its last put."""
    lease: int
    """The lease with which the key ends; 0 if none."""


@dataclass(frozen=True)
class Snapshot:
    """Keys as they were together, at one revision."""

    revision: int
    keys: Mapping[str, KeyValue]


class CompareTarget(Enum):
    """What of a key is compared. The values are etcd's names."""

    CREATE = "CREATE"
    MOD = "MOD"
    VALUE = "VALUE"


@dataclass(frozen=True, slots=True)
class Compare:
    """Whether something of a key equals ``value``. CREATE or MOD equal to 0: the key does not exist.

    VALUE takes bytes, and is false if the key does not exist; the others take a revision.
    """

    key: str
    target: CompareTarget
    value: int | bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. It ends with the lease; 0: with none."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key. Nothing happens if it does not exist."""

    key: str


@dataclass(frozen=True)
class TransactionResult:
    """Whether all comparisons were true, so that the writes were done, and the revision after that."""

    succeeded: bool
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a key. ``value`` is None if the key was deleted, also by the end of its lease."""

    key: str
    value: KeyValue | None


class IWatch(Interface):
    """Changes of keys, while they are watched."""

    def stop() -> None:
        """No more calls from now on. A second call does nothing."""


class ICoordinator(Interface):
    """A client of a coordinator.

    Each Deferred fires within ``timeout`` seconds, however many endpoints there are, and can be cancelled. It fails
    with CoordinatorUnavailable or CoordinatorRefused, or with what its method says. After a failure with
    CoordinatorUnavailable, or a cancellation, a write may have happened.
    """

    timeout: float = Attribute("How long a call may take, in seconds.")
    cluster_id: int | None = Attribute(
        "The id of the cluster that answered last; None before the first answer. A coordinator that lost its keys has "
        "another one."
    )

    def grant(ttl: int) -> Deferred[int]:
        """Make a lease that ends ``ttl`` seconds after it was granted or kept alive. Fires with its id."""

    def keep_alive(lease: int) -> Deferred[int]:
        """Start the lease's time anew. Fires with its ttl in seconds; fails with LeaseGone if it has ended."""

    def time_to_live(lease: int) -> Deferred[int]:
        """For how many seconds the lease lives if nobody keeps it alive; fails with LeaseGone if it has ended."""

    def revoke(lease: int) -> Deferred[None]:
        """End the lease and its keys now. Does nothing if it has ended already."""

    def range(prefix: str) -> Deferred[Snapshot]:
        """All keys that start with ``prefix``, with everything that was answered to anyone before (linearizable)."""

    def transact(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        """Do all writes if all comparisons are true, else none, at one revision. A key is written at most once.

        Fails with LeaseGone if a put names a lease that has ended.
        """

    def watch(
        prefix: str,
        revision: int,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> IWatch:
        """Call ``changed`` with each revision after ``revision`` that changes keys below ``prefix``, in order.

        ``ended`` is called once when the watch cannot go on: the connection broke, or the changes since ``revision``
        are no longer kept. The caller then reads ``range`` again. Neither is called before this method returns, nor
        after ``stop``.
        """

    def close() -> Deferred[None]:
        """End all calls and watches. ``ended`` of the watches is not called. Calls fail with CoordinatorUnavailable."""
