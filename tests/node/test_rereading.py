"""What SIGHUP reads again, and changes that are kept for the next start."""

import os
import signal
import socket
import ssl
from collections.abc import Coroutine
from pathlib import Path
from shutil import copy
from typing import Any

import orjson
import pytest
from twisted.internet.defer import Deferred, execute
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.events import Event
from rmqha.net.tls.endpoints import TLSSources
from rmqha.node.rereading import Rereading, Sources
from rmqha.settings.settings import Settings, make_settings, properties_of
from rmqha.store.keptsettings import kept_settings_path, read_kept_settings
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from tests.fixtures import new_folder
from tests.ha.doubles import log_lines
from tests.interop.requests import any_answer
from tests.net.tls.authority import Authority

BY = "127.0.0.1:4711"


class RereadingTestCase(SynchronousTestCase):
    """A configuration that the test changes, and the store of its node."""

    def setUp(self) -> None:
        self.root = new_folder(self)
        self.properties = {"storePathRootDir": str(self.root), "fileReservedTime": "48"}
        self.rereading = self.restarted()

    def read(self) -> tuple[Settings, list[str]]:
        return make_settings(self.properties), ["a warning"]

    def restarted(self) -> Rereading:
        """The node of the next start."""
        sources = Sources(self.read, TLSSources(None, None, None))
        return Rereading(make_settings(self.properties), sources, execute)

    def settings_at_start(self) -> Settings:
        """What the node of the next start runs with."""
        rereading = self.rereading = self.restarted()
        settings = rereading.with_kept(make_settings(self.properties))
        self.result_of(rereading.settle())
        return settings

    def result_of(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.successResultOf(Deferred.fromCoroutine(work))

    def keep(self, **changes: str) -> None:
        """An operator changes settings by mqadmin."""
        self.result_of(self.rereading.keep(changes, BY))

    def hang_up(self) -> dict[str, str]:
        """SIGHUP. Returns what the running node changes."""
        changes: dict[str, str] = self.result_of(self.rereading.reread_settings())
        return changes


class KeptTests(RereadingTestCase):
    """What mqadmin has changed."""

    def test_a_change_counts_after_a_restart(self) -> None:
        self.keep(fileReservedTime="720", autoCreateTopicEnable="false")
        with log_lines() as lines:
            settings = self.settings_at_start()
        self.assertEqual((settings.file_reserved_time_hours, settings.auto_create_topic_enable), (720, False))
        self.assertIn(f"warn: fileReservedTime is 720, not 48 as configured: {BY} changed it at ", lines())
        self.assertIn(str(kept_settings_path(self.root)), lines())

    def test_a_newer_configuration_counts_more(self) -> None:
        self.keep(fileReservedTime="720")
        self.properties["fileReservedTime"] = "96"
        with log_lines() as lines:
            self.assertEqual(self.settings_at_start().file_reserved_time_hours, 96)
        self.assertIn("fileReservedTime is 96, as configured: the change to 720 of ", lines())
        self.assertFalse(kept_settings_path(self.root).exists())
        self.assertTrue(Path(f"{kept_settings_path(self.root)}.bad").exists())

    def test_a_change_back_is_the_way_back(self) -> None:
        self.keep(fileReservedTime="720", deleteWhen="05")
        self.keep(fileReservedTime="48")
        self.assertEqual(list(read_kept_settings(self.root)), ["deleteWhen"])
        self.keep(deleteWhen="04")
        self.assertFalse(kept_settings_path(self.root).exists())

    def test_what_lasts_until_the_next_start_is_not_kept(self) -> None:
        self.keep(readUpTo="verified")
        self.assertEqual(read_kept_settings(self.root), {})

    def test_a_file_that_cannot_be_used_is_kept_aside(self) -> None:
        path = kept_settings_path(self.root)
        for content in (b"", b"[]", b"{", b'{"fileReservedTime": 7}', b'{"fileReservedTime": {"value": "7"}}'):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            with log_lines() as lines:
                self.assertEqual(self.settings_at_start().file_reserved_time_hours, 48)
            self.assertIn("is not a valid file of changed settings", lines())
            self.assertEqual(Path(f"{path}.bad").read_bytes(), content)
            self.assertFalse(path.exists())

    def test_a_file_cannot_change_what_needs_a_restart(self) -> None:
        configured = properties_of(make_settings(self.properties))
        kept = {
            key: {"value": value, "configured": configured.get(key, ""), "at": "then", "by": BY}
            for key, value in (("storePathRootDir", "/x"), ("bindAddress", "0.0.0.0"), ("nothing", "1"))
        }
        kept_settings_path(self.root).parent.mkdir(exist_ok=True)
        kept_settings_path(self.root).write_bytes(orjson.dumps(kept))
        self.assertEqual(self.settings_at_start(), make_settings(self.properties))

    def test_a_kept_value_that_is_wrong_is_ignored(self) -> None:
        self.keep(fileReservedTime="long", deleteWhen="05")
        with log_lines() as lines:
            settings = self.settings_at_start()
        self.assertEqual((settings.file_reserved_time_hours, settings.delete_when), (48, (5,)))
        self.assertIn("fileReservedTime=long is not a whole number", lines())


class SettingsTests(RereadingTestCase):
    """SIGHUP and the configuration."""

    def test_what_has_changed_there_changes(self) -> None:
        self.properties |= {"fileReservedTime": "96", "slaveReadEnable": "true"}
        self.assertEqual(self.hang_up(), {"fileReservedTime": "96", "slaveReadEnable": "true"})
        self.assertEqual(self.hang_up(), {})

    def test_a_setting_that_is_gone_has_its_default(self) -> None:
        del self.properties["fileReservedTime"]
        self.assertEqual(self.hang_up(), {"fileReservedTime": "72"})

    def test_what_needs_a_restart_is_named_each_time(self) -> None:
        self.properties |= {"listenPort": "20911", "haMaxConnections": "7", "readUpTo": "confirmed"}
        for _ in range(2):
            with log_lines() as lines:
                self.assertEqual(self.hang_up(), {})
            self.assertIn("SIGHUP: haMaxConnections, listenPort, readUpTo: what the configuration says", lines())

    def test_a_rotated_log_undoes_no_change_of_an_operator(self) -> None:
        self.keep(fileReservedTime="720")
        self.assertEqual(self.hang_up(), {})
        self.assertEqual(self.settings_at_start().file_reserved_time_hours, 720)

    def test_the_configuration_wins_if_it_has_changed_since(self) -> None:
        self.keep(fileReservedTime="720", deleteWhen="05")
        self.properties["fileReservedTime"] = "96"
        self.assertEqual(self.hang_up(), {"fileReservedTime": "96"})
        self.assertEqual(list(read_kept_settings(self.root)), ["deleteWhen"])

    def test_a_bad_configuration_changes_nothing(self) -> None:
        before = dict(self.properties)
        self.properties |= {"fileReservedTime": "long", "deleteWhen": "05"}
        with log_lines() as lines:
            self.assertEqual(self.hang_up(), {})
        self.assertIn("error: SIGHUP: the settings stay as they are: fileReservedTime=long is not", lines())
        self.properties = before
        self.assertEqual(self.hang_up(), {})

    def test_warnings_are_logged_again(self) -> None:
        with log_lines() as lines:
            self.hang_up()
        self.assertIn("warn: a warning", lines())


# Real nodes


def update(node: TwistdNode, text: str) -> RemotingCommand:
    address = f"127.0.0.1:{node.port('remoting')}"
    return any_answer(address, RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def config_of(node: TwistdNode) -> dict[str, str]:
    answer = any_answer(f"127.0.0.1:{node.port('remoting')}", RequestCode.GET_BROKER_CONFIG)
    return dict(line.partition("=")[::2] for line in answer.body.decode().splitlines())


@pytest.mark.process
def test_a_node_keeps_what_an_operator_changes(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=ASYNC_MASTER\nfileReservedTime=48\n")
    node = TwistdNode(tmp_path, [f"--conf={conf}", "--port=0"])
    with node:
        assert update(node, "fileReservedTime=720").code == ResponseCode.SUCCESS
        assert config_of(node)["fileReservedTime"] == "720"
        refusal = update(node, "storePathRootDir=/x")
        assert (refusal.code, refusal.remark) == (16, "cannot be changed at run time: storePathRootDir")
        conf.write_text("brokerRole=ASYNC_MASTER\nfileReservedTime=48\nbrokerPermission=4\nhaMaxConnections=9\n")
        os.kill(node.pid, signal.SIGHUP)
        node.wait_for_event(Event.SETTINGS_NEED_RESTART, names="haMaxConnections")
        node.wait_for_event(Event.SETTING_CHANGED, key="brokerPermission", old="6", new="4")
        config = config_of(node)
        assert (config["fileReservedTime"], config["brokerPermission"]) == ("720", "4")
        conf.write_text("fileReservedTime=x\n")
        os.kill(node.pid, signal.SIGHUP)
        node.wait_for_event(Event.SETTINGS_NOT_REREAD)
        assert node.stop() == 0
    conf.write_text("brokerRole=ASYNC_MASTER\nfileReservedTime=48\n")
    with node:
        assert config_of(node)["fileReservedTime"] == "720"
        node.wait_for_event(Event.KEPT_SETTING_USED, key="fileReservedTime", value="720", configured="48")
    assert read_kept_settings(node.store)["fileReservedTime"].configured == "48"


@pytest.mark.process
def test_a_node_may_allow_nobody(tmp_path: Path) -> None:
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0", "--set=updateBrokerConfigFrom=none"]) as node:
        answer = update(node, "fileReservedTime=0")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "127.0.0.1 may not change settings of this broker" in (answer.remark or "")
        assert config_of(node)["fileReservedTime"] == "72"


def certificate_of(port: int, authority: Path) -> str | None:
    """The end of the certificate that a client of this authority is shown; None if it does not trust it."""
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            found = line.getpeercert()
            assert found is not None
            return str(found["notAfter"])
    except ssl.SSLCertVerificationError:
        return None


@pytest.mark.process
def test_sighup_reads_certificates_again_on_every_port(tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new", "new")
    certificate, http = tmp_path / "node.pem", free_port()
    copy(old.issue("localhost"), certificate)
    options = ["--role=async-master", "--port=0", f"--tls-cert={certificate}", f"--http-port={http}"]
    with TwistdNode(tmp_path, options) as node:
        ports = [node.port(purpose) for purpose in ("ha", "remoting", "fast remoting", "http")]
        assert all(certificate_of(port, old.path) for port in ports)
        certificate.write_text("-----BEGIN CERTIFICATE-----\nhalf a file")
        os.kill(node.pid, signal.SIGHUP)
        assert str(certificate) in node.wait_for_event(Event.CERTIFICATES_NOT_REREAD)["reason"]
        assert all(certificate_of(port, old.path) for port in ports)
        copy(new.issue("localhost"), certificate)
        os.kill(node.pid, signal.SIGHUP)
        assert str(certificate) in node.wait_for_event(Event.CERTIFICATES_CHANGED)["own"]
        assert all(certificate_of(port, new.path) for port in ports)
        assert not any(certificate_of(port, old.path) for port in ports)
