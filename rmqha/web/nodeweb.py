"""The HTTP port of a node as a service."""

from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamServerEndpoint

from rmqha.kit.steps import Steps
from rmqha.net.tls.endpoints import ServerTLS
from rmqha.ops.listening import IPortOwner, ListeningService
from rmqha.web.exposition import MetricsText, TextFormat
from rmqha.web.health import CHECKS, cluster_handlers, handler_of
from rmqha.web.interfaces import IShownNode
from rmqha.web.nodemetrics import NodeMetrics
from rmqha.web.page import REFRESH_SECONDS, StatusPage
from rmqha.web.sampling import RecentWarnings, Sampler, time_turns
from rmqha.web.server import Handler, Page, Query, Server
from rmqha.web.sharing import SharedWork
from rmqha.web.watchednode import WatchedNode

HTML = "text/html; charset=utf-8"
JSON = "application/json"


class WebService(MultiService):
    """Listens for HTTP while it runs. If it cannot, it tells the owner."""

    def __init__(
        self,
        endpoint: IStreamServerEndpoint,
        tls: ServerTLS | None,
        server: Server,
        warnings: RecentWarnings,
        owner: IPortOwner,
    ) -> None:
        MultiService.__init__(self)
        self._warnings = warnings
        self.server = server
        security = "plain" if tls is None else str(tls)
        ListeningService(endpoint, server, "http", security, owner.cannot_listen).setServiceParent(self)

    def startService(self) -> None:
        self._warnings.start()
        MultiService.startService(self)

    def stopService(self) -> Deferred[None]:
        """Close the port and all connections."""
        self._warnings.stop()
        self.server.close_connections()
        stopped: Deferred[None] = MultiService.stopService(self)
        return stopped


def node_web(endpoint: IStreamServerEndpoint, tls: ServerTLS | None, node: IShownNode, reactor: Any) -> WebService:
    """The HTTP port of a node."""
    clock = IReactorTime(reactor)
    facts = WatchedNode(node, tls, RecentWarnings(), time_turns(reactor), Sampler(node, clock))
    server = Server({}, clock)
    server.pages.add(node_handlers(facts, SharedWork(clock), server))
    web = WebService(endpoint, tls, server, facts.warnings, node)
    facts.sampler.setServiceParent(web)
    return web


def node_handlers(facts: WatchedNode, shared: SharedWork, server: Server) -> dict[str, Handler]:
    """The pages of a node by path."""
    page = StatusPage(facts, server)
    return {
        "/": lambda query: shared.ask(
            ("/", refresh_of(query)), lambda: page_of(page.html(refresh_of(query)), HTML, page.headers)
        ),
        "/status.json": lambda _: shared.ask("/status.json", lambda: page_of(page.json(), JSON)),
        "/metrics": metrics_handler(shared, NodeMetrics(facts, server)),
        **{path: handler_of(check, facts) for path, check in CHECKS.items()},
        **cluster_handlers(facts),
    }


def refresh_of(query: Query) -> int:
    """After how many seconds the browser asks again; 0 for never, if the address says so."""
    return 0 if query.parameters.get("refresh") == "0" else REFRESH_SECONDS


def metrics_handler(shared: SharedWork, metrics: MetricsText) -> Handler:
    """Answers scrapes: as OpenMetrics if that is accepted, and compressed if that is."""

    def answer(query: Query) -> Deferred[Page]:
        form = TextFormat("application/openmetrics-text" in query.accept, query.takes_gzip)
        headers = {"Content-Encoding": "gzip"} if form.gzip else {}
        headers["Vary"] = "Accept, Accept-Encoding"
        return shared.ask(form, lambda: page_of(metrics.text(form), form.content_type, headers))

    return answer


def page_of(body: Steps[bytes], content_type: str, headers: dict[str, str] | None = None) -> Steps[Page]:
    """Make an answer of a body that is made in steps."""
    made = yield from body
    return Page(200, content_type, made, headers or {})
