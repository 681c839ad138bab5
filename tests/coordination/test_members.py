"""A coordinator that is ill: members that end, freeze or are cut off, logins, certificates, starts and kills."""

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from twisted.internet.defer import Deferred

from rmqha.coordination.address import CoordinatorAccess
from rmqha.coordination.etcd import EtcdCoordinator
from rmqha.coordination.interface import (
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    LeaseGone,
    Put,
)
from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.etcd import EtcdCluster
from rmqha.testing.nodes import free_port
from rmqha.testing.proxy import FaultProxy
from rmqha.testing.witness import WitnessNode
from tests.coordination.backends import Heard, client_of, need_etcd, until
from tests.inreactor import with_reactor
from tests.net.tls.authority import Authority

pytestmark = pytest.mark.process
Result = TypeVar("Result")


@asynccontextmanager
async def closing(client: EtcdCoordinator) -> AsyncIterator[EtcdCoordinator]:
    try:
        yield client
    finally:
        await client.close()


async def until_answered(call: Callable[[], Deferred[Result]]) -> Result:
    """Call again and again until the coordinator is available."""
    while True:
        with suppress(CoordinatorUnavailable):
            return await call()


async def put(client: EtcdCoordinator, key: str, value: bytes = b"") -> int:
    """Put a key, again and again until the coordinator says that it was done. Returns the revision."""
    return (await until_answered(lambda: client.transact([], [Put(key, value)]))).revision


@with_reactor
async def test_without_anybody_there_a_call_fails_in_its_time() -> None:
    ports = [free_port(), free_port()]
    async with closing(client_of(f"etcd:127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")) as client:
        for call in (client.range("/"), client.grant(5), client.transact([], [Put("/k", b"")]), client.keep_alive(1)):
            with pytest.raises(CoordinatorUnavailable, match="refused"):
                await call
        heard = Heard(client, "/", 1)
        await until(lambda: bool(heard.errors), "the end of the watch")
        assert heard.changes == []


@with_reactor
async def test_a_client_goes_on_with_an_etcd_that_was_put_back_under_its_name(tmp_path: Path) -> None:
    need_etcd()
    with EtcdCluster(tmp_path) as cluster:
        async with closing(client_of(cluster.address)) as client:
            await put(client, "/k", b"old")
            cluster.save_copy(tmp_path / "copy")
            await put(client, "/k", b"new")
            for _ in range(2):  # each start begins a new raft term
                cluster.stop()
                cluster.start()
                await until_answered(lambda: client.range("/k"))
            newest, cluster_id = (await client.range("/k")).revision, client.cluster_id
            cluster.put_copy_back(tmp_path / "copy")
            found = await until_answered(lambda: client.range("/k"))
            assert found.keys["/k"].value == b"old"
            assert found.revision < newest
            assert client.cluster_id == cluster_id
            lease = await until_answered(lambda: client.grant(20))
            assert await client.keep_alive(lease) == 20


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("how", ["kill", "pause"])
@with_reactor
async def test_the_client_goes_on_without_one_of_three_members(tmp_path: Path, who: str, how: str) -> None:
    need_etcd()
    with EtcdCluster(tmp_path, 3) as cluster:
        cluster.control("endpoint", "health")
        leader = cluster.leader()
        ill = leader if who == "leader" else next(each for each in cluster.members if each is not leader)
        cluster.members.sort(key=lambda member: member is not ill)  # the client asks the first one first
        async with closing(client_of(cluster.address, patient=False)) as client:
            first = await put(client, "/k", b"1")
            heard = Heard(client, "/", first)
            await put(client, "/k", b"2")
            await until(lambda: len(heard.changes) == 1, "a change")
            getattr(ill, how)()
            third = await put(client, "/k", b"3")
            await until(lambda: bool(heard.errors), "the end of the watch at the member that is ill")
            assert isinstance(heard.errors[0], CoordinatorUnavailable)
            snapshot = await until_answered(lambda: client.range("/"))
            assert snapshot.keys["/k"].value == b"3"
            assert snapshot.revision >= third
            again = Heard(client, "/", snapshot.revision)
            await put(client, "/k", b"4")
            await until(lambda: bool(again.changes), "a change from another member")
            assert again.told[0] == {"/k": b"4"}
            if how == "pause":
                ill.go_on()
            else:
                cluster.start()
            await put(client, "/k", b"5")


@with_reactor
async def test_a_member_without_the_others_answers_nothing(tmp_path: Path) -> None:
    need_etcd()
    with EtcdCluster(tmp_path, 3) as cluster:
        cluster.control("endpoint", "health")
        async with closing(client_of(cluster.address, patient=False)) as client:
            lease = await until_answered(lambda: client.grant(3600))
            await put(client, "/k", b"1")
            for member in cluster.members[1:]:
                member.kill()
            while True:  # the last one still answers until it notices
                try:
                    await client.transact([], [Put("/k", b"2")])
                except CoordinatorUnavailable:
                    break
            for call in (client.range("/"), client.keep_alive(lease)):
                with pytest.raises(CoordinatorUnavailable):
                    await call
            cluster.start()
            await put(client, "/k", b"3")
            assert await until_answered(lambda: client.keep_alive(lease)) == 3600


async def _check_logins(address: str, folder: Path) -> None:
    """The user is rmqha, the password secret."""
    right, wrong = folder / "right", folder / "wrong"
    right.write_text("user=rmqha\npassword=secret\n")
    wrong.write_text("user=rmqha\npassword=guess\n")
    async with closing(client_of(address, CoordinatorAccess(right))) as client:
        await client.transact([], [Put("/rmqha/k", b"1")])
        lease = await client.grant(60)
        assert await client.keep_alive(lease) == 60
        heard = Heard(client, "/rmqha/", (await client.range("/rmqha/")).revision)
        await client.transact([], [Put("/rmqha/k", b"2")])
        await until(lambda: bool(heard.changes), "a change")
        client._token = "of yesterday"
        assert (await client.range("/rmqha/")).keys["/rmqha/k"].value == b"2"
        await client.revoke(lease)
    async with closing(client_of(address, CoordinatorAccess(wrong))) as client:
        with pytest.raises(CoordinatorRefused, match="authentication failed") as refused:
            await client.range("/rmqha/")
        assert "guess" not in str(refused.value)
    async with closing(client_of(address)) as client:
        with pytest.raises(CoordinatorRefused, match="a login is needed"):
            await client.range("/rmqha/")
        heard = Heard(client, "/rmqha/", 1)
        await until(lambda: bool(heard.errors), "the end of the watch")
        assert isinstance(heard.errors[0], CoordinatorRefused)


@with_reactor
async def test_etcd_serves_only_who_logs_in(tmp_path: Path) -> None:
    need_etcd()
    with EtcdCluster(tmp_path) as cluster:
        cluster.ask_for_login("rmqha", "secret")
        await _check_logins(cluster.address, tmp_path)
        async with closing(client_of(cluster.address, CoordinatorAccess(tmp_path / "right"))) as client:
            with pytest.raises(CoordinatorRefused, match="permission denied"):
                await client.range("/elsewhere/")


@with_reactor
async def test_the_witness_serves_only_who_logs_in(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("user=rmqha\npassword=secret\n")
    with WitnessNode(tmp_path, [f"--witness-login={tmp_path / 'login'}"]) as node:
        node.port("witness")
        await _check_logins(f"witness:{node.witness_address}", tmp_path)
        node.wait_for_event(Event.WITNESS_LOGIN_REFUSED)


@with_reactor
async def test_a_login_is_not_needed_where_nobody_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("user=rmqha\npassword=secret\n")
    with WitnessNode(tmp_path) as node:
        node.port("witness")
        access = CoordinatorAccess(tmp_path / "login")
        async with closing(client_of(f"witness:{node.witness_address}", access)) as client:
            assert (await client.range("")).keys == {}


@pytest.mark.parametrize("kind", ["etcd", "witness"])
@with_reactor
async def test_with_tls_only_certificates_of_the_authority_count(tmp_path: Path, kind: str) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    server, client_file, stranger = ours.issue("127.0.0.1"), ours.issue("node-a"), other.issue("node-a")
    if kind == "etcd":
        need_etcd()
        options = [f"--cert-file={server}", f"--key-file={server}", f"--trusted-ca-file={ours.path}"]
        cluster = EtcdCluster(tmp_path, 1, [*options, "--client-cert-auth"], "https")
        running: EtcdCluster | WitnessNode = cluster
        address = cluster.address
    else:
        node = WitnessNode(tmp_path, [f"--witness-tls-cert={server}", f"--witness-tls-ca={ours.path}"])
        running = node
        address = f"witness:https://{node.witness_address}"
    with running:
        async with closing(client_of(address, CoordinatorAccess(None, ours.path, client_file))) as client:
            revision = await put(client, "/k", b"1")
            heard = Heard(client, "/", revision)
            await put(client, "/k", b"2")
            await until(lambda: bool(heard.changes), "a change")
        for access in (
            CoordinatorAccess(None, ours.path),
            CoordinatorAccess(None, ours.path, stranger),
            CoordinatorAccess(None, other.path, client_file),
            CoordinatorAccess(None, None, client_file),
        ):
            async with closing(client_of(address, access)) as client:
                with pytest.raises(CoordinatorUnavailable):
                    await client.range("/")
        async with closing(client_of(address.replace("https://", ""))) as client:
            with pytest.raises(CoordinatorError):
                await client.range("/")


@pytest.mark.parametrize("kind", ["etcd", "witness"])
@with_reactor
async def test_keys_and_leases_outlive_a_start(tmp_path: Path, kind: str) -> None:
    if kind == "etcd":
        need_etcd()
    cluster, node = EtcdCluster(tmp_path), WitnessNode(tmp_path)
    running: EtcdCluster | WitnessNode = cluster if kind == "etcd" else node
    with running:
        address = cluster.address if kind == "etcd" else f"witness:{node.witness_address}"
        async with closing(client_of(address, patient=False)) as client:
            await put(client, "/k", b"1")
            lease, gone = await client.grant(3600), await client.grant(3600)
            await client.revoke(gone)
            await client.transact([], [Put("/leader", b"a", lease)])
            before, cluster_id = await client.range("/"), client.cluster_id
            running.stop()
            with pytest.raises(CoordinatorUnavailable):
                await client.range("/")
            running.start()
            await put(client, "/k", b"2")
            after = await client.range("/")
            assert after.keys["/leader"] == before.keys["/leader"]
            assert after.keys["/k"].create_revision == before.keys["/k"].create_revision
            assert after.revision > before.revision
            assert client.cluster_id == cluster_id
            assert await client.keep_alive(lease) == 3600
            with pytest.raises(LeaseGone):
                await client.keep_alive(gone)


class Load:
    """Counts up a key until it is stopped, and notes the last number that was answered."""

    def __init__(self, client: EtcdCoordinator, key: str) -> None:
        self.key = key
        self.answered = 0
        self.is_stopped = False
        self.ended = Deferred.fromCoroutine(self._run(client))

    async def _run(self, client: EtcdCoordinator) -> None:
        number = 0
        while not self.is_stopped:
            number += 1
            with suppress(CoordinatorUnavailable):
                await client.transact([], [Put(self.key, b"%d" % number)])
                self.answered = number


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.proof)])
@with_reactor
async def test_kills_of_the_witness_lose_nothing_that_was_answered(tmp_path: Path, kills: int) -> None:
    with WitnessNode(tmp_path) as node:
        async with closing(client_of(f"witness:{node.witness_address}", patient=False)) as client:
            lease = await until_answered(lambda: client.grant(3600))
            loads = [Load(client, f"/load-{number}") for number in range(8)]
            for _ in range(kills):
                goal = 100 + sum(load.answered for load in loads)
                await until(partial(lambda goal: sum(load.answered for load in loads) > goal, goal), "answers")
                node.kill()
                told = {load.key: load.answered for load in loads}
                node.start()
                found = (await until_answered(lambda: client.range("/"))).keys
                assert {key for key, number in told.items() if int(found[key].value) < number} == set()
                assert await until_answered(lambda: client.keep_alive(lease)) == 3600
            for load in loads:
                load.is_stopped = True
                await load.ended


@with_reactor
async def test_a_watch_behind_a_network_that_holds_everything_ends(tmp_path: Path) -> None:
    with WitnessNode(tmp_path) as node, FaultProxy(f"127.0.0.1:{node.port('witness')}") as proxy:
        async with closing(client_of(f"witness:{proxy.address}", patient=False)) as client:
            revision = await put(client, "/k", b"1")
            heard = Heard(client, "/", revision)
            await put(client, "/k", b"2")
            await until(lambda: bool(heard.changes), "a change")
            proxy.command("both hold")
            with pytest.raises(CoordinatorUnavailable):
                await client.range("/")
            await until(lambda: bool(heard.errors), "the end of the watch")
            assert isinstance(heard.errors[0], CoordinatorUnavailable)
            proxy.command("both pass")
            await put(client, "/k", b"3")


def test_a_second_witness_in_the_same_folder_does_not_start(tmp_path: Path) -> None:
    with WitnessNode(tmp_path) as node:
        node.port("witness")
        second = WitnessNode(tmp_path, [f"--witness-folder={node.witness_folder}"], "second")
        with second:
            assert second.wait() == ExitCode.IN_USE
    with node:
        node.port("witness")


def test_a_damaged_journal_keeps_the_name_server_from_starting(tmp_path: Path) -> None:
    with WitnessNode(tmp_path) as node:
        node.port("witness")
        node.stop()
        (path,) = node.witness_folder.glob("journal-*")
        data = bytearray(path.read_bytes())
        data[30] ^= 1
        path.write_bytes(data)
        node.start()
        assert node.wait() == ExitCode.CORRUPT
        assert "is damaged at byte 0" in node.wait_for_event(Event.PROCESS_ENDS)["reason"]


@with_reactor
async def test_strangers_do_not_keep_a_client_from_its_lease(tmp_path: Path) -> None:
    """The answers, not their time, are tested: ``PortTests`` and the limits in ``http`` bound the work."""
    with WitnessNode(tmp_path, ["--http-port=0"]) as node, ExitStack() as sockets:
        address = ("127.0.0.1", node.port("witness"))
        deep, many = b"[" * 200_000, b"{" + b",".join(b'"%d":0' % number for number in range(20_000)) + b"}"
        bodies = [b"\x16\x03\x01" * 1000, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 50_000]
        for content in (deep, many):
            head = f"POST /v3/kv/txn HTTP/1.1\r\nHost: w\r\nContent-Length: {len(content)}\r\n\r\n".encode()
            bodies += [head + content, head + content[:-1]]
        strangers = [sockets.enter_context(socket.create_connection(address)) for _ in range(40)]
        async with closing(client_of(f"witness:{node.witness_address}")) as client:
            lease = await client.grant(3600)
            for number, stranger in enumerate(strangers):
                with suppress(ConnectionError):
                    stranger.sendall(bodies[number % len(bodies)])
                if number % 10 == 0:
                    assert await client.keep_alive(lease) == 3600
            assert (await client.range("/")).keys == {}
            status = f"http://127.0.0.1:{node.port('http')}/status.json"
            with urllib.request.urlopen(status) as answer:
                assert json.load(answer)["ports"]["witness"]["connections"] >= 1


def test_a_node_without_failover_does_not_load_the_client() -> None:
    code = "import rmqha.tap, rmqha.namesrv_tap, sys; print('treq' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
