"""A node's live objects for tests, without a reactor."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from twisted.internet.defer import Deferred, execute, succeed
from zope.interface import implementer

from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.ha.master.serving import LogServing
from rmqha.node.replicating import state_of_log
from rmqha.ops.places import Place
from rmqha.settings.settings import Settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.web.interfaces import ILiveNode, IShownNode
from rmqha.web.nodeweb import node_handlers
from rmqha.web.sampling import DiskFacts, RecentWarnings, Sampler
from rmqha.web.server import Page, Query, Server
from rmqha.web.sharing import SharedWork
from rmqha.web.watchednode import WatchedNode
from tests.broker.brokerstore import BrokerStoreTestCase, WallClockOf


@implementer(ILiveNode)
@dataclass
class FakeNode:
    """An open node whose state is as the test says."""

    store: MessageStore
    broker: Any
    serving: LogServing | None
    state_facts: dict[str, Any]
    slave: Any = None
    factories: dict[str, Any] = field(default_factory=dict)

    def state(self) -> NodeState:
        """From the log, with the test's facts."""
        return replace(state_of_log(self.store, self.store.settings, self.serving), **self.state_facts)


@implementer(IShownNode)
class FakeShownNode:
    """A node that is in the state that the test case has."""

    def __init__(self, case: "NodeWebTestCase") -> None:
        self._case = case
        self.cluster_facts: Callable[[int], dict[str, Any] | None] = lambda _: None

    @property
    def settings(self) -> Settings:
        return self._case.settings

    def shown_phase(self) -> str:
        return self._case.phase

    def live_node(self) -> ILiveNode | None:
        return self._case.node

    def how_far(self) -> Place | None:
        return self._case.place

    def cluster(self, changes: int) -> dict[str, Any] | None:
        return self.cluster_facts(changes)

    def run_in_table_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        """The disk is as the test says."""
        return succeed(self._case.disk)

    def cannot_listen(self, reason: str) -> None:
        raise AssertionError(reason)


class NodeWebTestCase(BrokerStoreTestCase):
    """``begin`` makes a node of a role, and its pages."""

    node: FakeNode | None
    place: Place | None = None
    """How far a long work of the node is."""

    def begin(self, role: str = "ASYNC_MASTER", state: str = "SERVING", **properties: str) -> FakeNode:
        """A node whose store is open. ``self.phase`` is what it is doing."""
        self.open(role, **properties)
        broker = BrokerService(
            self.settings,
            self.store,
            self.clock,
            execute,
            Surroundings("127.0.0.1"),
            wall=WallClockOf(self.clock),
        )
        serving = LogServing(self.store, self.settings, self.clock)
        self.node = FakeNode(self.store, broker, serving, {"state": state})
        self.phase = "RUNNING"
        self.disk = DiskFacts(0.5, 10**9, 2 * 10**9)
        self.serve()
        return self.node

    def serve(self) -> None:
        """Make the pages."""
        self.shown = FakeShownNode(self)
        self.sampler = Sampler(self.shown, self.clock)
        self.warnings = RecentWarnings()
        self.facts = WatchedNode(self.shown, None, self.warnings, None, self.sampler)
        self.serve_pages()

    def serve_pages(self) -> None:
        """Make the server."""
        self.server = Server({}, self.clock)
        self.server.pages.add(node_handlers(self.facts, SharedWork(self.clock), self.server))

    def get(self, path: str, accept: str = "", takes_gzip: bool = False, **parameters: str) -> Page:
        """The answer, when it is made."""
        found = self.server.pages._handlers[path](Query(parameters, accept, takes_gzip))
        if isinstance(found, Page):
            return found
        results: list[Page] = []
        found.addCallback(results.append)
        for _ in range(1000):
            if results:
                break
            self.clock.advance(0.01)
        return results[0]

    def verdict(self, path: str, **parameters: str) -> tuple[int, str]:
        """The code and the line of a health check."""
        page = self.get(path, "", False, **parameters)
        return page.code, page.body.decode().strip()
