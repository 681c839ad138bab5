"""docs/faults.md L1 to L5: many slaves, many who are none, storms, cold reads, and a long time."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from rmqha.kit.events import Event
from rmqha.wire.transfer import REPORT_HEADER
from tests.faults.crowd import Crowd, read_log
from tests.faults.pairs import (
    Disturbed,
    MasterLog,
    Pair,
    anonymous_kib,
    assert_sound,
    descriptors,
    start_pair,
)
from tests.faults.scenarios import scenario
from tests.faults.soak import growth, soak
from tests.waiting import wait_until

CROWD = 1000
STORM = 200
"""All at one moment, on ports that take them one by one."""
KIB_A_SLAVE = 64
USUAL_TIMES = ("--set=haHousekeepingInterval=20000", "--set=haSendHeartbeatInterval=5000")
SOAK_MINUTES, SOAK_SEED, SOAK_SAMPLES = 0.3, 20261120, 9


def check_crowd(crowd: Crowd, number: int) -> None:
    """The master has ended none of so many connections. Raises Disturbed: one may have been silent for too long."""
    if crowd.alive != number:
        raise Disturbed(f"{crowd.alive} connections are left of {number}")


def allow_a_crowd() -> None:
    """This process needs a descriptor for each of its peers. A limit is never lowered: other tests go by it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 8 * CROWD:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8 * CROWD), hard))


@scenario(master_options=USUAL_TIMES)
@pytest.mark.story
def test_l1_a_thousand_slaves_that_hold_all_cost_little_and_keep_nobody_out(pair: Pair) -> None:
    allow_a_crowd()
    memory, files = anonymous_kib(pair.master.pid), descriptors(pair.master.pid)
    with Crowd(pair.master.port(), CROWD, REPORT_HEADER.pack(pair.log.end), interval=2.0) as crowd:
        crowd.wait_until_served()
        slave = pair.slave(*USUAL_TIMES)
        pair.stop_and_check(slave)
        check_crowd(crowd, CROWD)
        grown = anonymous_kib(pair.master.pid) - memory
        print(f"{CROWD} slaves: {grown / CROWD:.1f} KiB each")
        assert grown < CROWD * KIB_A_SLAVE
        pair.master.wait_for_state(
            lambda state: (
                [peer["ackOffset"] for peer in state.peers] == [pair.log.end] * len(state.peers)
                and len(state.peers) >= CROWD
            ),
            "all to be told",
        )
    wait_until(lambda: descriptors(pair.master.pid) <= files, "the descriptors to be free")
    assert pair.master.stop() == 0
    assert_sound(pair.master)


@scenario(b"", b"\xff")
def test_l2_a_thousand_silent_or_dribbling_peers_harm_no_slave_and_are_closed(pair: Pair, data: bytes) -> None:
    allow_a_crowd()
    slave = pair.slave()
    pair.wait_for_report(pair.log.end)
    files = descriptors(pair.master.pid)
    with Crowd(pair.master.port(), CROWD, data, interval=0.75 * pair.housekeeping_seconds) as crowd:
        crowd.wait_until_connected()
        most = descriptors(pair.master.pid)
        late = pair.slave()
        late.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        assert late.stop() == 0
        assert most > files
        wait_until(lambda: not crowd.alive, "the master to close them")
    assert slave.stop() == 0
    wait_until(lambda: descriptors(pair.master.pid) <= files, "the descriptors to be free")
    assert pair.master.stop() == 0
    assert_sound(pair.master)
    pair.check_connections(2)


@scenario(master_options=USUAL_TIMES)
def test_l3_all_slaves_that_come_back_at_once_after_an_outage_are_served(pair: Pair) -> None:
    allow_a_crowd()
    slave = pair.slave_with_half(*USUAL_TIMES)
    pair.master.kill()
    pair.proxy.cut()
    pair.master.start()
    pair.proxy.command(f"target 127.0.0.1:{pair.master.port()}")
    pair.proxy.command("down pass")
    last_message = REPORT_HEADER.pack(pair.log.last_message_before(pair.log.end))
    with Crowd(pair.master.port(), STORM, last_message, interval=2.0, at_once=STORM) as crowd:
        crowd.wait_until_served()
        pair.stop_and_check(slave)
        check_crowd(crowd, STORM)


@scenario()
def test_l4_ten_slaves_at_ten_places_of_a_cold_log_each_get_what_they_asked_for(small: Pair) -> None:
    log, slaves = MasterLog(small.work / "large" / "store", 24 << 20, 10_000), 10
    with start_pair(small.work / "large", log, *USUAL_TIMES, scale=small.scale) as pair, ExitStack() as stack:
        for path in (log.store / "commitlog").iterdir():
            fd = os.open(path, os.O_RDONLY)
            stack.callback(os.close, fd)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        starts = [max(1, log.last_message_before(log.end * number // slaves)) for number in range(slaves)]
        memory = anonymous_kib(pair.master.pid)
        with ThreadPoolExecutor(slaves) as pool:
            copies = list(pool.map(lambda start: read_log(pair.master.port(), start, log.end), starts))
        assert anonymous_kib(pair.master.pid) - memory < slaves * 3 * 1024
        for start, copied in zip(starts, copies, strict=True):
            assert copied == log.content[start : log.end], start
        pair.stop_and_check(pair.slave())


@scenario()
@pytest.mark.story
def test_l5_memory_and_open_files_stay_where_they_are_over_time(small: Pair) -> None:
    samples = soak(small.work / "soak", SOAK_MINUTES, SOAK_SEED, 1.0, print, SOAK_SAMPLES)
    for name, (before, after) in growth(samples).items():
        assert after <= 1.25 * before + 4, f"{name} grew from {before} to {after}: {samples}"
