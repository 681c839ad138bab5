"""Keys of broker.conf: misspelt ones are refused, Java's own are named, and none is dropped that weakens a promise."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.events import Event
from rmqha.settings.confkeys import EFFECTS, REFUSED, check_keys, java_keys, judge_keys, nearest
from rmqha.settings.settings import SETTING_KEYS, SettingsError
from rmqha.testing.nodes import TwistdNode, free_port
from tests.cli.test_cli import CommandTestCase
from tests.test_tap import OptionsTestCase

OUR_OWN = {
    "aclFile",
    "aclFolder",
    "aclStrict",
    "failoverCaFile",
    "failoverCertFile",
    "failoverKeyFile",
    "failoverLoginFile",
    "updateBrokerConfigFrom",
    "haMaxConnections",
    "haMaxSilentConnections",
    "haMaxConnectionsPerAddress",
    "haConnectsAtOncePerAddress",
    "haConnectsPerSecondPerAddress",
    "haFirstReportTimeout",
    "haMaxBytesInFlight",
    "maxHaReceiveByteInSecond",
    "serverConnectsAtOncePerAddress",
    "serverConnectsPerSecondPerAddress",
    "serverMaxConnections",
    "serverMaxRequestsInProgress",
    "tls.server.mode",
    "maxGroups",
    "maxNewGroupsAtOnce",
    "maxNewGroupsAtOncePerConnection",
    "maxNewGroupsPerSecond",
    "maxNewGroupsPerSecondPerConnection",
    "maxNewTopicsAtOnce",
    "maxNewTopicsAtOncePerConnection",
    "maxNewTopicsPerSecond",
    "maxNewTopicsPerSecondPerConnection",
    "maxTopics",
    "readUpTo",
    "serverMaxAnswerBytes",
    "serverMaxRequestBytes",
    "unregisterUnfitSlave",
}
"""Keys of rmqha alone: Java's broker.conf has none of them."""
MASTER = ("--role=async-master", "--store=s")


class KeysTests(SynchronousTestCase):
    """The keys that there are."""

    def test_what_is_not_our_own_is_javas(self) -> None:
        """A key of ours that is misspelt itself would stand out here."""
        strange = SETTING_KEYS - java_keys() - OUR_OWN
        self.assertEqual(strange, set(), "misspelt, or missing in OUR_OWN of tests/settings/test_confkeys.py")
        self.assertEqual(OUR_OWN - SETTING_KEYS | OUR_OWN & java_keys(), set(), "not settings of ours alone")

    def test_what_is_refused_is_javas_and_not_used(self) -> None:
        for key in REFUSED.keys() | EFFECTS.keys():
            with self.subTest(key):
                self.assertIn(key, java_keys())
                self.assertNotIn(key, SETTING_KEYS)

    def test_each_key_is_known(self) -> None:
        check_keys(dict.fromkeys(java_keys() | SETTING_KEYS, "x"))

    @given(st.sampled_from(sorted(SETTING_KEYS)), st.data())
    def test_two_neighbours_exchanged_are_found_out(self, key: str, data: st.DataObject) -> None:
        """The commonest slip of the keyboard, at any place of any key."""
        at = data.draw(st.integers(0, len(key) - 2))
        misspelt = key[:at] + key[at + 1] + key[at] + key[at + 2 :]
        if misspelt in SETTING_KEYS | java_keys():
            return
        self.assertIn(misspelt, str(self.assertRaises(SettingsError, check_keys, {misspelt: "x"})))

    def test_the_nearest_is_named(self) -> None:
        known = SETTING_KEYS | java_keys()
        for misspelt, right in (
            ("brokerNmae", "brokerName"),
            ("fileReservedTme", "fileReservedTime"),
            ("brokername", "brokerName"),
            ("inSyncReplica", "inSyncReplicas"),
            ("aclEnabled", "aclEnable"),
        ):
            with self.subTest(misspelt):
                self.assertEqual(nearest(misspelt, known), right)
        self.assertIsNone(nearest("qqq", known))


class NodeTests(OptionsTestCase):
    """What a node says to them at its start."""

    def test_a_misspelt_key_of_the_file_is_an_error_that_names_the_right_one(self) -> None:
        line = self.refusal(*MASTER, self.conf("brokerNmae=a\nfileReservedTme=48\n"))
        self.assertIn("brokerNmae (did you mean brokerName?)", line)
        self.assertIn("fileReservedTme (did you mean fileReservedTime?)", line)

    def test_a_misspelt_key_of_set_too(self) -> None:
        self.assertIn("did you mean inSyncReplicas?", self.refusal(*MASTER, "--set=inSyncReplica=3"))
        self.assertIn("unknown setting zzz (", self.refusal(*MASTER, "--set=zzz=3"))

    def test_keys_of_tls_are_shown_to_the_options(self) -> None:
        self.assertIn("--tls-cert", self.refusal(*MASTER, "--set=tls.server.certPath=a.pem"))

    def test_javas_keys_are_named_in_one_warning(self) -> None:
        options = self.options(
            *MASTER, self.conf("rocketmqHome=/opt\nuseEpollNativeSelector=false\nsendMessageThreadPoolNums=4\n")
        )
        (warning,) = options.setting_warnings
        self.assertTrue(warning.endswith(": rocketmqHome, sendMessageThreadPoolNums, useEpollNativeSelector"), warning)

    def test_a_file_of_used_keys_warns_of_nothing(self) -> None:
        self.assertEqual(self.options(self.conf()).setting_warnings, [])

    def test_what_would_weaken_a_promise_is_refused(self) -> None:
        values = {"storeType": "defaultRocksDB", "messageStorePlugIn": "a.B", "readOnlyCommitLogStorePaths": "/a"}
        for key in REFUSED:
            with self.subTest(key):
                value = values.get(key, "true")
                self.assertIn(f"{key}={value}: ", self.refusal(*MASTER, f"--set={key}={value}"))
                harmless = "default" if key == "storeType" else "" if key in values else "false"
                self.options(*MASTER, f"--set={key}={harmless}")

    def test_what_concerns_a_master_alone_does_not_stop_a_slave(self) -> None:
        slave = ("--role=slave", "--store=s", "--master=h:1")
        for key, rule in REFUSED.items():
            if rule.masters_only:
                self.options(*slave, f"--set={key}=true")
        self.refusal(*slave, "--set=authenticationEnabled=true")

    def test_what_will_be_different_is_told(self) -> None:
        for key, rule in EFFECTS.items():
            with self.subTest(key):
                value = "true" if rule.applies("true") else "x"
                self.assertEqual(judge_keys({key: value}, is_slave=False), [f"{key}={value}: {rule.reason}"])

    def test_bind_address_is_obeyed(self) -> None:
        """Left out, it would open ports to more than its user wanted."""
        options = self.options(*MASTER, "--set=bindAddress=127.0.0.1")
        self.assertEqual(options.plan(None).bind_address, "127.0.0.1")
        self.assertEqual(self.options(*MASTER, "--bind=::1", "--set=bindAddress=a").plan(None).bind_address, "::1")


class CommandTests(CommandTestCase):
    """The offline commands."""

    def test_a_misspelt_key_is_wrong_usage(self) -> None:
        store = self.store()
        for command in (["verify"], ["dump"], ["job", "verify"]):
            with self.subTest(command):
                message = self.complaint(2, *command, store, "--set=maxIndexNun=3")
                self.assertIn("maxIndexNun (did you mean maxIndexNum?)", message)

    def test_a_store_with_access_control_can_be_looked_at(self) -> None:
        self.output_of("verify", self.store(), "--set=aclEnable=true", "--set=rocketmqHome=/opt")

    def test_a_misspelt_option_of_a_job_is_named_with_the_nearest(self) -> None:
        message = self.complaint(2, "job", "stats", self.store(), "-o", "startingTimestmap=1")
        self.assertIn("startingTimestmap (did you mean startingTimestamp?)", message)


@pytest.mark.process
def test_a_running_node_says_what_it_does_not_use(tmp_path: Path) -> None:
    """In the log of a real process, and before anything else goes wrong."""
    options = ["--role=async-master", f"--port={free_port()}", "--set=rocketmqHome=/opt", "--set=enableLmq=true"]
    with TwistdNode(tmp_path, options) as node:
        node.wait_for_event(Event.LISTENING)
        told = [event["warning"] for event in node.events(Event.SETTING_WARNING, level="warn")]
        for warning in ("rmqha does not use a setting of Java's broker: rocketmqHome", "enableLmq=true: queues of"):
            assert [text for text in told if warning in text], told


@pytest.mark.process
def test_a_recipe_is_refused_too(tmp_path: Path) -> None:
    recipe = (
        Path("tac/slave.tac")
        .read_text()
        .replace('"--broker-id=1"', '"--broker-id=1", "--set=authenticationEnabled=true"')
    )
    (tmp_path / "slave.tac").write_text(recipe)
    command = [str(Path(sys.executable).with_name("twistd")), "-ny", "slave.tac"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 2
    assert "authenticationEnabled=true: rmqha has the access control of RocketMQ 4 only" in ended.stderr
