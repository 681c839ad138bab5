"""What the name server knows: the registered brokers, when they expire, and the resulting routes."""

from dataclasses import replace
from itertools import permutations
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import Result, Steps
from rmqha.namesrv.peers import Peer
from rmqha.namesrv.routeinfo import BROKER_CHANNEL_EXPIRED_SECONDS, Registration, RouteInfoManager
from rmqha.remoting.protocol import RequestRefused
from rmqha.remoting.turns import Turns
from rmqha.store.metadata import DataVersion, TopicConfig

VERSION = DataVersion(1, 1_795_000_000_000)
MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"
MASTER_HA, SLAVE_HA = "10.0.0.1:10912", "10.0.0.2:10912"
TOPIC = TopicConfig("T", 4, 4)
FROM_THE_START = (TopicConfig("SELF_TEST_TOPIC", 1, 1), TopicConfig("C"), TopicConfig("broker-a", 1, 1))
"""Some topics that each broker has, Java's and ours."""


def master(
    *topics: TopicConfig, name: str = "broker-a", address: str = MASTER, version: DataVersion = VERSION
) -> Registration:
    return Registration("C", name, address, 0, MASTER_HA, version, topics or (TOPIC,))


def whole(*topics: TopicConfig, version: DataVersion = VERSION) -> Registration:
    """A registration of the master with all of its topics."""
    return replace(master(version=version), topics=(*FROM_THE_START, *topics))


def slave(broker_id: int = 1, address: str = SLAVE) -> Registration:
    return Registration("C", "broker-a", address, broker_id, SLAVE_HA, VERSION, (TOPIC,))


class LateTurns(Turns):
    """Begins its work only in the next turn."""

    async def run(self, steps: Steps[Result]) -> Result:
        await self.next()
        return await super().run(steps)


class RouteInfoTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1_000)
        self.routes = RouteInfoManager(self.clock)

    def register(self, registration: Registration, connection: object = "line") -> tuple[str, str] | None:
        return self.routes.register_broker(registration, Peer(connection))

    def query(self, address: str, version: DataVersion) -> tuple[bool, DataVersion | None]:
        return self.routes.query_data_version(address, version, Peer("line"))

    def addresses(self, topic: str = "T") -> dict[str, dict[str, str]] | None:
        """By name of the brokers that carry the topic, their addresses by id; None without a route."""
        route = self.routes.route_info(topic)
        if route is None:
            return None
        return {broker["brokerName"]: broker["brokerAddrs"] for broker in route["brokerDatas"]}

    def queues(self, topic: str = "T") -> list[dict[str, Any]]:
        route = self.routes.route_info(topic)
        assert route is not None
        found: list[dict[str, Any]] = route["queueDatas"]
        return found


class RegistrationTests(RouteInfoTestCase):
    def test_a_topic_is_routed_to_its_master_and_slaves(self) -> None:
        self.register(master())
        self.register(slave())
        self.assertEqual(
            self.routes.route_info("T"),
            {
                "brokerDatas": [
                    {"brokerAddrs": {"0": MASTER, "1": SLAVE}, "brokerName": "broker-a", "cluster": "C"},
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {
                        "brokerName": "broker-a",
                        "perm": 6,
                        "readQueueNums": 4,
                        "topicSysFlag": 0,
                        "writeQueueNums": 4,
                    }
                ],
            },
        )

    def test_a_topic_of_two_masters_has_the_queues_of_both(self) -> None:
        self.register(master(name="broker-b", address="10.0.0.3:10911"))
        self.register(master(TopicConfig("T", 8, 2, perm=4, topic_sys_flag=1)))
        self.assertEqual([queue["brokerName"] for queue in self.queues()], ["broker-a", "broker-b"])
        self.assertEqual([queue["writeQueueNums"] for queue in self.queues()], [2, 4])
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}, "broker-b": {"0": "10.0.0.3:10911"}})

    def test_an_unknown_topic_has_no_route(self) -> None:
        self.register(master())
        self.assertIsNone(self.routes.route_info("Other"))

    def test_a_slaves_topics_do_not_count(self) -> None:
        self.register(slave())
        self.assertIsNone(self.routes.route_info("T"))
        self.assertEqual(self.routes.topic_list(), {"topicList": []})

    def test_a_slave_is_told_where_its_live_master_is(self) -> None:
        self.assertIsNone(self.register(slave()))
        self.assertIsNone(self.register(master()))
        self.assertEqual(self.register(slave()), (MASTER, MASTER_HA))

    def test_a_slave_of_another_name_is_not(self) -> None:
        self.register(master(name="broker-b"))
        self.assertIsNone(self.register(slave()))

    def test_topics_of_each_registration_count_whatever_its_version_is(self) -> None:
        self.register(master())
        self.register(master(TopicConfig("T", 16, 16), TopicConfig("New")))
        self.assertEqual(self.queues()[0]["readQueueNums"], 16)
        self.assertEqual(self.addresses("New"), {"broker-a": {"0": MASTER}})

    def test_a_slave_that_has_become_the_master_has_one_address_and_its_topics_count(self) -> None:
        self.register(master())
        self.register(slave())
        self.routes.unregister_broker("broker-a", MASTER, 0)
        self.register(replace(slave(0), topics=(TOPIC, TopicConfig("New"))))
        self.assertEqual(self.addresses(), {"broker-a": {"0": SLAVE}})
        self.assertEqual(self.addresses("New"), {"broker-a": {"0": SLAVE}})

    def test_a_broker_may_change_its_cluster(self) -> None:
        self.register(master())
        self.register(replace(master(), cluster_name="D"))
        self.assertEqual(self.routes.cluster_info()["clusterAddrTable"], {"D": ["broker-a"]})


class WholeTests(RouteInfoTestCase):
    """Java registers one topic when it is created, and later all of them: nothing else tells the two apart."""

    CREATED, OTHER, DELETED = TopicConfig("Created"), TopicConfig("Other"), TopicConfig("Deleted")
    NEWER = VERSION.next(7)

    def topics(self) -> set[str]:
        return set(self.routes.topic_list()["topicList"]) - {topic.topic_name for topic in FROM_THE_START}

    def test_one_topic_or_none_does_not_stand_for_all_of_a_name_server_that_is_new(self) -> None:
        for first in ((self.CREATED,), ()):
            with self.subTest(first):
                self.routes = RouteInfoManager(self.clock)
                self.register(replace(master(), topics=first))
                self.assertEqual(self.query(MASTER, VERSION), (True, None))
                self.register(whole(self.CREATED, self.OTHER))
                self.assertEqual(self.topics(), {"Created", "Other"})
                self.assertEqual(self.query(MASTER, VERSION), (False, VERSION))

    def test_a_deleted_topic_ends_with_the_next_whole_registration_of_its_broker(self) -> None:
        self.register(whole(self.OTHER, self.DELETED))
        self.register(master(self.DELETED, name="broker-b", address="10.0.0.3:10911"))
        self.register(whole(self.OTHER, version=self.NEWER))
        self.assertEqual(self.addresses("Deleted"), {"broker-b": {"0": "10.0.0.3:10911"}})
        self.routes.unregister_broker("broker-b", "10.0.0.3:10911", 0)
        self.assertEqual(self.topics(), {"Other"})

    def test_each_order_of_arrival_ends_with_the_topics_that_there_are(self) -> None:
        older, newer = whole(self.OTHER), whole(self.OTHER, self.CREATED, version=self.NEWER)
        one = master(self.CREATED, version=self.NEWER)
        for order in permutations((older, one, newer)):
            with self.subTest([len(each.topics) for each in order]):
                self.routes = RouteInfoManager(self.clock)
                for registration in order:
                    self.register(registration)
                self.register(newer)  # the next one comes within 30 s
                self.assertEqual(self.topics(), {"Other", "Created"})
        self.routes = RouteInfoManager(self.clock)
        for registration in (one, older):
            self.register(registration)
        self.assertEqual(self.topics(), {"Other", "Created"})

    def test_a_broker_may_send_all_topics_in_several_registrations(self) -> None:
        for _ in range(3):
            self.register(whole(self.OTHER))
            self.register(master(self.CREATED))
            self.assertEqual(self.topics(), {"Other", "Created"})
        self.register(whole(self.OTHER))
        self.register(whole(self.OTHER))
        self.assertEqual(self.topics(), {"Other"})

    def test_a_slave_that_was_promoted_has_not_registered_its_topics_yet(self) -> None:
        self.register(slave())
        self.assertEqual(self.query(SLAVE, VERSION), (False, VERSION))
        self.register(replace(slave(0), topics=(self.CREATED,)))
        self.assertEqual(self.query(SLAVE, VERSION), (True, None))

    def test_a_topic_that_was_removed_by_hand_comes_back_if_its_broker_still_has_it(self) -> None:
        self.register(whole(self.OTHER))
        self.routes.delete_topic("Other")
        self.assertEqual(self.topics(), set())
        self.register(whole(self.OTHER))
        self.assertEqual(self.topics(), {"Other"})

    def test_a_topic_is_removed_by_hand_for_one_cluster(self) -> None:
        self.register(whole(self.OTHER))
        self.routes.delete_topic("Other", "D")
        self.assertEqual(self.topics(), {"Other"})
        self.routes.delete_topic("Other", "C")
        self.assertEqual(self.topics(), set())

    def test_a_broker_that_returns_while_its_topics_are_forgotten_keeps_the_new_ones(self) -> None:
        self.routes = RouteInfoManager(self.clock, LateTurns(self.clock))
        self.register(whole(self.OTHER, self.DELETED))
        self.routes.unregister_broker("broker-a", MASTER, 0)
        self.assertIsNone(self.addresses("Other"))
        self.register(whole(self.OTHER))
        self.routes.delete_topic("SELF_TEST_TOPIC")
        self.clock.advance(0)
        self.assertEqual(self.topics(), {"Other"})
        self.assertEqual(self.addresses("Other"), {"broker-a": {"0": MASTER}})


class EndTests(RouteInfoTestCase):
    def test_a_closed_connection_ends_what_came_on_it(self) -> None:
        self.register(master(), "line 1")
        self.register(slave(), "line 2")
        self.routes.connection_closed("line 1")
        self.assertEqual(self.addresses(), {"broker-a": {"1": SLAVE}})
        self.assertIsNone(self.register(slave(), "line 2"))
        self.routes.connection_closed("line 2")
        self.assertIsNone(self.addresses())
        self.assertEqual(self.routes.cluster_info(), {"brokerAddrTable": {}, "clusterAddrTable": {}})

    def test_the_latest_connection_is_the_one_that_counts(self) -> None:
        self.register(master(), "line 1")
        self.register(master(), "line 2")
        self.routes.connection_closed("line 1")
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}})
        self.routes.connection_closed("line 2")
        self.assertIsNone(self.addresses())

    def test_one_connection_may_bring_several_brokers(self) -> None:
        self.register(master())
        self.register(master(name="broker-b", address="10.0.0.3:10911"))
        self.routes.connection_closed("line")
        self.assertEqual(self.routes.topic_list(), {"topicList": []})

    def test_a_goodbye_ends_a_registration(self) -> None:
        self.register(master())
        self.register(slave())
        self.routes.unregister_broker("broker-a", MASTER, 0)
        self.assertEqual(self.addresses(), {"broker-a": {"1": SLAVE}})
        self.routes.unregister_broker("broker-a", SLAVE, 1)
        self.assertIsNone(self.addresses())

    def test_the_late_goodbye_of_an_old_master_leaves_the_new_one(self) -> None:
        self.register(master())
        self.register(master(address="10.0.0.9:10911"), "line 2")
        self.routes.unregister_broker("broker-a", MASTER, 0)
        self.routes.connection_closed("line")
        self.assertEqual(self.addresses(), {"broker-a": {"0": "10.0.0.9:10911"}})

    def test_a_master_of_an_older_epoch_does_not_replace_a_newer_one(self) -> None:
        self.register(master(address="10.0.0.9:10911", version=replace(VERSION, unknown={"stateVersion": 5})), "line 2")
        for epoch in ({"stateVersion": 4}, {}):
            with self.assertRaisesRegex(RequestRefused, "is the master of broker-a in epoch 5"):
                self.register(master(version=replace(VERSION, unknown=epoch)))
        self.assertEqual(self.addresses(), {"broker-a": {"0": "10.0.0.9:10911"}})
        self.register(slave(address=MASTER))
        self.register(master(version=replace(VERSION, unknown={"stateVersion": 6})))
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}})

    def test_masters_without_an_epoch_replace_each_other_and_one_that_is_gone(self) -> None:
        self.register(master(address="10.0.0.9:10911"), "line 2")
        self.register(master())
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}})
        self.register(master(address="10.0.0.9:10911", version=replace(VERSION, unknown={"stateVersion": 5})), "line 2")
        self.routes.connection_closed("line 2")
        self.register(master())
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}})

    def test_a_goodbye_of_somebody_unknown_changes_nothing(self) -> None:
        self.register(master())
        for name, address, broker_id in (
            ("broker-b", "10.0.0.7:1", 0),
            ("broker-b", MASTER, 0),
            ("broker-a", MASTER, 1),
            ("broker-a", SLAVE, 0),
        ):
            self.routes.unregister_broker(name, address, broker_id)
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}})
        self.assertEqual(self.register(slave(), "line 2"), (MASTER, MASTER_HA))
        self.routes.connection_closed("line")
        self.assertEqual(self.addresses(), {"broker-a": {"1": SLAVE}})

    def test_a_name_that_shares_its_address_with_one_that_left_has_no_live_master(self) -> None:
        self.register(master(name="broker-b"))
        self.register(master())
        self.routes.unregister_broker("broker-b", MASTER, 0)
        self.assertIsNone(self.register(slave()))
        self.register(master())
        self.assertEqual(self.register(slave()), (MASTER, MASTER_HA))

    def test_a_silent_broker_is_forgotten_after_two_minutes(self) -> None:
        self.register(master())
        self.clock.advance(BROKER_CHANNEL_EXPIRED_SECONDS - 60)
        self.register(slave(), "line 2")
        self.clock.advance(60)
        self.routes.scan_not_active_brokers()
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER, "1": SLAVE}})
        self.clock.advance(1)
        self.routes.scan_not_active_brokers()
        self.assertEqual(self.addresses(), {"broker-a": {"1": SLAVE}})

    def test_one_that_comes_back_brings_its_topics_though_their_version_is_the_same(self) -> None:
        self.register(master())
        self.routes.connection_closed("line")
        self.register(master())
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}})


class DataVersionTests(RouteInfoTestCase):
    def test_an_unknown_broker_has_changed_and_no_version(self) -> None:
        self.assertEqual(self.query(MASTER, VERSION), (True, None))

    def test_a_known_one_has_changed_if_its_version_is_another(self) -> None:
        self.register(whole())
        self.assertEqual(self.query(MASTER, VERSION), (False, VERSION))
        self.assertEqual(self.query(MASTER, VERSION.next(7)), (True, VERSION))

    def test_no_change_is_a_sign_of_life(self) -> None:
        self.register(whole(TOPIC))
        for version, is_alive in ((VERSION, True), (VERSION.next(7), False)):
            with self.subTest(version):
                self.clock.advance(100)
                self.query(MASTER, version)
                self.clock.advance(100)
                self.routes.scan_not_active_brokers()
                self.assertEqual(self.addresses() is not None, is_alive)


class ListTests(RouteInfoTestCase):
    def setUp(self) -> None:
        RouteInfoTestCase.setUp(self)
        self.register(master(TOPIC, TopicConfig("OnlyA")))
        self.register(replace(master(name="broker-b", address="10.0.0.3:10911"), cluster_name="D"))

    def test_all_clusters_and_brokers(self) -> None:
        self.assertEqual(
            self.routes.cluster_info(),
            {
                "brokerAddrTable": {
                    "broker-a": {"brokerAddrs": {"0": MASTER}, "brokerName": "broker-a", "cluster": "C"},
                    "broker-b": {"brokerAddrs": {"0": "10.0.0.3:10911"}, "brokerName": "broker-b", "cluster": "D"},
                },
                "clusterAddrTable": {"C": ["broker-a"], "D": ["broker-b"]},
            },
        )

    def test_topics_and_those_of_one_cluster(self) -> None:
        self.assertEqual(self.routes.topic_list(), {"topicList": ["OnlyA", "T"]})
        self.assertEqual(self.routes.topics_by_cluster("C"), {"topicList": ["OnlyA", "T"]})
        self.assertEqual(self.routes.topics_by_cluster("D"), {"topicList": ["T"]})
        self.assertEqual(self.routes.topics_by_cluster("E"), {"topicList": []})

    def test_names_of_clusters_and_brokers_are_system_topics(self) -> None:
        self.assertEqual(
            self.routes.system_topic_list(), {"brokerAddr": MASTER, "topicList": ["C", "D", "broker-a", "broker-b"]}
        )

    def test_a_deleted_topic_is_gone_until_it_is_registered_anew(self) -> None:
        self.routes.delete_topic("T")
        self.routes.delete_topic("None")
        self.assertIsNone(self.addresses())
        self.register(master(version=VERSION.next(3)))
        self.assertEqual(self.addresses(), {"broker-a": {"0": MASTER}})

    def test_a_brokers_topics_can_be_closed_to_writers_and_opened_again(self) -> None:
        self.assertEqual(self.routes.wipe_write_perm("broker-a"), 2)
        self.assertEqual([queue["perm"] for queue in self.queues()], [4, 6])
        self.assertEqual(self.routes.add_write_perm("broker-a"), 2)
        self.assertEqual([queue["perm"] for queue in self.queues()], [6, 6])

    def test_a_broker_that_is_closed_to_writers_stays_so_until_it_starts_again(self) -> None:
        self.routes.wipe_write_perm("broker-a")
        self.register(master(TOPIC, TopicConfig("New"), version=VERSION.next(2)))
        self.assertEqual([self.queues(topic)[0]["perm"] for topic in ("T", "New")], [4, 4])
        self.routes.unregister_broker("broker-a", MASTER, 0)
        self.register(master())
        self.assertEqual(self.queues()[0]["perm"], 6)
        self.assertEqual(self.routes.wipe_write_perm("broker-c"), 0)
