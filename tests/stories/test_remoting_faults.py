"""Bad peers at the remoting port of a node in a process of its own: the node and its other clients do not mind."""

import resource
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from rmqha.cli import main as command
from rmqha.kit.events import Event
from rmqha.testing.nodes import TwistdNode
from rmqha.wire.command import FRAME_MAX_LENGTH, RemotingCommand, RequestCode, ResponseCode, encode_command
from tests.commands import rmqha
from tests.net.tls.authority import Authority
from tests.stories.test_broker_node import MASTER_OPTIONS, SEND_FIELDS, Connection, connected
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process

CROWD = 1000
FILES_FOR_CROWDS = 4096
MESSAGES, MESSAGE_BYTES = 40, 60_000
PULLS = 100_000
PULL_FIELDS = {
    "consumerGroup": "G",
    "topic": "New",
    "queueId": "1",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}


@contextmanager
def master_of(work: Path, *options: str) -> Iterator[TwistdNode]:
    with TwistdNode(work, [*MASTER_OPTIONS, *options], name="master") as node:
        node.port("remoting")
        yield node


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwistdNode]:
    """A master that all tests here are bad to."""
    with master_of(tmp_path_factory.mktemp("master")) as node:
        yield node


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may open as many files as a crowd needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_FOR_CROWDS:
        pytest.skip(f"this process may open {hard} files")
    if soft != resource.RLIM_INFINITY and soft < FILES_FOR_CROWDS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_FOR_CROWDS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def dial(node: TwistdNode) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.port("remoting")), WAIT_SECONDS)


@contextmanager
def crowd(node: TwistdNode, count: int) -> Iterator[Sequence[socket.socket]]:
    """So many connections that say nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(dial(node))) for _ in range(count)]


def memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def sends(client: Connection, count: int, body: bytes) -> None:
    for _ in range(count):
        assert client.ask(RequestCode.SEND_MESSAGE_V2, SEND_FIELDS, body).code == ResponseCode.SUCCESS


def assert_serves(node: TwistdNode) -> None:
    with connected(node.port("remoting")) as client:
        sends(client, 1, b"hello")


def answer_to(node: TwistdNode, data: bytes) -> bytes:
    """All that is answered to this, until the node closes the connection."""
    answer = b""
    with closing(dial(node)) as peer:
        peer.sendall(data)
        try:
            while more := peer.recv(65536):
                answer += more
        except ConnectionResetError:
            pass
    return answer


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


BROKEN = {
    "a length beyond the limit": struct.pack(">I", FRAME_MAX_LENGTH + 1),
    "a negative length": b"\xff\xff\xff\xf0",
    "a length of nothing": struct.pack(">I", 0),
    "a header beyond the frame": framed(struct.pack(">I", 5) + b"{}"),
    "a negative header length": framed(b"\x00\xff\xff\xff" + b"{}"),
    "no JSON": framed(struct.pack(">I", 4) + b"{no}"),
    "JSON without a code": framed(struct.pack(">I", 2) + b"{}"),
    "a cut binary header": framed(struct.pack(">I", 1 << 24 | 4) + b"\0\x0a\3\1"),
    "an unknown serialize type": framed(struct.pack(">I", 7 << 24 | 2) + b"{}"),
    "text": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS where there is none": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "noise": Random(5).randbytes(5000),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_command_ends_the_connection_without_an_answer(master: TwistdNode, data: bytes) -> None:
    assert answer_to(master, data) == b""
    assert_serves(master)


def test_a_frame_cut_off_at_any_byte_is_forgotten_with_its_connection(master: TwistdNode) -> None:
    whole = framed(encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, 7, ext_fields=SEND_FIELDS, body=b"cut")))
    with connected(master.port("remoting")) as client:
        before = int(client.ask(RequestCode.SEND_MESSAGE_V2, SEND_FIELDS, b"hello").ext_fields["queueOffset"])
        for length in range(len(whole)):
            with closing(dial(master)) as peer:
                peer.sendall(whole[:length])
        after = int(client.ask(RequestCode.SEND_MESSAGE_V2, SEND_FIELDS, b"hello").ext_fields["queueOffset"])
    assert after == before + 1


def test_long_frames_that_never_end_cost_what_has_come_of_them(master: TwistdNode) -> None:
    with crowd(master, 100) as peers:
        before = memory_mib(master.pid)
        for peer in peers:
            peer.sendall(struct.pack(">I", FRAME_MAX_LENGTH) + bytes(20_000))
        assert_serves(master)
        grown = memory_mib(master.pid) - before
    print(f"{grown:.1f} MiB for 100 connections that have sent 20 kB each")
    assert grown < 20


def test_a_thousand_idle_connections_are_harmless(master: TwistdNode, many_files: None) -> None:
    before = memory_mib(master.pid)
    with crowd(master, CROWD):
        with connected(master.port("remoting")) as client:
            sends(client, 200, b"hello")
        grown = memory_mib(master.pid) - before
        print(f"{grown:.1f} MiB for {CROWD} connections")
        assert grown < 60
    assert_serves(master)


def test_a_peer_that_does_not_read_is_not_kept_answers_for(tmp_path: Path) -> None:
    with master_of(tmp_path) as master:
        with connected(master.port("remoting")) as client:
            sends(client, MESSAGES, bytes(MESSAGE_BYTES))
        ask = framed(encode_command(RemotingCommand(RequestCode.PULL_MESSAGE, 7, ext_fields=PULL_FIELDS)))
        before = memory_mib(master.pid)
        with closing(dial(master)) as deaf:
            deaf.settimeout(1)
            with pytest.raises(TimeoutError):
                deaf.sendall(ask * PULLS)
            grown = memory_mib(master.pid) - before
            print(f"{grown:.1f} MiB for a peer that does not read")
            assert grown < 20
            assert_serves(master)
            deaf.settimeout(WAIT_SECONDS)
            read = 0
            while read < 50 * MESSAGES * MESSAGE_BYTES:
                more = deaf.recv(1 << 20)
                assert more, "it goes on where it was held up"
                read += len(more)
        assert_serves(master)


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    with master_of(tmp_path, "--set=serverMaxConnections=5") as master:
        with crowd(master, 5), closing(dial(master)) as more:
            assert more.recv(1) == b""
        master.wait_for_event(Event.CONNECTION_LIMIT_REACHED, count=5)
        master.wait_until_found(lambda: _is_served(master) or None, "room again", WAIT_SECONDS)


def _is_served(node: TwistdNode) -> bool:
    try:
        assert_serves(node)
    except (AssertionError, OSError):
        return False
    return True


def test_a_node_stops_with_clients_connected(tmp_path: Path) -> None:
    with master_of(tmp_path) as master, crowd(master, 50):
        assert master.stop() == 0


def test_a_permissive_port_takes_plain_and_tls_clients(tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca")
    options = (f"--tls-cert={ca.issue('localhost')}", "--set=tls.server.mode=permissive")
    with master_of(tmp_path, *options) as master:
        assert_serves(master)
        with connected(master.port("fast remoting")) as client:
            sends(client, 1, b"hello")
        _assert_status(f"tls:localhost:{master.port('remoting')}", f"--tls-ca={ca.path}")
        _assert_status(f"localhost:{master.port('remoting')}")


def _assert_status(*arguments: str) -> None:
    done = rmqha("status", *arguments)
    assert done.returncode == 0, done.stderr


def test_the_store_is_sound_after_all_that(master: TwistdNode) -> None:
    master.stop()
    assert CliRunner().invoke(command, ["verify", str(master.store)]).exit_code == 0
