"""Name servers and nodes as processes: who is registered where, and a slave that learns there of its master."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode, NodeError, TwistdNode, free_port
from rmqha.wire.command import RequestCode, ResponseCode
from tests.freezing import frozen
from tests.net.tls.authority import Authority
from tests.stories.test_broker_node import SEND_FIELDS, connected
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.process

TOPIC = SEND_FIELDS["b"]
SMALL = ("--set=mappedFileSizeCommitLog=1048576", "--set=maxHashSlotNum=1000", "--set=registerNameServerPeriod=10000")
AT_ONCE_SECONDS = 100.0
"""Less than the two minutes after which a silent broker is forgotten: only a lost connection is seen before."""


class Cluster:
    """Nodes that register with one name server, which ``ask`` asks."""

    def __init__(self, work: Path, namesrv: str) -> None:
        self._work = work
        self._namesrv = namesrv
        self._nodes: list[TwistdNode] = []

    def start(self, role: str, *options: str, port: int | None = None, name: str = "") -> TwistdNode:
        """Start a node that registers with the name server."""
        own = (f"--role={role}", f"--port={port or free_port()}", f"--namesrv={self._namesrv}", *SMALL)
        node = TwistdNode(self._work, [*own, *options], name=name or role)
        self._nodes.append(node)
        return node.start()

    def kill(self) -> None:
        for node in self._nodes:
            node.kill()

    def ask(self, code: int, **fields: str) -> Any:
        """The body of the name server's answer, None for an unknown topic."""
        return ask(self._namesrv, code, **fields)

    def brokers(self) -> dict[str, str]:
        """Addresses by brokerId."""
        table = self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)["brokerAddrTable"]
        return dict(table["broker-a"]["brokerAddrs"]) if table else {}

    def wait_for_brokers(self, *nodes: tuple[str, TwistdNode], seconds: float = WAIT_SECONDS) -> None:
        """Wait until these, by their brokerIds, are all that is registered."""
        expected = {broker_id: f"127.0.0.1:{node.port('remoting')}" for broker_id, node in nodes}
        wait_until(lambda: self.brokers() == expected, f"the brokers {expected}", seconds)


def ask(address: str, code: int, **fields: str) -> Any:
    """The body of a name server's answer, None for an unknown topic."""
    with connected(int(address.rpartition(":")[2])) as client:
        answer = client.ask(code, fields)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return orjson.loads(answer.body)


def send(node: TwistdNode, count: int = 1) -> None:
    with connected(node.port("remoting")) as client:
        for _ in range(count):
            assert client.ask(RequestCode.SEND_MESSAGE_V2, SEND_FIELDS, b"hello").code == ResponseCode.SUCCESS


def end_of(node: TwistdNode) -> int:
    """How far the node's log is proved."""
    state = node.state()
    return 0 if state is None else state.offsets.verified


def wait_for_all_of(slave: TwistdNode, master: TwistdNode) -> None:
    """Wait until the slave has what the master has, which is something."""
    wait_until(lambda: 0 < end_of(master) == end_of(slave), "the slave to have all")


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NameServerNode]:
    with NameServerNode(tmp_path) as node:
        yield node


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[[str], Cluster]]:
    clusters = []

    def make(address: str) -> Cluster:
        clusters.append(Cluster(tmp_path, address))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.kill()


@pytest.fixture
def cluster(namesrv: NameServerNode, make_cluster: Callable[[str], Cluster]) -> Cluster:
    return make_cluster(namesrv.address)


def test_nodes_are_registered_while_they_run_and_a_slave_learns_of_its_master(cluster: Cluster) -> None:
    master = cluster.start("async-master")
    cluster.wait_for_brokers(("0", master))
    slave = cluster.start("slave", "--broker-id=3")
    cluster.wait_for_brokers(("0", master), ("3", slave))
    assert cluster.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC) is None
    send(master, 10)
    wait_until(lambda: cluster.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC) is not None, "the new topic")
    route = cluster.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC)
    assert route["brokerDatas"][0]["brokerAddrs"].keys() == {"0", "3"}
    assert route["queueDatas"][0]["writeQueueNums"] == 4
    wait_for_all_of(slave, master)
    assert slave.stop() == 0
    cluster.wait_for_brokers(("0", master), seconds=AT_ONCE_SECONDS)
    assert not master.events(Event.NOT_REGISTERED)
    master.kill()
    wait_until(lambda: cluster.brokers() == {}, "the killed master to be forgotten", AT_ONCE_SECONDS)
    assert cluster.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC) is None


def test_a_clean_stop_says_goodbye(namesrv: NameServerNode, cluster: Cluster) -> None:
    master = cluster.start("async-master")
    cluster.wait_for_brokers(("0", master))
    assert master.stop() == 0
    assert cluster.brokers() == {}
    assert namesrv.events(Event.BROKER_GONE)
    assert namesrv.stop() == 0
    assert namesrv.errors() == []


@pytest.mark.story
def test_a_slave_follows_a_master_that_comes_later_and_one_that_moves(cluster: Cluster) -> None:
    slave = cluster.start("slave")
    cluster.wait_for_brokers(("1", slave))
    master = cluster.start("async-master", name="master")
    send(master)
    wait_for_all_of(slave, master)
    master.kill()
    cluster.wait_for_brokers(("1", slave), seconds=AT_ONCE_SECONDS)
    master = cluster.start("async-master", name="master")  # on its old store, at another port
    send(master, 3)
    wait_until(lambda: 0 < end_of(master) == end_of(slave), "the slave to find it again")
    slave.wait_for_state(lambda state: state.state == ReplicaState.IN_SYNC.name, "the slave to be in sync")


def test_a_name_server_that_comes_back_gets_all_registrations_again(
    tmp_path: Path, make_cluster: Callable[[str], Cluster]
) -> None:
    with NameServerNode(tmp_path, [f"--port={free_port()}"]) as namesrv:
        cluster = make_cluster(namesrv.address)
        master = cluster.start("async-master")
        cluster.wait_for_brokers(("0", master))
        namesrv.kill()
        master.wait_for_event(Event.NOT_REGISTERED)
        namesrv.start()
        namesrv.port("name server")
        cluster.wait_for_brokers(("0", master))


def test_a_name_server_that_does_not_answer_holds_up_no_stop(namesrv: NameServerNode, cluster: Cluster) -> None:
    master = cluster.start("async-master")
    cluster.wait_for_brokers(("0", master))
    with frozen(namesrv.pid):
        assert master.stop() == 0
    wait_until(lambda: cluster.brokers() == {}, "the goodbye to be read", AT_ONCE_SECONDS)


def test_a_node_may_run_the_name_server_itself(tmp_path: Path, make_cluster: Callable[[str], Cluster]) -> None:
    ports = [f"--port={free_port()}", "--embed-namesrv=0", *SMALL]
    with TwistdNode(tmp_path, ["--role=async-master", *ports], name="master") as master:
        cluster = make_cluster(f"127.0.0.1:{master.port('name server')}")
        cluster.wait_for_brokers(("0", master))
        slave = cluster.start("slave")
        cluster.wait_for_brokers(("0", master), ("1", slave))
        send(master)
        wait_until(lambda: cluster.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC) is not None, "the new topic")
        wait_for_all_of(slave, master)
        where = {"namespace": "N", "key": "k"}
        with connected(master.port("name server")) as client:
            assert client.ask(RequestCode.PUT_KV_CONFIG, {**where, "value": "v"}).code == ResponseCode.SUCCESS
        assert master.stop() == 0
        master.start()
        with connected(master.port("name server")) as client:
            assert client.ask(RequestCode.GET_KV_CONFIG, where).ext_fields == {"value": "v"}


def test_a_node_that_listens_by_tls_is_registered_with_its_own_name_server(tmp_path: Path) -> None:
    certificate = Authority(tmp_path / "ca").issue("broker-a")
    options = ["--role=async-master", f"--port={free_port()}", "--embed-namesrv=0", f"--tls-cert={certificate}", *SMALL]
    with TwistdNode(tmp_path, options) as node:
        registered = node.wait_for_event(Event.BROKER_REGISTERED, name="broker-a", id=0)
        assert registered["address"] == f"127.0.0.1:{node.port('remoting')}"
        assert node.stop() == 0
        assert node.events(Event.BROKER_GONE)


@pytest.mark.story
def test_a_slave_may_run_the_name_server_that_tells_it_its_master(
    tmp_path: Path, make_cluster: Callable[[str], Cluster]
) -> None:
    with TwistdNode(tmp_path, ["--role=slave", "--port=0", "--embed-namesrv=0", *SMALL], name="slave") as slave:
        cluster = make_cluster(f"127.0.0.1:{slave.port('name server')}")
        master = cluster.start("async-master")
        send(master)
        wait_for_all_of(slave, master)


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with NameServerNode(tmp_path, [f"--port={port}"]) as namesrv:
            assert namesrv.wait() == 8
        (line,) = namesrv.errors()
        assert line.startswith("rmqha: cannot listen for name server: ")
        with TwistdNode(tmp_path, ["--role=async-master", "--port=0", f"--embed-namesrv={port}"]) as node:
            assert node.wait() == 8


def test_a_kv_config_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    namesrv = NameServerNode(tmp_path)
    namesrv.folder.mkdir()
    (namesrv.folder / "kvConfig.json").write_text("[]")
    with namesrv:
        assert namesrv.wait() == 1
        with pytest.raises(NodeError):
            namesrv.port("name server", 0)
    (line,) = namesrv.errors()
    assert "kvConfig.json is not a valid table of a name server" in line
