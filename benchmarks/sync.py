"""`make bench-sync`: what a put on a SYNC_MASTER takes, store-level, master and slaves each a process of their own.

Beside it, in the same run, the least that two processes on Twisted need: a record's bytes answered by a report's. The
slaves' price is the master's processor time a put, with one slave more against one less, at 64 in flight.
Rounds alternate; of each figure the median of all rounds counts.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processor import processor_seconds
from benchmarks.resultfile import JSON_HELP, save
from rmqha.kit.events import Event
from rmqha.testing.nodes import PutNode, TwistdNode, free_port

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "sync"
MAX_SLAVES = 3
BODY_BYTES = 1024
RECORD_BYTES = 1176
SINGLE_PUTS = 4000
WINDOW, WINDOW_PUTS = 64, 60_000
ROUNDS = 3

ECHO = """
import sys
from time import perf_counter
from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
SIZE, COUNT = int(sys.argv[2]), int(sys.argv[3])
class Answer(Protocol):
    held = 0
    def connectionMade(self): self.transport.setTcpNoDelay(True)
    def dataReceived(self, data):
        self.held += len(data)
        while self.held >= SIZE:
            self.held -= SIZE
            self.transport.write(bytes(8))
class Ask(Protocol):
    def connectionMade(self):
        self.transport.setTcpNoDelay(True)
        self.times, self.start = [], perf_counter()
        self.transport.write(bytes(SIZE))
    def dataReceived(self, data):
        now = perf_counter()
        self.times.append(now - self.start)
        if len(self.times) == COUNT:
            print(sorted(self.times)[COUNT // 2])
            reactor.stop()
            return
        self.start = now
        self.transport.write(bytes(SIZE))
if sys.argv[1] == "serve":
    listening = TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(Factory.forProtocol(Answer))
    listening.addCallback(lambda port: print(port.getHost().port, flush=True))
else:
    connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", int(sys.argv[1])), Ask())
reactor.run()
"""
"""A program: ``serve SIZE 0`` answers every SIZE bytes with eight, ``PORT SIZE COUNT`` asks and prints the median."""


@dataclass
class Figures:
    """Of each round: seconds (median of one in flight), puts a second and seconds (p99) of many.

    ``processor`` and ``slave`` are processor seconds a put, of the master and of one slave.
    """

    single: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    slave: list[float] = field(default_factory=list)


def put(master: PutNode, count: int, in_flight: int) -> dict[str, Any]:
    """Put, and insist on all being replicated."""
    summary = master.put(count, body_bytes=BODY_BYTES, in_flight=in_flight)
    if summary["statuses"] != {"PUT_OK": count}:
        raise SystemExit(f"not every put was replicated: {summary['statuses']}")
    return summary


def measure(slaves: int, figures: Figures) -> None:
    """One round with so many slaves; puts wait for one of them."""
    work = WORK / f"{slaves}"
    shutil.rmtree(work, ignore_errors=True)
    port = free_port()
    with ExitStack() as stack:
        master = PutNode(work, ["--role=sync-master", f"--port={port}"], name="master")
        stack.enter_context(master)
        master.port()
        own = ["--role=slave", "--port=0", f"--master=127.0.0.1:{port + 1}"]
        nodes = [stack.enter_context(TwistdNode(work, own, name=f"slave-{number}")) for number in range(slaves)]
        for node in nodes:
            node.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        put(master, SINGLE_PUTS // 4, 1)
        figures.single.append(put(master, SINGLE_PUTS, 1)["latencies"]["p50"])
        put(master, WINDOW_PUTS // 4, WINDOW)
        before, slaves_before = processor_seconds(master.pid), sum(processor_seconds(node.pid) for node in nodes)
        summary = put(master, WINDOW_PUTS, WINDOW)
        figures.processor.append((processor_seconds(master.pid) - before) / WINDOW_PUTS)
        of_slaves = sum(processor_seconds(node.pid) for node in nodes) - slaves_before
        figures.slave.append(of_slaves / slaves / WINDOW_PUTS)
        figures.rate.append(WINDOW_PUTS / summary["seconds"])
        figures.p99.append(summary["latencies"]["p99"])


def measure_echo() -> float:
    """Seconds that a record's bytes and a report's take to and fro, on Twisted and nothing else."""
    with subprocess.Popen(
        [sys.executable, "-c", ECHO, "serve", str(RECORD_BYTES), "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None, "it is a pipe"
        port = server.stdout.readline().strip()
        asked = subprocess.run(
            [sys.executable, "-c", ECHO, port, str(RECORD_BYTES), str(SINGLE_PUTS)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        server.kill()
    return float(asked.stdout)


def figures_by_name(figures: Mapping[int, Figures]) -> dict[str, list[float]]:
    """All rounds, in seconds, by names that say how many slaves there were."""
    return {
        f"{slaves} slaves: {name}": values
        for slaves, of_these in figures.items()
        for name, values in (
            ("1 in flight, p50", of_these.single),
            ("64 in flight, a put", [1 / rate for rate in of_these.rate]),
            ("64 in flight, p99", of_these.p99),
            ("master's processor, a put", of_these.processor),
            ("a slave's processor, a put", of_these.slave),
        )
    }


def main() -> None:
    """The table, a line for each number of slaves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each number of slaves")
    parser.add_argument("--json", type=Path, help=JSON_HELP)
    arguments = parser.parse_args()
    rounds = arguments.rounds
    echoes: list[float] = []
    figures = {slaves: Figures() for slaves in range(1, MAX_SLAVES + 1)}
    for _ in range(rounds):
        echoes.append(measure_echo())
        for slaves, of_these in figures.items():
            measure(slaves, of_these)
    echo = median(echoes)
    print(f"{BODY_BYTES} B bodies, inSyncReplicas=2, {os.cpu_count()} cores, median of {rounds} rounds")
    print(f"bare Twisted echo of a record and a report: p50 {echo * 1000:.3f} ms")
    print("           1 in flight           64 in flight      a slave's       master's processor")
    print("slaves    p50 ms  / echo       puts/s   p99 ms   us a put    us a put   against one slave less")
    for slaves, of_these in figures.items():
        single, processor = median(of_these.single), median(of_these.processor)
        less = median(figures[slaves - 1].processor) if slaves > 1 else None
        print(
            f"{slaves:>6}  {single * 1000:>8.3f} {single / echo:>7.2f} {median(of_these.rate):>12.0f} "
            f"{median(of_these.p99) * 1000:>8.2f} {median(of_these.slave) * 1e6:>10.1f} {processor * 1e6:>11.1f}   "
            f"{'-' if less is None else f'{(processor / less - 1) * 100:+.0f} %':>8}"
        )
    if arguments.json is not None:
        save(arguments.json, {"echo": echoes} | figures_by_name(figures))
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
