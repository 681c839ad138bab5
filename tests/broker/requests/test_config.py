"""Code 25: which settings change while a broker runs, for whom, and for how long."""

from collections.abc import Mapping
from dataclasses import replace

from rmqha.broker.interfaces import NoNode
from rmqha.broker.requests.config import ConfigProcessor, LiveSettings, may_change
from rmqha.broker.tables.groups import SubscriptionGroupManager
from rmqha.broker.tables.topics import TopicConfigManager
from rmqha.settings.settings import RUN_TIME_KEYS, SETTING_KEYS, ReadUpTo, RunTime, Settings
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from tests.broker.brokerstore import BrokerStoreTestCase, SetWallClock
from tests.ha.doubles import PEER_NAME, log_lines

PEER_HOST, _, _ = PEER_NAME.partition(":")
SECURITY = {"tls.server.mode", "updateBrokerConfigFrom", "bindAddress", "namesrvAddr", "haMasterAddress", "brokerRole"}
"""No stranger may ever change these."""


class KeepingNode(NoNode):
    """A node that keeps settings, unless it has a problem."""

    def __init__(self, kept: list[tuple[dict[str, str], str]], problem: OSError | None = None) -> None:
        self._kept = kept
        self._problem = problem

    async def keep_settings(self, changes: Mapping[str, str], by: str) -> None:
        if self._problem is not None:
            raise self._problem
        self._kept.append((dict(changes), by))


class ConfigTestCase(BrokerStoreTestCase):
    """A broker whose settings the client may change."""

    def setUp(self) -> None:
        super().setUp()
        self.serve(PEER_HOST)

    def serve(self, allowed: str) -> None:
        """Begin again with this updateBrokerConfigFrom."""
        self.open(updateBrokerConfigFrom=allowed)
        self.topics = TopicConfigManager(self.folder, self.settings, SetWallClock())
        self.groups = SubscriptionGroupManager(self.folder, self.settings, SetWallClock())
        self.lifted: list[str] = []
        self.kept: list[tuple[dict[str, str], str]] = []
        self.patch(self.store, "lift_read_limit", lambda: self.lifted.append("lifted"))
        self.live = LiveSettings(self.store, [self.topics, self.groups])
        self.peer = self.client(ConfigProcessor(self.live, self.clock, KeepingNode(self.kept)).processors())

    def change(self, body: bytes) -> RemotingCommand:
        return self.peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body)

    def assert_success(self, answer: RemotingCommand) -> None:
        self.assertEqual((answer.code, answer.body), (ResponseCode.SUCCESS, b""), answer.remark)


class ChangeTests(ConfigTestCase):
    """What changes."""

    def test_a_setting_changes_in_all_parts(self) -> None:
        with log_lines() as lines:
            self.assert_success(self.change(b"autoCreateTopicEnable=false\nfileReservedTime = 48\n"))
        for part in (self.store, self.topics, self.groups):
            self.assertEqual(part.settings.file_reserved_time_hours, 48)
        self.assertIsNone(self.topics.create_in_send("T", "TBW102", 4))
        self.assertIn(f"warn: {PEER_NAME} changes fileReservedTime from 72 to 48", lines())
        self.assertEqual(self.kept, [({"autoCreateTopicEnable": "false", "fileReservedTime": "48"}, PEER_NAME)])

    def test_groups_are_made_no_longer_when_that_is_switched_off(self) -> None:
        self.assert_success(self.change(b"autoCreateSubscriptionGroup=false"))
        self.assertIsNone(self.groups.find_or_create("G"))

    def test_what_needs_a_restart_is_refused_by_name(self) -> None:
        before = self.store.settings
        for text in ("brokerRole=SLAVE", "brokerId=7", "storePathRootDir=/x", "listenPort=1", "haListenPort=20"):
            answer = self.change(f"fileReservedTime=1\n{text}\n".encode())
            name = text.partition("=")[0]
            self.assert_refused([answer], ResponseCode.NO_PERMISSION, f"cannot be changed at run time: {name}")
        self.assertEqual(self.store.settings, before, "all or nothing")
        self.assertEqual(self.kept, [])

    def test_no_address_path_role_or_certificate_can_change(self) -> None:
        self.assertTrue(SETTING_KEYS >= SECURITY)
        self.assertEqual(SECURITY & RUN_TIME_KEYS.keys(), set())
        for key in RUN_TIME_KEYS:
            for part in ("Path", "Port", "IP", "Address", "Addr", "tls", "Dir", "Role", "From"):
                self.assertNotIn(part, key)

    def test_an_operator_ends_the_wait_for_a_slave(self) -> None:
        self.store.settings = replace(self.store.settings, read_up_to=ReadUpTo.CONFIRMED)
        self.assert_success(self.change(b"readUpTo=verified"))
        self.assertEqual((self.lifted, self.store.settings.read_up_to), (["lifted"], ReadUpTo.VERIFIED))
        self.assert_refused([self.change(b"readUpTo=confirmed")], ResponseCode.NO_PERMISSION, "needs a restart")
        self.assertEqual(len(self.lifted), 1)
        self.assertIs(RUN_TIME_KEYS["readUpTo"], RunTime.UNTIL_RESTART)

    def test_in_a_failover_cluster_nobody_ends_it(self) -> None:
        self.store.settings = replace(self.store.settings, read_up_to=ReadUpTo.CONFIRMED)
        live = LiveSettings(self.store, [], is_member=True)
        self.peer = self.client(ConfigProcessor(live, self.clock).processors())
        answer = self.change(b"readUpTo=verified\nfileReservedTime=7")
        self.assert_refused([answer], ResponseCode.NO_PERMISSION, "readUpTo stays confirmed in a failover cluster")
        self.assertIs(self.store.settings.read_up_to, ReadUpTo.CONFIRMED)
        self.assertNotEqual(self.store.settings.file_reserved_time_hours, 7)
        self.assertEqual(self.kept, [])

    def test_the_names_that_498_refuses_are_refused(self) -> None:
        for name in ("brokerConfigPath", "rocketmqHome", "configBlackList"):
            self.assert_refused([self.change(f"{name}=x".encode())], ResponseCode.NO_PERMISSION, name)

    def test_what_stays_as_it_is_may_be_named(self) -> None:
        before = self.store.settings
        self.assert_success(self.change(f"storePathRootDir={self.store.root}\nbrokerRole=ASYNC_MASTER".encode()))
        self.assertEqual(self.store.settings, before)

    def test_names_that_change_nothing_are_refused(self) -> None:
        for text, remark in (
            (b"waitTimeMillsInSendQueue=500\n", "rmqha does not use waitTimeMillsInSendQueue"),
            (b"fileReservedTim=48\n", "unknown setting fileReservedTim (did you mean fileReservedTime?)"),
        ):
            self.assert_refused([self.change(text)], ResponseCode.SYSTEM_ERROR, remark)

    def test_what_cannot_be_used_is_refused(self) -> None:
        before = self.store.settings
        for body, remark in (
            (b"fileReservedTime=long", "fileReservedTime=long is not a whole number"),
            (b"autoCreateTopicEnable=false\ndeleteWhen=25", "deleteWhen=25 is not an hour"),
            (b"\xff\xfe", "the properties are invalid"),
            (b"a=\\u12", "the properties are invalid"),
        ):
            self.assert_refused([self.change(body)], ResponseCode.SYSTEM_ERROR, remark)
        self.assertEqual(self.store.settings, before)
        self.assertTrue(self.topics.settings.auto_create_topic_enable)

    def test_the_sizes_that_the_store_has_found_stay(self) -> None:
        self.store.settings = replace(self.store.settings, max_hash_slot_num=77)
        self.assert_success(self.change(b"deleteWhen=05;06"))
        self.assertEqual((self.store.settings.delete_when, self.store.settings.max_hash_slot_num), ((5, 6), 77))
        self.assertIsNone(self.topics.settings.max_hash_slot_num)

    def test_a_change_that_cannot_be_kept_says_so(self) -> None:
        node = KeepingNode(self.kept, OSError("no space left"))
        self.peer = self.client(ConfigProcessor(self.live, self.clock, node).processors())
        remark = "changed, but only until the next start: no space left"
        self.assert_refused([self.change(b"fileReservedTime=48")], ResponseCode.SYSTEM_ERROR, remark)
        self.assertEqual(self.store.settings.file_reserved_time_hours, 48)


class AllowedTests(ConfigTestCase):
    """Who may change settings."""

    def test_a_stranger_may_not_and_is_logged_once(self) -> None:
        for allowed in ("local", "none", "127.0.0.1", "10.0.0.0/8, local"):
            self.serve(allowed)
            with log_lines() as lines:
                for _ in range(3):
                    answer = self.change(b"fileReservedTime=0")
                    self.assert_refused([answer], ResponseCode.NO_PERMISSION, f"{PEER_HOST} may not change settings")
            self.assertEqual(lines().count("it may not change settings"), 1)
            self.assertEqual((self.store.settings.file_reserved_time_hours, self.kept), (72, []))

    def test_the_default_is_this_machine(self) -> None:
        self.assertEqual(Settings().update_broker_config_from, "local")

    def test_who_may_change_settings(self) -> None:
        own = "10.1.1.1"
        for allowed, host, may in (
            ("local", "127.0.0.1", True),
            ("local", "127.8.8.8", True),
            ("local", "::1", True),
            ("local", "::ffff:127.0.0.1", True),
            ("local", own, True),
            ("local", "10.1.1.2", False),
            ("none", "127.0.0.1", False),
            ("10.1.0.0/16", "10.1.1.2", True),
            ("10.1.0.0/16", "10.2.1.2", False),
            ("10.1.0.0/16", "127.0.0.1", False),
            ("local,10.1.1.2", "10.1.1.2", True),
            ("local, 2001:db8::/32", "2001:db8::7", True),
            ("local", "a name", False),
        ):
            self.assertIs(may_change(allowed, host, own), may, (allowed, host))
