"""A node's live objects for tests, without a reactor."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from twisted.internet.defer import execute

from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.ha.master.serving import LogServing
from rmqha.node.replicating import state_of_log
from rmqha.ops.places import Place
from rmqha.settings.settings import Settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.web.nodefacts import NodeFacts, sample_of
from rmqha.web.nodeweb import node_handlers
from rmqha.web.sampling import DiskFacts, RecentWarnings, Sampler
from rmqha.web.server import Page, Query, Server
from rmqha.web.sharing import SharedWork
from tests.broker.brokerstore import BrokerStoreTestCase, WallClockOf


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
        settings: Callable[[], Settings] = lambda: self.settings  # noqa: E731
        self.sampler = Sampler(
            lambda: sample_of(self.node, self.clock.seconds()), lambda: self.disk, execute, self.clock
        )
        self.sampler.how_far = lambda: self.place
        self.warnings = RecentWarnings()
        self.facts = NodeFacts(settings, lambda: self.phase, lambda: self.node, None, self.warnings, None, self.sampler)
        self.server = Server(node_handlers(self.facts, SharedWork(self.clock), lambda: self.server), self.clock)

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
