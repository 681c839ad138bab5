"""Each object that stands for an interface of the broker, or of remoting, has all that the interface asks for."""

from twisted.internet.defer import execute
from twisted.internet.interfaces import IPushProducer
from zope.interface.verify import verifyClass, verifyObject

from rmqha.acl.gate import AclGate
from rmqha.broker.background.outerapi import BrokerOuterAPI, IMasterObserver, NameServerLink
from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.broker.interfaces import NO_NODE, IBrokersNode, IConfigured, IDelayLevels
from rmqha.broker.requests.admin import _Signed, _VersionedOffsets
from rmqha.broker.requests.config import ISettingsObserver
from rmqha.broker.requests.send import ITransactions
from rmqha.broker.tables.attributes import OF_TOPICS_IN_5_3_3
from rmqha.broker.tables.clients import ClientManageProcessor
from rmqha.broker.tables.configmanager import ITableDocument, ITableObserver
from rmqha.kit.wallclock import WALL_CLOCK, IWallClock
from rmqha.namesrv.nameserver import NameServerService
from rmqha.net.endpoints import LoopbackEndpoint
from rmqha.node.opennode import OpenNode
from rmqha.remoting.calls import ISender
from rmqha.remoting.protocol import IConnectionObserver, RemotingFactory, RemotingProtocol
from tests.broker.background.test_outerapi import FoundMasters
from tests.broker.brokerstore import BrokerStoreTestCase, SetWallClock, TellingNode, ToldRows, WallClockOf
from tests.broker.requests.test_send import PlayedTransactions
from tests.broker.tables.test_newnames import Times
from tests.broker.test_runtimeinfo import DelayLevels
from tests.client.groups import GroupBroker


class InterfaceTests(BrokerStoreTestCase):
    def test_a_broker_and_its_parts_have_all_that_others_ask_of_them(self) -> None:
        self.open()
        broker = BrokerService(self.settings, self.store, self.clock, execute, Surroundings("127.0.0.1"), self.wall)
        for interface in (IConfigured, IMasterObserver, ISettingsObserver):
            verifyObject(interface, broker)
        verifyObject(ITableObserver, broker.outer_api)
        verifyObject(IDelayLevels, broker.schedule)
        verifyObject(ITransactions, broker.transactions)
        verifyObject(IConnectionObserver, broker.held_pulls)
        nowhere = LoopbackEndpoint(RemotingFactory({}, self.clock), self.clock)
        verifyObject(IConnectionObserver, broker.outer_api.make_link("ns", nowhere))
        for table in (broker.topics, broker.groups, broker.deleted_topics, broker.schedule):
            verifyObject(ITableDocument, table)
        verifyObject(ITableDocument, _Signed(broker.topics, OF_TOPICS_IN_5_3_3))
        verifyObject(ITableDocument, _VersionedOffsets(broker.consumer_offsets))

    def test_who_hears_of_the_end_of_a_connection_can(self) -> None:
        for kind in (AclGate, ClientManageProcessor, NameServerLink, NameServerService, RemotingFactory, GroupBroker):
            verifyClass(IConnectionObserver, kind)
        verifyClass(ITableObserver, BrokerOuterAPI)

    def test_a_connection_sends(self) -> None:
        connection = RemotingProtocol({}, self.clock)
        verifyObject(ISender, connection)
        verifyObject(IPushProducer, connection)

    def test_a_node_has_all_that_its_broker_asks_of_it(self) -> None:
        verifyClass(IBrokersNode, OpenNode)
        verifyObject(IBrokersNode, NO_NODE)
        verifyObject(IBrokersNode, TellingNode())
        verifyObject(IConfigured, TellingNode())

    def test_each_clock_tells_the_time(self) -> None:
        for clock in (WALL_CLOCK, WallClockOf(self.clock), SetWallClock(), Times([])):
            verifyObject(IWallClock, clock)

    def test_the_other_doubles_have_all_that_is_asked_of_them(self) -> None:
        self.open()
        verifyObject(ITableObserver, ToldRows())
        verifyObject(IMasterObserver, FoundMasters([]))
        verifyObject(IDelayLevels, DelayLevels({}))
        verifyObject(ITransactions, PlayedTransactions(self.store, []))
