"""`make bench-store`: puts a second, ours against the Java 4.9.3 store, and how recovery grows with the log.

Puts: one process, no network, ASYNC_FLUSH, files of the default sizes. Both sides make a message, format its four
properties and put it, one after another, while dispatch builds queues and index behind. Ours runs under a real reactor
and puts a few at a turn, as a broker that reads requests does; Java's DefaultMessageStore is driven by one thread and
dispatches in another. "with dispatch" counts until dispatch has caught up. They take turns, the best of each counts.

Recovery: opening a store of sparse segments, of 2 GiB and of 20 GiB, from a warm page cache; each segment begins with
records and ends with a blank. After an unclean stop there is the checkpoint that a running store would have written.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from rmqha.settings import make_settings
from rmqha.store.message import Message
from rmqha.store.messagestore import ABORT_FILE, MessageStore
from rmqha.wire.record import Host
from tests.interop import rocketmq

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "store"
ROUNDS = 3
OPENINGS = 9
BODY_SIZES = (1024, 100)
WARM_UPS = {1024: 150_000, 100: 300_000}
COUNTS = {1024: 300_000, 100: 600_000}
GOAL_RATE = 120_000
GOAL_RATIO = 1.5
POOL = 4096
TURN_MESSAGES = 64
SEGMENT_BYTES = 1024 * 1024 * 1024
FILLED_BYTES = 16 * 1024 * 1024
SIZES_GIB = (2, 20)
MIB = 1024 * 1024


@dataclass
class Puts:
    """One run: messages a second while putting, and until dispatch had caught up; how far it was behind then."""

    rate: float
    rate_with_dispatch: float
    behind_bytes: int
    catch_up_seconds: float


def messages(body_bytes: int) -> Iterator[Message]:
    """Messages as a broker makes them of requests, with keys, client id, cluster and tag."""
    rng = random.Random(1)
    bodies = [rng.randbytes(body_bytes) for _ in range(16)]
    properties = [
        {
            "KEYS": f"k{number}",
            "UNIQ_KEY": f"7F00000151595FFD2B27663426{number:06X}",
            "CLUSTER": "DefaultCluster",
            "TAGS": f"Tag{'ABCD'[number % 4]}",
        }
        for number in range(POOL)
    ]
    born_host, store_host = Host(b"\x7f\0\0\x01", 50_000), Host(b"\x7f\0\0\x01", 10_911)
    number = 0
    while True:
        yield Message(
            topic="BenchTopic",
            body=bodies[number % 16],
            properties=properties[number % POOL],
            queue_id=number % 4,
            born_timestamp=int(time.time() * 1000),
            born_host=born_host,
            store_host=store_host,
        )
        number += 1


# -- puts ----------------------------------------------------------------------------------------------------


class Putting:
    """Puts into a store under the reactor of this process, and prints what ``Puts`` needs."""

    def __init__(self, store: MessageStore, body_bytes: int, warm_up: int, count: int, reactor: Any) -> None:
        self._store = store
        self._messages = messages(body_bytes)
        self._warm_up = warm_up
        self._count = count
        self._reactor = reactor

    async def run(self) -> dict[str, float]:
        """Put, and wait until dispatch is done."""
        await self._put(self._warm_up)
        await self._dispatched()
        start = time.perf_counter()
        await self._put(self._count)
        put = time.perf_counter()
        behind = self._store.derived.dispatcher.behind_bytes
        await self._dispatched()
        return {
            "put_seconds": put - start,
            "behind_bytes": behind,
            "catch_up_seconds": time.perf_counter() - put,
        }

    async def _put(self, count: int) -> None:
        put = self._store.put_message
        for _ in range(count // TURN_MESSAGES):
            for _, message in zip(range(TURN_MESSAGES), self._messages, strict=False):
                put(message).addCallback(lambda result: result.is_stored or sys.exit("refused"))
            await self._pause(0)

    async def _dispatched(self) -> None:
        while self._store.derived.dispatcher.behind_bytes > 0:
            await self._pause(0.001)

    def _pause(self, seconds: float) -> Deferred[None]:
        paused: Deferred[None] = Deferred()
        self._reactor.callLater(seconds, paused.callback, None)
        return paused


def put_ours(store_folder: str, body_bytes: int, warm_up: int, count: int) -> None:
    """The process that puts: prints its report as JSON."""
    from twisted.internet import reactor as installed_reactor
    from twisted.internet.threads import deferToThread

    reactor: Any = installed_reactor
    store = MessageStore(make_settings({"storePathRootDir": store_folder}))

    def failed(failure: Failure) -> None:
        failure.printTraceback(sys.stderr)
        reactor.stop()

    def begin() -> None:
        flusher = store.start_flushing(reactor, deferToThread, failed)
        store.start_dispatching(reactor, failed)
        report = Deferred.fromCoroutine(Putting(store, body_bytes, warm_up, count, reactor).run())
        report.addCallback(lambda found: print(json.dumps(found), flush=True))
        report.addCallback(lambda _: store.close(flusher))
        report.addCallbacks(lambda _: reactor.stop(), failed)

    reactor.callWhenRunning(begin)
    reactor.run()


def run_puts(command: list[str], count: int) -> Puts:
    """What the last line that the command prints says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    seconds, catch_up = found["put_seconds"], found["catch_up_seconds"]
    return Puts(count / seconds, count / (seconds + catch_up), found["behind_bytes"], catch_up)


def run_ours(body_bytes: int) -> Puts:
    """A process of ours on a new store."""
    store = WORK / "ours"
    shutil.rmtree(store, ignore_errors=True)
    count = COUNTS[body_bytes]
    words = ("--put", store, body_bytes, WARM_UPS[body_bytes], count)
    puts = run_puts([sys.executable, "-m", "benchmarks.store", *map(str, words)], count)
    shutil.rmtree(store)
    return puts


def run_java(body_bytes: int) -> Puts:
    """A JVM with the Java store, on a new one."""
    work = WORK / "java"
    shutil.rmtree(work, ignore_errors=True)
    count = COUNTS[body_bytes]
    words = (work / "store", rocketmq.free_ports(), body_bytes, WARM_UPS[body_bytes], count)
    command = rocketmq.java_command(work, rocketmq.BENCHMARK, "rmqha.StoreBench", *words)
    puts = run_puts(command, count)
    shutil.rmtree(work)
    return puts


def bench_puts(rounds: int) -> None:
    """The table of puts, a line for each size of message."""
    print(f"puts a second, ASYNC_FLUSH, best of {rounds} alternating rounds; behind: at the last put")
    print(f"{'body':>8} {'':>5} {'puts/s':>9} {'with dispatch':>14} {'behind MiB':>11} {'caught up in':>13}")
    for body_bytes in BODY_SIZES:
        ours, java = [], []
        for _ in range(rounds):
            ours.append(run_ours(body_bytes))
            java.append(run_java(body_bytes))
        best_ours, best_java = (max(runs, key=lambda run: run.rate_with_dispatch) for runs in (ours, java))
        for name, best in (("ours", best_ours), ("Java", best_java)):
            print(
                f"{body_bytes:>6} B {name:>5} {best.rate:>9.0f} {best.rate_with_dispatch:>14.0f} "
                f"{best.behind_bytes / MIB:>11.1f} {best.catch_up_seconds:>11.3f} s"
            )
        ratio = best_ours.rate_with_dispatch / best_java.rate_with_dispatch
        goal = f"; goals {GOAL_RATE} and {GOAL_RATIO}" if body_bytes == BODY_SIZES[0] else ""
        print(f"{'':>8} ratio {best_ours.rate / best_java.rate:.2f}, with dispatch {ratio:.2f}{goal}")
        sys.stdout.flush()


# -- recovery ------------------------------------------------------------------------------------------------


def build_sparse(folder: Path, full_segments: int) -> None:
    """A store of so many full segments and one more, closed cleanly; its last segment is younger than the others."""
    clock = Clock()
    settings = make_settings({"storePathRootDir": str(folder), "mappedFileSizeCommitLog": str(SEGMENT_BYTES)})
    store = MessageStore(settings)
    flusher = store.start_flushing(clock, execute, Failure.raiseException)
    source = messages(1024)
    for segment in range(full_segments + 1):
        if segment == full_segments:
            time.sleep(3.5)  # longer than recovery's margin: a checkpoint would vouch for all before
        while store.commit_log.max_offset % SEGMENT_BYTES < FILLED_BYTES:
            store.put_message(next(source))
        if segment < full_segments:
            store.commit_log.roll()
        store.derived.dispatcher.catch_up()
        flusher.flush()
    store.close(flusher).addErrback(Failure.raiseException)


def open_seconds(folder: Path, unclean: bool) -> float:
    """The time that opening took."""
    if unclean:
        (folder / ABORT_FILE).touch()
    start = time.perf_counter()
    store = MessageStore(make_settings({"storePathRootDir": str(folder)}))
    seconds = time.perf_counter() - start
    assert store.recovery.clean_stop != unclean
    store.close().addErrback(Failure.raiseException)
    return seconds


def bench_recovery() -> None:
    """The table of recovery, a line for each kind of stop."""
    folders = {size: WORK / str(size) for size in SIZES_GIB}
    for size, folder in folders.items():
        build_sparse(folder, size)
    small, large = SIZES_GIB
    print(
        f"\nopening a store of sparse segments, {FILLED_BYTES // MIB} MiB of records in each, "
        f"best of {OPENINGS} alternating"
    )
    print(f"{'stop':>10} {f'{small} GiB':>10} {f'{large} GiB':>10} {'ratio':>7} {'goal':>10}")
    for unclean in (False, True):
        turns = [[open_seconds(folder, unclean) for folder in folders.values()] for _ in range(OPENINGS)]
        least, most = (min(times) for times in zip(*turns, strict=True))
        name = "unclean" if unclean else "clean"
        print(f"{name:>10} {least:>8.3f} s {most:>8.3f} s {most / least:>7.2f} {'about 1':>10}")


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each side")
    parser.add_argument("--put", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.put:
        put_ours(arguments.put[0], *map(int, arguments.put[1:]))
        return
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java store cannot run here: {problem}")
    WORK.mkdir(parents=True, exist_ok=True)
    bench_puts(arguments.rounds)
    bench_recovery()
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
