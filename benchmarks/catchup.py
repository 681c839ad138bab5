"""`make bench-catchup`: how fast an empty slave catches up, ours against the Java 4.9.3 pair, in one run.

Both masters serve the same log from a warm page cache over loopback; each pair is two processes. The time counts from
the first to the last byte that the slave holds, as its own remoting port tells; ours proves every record on the way.
Each pair takes its turn several times, the best of each counts.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processor import processor_seconds
from benchmarks.resultfile import JSON_HELP, save
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.testing.records import write_log
from tests.interop import rocketmq

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "catchup"
LOG_BYTES = 768 * 1024 * 1024
SEGMENT_BYTES = 1024 * 1024 * 1024
BODY_SIZES = (64 * 1024, 1024, 100)
GOALS = {64 * 1024: 4.5, 1024: 3.0, 100: 2.0}
ROUNDS = 3
SAMPLE_SECONDS = 0.025
MIB = 1024 * 1024


@dataclass
class Catchup:
    """One slave's run: MiB/s, processor seconds of the master and of the slave, and the slave's memory.

    Memory is the greatest beside the mapped log, in MiB (0: not measured).
    """

    rate: float
    master: float
    slave: float
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


def memory_beside_store(pid: int, work: Path) -> float:
    """Resident MiB of a node of ours beside the pages of its store, which is in ``work``."""
    return anonymous_memory(pid) + file_memory_beside(pid, str(work))


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
            before = processor_seconds(master.pid)
            slave.port("remoting")
            started = processor_seconds(slave.pid)
            seconds = watch(f"127.0.0.1:{slave_port}", end, sample)
            of_master, of_slave = processor_seconds(master.pid) - before, processor_seconds(slave.pid) - started
            memory += file_memory_beside(slave.pid, "/commitlog/")
            slave.stop()
        master.stop()
    return Catchup(end / seconds / MIB, of_master, of_slave, memory)


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
    before = processor_seconds(master.pid)
    with slave:
        started = processor_seconds(slave.pid)
        seconds = watch(slave.address, end)
        of_master, of_slave = processor_seconds(master.pid) - before, processor_seconds(slave.pid) - started
        slave.kill()
    return Catchup(end / seconds / MIB, of_master, of_slave)


def log_end(store: Path) -> int:
    """Where the log of ``store`` ends."""
    from rmqha.store.offline.storereader import StoreReader

    reader = StoreReader(store)
    try:
        return reader.verify(lambda _: None).end
    finally:
        reader.close()


def bench(body_bytes: int, rounds: int, batch_bytes: int) -> tuple[list[Catchup], list[Catchup]]:
    """Ours and Java's runs over one log of messages of this size."""
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
    return ours, java


def figures_of(name: str, runs: Sequence[Catchup]) -> dict[str, list[float]]:
    """All rounds, as seconds a MiB."""
    mib = LOG_BYTES / MIB
    return {
        f"{name}: wall": [1 / run.rate for run in runs],
        f"{name}: master's processor": [run.master / mib for run in runs],
        f"{name}: slave's processor": [run.slave / mib for run in runs],
    }


def line(name: str, runs: Sequence[Catchup]) -> str:
    """The best rate, and the least processor time a MiB."""
    mib = LOG_BYTES / MIB
    master, slave = min(run.master for run in runs) / mib * 1e3, min(run.slave for run in runs) / mib * 1e3
    return f"{name:>5} {max(run.rate for run in runs):>8.0f} {master:>10.2f} {slave:>10.2f}"


def main() -> None:
    """The table, a line for each size of message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each pair")
    parser.add_argument("--batch", type=int, default=32 * 1024, help="our master's haTransferBatchSize")
    parser.add_argument("--body", type=int, nargs="*", default=BODY_SIZES, help="message sizes in bytes")
    parser.add_argument("--json", type=Path, help=JSON_HELP)
    arguments = parser.parse_args()
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java pair cannot run here: {problem}")
    print(f"{LOG_BYTES // MIB} MiB, page cache warm, loopback, best of {arguments.rounds} alternating rounds")
    print("processor time in ms a MiB, from when the slave has opened its port")
    print(f"{'message':>10} {'':>5} {'MiB/s':>8} {'master':>10} {'slave':>10}")
    figures: dict[str, list[float]] = {}
    for body_bytes in arguments.body:
        ours, java = bench(body_bytes, arguments.rounds, arguments.batch)
        for name, runs in (("ours", ours), ("Java", java)):
            print(f"{body_bytes:>8} B {line(name, runs)}")
            figures |= figures_of(f"{name} {body_bytes} B", runs)
        ratio = max(run.rate for run in ours) / max(run.rate for run in java)
        goal = GOALS.get(body_bytes)
        told = "" if goal is None else f", goal {goal}" + ("" if ratio >= goal else "  missed")
        memory = max(run.memory for run in ours)
        print(f"{'':>10} ratio {ratio:.2f}{told}; our slave {memory:.1f} MiB")
        sys.stdout.flush()
    if arguments.json is not None:
        save(arguments.json, figures)
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
