"""The broker's front as a whole: which requests each role answers, what runs, and what it tells of itself."""

import socket
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute, fail, maybeDeferred, succeed
from twisted.internet.testing import MemoryReactorClock

from rmqha.broker.addresses import MasterAddresses, default_ip, resolved
from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.broker.interfaces import NoNode
from rmqha.net.endpoints import make_endpoint
from rmqha.settings.settings import Settings
from rmqha.store.examining import ABORT_FILE
from rmqha.store.message import Message
from rmqha.store.metadata import PERM_READ, PERM_WRITE, ConsumerOffsetTable, DelayOffsetTable, TopicConfigTable
from rmqha.store.tablesnapshots import read_tables, write_snapshot
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from rmqha.wire.record import Host, parse_msg_id
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, WallClockOf
from tests.remoting.test_protocol import frame

SENDS = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
}
PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
SEND_FIELDS = {"a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": NOW_MS, "h": 0}


class BrokerServiceTests(BrokerStoreTestCase):
    def make(self, role: str = "ASYNC_MASTER", bind_address: str = "127.0.0.1", **properties: str) -> BrokerService:
        """The front of a new store."""
        self.open(role, **properties)
        self.broker = BrokerService(
            self.settings,
            self.store,
            self.clock,
            execute,
            Surroundings(bind_address),
            wall=WallClockOf(self.clock),
        )
        return self.broker

    def run_broker(self, role: str = "ASYNC_MASTER", **properties: str) -> BrokerService:
        """One whose services run until the test ends."""
        broker = self.make(role, **properties)
        broker.startService()
        self.addCleanup(lambda: self.successResultOf(broker.stopService()))
        return broker

    def test_both_ports_answer_the_same_but_pulls(self) -> None:
        broker = self.make()
        main, fast = broker.processors().keys(), broker.processors(fast_port=True).keys()
        self.assertEqual(main - fast, PULLS)
        self.assertLessEqual(SENDS, fast)

    def test_a_slave_answers_all_that_a_master_does(self) -> None:
        self.assertEqual(self.make("SLAVE").processors().keys(), self.make().processors().keys())

    def test_a_message_sent_is_in_the_store_under_the_address_of_the_main_port(self) -> None:
        broker = self.run_broker()
        broker.addresses.listening(20911)
        answer = self.client(broker.processors(fast_port=True)).ask(RequestCode.SEND_MESSAGE_V2, **SEND_FIELDS)
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
        host, offset = parse_msg_id(answer.ext_fields["msgId"])
        self.assertEqual(host, Host.parse("127.0.0.1", 20911))
        record = self.store.reader.message_at(offset)
        assert record is not None
        self.assertEqual((record.topic, record.store_host), ("T", host))

    def test_the_config_has_all_that_export_configs_needs(self) -> None:
        needed = """brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums flushDiskType
        maxMessageSize messageDelayLevel msgTraceTopicName slaveReadEnable traceOn traceTopicEnable useTLS
        autoCreateTopicEnable autoCreateSubscriptionGroup"""
        config = self.make().config()
        self.assertEqual(set(needed.split()) - config.keys(), set())
        self.assertEqual((config["filterServerNums"], config["useTLS"]), ("0", "false"))

    def test_the_config_tells_what_is_in_effect_though_nobody_has_set_it(self) -> None:
        broker = self.make("SLAVE")
        broker.addresses.listening(20911)
        broker.addresses.ha_listening(20912)
        in_effect = {
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "brokerId": "1",
            "listenPort": "20911",
            "haListenPort": "20912",
            "storePathCommitLog": str(self.settings.commit_log_folder),
            "accessMessageInMemoryMaxRatio": "30",
        }
        config = broker.config()
        self.assertEqual({name: config[name] for name in in_effect}, in_effect)

    def test_a_topic_that_a_dying_master_had_not_written_is_there_after_its_start(self) -> None:
        """Its first message was answered with SEND_OK. What is older than the last snapshot of tables was deleted."""
        store = self.open()
        self.put(b"1", topic="Old")
        write_snapshot(store.root, store.commit_log.verified_offset, NOW_MS, read_tables(store.root))
        self.put(b"2", topic="New", queue_id=2)
        self.close_store()
        settings = {"storePathRootDir": str(store.root)}
        self.assertIsNone(self.make(**settings).topics.get("New"), "after a clean stop nothing is missing")
        self.close_store()
        (store.root / ABORT_FILE).touch()
        topics = self.make(**settings).topics
        found = topics.get("New")
        assert found is not None
        self.assertEqual((found.read_queue_nums, found.perm), (3, PERM_READ | PERM_WRITE))
        self.assertIn("New", TopicConfigTable.read(self.folder).rows)
        self.assertIsNone(topics.get("Old"))

    def test_what_is_sent_is_counted(self) -> None:
        broker = self.run_broker()
        self.client(broker.processors()).ask(RequestCode.SEND_MESSAGE_V2, **SEND_FIELDS)
        self.assertEqual(broker.stats.puts.messages, 1)

    def change(self, text: bytes) -> None:
        """What an operator sends, on a connection of its own."""
        peer = self.client(self.broker.processors())
        peer.line.deliver(frame(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, 1, body=text)))
        (answer,) = peer.answers()
        self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)

    def test_settings_changed_at_run_time_count_for_the_next_request(self) -> None:
        broker = self.run_broker(updateBrokerConfigFrom="192.0.2.0/24")
        known = self.client(broker.processors())
        self.change(b"autoCreateTopicEnable=false")
        for peer in (known, self.client(broker.processors())):
            answer = peer.ask(RequestCode.SEND_MESSAGE_V2, **SEND_FIELDS)
            self.assertEqual(answer.code, ResponseCode.TOPIC_NOT_EXIST)
        self.assertEqual(broker.config()["autoCreateTopicEnable"], "false")

    def test_name_servers_learn_of_a_changed_permission(self) -> None:
        """So a broker is drained for maintenance: clients send to others."""
        broker = self.run_broker(updateBrokerConfigFrom="192.0.2.0/24")
        self.patch(broker.outer_api, "register_all", lambda: self.told.append(broker.registrant.settings))
        self.told: list[Settings] = []
        self.change(b"brokerPermission=4")
        self.change(b"fileReservedTime=7")
        self.assertEqual([settings.broker_permission for settings in self.told], [4])
        self.assertEqual(broker.config()["brokerPermission"], "4")

    def test_a_member_registers_once_it_has_an_id(self) -> None:
        for is_started in (False, True):
            with self.subTest(is_started=is_started):
                self.open("SLAVE")
                surroundings = Surroundings("127.0.0.1", is_held_back=True)
                broker = BrokerService(self.settings, self.store, self.clock, execute, surroundings)
                if is_started:
                    broker.startService()
                self.assertFalse(broker.outer_api.running)
                for _ in range(2):  # the second says nothing new
                    broker.register_as_slave(2)
                self.assertEqual((broker.outer_api.running, broker.registrant.broker_id), (is_started, 2))
                if not is_started:
                    broker.startService()
                self.assertTrue(broker.outer_api.running)
                self.successResultOf(broker.stopService())
                self.assertFalse(broker.outer_api.running)

    def test_an_address_of_ipv6_has_brackets_with_name_servers(self) -> None:
        for given in ("::1", "[::1]"):
            broker = self.make(brokerIP1=given)
            self.assertEqual(broker.addresses.broker_addr, f"[::1]:{broker.addresses.store_host.port}")
            self.assertTrue(broker.addresses.ha_server_addr.startswith("[::1]:"))
            self.assertTrue(broker.addresses.store_host.is_ipv6)

    def test_new_messages_have_the_address_that_the_name_of_brokerip1_has_now(self) -> None:
        known = {"broker.example.com": "192.0.2.1"}

        def find(name: str) -> Deferred[str]:
            return succeed(known[name]) if name in known else fail(OSError("no answer"))

        self.open(brokerIP1="broker.example.com")
        node = NoNode()
        self.patch(node, "find_address", find)
        surroundings = Surroundings("127.0.0.1", node=node, addresses=dict(known))
        broker = BrokerService(self.settings, self.store, self.clock, execute, surroundings)
        port = broker.addresses.store_host.port
        broker.startService()
        for address in ("192.0.2.1", "192.0.2.2", None):
            with self.subTest(address):
                known.clear()
                if address is not None:
                    known["broker.example.com"] = address
                self.clock.advance(30)
                self.assertEqual(broker.addresses.store_host, Host.parse(address or "192.0.2.2", port))
                self.assertEqual(broker.addresses.broker_addr, f"broker.example.com:{port}")
        self.successResultOf(broker.stopService())

    def test_what_name_servers_say_of_the_master_reaches_the_node_and_the_tables_copying(self) -> None:
        told: list[MasterAddresses] = []
        self.open("SLAVE")
        node = NoNode()
        self.patch(node, "master_found", told.append)
        surroundings = Surroundings("127.0.0.1", node=node)
        broker = BrokerService(self.settings, self.store, self.clock, execute, surroundings)
        addresses = MasterAddresses("192.0.2.1:10911", "192.0.2.1:10912")
        broker.master_found(addresses)
        self.assertEqual((told, broker.slave_synchronize.master_address), ([addresses], "192.0.2.1:10911"))

    def test_a_slave_takes_none(self) -> None:
        answer = self.client(self.run_broker("SLAVE").processors()).ask(RequestCode.SEND_MESSAGE_V2, **SEND_FIELDS)
        self.assertEqual(answer.code, ResponseCode.SERVICE_NOT_AVAILABLE)
        self.assertIsNone(self.broker.topics.get("T"))

    def test_a_master_delivers_delayed_messages(self) -> None:
        self.run_broker()
        self.successResultOf(self.store.put_message(Message("T", b"late", {"DELAY": "1"})))
        self.clock.pump([0.05] * 40)
        self.assertEqual(self.store.reader.max_offset("T", 0), 1)

    def test_a_slave_does_not(self) -> None:
        broker = self.make()
        self.successResultOf(self.store.put_message(Message("T", b"late", {"DELAY": "1"})))
        slave_store = self.copy_to_slave()
        broker = BrokerService(self.settings, slave_store, self.clock, execute, Surroundings("127.0.0.1"))
        broker.startService()
        self.clock.pump([0.05] * 100)
        self.assertEqual(slave_store.reader.max_offset("SCHEDULE_TOPIC_XXXX", 0), 1)
        self.assertEqual(broker.schedule.progress(), {1: (0, 1)})
        self.successResultOf(broker.stopService())

    def test_a_clean_stop_writes_how_far_all_is_and_leaves_nothing_on_the_clock(self) -> None:
        broker = self.make()
        before = len(self.clock.getDelayedCalls())
        broker.startService()
        self.successResultOf(self.store.put_message(Message("T", b"late", {"DELAY": "1"})))
        broker.consumer_offsets.commit("G", "T", 0, 5, "client")
        self.clock.pump([0.05] * 40)
        self.successResultOf(broker.stopService())
        self.dispatch()
        self.assertEqual(DelayOffsetTable.read(self.folder).offset_table, {1: 1})
        self.assertEqual(ConsumerOffsetTable.read(self.folder).offset_table["T@G"], {0: 5})
        self.assertLessEqual(len(self.clock.getDelayedCalls()), before)

    def broker_with_a_port(self) -> BrokerService:
        """Another broker on the open store, started, with one port and an offset that is not written yet."""
        broker = BrokerService(self.settings, self.store, self.clock, execute, Surroundings("127.0.0.1"))
        broker.ports.add("a port", Service())
        broker.startService()
        broker.consumer_offsets.commit("G", "T", 0, 5, "client")
        return broker

    def services_of(self, broker: BrokerService) -> list[Any]:
        return [*broker, *broker.ports]

    def test_services_stop_one_by_one_in_the_reverse_order_of_their_start(self) -> None:
        background = {"ASYNC_MASTER": "transactions", "SLAVE": "slave synchronize"}
        for role, name in background.items():
            self.open(role)
            broker, stopped = self.broker_with_a_port(), list[str]()

            def record(service: Any, stopped: list[str] = stopped) -> Callable[[], object]:
                stop = service.stopService

                def recorded() -> object:
                    stopped.append(service.name)
                    return stop()

                return recorded

            for service in self.services_of(broker):
                service.stopService = record(service)
            self.successResultOf(broker.stopService())
            watching = ["client housekeeping", "batch topics", "statistics"]
            tables = ["timer messages", "delayed messages", "deleted topics", "consumer offsets", "groups", "topics"]
            self.assertEqual(stopped, ["name servers", "ports", "a port", "held pulls", name, *watching, *tables])
            self.assertEqual(broker.stop_problems, [])

    def test_a_service_that_fails_to_stop_is_shown_and_the_others_stop(self) -> None:
        def raise_error() -> None:
            raise ValueError("broken")

        for role in ("ASYNC_MASTER", "SLAVE"):
            self.open(role)
            names = [service.name for service in self.services_of(self.broker_with_a_port())]
            for name in names:
                for failing in (raise_error, lambda: fail(ValueError("broken"))):
                    with self.subTest(role=role, name=name):
                        broker = self.broker_with_a_port()
                        (broken,) = [service for service in self.services_of(broker) if service.name == name]
                        stop, broken.stopService = broken.stopService, failing
                        self.successResultOf(broker.stopService())
                        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
                        self.assertEqual(
                            broker.stop_problems, [f"the service '{name}' did not stop cleanly: broken"], role
                        )
                        running = {service.name for service in self.services_of(broker) if service.running}
                        self.assertEqual(running - {"a port"}, {name} - {"a port"})
                        self.successResultOf(maybeDeferred(stop))
                        self.assertEqual(ConsumerOffsetTable.read(self.folder).offset_table["T@G"], {0: 5})

    def test_it_says_where_it_is(self) -> None:
        broker = self.make(brokerIP1="192.0.2.5", listenPort="30911")
        self.assertEqual(
            (broker.addresses.broker_addr, broker.addresses.ha_server_addr), ("192.0.2.5:30911", "192.0.2.5:30912")
        )
        broker.addresses.listening(4000)
        broker.addresses.ha_listening(4001)
        self.assertEqual(
            (broker.addresses.broker_addr, broker.addresses.ha_server_addr), ("192.0.2.5:4000", "192.0.2.5:4001")
        )
        broker = self.make(brokerIP1="192.0.2.5", brokerIP2="198.51.100.5")
        self.assertEqual(
            (broker.addresses.broker_addr, broker.addresses.ha_server_addr), ("192.0.2.5:10911", "198.51.100.5:10912")
        )

    def test_an_address_of_ipv6_is_told_in_brackets(self) -> None:
        for given in ("::1", "[::1]"):
            broker = self.make(brokerIP1=given, brokerIP2=given, listenPort="30911")
            self.assertEqual(
                (broker.addresses.broker_addr, broker.addresses.ha_server_addr), ("[::1]:30911", "[::1]:30912")
            )
            self.assertEqual(broker.addresses.store_host, Host.parse("::1", 30911))
            for address in (broker.addresses.broker_addr, broker.addresses.ha_server_addr):
                make_endpoint(MemoryReactorClock(), address)

    def test_it_says_who_it_is(self) -> None:
        self.assertEqual((self.make().broker_id, self.make("SLAVE").broker_id), (0, 1))
        self.assertEqual(self.make("SLAVE", brokerId="7").broker_id, 7)
        self.assertEqual(self.make(brokerId="7").broker_id, 0)


class AddressTests(BrokerStoreTestCase):
    def test_the_address_listened_at_is_the_brokers(self) -> None:
        self.assertEqual(default_ip("192.0.2.9"), "192.0.2.9")

    def test_of_any_it_is_one_of_the_machine(self) -> None:
        for any_address in ("", "0.0.0.0"):
            self.assertNotIn(
                Host.parse(default_ip(any_address), 0).address, (bytes(4), Host.parse("192.0.2.1", 0).address)
            )

    def test_without_a_network_it_is_the_loopback(self) -> None:
        with patch.object(socket.socket, "connect", side_effect=OSError("unreachable")):
            self.assertEqual(default_ip(""), "127.0.0.1")

    def test_a_name_is_looked_up(self) -> None:
        self.assertEqual(resolved("localhost", 5), Host.parse("127.0.0.1", 5))
        self.assertEqual(resolved("::1", 5), Host.parse("::1", 5))
        with patch.object(socket, "gethostbyname", side_effect=OSError("unknown")):
            self.assertRaises(OSError, resolved, "nowhere.invalid", 5)
