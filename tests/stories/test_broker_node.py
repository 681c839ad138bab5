"""Nodes as processes take messages over the network, or refuse them."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmqha.cli import main as command
from rmqha.store.metadata import TopicConfigTable
from rmqha.testing.nodes import TwistdNode
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode, decode_command, encode_command
from rmqha.wire.record import Host, parse_msg_id
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process

MASTER_OPTIONS = (
    "--role=async-master",
    "--port=0",
    "--set=mappedFileSizeCommitLog=1048576",
    "--set=maxHashSlotNum=1000",
)
SEND_FIELDS = {"a": "PG", "b": "New", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}


class Connection:
    """A client that speaks frames."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """What is answered."""
        frame = encode_command(RemotingCommand(code, 5, ext_fields=fields, body=body))
        self._socket.sendall(struct.pack(">I", len(frame)) + frame)
        (size,) = struct.unpack(">I", self._receive(4))
        return decode_command(self._receive(size))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the node hung up"
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


@contextmanager
def connected(port: int) -> Iterator[Connection]:
    """A connection that ends."""
    connection = Connection(port)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[TwistdNode]:
    """A new master."""
    with TwistdNode(tmp_path, MASTER_OPTIONS, name="master") as node:
        yield node


@pytest.mark.parametrize("port", ["remoting", "fast remoting"])
def test_a_master_takes_a_message_on_either_port(master: TwistdNode, port: str) -> None:
    main_port = master.port("remoting")
    with connected(master.port(port)) as client:
        answers = [client.ask(RequestCode.SEND_MESSAGE_V2, SEND_FIELDS, b"hello") for _ in range(3)]
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 3
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "1", "2"]
    assert {parse_msg_id(answer.ext_fields["msgId"])[0] for answer in answers} == {Host.parse("127.0.0.1", main_port)}
    master.stop()
    assert "New" in TopicConfigTable.read(master.store / "config").topic_config_table
    assert CliRunner().invoke(command, ["verify", str(master.store)]).exit_code == 0


def test_a_delayed_message_comes_after_a_restart(master: TwistdNode) -> None:
    fields = {**SEND_FIELDS, "i": "DELAY\x011"}
    with connected(master.port("remoting")) as client:
        assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"late").code == ResponseCode.SUCCESS
    master.kill()
    master.start()
    where = {"topic": "New", "queueId": "1"}
    with connected(master.port("remoting")) as client:
        master.wait_until_found(
            lambda: client.ask(RequestCode.GET_MAX_OFFSET, where).ext_fields["offset"] == "1" or None,
            "it",
            WAIT_SECONDS,
        )


def test_a_slave_refuses_messages_and_gets_those_of_its_master(tmp_path: Path, master: TwistdNode) -> None:
    options = (
        "--role=slave",
        f"--master=127.0.0.1:{master.port()}",
        f"--master-remoting=127.0.0.1:{master.port('remoting')}",
    )
    with TwistdNode(tmp_path, [*options, "--port=0"], name="slave") as slave:
        with connected(slave.port("remoting")) as client:
            answer = client.ask(RequestCode.SEND_MESSAGE_V2, SEND_FIELDS, b"hello")
            assert (answer.code, answer.ext_fields.get("msgId")) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
        with connected(master.port("remoting")) as client:
            assert client.ask(RequestCode.SEND_MESSAGE_V2, SEND_FIELDS, b"hello").code == ResponseCode.SUCCESS
        slave.wait_for_state(lambda state: state.offsets.verified > 0, "the message")
