"""How rmqha doctor asks: everybody at once, whom name servers list too, and never longer than its limits."""

import orjson
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from rmqha.net.tls.endpoints import ClientTLS
from rmqha.ops.doctor.asking import MAX_HOSTS, AskedAbout, Asking, receive_buffer
from rmqha.ops.doctor.facts import Facts, Store
from rmqha.ops.ways import IWays, Ways
from rmqha.remoting.calls import CALL_TIMEOUT_SECONDS
from rmqha.remoting.protocol import Processor
from rmqha.store.nodestate import NodeState
from rmqha.wire.brokerinfo import NODE_STATE_KEY, read_brokers
from rmqha.wire.command import RemotingCommand, RequestCode
from tests.client.cluster import Server
from tests.fixtures import new_folder
from tests.ha.doubles import PEER, LineTransport


@implementer(IStreamClientEndpoint)
class Silent:
    """Somebody who never answers, or, if ``takes`` is true, takes a connection and says nothing."""

    def __init__(self, clock: Clock, takes: bool) -> None:
        self._clock = clock
        self._takes = takes
        self.received: list[LineTransport] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        if not self._takes:
            return Deferred()
        protocol = protocolFactory.buildProtocol(PEER)
        assert protocol is not None
        transport = LineTransport(self._clock)
        transport.attach(protocol)
        self.received.append(transport)
        return succeed(protocol)


@implementer(IWays)
class AskingTestCase(SynchronousTestCase):
    """Brokers and name servers in memory."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.places: dict[str, Server | Silent] = {}
        self.brokers: dict[str, dict[int, str]] = {}
        self.addCleanup(self.close)

    def close(self) -> None:
        """Nothing must go on once all connections have ended."""
        for place in self.places.values():
            if isinstance(place, Server):
                place.go_down()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def broker(self, address: str, broker_id: int = 0, **config: str) -> Server:
        """A Java broker at an address; its HA port takes connections."""
        host, _, port = address.rpartition(":")
        own = {"brokerName": "a", "brokerId": str(broker_id), "brokerIP1": host, "listenPort": port}
        own |= {"brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER", "brokerIP2": host}
        text = "\n".join(f"{key}={value}" for key, value in {**own, **config}.items())
        info = {"commitLogMinOffset": "0", "commitLogMaxOffset": "100", "bootTimestamp": "5"}
        processors: dict[int, Processor] = {
            RequestCode.GET_BROKER_CONFIG: lambda _, __: RemotingCommand(0, body=text.encode()),
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda _, __: RemotingCommand(0, body=orjson.dumps({"table": info})),
        }
        self.places[f"{host}:{int(port) + 1}"] = Silent(self.clock, takes=True)
        server = self.places[address] = Server(self.clock, processors)
        return server

    def name_server(self, address: str) -> Server:
        def answer(*_: object) -> RemotingCommand:
            table = {name: {"brokerAddrs": addresses} for name, addresses in self.brokers.items()}
            return RemotingCommand(0, body=orjson.dumps({"brokerAddrTable": table}, option=orjson.OPT_NON_STR_KEYS))

        server = self.places[address] = Server(self.clock, {RequestCode.GET_BROKER_CLUSTER_INFO: answer})
        return server

    def to(self, address: str) -> IStreamClientEndpoint:
        if address not in self.places:
            raise ValueError(f"{address} is not an address")
        return self.places[address]

    def ask(self, asked: AskedAbout, *stores: Store, seconds: float = 0.0) -> Facts:
        """The facts, once everybody has answered; ``seconds`` pass meanwhile."""
        asking = Deferred.fromCoroutine(Asking(self, self.clock, self.clock.seconds).facts(asked, stores))
        self.carry()
        self.clock.advance(seconds)
        self.carry()
        return self.successResultOf(asking)

    def carry(self) -> None:
        while any(place.carry() for place in self.places.values() if isinstance(place, Server)):
            self.clock.advance(0)


class AskingTests(AskingTestCase):
    def test_the_ways_are_those_that_it_asks_for(self) -> None:
        verifyObject(IWays, self)
        verifyObject(IWays, Ways(self.clock, ClientTLS()))

    def test_a_host_leads_to_its_name_server_and_its_slave(self) -> None:
        self.broker("m:1", namesrvAddr="ns:1")
        self.broker("s:1", broker_id=1)
        self.broker("other:1")
        self.name_server("ns:1")
        self.brokers = {"a": {0: "m:1", 1: "s:1"}, "b": {0: "other:1"}}
        facts = self.ask(AskedAbout(("m:1",)))
        self.assertEqual(
            [(host.name, host.given, host.problem) for host in facts.hosts], [("m:1", True, None), ("s:1", False, None)]
        )
        self.assertEqual([dict(server.brokers["a"]) for server in facts.name_servers], [{0: "m:1", 1: "s:1"}])
        self.assertEqual(facts.connects, {"m:1": None, "m:2": None, "s:1": None})

    def test_a_name_server_alone_leads_to_all_brokers(self) -> None:
        self.broker("m:1")
        self.broker("other:1", brokerName="b")
        self.name_server("ns:1")
        self.brokers = {"a": {0: "m:1"}, "b": {0: "other:1"}}
        self.assertEqual([host.name for host in self.ask(AskedAbout(name_servers=("ns:1",))).hosts], ["m:1", "other:1"])

    def test_a_store_leads_to_its_name_server(self) -> None:
        self.name_server("ns:1")
        facts = self.ask(AskedAbout(), Store("/s", config={"namesrvAddr": "ns:1"}))
        self.assertEqual([server.address for server in facts.name_servers], ["ns:1"])

    def test_nothing_is_sent_to_an_ha_port(self) -> None:
        self.broker("m:1")
        self.ask(AskedAbout(("m:1",)))
        ha_port = self.places["m:2"]
        assert isinstance(ha_port, Silent)
        self.assertEqual([transport.take() for transport in ha_port.received], [b""])

    def test_all_wait_at_the_same_time(self) -> None:
        """Ten silent hosts take as long as one."""
        names = tuple(f"dead{number}:1" for number in range(10))
        for number, name in enumerate(names):
            self.places[name] = Silent(self.clock, takes=number % 2 == 0)
        facts = self.ask(AskedAbout(names), seconds=CALL_TIMEOUT_SECONDS)
        self.assertEqual([host.problem for host in facts.hosts], ["no answer within 3 s"] * 10)

    def test_a_mute_name_server_and_wrong_answers_are_problems(self) -> None:
        self.name_server("ns:1").is_mute = True
        self.places["strange:1"] = Server(self.clock, {})
        facts = self.ask(AskedAbout(("strange:1", "nowhere"), ("ns:1",)), seconds=CALL_TIMEOUT_SECONDS)
        self.assertEqual([server.problem for server in facts.name_servers], ["no answer within 3 s"])
        self.assertTrue(all(host.problem for host in facts.hosts))

    def test_a_flood_of_registered_brokers_is_limited(self) -> None:
        self.broker("m:1")
        self.name_server("ns:1")
        self.brokers = {"a": {0: "m:1", **{number: f"x{number}:1" for number in range(1, 5000)}}}
        facts = self.ask(AskedAbout(("m:1",), ("ns:1",)))
        self.assertEqual((len(facts.hosts), facts.left_out), (MAX_HOSTS, 5000 - MAX_HOSTS))

    def test_an_unreadable_state_is_a_problem(self) -> None:
        info = {"commitLogMinOffset": "0", "commitLogMaxOffset": "0", NODE_STATE_KEY: "{}"}
        processors: dict[int, Processor] = {
            RequestCode.GET_BROKER_CONFIG: lambda _, __: RemotingCommand(0),
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda _, __: RemotingCommand(0, body=orjson.dumps({"table": info})),
        }
        self.places["m:1"] = Server(self.clock, processors)
        (host,) = self.ask(AskedAbout(("m:1",))).hosts
        self.assertIn("state is not readable", host.problem or "")
        info[NODE_STATE_KEY] = orjson.dumps(NodeState(store_id="x", role="SLAVE", state="GAP").as_json()).decode()
        (host,) = self.ask(AskedAbout(("m:1",))).hosts
        assert host.judgement is not None
        self.assertEqual((host.problem, host.judgement.state, host.judgement.code), (None, "GAP", 3))


class ReadingTests(SynchronousTestCase):
    def test_cluster_info_of_strangers(self) -> None:
        self.assertEqual(read_brokers({"brokerAddrTable": {"a": {"brokerAddrs": {"0": "x:1"}}}}), {"a": {0: "x:1"}})
        self.assertEqual(read_brokers({}), {})
        wrong: object
        for wrong in (
            [],
            {"brokerAddrTable": 5},
            {"brokerAddrTable": {"a": 1}},
            {"brokerAddrTable": {"a": {"brokerAddrs": {"x": "y"}}}},
        ):
            self.assertRaises(ValueError, read_brokers, wrong)

    def test_the_receive_buffer(self) -> None:
        path = new_folder(self) / "tcp_rmem"
        self.assertIsNone(receive_buffer(path))
        path.write_text("4096\t131072\t6291456\n")
        self.assertEqual(receive_buffer(path), 6291456)
        path.write_text("4096\n")
        self.assertIsNone(receive_buffer(path))
