"""`make bench-broker`: the official Java producer against a master and slave of ours and of Java 4.9.3, in one run.

All pairs run all the time, each master and slave a process of its own, over loopback, with ASYNC_FLUSH and files of
the default sizes. "ours" has the compiled kernel if it is built, and "plain" is a pair of ours without it. Rounds
alternate; of each figure the median of all rounds counts. TPS are messages answered a second, and times are those of
the producer. "master" and "slave" are the processor time of these processes, in µs a message. "floor" is a bare broker
on Twisted that stores nothing. Memory is the greater of our two nodes' after the last load, beside their stores' pages.

The model of four masters is arithmetic: each master is one thread, so on a processor of its own it has as many messages
a second as its processor time allows. It leaves out the clients, which need other machines.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.catchup import memory_beside_store
from benchmarks.floor import registered
from benchmarks.processor import processor_seconds
from benchmarks.resultfile import JSON_HELP, save
from rmqha.kit.events import Event
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.wire.compiled import KERNEL, PURE_PYTHON, implementation
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


MOST_MASTER = {1024: 0.5, 100: 0.6}
"""Of Java's processor time, by the bytes of a message: what our master may need."""
PLAIN_MASTER = 0.75
"""What it may need without the kernel."""


def goals(tps: float, p99: float, body_bytes: int) -> tuple[Goal, ...]:
    """Of a load with many messages in flight."""
    master = Goal("master", MOST_MASTER[body_bytes], at_most=True)
    return Goal("tps", tps), Goal("p99", p99, at_most=True), master, Goal("slave", 1.0, at_most=True)


LOADS = (
    Load("SYNC", 1024, 1, 2_000, 4_000, (Goal("p50", 1.0, at_most=True),)),
    Load("SYNC", 1024, 64, 20_000, 40_000, goals(1.3, 0.6, 1024)),
    Load("SYNC", 1024, 256, 20_000, 40_000, goals(1.15, 0.6, 1024)),
    Load("ASYNC", 1024, 128, 40_000, 100_000, goals(1.5, 0.7, 1024)),
    Load("ASYNC", 100, 128, 40_000, 100_000, goals(1.2, 0.7, 100)),
)
MASTERS = 4
"""Of the model."""


MASTERS_LOAD = Load("ASYNC", 1024, 128, 40_000, 100_000, ())
"""The load of several masters."""


@dataclass
class Pair:
    """A master and a slave that run, or some masters, and are called ``name`` as their cluster is.

    ``processes`` has their process ids by their roles.
    """

    name: str
    processes: Mapping[str, Sequence[int]]
    reports: dict[Load, list[dict[str, float]]] = field(default_factory=dict)
    memory: Callable[[], float] = lambda: 0.0

    @property
    def topic(self) -> str:
        """Which only this master has."""
        return f"bench-{self.name}"

    def median_of(self, load: Load, figure: str) -> float:
        """The median of what the producer reported."""
        return median(report[figure] for report in self.reports[load])

    def _processor_seconds(self) -> dict[str, float]:
        """What the processes of each role have used so far."""
        return {role: sum(map(processor_seconds, pids)) for role, pids in self.processes.items()}

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
        before = self._processor_seconds()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LOAD_TIMEOUT_SECONDS, check=True)
        report = json.loads(done.stdout.splitlines()[-1])
        for role, seconds in self._processor_seconds().items():
            report[role] = (seconds - before[role]) / (load.warm_up + load.count) * 1e6
        if report["statuses"] != {"SEND_OK": load.count}:
            raise SystemExit(f"{self.topic}, {load}: not every message was stored: {report['statuses']}")
        self.reports.setdefault(load, []).append(report)


@dataclass
class Floor(Pair):
    """A bare broker on Twisted: see ``benchmarks.floor``."""

    port: int = 0

    def put(self, namesrv: str, load: Load) -> None:
        with registered(namesrv, self.port, self.name, QUEUES):
            super().put(namesrv, load)


@contextmanager
def our_pair(role: str, namesrv: rocketmq.NameServer, is_plain: bool = False) -> Iterator[Pair]:
    """A master and a slave of ours, the slave in sync. A plain one has no kernel."""
    name = f"{'plain' if is_plain else 'ours'}-{role.lower()}"
    prefix = ("env", f"{PURE_PYTHON}=1") if is_plain else ()
    own = [f"--namesrv={namesrv.address}", f"--name={name}", f"--cluster={name}"]
    port = free_port()
    with ExitStack() as stack:
        options = [f"--role={role.lower()}-master", f"--port={port}", *own]
        master = stack.enter_context(TwistdNode(WORK / name, options, name="master", prefix=prefix))
        master.port()
        options = ["--role=slave", f"--port={free_port()}", f"--master=127.0.0.1:{port + 1}", *own]
        slave = stack.enter_context(TwistdNode(WORK / name, options, name="slave", prefix=prefix))
        slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        processes = {"master": [master.pid], "slave": [slave.pid]}
        yield Pair(name, processes, memory=lambda: max(memory_beside_store(node.pid, WORK) for node in (master, slave)))


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
        yield Pair(name, {"master": [master.pid], "slave": [slave.pid]})


def bench(role: str, loads: Sequence[Load], rounds: int, figures: dict[str, list[float]]) -> float:
    """All loads of one role, and their lines; gives our nodes' memory. Adds to ``figures``."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(rocketmq.NameServer(WORK / f"namesrv-{role.lower()}"))
        ours = stack.enter_context(our_pair(role, namesrv))
        plain = ours if KERNEL is None else stack.enter_context(our_pair(role, namesrv, is_plain=True))
        java = stack.enter_context(java_pair(role, namesrv))
        pairs = list({pair.name: pair for pair in (ours, plain, java)}.values())
        driver = rocketmq.Driver(namesrv.address, WORK / "driver")
        for pair in pairs:
            driver.create_topic(pair.name, pair.topic, QUEUES)
        bare = stack.enter_context(floor())
        for load in loads:
            for _ in range(rounds):
                for pair in (*pairs, bare):
                    pair.put(namesrv.address, load)
            tell(load, ours, plain, java)
            tps, used = bare.median_of(load, "tps"), bare.median_of(load, "master")
            print(f"{load!s}   floor: a bare Twisted broker has tps {tps:.2f}, and uses {used:.1f} µs")
            rate = MASTERS * 1e6 / ours.median_of(load, "master")
            print(f"{load!s}   model: {MASTERS} masters, each on a processor of its own: tps {rate:.0f}", flush=True)
        for pair in pairs:
            figures |= figures_of(pair)
        return ours.memory()


@contextmanager
def floor() -> Iterator[Pair]:
    """Its process."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks.floor"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None, "it is a pipe"
        try:
            yield Floor("floor", {"master": [server.pid]}, port=int(server.stdout.readline()))
        finally:
            server.kill()


def bench_masters(counts: Sequence[int], rounds: int) -> None:
    """One load with so many masters of ours on this machine, each with a store of its own, and a line for each."""
    for count in counts:
        with ExitStack() as stack:
            namesrv = stack.enter_context(rocketmq.NameServer(WORK / f"namesrv-{count}"))
            name = f"ours-{count}-masters"
            own = ["--role=async-master", "--port=0", f"--namesrv={namesrv.address}", f"--cluster={name}"]
            nodes = [
                stack.enter_context(TwistdNode(WORK / name, [*own, f"--name={name}-{number}"], name=f"master-{number}"))
                for number in range(count)
            ]
            for node in nodes:
                node.wait_for_event(Event.REGISTERED)
            masters = Pair(name, {"master": [node.pid for node in nodes]})
            rocketmq.Driver(namesrv.address, WORK / "driver").create_topic(name, masters.topic, QUEUES)
            for _ in range(rounds):
                masters.put(namesrv.address, MASTERS_LOAD)
            tps, p99, used = (masters.median_of(MASTERS_LOAD, figure) for figure in ("tps", "p99", "master"))
            print(
                f"{MASTERS_LOAD!s}  {count} masters: tps {tps:.2f}, p99 {p99:.2f}, all masters {used:.1f}", flush=True
            )


def tell(load: Load, ours: Pair, plain: Pair, java: Pair) -> None:
    """The lines of one load, one a figure. The last column is the multiple without the kernel."""
    wanted = {goal.figure: goal for goal in load.goals}
    for figure in dict.fromkeys((*wanted, *ours.processes)):
        one, other, without = (pair.median_of(load, figure) for pair in (ours, java, plain))
        goal = wanted.get(figure)
        told = "" if goal is None else f"{goal!s:>7}" + ("" if goal.is_met(one / other) else "  missed")
        if figure == "master" and goal is not None and without / other > PLAIN_MASTER:
            told += f"  plain missed {PLAIN_MASTER}"
        print(
            f"{load!s}  {figure:>6} {one:>10.2f} {other:>10.2f} {one / other:>7.2f} {without / other:>7.2f} {told}",
            flush=True,
        )


SECONDS: dict[str, Callable[[float], float]] = {
    "tps": lambda rate: 1 / rate,
    "p50": lambda ms: ms / 1e3,
    "p99": lambda ms: ms / 1e3,
    "master": lambda us: us / 1e6,
    "slave": lambda us: us / 1e6,
}
"""The figures of a report in seconds; a rate as seconds a message."""


def figures_of(pair: Pair) -> dict[str, list[float]]:
    """What all rounds of a pair measured, in seconds, by names that say whose it is."""
    whose = pair.name.partition("-")[0]
    return {
        f"{whose} {load!s} {figure}": [seconds(report[figure]) for report in reports]
        for load, reports in pair.reports.items()
        for figure, seconds in SECONDS.items()
    }


def main() -> None:
    """The table, a line for each goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each pair")
    parser.add_argument("--role", choices=("SYNC", "ASYNC"), nargs="*", default=("SYNC", "ASYNC"), help="master's role")
    parser.add_argument("--in-flight", type=int, nargs="*", help="only the loads with so many in flight")
    parser.add_argument("--masters", type=int, nargs="+", help="only ours: so many masters without slaves, in turn")
    parser.add_argument("--json", type=Path, help=JSON_HELP)
    arguments = parser.parse_args()
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java pair cannot run here: {problem}")
    shutil.rmtree(WORK, ignore_errors=True)
    if arguments.masters is not None:
        bench_masters(arguments.masters, arguments.rounds)
        shutil.rmtree(WORK, ignore_errors=True)
        return
    print(f"{os.cpu_count()} cores, median of {arguments.rounds} alternating rounds; times in ms")
    print(f"ours: {implementation()}")
    print(f"{'':>30}  {'':>6} {'ours':>10} {'Java':>10} {'ratio':>7} {'plain':>7} {'goal':>7}")
    memory = []
    figures: dict[str, list[float]] = {}
    for role in arguments.role:
        loads = [load for load in LOADS if load.role == role]
        if arguments.in_flight is not None:
            loads = [load for load in loads if load.in_flight in arguments.in_flight]
        memory.append(bench(role, loads, arguments.rounds, figures))
    print(f"memory of our loaded node beside its store: {max(memory):.1f} MiB, goal <= {GOAL_MEMORY_MIB}")
    if arguments.json is not None:
        save(arguments.json, figures)
    sys.stdout.flush()
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
