"""``broker.conf`` as RocketMQ writes it, and what of it cannot be used."""

from dataclasses import fields
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.settings.settings import (
    SETTING_KEYS,
    SETTINGS,
    BrokerRole,
    FlushDiskType,
    Settings,
    SettingsError,
    derived_key,
    make_settings,
    properties_of,
    read_properties,
    with_properties,
)
from tests import examples
from tests.fixtures import new_folder

BROKER_CONF = r"""
# Licensed to the Apache Software Foundation (ASF) under one or more
! another comment
brokerClusterName = DefaultCluster
brokerName=broker-a
brokerId : 1
deleteWhen = 04
fileReservedTime=48
brokerRole = SLAVE
flushDiskType = SYNC_FLUSH

namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
brokerIP1 = 10.0.0.7
listenPort=10921
haMasterAddress=10.0.0.1:10912
storePathRootDir=/data/rocket\
    mq/store
mappedFileSizeCommitLog=262144
haSendHeartbeatInterval=1000
haHousekeepingInterval=4000
haTransferBatchSize=65536
flushIntervalCommitLog=100
flushCommitLogLeastPages=0
flushCommitLogThoroughInterval=2000
autoCreateTopicEnable=true
someKeyOfTomorrow=\u00e9\t\\
enableDLegerCommitLog=false
"""


class BrokerConfTests(SynchronousTestCase):
    def read(self, text: str | bytes) -> dict[str, str]:
        path = new_folder(self) / "broker.conf"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_properties(path)

    def test_a_file_as_rocketmq_has_it(self) -> None:
        properties = self.read(BROKER_CONF)
        self.assertEqual(properties["someKeyOfTomorrow"], "é\t\\")
        self.assertEqual(properties["deleteWhen"], "04")
        found = make_settings(properties)
        expected = {
            "broker_role": BrokerRole.SLAVE,
            "broker_id": 1,
            "broker_name": "broker-a",
            "broker_cluster_name": "DefaultCluster",
            "broker_ip1": "10.0.0.7",
            "namesrv_addr": "10.0.0.1:9876;10.0.0.2:9876",
            "listen_port": 10921,
            "ha_master_address": "10.0.0.1:10912",
            "store_path_root_dir": Path("/data/rocketmq/store"),
            "mapped_file_size_commit_log": 262144,
            "flush_disk_type": FlushDiskType.SYNC_FLUSH,
            "flush_interval_commit_log_ms": 100,
            "flush_commit_log_least_pages": 0,
            "flush_commit_log_thorough_interval_ms": 2000,
            "ha_send_heartbeat_interval_ms": 1000,
            "ha_housekeeping_interval_ms": 4000,
            "ha_transfer_batch_size_bytes": 65536,
        }
        self.assertEqual({name: getattr(found, name) for name in expected}, expected)

    def test_windows_line_ends_and_blanks_do_not_matter(self) -> None:
        found = make_settings(self.read("brokerName = b \r\nlistenPort= 10931 \r\n\r\n"))
        self.assertEqual((found.broker_name, found.listen_port), ("b", 10931))

    def test_a_file_that_cannot_be_read_is_named(self) -> None:
        for path in (new_folder(self) / "none.conf", new_folder(self)):
            with self.assertRaises(SettingsError) as caught:
                read_properties(path)
            self.assertIn(str(path), str(caught.exception))

    def test_a_key_with_two_values_is_refused(self) -> None:
        """Java takes the last one: a line at the end would switch access control off."""
        with self.assertRaises(SettingsError) as caught:
            self.read("aclEnable=true\nbrokerName=a\n# more\naclEnable : false\n")
        self.assertIn("aclEnable is there twice, with different values", str(caught.exception))
        self.assertEqual(self.read("aclEnable=true\naclEnable = true\n"), {"aclEnable": "true"})

    def test_a_file_that_is_no_properties_file_is_named(self) -> None:
        for content in (b"brokerName=\xff\xfe", b"brokerName=\\u12"):
            with self.assertRaises(SettingsError, msg=repr(content)) as caught:
                self.read(content)
            self.assertIn("broker.conf", str(caught.exception))


class KeysTests(SynchronousTestCase):
    """RocketMQ's keys, by the fields' names."""

    def test_a_key_is_derived_from_its_field(self) -> None:
        for name, key in (
            ("offset_check_in_slave", "offsetCheckInSlave"),
            ("ha_housekeeping_interval_ms", "haHousekeepingInterval"),
            ("max_message_size_bytes", "maxMessageSize"),
            ("file_reserved_time_hours", "fileReservedTime"),
        ):
            self.assertEqual(derived_key(name), key)
            self.assertEqual(SETTINGS[key].name, name)

    def test_a_key_is_written_only_where_it_differs(self) -> None:
        written = {setting.name: setting.metadata["key"] for setting in fields(Settings) if setting.metadata["key"]}
        self.assertEqual({name for name, key in written.items() if key == derived_key(name)}, set())
        self.assertEqual(written["tls_server_mode"], "tls.server.mode")

    def test_no_two_fields_have_one_key(self) -> None:
        self.assertEqual(len(SETTINGS), len(fields(Settings)))


class PropertiesTests(SynchronousTestCase):
    """Settings back into texts."""

    def test_the_texts_make_the_same_settings(self) -> None:
        given = {
            "brokerRole": "SLAVE",
            "brokerId": "7",
            "storePathRootDir": "/data/store",
            "deleteWhen": "04;16",
            "flushDiskType": "SYNC_FLUSH",
            "traceOn": "false",
            "messageDelayLevel": "1s 2m",
            "brokerIP1": "10.0.0.7",
        }
        found = properties_of(make_settings(given))
        self.assertEqual({key: found[key] for key in given}, given)
        self.assertEqual(properties_of(make_settings(found)), found)

    def test_what_is_not_set_is_left_out(self) -> None:
        found = properties_of(Settings())
        self.assertLessEqual({"brokerId", "brokerIP1", "mappedFileSizeCommitLog"}, SETTING_KEYS - found.keys())
        self.assertEqual((found["listenPort"], found["autoCreateTopicEnable"]), ("10911", "true"))

    def test_some_are_changed_and_the_others_stay(self) -> None:
        settings = make_settings({"brokerName": "b", "fileReservedTime": "48"})
        self.assertEqual(
            with_properties(settings, {"fileReservedTime": "24", "unknown": "x"}),
            make_settings({"brokerName": "b", "fileReservedTime": "24"}),
        )

    def test_a_change_that_does_not_fit_the_others_is_refused(self) -> None:
        with self.assertRaisesRegex(SettingsError, "brokerId=0 means a master"):
            with_properties(make_settings({"brokerRole": "SLAVE"}), {"brokerId": "0"})


class DefaultsTests(SynchronousTestCase):
    def test_they_are_rocketmq_s(self) -> None:
        """store.md 14 and ha.md 8."""
        found = make_settings({})
        self.assertEqual(found, Settings())
        self.assertEqual(
            (found.broker_role, found.flush_disk_type), (BrokerRole.ASYNC_MASTER, FlushDiskType.ASYNC_FLUSH)
        )
        self.assertEqual((found.listen_port, found.ha_port, found.fast_port), (10911, 10912, 10909))
        self.assertEqual((found.broker_name, found.broker_cluster_name), ("broker-a", "DefaultCluster"))
        self.assertEqual((found.broker_id, found.mapped_file_size_commit_log), (None, None))
        self.assertEqual(
            (
                found.flush_interval_commit_log_ms,
                found.flush_commit_log_least_pages,
                found.flush_commit_log_thorough_interval_ms,
                found.ha_send_heartbeat_interval_ms,
                found.ha_housekeeping_interval_ms,
                found.ha_transfer_batch_size_bytes,
            ),
            (500, 4, 10_000, 5_000, 20_000, 32_768),
        )
        self.assertEqual(found.store_path_root_dir, Path.home() / "store")
        self.assertFalse(found.enable_dledger_commit_log)

    def test_the_log_is_below_the_root_unless_it_is_named(self) -> None:
        self.assertEqual(make_settings({"storePathRootDir": "/a"}).commit_log_folder, Path("/a/commitlog"))
        both = make_settings({"storePathRootDir": "/a", "storePathCommitLog": "/b/log"})
        self.assertEqual(both.commit_log_folder, Path("/b/log"))

    def test_a_home_may_be_a_tilde(self) -> None:
        self.assertEqual(make_settings({"storePathRootDir": "~/s"}).store_path_root_dir, Path.home() / "s")


class RefusalTests(SynchronousTestCase):
    """Each names the key and the reason."""

    def refusal(self, **properties: str) -> str:
        with self.assertRaises(SettingsError, msg=repr(properties)) as caught:
            make_settings(properties)
        return str(caught.exception)

    def test_numbers(self) -> None:
        for key, least, most in (
            ("brokerId", 0, 2**31 - 1),
            ("listenPort", 0, 65535),
            ("haListenPort", 0, 65535),
            ("mappedFileSizeCommitLog", 4096, 2**31 - 1),
            ("flushIntervalCommitLog", 1, 86_400_000),
            ("flushCommitLogLeastPages", 0, 2**20),
            ("flushCommitLogThoroughInterval", 1, 86_400_000),
            ("haSendHeartbeatInterval", 1, 86_400_000),
            ("haHousekeepingInterval", 1, 86_400_000),
            ("haTransferBatchSize", 1, 4 * 1024 * 1024 - 12),
        ):
            for text in ("", "many", "1.5", "0x10", "1 000"):
                self.assertEqual(self.refusal(**{key: text}), f"{key}={text} is not a whole number")
            for number in (least - 1, most + 1):
                expected = f"{key}={number} is not between {least} and {most}"
                self.assertEqual(self.refusal(**{key: str(number)}), expected)

    def test_the_ends_of_the_ranges_are_allowed(self) -> None:
        for key, value in (
            ("mappedFileSizeCommitLog", 4096),
            ("mappedFileSizeCommitLog", 2**31 - 1),
            ("haTransferBatchSize", 1),
            ("haTransferBatchSize", 4 * 1024 * 1024 - 12),
            ("flushCommitLogLeastPages", 0),
            ("haSendHeartbeatInterval", 1),
        ):
            make_settings({key: str(value)})

    def test_choices(self) -> None:
        for text in ("", "slave", "MASTER"):
            reason = f"brokerRole={text} is not one of ASYNC_MASTER, SYNC_MASTER, SLAVE"
            self.assertEqual(self.refusal(brokerRole=text), reason)
        self.assertEqual(
            self.refusal(flushDiskType="NEVER"), "flushDiskType=NEVER is not one of ASYNC_FLUSH, SYNC_FLUSH"
        )

    def test_names_and_paths(self) -> None:
        for key in ("brokerName", "brokerClusterName", "brokerIP1", "storePathRootDir", "storePathCommitLog"):
            self.assertEqual(self.refusal(**{key: ""}), f"{key}= is empty")
            self.assertEqual(self.refusal(**{key: "  "}), f"{key}= is empty")
        for key in ("storePathRootDir", "storePathCommitLog"):
            self.assertIn(f"{key}=/a,/b names several paths", self.refusal(**{key: "/a,/b"}))

    def test_a_path_that_cannot_be_one(self) -> None:
        self.assertIn(
            "storePathRootDir=~nobody-here/a starts with ~ and the name",
            self.refusal(storePathRootDir="~nobody-here/a"),
        )
        self.assertIn("storePathRootDir=/a\0b contains a zero byte", self.refusal(storePathRootDir="/a\0b"))

    def test_dledger_has_its_own_replication(self) -> None:
        for text in ("true", "TRUE"):
            reason = self.refusal(enableDLegerCommitLog=text)
            self.assertIn(f"enableDLegerCommitLog={text} cannot be true", reason)
            self.assertIn("replication", reason)
        self.assertFalse(make_settings({"enableDLegerCommitLog": "false"}).enable_dledger_commit_log)

    def test_a_slave_s_id_is_not_a_master_s(self) -> None:
        self.assertIn("brokerId=0", self.refusal(brokerRole="SLAVE", brokerId="0"))
        make_settings({"brokerRole": "SLAVE", "brokerId": "1"})
        make_settings({"brokerRole": "SYNC_MASTER", "brokerId": "0"})

    def test_in_flight_must_fit_what_a_slave_acknowledges_at_once(self) -> None:
        mib = 1024 * 1024
        found = self.refusal(haMaxBytesInFlight=str(16 * mib), maxMessageSize=str(4 * mib + 1))
        self.assertIn(f"haMaxBytesInFlight={16 * mib} is less than 8 MiB and two messages", found)
        self.assertEqual(make_settings({"haMaxBytesInFlight": str(16 * mib)}).ha_max_bytes_in_flight, 16 * mib)

    def test_housekeeping_must_outlast_a_heartbeat(self) -> None:
        reason = self.refusal(haHousekeepingInterval="5000")
        self.assertIn("haHousekeepingInterval=5000", reason)
        self.assertIn("haSendHeartbeatInterval=5000", reason)
        make_settings({"haHousekeepingInterval": "5001"})

    @settings(deadline=None, max_examples=examples(100))
    @given(st.sampled_from(("brokerRole", "brokerId", "listenPort", "storePathRootDir", "flushDiskType")), st.text())
    def test_any_text_is_a_setting_or_is_refused_by_its_key(self, key: str, text: str) -> None:
        try:
            make_settings({key: text})
        except SettingsError as error:
            self.assertIn(key, str(error))


class PortTests(SynchronousTestCase):
    def ports(self, **properties: str) -> tuple[int, int, int]:
        found = make_settings(properties)
        return found.fast_port, found.listen_port, found.ha_port

    def test_they_lie_around_the_listen_port(self) -> None:
        self.assertEqual(self.ports(listenPort="20911"), (20909, 20911, 20912))
        self.assertEqual(self.ports(listenPort="3"), (1, 3, 4))

    def test_the_ha_port_may_be_named(self) -> None:
        self.assertEqual(self.ports(listenPort="20911", haListenPort="5"), (20909, 20911, 5))
        self.assertEqual(self.ports(listenPort="65535", haListenPort="5"), (65533, 65535, 5))

    def test_zero_means_any_free_one(self) -> None:
        self.assertEqual(self.ports(listenPort="0"), (0, 0, 0))
        self.assertEqual(self.ports(listenPort="0", haListenPort="7"), (0, 0, 7))
        self.assertEqual(self.ports(listenPort="20911", haListenPort="0"), (20909, 20911, 0))

    def test_two_on_one_port_are_refused(self) -> None:
        for ha_port in ("20911", "20909"):
            with self.assertRaises(SettingsError) as caught:
                self.ports(listenPort="20911", haListenPort=ha_port)
            self.assertIn(f"haListenPort={ha_port}", str(caught.exception))

    def test_there_must_be_room_around_the_listen_port(self) -> None:
        for port in ("1", "2", "65535"):
            with self.assertRaises(SettingsError) as caught:
                self.ports(listenPort=port)
            self.assertIn(f"listenPort={port}", str(caught.exception))


class BrokerRoleTests(SynchronousTestCase):
    def test_the_command_line_says_it_in_lower_case(self) -> None:
        for role, option in (
            (BrokerRole.ASYNC_MASTER, "async-master"),
            (BrokerRole.SYNC_MASTER, "sync-master"),
            (BrokerRole.SLAVE, "slave"),
        ):
            self.assertEqual(role.option, option)
            self.assertIs(BrokerRole.from_option(option), role)

    def test_another_word_is_refused(self) -> None:
        for text in ("SLAVE", "master", ""):
            with self.assertRaises(SettingsError) as caught:
                BrokerRole.from_option(text)
            self.assertIn("async-master, sync-master, slave", str(caught.exception))
