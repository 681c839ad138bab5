"""Nodes with TLS, as processes: which peers are served, which are refused, and what both ends log."""

import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from rmqha.kit.events import Event
from rmqha.testing.nodes import PutNode, TwistdNode
from rmqha.testing.records import write_log
from rmqha.wire.transfer import REPORT_HEADER, TRANSFER_HEADER
from tests.commands import rmqha
from tests.freezing import frozen
from tests.net.tls.authority import Authority
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.process

SEGMENT_SIZE = 1 << 20
LOG_BYTES = 300_000
FREE_PORTS = "--port=0"
MASTER = "localhost"
PATIENT_WITH_PEERS = "--set=haHousekeepingInterval=3600000"
"""A stop that waited for a silent peer would take an hour."""
NODE_OPTIONS = (FREE_PORTS, f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}")


@dataclass(frozen=True)
class World:
    """Certificates, and three masters that run as long as the tests do."""

    folder: Path
    ca: Authority
    other_ca: Authority
    sync_master: PutNode
    open_master: TwistdNode
    plain_master: TwistdNode

    def client_options(self, certificate: Path | None = None) -> list[str]:
        shown = [f"--tls-cert={certificate}"] if certificate is not None else []
        return [f"--tls-ca={self.ca.path}", *shown]

    def slave(self, name: str, master: TwistdNode, options: Sequence[str], scheme: str = f"tls:{MASTER}") -> TwistdNode:
        """A slave of this master, not started yet."""
        address = f"--master={scheme}:{master.port()}"
        remoting = f"--master-remoting={scheme}:{master.port('remoting')}"
        return TwistdNode(
            self.folder, ["--role=slave", address, remoting, *NODE_OPTIONS, *options], name=f"slave-{name}"
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tls")
    ca, other_ca = Authority(folder / "ca"), Authority(folder / "other", "other")
    served = f"--tls-cert={ca.issue(MASTER)}"
    stores = [folder / name for name in ("open", "plain")]
    for store in stores:
        write_log(store / "commitlog", LOG_BYTES, 1000, SEGMENT_SIZE)
    mutual = [served, f"--tls-ca={ca.path}", "--tls-verify-slaves", "--allow-slaves=slave-a, 192.0.2.0/24"]
    sync_master = PutNode(
        folder, ["--role=sync-master", "--set=slaveTimeout=60000", *NODE_OPTIONS, *mutual], name="sync"
    )
    with (
        sync_master,
        TwistdNode(folder, ["--role=async-master", *NODE_OPTIONS, served], stores[0], "open") as open_master,
        TwistdNode(folder, ["--role=async-master", *NODE_OPTIONS], stores[1], "plain") as plain_master,
    ):
        yield World(folder, ca, other_ca, sync_master, open_master, plain_master)


def log_of(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


def answer_to(
    world: World, port: int, certificate: Path | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> bytes:
    """What a slave with this certificate gets that asks for the log from its start, until it is dropped."""
    context = ssl.create_default_context(cafile=str(world.ca.path))
    context.maximum_version = version
    if certificate is not None:
        context.load_cert_chain(certificate)
    received = b""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=MASTER) as line,
    ):
        line.sendall(REPORT_HEADER.pack(1))
        while len(received) <= TRANSFER_HEADER.size and (piece := line.recv(65536)):
            received += piece
    return received


def has_refused(node: TwistdNode, reason: str) -> bool:
    """Whether a port of the node has refused a peer of this machine for such a reason."""
    return any(reason in event["reason"] for event in node.events(Event.PEER_REFUSED, host="127.0.0.1"))


VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_peer_without_the_right_certificate_never_gets_a_byte_and_never_counts(
    world: World, version: ssl.TLSVersion
) -> None:
    master = world.sync_master
    before = master.put(3)
    assert before["statuses"] == {"SLAVE_NOT_AVAILABLE": 3}
    for certificate, told in (
        (None, "it shows no certificate"),
        (world.other_ca.issue("slave-a"), "is signed by none of the authorities trusted here"),
        (world.ca.issue_expired("slave-a"), "has expired"),
        (world.ca.issue("slave-x"), "neither slave-x nor its address is in --allow-slaves"),
        (world.ca.issue("slave-x", common_name="slave-a"), "neither slave-x nor its address"),
        (world.ca.issue("192.0.2.1"), "it has no certificate name, and its address is not in --allow-slaves"),
    ):
        assert answer_to(world, master.port(), certificate, version) == b""
        wait_until(partial(has_refused, master, told), told)
    assert master.put(3)["statuses"] == {"SLAVE_NOT_AVAILABLE": 3}
    assert not master.events(Event.SLAVE_TRANSFER_STARTED)


def test_what_is_refused_again_and_again_is_told_once(world: World) -> None:
    certificate = world.ca.issue("slave-again")
    for _ in range(5):
        assert answer_to(world, world.sync_master.port(), certificate) == b""
    reasons = [event["reason"] for event in world.sync_master.events(Event.PEER_REFUSED, host="127.0.0.1")]
    assert len([reason for reason in reasons if reason.startswith("neither slave-again")]) == 1


def test_puts_wait_for_a_slave_with_the_right_certificate_and_for_its_own_slave_too(world: World) -> None:
    """Mutual TLS from the master to the slave, and from the slave to its own slave, which no master knows of."""
    own = world.ca.issue("slave-a", MASTER)
    mutual = ["--tls-verify-slaves", *world.client_options(own)]
    with world.slave("mutual", world.sync_master, mutual) as slave:
        slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        assert world.sync_master.put(20, in_flight=5)["statuses"] == {"PUT_OK": 20}
        with world.slave("cascade", slave, [*world.client_options(own), "--once"]) as last:
            assert last.wait() == 0, last.errors()
        state = world.sync_master.wait_for_state(
            lambda state: any(peer["ackOffset"] == state.offsets.verified for peer in state.peers), "the ack"
        )
        assert [peer["identity"] for peer in state.peers] == ["slave-a"]
        assert slave.stop() == 0
    assert log_of(slave.store) == log_of(last.store) == log_of(world.sync_master.store)
    for node in (slave, last):
        assert node.errors() == []


def test_a_slave_copies_over_tls_without_a_certificate_if_none_is_required(world: World) -> None:
    with world.slave("one-way", world.open_master, [*world.client_options(), "--once"]) as slave:
        assert slave.wait() == 0
    assert log_of(slave.store) == log_of(world.open_master.store)


def test_a_slave_says_why_it_does_not_go_on(world: World) -> None:
    trusting = world.client_options()
    cases = (
        (
            world.slave("other-host", world.open_master, trusting, "tls:127.0.0.1"),
            Event.TLS_FAILED,
            "is not for this host",
        ),
        (
            world.slave("other-ca", world.open_master, [f"--tls-ca={world.other_ca.path}"]),
            Event.TLS_FAILED,
            "is signed by none of the authorities trusted here",
        ),
        (
            world.slave("platform", world.open_master, [], f"ssl:{MASTER}"),
            Event.TLS_FAILED,
            "is signed by none of the authorities",
        ),
        (
            world.slave("to-plain", world.plain_master, trusting),
            Event.TLS_FAILED,
            "perhaps the other side does not use TLS",
        ),
        (
            world.slave("plain-to", world.open_master, [], "tcp:127.0.0.1"),
            Event.MASTER_CONNECTION_LOST,
            "it sent nothing: perhaps its port uses TLS",
        ),
        (
            world.slave("no-certificate", world.sync_master, trusting),
            Event.MASTER_CONNECTION_LOST,
            "the peer ended TLS: tlsv13 alert certificate required",
        ),
    )
    with ExitStack() as nodes:
        for slave, _, _ in cases:
            nodes.enter_context(slave)
        for slave, event, told in cases:
            assert told in slave.wait_for_event(event)["reason"]
            state = slave.state()
            assert state is None or state.offsets.verified == 0
        world.plain_master.wait_for_event(Event.SLAVE_USES_TLS)
        wait_until(partial(has_refused, world.open_master, "it does not use TLS"), "the master to refuse it")
        for slave, _, _ in cases:
            os.kill(slave.pid, signal.SIGTERM)
        assert [slave.wait() for slave, _, _ in cases] == [0] * len(cases)


def test_a_slave_whose_address_is_not_listed_gets_nothing(world: World) -> None:
    store = world.folder / "listed"
    write_log(store / "commitlog", LOG_BYTES, 1000, SEGMENT_SIZE)
    options = ["--role=async-master", *NODE_OPTIONS, "--allow-slaves=192.0.2.0/24"]
    with TwistdNode(world.folder, options, store, "listed") as master:
        for _ in range(3):
            with suppress(ConnectionResetError), socket.create_connection(("127.0.0.1", master.port())) as line:
                line.sendall(REPORT_HEADER.pack(1))
                assert line.recv(1) == b""
        (refused,) = master.events(Event.PEER_REFUSED, host="127.0.0.1")
        assert refused["reason"] == "its address is not in --allow-slaves"


def run_status(*arguments: str) -> subprocess.CompletedProcess[str]:
    return rmqha("status", "--json", *arguments)


def test_status_over_tls(world: World) -> None:
    address = f"{MASTER}:{world.sync_master.port('remoting')}"
    trusting, shown = f"--tls-ca={world.ca.path}", f"--tls-cert={world.ca.issue('operator')}"
    answered = run_status(f"tls:{address}", trusting, shown)
    assert answered.returncode == 0, answered.stderr
    assert '"role":"SYNC_MASTER"' in answered.stdout
    for arguments, told in (
        ([f"tls:{address}", trusting], "alert certificate required"),
        ([f"tls:127.0.0.1:{address.partition(':')[2]}", trusting, shown], "is not for this host"),
        ([address], "it sent nothing: perhaps its port uses TLS (tls:HOST:PORT)"),
    ):
        refused = run_status(*arguments)
        assert (refused.returncode, refused.stdout) == (7, "")
        assert told in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_every_port_says_at_the_start_what_it_is(world: World) -> None:
    for node, security in (
        (world.sync_master, "TLS, peers must show a certificate"),
        (world.open_master, "TLS, peers need no certificate"),
        (world.plain_master, "plain: everyone who reaches it can read the log"),
    ):
        (said,) = node.events(Event.LISTENING, purpose="ha")
        assert said["security"] == security
    (said,) = world.sync_master.events(Event.LISTENING, purpose="remoting")
    assert said["security"].endswith("must show a certificate")


def test_nodes_stop_at_once_whatever_their_peers_do(world: World) -> None:
    """A peer that never shakes hands, a master that stands still, and a port that answers nothing."""
    store = world.folder / "stopping"
    write_log(store / "commitlog", LOG_BYTES, 1000, SEGMENT_SIZE)
    served = f"--tls-cert={world.ca.issue(MASTER)}"
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        TwistdNode(
            world.folder, ["--role=async-master", *NODE_OPTIONS, PATIENT_WITH_PEERS, served], store, "stopping"
        ) as master,
    ):
        nowhere = f"--master=tls:{MASTER}:{silent.getsockname()[1]}"
        options = ["--role=slave", nowhere, "--master-remoting=none", *NODE_OPTIONS, *world.client_options()]
        options.append(PATIENT_WITH_PEERS)
        with (
            world.slave("of-still-master", master, [*world.client_options(), PATIENT_WITH_PEERS]) as slave,
            TwistdNode(world.folder, options, name="slave-nowhere") as lost,
            socket.create_connection(("127.0.0.1", master.port())),
        ):
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            with silent.accept()[0]:
                assert_stops(lost)
            with frozen(master.pid):
                assert_stops(slave)
            assert_stops(master)


def assert_stops(node: TwistdNode) -> None:
    """It ends with status 0, and says nothing of an error."""
    assert node.stop() == 0
    assert node.errors() == []
