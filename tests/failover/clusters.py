"""A cluster's keys in a coordinator of memory, without nodes: tests write what nodes would write."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from rmqha.coordination.interface import Delete, Put
from rmqha.failover.keys import (
    ANSWER,
    CONFIG,
    EPOCH,
    LEADER,
    MEMBERS,
    REQUEST,
    STATUS,
    SYNC,
    Answer,
    Cause,
    ClusterConfig,
    EpochEntry,
    History,
    Holder,
    Leader,
    Member,
    Request,
    Status,
    SyncSet,
    encode,
    prefix_of,
)
from rmqha.failover.view import ClusterView
from rmqha.testing.coordinator import MemoryCoordinator, MemoryStore

CLUSTER, BROKER = "Test", "broker-a"
PREFIX = prefix_of(CLUSTER, BROKER)
LONG_AGO = "2026-11-01T00:00:00.000+00:00"
END = 5000
MAX_STEPS = 10_000

Result = TypeVar("Result")


def member(name: str, end: int = END, **fields: Any) -> Member:
    """A follower of node-a that runs."""
    followed: dict[str, Any] = {"known_epoch": 1, "follows": "node-a", "reason": "node-a leads"}
    told: dict[str, Any] = {"store": f"store-{name}", "ha": f"{name}:10912", "remoting": f"{name}:10911", "end": end}
    return Member(name, f"session-{name}", "boot", **{"state": "IN_SYNC", **followed, **told, **fields})


class Keys:
    """Writes the keys of one cluster."""

    def __init__(self, clock: Clock, prefix: str = PREFIX, store: MemoryStore | None = None) -> None:
        self.clock = clock
        self.prefix = prefix
        self.store = store or MemoryStore(clock)
        self.writer: MemoryCoordinator = self.store.client("writer")

    def run(self, work: Coroutine[Any, Any, Result], meanwhile: Callable[[], None] = lambda: None) -> Result:
        """The result of work that may wait for the clock. ``meanwhile`` is called after each step of time."""
        done: list[Result | Failure] = []
        Deferred.fromCoroutine(work).addBoth(done.append)
        for _ in range(MAX_STEPS):
            if done:
                break
            self.clock.advance(0.05)
            meanwhile()
        (found,) = done
        if isinstance(found, Failure):
            found.raiseException()
        return found

    def put(self, name: str, value: object, lease: int = 0) -> None:
        """Write a key: as it is if it is bytes, else as JSON. It ends with the lease; 0: with none."""
        content = value if isinstance(value, bytes) else encode(value)
        self._write(Put(self.prefix + name, content, lease))

    def delete(self, name: str) -> None:
        """Delete a key."""
        self._write(Delete(self.prefix + name))

    def _write(self, write: Put | Delete) -> None:
        writing = self.writer.transact([], [write])
        self.clock.advance(0)
        assert writing.called

    def raw(self, name: str) -> bytes | None:
        """What the store holds of a key."""
        held = self.store.state.range(self.prefix).keys.get(self.prefix + name)
        return None if held is None else held.value

    def view(self) -> ClusterView:
        """All keys."""
        return ClusterView.read(self.prefix, self.store.state.range(self.prefix))

    def lead(self, *followers: Member, config: ClusterConfig | None = None) -> None:
        """node-a leads, and the followers are in its sync set."""
        leader = member("node-a", state="LEADER", follows="", reason="it leads")
        self.put(LEADER, Leader("node-a", leader.session, 1))
        self.put(EPOCH, History((EpochEntry(1, "node-a", 0, LONG_AGO, Cause.FIRST.value),)))
        self.put(STATUS, Status(1, END, END))
        holders = {each.name: Holder(each.store, each.boot) for each in (leader, *followers)}
        self.put(SYNC, SyncSet(1, "node-a", holders))
        for each in (leader, *followers):
            self.put(MEMBERS + each.name, each)
        if config is not None:
            self.put(CONFIG, config)

    def answering(self, answer: Callable[[Request], tuple[bool, str]]) -> Callable[[], None]:
        """What answers the next order, as nodes do."""

        def look() -> None:
            order = self.view().request
            if order is not None:
                is_done, text = answer(order)
                self.put(ANSWER, Answer(order.id, is_done, text))
                self.delete(REQUEST)

        return look
