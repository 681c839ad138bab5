"""The day the master dies, on real nodes: promote the slave, go on, and take the old master back as a slave."""

import json
import socket
import struct
from pathlib import Path

import pytest

from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import PutNode, TwistdNode, free_port
from tests.store.queues import Writer
from tests.store.test_popinflight import JAVAS_CHECKPOINT, REVIVE
from tests.stories.test_rewind import SMALL, run
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process


class Pair:
    """A master that takes messages, and its slave."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.ports = (free_port(), free_port())
        self.stores = (work / "one", work / "two")

    def master(self, number: int) -> PutNode:
        options = ["--role=async-master", f"--port={self.ports[number]}", *SMALL]
        return PutNode(self.work, options, self.stores[number], f"master-{number}")

    def slave(self, number: int, *more: str) -> TwistdNode:
        port = self.ports[1 - number]
        ways = [f"--master=127.0.0.1:{port + 1}", f"--master-remoting=127.0.0.1:{port}"]
        options = ["--role=slave", *ways, f"--port={self.ports[number]}", *SMALL, *more]
        return TwistdNode(self.work, options, self.stores[number], f"slave-{number}")

    def way(self, number: int) -> str:
        return f"127.0.0.1:{self.ports[number]}"


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def in_sync(slave: TwistdNode, end: int) -> None:
    slave.wait_for_state(lambda state: state.state == "IN_SYNC" and state.offsets.flushed >= end, f"IN_SYNC at {end}")


def serving(node: TwistdNode, role: str) -> NodeState:
    return node.wait_for_state(lambda state: state.state == "SERVING" and state.role == role, f"a serving {role}")


def topics_of(store: Path) -> list[bytes]:
    """The file of the table of topics, if there is one. A promotion writes it."""
    return [path.read_bytes() for path in (store / "config").glob("topics.json")]


def put_one(way: str, body: str) -> str:
    return run("put", "--broker", way, "PutNode", body)


def connected_client(way: str) -> socket.socket:
    """A client's connection. It has got an answer."""
    host, _, port = way.rpartition(":")
    client = socket.create_connection((host, int(port)), WAIT_SECONDS)
    header = b'{"code":28,"language":"JAVA","version":399,"opaque":1,"flag":0}'
    client.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert client.recv(4)
    return client


def is_closed(client: socket.socket) -> bool:
    """Whether the other end closes the connection: reads all that comes before."""
    try:
        while client.recv(1 << 16):
            continue
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    finally:
        client.close()
    return True


@pytest.mark.parametrize("way", ["promote", "rewind"])
def test_clients_that_stay_connected_must_connect_again(pair: Pair, way: str) -> None:
    with pair.master(0) as old, pair.slave(1, "--on-ahead=rewind") as slave:
        in_sync(slave, old.put(30)["end"])
        client = connected_client(pair.way(1))
        old.kill()
        if way == "promote":
            slave.wait_for_state(lambda state: state.state == "CONNECTING", "CONNECTING")
            run("promote", pair.stores[1])
            assert is_closed(client)
        else:
            run("restore", pair.stores[1], "--output", pair.work / "less", "--to-message", "PutNode:0:2")
            options = ["--role=async-master", f"--port={pair.ports[0]}", *SMALL]
            with PutNode(pair.work, options, pair.work / "less", "less"):
                slave.wait_for_event(Event.REWOUND)
                assert is_closed(client)
        assert slave.stop() == 0


def test_a_running_slave_becomes_the_master_and_the_old_one_follows_it(pair: Pair) -> None:
    with pair.master(0) as old, pair.slave(1) as slave:
        end = old.put(300, in_flight=10)["end"]
        in_sync(slave, end)
        assert "is alive" in run("promote", pair.stores[1], code=ExitCode.IN_USE)
        slave.wait_for_tables()  # then it writes its topics no more
        old.kill()
        slave.wait_for_state(lambda state: state.state == "CONNECTING", "CONNECTING")
        before = topics_of(pair.stores[1])
        told = json.loads(run("promote", pair.stores[1], "--dry-run", "--json"))
        assert (told["end"], told["applied"], told["role"]) == (end, False, "ASYNC_MASTER")
        assert topics_of(pair.stores[1]) == before
        told = json.loads(run("promote", pair.way(1), "--json"))
        assert (told["end"], told["applied"], told["queues"]["PutNode"]) == (end, True, {str(n): 75 for n in range(4)})
        assert told["foundByNobody"]
        state = serving(slave, "ASYNC_MASTER")
        assert "no name server knows this promoted master" in " ".join(state.warnings)
        assert state.epoch == told["epoch"]
        assert "is a master already" in run("promote", pair.stores[1], code=ExitCode.USAGE)
        put_one(pair.way(1), "after the promotion")
        assert slave.stop() == 0
        # started again by its old service, as a slave
        slave.start()
        serving(slave, "ASYNC_MASTER")
        assert slave.events(Event.STORE_WAS_PROMOTED, role="ASYNC_MASTER")
        put_one(pair.way(1), "after a restart")
        # the old master had more than it had sent
        with pair.master(0) as alone:
            alone.put(20)
            assert alone.stop() == 0
        told = json.loads(run("rewind", pair.stores[0], "--to", f"127.0.0.1:{pair.ports[1] + 1}", "--json"))
        assert (told["offset"], sum(told["messages"].values())) == (end, 20)
        with pair.slave(0) as back:
            back.wait_for_state(lambda state: state.state == "IN_SYNC", "IN_SYNC")
            assert back.stop() == 0
        assert slave.stop() == 0
    assert "identical" in run("verify", pair.stores[0], "--against", pair.stores[1])


@pytest.mark.story
def test_a_stopped_slaves_store_is_promoted_and_its_node_runs_as_the_master(pair: Pair) -> None:
    with pair.master(0) as old:
        with pair.slave(1) as slave:
            end = old.put(100, in_flight=10)["end"]
            in_sync(slave, end)
            assert slave.stop() == 0
        assert "takes connections" in run("promote", pair.stores[1], code=ExitCode.IN_USE)
        assert old.stop() == 0
    assert "do not find it: give --namesrv" in run("promote", pair.stores[1], "--dry-run")
    assert "--namesrv: " in run("promote", pair.stores[1], "--namesrv=nowhere", code=ExitCode.USAGE)
    told = run("promote", pair.stores[1], "--namesrv=127.0.0.1:9")
    assert "is now the ASYNC_MASTER" in told
    assert "do not find it" not in told
    assert "already" in run("promote", pair.stores[1], code=ExitCode.USAGE)
    with pair.slave(1) as promoted:
        state = serving(promoted, "ASYNC_MASTER")
        assert "no name server knows" not in " ".join(state.warnings)
        promoted.wait_for_event(Event.NOT_REGISTERED)  # nobody listens there
        put_one(pair.way(1), "new")
        assert promoted.stop() == 0
    run("verify", pair.stores[1])


@pytest.mark.story
def test_a_store_that_was_promoted_by_mistake_is_a_slaves_again_after_a_rewind(pair: Pair) -> None:
    with pair.master(0) as master:
        with pair.slave(1) as slave:
            in_sync(slave, master.put(40)["end"])
            assert slave.stop() == 0
        run("promote", pair.stores[1], "--force")
        way = f"127.0.0.1:{pair.ports[0] + 1}"
        told = run("rewind", pair.stores[1], "--to", way, "--dry-run")
        assert "nothing to rewind" in told
        assert "would be a slave's store again" in told
        assert "is a slave's store again" in run("rewind", pair.stores[1], "--to", way)
        assert "was promoted" not in run("rewind", pair.stores[1], "--to", way)
        with pair.slave(1) as slave:
            in_sync(slave, master.put(5)["end"])
            assert slave.stop() == 0
        assert master.stop() == 0


def test_a_slave_whose_log_differs_is_not_promoted(pair: Pair) -> None:
    with pair.master(0) as old, pair.slave(1) as slave:
        common = old.put(50)["end"]
        in_sync(slave, common)
        assert slave.stop() == 0
        assert old.stop() == 0
        other = PutNode(pair.work, ["--role=async-master", "--port=0", *SMALL], pair.stores[1], "other")
        with other:
            other.put(5)
            assert other.stop() == 0
        old.start()
        old.put(9)
        slave.start()
        slave.wait_for_state(lambda state: state.state == "DIVERGED", "DIVERGED")
        named = f"both logs are the same up to {common}; then a record differs. Ours is offset 13 of queue 0 of PutNode"
        slave.wait_for_state(lambda state: named in str(state.reason), "the first record that differs")
        assert any(named in event["reason"] for event in slave.events(Event.FORK_FOUND, state="DIVERGED"))
        assert named in run("status", pair.stores[1], code=ExitCode.DIVERGED)
        assert "DIVERGED" in run("promote", pair.stores[1], code=ExitCode.DIVERGED)
        assert slave.stop() == 0
        assert old.stop() == 0
    assert "DIVERGED" in run("promote", pair.stores[1], code=ExitCode.DIVERGED)


@pytest.mark.story
def test_a_running_slave_with_messages_of_pop_consumers_wants_a_switch(pair: Pair) -> None:
    """An order over its port, and the node's own log. A failover takes the same way, and does not ask."""
    opened = MessageStore(make_settings({"storePathRootDir": str(pair.stores[1]), "mappedFileSizeCommitLog": "65536"}))
    Writer(opened.commit_log).put(REVIVE, 0, JAVAS_CHECKPOINT.encode(), TAGS="ck")
    opened.derived.dispatcher.catch_up()
    opened.close_now()
    with pair.slave(1) as slave:
        slave.wait_for_state(lambda state: state.state == "CONNECTING", "CONNECTING")
        for options in ((), ("--force",)):
            said = run("promote", pair.way(1), *options, code=ExitCode.IN_USE)
            assert "3 messages are with POP consumers" in said
            assert "--abandon-popped promotes it anyway" in said
        state = slave.state()
        assert state is not None
        assert state.role == "SLAVE"
        assert json.loads(run("promote", pair.way(1), "--dry-run", "--json"))["poppedMessages"] == 3
        run("promote", pair.way(1), "--abandon-popped")
        serving(slave, "ASYNC_MASTER")
        slave.wait_for_event(Event.POPPED_ABANDONED, count=3)
        assert slave.stop() == 0


def test_what_is_no_slave_is_named(tmp_path: Path) -> None:
    assert "no such store" in run("promote", tmp_path / "nothing", code=ExitCode.USAGE)
    (tmp_path / "empty").mkdir()
    assert "no such store" in run("promote", tmp_path / "empty", code=ExitCode.USAGE)


@pytest.mark.parametrize("way", ["diverged", "ahead"])
@pytest.mark.story
def test_a_slave_that_may_rewinds_by_itself_and_follows(pair: Pair, way: str) -> None:
    with pair.master(0) as old:
        with pair.slave(1) as slave:
            common = old.put(120, in_flight=10)["end"]
            in_sync(slave, common)
            assert slave.stop() == 0
        assert old.stop() == 0
        own = PutNode(pair.work, ["--role=async-master", "--port=0", *SMALL], pair.stores[1], "own")
        with own:
            own.put(7)
            assert own.stop() == 0
        old.start()
        end = old.put(300, in_flight=10)["end"] if way == "diverged" else common
        with pair.slave(1, f"--on-{way}=rewind") as slave:
            slave.wait_for_event(Event.REWOUND)
            in_sync(slave, end)
            slave.wait_for_state(lambda state: state.verdict is None, "no verdict")
            assert slave.stop() == 0
        assert old.stop() == 0
    assert "identical" in run("verify", pair.stores[1], "--against", pair.stores[0])
    [kept] = (pair.stores[1] / "rmqha" / "cut").iterdir()
    assert kept.name == f"{common:020d}"
    assert run("dump", kept, "--topic", "PutNode").count("\n") == 7


def test_a_slave_of_another_log_is_not_rewound_and_stays_diverged(pair: Pair) -> None:
    with pair.master(0) as old:
        old.put(50)
        own = PutNode(pair.work, ["--role=async-master", "--port=0", *SMALL], pair.stores[1], "own")
        with own:
            own.put(7)
            assert own.stop() == 0
        with pair.slave(1, "--on-diverged=rewind", "--on-ahead=rewind") as slave:
            slave.wait_for_event(Event.NOT_REWOUND)
            slave.wait_for_state(lambda state: state.state == "DIVERGED", "DIVERGED")
            assert slave.stop() == 0
        assert old.stop() == 0
