"""`make bench-broker`: the official Java producer against a master and slave of ours and of Java 4.9.3, in one run.

Both pairs run all the time, each master and slave a process of its own, over loopback, with ASYNC_FLUSH and files of
the default sizes. Rounds alternate; of each figure the median of all rounds counts. TPS are messages answered a second,
times are the producer's. Memory is the greater of our two nodes' after the last load, beside their stores' pages.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.catchup import anonymous_memory, file_memory_beside
from rmqha.events import Event
from rmqha.testing.nodes import TwistdNode, free_port
from tests.interop import rocketmq

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "broker"
ROUNDS = 3
QUEUES = 8
LOAD_TIMEOUT_SECONDS = 600
GOAL_MEMORY_MIB = 90
PATIENT: dict[str, Any] = {"waitTimeMillsInSendQueue": 10_000, "osPageCacheBusyTimeOutMills": 10_000}
"""A Java broker refuses what has waited longer, which a busy machine must not be taken for."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What ours is to be, as a multiple of Java's: at most or at least."""

    figure: str
    ratio: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.ratio:g}"

    def is_met(self, ratio: float) -> bool:
        """Whether this multiple is good enough."""
        return ratio <= self.ratio if self.at_most else ratio >= self.ratio


@dataclass(frozen=True, slots=True)
class Load:
    """What the producer does: bytes a message, so many unanswered, so many before it measures and then."""

    role: str
    body_bytes: int
    in_flight: int
    warm_up: int
    count: int
    goals: tuple[Goal, ...]

    def __str__(self) -> str:
        return f"{self.role:>5} {self.body_bytes:>5} B {self.in_flight:>4} in flight"


LOADS = (
    Load("SYNC", 1024, 1, 2_000, 4_000, (Goal("p50", 0.5, at_most=True),)),
    Load("SYNC", 1024, 64, 20_000, 40_000, (Goal("tps", 2.0), Goal("p99", 0.5, at_most=True))),
    Load("SYNC", 1024, 256, 20_000, 40_000, (Goal("tps", 2.0),)),
    Load("ASYNC", 1024, 128, 40_000, 100_000, (Goal("tps", 1.0),)),
    Load("ASYNC", 100, 128, 40_000, 100_000, (Goal("tps", 1.0),)),
)


@dataclass
class Pair:
    """A master and a slave that run, and are called ``name`` as their cluster is."""

    name: str
    reports: dict[Load, list[dict[str, float]]] = field(default_factory=dict)
    memory: Callable[[], float] = lambda: 0.0

    @property
    def topic(self) -> str:
        """Which only this master has."""
        return f"bench-{self.name}"

    def median_of(self, load: Load, figure: str) -> float:
        """The median of what the producer reported."""
        return median(report[figure] for report in self.reports[load])

    def put(self, namesrv: str, load: Load) -> None:
        """One round. Raises SystemExit if a message was not stored as asked for."""
        command = rocketmq.java_command(
            WORK / "producer",
            rocketmq.BENCHMARK,
            "rmqha.LoadBench",
            namesrv,
            self.topic,
            load.body_bytes,
            load.in_flight,
            load.warm_up,
            load.count,
        )
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LOAD_TIMEOUT_SECONDS, check=True)
        report = json.loads(done.stdout.splitlines()[-1])
        if report["statuses"] != {"SEND_OK": load.count}:
            raise SystemExit(f"{self.topic}, {load}: not every message was stored: {report['statuses']}")
        self.reports.setdefault(load, []).append(report)


def memory_beside_store(pid: int) -> float:
    """Resident MiB of a node of ours beside the pages of its store."""
    return anonymous_memory(pid) + file_memory_beside(pid, str(WORK))


@contextmanager
def our_pair(role: str, namesrv: rocketmq.NameServer) -> Iterator[Pair]:
    """A master and a slave of ours, the slave in sync."""
    name = f"ours-{role.lower()}"
    own = [f"--namesrv={namesrv.address}", f"--name={name}", f"--cluster={name}"]
    port = free_port()
    with ExitStack() as stack:
        options = [f"--role={role.lower()}-master", f"--port={port}", *own]
        master = stack.enter_context(TwistdNode(WORK / name, options, name="master"))
        master.port()
        options = ["--role=slave", f"--port={free_port()}", f"--master=127.0.0.1:{port + 1}", *own]
        slave = stack.enter_context(TwistdNode(WORK / name, options, name="slave"))
        slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        yield Pair(name, memory=lambda: max(memory_beside_store(node.pid) for node in (master, slave)))


@contextmanager
def java_pair(role: str, namesrv: rocketmq.NameServer) -> Iterator[Pair]:
    """A master and a slave of Java's, the slave connected."""
    name = f"java-{role.lower()}"
    with ExitStack() as stack:
        master = rocketmq.Broker(
            WORK / name / "master",
            role=f"{role}_MASTER",
            name=name,
            cluster=name,
            namesrv=namesrv.address,
            jvm=rocketmq.BENCHMARK,
            **PATIENT,
        )
        stack.callback(master.kill)
        master.start()
        slave = rocketmq.Broker(
            WORK / name / "slave",
            role="SLAVE",
            name=name,
            cluster=name,
            namesrv=namesrv.address,
            ha_master=master.ha_address,
            jvm=rocketmq.BENCHMARK,
        )
        stack.callback(slave.kill)
        slave.start()
        master.wait_for_slave()
        yield Pair(name)


def bench(role: str, loads: Sequence[Load], rounds: int) -> float:
    """All loads of one role, and their lines; gives our nodes' memory."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(rocketmq.NameServer(WORK / f"namesrv-{role.lower()}"))
        pairs = ours, java = [stack.enter_context(make(role, namesrv)) for make in (our_pair, java_pair)]
        driver = rocketmq.Driver(namesrv.address, WORK / "driver")
        for pair in pairs:
            driver.create_topic(pair.name, pair.topic, QUEUES)
        for load in loads:
            for _ in range(rounds):
                for pair in pairs:
                    pair.put(namesrv.address, load)
            tell(load, ours, java)
        return ours.memory()


def tell(load: Load, ours: Pair, java: Pair) -> None:
    """The lines of one load, one a goal."""
    for goal in load.goals:
        one, other = ours.median_of(load, goal.figure), java.median_of(load, goal.figure)
        ratio = one / other
        met = "" if goal.is_met(ratio) else "  missed"
        print(f"{load!s}  {goal.figure} {one:>10.2f} {other:>10.2f} {ratio:>7.2f} {goal!s:>7}{met}", flush=True)


def main() -> None:
    """The table, a line for each goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each pair")
    parser.add_argument("--role", choices=("SYNC", "ASYNC"), nargs="*", default=("SYNC", "ASYNC"), help="master's role")
    parser.add_argument("--in-flight", type=int, nargs="*", help="only the loads with so many in flight")
    arguments = parser.parse_args()
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java pair cannot run here: {problem}")
    shutil.rmtree(WORK, ignore_errors=True)
    print(f"{os.cpu_count()} cores, median of {arguments.rounds} alternating rounds; times in ms")
    print(f"{'':>30}  {'':>3} {'ours':>10} {'Java':>10} {'ratio':>7} {'goal':>7}")
    memory = []
    for role in arguments.role:
        loads = [load for load in LOADS if load.role == role]
        if arguments.in_flight is not None:
            loads = [load for load in loads if load.in_flight in arguments.in_flight]
        memory.append(bench(role, loads, arguments.rounds))
    print(f"memory of our loaded node beside its store: {max(memory):.1f} MiB, goal <= {GOAL_MEMORY_MIB}")
    sys.stdout.flush()
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
