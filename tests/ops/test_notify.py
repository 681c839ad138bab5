"""What systemd gets: unit tests of the messages, and the datagrams of real processes on a real socket."""

import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Self

import pytest
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyClass, verifyObject

from rmqha.kit.events import Event
from rmqha.ops.notify import MAX_STATUS, IStatusTeller, Notifier, NotifySettings
from rmqha.ops.process import ProcessService
from rmqha.testing.nodes import NameServerNode, TwistdNode
from tests.waiting import wait_until


class SettingsTests(SynchronousTestCase):
    """What the environment says."""

    def test_without_a_socket_there_is_nothing_to_do(self) -> None:
        for environment in ({}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "1000000"}):
            self.assertIsNone(NotifySettings.of_environment(environment, 7))

    def test_addresses_are_paths_or_abstract_names(self) -> None:
        for name, address in (("/run/x", "/run/x"), ("@x/y", "\0x/y")):
            found = NotifySettings.of_environment({"NOTIFY_SOCKET": name}, 7)
            self.assertEqual(found, NotifySettings(address, None))

    def test_other_addresses_are_refused(self) -> None:
        for name in ("vsock:2:1234", "run/x", "@", "/"):
            with self.assertRaisesRegex(ValueError, "neither a path nor an abstract socket"):
                NotifySettings.of_environment({"NOTIFY_SOCKET": name}, 7)

    def test_the_watchdog_counts_only_for_the_named_process(self) -> None:
        def seconds(**environment: str) -> float | None:
            found = NotifySettings.of_environment({"NOTIFY_SOCKET": "/x", **environment}, 7)
            assert found is not None
            return found.watchdog_seconds

        self.assertEqual(seconds(WATCHDOG_USEC="30000000"), 30.0)
        self.assertEqual(seconds(WATCHDOG_USEC="30000000", WATCHDOG_PID="7"), 30.0)
        self.assertIsNone(seconds(WATCHDOG_USEC="30000000", WATCHDOG_PID="8"))
        for wrong in ("", "0", "-1", "soon", "1.5"):
            self.assertIsNone(seconds(WATCHDOG_USEC=wrong))


@implementer(IStatusTeller)
class NotifierTests(SynchronousTestCase):
    """The messages, on a real socket and a clock that stands still."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.status = "opening"
        folder = tempfile.mkdtemp()  # the path of a socket is short, and those of trial are not
        self.path = f"{folder}/notify"
        self.addCleanup(os.rmdir, folder)
        self.addCleanup(Path(self.path).unlink, missing_ok=True)
        self.systemd = self.listen()
        self.notifier = Notifier(NotifySettings(self.path, 20.0), self.clock, self)

    def status_line(self) -> str:
        return self.status

    def test_what_it_asks_is_what_processes_have(self) -> None:
        verifyObject(IStatusTeller, self)
        verifyClass(IStatusTeller, ProcessService)

    def listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.bind(self.path)
        listening.setblocking(False)
        self.addCleanup(listening.close)
        return listening

    def sent(self) -> list[str]:
        """What came since the last call."""
        found = []
        while True:
            try:
                found.append(self.systemd.recv(4096).decode())
            except BlockingIOError:
                return found

    def advance(self, seconds: int) -> list[str]:
        for _ in range(seconds):
            self.clock.advance(1)
        return self.sent()

    def start(self) -> None:
        self.notifier.start()
        self.addCleanup(self.notifier.stopped)

    def test_a_long_start_asks_for_more_time_again_and_again(self) -> None:
        self.start()
        self.assertEqual(self.sent(), ["EXTEND_TIMEOUT_USEC=60000000", "STATUS=opening", "WATCHDOG=1"])
        self.assertEqual(self.advance(20).count("EXTEND_TIMEOUT_USEC=60000000"), 2)
        self.notifier.ready()
        self.assertEqual(self.sent(), ["READY=1\nSTATUS=opening"])
        self.assertEqual(set(self.advance(60)), {"WATCHDOG=1"})

    def test_the_watchdog_hears_twice_in_its_time(self) -> None:
        self.start()
        self.notifier.ready()
        self.sent()
        self.assertEqual(self.advance(100), ["WATCHDOG=1"] * 10)

    def test_a_status_is_sent_when_it_changes(self) -> None:
        self.start()
        self.sent()
        self.status = "verifying\nREADY=1"
        self.assertEqual(self.advance(1), ["STATUS=verifying\\nREADY=1"])
        self.status = "x" * 1000
        self.assertEqual(self.advance(1), ["STATUS=" + "x" * MAX_STATUS])

    def test_a_stop_asks_for_time_until_it_has_ended(self) -> None:
        self.start()
        self.notifier.ready()
        self.sent()
        self.status = "stopping"
        self.notifier.stopping()
        self.assertEqual(self.sent(), ["STOPPING=1\nSTATUS=stopping", "EXTEND_TIMEOUT_USEC=60000000"])
        self.assertIn("EXTEND_TIMEOUT_USEC=60000000", self.advance(10))
        self.notifier.stopped()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_reason_of_an_error_stays_in_the_status(self) -> None:
        self.start()
        self.sent()
        self.notifier.failing("cannot listen for ha: in use")
        self.notifier.failing("the node cannot start")
        self.notifier.stopping()
        self.assertEqual(
            self.sent()[:2], ["STATUS=cannot listen for ha: in use", "STOPPING=1\nSTATUS=cannot listen for ha: in use"]
        )

    def test_a_reload_carries_the_time_and_ends_with_ready(self) -> None:
        self.start()
        self.sent()
        self.notifier.reloading()
        self.notifier.ready()
        reloading, ready = self.sent()
        self.assertRegex(reloading, r"\ARELOADING=1\nMONOTONIC_USEC=[1-9]\d*\Z")
        self.assertEqual(ready, "READY=1\nSTATUS=opening")

    def test_what_a_full_socket_refuses_is_sent_later(self) -> None:
        self.start()
        self.sent()
        filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(filler.close)
        filler.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                filler.sendto(b"filler", self.path)
        self.notifier.ready()
        self.notifier.reloading()
        self.advance_without_reading(5)
        fillers = self.sent()
        self.assertEqual(set(fillers), {"filler"})
        messages = self.advance(1)
        self.assertEqual(messages[0], "READY=1\nSTATUS=opening")
        self.assertTrue(messages[1].startswith("RELOADING=1"))

    def advance_without_reading(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)

    def test_a_missing_socket_does_no_harm(self) -> None:
        os.unlink(self.path)
        self.start()
        self.notifier.ready()
        self.advance_without_reading(3)
        self.systemd = self.listen()
        self.assertIn("READY=1\nSTATUS=opening", self.advance(1))


# Real processes


class Systemd:
    """Listens on the socket that processes find in their environment, as systemd does."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch, watchdog_seconds: float = 30) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self._messages: list[str] = []
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        monkeypatch.setenv("WATCHDOG_USEC", str(int(watchdog_seconds * 1_000_000)))
        monkeypatch.delenv("WATCHDOG_PID", raising=False)

    @property
    def messages(self) -> list[str]:
        """All datagrams so far."""
        while True:
            try:
                self._messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self._messages

    @property
    def lines(self) -> list[str]:
        """The lines of all datagrams so far."""
        return [line for message in self.messages for line in message.splitlines()]

    @property
    def steps(self) -> list[str]:
        """The changes of state so far, in their order."""
        return [line for line in self.lines if line in ("READY=1", "RELOADING=1", "STOPPING=1")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


A_LIFE = ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_hears_of_a_nodes_life(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/notify" if kind == "path" else f"\0rmqha-test-{os.urandom(8).hex()}"
        with Systemd(address, monkeypatch, 0.2) as systemd:
            with TwistdNode(tmp_path, ["--role=async-master", "--port=0"]) as node:
                wait_until(lambda: systemd.steps == ["READY=1"], "the node to be ready")
                assert systemd.lines.index("EXTEND_TIMEOUT_USEC=60000000") < systemd.lines.index("READY=1")
                ports = {event.get("purpose") for event in node.events()}
                assert {"ha", "remoting", "fast remoting"} <= ports, "it listens before it is ready"
                serving = "STATUS=ASYNC_MASTER broker-a: SERVING, 0 slaves connected"
                wait_until(lambda: serving in systemd.lines, "the status of a master")
                seen = len(systemd.lines)
                wait_until(lambda: "WATCHDOG=1" in systemd.lines[seen:], "a sign of life")
                os.kill(node.pid, signal.SIGHUP)
                wait_until(lambda: systemd.steps == A_LIFE[:3], "a reload")
                assert node.stop() == 0
            assert systemd.steps == A_LIFE


@pytest.mark.process
def test_systemd_learns_why_a_node_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other, tempfile.TemporaryDirectory() as folder:
        other.bind(("127.0.0.1", 0))
        other.listen()
        options = ["--role=async-master", "--port=0", f"--ha-port={other.getsockname()[1]}"]
        with Systemd(f"{folder}/notify", monkeypatch) as systemd:
            with TwistdNode(tmp_path, options) as node:
                assert node.wait() == 8
            assert systemd.steps == ["STOPPING=1"]
            assert any(line.startswith("STATUS=cannot listen for ha: ") for line in systemd.lines)


@pytest.mark.process
def test_systemd_hears_of_a_name_servers_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder, Systemd(f"{folder}/notify", monkeypatch) as systemd:
        with NameServerNode(tmp_path) as node:
            wait_until(lambda: systemd.steps == ["READY=1"], "it to be ready")
            assert node.port("name server")
            assert "STATUS=name server, 0 brokers registered" in systemd.lines
            os.kill(node.pid, signal.SIGHUP)
            wait_until(lambda: systemd.steps == A_LIFE[:3], "a reload")
            assert node.stop() == 0
        assert systemd.steps == A_LIFE


@pytest.mark.process
def test_an_unknown_kind_of_socket_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "vsock:2:1234")
    with TwistdNode(tmp_path, ["--role=async-master", "--port=0"]) as node:
        node.wait_for_event(Event.SYSTEMD_UNREACHABLE)
        node.port("remoting")
        assert node.stop() == 0
