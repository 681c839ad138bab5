"""The fault-injecting proxy: each rule does what it says, and nothing else."""

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from rmqha.testing.proxy import FaultProxy, ProxyError
from rmqha.wire.transfer import REPORT_HEADER
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.process

QUIET_SECONDS = 0.15
PLENTY = os.urandom(3 << 20)


class Ends:
    """A proxy with a listening target behind it."""

    def __init__(self, proxy: FaultProxy, listener: socket.socket) -> None:
        self.proxy = proxy
        self._listener = listener

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """A client, and its end at the target."""
        client = self.dial()
        target, _ = self._listener.accept()
        target.settimeout(WAIT_SECONDS)
        return client, target

    def dial(self) -> socket.socket:
        """A client."""
        host, _, port = self.proxy.address.rpartition(":")
        client = socket.create_connection((host, int(port)), WAIT_SECONDS)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client


@pytest.fixture(scope="module")
def running_proxy() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_SECONDS)
        with FaultProxy(f"127.0.0.1:{listener.getsockname()[1]}") as proxy:
            yield Ends(proxy, listener)


@pytest.fixture
def ends(running_proxy: Ends) -> Iterator[Ends]:
    """The proxy, with no rules and no connections."""
    yield running_proxy
    running_proxy.proxy.command("both pass")
    running_proxy.proxy.command("accept relay")
    running_proxy.proxy.cut()
    running_proxy.proxy.wait_until_quiet()


def read(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"ended after {len(data)} of {size} bytes"
        data += piece
    return data


def is_quiet(*connections: socket.socket) -> bool:
    """Whether nothing comes for a moment, no end either."""
    for connection in connections:
        connection.settimeout(QUIET_SECONDS)
        with suppress(TimeoutError):
            connection.recv(1)
            return False
        connection.settimeout(WAIT_SECONDS)
    return True


def is_reset(connection: socket.socket) -> bool:
    """Whether the connection ends by a reset, nothing coming before."""
    try:
        return connection.recv(1) == b"never"
    except ConnectionResetError:
        return True


def test_without_rules_all_passes_both_ways_and_a_close_too(ends: Ends) -> None:
    client, target = ends.connect()
    target.sendall(PLENTY)
    target.shutdown(socket.SHUT_WR)
    assert read(client, len(PLENTY)) == PLENTY
    assert client.recv(1) == b""
    client.sendall(b"said after the other end had said all")
    client.close()
    assert read(target, 37) == b"said after the other end had said all"
    assert target.recv(1) == b""
    target.close()
    ends.proxy.wait_until_quiet()


def test_a_reset_passes_too(ends: Ends) -> None:
    client, target = ends.connect()
    client.sendall(b"a")
    read(target, 1)
    target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    target.close()
    assert is_reset(client)


def test_hold_loses_nothing_and_tells_of_no_end(ends: Ends) -> None:
    client, target = ends.connect()
    ends.proxy.command("both hold")
    client.sendall(b"up")
    target.sendall(b"down")
    target.close()
    assert is_quiet(client)
    assert ends.proxy.facts().open == 1
    ends.proxy.command("both pass")
    with suppress(ConnectionResetError):  # the target has gone with something unread
        assert read(client, 4) == b"down"
        assert client.recv(1) == b""


def test_hold_of_one_way_leaves_the_other(ends: Ends) -> None:
    client, target = ends.connect()
    ends.proxy.command("down hold")
    client.sendall(b"up")
    target.sendall(b"down")
    assert read(target, 2) == b"up"
    assert is_quiet(client)
    ends.proxy.command("down pass")
    assert read(client, 4) == b"down"


def test_what_is_stranded_stays_so_and_others_pass(ends: Ends) -> None:
    client, target = ends.connect()
    ends.proxy.command("both strand")
    later, its_target = ends.connect()
    target.sendall(b"x")
    its_target.sendall(b"y")
    client.close()
    assert read(later, 1) == b"y"
    ends.proxy.command("both pass")
    assert is_quiet(target)


def test_what_is_swallowed_never_comes(ends: Ends) -> None:
    client, target = ends.connect()
    before = ends.proxy.command("down swallow").down
    target.sendall(PLENTY)
    ends.proxy.wait_until(lambda facts: facts.down == before + len(PLENTY), "all to be swallowed")
    ends.proxy.command("down pass")
    target.sendall(b"later")
    assert read(client, 5) == b"later"


@pytest.mark.parametrize("size", [0, 1, 5, 200_000])
def test_a_reset_comes_after_so_many_bytes(ends: Ends, size: int) -> None:
    ends.proxy.command(f"down allow {size} rst")
    client, target = ends.connect()
    target.sendall(PLENTY[: size + 1])
    received = b""
    with suppress(ConnectionResetError):
        while True:
            received += client.recv(1 << 16)
    assert PLENTY[:size].startswith(received)  # a reset may overtake what has not been read
    assert is_reset(target)
    client, target = ends.connect()
    target.sendall(b"no limit any more")
    assert read(client, 17) == b"no limit any more"


@pytest.mark.parametrize("size", [0, 1, 5, 200_000])
def test_a_close_comes_after_exactly_so_many_bytes(ends: Ends, size: int) -> None:
    ends.proxy.command(f"down allow {size} fin")
    client, target = ends.connect()
    target.sendall(PLENTY)
    assert read(client, size) == PLENTY[:size]
    assert client.recv(1) == b""
    assert target.recv(1) == b""
    target.close()
    client.close()
    ends.proxy.wait_until_quiet()


def test_an_allowance_is_counted_over_all_connections_and_then_holds(ends: Ends) -> None:
    one, one_target = ends.connect()
    other, other_target = ends.connect()
    ends.proxy.let_through(10)
    one_target.sendall(b"1234567")
    assert read(one, 7) == b"1234567"
    ends.proxy.let_through(2)
    other_target.sendall(b"abcdefgh")
    assert read(other, 5) == b"abcde"
    ends.proxy.wait_until_passed()
    one_target.sendall(b"8")
    assert is_quiet(one, other)
    ends.proxy.let_through(float("inf"))
    assert (read(one, 1), read(other, 3)) == (b"8", b"fgh")


def test_a_delay_is_a_delay_and_keeps_the_order(ends: Ends) -> None:
    client, target = ends.connect()
    ends.proxy.command("down delay 0.1 0.05")
    begun = time.monotonic()
    for piece in range(50):
        target.sendall(bytes([piece]))
    assert read(client, 50) == bytes(range(50))
    assert time.monotonic() - begun >= 0.1


def test_a_pace_is_kept(ends: Ends) -> None:
    client, target = ends.connect()
    ends.proxy.command("down pace 1000 0.02")
    begun = time.monotonic()
    target.sendall(PLENTY[:10_000])
    first = client.recv(1 << 16)
    assert len(first) % 1000 == 0, "whole pieces: one, or more if we were slow"
    assert first + read(client, 10_000 - len(first)) == PLENTY[:10_000]
    assert time.monotonic() - begun >= 9 * 0.02


def test_a_banner_stands_before_what_new_connections_carry(ends: Ends) -> None:
    ends.proxy.command(f"up banner {b'HELLO '.hex()}")
    client, target = ends.connect()
    client.sendall(b"world")
    assert read(target, 11) == b"HELLO world"


def test_all_connections_end_when_told(ends: Ends) -> None:
    for ending in ("rst", "fin"):
        pairs = [ends.connect() for _ in range(3)]
        for client, target in pairs:
            client.sendall(b"x")
            read(target, 1)
        ends.proxy.command(f"cut {ending}")
        for one in (one for pair in pairs for one in pair):
            assert is_reset(one) if ending == "rst" else one.recv(1) == b""


def test_new_clients_can_be_left_alone_or_refused(ends: Ends) -> None:
    ends.proxy.command("accept silence")
    client = ends.dial()
    client.sendall(b"anybody?")
    assert is_quiet(client)
    ends.proxy.command("accept refuse")
    with pytest.raises(ConnectionRefusedError):
        ends.dial()
    ends.proxy.command("accept relay")
    client, target = ends.connect()
    client.sendall(b"yes")
    assert read(target, 3) == b"yes"


def test_a_target_that_refuses_resets_the_client(ends: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here, gone = ends.proxy._arguments[0].partition("=")[2], listener.getsockname()[1]
    ends.proxy.command(f"target 127.0.0.1:{gone}")
    assert is_reset(ends.dial())
    ends.proxy.command(f"target {here}")
    client, target = ends.connect()
    target.sendall(b"x")
    assert read(client, 1) == b"x"


def test_a_client_that_is_not_read_gets_no_more_than_the_queue(ends: Ends) -> None:
    client, target = ends.connect()
    target.settimeout(QUIET_SECONDS)
    sent = 0

    def send_until_full() -> None:
        nonlocal sent
        with suppress(TimeoutError):
            while sent < 256 << 20:
                sent += target.send(PLENTY)

    while sent < 1 << 20:  # a busy proxy takes nothing for a moment
        send_until_full()
    assert sent < 64 << 20
    client.settimeout(WAIT_SECONDS)
    assert read(client, 1 << 20) == PLENTY[: 1 << 20]


def test_reports_are_noted_whether_they_pass_or_not(ends: Ends) -> None:
    before = len(ends.proxy.reports)
    client, target = ends.connect()
    client.sendall(REPORT_HEADER.pack(7) + REPORT_HEADER.pack(2**40)[:5])
    read(target, 13)
    ends.proxy.command("up swallow")
    client.sendall(REPORT_HEADER.pack(2**40)[5:])
    ends.proxy.wait_until(lambda _: len(ends.proxy.reports) == before + 2, "two reports")
    first, second = ends.proxy.reports[before:]
    assert (first.offset, second.offset) == (7, 2**40)
    assert first.connection == second.connection
    assert first.time <= second.time <= time.monotonic()
    assert ends.proxy.facts().reported == max(report.offset for report in ends.proxy.reports)


def test_a_command_that_makes_no_sense_is_refused_and_changes_nothing(ends: Ends) -> None:
    for text in (
        "jump",
        "up jump",
        "sideways pass",
        "up allow many rst",
        "up pace 0 1",
        "cut",
        "accept all",
        "target h",
    ):
        with pytest.raises(ProxyError, match=text.split()[0]):
            ends.proxy.command(text)
    client, target = ends.connect()
    client.sendall(b"x")
    assert read(target, 1) == b"x"


def test_a_port_in_use_is_told_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ProxyError), FaultProxy("127.0.0.1:1", listen=address):
            raise AssertionError(errno.EADDRINUSE)
