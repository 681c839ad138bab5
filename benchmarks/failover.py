"""`make bench-failover`: how long promotion and rewinding take, and how fast copies of a store are, in one run.

Copies: `rmqha backup` and `rmqha restore` of one store against `cp -r` of the same store, in turn, out of a warm page
cache; the best of each counts, for the machine is shared. Ours are on the disk when they end, so `cp` is followed by
`sync` in one of its lines. `--work` names a folder on another file system, such as one with reflinks. Promotion: from
the order to a running slave until its node has taken a message, in a store of many queues. Rewinding: how long the
search takes until it knows where two logs part.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rmqha.cli.rewind import Way
from rmqha.net.tls.endpoints import ClientTLS
from rmqha.settings.settings import make_settings
from rmqha.store.examining import open_log
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.testing.records import lay_segments, make_record, write_segments
from rmqha.wire.record import Record

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "failover"
RMQHA = str(Path(sys.executable).with_name("rmqha"))
GIB, MIB = 1 << 30, 1 << 20
BODY = bytes(range(256)) * 4
ROUNDS = 3
TOPIC = "BenchTopic"


@dataclass(frozen=True)
class Sizes:
    """Of the store: bytes of its log and of each segment, and its queues."""

    log_bytes: int
    segment_bytes: int
    queues: int


def write_store(store: Path, sizes: Sizes, fork_at: int | None = None) -> None:
    """A closed store with messages of 1 KiB bodies; after ``fork_at`` bytes they were stored one hour later."""

    def make(number: int, offset: int) -> Record:
        late = 3_600_000 if fork_at is not None and offset >= fork_at else 0
        record = make_record(number, BODY, TOPIC, offset)
        return Record(
            topic=TOPIC,
            body=BODY,
            properties_stored=record.properties_stored,
            queue_id=number % sizes.queues,
            queue_offset=number // sizes.queues,
            physical_offset=offset,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp + late,
            store_host=record.store_host,
        )

    write_segments(store / "commitlog", lay_segments(make, sizes.log_bytes, sizes.segment_bytes), sizes.segment_bytes)


def close_cleanly(store: Path, role: str) -> int:
    """Open the store once and close it, so that it has queues and a state; gives the log's end."""
    opened = MessageStore(make_settings({"storePathRootDir": str(store), "brokerRole": role}))
    opened.derived.dispatcher.catch_up()
    end = opened.commit_log.verified_offset
    state = NodeState("1f", role=role, state="STOPPED", offsets=opened.offsets(end))
    opened.close_now(lambda: state)
    return end


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def rmqha(*arguments: object) -> str:
    return subprocess.run([RMQHA, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def bench_copies(work: Path, store: Path, end: int) -> None:
    """Seconds of each way to copy, the best of several turns."""
    target = work / "copy"

    def cp() -> None:
        subprocess.run(["cp", "-r", "--sparse=auto", "--reflink=never", str(store), str(target)], check=True)

    def synced_cp() -> None:
        cp()
        subprocess.run(["sync", "--file-system", str(target)], check=True)

    ways: dict[str, Callable[[], object]] = {
        "cp -r": cp,
        "cp -r, sync": synced_cp,
        "backup": lambda: rmqha("backup", store, target),
        "restore": lambda: rmqha("restore", store, "--output", target, "--to-offset", end),
    }
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            took = timed(run)
            best[name] = min(took, best.get(name, took))
            shutil.rmtree(target)
            os.sync()  # what one way leaves to write, the next one must not pay for
    for name, seconds in best.items():
        bare, synced = best["cp -r"] / seconds, best["cp -r, sync"] / seconds
        print(
            f"{name:>11}: {seconds:6.2f} s, {end / MIB / seconds:6.0f} MiB/s, {bare:5.2f} of cp's speed, "
            f"{synced:5.2f} of cp's and sync's"
        )


def bench_promotion(work: Path, store: Path, sizes: Sizes) -> None:
    """From the order until the promoted node has taken a message."""
    port = free_port()
    options = ["--role=slave", "--master=127.0.0.1:1", "--master-remoting=none", f"--port={port}"]
    with TwistdNode(work, options, store, "slave") as node:
        node.wait_for_state(lambda state: state.state == "CONNECTING", "CONNECTING")
        node.port("remoting")
        start = time.perf_counter()
        rmqha("promote", store, "--json")
        promoted = time.perf_counter() - start
        rmqha("put", "--broker", f"127.0.0.1:{port}", TOPIC, "first")
        print(
            f"promotion of a running slave with {sizes.queues} queues: {promoted:.2f} s until the node serves, "
            f"{time.perf_counter() - start:.2f} s until a message is stored; both with the start of the command "
            f"({timed(lambda: rmqha('--version')):.2f} s each)"
        )
        node.stop()


def bench_rewind(work: Path, ours: Path, theirs: Path, end: int, fork_at: int) -> None:
    """How long the search for the fork takes."""
    with TwistdNode(work, ["--role=async-master", f"--port={free_port()}"], theirs, "master") as node:
        way = Way(f"127.0.0.1:{node.port()}", None, ClientTLS())
        log = open_log(make_settings({"storePathRootDir": str(ours)}), owned=False)
        start, cpu = time.perf_counter(), time.process_time()
        found = way.find_fork(log, end, None)
        took, cpu = time.perf_counter() - start, time.process_time() - cpu
        log.close()
        print(
            f"rewind: the fork of two logs of {end / GIB:.1f} GiB is at {found.offset} (made at {fork_at} or just "
            f"after), found in {took:.2f} s (processor {cpu:.2f})"
        )
        node.stop()


def main() -> None:
    """The figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10, help="size of the log; default: 10")
    parser.add_argument("--queues", type=int, default=1000, help="consume queues; default: 1000")
    parser.add_argument("--segment-mib", type=int, default=1024, help="size of a segment; default: 1024")
    parser.add_argument("--work", type=Path, default=WORK, help=f"a folder to make and remove; default: {WORK}")
    given = parser.parse_args()
    work = given.work
    if given.work != WORK and work.exists():
        parser.error(f"{work} exists: name a new folder")
    sizes = Sizes(int(given.gib * GIB), given.segment_mib * MIB, given.queues)
    shutil.rmtree(WORK, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        store, other = work / "store", work / "other"
        write_store(store, sizes)
        end = close_cleanly(store, "SLAVE")
        print(json.dumps({"logBytes": end, "segmentBytes": sizes.segment_bytes, "queues": sizes.queues}))
        bench_copies(work, store, end)
        fork_at = end * 2 // 3
        write_store(other, sizes, fork_at)
        close_cleanly(other, "ASYNC_MASTER")
        bench_rewind(work, store, other, end, fork_at)
        shutil.rmtree(other)
        bench_promotion(work, store, sizes)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
