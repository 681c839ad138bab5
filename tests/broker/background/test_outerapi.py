"""A broker's registration with name servers: when it is sent, what it says, and what comes back of it."""

from dataclasses import replace
from typing import Any, ClassVar

from twisted.internet.defer import Deferred
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import alsoProvides, implementer

from rmqha.broker.addresses import MasterAddresses, OwnAddresses
from rmqha.broker.background import outerapi
from rmqha.broker.background.outerapi import (
    FIRST_REGISTER_SECONDS,
    MANY_TOPICS_SECONDS,
    REGISTER_TIMEOUT_SECONDS,
    UNREGISTER_TIMEOUT_SECONDS,
    BrokerOuterAPI,
    IMasterObserver,
    LinkState,
    Registrant,
)
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.namesrv.nameserver import NameServerService
from rmqha.remoting.client import MAX_RETRY_SECONDS
from rmqha.remoting.registration import body_crc32, decode_body
from rmqha.remoting.turns import Turns
from rmqha.settings.settings import make_settings
from rmqha.store.metadata import DataVersion, TopicConfig, TopicConfigTable
from rmqha.wire.command import OUR_VERSION, RESPONSE_FLAG, RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.fastjson import loads_lenient
from tests.broker.brokerstore import Client, own_addresses
from tests.ha.doubles import FakeEndpoint, LineTransport, log_lines
from tests.remoting.test_protocol import commands_in, frame

IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C",
    "brokerId": "0",
}
MASTER = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
TOLD = MasterAddresses("10.0.0.1:10911", "10.0.0.1:10912")
NOBODY = MasterAddresses()
PERIOD_SECONDS = 30


class Line:
    """A name server's end of a connection."""

    def __init__(self, transport: LineTransport) -> None:
        self.transport = transport
        self.looks: list[RemotingCommand] = []
        """The requests for ClusterInfo that have come; they are answered by ``answer_looks``, if at all."""

    def requests(self) -> list[RemotingCommand]:
        """What else has come since the last call."""
        came = commands_in(self.transport.take())
        self.looks += [request for request in came if request.code == RequestCode.GET_BROKER_CLUSTER_INFO]
        return [request for request in came if request.code != RequestCode.GET_BROKER_CLUSTER_INFO]

    def answer_look(self, addresses: str) -> None:
        """Say to the last look what is registered as broker-a, as Java writes it; the others get no answer."""
        body = f'{{"brokerAddrTable":{{"broker-a":{{"brokerAddrs":{{{addresses}}},"brokerName":"broker-a"}}}}}}'
        self.transport.deliver(
            frame(RemotingCommand(ResponseCode.SUCCESS, self.looks.pop().opaque, RESPONSE_FLAG, body=body.encode()))
        )
        self.looks.clear()

    def request(self, code: int) -> RemotingCommand:
        """The one request that has come, of this code."""
        (request,) = self.requests()
        assert request.code == code, request
        assert not request.is_oneway
        return request

    def answer(self, request: RemotingCommand, code: int = ResponseCode.SUCCESS, **fields: str) -> None:
        self.transport.deliver(frame(RemotingCommand(code, request.opaque, RESPONSE_FLAG, ext_fields=fields)))

    def take_registration(self, **fields: str) -> RemotingCommand:
        """The one registration that has come, which is answered with these fields."""
        request = self.request(RequestCode.REGISTER_BROKER)
        self.answer(request, ResponseCode.SUCCESS, **fields)
        return request


class TopicsOf(TopicConfigManager):
    """The table that a test has at the time."""

    def __init__(self, case: "OuterAPITestCase") -> None:
        self._case = case

    @property
    def table(self) -> TopicConfigTable:  # type: ignore[override]  # nobody sets it
        return self._case.table


class HeldTopics(TopicConfigManager):
    """This table."""

    def __init__(self, table: TopicConfigTable) -> None:
        self.table = table


class ChosenAddresses(OwnAddresses):
    """Any two texts."""

    def __init__(self, broker_addr: str, ha_server_addr: str) -> None:
        self._chosen = broker_addr, ha_server_addr

    @property
    def broker_addr(self) -> str:
        return self._chosen[0]

    @property
    def ha_server_addr(self) -> str:
        return self._chosen[1]


@implementer(IMasterObserver)
class FoundMasters:
    """Remembers what was said of masters."""

    def __init__(self, told: list[MasterAddresses]) -> None:
        self._told = told

    def master_found(self, addresses: MasterAddresses) -> None:
        self._told.append(addresses)


class OuterAPITestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoints = [FakeEndpoint(self.clock), FakeEndpoint(self.clock)]
        self.table = TopicConfigTable(DataVersion(1, 5), {"T": TopicConfig("T", 4, 4)})
        self.told: list[MasterAddresses] = []

    def start(self, broker_id: int = 0, name_servers: int = 1, **properties: str) -> BrokerOuterAPI:
        """A broker that connects to so many name servers."""
        self.api = self.make(broker_id, name_servers, **properties)
        self.api.startService()
        return self.api

    def make(self, broker_id: int = 0, name_servers: int = 1, **properties: str) -> BrokerOuterAPI:
        """One that is not started yet."""
        settings = make_settings({"brokerName": "broker-a", "brokerClusterName": "C", **properties})
        self.registrant = Registrant(settings, broker_id, own_addresses("10.0.0.1:10911"), TopicsOf(self))
        return BrokerOuterAPI(
            self.registrant,
            [(f"ns{number}:9876", endpoint) for number, endpoint in enumerate(self.endpoints[:name_servers])],
            self.clock,
            FoundMasters(self.told),
        )

    def accept(self, number: int = 0) -> Line:
        """That name server takes the connection."""
        return Line(self.endpoints[number].next().accept())

    def stop(self) -> Deferred[None]:
        return self.api.stopService()

    def registered(self, request: RemotingCommand) -> TopicConfigTable:
        """The topics of a registration, with the version that they have in the table."""
        table = decode_body(request.body, False, request.version)
        table.data_version = replace(table.data_version, counter=table.data_version.counter >> 32)
        return table


class PromotedTests(OuterAPITestCase):
    """A new master tells all name servers at once, then each second for 5 s, then every 5 s for a minute."""

    def registrations(self, lines: list[Line], seconds: int) -> list[int]:
        """How many registrations each name server got meanwhile. Each is answered."""
        counts = [0] * len(lines)
        for _ in range(seconds):
            self.clock.advance(1)
            for number, line in enumerate(lines):
                for request in line.requests():
                    self.assertEqual(request.code, RequestCode.REGISTER_BROKER)
                    line.answer(request)
                    counts[number] += 1
        return counts

    def test_a_new_master_registers_often_and_then_as_usual(self) -> None:
        api = self.start(name_servers=2, forceRegister="true", registerNameServerPeriod="30000")
        lines = [self.accept(0), self.accept(1)]
        for line in lines:
            line.take_registration()
        api.promoted()
        self.assertEqual(self.registrations(lines, 5), [5, 5])
        self.assertEqual(self.registrations(lines, 4), [0, 0])
        often = 11 + 2  # the usual rounds come at 10 and at 40 s
        self.assertEqual(self.registrations(lines, 53), [often, often])
        self.assertEqual(self.registrations(lines, 30), [1, 1])
        self.assertEqual(self.registrations(lines, 30), [1, 1])
        self.successResultOf(self.end())

    def end(self) -> Deferred[None]:
        stopped = self.stop()
        self.clock.advance(UNREGISTER_TIMEOUT_SECONDS + 1)
        return stopped

    def test_a_stop_ends_it(self) -> None:
        api = self.start()
        line = self.accept()
        line.take_registration()
        api.promoted()
        self.clock.advance(5)
        self.end()
        line.requests()
        self.assertEqual(self.registrations([line], 60), [0])

    def test_without_a_name_server_nothing_happens(self) -> None:
        api = self.start(name_servers=0)
        api.promoted()
        self.clock.advance(60)
        self.successResultOf(self.stop())
        self.assertEqual(self.clock.getDelayedCalls(), [])


class LinkStateTests(OuterAPITestCase):
    def state(self) -> LinkState:
        (link,) = self.api._links
        return link.state

    def test_a_registration_goes_through_its_states(self) -> None:
        self.start()
        states = [self.state()]
        line = self.accept()
        line.take_registration()
        states.append(self.state())
        line.transport.lose()
        states.append(self.state())
        self.api.withdraw("it is DIVERGED")
        states.append(self.state())
        self.api.come_back()
        states.append(self.state())
        self.successResultOf(self.stop())
        states.append(self.state())
        names = ["WAITING", "REGISTERED", "MISSED", "WITHDRAWN", "WAITING", "STOPPED"]
        self.assertEqual([state.name for state in states], names)

    def test_a_broker_that_was_withdrawn_before_its_start_does_not_register(self) -> None:
        api = self.start(name_servers=0)
        self.successResultOf(api.stopService())
        self.api = self.make()
        self.api.withdraw("it is DIVERGED")
        self.api.startService()
        self.assertEqual(self.state(), LinkState.WITHDRAWN)
        self.assertEqual(self.accept().requests(), [])
        self.api.come_back()
        self.assertEqual(self.state(), LinkState.WAITING)
        self.stop()

    def test_a_stopped_registration_does_not_come_back(self) -> None:
        self.start()
        self.successResultOf(self.stop())
        (link,) = self.api._links
        for state in (LinkState.REGISTERED, LinkState.MISSED, LinkState.STOPPED):
            self.assertRaises(ValueError, link._move, state)


class RegisterTests(OuterAPITestCase):
    def test_a_new_connection_registers_at_once(self) -> None:
        self.start()
        request = self.accept().take_registration()
        self.assertEqual(
            request.ext_fields,
            {
                **IDENTITY,
                "haServerAddr": "10.0.0.1:10912",
                "compressed": "false",
                "bodyCrc32": str(body_crc32(request.body)),
            },
        )
        self.assertEqual(request.version, OUR_VERSION)
        self.assertEqual(self.registered(request), self.table)

    def test_and_so_does_the_next_one_when_it_is_lost(self) -> None:
        self.start()
        with log_lines() as lines:
            line = self.accept()
            line.take_registration()
            line.transport.lose()
            self.clock.advance(MAX_RETRY_SECONDS + 1)
            self.accept().take_registration()
        self.assertRegex(
            lines(),
            r"info: registered with name server ns0:9876\n"
            r"(.*\n)*warn: not registered with name server ns0:9876: the connection is gone\n"
            r"(.*\n)*info: registered with name server ns0:9876",
        )

    def test_it_registers_again_soon_and_then_each_period(self) -> None:
        self.start()
        line = self.accept()
        line.take_registration()
        for seconds in (FIRST_REGISTER_SECONDS, PERIOD_SECONDS, PERIOD_SECONDS):
            self.clock.advance(seconds - 1)
            self.assertEqual(line.requests(), [])
            self.clock.advance(1)
            line.take_registration()

    def test_the_period_is_a_setting(self) -> None:
        self.start(registerNameServerPeriod="12000")
        line = self.accept()
        line.take_registration()
        self.clock.advance(FIRST_REGISTER_SECONDS)
        line.take_registration()
        self.clock.advance(12)
        line.take_registration()

    def test_each_name_server_is_registered_with(self) -> None:
        self.start(name_servers=2)
        lines = [self.accept(number) for number in range(2)]
        for line in lines:
            line.take_registration()
        self.api.register_all()
        for line in lines:
            line.take_registration()

    def test_one_that_is_not_there_does_not_hold_up_the_other(self) -> None:
        self.start(name_servers=2)
        with log_lines() as lines:
            for _ in range(3):
                self.endpoints[0].next().refuse()
                self.clock.advance(MAX_RETRY_SECONDS + 1)
            self.accept(1).take_registration()
        self.assertEqual(lines().count("warn: not registered with name server ns0:9876"), 1)
        self.assertIn("info: registered with name server ns1:9876", lines())

    def test_a_changed_topic_is_told_at_once(self) -> None:
        self.start()
        line = self.accept()
        line.take_registration()
        self.table = TopicConfigTable(DataVersion(2, 6), {"New": TopicConfig("New")})
        self.api.table_changed(self.table.topic_config_table["New"])
        self.assertEqual(self.registered(line.take_registration()), self.table)

    def test_changes_during_a_registration_are_told_together_after_it(self) -> None:
        self.start()
        line = self.accept()
        first = line.request(RequestCode.REGISTER_BROKER)
        for counter in range(100):
            self.table = TopicConfigTable(DataVersion(counter, 6))
            self.api.table_changed(None)
        self.assertEqual(line.requests(), [])
        line.answer(first)
        self.assertEqual(self.registered(line.take_registration()), self.table)
        self.assertEqual(line.requests(), [])

    def test_a_registration_that_is_not_answered_is_tried_again(self) -> None:
        self.start()
        line = self.accept()
        line.requests()
        with log_lines() as lines:
            self.clock.advance(REGISTER_TIMEOUT_SECONDS)
            self.clock.advance(FIRST_REGISTER_SECONDS - REGISTER_TIMEOUT_SECONDS)
            line.take_registration()
        self.assertIn("warn: not registered with name server ns0:9876", lines())
        self.assertIn("info: registered with name server ns0:9876", lines())

    def test_so_is_one_that_is_refused(self) -> None:
        self.start()
        line = self.accept()
        line.take_registration()
        with log_lines() as lines:
            for seconds in (FIRST_REGISTER_SECONDS, PERIOD_SECONDS):
                self.clock.advance(seconds)
                line.answer(line.request(RequestCode.REGISTER_BROKER), ResponseCode.SYSTEM_ERROR)
            self.clock.advance(PERIOD_SECONDS)
            line.take_registration()
        self.assertEqual(lines().count("warn: not registered with name server ns0:9876: code 1"), 1)
        self.assertEqual(lines().count("info: registered with name server ns0:9876"), 1)

    def test_what_the_broker_forbids_to_all_it_forbids_for_each_topic(self) -> None:
        self.start(brokerPermission="4")
        self.table = TopicConfigTable(
            DataVersion(1, 5), {str(perm): TopicConfig(str(perm), perm=perm) for perm in range(8)}
        )
        topics = self.registered(self.accept().take_registration()).topic_config_table
        self.assertEqual(
            {name: topic.perm for name, topic in topics.items()}, {str(perm): perm & ~2 for perm in range(8)}
        )
        self.assertEqual(self.table.topic_config_table["6"].perm, 6)

    def test_changes_of_many_topics_are_told_together_while_it_runs(self) -> None:
        self.patch(outerapi, "MANY_TOPICS", 0)
        self.api = self.make()
        self.api.table_changed(None)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.api.startService()
        line = self.accept()
        line.take_registration()
        self.api.table_changed(None)
        self.api.table_changed(None)
        self.assertEqual(line.requests(), [])
        self.clock.advance(MANY_TOPICS_SECONDS)
        line.take_registration()
        line.transport.lose()
        self.successResultOf(self.stop())
        self.api.table_changed(None)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_without_name_servers_nothing_happens(self) -> None:
        self.start(name_servers=0)
        self.api.table_changed(None)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.successResultOf(self.stop())


class OnlyChangesTests(OuterAPITestCase):
    """forceRegister=false."""

    def setUp(self) -> None:
        OuterAPITestCase.setUp(self)
        self.start(forceRegister="false")
        self.line = self.accept()
        self.line.take_registration()

    def ask(self) -> RemotingCommand:
        """The question that comes in time."""
        self.clock.advance(FIRST_REGISTER_SECONDS)
        request = self.line.request(RequestCode.QUERY_DATA_VERSION)
        self.assertEqual(request.ext_fields, IDENTITY)
        self.assertEqual(loads_lenient(request.body), self.registrant.data_version())
        return request

    def test_what_the_name_server_knows_is_not_sent(self) -> None:
        self.line.answer(self.ask(), changed="false")
        self.assertEqual(self.line.requests(), [])
        self.clock.advance(PERIOD_SECONDS)
        self.line.request(RequestCode.QUERY_DATA_VERSION)

    def test_what_it_does_not_know_is(self) -> None:
        self.line.answer(self.ask(), changed="true")
        self.line.take_registration()

    def test_a_changed_topic_is_told_without_asking(self) -> None:
        self.api.table_changed(None)
        self.line.take_registration()

    def test_also_during_the_question(self) -> None:
        request = self.ask()
        self.api.table_changed(None)
        self.line.answer(request, changed="false")
        self.line.take_registration()


class ToldTests(OuterAPITestCase):
    def test_a_slave_hears_where_its_master_is(self) -> None:
        self.start(broker_id=1)
        line = self.accept()
        request = line.take_registration()
        self.assertEqual(request.ext_fields["brokerId"], "1")
        with log_lines() as lines:
            self.clock.advance(FIRST_REGISTER_SECONDS)
            line.take_registration(**MASTER)
            self.clock.advance(PERIOD_SECONDS)
            line.take_registration(**MASTER)
        self.assertEqual(lines().count("the master is at 10.0.0.1:10911, its HA port at 10.0.0.1:10912"), 1)
        with log_lines() as lines:
            self.clock.advance(PERIOD_SECONDS)
            line.take_registration()
        self.assertIn("no name server knows a live master", lines())
        self.assertEqual(self.told, [NOBODY, TOLD, TOLD, NOBODY])

    def test_a_master_hears_nothing(self) -> None:
        self.start()
        self.accept().take_registration(**MASTER)
        self.assertEqual(self.told, [])

    def test_one_name_server_that_knows_the_master_is_enough(self) -> None:
        self.start(broker_id=1, name_servers=2)
        lines = [self.accept(number) for number in range(2)]
        lines[1].take_registration(**MASTER)
        lines[0].take_registration()
        self.assertEqual(self.told, [TOLD, TOLD])

    def test_what_one_said_counts_no_more_when_it_is_gone(self) -> None:
        self.start(broker_id=1, name_servers=2)
        lines = [self.accept(number) for number in range(2)]
        lines[1].take_registration(**MASTER)
        lines[0].take_registration()
        lines[1].transport.lose()
        self.api.register_all()
        lines[0].take_registration()
        self.assertEqual(self.told, [TOLD, TOLD, NOBODY])


class StopTests(OuterAPITestCase):
    def assert_ended(self, stopped: Deferred[None]) -> None:
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_it_says_goodbye_and_waits_for_the_answer(self) -> None:
        self.start(name_servers=2)
        lines = [self.accept(number) for number in range(2)]
        for line in lines:
            line.take_registration()
        stopped = self.stop()
        for line in lines:
            self.assertNoResult(stopped)
            request = line.request(RequestCode.UNREGISTER_BROKER)
            self.assertEqual(request.ext_fields, IDENTITY)
            line.answer(request)
            self.assertTrue(line.transport.disconnecting)
        self.assert_ended(stopped)

    def test_it_waits_no_longer_than_three_seconds(self) -> None:
        self.start()
        self.accept().take_registration()
        stopped = self.stop()
        self.clock.advance(UNREGISTER_TIMEOUT_SECONDS - 0.1)
        self.assertNoResult(stopped)
        self.clock.advance(0.1)
        self.assert_ended(stopped)

    def test_then_it_hangs_up_though_the_name_server_may_read_nothing_more(self) -> None:
        self.start()
        line = self.accept()
        alsoProvides(line.transport, ITCPTransport)
        stopped = self.stop()
        self.clock.advance(UNREGISTER_TIMEOUT_SECONDS)
        self.assertTrue(line.transport.aborted)
        self.clock.pump([0, REGISTER_TIMEOUT_SECONDS])
        self.assert_ended(stopped)

    def test_who_has_said_goodbye_registers_no_more(self) -> None:
        self.start()
        line = self.accept()
        line.take_registration()
        stopped = self.stop()
        goodbye = line.request(RequestCode.UNREGISTER_BROKER)
        self.api.table_changed(None)
        self.assertEqual(line.requests(), [])
        line.answer(goodbye)
        self.assert_ended(stopped)

    def test_a_registration_that_is_being_answered_does_not_matter(self) -> None:
        self.start()
        line = self.accept()
        registration = line.request(RequestCode.REGISTER_BROKER)
        self.api.table_changed(None)
        stopped = self.stop()
        goodbye = line.request(RequestCode.UNREGISTER_BROKER)
        line.answer(registration)
        self.assertEqual(line.requests(), [])
        line.answer(goodbye)
        self.assert_ended(stopped)

    def test_without_a_connection_it_just_ends(self) -> None:
        self.start(name_servers=2)
        self.endpoints[0].next().refuse()
        with log_lines() as lines:
            self.assert_ended(self.stop())
        self.assertNotIn("warn", lines())

    def test_between_the_rounds_too(self) -> None:
        self.start()
        line = self.accept()
        line.take_registration()
        self.clock.advance(FIRST_REGISTER_SECONDS)
        line.take_registration()
        stopped = self.stop()
        line.answer(line.request(RequestCode.UNREGISTER_BROKER))
        self.assert_ended(stopped)


class MachinesTests(OuterAPITestCase):
    """Several name servers behind one name: the broker registers with each of them, and follows the name."""

    def setUp(self) -> None:
        OuterAPITestCase.setUp(self)
        self.machines = {address: FakeEndpoint(self.clock) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3")}
        self.present: list[str] | None = ["10.0.0.1", "10.0.0.2"]
        self.lines: dict[str, Line] = {}

    async def find(self, name: str) -> list[tuple[str, FakeEndpoint]]:
        if self.present is None:
            raise DNSLookupError("no answer")
        return [(f"{name} ({address})", self.machines[address]) for address in self.present]

    def begin(self) -> None:
        settings = make_settings({"brokerName": "broker-a", "brokerClusterName": "C"})
        registrant = Registrant(settings, 0, own_addresses("10.0.0.9:10911"), TopicsOf(self))
        self.api = BrokerOuterAPI(registrant, [("ns:9876", self.endpoints[0])], self.clock, find_machines=self.find)
        self.api.startService()

    def accept_all(self) -> None:
        """Each machine takes the connections that come, and answers registrations."""
        for address, endpoint in self.machines.items():
            while endpoint.attempts:
                self.lines[address] = Line(endpoint.next().accept())
        for line in self.lines.values():
            for request in line.requests():
                line.answer(request)

    def period(self) -> None:
        self.clock.advance(PERIOD_SECONDS)
        self.accept_all()

    def test_it_registers_with_each_machine(self) -> None:
        self.begin()
        for address in ("10.0.0.1", "10.0.0.2"):
            Line(self.machines[address].next().accept()).take_registration()
        self.assertEqual(self.endpoints[0].attempts, [])

    def test_machines_come_and_go(self) -> None:
        self.begin()
        self.accept_all()
        self.present = ["10.0.0.1", "10.0.0.3"]
        self.period()
        self.assertEqual(set(self.lines), {"10.0.0.1", "10.0.0.2", "10.0.0.3"})
        self.present = None  # no answer is no news
        self.period()
        self.present = ["10.0.0.1", "10.0.0.3"]
        self.period()
        self.assertFalse(self.lines["10.0.0.2"].transport.disconnecting)
        self.period()
        self.assertTrue(self.lines["10.0.0.2"].transport.disconnecting)
        self.assertFalse(self.lines["10.0.0.1"].transport.disconnecting)

    def test_a_name_that_is_not_known_yet_is_tried_as_it_is_and_then_left(self) -> None:
        self.present = None
        self.begin()
        line = self.accept()
        line.take_registration()
        self.present = ["10.0.0.1", "10.0.0.2"]
        self.clock.advance(FIRST_REGISTER_SECONDS)
        for request in line.requests():
            line.answer(request)
        self.clock.advance(1)
        self.accept_all()
        self.assertTrue(line.transport.disconnecting)
        self.assertEqual(set(self.lines), {"10.0.0.1", "10.0.0.2"})

    def test_a_name_of_one_machine_again_is_used_as_it_is(self) -> None:
        self.begin()
        self.accept_all()
        self.present = []
        self.clock.advance(FIRST_REGISTER_SECONDS)
        self.accept_all()
        for _ in range(2):
            self.period()
        for _ in range(4):  # they say goodbye one after the other
            self.clock.advance(1)
            self.accept_all()
        self.accept().take_registration()
        self.assertTrue(self.lines["10.0.0.1"].transport.disconnecting)

    def test_a_withdrawn_broker_registers_with_no_new_machine(self) -> None:
        self.begin()
        self.accept_all()
        self.api.withdraw("it is not fit")
        self.accept_all()
        self.present = ["10.0.0.1", "10.0.0.3"]
        self.clock.advance(FIRST_REGISTER_SECONDS)
        line = Line(self.machines["10.0.0.3"].next().accept())
        self.assertEqual(line.requests(), [])
        self.api.come_back()
        line.take_registration()


class VersionTests(SynchronousTestCase):
    """A name server that has the version of a registration takes nothing more from it, so all of it is counted."""

    TOPICS: ClassVar = {"T": TopicConfig("T", 4, 4)}
    INPUTS: ClassVar[dict[str, list[object]]] = {
        "brokerName": ["broker-a", "broker-b"],
        "clusterName": ["C", "D"],
        "brokerId": [0, 1],
        "brokerAddr": ["10.0.0.1:10911", "10.0.0.2:10911"],
        "haServerAddr": ["10.0.0.1:10912", "10.0.0.2:10912"],
        "brokerPermission": [6, 4, 2],
        "table": [DataVersion(1, 5), DataVersion(2, 5), DataVersion(1, 6)],
        "epoch": [None, 1, 2],
    }

    def registration(self, chosen: dict[str, Any]) -> tuple[Any, str]:
        """The version of a registration with these inputs, and all the rest of it."""
        settings = make_settings(
            {
                "brokerName": chosen["brokerName"],
                "brokerClusterName": chosen["clusterName"],
                "brokerPermission": str(chosen["brokerPermission"]),
            }
        )
        registrant = Registrant(
            settings,
            chosen["brokerId"],
            ChosenAddresses(chosen["brokerAddr"], chosen["haServerAddr"]),
            HeldTopics(TopicConfigTable(chosen["table"], self.TOPICS)),
            chosen["epoch"],
        )
        fields, body = self.successResultOf(Deferred.fromCoroutine(registrant.registration(Turns(Clock()))))
        self.assertEqual(set(fields) - {"compressed", "bodyCrc32"} - set(self.INPUTS), set(), "an input without a case")
        content = loads_lenient(body)
        version = content["topicConfigSerializeWrapper"].pop("dataVersion")
        self.assertEqual(version, registrant.data_version())
        del fields["bodyCrc32"]
        return version, repr((fields, content))

    def test_it_changes_with_each_input_and_is_the_same_for_the_same(self) -> None:
        first = {name: values[0] for name, values in self.INPUTS.items()}
        self.assertEqual(self.registration(first), self.registration(first))
        seen: list[tuple[Any, str]] = []
        for name, values in self.INPUTS.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    version, rest = self.registration({**first, name: value})
                    for other_version, other in seen:
                        self.assertTrue(version != other_version or rest == other)
                    seen.append((version, rest))
        self.assertEqual(len({repr(version) for version, _ in seen}), len(seen) - len(self.INPUTS) + 1)


class BothEndsTests(OuterAPITestCase):
    """With our own name server at the other end."""

    SYSTEM: ClassVar = {name: TopicConfig(name) for name in ("SELF_TEST_TOPIC", "C", "broker-a")}

    def setUp(self) -> None:
        OuterAPITestCase.setUp(self)
        self.server = NameServerService(self.clock)
        self.server.startService()
        self.addCleanup(self.server.stopService)
        self.table = TopicConfigTable(DataVersion(1, 5), {**self.SYSTEM, "T": TopicConfig("T", 4, 4)})

    def begin(self, **properties: str) -> None:
        self.start(0, 1, **properties)
        self.line, self.peer = self.accept(), Client(self.server.processors(), self.clock)
        self.carry()

    def carry(self) -> None:
        """What the broker has to say, and the answers."""
        self.peer.line.deliver(self.line.transport.take())
        self.line.transport.deliver(self.peer.line.take())

    def perm(self, topic: str) -> int | None:
        """What clients may do with the topic; None without a route."""
        route = self.server.route_info.route_info(topic)
        return None if route is None else route["queueDatas"][0]["perm"]

    def test_a_topic_is_routed_as_long_as_the_broker_is_registered(self) -> None:
        self.begin()
        self.assertEqual(self.perm("T"), 6)
        self.table = TopicConfigTable(DataVersion(2, 6), {**self.SYSTEM, "New": TopicConfig("New")})
        self.api.table_changed(None)
        self.assertIsNone(self.perm("New"))
        self.carry()
        self.assertEqual((self.perm("New"), self.perm("T")), (6, None))
        stopped = self.stop()
        self.carry()
        self.assertIsNone(self.perm("New"))
        self.clock.advance(0)
        self.successResultOf(stopped)

    def test_a_draining_broker_loses_its_write_permission_with_one_registration(self) -> None:
        for force in ("true", "false"):
            with self.subTest(forceRegister=force):
                self.begin(forceRegister=force)
                for permission, expected in (("4", 4), ("6", 6)):
                    self.registrant.settings = replace(self.registrant.settings, broker_permission=int(permission))
                    self.clock.advance(FIRST_REGISTER_SECONDS if expected == 4 else PERIOD_SECONDS)
                    self.carry()
                    self.carry()
                    self.assertEqual(self.perm("T"), expected)
                self.peer.line.lose()
                stopped = self.stop()
                self.clock.advance(60)
                self.line.transport.lose()
                self.successResultOf(stopped)


OURS = "10.0.0.1:10911"
THEIRS = "10.0.0.9:10911"


class RivalTests(OuterAPITestCase):
    """Another broker with our name and id takes our place: our node says so, with both addresses."""

    def period(self, line: Line, addresses: str) -> None:
        """The next registration, and what the look before it found."""
        self.clock.advance(PERIOD_SECONDS)
        line.take_registration()
        line.answer_look(addresses)

    def begin(self, addresses: str, broker_id: int = 0) -> Line:
        self.start(broker_id)
        line = self.accept()
        line.take_registration()
        line.answer_look(addresses)
        self.clock.advance(FIRST_REGISTER_SECONDS)
        line.take_registration()
        line.answer_look(addresses)
        return line

    def test_a_broker_that_takes_our_place_is_told_once_with_both_addresses(self) -> None:
        line = self.begin(f'0:"{OURS}"')
        self.assertEqual(self.api.warnings(), [])
        with log_lines() as lines:
            for _ in range(3):
                self.period(line, f'0:"{THEIRS}",1:"10.0.0.2:10911"')
        (warning,) = [text for text in lines().splitlines() if text.startswith("warn")]
        for text in (OURS, THEIRS, "ns0:9876", "broker-a with brokerId 0 of cluster C"):
            self.assertIn(text, warning)
            self.assertIn(text, self.api.warnings()[0])

    def test_by_turns_it_is_still_told_and_it_is_cleared_when_we_stay(self) -> None:
        line = self.begin(f'0:"{OURS}"')
        for _ in range(4):
            self.period(line, f'0:"{THEIRS}"')
            self.period(line, f'0:"{OURS}"')
            self.assertEqual(len(self.api.warnings()), 1)
        for _ in range(3):
            self.period(line, f'0:"{OURS}"')
        self.assertEqual(self.api.warnings(), [])

    def test_a_slave_whose_id_another_slave_has_is_told_too(self) -> None:
        self.begin(f'0:"10.0.0.5:10911",1:"{THEIRS}"', broker_id=1)
        self.assertIn(THEIRS, self.api.warnings()[0])

    def test_answers_that_are_none_are_nothing(self) -> None:
        line = self.begin(f'0:"{OURS}"')
        for body in (b"", b"[]", b"{}", b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"x":1}}}}', b"\xff"):
            self.clock.advance(PERIOD_SECONDS)
            line.take_registration()
            answer = RemotingCommand(ResponseCode.SUCCESS, line.looks.pop().opaque, RESPONSE_FLAG, body=body)
            line.transport.deliver(frame(answer))
        self.assertEqual(self.api.warnings(), [])


class WithdrawTests(OuterAPITestCase):
    """A slave that consumers should not be sent to leaves the name server, and comes back."""

    def begin(self) -> Line:
        self.start(broker_id=1)
        line = self.accept()
        line.take_registration(**MASTER)
        return line

    def leave(self, line: Line) -> None:
        with log_lines() as lines:
            self.api.withdraw("it is DIVERGED")
            self.api.withdraw("it is DIVERGED")
        line.answer(line.request(RequestCode.UNREGISTER_BROKER))
        self.assertEqual(lines().count("warn: leaving name server ns0:9876: it is DIVERGED"), 1)

    def test_it_leaves_and_stays_away_until_it_comes_back(self) -> None:
        line = self.begin()
        self.leave(line)
        self.api.table_changed(None)
        for _ in range(3):
            self.clock.advance(PERIOD_SECONDS)
            self.assertEqual(line.requests(), [])
            line.answer_look(f'0:"{MASTER["masterAddr"]}"')
        self.assertEqual(self.api.warnings(), ["not registered with name server ns0:9876: it is DIVERGED"])
        self.api.come_back()
        line.take_registration(**MASTER)
        self.assertEqual(self.api.warnings(), [])

    def test_a_new_connection_does_not_register_it(self) -> None:
        line = self.begin()
        self.leave(line)
        line.transport.lose()
        self.clock.advance(MAX_RETRY_SECONDS + 1)
        self.assertEqual(self.accept().requests(), [])

    def test_one_that_is_found_there_nevertheless_leaves_again(self) -> None:
        """Its last registration may have been taken after its goodbye."""
        line = self.begin()
        self.leave(line)
        self.clock.advance(PERIOD_SECONDS)
        self.assertEqual(line.requests(), [])
        line.answer_look(f'0:"{MASTER["masterAddr"]}",1:"{OURS}"')
        line.request(RequestCode.UNREGISTER_BROKER)

    def test_a_master_that_moves_meanwhile_is_followed(self) -> None:
        """What its HA port is only a registration tells, which is taken back at once."""
        line = self.begin()
        self.leave(line)
        self.clock.advance(PERIOD_SECONDS)
        self.assertEqual(line.requests(), [])
        line.answer_look(f'0:"{THEIRS}"')
        line.take_registration(masterAddr=THEIRS, haServerAddr="10.0.0.9:10912")
        line.answer(line.request(RequestCode.UNREGISTER_BROKER))
        self.assertEqual(self.told[-1], MasterAddresses(THEIRS, "10.0.0.9:10912"))
        self.assertEqual(len(self.api.warnings()), 1)
