"""A puller that does nearly nothing with what it gets, so that a benchmark measures the broker: ``pull_all``.

One connection pulls each queue of a topic from its start, with one unanswered pull of each queue, as an official
client does. It looks at the place of each message, and at nothing else.
"""

import socket
import time
from dataclasses import dataclass
from struct import Struct

import orjson

from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode, encode_command
from rmqha.wire.requestfields import SUBSCRIPTION_FLAG

HEAD = Struct(">iI")
LENGTH_BYTES = 4
RECORD_HEAD = Struct(">i16xq")
"""The start of a message: its size and, after 16 bytes, its queue offset."""
MESSAGES_A_PULL = 32
READ_BYTES = 1 << 20


class WrongMessages(Exception):
    """An answer does not have the messages that a pull asked for."""


@dataclass
class Pulled:
    """How many messages came in how many seconds."""

    messages: int
    seconds: float


class Puller:
    """One connection, and where it is in each queue of a topic."""

    def __init__(self, connection: socket.socket, topic: str, group: str, ends: dict[int, int]) -> None:
        """It pulls each queue from 0 up to its end in ``ends``."""
        self._connection = connection
        self._topic = topic
        self._group = group
        self._ends = ends
        self._places = dict.fromkeys(ends, 0)
        self._data = bytearray()

    def run(self) -> Pulled:
        """Pull all. Raises WrongMessages, OSError."""
        start, left = time.perf_counter(), len(self._ends)
        for queue in self._ends:
            self._ask(queue)
        while left:
            queue, body = self._next_answer()
            self._places[queue] = offset_after(body, self._places[queue])
            if self._places[queue] < self._ends[queue]:
                self._ask(queue)
            else:
                left -= 1
        return Pulled(sum(self._places.values()), time.perf_counter() - start)

    def _ask(self, queue: int) -> None:
        fields = {
            "consumerGroup": self._group,
            "topic": self._topic,
            "queueId": str(queue),
            "queueOffset": str(self._places[queue]),
            "maxMsgNums": str(MESSAGES_A_PULL),
            "sysFlag": str(SUBSCRIPTION_FLAG),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        request = RemotingCommand(RequestCode.PULL_MESSAGE, opaque=queue, ext_fields=fields, language="JAVA")
        frame = encode_command(request)
        self._connection.sendall(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)

    def _next_answer(self) -> tuple[int, bytes]:
        """The queue and the messages of the next answer."""
        self._read(HEAD.size)
        length, header_length = HEAD.unpack_from(self._data)
        self._read(LENGTH_BYTES + length)
        body_at, end = HEAD.size + header_length, LENGTH_BYTES + length
        header = orjson.loads(self._data[HEAD.size : body_at])
        body = bytes(self._data[body_at:end])
        del self._data[:end]
        if header["code"] != ResponseCode.SUCCESS:
            raise WrongMessages(f"a pull of queue {header['opaque']} is answered {header}")
        return header["opaque"], body

    def _read(self, size: int) -> None:
        while len(self._data) < size:
            more = self._connection.recv(READ_BYTES)
            if not more:
                raise ConnectionError("the broker has closed the connection")
            self._data += more


def offset_after(body: bytes, offset: int) -> int:
    """The queue offset after the messages of an answer, which begin at ``offset``. Raises WrongMessages."""
    at, end = 0, len(body)
    while at < end:
        size, found = RECORD_HEAD.unpack_from(body, at)
        if found != offset or size <= 0 or at + size > end:
            raise WrongMessages(f"a message of {size} bytes with queue offset {found} instead of {offset}")
        at, offset = at + size, offset + 1
    return offset


def pull_all(address: str, topic: str, group: str, ends: dict[int, int]) -> Pulled:
    """Pull each queue of a topic up to its end in ``ends``. Raises WrongMessages, OSError."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Puller(connection, topic, group, ends).run()
