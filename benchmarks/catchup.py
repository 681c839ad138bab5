"""`make bench-catchup`: how fast an empty slave catches up, ours against the Java 4.9.3 pair, in one run.

Both masters serve the same log from a warm page cache over loopback; each pair is two processes. The time counts from
the first to the last byte that the slave holds, as its own remoting port tells; ours proves every record on the way.
Each pair takes its turn several times, the best of each counts.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.testing.records import write_log
from tests.interop import rocketmq

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "catchup"
LOG_BYTES = 768 * 1024 * 1024
SEGMENT_BYTES = 1024 * 1024 * 1024
BODY_SIZES = (64 * 1024, 1024, 100)
GOALS = {64 * 1024: 2.5, 1024: 1.5, 100: 1.0}
ROUNDS = 3
SAMPLE_SECONDS = 0.025
MIB = 1024 * 1024


@dataclass
class Catchup:
    """One slave's run: MiB/s, and the greatest memory beside the mapped log, in MiB (0: not measured)."""

    rate: float
    memory: float = 0.0


def watch(address: str, end: int, sample: Callable[[], None] = lambda: None) -> float:
    """Seconds that the slave at a remoting address took from its first byte to ``end``, scaled to the whole log."""
    first: tuple[float, int] | None = None
    while True:
        held = int(rocketmq.runtime_info(address)["commitLogMaxOffset"])
        now = time.monotonic()
        if first is None and held > 0:
            first = (now, held)
        if first is not None and held >= end:
            return (now - first[0]) * end / (end - first[1]) if held > first[1] and end > first[1] else 0.0
        sample()
        time.sleep(SAMPLE_SECONDS)


def anonymous_memory(pid: int) -> float:
    """Resident MiB of a process that no file backs: what grows while it works."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def file_memory_beside(pid: int, folder: str) -> float:
    """Resident MiB of a process that files back, except those with ``folder`` in their path: program and libraries."""
    total, is_beside = 0, True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            is_beside = folder not in line
        elif is_beside and name in ("Rss:", "Anonymous:"):
            total += int(values[0]) if name == "Rss:" else -int(values[0])
    return total / 1024


def run_ours(store: Path, end: int, batch_bytes: int) -> Catchup:
    """Our master over ``store`` and our slave."""
    work = WORK / "ours"
    shutil.rmtree(work, ignore_errors=True)
    port, slave_port = free_port(), free_port()
    master = TwistdNode(
        work,
        ["--role=async-master", f"--port={port}", f"--set=haTransferBatchSize={batch_bytes}"],
        store=store,
        name="master",
    )
    slave = TwistdNode(work, ["--role=slave", f"--master=127.0.0.1:{port + 1}", f"--port={slave_port}"], name="slave")
    memory = 0.0

    def sample() -> None:
        nonlocal memory
        memory = max(memory, anonymous_memory(slave.pid))

    with master:
        master.port()
        with slave:
            slave.port("remoting")
            seconds = watch(f"127.0.0.1:{slave_port}", end, sample)
            memory += file_memory_beside(slave.pid, "/commitlog/")
            slave.stop()
        master.stop()
    return Catchup(end / seconds / MIB, memory)


def run_java(master: rocketmq.Broker, end: int) -> Catchup:
    """A Java slave of the Java master that runs already."""
    work = WORK / "java-slave"
    shutil.rmtree(work, ignore_errors=True)
    slave = rocketmq.Broker(
        work,
        role="SLAVE",
        broker_id=1,
        name="bench",
        cluster="bench",
        listen_port=rocketmq.free_ports(),
        ha_master=master.ha_address,
        segment_size=SEGMENT_BYTES,
        jvm=rocketmq.BENCHMARK,
        haSendHeartbeatInterval=1000,
    )
    with slave:
        seconds = watch(slave.address, end)
        slave.kill()
    return Catchup(end / seconds / MIB)


def log_end(store: Path) -> int:
    """Where the log of ``store`` ends."""
    from rmqha.store.offline.storereader import StoreReader

    reader = StoreReader(store)
    try:
        return reader.verify(lambda _: None).end
    finally:
        reader.close()


def bench(body_bytes: int, rounds: int, batch_bytes: int) -> tuple[Catchup, Catchup]:
    """Ours and Java's best over one log of messages of this size."""
    store = WORK / "log"
    shutil.rmtree(store, ignore_errors=True)
    write_log(store / "commitlog", LOG_BYTES, body_bytes, SEGMENT_BYTES)
    end = log_end(store)
    java_store = WORK / "java-master"
    shutil.rmtree(java_store, ignore_errors=True)
    shutil.copytree(store, java_store / "store")
    java_master = rocketmq.Broker(
        java_store,
        role="ASYNC_MASTER",
        broker_id=0,
        name="bench",
        cluster="bench",
        listen_port=rocketmq.free_ports(),
        segment_size=SEGMENT_BYTES,
        jvm=rocketmq.BENCHMARK,
    )
    ours, java = [], []
    with java_master:
        for _ in range(rounds):
            ours.append(run_ours(store, end, batch_bytes))
            java.append(run_java(java_master, end))
        java_master.kill()
    best_memory = max(run.memory for run in ours)
    return Catchup(max(run.rate for run in ours), best_memory), Catchup(max(run.rate for run in java))


def main() -> None:
    """The table, a line for each size of message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each pair")
    parser.add_argument("--batch", type=int, default=32 * 1024, help="our master's haTransferBatchSize")
    parser.add_argument("--body", type=int, nargs="*", default=BODY_SIZES, help="message sizes in bytes")
    arguments = parser.parse_args()
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java pair cannot run here: {problem}")
    print(f"{LOG_BYTES // MIB} MiB, page cache warm, loopback, best of {arguments.rounds} alternating rounds")
    print(f"{'message':>10} {'ours MiB/s':>12} {'Java MiB/s':>12} {'ratio':>7} {'goal':>6} {'our slave, MiB':>16}")
    for body_bytes in arguments.body:
        ours, java = bench(body_bytes, arguments.rounds, arguments.batch)
        goal = GOALS.get(body_bytes)
        print(
            f"{body_bytes:>8} B {ours.rate:>12.0f} {java.rate:>12.0f} {ours.rate / java.rate:>7.2f} "
            f"{goal if goal is not None else '-':>6} {ours.memory:>16.1f}"
        )
        sys.stdout.flush()
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
