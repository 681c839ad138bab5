"""Failover of nodes and coordinators that ask for certificates and accounts. Strangers get nothing."""

import json
import os
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from twisted.internet import reactor

from rmqha.acl.signing import Credentials, Signer
from rmqha.failover.member import Promise
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.net.endpoints import make_endpoint
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import TLSFiles
from rmqha.node.promising import ask_for_promise
from rmqha.remoting.calls import RemotingError
from rmqha.testing.etcd import EtcdCluster
from tests.coordination.backends import REACTOR, need_etcd
from tests.failover.cluster import PATIENT, Cluster, ClusterMember, Load, Surroundings, running_cluster
from tests.freezing import frozen
from tests.inreactor import with_reactor
from tests.net.tls.authority import Authority
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.story]
LOCALHOST = "127.0.0.1"
TRIES = 5
ACCOUNTS = """
accounts:
- accessKey: the-node
  secretKey: secret-of-the-node
  topicPerms: ["%BROKER%=SUB"]
- accessKey: the-application
  secretKey: secret-of-the-application
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: somebody-else
  secretKey: secret-of-somebody
"""
REPORT = bytes(8)
"""What a slave sends first: it asks for the log from the start."""


@dataclass(frozen=True)
class Secured:
    """A cluster whose members take only certificates of an authority, and accounts."""

    cluster: Cluster
    folder: Path
    ours: Authority
    certificate: Path

    def client(self, account: str, certificate: Path | None = None) -> list[str]:
        """The options of a client with this account."""
        return _client_options(self.folder, self.ours, account, certificate or self.certificate)


def _client_options(folder: Path, ours: Authority, account: str, certificate: Path) -> list[str]:
    return ["--tls", f"--tls-ca={ours.path}", f"--tls-cert={certificate}", f"--acl-file={folder / account}"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    ours = Authority(folder / "ca")
    certificate = folder / "nodes.pem"
    shutil.copy(ours.issue(LOCALHOST, "member"), certificate)
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    for account, secret in (("node", "node"), ("application", "application")):
        (folder / account).write_text(f"accessKey: the-{account}\nsecretKey: secret-of-the-{secret}\n")
    (folder / "somebody").write_text("accessKey: somebody-else\nsecretKey: secret-of-somebody\n")
    (folder / "broker.conf").write_text("fileReservedTime=72\n")
    options = [
        f"--conf={folder / 'broker.conf'}",
        f"--tls-cert={certificate}",
        f"--tls-ca={ours.path}",
        "--tls-verify-slaves",
        "--allow-slaves=member",
        "--set=aclEnable=true",
        f"--set=aclFolder={folder}",
        f"--set=aclFile={folder / 'node'}",
    ]
    client = _client_options(folder, ours, "application", certificate)
    with running_cluster(folder, surroundings=Surroundings(options, client, ttl=PATIENT)) as cluster:
        yield Secured(cluster, folder, ours, certificate)


def test_members_promise_over_tls_with_their_accounts(secured: Secured) -> None:
    """On a machine so busy that a member answers too late, the leader gives up as it must: then we try again."""
    cluster = secured.cluster
    load = cluster.load()
    assert any(puts_go_on_without_a_coordinator(cluster, load) for _ in range(TRIES))
    load.stop()
    cluster.assert_nothing_is_lost(load)


def puts_go_on_without_a_coordinator(cluster: Cluster, load: Load) -> bool:
    """Whether the leader takes puts for longer than its lease while the coordinator stands still."""
    cluster.mend()
    leader, _ = cluster.pair()
    fenced = times_fenced(cluster)
    load.wait_for_more()
    with frozen(cluster.witness.pid):
        leader.wait_for_event(Event.COORDINATOR_PROBLEM)
        time.sleep(PATIENT)  # so long that the lease has ended, unless promises have renewed it
        enough = len(load.ok) + 2  # the answer to one may have been under way
        wait_until(
            lambda: len(load.ok) >= enough or times_fenced(cluster) > fenced,
            "another put, or a leader that gives up",
            interval=0.2,
        )
        return len(load.ok) >= enough


def times_fenced(cluster: Cluster) -> int:
    """How often a leader gave up: each member's log counts, because the lead may move while we look."""
    return sum(len(member.events(Event.FAILOVER_FENCED)) for member in cluster.members.values())


def test_members_with_certificates_and_accounts_fail_over(secured: Secured) -> None:
    """Before that certificates and settings are changed with SIGHUP, which ends no leadership.

    What consumers may read is not a setting of a member: readUpTo in its file changes nothing.
    """
    cluster = secured.cluster
    old, new = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    shutil.copy(secured.ours.issue(LOCALHOST, "member"), secured.certificate)
    (secured.folder / "broker.conf").write_text("fileReservedTime=48\nreadUpTo=verified\n")
    os.kill(cluster.witness.pid, signal.SIGHUP)
    for member in (old, new):
        os.kill(member.pid, signal.SIGHUP)
        member.wait_for_event(Event.CERTIFICATES_CHANGED)
        member.wait_for_event(Event.SETTING_CHANGED, key="fileReservedTime")
        assert len(member.events(Event.SETTING_CHANGED)) == 1
        assert not member.events(Event.SETTINGS_NOT_REREAD)
    load.wait_for_more()
    assert not old.events(Event.FAILOVER_FENCED)
    cluster.change_leader(old, new, load)


def _session_of(cluster: Cluster, leader: ClusterMember) -> str:
    """The session of the leader's process, which only the coordinator knows."""
    return str(json.loads(cluster.read_key(f"members/{leader.name}"))["session"])


@with_reactor
async def test_a_stranger_gets_no_promise_even_with_the_leaders_session(secured: Secured) -> None:
    cluster = secured.cluster
    cluster.mend()
    leader, follower = cluster.pair()
    follower.wait_for_state(lambda state: state.state == "IN_SYNC", "IN_SYNC")
    promise = Promise(leader.name, leader.failover["epoch"], _session_of(cluster, leader), 1.0)

    async def ask(certificate: Path | None, credentials: Credentials | None, asked: Promise = promise) -> bool:
        shown = None if certificate is None else str(certificate)
        tls = TLSFiles.load(shown, None, str(secured.ours.path)).client()
        tls.sign = None if credentials is None else Signer(credentials)
        return await ask_for_promise(
            make_endpoint(reactor, f"tls:{LOCALHOST}:{follower.remoting}", tls), asked, REACTOR
        )

    node = Credentials("the-node", "secret-of-the-node")
    with pytest.raises((TLSError, RemotingError, ConnectionError)):
        await ask(None, node)
    with pytest.raises((TLSError, RemotingError, ConnectionError)):
        await ask(Authority(secured.folder / "other", "other").issue(LOCALHOST), node)
    assert not await ask(secured.certificate, None)
    assert not await ask(secured.certificate, Credentials("the-node", "a guess"))
    assert not await ask(secured.certificate, node, Promise(leader.name, promise.epoch, "00" * 16, 1.0))
    assert await ask(secured.certificate, node)


def test_a_stranger_reads_nothing(secured: Secured) -> None:
    cluster = secured.cluster
    cluster.mend()
    leader, _ = cluster.pair()
    load = cluster.load()
    load.wait_for_more()
    load.stop()
    assert cluster.pull(load.topic).returncode == 0
    for options in (
        secured.client("somebody"),
        secured.client("application", Authority(secured.folder / "another", "another").issue(LOCALHOST)),
        [option for option in secured.client("application") if not option.startswith("--tls-cert")],
        [option for option in secured.client("application") if not option.startswith("--acl-file")],
    ):
        done = cluster.pull(load.topic, options)
        assert done.returncode in (ExitCode.STALLED, ExitCode.CANNOT_CONNECT, ExitCode.IO_ERROR), done
        assert done.stdout == b"", done
    for certificate in (None, secured.ours.issue("somebody.example")):
        assert _read_log(leader.port("ha"), secured.ours.path, certificate) == b""


def _read_log(port: int, authority: Path, certificate: Path | None) -> bytes:
    """What an HA port sends to somebody with this certificate who asks for the log from the start."""
    context = ssl.create_default_context(cafile=authority)
    if certificate is not None:
        context.load_cert_chain(certificate)
    with (
        suppress(ConnectionError, ssl.SSLError),
        socket.create_connection((LOCALHOST, port)) as plain,
        context.wrap_socket(plain, server_hostname=LOCALHOST) as connection,
    ):
        connection.sendall(REPORT)
        return connection.recv(1)
    return b""


def test_etcd_that_asks_for_a_certificate_and_a_login_coordinates_a_switchover(tmp_path: Path) -> None:
    """A stranger sees no cluster. The nodes' certificate is renewed meanwhile: etcd takes the old one no more."""
    need_etcd()
    ours, older, newer = (Authority(tmp_path, name) for name in ("ours", "older", "newer"))
    server, nodes, login, trusted = ours.issue(LOCALHOST), tmp_path / "nodes.pem", tmp_path / "login", tmp_path / "ca"
    shutil.copy(older.issue("node"), nodes)
    trusted.write_bytes(ours.path.read_bytes() + older.path.read_bytes())  # etcd's gateway shows etcd its own one
    login.write_text("user=rmqha\npassword=secret\n")
    tls = [f"--cert-file={server}", f"--key-file={server}", f"--trusted-ca-file={trusted}", "--client-cert-auth"]
    etcd = EtcdCluster(tmp_path / "etcd", 1, tls, "https")
    etcd.flags = [f"--cacert={ours.path}", f"--cert={nodes}", f"--key={nodes}"]
    with etcd:
        etcd.ask_for_login("rmqha", "secret")
        settings = {"failoverCaFile": ours.path, "failoverCertFile": nodes, "failoverLoginFile": login}
        options = [f"--set={name}={path}" for name, path in settings.items()]
        shown = [f"--coordinator-ca={ours.path}", f"--coordinator-cert={nodes}", f"--coordinator-login={login}"]
        with running_cluster(tmp_path, surroundings=Surroundings(options, command=shown, etcd=etcd)) as cluster:
            load = cluster.load()
            load.wait_for_more()
            assert "b leads" in cluster.run("switchover", "--to=b")
            cluster.wait_for_sync("b", "a")
            assert cluster.members["b"].ask("/primary")[0] == 200
            assert cluster.members["a"].ask("/primary")[0] == 503
            for missing in range(3):
                stranger = cluster.command("list", shown=[each for each in shown if each != shown[missing]])
                assert stranger.returncode in {ExitCode.CANNOT_CONNECT, ExitCode.IO_ERROR}
                assert (stranger.stdout, "secret" in stranger.stderr) == ("", False)
            shutil.copy(newer.issue("node"), nodes)
            trusted.write_bytes(ours.path.read_bytes() + newer.path.read_bytes())
            _renew(etcd, cluster)
            assert "a leads" in cluster.run("switchover", "--to=a")
            cluster.wait_for_sync("a", "b")
            load.wait_for_more()
            load.stop()
            cluster.assert_nothing_is_lost(load)


def _renew(etcd: EtcdCluster, cluster: Cluster) -> None:
    """The nodes and etcd read their certificates again."""
    for member in cluster.members.values():
        os.kill(member.pid, signal.SIGHUP)
        member.wait_for_event(Event.CERTIFICATES_CHANGED)
    etcd.stop()
    etcd.start()
