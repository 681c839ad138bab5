"""docs/faults.md P1 to P8: what happens to the processes of a pair"""

import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from rmqha.kit.events import Event
from rmqha.store.examining import ABORT_FILE
from rmqha.testing.nodes import TwistdNode, logged_events
from rmqha.testing.proxy import Facts
from rmqha.wire.transfer import REPORT_HEADER, TRANSFER_HEADER
from tests.faults.pairs import (
    BATCH_BYTES,
    Disturbed,
    MasterLog,
    Pair,
    assert_sound,
    cpu_seconds,
    log_of,
    start_pair,
    status_kib,
)
from tests.faults.scenarios import scenario
from tests.freezing import frozen
from tests.waiting import WAIT_SECONDS, wait_until

KILLS = 6
SLOW_PACE = "down pace 1280 0.02"  # 64 kB/s
FEW_FILES = 64
"""A node of these tests needs up to 34 itself, two of them from its first minute on, and keeps 12 free."""
STRANGERS = "127.0.0.2"
"""Where bad peers come from: what is counted by address is not counted against the slaves."""


# P1, P2: ends and pauses that nobody prepares for


@scenario(1, 2)
@pytest.mark.story
def test_p1_a_slave_killed_at_any_byte_of_a_frame_holds_what_it_reported(pair: Pair, seed: int) -> None:
    rng, frame_bytes = random.Random(seed), TRANSFER_HEADER.size + BATCH_BYTES
    sync_flush = seed % 2 == 1
    slave = pair.slave("--set=flushDiskType=SYNC_FLUSH") if sync_flush else pair.slave()
    pair.proxy.command("down hold")
    pair.proxy.cut()  # what it may have got already is its beginning
    advances, reached, kills = 0, 0, 0
    while kills < KILLS or (advances <= KILLS // 3 and kills < 10 * KILLS):  # on a busy machine many come too early
        kills += 1
        connections = pair.proxy.facts().accepted
        at = rng.choice([0, 1, 7, 8, 11, 12, 13, frame_bytes - 1, rng.randrange(frame_bytes)])
        pair.proxy.let_through(rng.randint(1, 6) * frame_bytes + at)
        pair.proxy.wait_until_passed()
        if kills % 2:  # this slave has something new, or has lost its connection meanwhile
            has_news = partial(has_reported_or_lost, reached, connections)
            pair.proxy.wait_until(has_news, "a report or another connection", WAIT_SECONDS)
        time.sleep(rng.uniform(0, 0.02))
        slave.kill()
        reported = pair.check_killed(slave)
        advances += reported > reached
        reached = reported
        slave.start()
    pair.proxy.command("down pass")
    pair.stop_and_check(slave, every_report_was_seen=False)
    assert advances > KILLS // 3


def has_reported_or_lost(reached: int, connections: int, facts: Facts) -> bool:
    """Whether a slave has reported more than this, or connected again."""
    return (facts.reported or 0) > reached or facts.accepted > connections + 1


@scenario(("slave", 0.4), ("slave", 3.0), ("master", 0.4), ("master", 3.0))
def test_p2_a_node_that_stands_still_for_a_while_goes_on(pair: Pair, case: tuple[str, float]) -> None:
    who, ratio = case
    slave = pair.slave_with_half()
    stopped = slave if who == "slave" else pair.master
    with frozen(stopped.pid):
        pair.proxy.command("down pass")
        time.sleep(ratio * pair.housekeeping_seconds)
    pair.stop_and_check(slave, every_report_was_seen=False)
    assert_sound(pair.master)
    connections = pair.proxy.facts().accepted
    has_missed = slave.events(Event.MASTER_SILENT) or pair.master.events(Event.SLAVE_SILENT)
    assert connections <= 6 if has_missed else connections == 1


# P3, P4: signals


@scenario("SIGTERM", "SIGINT")
def test_p3_a_slave_told_to_stop_while_bytes_come_ends_at_once_with_all_of_them(pair: Pair, name: str) -> None:
    slave = pair.slave_with_half()
    reached = pair.proxy.facts().reported or 0
    pair.proxy.command(SLOW_PACE)
    pair.proxy.let_through(pair.log.end)
    pair.wait_for_report(reached + 1)
    os.kill(slave.pid, signal.Signals[name])
    assert slave.wait() == 0
    if slave.events(Event.MASTER_SILENT):
        raise Disturbed("the slave had lost its master")
    assert_sound(slave)
    pair.proxy.wait_until_quiet()
    pair.check_copy(slave, pair.proxy.facts().reported or 0)
    assert not (slave.store / ABORT_FILE).exists()
    pair.proxy.command("both pass")
    pair.stop_and_check(slave.start())


@scenario("SIGTERM", "SIGINT")
def test_p3_a_master_told_to_stop_while_bytes_go_ends_at_once(pair: Pair, name: str) -> None:
    pair.slave_with_half()
    pair.proxy.command(SLOW_PACE)
    pair.proxy.let_through(pair.log.end)
    os.kill(pair.master.pid, signal.Signals[name])
    assert pair.master.wait() == 0
    if pair.master.events(Event.SLAVE_SILENT):
        raise Disturbed("the master had lost its slave")
    assert_sound(pair.master)
    assert not (pair.master.store / ABORT_FILE).exists()


@scenario()
def test_p4_hangups_during_traffic_move_the_log_files_and_nothing_else(pair: Pair) -> None:
    path = pair.work / "slave.json"
    slave = pair.slave_with_half(twistd_options=["--pidfile=", f"--logfile={path}"])
    pair.proxy.command(SLOW_PACE)
    pair.proxy.let_through(3 * 64_000)
    for number in range(5):
        path.rename(path.with_suffix(f".{number}"))
        for node in (slave, pair.master):
            os.kill(node.pid, signal.SIGHUP)
        wait_until(lambda: bool(logged_events(path, Event.LOG_FILE_REOPENED)), "a new log file")
        wait_until(partial(has_reopened, pair.master, number + 1), "the master's too: two signals at once are one")
    pair.proxy.wait_until_passed()
    pair.proxy.command("down pass")
    pair.stop_and_check(slave)
    pair.check_connections()
    reopened = [event for file in pair.work.glob("slave.*") for event in logged_events(file, Event.LOG_FILE_REOPENED)]
    assert len(reopened) == 5
    assert len(pair.master.events(Event.LOG_FILE_REOPENED)) == 5


def has_reopened(node: TwistdNode, times: int) -> bool:
    """Whether the node has reopened its log file so often."""
    return len(node.events(Event.LOG_FILE_REOPENED)) == times


# P8: limits


@contextmanager
def flood(port: int, count: int, *sends: bytes) -> Iterator[list[socket.socket]]:
    """So many connections to a port, each of which sends one of these in turn, and reads nothing."""
    with ExitStack() as stack:
        connections = []
        for number in range(count):
            stranger = stack.enter_context(socket.socket())
            stranger.bind((STRANGERS, 0))
            stranger.settimeout(WAIT_SECONDS)
            try:
                stranger.connect(("127.0.0.1", port))
                if sends:
                    stranger.sendall(sends[number % len(sends)])
            except OSError:  # it was told to go
                continue
            connections.append(stranger)
        yield connections


@scenario()
def test_p8_a_master_without_a_descriptor_left_serves_on_and_takes_new_slaves_later(small: Pair) -> None:
    log = small.log.copied_to(small.work / "limited" / "store")
    few = ["prlimit", f"--nofile={FEW_FILES}:{FEW_FILES}"]
    with start_pair(small.work / "limited", log, prefix=few, scale=small.scale) as pair:
        slave = pair.slave_with_half()
        pair.proxy.command(SLOW_PACE)
        pair.proxy.let_through(log.end)
        with flood(pair.master.port(), 3 * FEW_FILES):
            pair.master.wait_for_event(Event.OPEN_FILES_SHORT)
            begun, before = time.monotonic(), cpu_seconds(pair.master.pid)
            time.sleep(pair.housekeeping_seconds)
            assert pair.master.is_running
            spent = cpu_seconds(pair.master.pid) - before
            assert spent < (time.monotonic() - begun) / 2, "it spins"
            pair.proxy.command("down pass")
            pair.wait_for_report(log.end)
        pair.check_connections()
        pair.stop_and_check(slave)
        again = pair.slave()
        again.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        assert again.stop() == 0
        assert log_of(again.store)[: log.end] == log.content
        assert pair.master.stop() == 0


@scenario()
def test_p8_a_slave_whose_descriptors_others_have_taken_waits_until_there_are_some(pair: Pair) -> None:
    slave = pair.slave_with_half(prefix=["prlimit", f"--nofile={FEW_FILES}:{FEW_FILES}"])
    wait_until(lambda: any((slave.store / "index").glob("*")), "the queues and the index, whose files it has open now")
    with flood(slave.port(), 3 * FEW_FILES):
        slave.wait_for_event(Event.OPEN_FILES_SHORT)
        pair.proxy.command("down pass")
        time.sleep(pair.housekeeping_seconds)
        assert slave.is_running
    pair.stop_and_check(slave, every_report_was_seen=False)


@scenario()
def test_p8_a_master_with_little_memory_survives_many_peers_that_do_not_read(small: Pair) -> None:
    log, strangers, margin = MasterLog(small.work / "large" / "store", 16 << 20, 10_000), 60, 96 << 20
    with start_pair(small.work / "large", log, scale=small.scale) as pair:
        pair.stop_and_check(pair.slave())
        limit = status_kib(pair.master.pid, "VmSize") * 1024 + margin
        resource.prlimit(pair.master.pid, resource.RLIMIT_AS, (limit, limit))
        sends = (REPORT_HEADER.pack(1), REPORT_HEADER.pack(0), os.urandom(8), b"GET / HTTP/1.1\r\n\r\n" * 1000)
        with flood(pair.master.port(), strangers, *sends):
            late = pair.slave()
            late.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            assert late.stop() == 0
            assert_sound(pair.master)
        assert log_of(late.store)[: log.end] == log.content
