"""Logs read over the network: the part ``--only network`` of `make bench-spark`.

All is on this machine: nodes of ours, each a process, and Spark. So nodes and tasks share the processors, and no figure
is that of a cluster. Three questions, in alternating rounds, of which the median counts:

- A node's log over loopback, against the same log by its path: all columns into the sink that drops them, local[2].
- The logs of four nodes together, against the log of one node that is as long as all four. On a machine that is too
  small for four times the work, each broker's share of the rate can only stay if the sum does: so the whole rates are
  compared, and the processor time for each message, which is what more machines would multiply.
- What a put on a SYNC_MASTER takes, with one in flight, alone and while four tasks read its log again and again: as
  fast as they can, and with ``maxRate``. Real tasks have processors of their own. So the second turn of this question
  has Spark in the scheduler's class SCHED_IDLE: it runs where a processor is free. Even so it takes caches and memory
  from the nodes. So the same tasks also read the log by its path, without the node: what the node's part costs a put
  is the difference.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.processor import processor_seconds, tree_seconds
from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode, PutNode, TwistdNode, free_port

BODY_BYTES = 1024
LOG_BYTES, BROKERS = 1 << 30, 4
GOAL_OF_LOCAL, GOAL_OF_ONE = 0.5, 0.8
TASKS, FILLED_BYTES = 4, 128 << 20
MAX_RATE = "4m"
PUTS, FILLING = 6000, 256
BY_PATH = f"{TASKS} tasks read by path"
GOALS_OF_PUTS = {"unread": 1.0, BY_PATH: None, f"{TASKS} tasks read": 1.2, f"{TASKS} tasks, maxRate={MAX_RATE}": 1.05}
"""How often what an unread log's put takes. Reading by path has no goal."""
BESIDE, AFAR = "takes processors from the nodes", "gets only what they leave, as if on another machine"
QUIET_SECONDS, QUIET_SHARE = 1.0, 0.05

WriteLog = Callable[[Path, int, int], None]
"""Makes a store: its folder, bytes of a body, bytes of the log."""
Sums = tuple[int, int, int]
"""Messages, the sum of their offsets, the sum of the CRCs of their bodies."""


@dataclass(frozen=True)
class Read:
    """Of each round of a read: seconds, and processor seconds of the nodes and of all that reads."""

    seconds: list[float] = field(default_factory=list)
    nodes: list[float] = field(default_factory=list)
    readers: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Put:
    """Of each round: the median of a put in seconds. ``read_rates`` are those of each read, in bytes a second."""

    p50: list[float] = field(default_factory=list)
    read_rates: list[float] = field(default_factory=list)


def frame(spark: SparkSession, path: str | Path, **options: object) -> DataFrame:
    """Our source."""
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("rmqha").options(properties="raw", **texts).load(str(path))


def drop(rows: DataFrame) -> None:
    """Make every row, for nobody."""
    rows.write.format("noop").mode("overwrite").save()


def sums(rows: DataFrame) -> Sums:
    """What two ways to the same messages must agree on."""
    found = rows.select(sql.count("*"), sql.sum("physicalOffset"), sql.sum(sql.crc32("body"))).first()
    assert found is not None, "an aggregate has a row"
    return found[0], found[1], found[2]


def wait_until_quiet(nodes: list[TwistdNode]) -> None:
    """Until nodes that have started have made the queues of their logs."""
    used = -1.0
    while (now := sum(processor_seconds(node.pid) for node in nodes)) - used > QUIET_SHARE * QUIET_SECONDS:
        used = now
        time.sleep(QUIET_SECONDS)  # what is measured is how little they use meanwhile


class NetworkBench:
    """The stores lie in ``work``."""

    def __init__(self, work: Path, rounds: int, write_log: WriteLog) -> None:
        self._work = work
        self._rounds = rounds
        self._write_log = write_log

    def tell(self, start_session: Callable[[str], SparkSession]) -> dict[str, list[float]]:
        """Print all lines; returns the seconds of all rounds by names. ``start_session`` takes Spark's master."""
        spark = start_session("local[2]")
        figures = self._tell_reads(spark)
        spark.stop()
        return figures | self._tell_puts(start_session)

    def _tell_reads(self, spark: SparkSession) -> dict[str, list[float]]:
        with ExitStack() as stack:
            server = stack.enter_context(NameServerNode(self._work))
            nodes = [self._serve(stack, "one", LOG_BYTES)]
            named = f"--namesrv={server.address}"
            nodes += [self._serve(stack, f"of-four-{n}", LOG_BYTES // BROKERS, named) for n in range(BROKERS)]
            for node in nodes[1:]:
                node.wait_for_event(Event.REGISTERED)
            wait_until_quiet(nodes)
            paths: dict[str, str | Path] = {
                "local path": nodes[0].store,
                "network, 1 broker": f"rmqha://127.0.0.1:{nodes[0].port()}",
                f"network, {BROKERS} brokers": f"namesrv://{server.address}",
            }
            self._check(spark, paths, [node.store for node in nodes[1:]])
            took = {name: Read() for name in paths}
            for number in range(self._rounds + 1):  # the first one warms everything up
                for name, path in paths.items():
                    self._read(frame(spark, path), nodes, took[name] if number else Read())
            messages = sums(frame(spark, nodes[0].store))[0]
        tell_reads(took, messages)
        return {name: read.seconds for name, read in took.items()}

    def _serve(self, stack: ExitStack, name: str, log_bytes: int, *options: str) -> TwistdNode:
        """A node with a log."""
        store = self._work / name
        if not store.exists():
            part = store.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            self._write_log(part, BODY_BYTES, log_bytes)
            part.rename(store)
        own = ("--role=async-master", f"--name={name}", f"--port={free_port()}", *options)
        node = stack.enter_context(TwistdNode(self._work, own, store, name))
        node.port("remoting")
        return node

    @staticmethod
    def _check(spark: SparkSession, paths: Mapping[str, str | Path], parts: list[Path]) -> None:
        """Both ways give the same messages."""
        local, one, four = (sums(frame(spark, path)) for path in paths.values())
        of_parts = [sums(frame(spark, part)) for part in parts]
        if local != one or four != tuple(map(sum, zip(*of_parts, strict=True))):
            raise SystemExit(f"not the same messages: {local} and {one}; {four} and {of_parts}")

    def _read(self, rows: DataFrame, nodes: list[TwistdNode], took: Read) -> None:
        of_nodes = sum(processor_seconds(node.pid) for node in nodes)
        of_all, started = tree_seconds(os.getpid()), time.perf_counter()
        drop(rows)
        took.seconds.append(time.perf_counter() - started)
        took.nodes.append(sum(processor_seconds(node.pid) for node in nodes) - of_nodes)
        took.readers.append(tree_seconds(os.getpid()) - of_all - took.nodes[-1])

    def _tell_puts(self, start_session: Callable[[str], SparkSession]) -> dict[str, list[float]]:
        port = free_port()
        work = self._work / "pair"
        shutil.rmtree(work, ignore_errors=True)
        figures: dict[str, list[float]] = {}
        with ExitStack() as stack:
            master = PutNode(work, ["--role=sync-master", f"--port={port}"], name="master")
            stack.enter_context(master)
            master.port("remoting")
            own = ["--role=slave", "--port=0", f"--master=127.0.0.1:{port + 1}"]
            slave = stack.enter_context(TwistdNode(work, own, name="slave"))
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            filled = put(master, FILLED_BYTES // BODY_BYTES, FILLING)["end"]
            for neighbours in (BESIDE, AFAR):
                if neighbours == AFAR:
                    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the session inherits it
                spark = start_session(f"local[{TASKS}]")
                found = self._measure_puts(spark, master, filled)
                spark.stop()
                tell_puts(neighbours, found)
                figures |= {f"put, {neighbours}, {name}": each.p50 for name, each in found.items()}
        return figures

    def _measure_puts(self, spark: SparkSession, master: PutNode, filled: int) -> dict[str, Put]:
        path = f"rmqha://127.0.0.1:{master.port()}"
        split_bytes = -(-filled // TASKS)
        by_path = partial(frame, spark, master.store, splitBytes=split_bytes)
        full_rate = partial(frame, spark, path, splitBytes=split_bytes)
        if sums(by_path()) != sums(full_rate()):
            raise SystemExit("the network does not give the messages of the store")
        reads = (None, by_path, full_rate, partial(full_rate, maxRate=MAX_RATE))
        took = {name: Put() for name in GOALS_OF_PUTS}
        for number in range(self._rounds + 1):
            for figures, read in zip(took.values(), reads, strict=True):
                with reading(read) as times:
                    put(master, PUTS // 2, 1)  # until the tasks have started
                    p50 = put(master, PUTS, 1)["latencies"]["p50"]
                if number:
                    figures.p50.append(p50)
                    figures.read_rates.extend(filled / seconds for seconds in times)
        return took


def put(master: PutNode, count: int, in_flight: int) -> dict[str, Any]:
    """Put, and insist on all being replicated."""
    summary = master.put(count, body_bytes=BODY_BYTES, in_flight=in_flight)
    if summary["statuses"] != {"PUT_OK": count}:
        raise SystemExit(f"not every put was replicated: {summary['statuses']}")
    return summary


@contextmanager
def reading(read: Callable[[], DataFrame] | None) -> Iterator[list[float]]:
    """Read again and again meanwhile, from before the body begins. What each whole read took is known at the end."""
    times: list[float] = []
    if read is None:
        yield times
        return
    begun, ended = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def go_on() -> None:
        try:
            while not ended.is_set():
                started = time.perf_counter()
                rows = read()
                begun.set()
                drop(rows)
                times.append(time.perf_counter() - started)
        except BaseException as error:  # of any kind: it is raised in the thread that waits
            failures.append(error)
            begun.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        begun.wait()
        yield times
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def tell_reads(took: Mapping[str, Read], messages: int) -> None:
    """The lines of the reads."""
    print(f"\nover the network, {LOG_BYTES / 1e9:.2f} GB of messages of {BODY_BYTES} B; µs: processor time a message")
    print(f"  {'':<32} {'s':>8} {'GB/s':>6} {'readers µs':>11} {'nodes µs':>9}")
    seconds = {name: median(read.seconds) for name, read in took.items()}
    for name, read in took.items():
        used = (median(one) / messages * 1e6 for one in (read.readers, read.nodes))
        readers, nodes = used
        print(
            f"  {name:<32} {seconds[name]:>8.2f} {LOG_BYTES / seconds[name] / 1e9:>6.2f} {readers:>11.2f} {nodes:>9.2f}"
        )
    local, one, four = seconds.values()
    for words, ratio, goal in (
        ("1 broker against the local path", local / one, GOAL_OF_LOCAL),
        (f"{BROKERS} brokers against 1", one / four, GOAL_OF_ONE),
    ):
        print(f"  {words}: {ratio:.2f} times the rate, goal >= {goal}{'' if ratio >= goal else '  missed'}", flush=True)


def tell_puts(neighbours: str, took: Mapping[str, Put]) -> None:
    """The lines of the puts."""
    print(f"\nputs of {BODY_BYTES} B on a SYNC_MASTER with a slave, 1 in flight; Spark {neighbours}")
    unread, by_path = median(took["unread"].p50), median(took[BY_PATH].p50)
    for name, each in took.items():
        p50, goal = median(each.p50), GOALS_OF_PUTS[name]
        read = f"read at {median(each.read_rates) / 1e6:.0f} MB/s, " if each.read_rates else ""
        met = "" if goal is None else f", goal <= {goal}{'' if p50 / unread <= goal else '  missed'}"
        times = f"{p50 / unread:.2f} times unread{met}; {p50 / by_path:.2f} times by path"
        print(f"  {name}: {read}p50 {p50 * 1000:.3f} ms, {times}", flush=True)
