"""docs/faults.md N1 to N12: what networks do, between a master and a slave that are processes."""

import socket
import time
from contextlib import ExitStack
from functools import partial

import pytest

from rmqha.kit.events import Event
from rmqha.testing.nodes import TwistdNode
from rmqha.testing.proxy import Facts, FaultProxy
from rmqha.wire.transfer import REPORT_HEADER, TRANSFER_HEADER
from tests.faults.pairs import (
    FREE_PORTS,
    SEGMENT_SIZE,
    SHORT_TIMES,
    Disturbed,
    MasterLog,
    Pair,
    anonymous_kib,
    assert_sound,
    by_connection,
    descriptors,
    shim,
    start_pair,
)
from tests.faults.scenarios import proofs, scenario
from tests.waiting import wait_until

SMALL_BATCH_BYTES = 4000

# Silence


def has_missed_its_peer(pair: Pair, slave: TwistdNode) -> bool:
    """Whether one end has dropped the line because nothing came: on a busy machine a short pause may be enough."""
    return bool(slave.events(Event.MASTER_SILENT) or pair.master.events(Event.SLAVE_SILENT))


@scenario(0.4, 3.0)
@pytest.mark.story
def test_n1_after_a_partition_of_any_length_a_slave_goes_on_exactly_where_it_was(pair: Pair, ratio: float) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command("both hold")
    time.sleep(ratio * pair.housekeeping_seconds)
    if ratio > 1:
        wait_until(lambda: has_missed_its_peer(pair, slave), "one end to miss the other")
    pair.proxy.command("both pass")
    pair.stop_and_check(slave)
    if (pair.proxy.facts().accepted == 1) is has_missed_its_peer(pair, slave):
        raise Disturbed("the last connection may have ended by a silence just before the slave was stopped")


@scenario()
def test_n2_a_slave_leaves_a_master_whose_power_failed_and_finds_the_next_one(pair: Pair) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command("both hold")
    pair.master.kill()
    slave.wait_for_event(Event.MASTER_SILENT)
    pair.master.start()
    pair.proxy.command(f"target 127.0.0.1:{pair.master.port()}")
    pair.proxy.cut()
    pair.proxy.command("both pass")
    pair.stop_and_check(slave)


@scenario()
def test_n2_a_master_drops_a_slave_whose_power_failed(pair: Pair) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command("both hold")
    before = descriptors(pair.master.pid)
    slave.kill()
    pair.master.wait_for_event(Event.SLAVE_SILENT)
    wait_until(lambda: descriptors(pair.master.pid) < before, "its descriptor to be free")
    pair.proxy.cut()
    pair.proxy.command("both pass")
    pair.stop_and_check(slave.start())


@scenario("down", "up")
def test_n2_where_one_way_is_lost_the_end_that_hears_nothing_drops_the_line(pair: Pair, way: str) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command("both pass")
    pair.wait_for_report(pair.log.end)
    pair.proxy.command(f"{way} hold")
    before = pair.proxy.facts().accepted
    if way == "down":
        slave.wait_for_event(Event.MASTER_SILENT)
    else:
        pair.master.wait_for_event(Event.SLAVE_SILENT)
    pair.proxy.command("both pass")
    pair.proxy.wait_until(lambda facts: facts.accepted > before, "the slave to connect anew")
    pair.stop_and_check(slave, every_report_was_seen=way == "down")


@scenario()
def test_n10_a_slave_waits_through_refusal_and_silence_without_hammering(pair: Pair) -> None:
    pair.proxy.command("accept refuse")
    slave = pair.slave()
    time.sleep(pair.housekeeping_seconds)
    pair.proxy.command("accept silence")
    slave.wait_for_event(Event.MASTER_SILENT)
    pair.check_connections()
    pair.proxy.command("accept relay")
    pair.stop_and_check(slave)
    assert_few_connections(pair, 3)


@scenario()
def test_n10_a_slave_gets_through_to_a_port_that_swallowed_its_first_packets(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host, port = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:  # the kernel takes one or two, and drops the packets of all others
            filler.setblocking(False)
            filler.connect_ex((host, port))
        options = ["--role=slave", f"--master={host}:{port}", "--master-remoting=none", FREE_PORTS, *SHORT_TIMES]
        options.append(f"--set=mappedFileSizeCommitLog={SEGMENT_SIZE}")  # without the remoting port it is not known
        slave = pair.stack.enter_context(TwistdNode(pair.work, options, name="blackholed"))
        slave.port("fast remoting")
        time.sleep(pair.housekeeping_seconds)
        assert not slave.events(Event.SLAVE_STATE, state="HANDSHAKE")
        for filler in fillers:
            filler.close()
    assert slave.is_running
    with FaultProxy(f"127.0.0.1:{pair.master.port()}", listen=f"{host}:{port}") as there:
        there.wait_until(lambda facts: facts.reported is not None, "the slave to come")
        assert slave.stop() == 0
    assert_sound(slave)


def assert_few_connections(pair: Pair, number: int) -> None:
    """A slave has not come again more often. Raises Disturbed: the proxy may have been told late what to do."""
    accepted = pair.proxy.facts().accepted
    if accepted > number:
        raise Disturbed(f"{accepted} connections came, not {number} or fewer")


# Slow lines


@scenario(2, 200, *proofs(50))
def test_n3_delay_and_jitter_cost_time_and_nothing_else(pair: Pair, milliseconds: int) -> None:
    seconds = milliseconds / 1000
    pair.proxy.command(f"both delay {seconds} {seconds / 2}")
    begun = time.monotonic()
    slave = pair.slave()
    pair.wait_for_report(pair.log.end)
    taken = time.monotonic() - begun
    if milliseconds == 200:
        time.sleep(1.5 * pair.housekeeping_seconds)  # heartbeats suffer the delay too
    pair.stop_and_check(slave)
    print(f"+{milliseconds} ms: {pair.log.end / taken / 1e6:.1f} MB/s, the start of the slave included")
    pair.check_connections()


@scenario()
def test_n4_bytes_that_come_one_by_one_are_taken(pair: Pair) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command("down pace 1 0")
    pair.proxy.let_through(5000)
    pair.proxy.wait_until_passed()
    pair.proxy.command("down pass")
    pair.stop_and_check(slave)
    pair.check_connections()


@scenario()
def test_n4_a_line_that_dribbles_is_slow_and_not_dead(pair: Pair) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command(f"down pace 1 {pair.housekeeping_seconds / 4}")
    pair.proxy.let_through(10)
    pair.proxy.wait_until_passed()
    pair.proxy.command("down pass")
    pair.stop_and_check(slave)
    pair.check_connections()


@scenario()
def test_n4_a_slave_whose_reports_dribble_in_is_dropped_and_comes_back(pair: Pair) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command(f"up pace 1 {pair.housekeeping_seconds / 4}")
    pair.master.wait_for_event(Event.SLAVE_SILENT)
    pair.proxy.command("both pass")
    pair.stop_and_check(slave, every_report_was_seen=False)  # the last ones were still in the proxy


@scenario()
def test_n7_slaves_that_do_not_read_cost_bounded_memory_and_do_not_slow_others(small: Pair) -> None:
    log, lazy_slaves = MasterLog(small.work / "large-store", 16 << 20, 10_000), 20
    with start_pair(small.work / "large", log, scale=small.scale) as pair, ExitStack() as stack:
        before = anonymous_kib(pair.master.pid)
        for _ in range(lazy_slaves):
            lazy = stack.enter_context(socket.socket())
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", pair.master.port()))
            lazy.sendall(REPORT_HEADER.pack(1))
        wait_until(
            lambda: len(pair.master.events(Event.SLAVE_TRANSFER_STARTED, start=1)) == lazy_slaves, "all to be served"
        )
        pair.stop_and_check(pair.slave())
        grown = anonymous_kib(pair.master.pid) - before
        print(f"{lazy_slaves} slaves that read nothing: {grown} KiB")
        assert grown < lazy_slaves * 3 * 1024
        assert_sound(pair.master)


@scenario()
def test_n8_at_64_kilobytes_a_second_a_slave_gets_on(pair: Pair) -> None:
    slave, size = pair.slave_with_half(), 4 * 64_000
    half_way = (pair.proxy.facts().reported or 0) + size // 2
    pair.proxy.command("down pace 1280 0.02")
    begun = time.monotonic()
    pair.proxy.let_through(size)
    pair.wait_for_report_on(1, half_way + 1)
    pair.proxy.wait_until_passed()
    assert time.monotonic() - begun > 3.5
    pair.proxy.command("down pass")
    pair.stop_and_check(slave)
    pair.check_connections()


# Connections that end in the middle


def cut_inside_frames(pair: Pair, ending: str, offsets: list[int]) -> None:
    """One slave, whose connection ends at each of these offsets of a frame; and then it gets all."""
    frame_bytes = TRANSFER_HEADER.size + SMALL_BATCH_BYTES

    def has_connected(number: int, facts: Facts) -> bool:
        return facts.accepted > number and len(by_connection(pair.proxy.reports)) > number

    pair.proxy.command("down hold")
    slave = pair.slave()
    for number, offset in enumerate(offsets):
        pair.proxy.wait_until(partial(has_connected, number), "the next connection")
        first = by_connection(pair.proxy.reports)[number][0]
        pair.proxy.let_through(3 * frame_bytes + offset)
        pair.wait_for_report_on(
            number + 1, pair.log.prefix(first + SMALL_BATCH_BYTES * (4 if offset == frame_bytes else 3))
        )
        pair.proxy.wait_until_passed()
        pair.proxy.command(f"cut {ending}")
        pair.proxy.wait_until_quiet()
    pair.proxy.command("down pass")
    pair.stop_and_check(slave)
    pair.check_connections(len(offsets) + 1)
    assert len(by_connection(pair.proxy.reports)) == len(offsets) + 1
    for event in (Event.MASTER_BROKE_PROTOCOL, Event.MASTER_SILENT, Event.CORRUPT_TRANSFER, Event.CONNECTION_GIVEN_UP):
        assert slave.events(event) == []


@scenario(
    (0, 1),
    (8, 12, 13),
    (TRANSFER_HEADER.size + SMALL_BATCH_BYTES - 1, TRANSFER_HEADER.size + SMALL_BATCH_BYTES),
    master_options=[f"--set=haTransferBatchSize={SMALL_BATCH_BYTES}"],
)
def test_n5_a_reset_inside_a_header_or_a_body_loses_and_repeats_nothing(pair: Pair, offsets: tuple[int, ...]) -> None:
    cut_inside_frames(pair, "rst", [*offsets])


@scenario(
    (5, 12, SMALL_BATCH_BYTES // 2),
    master_options=[f"--set=haTransferBatchSize={SMALL_BATCH_BYTES}"],
)
def test_n6_a_close_behind_part_of_a_frame_is_as_a_reset(pair: Pair, offsets: tuple[int, ...]) -> None:
    cut_inside_frames(pair, "fin", [*offsets])


# Other peers than one thought


@scenario(master_options=["--ha-port=0"])
def test_n9_a_slave_follows_its_master_to_another_address(pair: Pair) -> None:
    slave = pair.slave_with_half()
    old_port = pair.master.port()
    assert pair.master.stop() == 0
    pair.master.start()
    assert pair.master.port() != old_port
    pair.proxy.command(f"target 127.0.0.1:{pair.master.port()}")
    pair.proxy.command("both pass")
    pair.stop_and_check(slave, every_report_was_seen=False)


@scenario()
def test_n9_a_name_is_looked_up_anew_for_every_connection(pair: Pair) -> None:
    hosts = pair.work / "hosts"
    hosts.write_text("master.test 127.0.0.1\n")
    port = pair.proxy.address.rpartition(":")[2]
    with FaultProxy(f"127.0.0.1:{pair.master.port()}", listen=f"127.0.0.2:{port}") as other:
        slave = pair.slave_with_half(master=f"master.test:{port}", prefix=shim("HOSTS", hosts))
        hosts.write_text("master.test 127.0.0.2\n")
        time.sleep(pair.housekeeping_seconds / 4)
        if (pair.proxy.facts().open, other.facts().accepted) != (1, 0):
            raise Disturbed("the slave has left a connection that works")
        pair.proxy.cut()
        other.wait_until(lambda facts: (facts.reported or 0) >= pair.log.end, "all at the new address")
        assert slave.stop() == 0
        assert_sound(slave)
        pair.check_copy(slave, pair.log.end)
        assert other.reports[0].offset == pair.log.last_message_before(pair.proxy.facts().reported or 0)


@scenario()
def test_n11_a_slave_is_served_on_a_new_connection_while_its_old_one_is_still_open(pair: Pair) -> None:
    slave = pair.slave_with_half()
    pair.proxy.command("both strand")  # as by a router that has forgotten the connection
    pair.proxy.command("both pass")
    slave.wait_for_event(Event.MASTER_SILENT)
    pair.stop_and_check(slave)
    pair.master.wait_for_event(Event.SLAVE_SILENT)
    assert_sound(pair.master)


@scenario()
def test_n11_two_slaves_of_one_address_are_two_slaves(pair: Pair) -> None:
    slaves = [pair.slave() for _ in range(2)]
    for slave in slaves:
        slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
    pair.master.wait_for_state(
        lambda state: [peer["ackOffset"] for peer in state.peers] == [pair.log.end] * 2, "both to be told"
    )
    for slave in slaves:
        assert slave.stop() == 0
        assert_sound(slave)
        pair.check_copy(slave, pair.log.end)


BANNERS = {
    "a zero to the slave": ("down", b"\0"),
    "HTTP to the slave": ("down", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "a frame to the slave": ("down", TRANSFER_HEADER.pack(1, 4) + b"evil"),
    "zeros to the master": ("up", bytes(4)),
    "PROXY protocol to the master": ("up", b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 10912\r\n"),
}


@scenario(*BANNERS)
def test_n12_bytes_that_somebody_puts_in_front_are_refused_and_never_stored(pair: Pair, what: str) -> None:
    way, banner = BANNERS[what]
    pair.proxy.command(f"{way} banner {banner.hex()}")
    slave = pair.slave()
    pair.proxy.wait_until(lambda facts: facts.accepted > 1, "a second attempt")
    pair.proxy.command("both pass")
    pair.stop_and_check(slave, every_report_was_seen=False)
    assert_few_connections(pair, 5)
