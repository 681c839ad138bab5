"""Single requests to a broker or name server, Java's or ours."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rmqha.wire.command import RemotingCommand, decode_command, encode_command
from tests.waiting import WAIT_SECONDS


def ask(address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    """What the broker at this remoting port answers: a success."""
    answer = any_answer(address, code, fields, body)
    assert answer.code == 0, answer.remark
    return answer


@contextmanager
def connected(
    address: str, source: str = "", seconds: float = WAIT_SECONDS
) -> Iterator[Callable[[RemotingCommand], RemotingCommand]]:
    """A connection to this remoting port, for one request after another. Gives what sends one, and reads its answer.

    It comes from the address ``source``, if given. Raises TimeoutError if an answer takes more than ``seconds``.
    """
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), seconds, (source, 0)) as connection,
        connection.makefile("rb") as incoming,
    ):

        def exchange(request: RemotingCommand) -> RemotingCommand:
            frame = encode_command(request)
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            (length,) = struct.unpack(">i", incoming.read(4))
            return decode_command(incoming.read(length))

        yield exchange


def any_answer(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    source: str = "",
    seconds: float = WAIT_SECONDS,
) -> RemotingCommand:
    """What the broker at this remoting port answers, also if it refuses. The rest is as in ``connected``."""
    with connected(address, source, seconds) as exchange:
        return exchange(RemotingCommand(code, opaque=1, ext_fields=fields or {}, body=body))
