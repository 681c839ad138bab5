"""The pages of a name server: all brokers, two masters, hostile names."""

import json

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import Put
from rmqha.coordination.state import Write
from rmqha.coordination.witness.calls import Logins, WitnessCalls
from rmqha.coordination.witness.http import WitnessFactory
from rmqha.coordination.witness.witnessservice import WitnessService
from rmqha.failover.keys import Leader, encode
from rmqha.namesrv.peers import Peer
from rmqha.namesrv.routeinfo import Registration, RouteInfoManager
from rmqha.remoting.protocol import RemotingFactory
from rmqha.web.namesrvweb import NameServerFacts, name_server_handlers
from rmqha.web.sampling import RecentWarnings
from rmqha.web.server import Page, Query, Server
from rmqha.web.sharing import SharedWork
from tests.coordination.peers import PeersDouble
from tests.fixtures import new_folder
from tests.web.test_exposition import HOSTILE, values_in
from tests.web.test_node_pages import MARKUP, Outline


class ClusterPageTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.routes = RouteInfoManager(self.clock)
        self.serve()

    def serve(self, witness: WitnessFactory | None = None) -> None:
        facts = NameServerFacts(self.routes, RemotingFactory({}, self.clock), RecentWarnings(), None, witness)
        self.server = Server({}, self.clock)
        self.server.pages.add(name_server_handlers(facts, SharedWork(self.clock), self.server))

    def register(self, name: str, broker_id: int, address: str) -> object:
        connection = object()
        self.routes.register_broker(
            Registration("C", name, address, broker_id, f"{address}-ha", software="JAVA 397"), Peer(connection)
        )
        return connection

    def get(self, path: str) -> Page:
        found = self.server.pages._handlers[path](Query({}, "", False))
        if isinstance(found, Page):
            return found
        results: list[Page] = []
        found.addCallback(results.append)
        while not results:
            self.clock.advance(0.01)
        return results[0]

    def test_brokers_with_their_roles_and_versions(self) -> None:
        self.register("broker-a", 0, "10.0.0.1:10911")
        self.register("broker-a", 1, "10.0.0.2:10911")
        words = Outline(self.get("/").body).words
        for text in ("10.0.0.1:10911", "10.0.0.2:10911-ha", "JAVA 397", "slave 1", "2 registered addresses"):
            self.assertIn(text, words)
        found = json.loads(self.get("/status.json").body)
        self.assertEqual((found["twoMasters"], found["withoutMaster"]), ([], []))
        self.assertEqual(values_in(self.get("/metrics").body)["rmqha_namesrv_masters", "broker-a", "nameserver"], 1)

    def test_two_masters_of_a_name(self) -> None:
        """The second one displaces the first, which registers again and again, and displaces it in turn."""
        for _ in range(3):
            self.register("broker-a", 0, "10.0.0.1:10911")
            self.register("broker-a", 0, "10.0.0.2:10911")
        self.assertEqual(json.loads(self.get("/status.json").body)["twoMasters"], ["broker-a"])
        self.assertIn("broker-a has more than one master", Outline(self.get("/").body).words)
        self.assertEqual(values_in(self.get("/metrics").body)["rmqha_namesrv_masters", "broker-a", "nameserver"], 2)

    def test_a_displaced_master_that_unregisters_is_forgotten(self) -> None:
        self.register("broker-a", 0, "10.0.0.1:10911")
        self.register("broker-a", 0, "10.0.0.2:10911")
        self.routes.unregister_broker("broker-a", "10.0.0.1:10911", 0)
        self.assertEqual(json.loads(self.get("/status.json").body)["twoMasters"], [])
        self.assertEqual(self.routes.broker_count, 1)
        self.routes.unregister_broker("broker-a", "10.0.0.2:10911", 7)  # not what it is registered as
        self.assertEqual(self.routes.broker_count, 1)

    def test_a_name_without_a_master(self) -> None:
        self.register("broker-b", 1, "10.0.0.2:10911")
        self.assertEqual(json.loads(self.get("/status.json").body)["withoutMaster"], ["broker-b"])

    def test_the_witness_shows_what_it_keeps_and_who_leads(self) -> None:
        self.assertIsNone(json.loads(self.get("/status.json").body)["witness"])
        self.assertNotIn("Witness", Outline(self.get("/").body).words)
        service = WitnessService(self.clock, new_folder(self) / "witness", lambda work: execute(work))
        self.addCleanup(service.stopService)
        self.serve(WitnessFactory(WitnessCalls(service, Logins(None)), self.clock, PeersDouble(network="")))
        self.assertIn("No failover cluster", Outline(self.get("/").body).words)
        leader = encode(Leader("a", "s", 7))
        keys = {"/rmqha/C/b/leader": leader, "/rmqha/C/b/members/a": b"{}", "/rmqha/C/b/members/b": b"{}"}
        odd = {
            "/rmqha/C/odd/leader": b"no JSON",
            "/rmqha/C/gone/epoch": b"{}",
            "/else": b"",
            f"/rmqha/{MARKUP}/x/y": b"",
        }
        service.state.apply(Write(tuple(Put(key, value) for key, value in {**keys, **odd}.items())), 0.0)
        found = json.loads(self.get("/status.json").body)["witness"]
        self.assertEqual((found["keys"], found["leases"]), (7, 0))
        of_name = {each["name"]: each for each in found["clusters"]}
        shown = {"cluster": "C", "name": "b", "leader": "a", "epoch": 7, "members": ["a", "b"]}
        self.assertEqual(of_name["b"], shown)
        self.assertEqual([of_name[name]["leader"] for name in ("odd", "gone")], [None, None])
        words = Outline(self.get("/").body).words
        for text in ("7 keys", "a, b", "nobody leads"):
            self.assertIn(text, words)

    def test_displaced_is_explained_only_if_a_broker_is(self) -> None:
        self.register("broker-a", 0, "10.0.0.1:10911")
        self.assertNotIn("Displaced", Outline(self.get("/").body).words)
        self.register("broker-a", 0, "10.0.0.2:10911")
        self.assertIn("Displaced", Outline(self.get("/").body).words)

    def test_hostile_names(self) -> None:
        for number, name in enumerate((*HOSTILE, MARKUP)):
            self.register(name, number % 2, f"{name}:{number}")
        page = self.get("/")
        self.assertEqual(Outline(page.body).names & {"script", "img"}, set())
        self.assertTrue(all(line.isprintable() for line in page.body.decode().splitlines()))
        text = self.get("/metrics").body.decode()
        self.assertTrue(all(line.isprintable() for line in text.splitlines()))
        self.assertTrue(values_in(text.encode()))

    def test_very_many_brokers_fit_a_page(self) -> None:
        for number in range(3000):
            self.register(f"broker-{number:05}", 0, f"10.0.0.1:{number}")
        page = self.get("/")
        self.assertLess(len(page.body), 100 * 1024)
        self.assertIn("3000 registered addresses", Outline(page.body).words)

    def test_health(self) -> None:
        for path in ("/liveness", "/readiness"):
            self.assertEqual(self.get(path).code, 200)
