"""`make bench-consumers`: official Java push consumers against a master of ours and of Java 4.9.3, in one run.

Both masters have no slave, ASYNC_FLUSH, and files of the default sizes. Rounds alternate; of each figure the median of
all rounds counts. Each round has 1, 4 or 16 groups of one consumer each, all in one process, and these loads:

- head: a producer sends. So many of its messages have not reached all groups yet. Times are from before a send until a
  consumer has the message.
- behind: the groups start far from the end, each in another part of the log, with a cold page cache: the master has
  just started. Together they read all of it.
- raw: one connection pulls, with one unanswered pull of each queue, and looks only at the places of the messages.

TPS are messages consumed a second by all groups together, "broker" is the processor time of the master in µs for each
of them, at the head with what the puts take. A message that a group does not get, or that is not what was sent, ends
the benchmark. What came more than once is printed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Protocol
from urllib.request import urlopen

from benchmarks.broker import PATIENT, Goal
from benchmarks.catchup import memory_beside_store
from benchmarks.processor import processor_seconds
from benchmarks.rawpulls import pull_all
from benchmarks.resultfile import JSON_HELP, save
from rmqha.testing.nodes import TwistdNode, free_port
from tests.interop import rocketmq

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "consumers"
ROUNDS = 3
GIB = 1 << 30
DEFAULT_GIB = 10.0
QUEUES = 8
GROUPS = (1, 4, 16)
BODY_BYTES = 1024
SMALL_BODY_BYTES = 100
RECORD_BYTES_BESIDE_BODY = 220
"""About what a record, its unit and its place in a queue file take beside the body."""
HEAD_CONSUMED = {1: 60_000, 4: 160_000, 16: 320_000}
IN_FLIGHT = 256
RAW_MESSAGES = 400_000
WARM_UP_SHARE = 5
"""One in so many messages is consumed before the figures begin."""
ROUND_TIMEOUT_SECONDS = 7200
Report = dict[str, float]


class Loads:
    """The names of the loads."""

    HEAD, BEHIND, RAW = "head", "behind", "raw"
    ALL = (HEAD, BEHIND, RAW)


@dataclass(frozen=True, slots=True)
class ConsumerLoad:
    """What is consumed: by so many groups, so many messages together, of so many bytes."""

    kind: str
    groups: int
    body_bytes: int
    count: int

    def __str__(self) -> str:
        return f"{self.kind:>6} {self.body_bytes:>5} B {self.groups:>3} groups"

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What ours is to be."""
        return (Goal("tps", 1.0), Goal("broker", 0.8, at_most=True))

    @property
    def figures(self) -> tuple[str, ...]:
        """What is reported beside the goals."""
        return ("p50", "p99") if self.kind == Loads.HEAD else ()


class IBrokerProcess(Protocol):
    """A master that can stop, and start again with its store."""

    @property
    def pid(self) -> int: ...

    def start(self) -> object: ...

    def stop(self) -> object: ...


@dataclass
class Side:
    """A master, ours or Java's. ``name`` is its cluster's name too."""

    name: str
    process: IBrokerProcess
    address: str
    namesrv: str
    store: Path
    wait: Callable[[], object]
    """Waits until the master that has been started answers."""
    http_port: Callable[[], int] | None = None
    reports: dict[ConsumerLoad, list[Report]] = field(default_factory=dict)
    rounds: int = 0

    def topic(self, kind: str, body_bytes: int) -> str:
        """Which only this master has."""
        return f"bench-{self.name}-{kind}-{body_bytes}"

    def median_of(self, load: ConsumerLoad, figure: str) -> float:
        """The median of all rounds."""
        return median(report[figure] for report in self.reports[load])

    def java(self, topic: str, *words: object) -> list[str]:
        """The command of one round's consumers, of groups that no round has had."""
        self.rounds += 1
        group = f"bench_{self.rounds}"
        return rocketmq.java_command(
            WORK / "consumers", rocketmq.BENCHMARK, "rmqha.ConsumeBench", self.namesrv, topic, group, *words
        )

    def fill(self, kind: str, body_bytes: int, count: int) -> None:
        """Put so many messages into a topic. Raises SystemExit if not all are stored."""
        command = self.java(self.topic(kind, body_bytes), 1, body_bytes, count, 0, 0)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=ROUND_TIMEOUT_SECONDS, check=True)
        report = json.loads(done.stdout.splitlines()[-1])
        if report["stored"] != count:
            raise SystemExit(f"{self.name} stored {report['stored']} of {count} messages")
        print(f"{self.name}: {count} messages of {body_bytes} B stored in {report['seconds']:.0f} s", flush=True)

    def measure(self, load: ConsumerLoad) -> None:
        """One round. Raises SystemExit if a message was not consumed."""
        if load.kind == Loads.RAW:
            report = self._pull(load)
        else:
            if load.kind == Loads.BEHIND:
                self.restart_cold()
            report = self._consume(load)
        self.reports.setdefault(load, []).append(report)

    def restart_cold(self) -> None:
        """Start the master again, without its store in the page cache."""
        self.process.stop()
        drop_from_page_cache(self.store)
        self.process.start()
        self.wait()

    def _consume(self, load: ConsumerLoad) -> Report:
        is_at_head = load.kind == Loads.HEAD
        count = load.count // load.groups if is_at_head else load.count
        words = [load.groups, load.body_bytes, count // WARM_UP_SHARE, count, IN_FLIGHT if is_at_head else 0]
        topic = self.topic(load.kind, load.body_bytes)
        with subprocess.Popen(self.java(topic, *words), stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None, "it is a pipe"
                next_line(process.stdout, "ready")
                before = processor_seconds(self.process.pid)
                report: Report = json.loads(next_line(process.stdout))
                used = processor_seconds(self.process.pid) - before
            finally:
                process.kill()
        report["broker"] = used / report["consumed"] * 1e6
        check_report(f"{self.name}, {load}", report)
        return report

    def _pull(self, load: ConsumerLoad) -> Report:
        ends = dict.fromkeys(range(QUEUES), load.count // QUEUES)
        before = processor_seconds(self.process.pid)
        kind = Loads.BEHIND if load.body_bytes == BODY_BYTES else Loads.RAW
        pulled = pull_all(self.address, self.topic(kind, load.body_bytes), "bench_raw", ends)
        used = processor_seconds(self.process.pid) - before
        return {"tps": pulled.messages / pulled.seconds, "broker": used / pulled.messages * 1e6}

    def turns(self) -> str:
        """How long the turns of our master's reactor took, by its metrics; empty without them."""
        if self.http_port is None:
            return ""
        with urlopen(f"http://127.0.0.1:{self.http_port()}/metrics", timeout=60) as answer:
            return longest_turns(answer.read().decode())


def next_line(lines: IO[str], expected: str = "") -> str:
    """The next line that consumers print. Raises SystemExit if they end, or print another one than expected."""
    line = lines.readline().strip()
    if not line or (expected and line != expected):
        raise SystemExit(f"the consumers failed; they print {line!r}")
    return line


def check_report(what: str, report: Report) -> None:
    """Raises SystemExit unless each group got all its messages as they were sent. Prints how many came twice."""
    if report["missing"] or report["foreign"]:
        raise SystemExit(f"{what}: {report['missing']:.0f} messages are missing, {report['foreign']:.0f} are others")
    if report["duplicates"]:
        print(f"{what}: {report['duplicates']:.0f} messages came again", flush=True)


def longest_turns(metrics: str) -> str:
    """The number of turns, of those over 50 ms, and the bound of the longest one, from a node's metrics."""
    found = re.findall(r'^rmqha_reactor_turn_seconds_bucket\{.*le="([^"]+)".*\} (\S+)$', metrics, re.MULTILINE)
    counts = {float(bound): float(count) for bound, count in found}
    total = counts[float("inf")]
    longest = min(bound for bound, count in counts.items() if count == total)
    return f"{total:.0f} turns, {total - counts[0.05]:.0f} over 50 ms, the longest at most {longest * 1e3:g} ms"


def drop_from_page_cache(folder: Path) -> None:
    """Drop all files below a folder from the page cache. No process may map them."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)  # what is not on the disk stays
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


@contextmanager
def our_side(namesrv: rocketmq.NameServer, with_turns: bool) -> Iterator[Side]:
    """A master of ours; ``with_turns`` with metrics."""
    name, port = "ours", free_port()
    options = ["--role=async-master", f"--port={port}", f"--namesrv={namesrv.address}"]
    options += [f"--name={name}", f"--cluster={name}", *(["--http-port=0"] if with_turns else [])]
    node = TwistdNode(WORK / name, options, name="master")
    with node:
        node.port("remoting")
        yield Side(
            name,
            node,
            f"127.0.0.1:{port}",
            namesrv.address,
            node.store,
            lambda: node.port("remoting"),
            (lambda: node.port("http")) if with_turns else None,
        )


@contextmanager
def java_side(namesrv: rocketmq.NameServer) -> Iterator[Side]:
    """A master of Java's."""
    name = "java"
    broker = rocketmq.Broker(
        WORK / name,
        role="ASYNC_MASTER",
        name=name,
        cluster=name,
        namesrv=namesrv.address,
        jvm=rocketmq.BENCHMARK,
        **PATIENT,
    )
    try:
        broker.start()
        yield Side(name, broker, broker.address, namesrv.address, broker.store, lambda: None)
    finally:
        broker.kill()


def loads_of(kinds: Sequence[str], groups: Sequence[int], messages: int) -> list[ConsumerLoad]:
    """The loads of these kinds; ``messages`` are in the topic that is read from far behind."""
    found = []
    for kind in kinds:
        if kind == Loads.RAW:
            count = min(messages, RAW_MESSAGES)
            found += [ConsumerLoad(kind, 1, body_bytes, count) for body_bytes in (BODY_BYTES, SMALL_BODY_BYTES)]
        else:
            counts = HEAD_CONSUMED if kind == Loads.HEAD else {}
            found += [ConsumerLoad(kind, each, BODY_BYTES, counts.get(each, messages)) for each in groups]
    return found


def message_count(gib: float) -> int:
    """How many messages make a log of so many GiB: the same number for each queue."""
    return int(gib * GIB) // (BODY_BYTES + RECORD_BYTES_BESIDE_BODY) // QUEUES * QUEUES


def check_room(folder: Path, gib: float) -> None:
    """Raises SystemExit if the disk of this folder has no room for both stores."""
    needed = int((2 * gib + 5) * GIB)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(
            f"{WORK} has {free / GIB:.1f} GiB free; two logs of {gib:g} GiB need {needed / GIB:.1f}: --gib"
        )


def tell(load: ConsumerLoad, ours: Side, java: Side) -> None:
    """The lines of one load."""
    goals = {goal.figure: goal for goal in load.goals}
    for figure in (*goals, *load.figures):
        one, other = ours.median_of(load, figure), java.median_of(load, figure)
        ratio = one / other if other else 0.0
        goal = goals.get(figure)
        text = "" if goal is None else f" {goal!s:>7}{'' if goal.is_met(ratio) else '  missed'}"
        print(f"{load!s}  {figure:>6} {one:>10.2f} {other:>10.2f} {ratio:>7.2f}{text}", flush=True)


SECONDS: dict[str, Callable[[float], float]] = {
    "tps": lambda rate: 1 / rate,
    "p50": lambda ms: ms / 1e3,
    "p99": lambda ms: ms / 1e3,
    "broker": lambda us: us / 1e6,
}
"""The figures of a report in seconds; a rate as seconds a message."""


def figures_of(side: Side) -> dict[str, list[float]]:
    """What all rounds measured, in seconds, by names that say whose it is."""
    return {
        f"{side.name} {load!s} {figure}": [SECONDS[figure](report[figure]) for report in reports]
        for load, reports in side.reports.items()
        for figure in ("tps", "broker", *load.figures)
    }


def bench(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """All loads, and their lines."""
    messages = message_count(arguments.gib)
    with ExitStack() as stack:
        namesrv = stack.enter_context(rocketmq.NameServer(WORK / "namesrv"))
        ours = stack.enter_context(our_side(namesrv, arguments.turns))
        java = stack.enter_context(java_side(namesrv))
        sides = (ours, java)
        driver = rocketmq.Driver(namesrv.address, WORK / "driver")
        loads = loads_of(arguments.loads, arguments.groups, messages)
        filled = {}
        if Loads.BEHIND in arguments.loads or Loads.RAW in arguments.loads:
            filled[Loads.BEHIND, BODY_BYTES] = messages
        if Loads.RAW in arguments.loads:
            filled[Loads.RAW, SMALL_BODY_BYTES] = min(messages, RAW_MESSAGES)
        for side in sides:
            topics = [side.topic(*each) for each in (*filled, (Loads.HEAD, BODY_BYTES))]
            driver.create_topics(side.name, dict.fromkeys(topics, QUEUES))
            for (kind, body_bytes), count in filled.items():
                side.fill(kind, body_bytes, count)
        print(f"{os.cpu_count()} cores, median of {arguments.rounds} alternating rounds; times in ms, broker in µs")
        print(f"{'':>26}  {'':>6} {'ours':>10} {'Java':>10} {'ratio':>7} {'goal':>7}")
        for load in loads:
            for _ in range(arguments.rounds):
                for side in sides:
                    side.measure(load)
            tell(load, ours, java)
            if arguments.turns:
                print(f"{load!s}  {ours.turns()}", flush=True)
        memory = memory_beside_store(ours.process.pid, WORK)
        print(f"memory of our master beside its store: {memory:.1f} MiB")
        return figures_of(ours) | figures_of(java)


def main() -> None:
    """The table, some lines for each load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.consumers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each master")
    parser.add_argument("--gib", type=float, default=DEFAULT_GIB, help="the log that is read from far behind")
    parser.add_argument("--loads", choices=Loads.ALL, nargs="+", default=Loads.ALL)
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS, help="so many groups, in turn")
    parser.add_argument("--turns", action="store_true", help="also how long our reactor's turns take, which costs time")
    parser.add_argument("--json", type=Path, help=JSON_HELP)
    arguments = parser.parse_args()
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java broker cannot run here: {problem}")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    check_room(WORK, arguments.gib)
    try:
        figures = bench(arguments)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    if arguments.json is not None:
        save(arguments.json, figures)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
