"""The HTTP port of a name server: metrics, health checks, and a page with all registered brokers."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client.metrics_core import Metric as Family
from twisted.internet.interfaces import IReactorTime, IStreamServerEndpoint

import rmqha
from rmqha.coordination.witness.http import WitnessFactory
from rmqha.failover.keys import LEADER, MEMBERS, ROOT, InvalidKey, Leader, decode
from rmqha.ha.slave.contact import iso_of
from rmqha.kit.histogram import Histogram
from rmqha.kit.steps import Steps
from rmqha.namesrv.routeinfo import LiveBroker, RouteInfoManager
from rmqha.net.tls.endpoints import ServerTLS
from rmqha.ops.listening import IPortOwner
from rmqha.remoting.protocol import RemotingFactory
from rmqha.web.exposition import Common, ManySeries, MetricsText, TextFormat, capped, exposing
from rmqha.web.nodemetrics import build_info, of_process
from rmqha.web.nodeweb import HTML, JSON, WebService, metrics_handler, page_of, refresh_of
from rmqha.web.page import Facts, FactsPage, environment, security_headers, shown
from rmqha.web.sampling import RecentWarnings, time_turns
from rmqha.web.server import Handler, Server, text_page
from rmqha.web.sharing import SharedWork

SHOWN_BROKERS = 300
SHOWN_MEMBERS = 20
CLUSTER_KEY = re.compile(rf"{ROOT}/(?P<cluster>[^/]+)/(?P<broker>[^/]+)/(?P<rest>.+)", re.DOTALL)
MAX_BROKERS = 2000
"""The addresses that metrics and the page look at."""


@dataclass(frozen=True, slots=True)
class NameServerFacts:
    """Where to read: the routes, the port, and what is logged. All of it is live.

    ``witness`` is the port of its witness, if it runs one. ``tls`` is for the HTTP port and, if it is not switched off
    there, for that of the name server.
    """

    routes: RouteInfoManager
    factory: RemotingFactory
    warnings: RecentWarnings = field(default_factory=RecentWarnings)
    turns: Histogram | None = None
    witness: WitnessFactory | None = None
    tls: ServerTLS | None = None

    def ports(self, server: Server) -> dict[str, tuple[int, Mapping[str, int]]]:
        """For each port how many connections are open, and how many were refused, by reason."""
        found: dict[str, tuple[int, Mapping[str, int]]] = {
            "name server": (self.factory.connections, {"too many connections": self.factory.refused}),
            "http": (len(server.channels), server.pages.refused),
        }
        return found if self.witness is None else found | {"witness": self.witness.counts}


def masters_of(brokers: list[LiveBroker]) -> dict[tuple[str, str], int]:
    """By cluster and name of each broker: how many of its addresses say that they are its master."""
    masters = Counter((each.cluster, each.name) for each in brokers if each.broker_id == 0)
    return {(each.cluster, each.name): masters[each.cluster, each.name] for each in brokers}


def witness_facts(witness: WitnessFactory) -> Facts:
    """What a witness keeps: how much, and who leads each cluster. Odd keys are left out."""
    service = witness.calls.service
    clusters: dict[tuple[str, str], dict[str, bytes]] = {}
    for key, each in service.state.keys.items():
        found = CLUSTER_KEY.fullmatch(key)
        if found is not None:
            clusters.setdefault((found["cluster"], found["broker"]), {})[found["rest"]] = each.value
    return {
        "keys": len(service.state.keys),
        "leases": len(service.state.leases),
        "revision": service.state.revision,
        "failure": service.failure,
        "clusters": [
            {"cluster": cluster, "name": broker, **_leadership(keys)}
            for (cluster, broker), keys in sorted(clusters.items())[:SHOWN_BROKERS]
        ],
    }


def _leadership(keys: Mapping[str, bytes]) -> Facts:
    """Who leads a cluster with these keys, and its members."""
    leader = None
    with suppress(InvalidKey):
        leader = decode(Leader, LEADER, keys[LEADER]) if LEADER in keys else None
    members = sorted(name.removeprefix(MEMBERS) for name in keys if name.startswith(MEMBERS))
    return {
        "leader": None if leader is None else leader.node,
        "epoch": None if leader is None else leader.epoch,
        "members": members[:SHOWN_MEMBERS],
    }


class NameServerMetrics(MetricsText):
    """Makes the text of all metrics."""

    def __init__(self, facts: NameServerFacts, server: Server) -> None:
        self._facts = facts
        self._server = server

    def text(self, form: TextFormat) -> Steps[bytes]:
        """See ``MetricsText``."""
        return exposing(_families(self._facts, self._server), form)


def _families(facts: NameServerFacts, server: Server) -> Iterator[Family | ManySeries]:
    common = Common("", "nameserver", "")
    brokers = facts.routes.live_brokers(MAX_BROKERS)
    yield build_info(common)
    yield common.value("rmqha_namesrv_brokers", facts.routes.broker_count)
    masters = Counter[tuple[str]]()
    for (_, name), count in masters_of(brokers).items():
        masters[name,] += count
    yield common.many("rmqha_namesrv_masters", capped(masters))
    ages = {(each.name, each.address): each.age for each in brokers}
    yield common.many("rmqha_namesrv_broker_age_seconds", capped(ages))
    yield common.value(
        "rmqha_certificate_expiry_timestamp_seconds", None if facts.tls is None else facts.tls.expires_at
    )
    yield from of_process(common, facts.ports(server), facts)


class ClusterPage(FactsPage):
    """The page of a name server."""

    def __init__(self, facts: NameServerFacts, server: Server) -> None:
        self._facts = facts
        self._server = server
        self._template = environment().get_template("cluster.html")
        self.headers = security_headers(self._template.render(self._page_of(self._facts_of([], {}))))

    def status(self) -> Steps[Facts]:
        """See ``FactsPage``."""
        brokers = self._facts.routes.live_brokers(MAX_BROKERS)
        yield
        ports = {
            port: {"connections": connections, "refused": dict(refused)}
            for port, (connections, refused) in self._facts.ports(self._server).items()
        }
        found: Facts = shown(self._facts_of(brokers, ports))
        return found

    def _facts_of(self, brokers: list[LiveBroker], ports: Mapping[str, Any]) -> Facts:
        masters = masters_of(brokers)
        return {
            "version": rmqha.__version__,
            "time": iso_of(time.time()),
            "topics": self._facts.routes.topic_count,
            "brokersCount": self._facts.routes.broker_count,
            "twoMasters": [name for (_, name), count in masters.items() if count > 1][:SHOWN_BROKERS],
            "withoutMaster": [name for (_, name), count in masters.items() if not count][:SHOWN_BROKERS],
            "brokers": [
                {
                    "cluster": each.cluster,
                    "name": each.name,
                    "brokerId": each.broker_id,
                    "address": each.address,
                    "haAddress": each.ha_address,
                    "software": each.software,
                    "ageSeconds": round(each.age, 1),
                    "isRouted": each.is_routed,
                }
                for each in brokers[:SHOWN_BROKERS]
            ],
            "ports": ports,
            "witness": None if self._facts.witness is None else witness_facts(self._facts.witness),
            "log": [each._asdict() for each in reversed(self._facts.warnings.last)],
        }


def name_server_web(
    endpoint: IStreamServerEndpoint, facts: NameServerFacts, owner: IPortOwner, reactor: Any
) -> WebService:
    """The HTTP port of a name server. The reactor's turns are timed from now on."""
    clock = IReactorTime(reactor)
    facts = replace(facts, turns=time_turns(reactor))
    server = Server({}, clock)
    server.pages.add(name_server_handlers(facts, SharedWork(clock), server))
    if facts.tls is not None:
        endpoint = facts.tls.endpoint(endpoint, clock, lambda host, reason: None)
    return WebService(endpoint, facts.tls, server, facts.warnings, owner)


def name_server_handlers(facts: NameServerFacts, shared: SharedWork, server: Server) -> dict[str, Handler]:
    """The pages of a name server by path."""
    page = ClusterPage(facts, server)
    works = text_page(200, "the name server answers")
    return {
        "/": lambda query: shared.ask(
            ("/", refresh_of(query)), lambda: page_of(page.html(refresh_of(query)), HTML, page.headers)
        ),
        "/status.json": lambda _: shared.ask("/status.json", lambda: page_of(page.json(), JSON)),
        "/metrics": metrics_handler(shared, NameServerMetrics(facts, server)),
        "/liveness": lambda _: works,
        "/readiness": lambda _: works,
    }
