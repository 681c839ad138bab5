"""A name server with TLS: nodes register with it, every command reaches it, and each process has the same options."""

import os
import shutil
import signal
import ssl
import sys
import urllib.request
from io import StringIO
from pathlib import Path

import click
import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.cli import main
from rmqha.kit.events import Event
from rmqha.namesrv_tap import Options as NameServerOptions
from rmqha.pipeline.address import Place, TLSPaths, parse_address
from rmqha.pipeline.network.asking import ask_brokers
from rmqha.pipeline.network.lines import NodeFailed
from rmqha.tap import Options as NodeOptions
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port
from tests.commands import rmqha
from tests.net.tls.authority import Authority
from tests.waiting import WAIT_SECONDS, wait_until

HOST = "localhost"
TLS_OPTIONS = {"tls-cert", "tls-key", "tls-ca", "tls-verify-slaves", "set"}


class OptionsTests(SynchronousTestCase):
    def test_each_process_with_remoting_ports_has_the_same_tls_options(self) -> None:
        for kind in (NodeOptions, NameServerOptions):
            with self.subTest(kind):
                methods = {name.removeprefix("opt_") for name in dir(kind) if name.startswith("opt_")}
                names = methods | {str(row[0]) for row in [*kind.optParameters, *kind.optFlags]}
                self.assertEqual(TLS_OPTIONS - names, set())

    def test_each_command_that_connects_by_remoting_has_the_same_tls_options(self) -> None:
        connecting = {name: command for name, command in commands_of(main).items() if "acl_file" in parameters(command)}
        self.assertGreater(len(connecting), 8)
        for name, command in connecting.items():
            with self.subTest(name):
                wanted = {"tls_ca", "tls_cert", "tls_key"}
                if "namesrv" in parameters(command):
                    wanted.add("over_tls")
                self.assertEqual(wanted - parameters(command), set())
        plain = [name for name, command in commands_of(main).items() if "namesrv" in parameters(command)]
        self.assertEqual(set(plain) - connecting.keys(), set())

    def test_wrong_ones_are_told(self) -> None:
        good = Authority(Path(self.mktemp())).issue(HOST)
        for options, words in (
            (["--tls-key=x"], "a key needs its certificate"),
            (["--tls-cert=/nowhere"], "No such file"),
            (["--tls-verify-slaves"], "needs --tls-cert and --tls-ca"),
            ([f"--tls-cert={good}", f"--tls-ca={good}"], "--tls-ca has no effect: add --tls-verify-slaves"),
            (["--set=tls.server.mode=enforcing"], "needs --tls-cert"),
            (["--set=tls.server.mode=on"], "tls.server.mode"),
            (["--set=brokerName=a"], "brokerName is not a setting of a name server: the only one is tls.server.mode"),
        ):
            with self.subTest(options):
                stderr = StringIO()
                self.patch(sys, "__stderr__", stderr)
                self.assertRaises(SystemExit, NameServerOptions().parseOptions, options)
                self.assertIn(words, stderr.getvalue())


def parameters(command: click.Command) -> set[str]:
    return {str(each.name) for each in command.params}


def commands_of(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """All commands below a group, by their names."""
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= commands_of(command, f"{before}{name} ")
        elif command is not None:
            found[f"{before}{name}"] = command
    return found


@pytest.mark.process
def test_nodes_commands_and_sources_reach_a_name_server_by_tls(tmp_path: Path) -> None:
    ca, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other", "other")
    certificate = tmp_path / "namesrv.pem"
    shutil.copy(ca.issue(HOST), certificate)
    options = ("--port=0", f"--tls-cert={certificate}", "--http-port=0")
    with NameServerNode(tmp_path, options) as server:
        port = server.port("name server")
        namesrv = f"tls:{HOST}:{port}"
        node = TwistdNode(
            tmp_path,
            [
                "--role=async-master", f"--port={free_port()}", f"--namesrv={namesrv}", f"--tls-ca={ca.path}",
                f"--tls-cert={ca.issue('127.0.0.1')}", "--name=broker-tls", "--set=brokerIP1=127.0.0.1",
            ],
            name="broker",
        )  # fmt: skip
        with node:
            wait_until(lambda: bool(node.events(Event.REGISTERED)), "the registration")
            ways = ["--namesrv", f" {namesrv} ; ", "--tls", "--tls-ca", str(ca.path)]
            for command in (["doctor"], ["lag"]):
                done = rmqha(*command, *ways)
                assert done.returncode in (0, 2), (command, done)
                assert "no connection" not in done.stderr, (command, done)
            assert "broker-tls" in rmqha("top", "--once", *ways).stdout
            servers = parse_address(f"namesrv://{namesrv}").name_servers
            found = ask_brokers(servers, None, TLSPaths(str(ca.path)))
            assert found == {"broker-tls": {0: Place("127.0.0.1", node.port("remoting"))}}
            context = ssl.create_default_context(cafile=ca.path)
            url = f"https://{HOST}:{server.port('http')}/metrics"
            with urllib.request.urlopen(url, timeout=WAIT_SECONDS, context=context) as page:
                assert b"\nrmqha_certificate_expiry_timestamp_seconds{" in page.read()
            plain = parse_address(f"namesrv://{HOST}:{port}").name_servers
            with pytest.raises(NodeFailed):
                ask_brokers(plain, None, None)

            shutil.copy(other.issue(HOST), certificate)
            os.kill(server.pid, signal.SIGHUP)
            wait_until(lambda: bool(server.events(Event.CERTIFICATES_CHANGED)), "the other certificate")
            assert ask_brokers(servers, None, TLSPaths(str(other.path))) == found
            with pytest.raises(NodeFailed):
                ask_brokers(servers, None, TLSPaths(str(ca.path)))
        assert node.errors() == []
        assert server.errors() == []


@pytest.mark.process
def test_a_name_server_may_take_plain_clients_or_none_without_certificate(
    tmp_path: Path,
) -> None:
    ca = Authority(tmp_path / "ca")
    certificate = f"--tls-cert={ca.issue(HOST)}"
    with NameServerNode(tmp_path, ("--port=0", certificate, "--set=tls.server.mode=permissive"), "open") as server:
        port = server.port("name server")
        for scheme in ("", "tls:"):
            servers = parse_address(f"namesrv://{scheme}{HOST}:{port}").name_servers
            assert ask_brokers(servers, None, TLSPaths(str(ca.path))) == {}
    verifying = ("--port=0", certificate, f"--tls-ca={ca.path}", "--tls-verify-slaves")
    with NameServerNode(tmp_path, verifying, "closed") as server:
        servers = parse_address(f"namesrv://tls:{HOST}:{server.port('name server')}").name_servers
        with pytest.raises(NodeFailed):
            ask_brokers(servers, None, TLSPaths(str(ca.path)))
        assert ask_brokers(servers, None, TLSPaths(str(ca.path), str(ca.issue("operator")))) == {}
