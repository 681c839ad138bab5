"""`make bench-store`: puts a second, ours against the Java 4.9.3 store, and how recovery grows with the log.

Puts: one process, no network, ASYNC_FLUSH, files of the default sizes. Both sides make a message, format its four
properties and put it, one after another, while dispatch builds queues and index behind. Ours runs under a real reactor
and puts a few at a turn, as a broker that reads requests does. "together" is what a broker does with a read that brings
32 sends: from the bytes of the requests to those of the log and of the answers. Java's DefaultMessageStore is driven by
one thread and dispatches in another. "with dispatch" counts until dispatch has caught up. "µs" is processor time a
message. They take turns, the best of each counts.

Recovery: opening a store of sparse segments, of 2 GiB and of 20 GiB, from a warm page cache; each segment begins with
records and ends with a blank. After an unclean stop there is the checkpoint that a running store would have written.
"""

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from benchmarks.processor import run_and_time
from benchmarks.resultfile import JSON_HELP, save
from rmqha.settings.settings import make_settings
from rmqha.store.examining import ABORT_FILE
from rmqha.store.message import Message, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.wire.command import RemotingCommand, RequestCode, encode_head
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Host
from rmqha.wire.sends import take
from rmqha.wire.sends.run import AnswerParts, Declined, ITopicRooms, Place, TopicRoom
from tests.interop import rocketmq

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "store"
ROUNDS = 3
OPENINGS = 9
BODY_SIZES = (1024, 100)
WARM_UPS = {1024: 150_000, 100: 300_000}
COUNTS = {1024: 300_000, 100: 600_000}
GOALS = {1024: (0.5, 1.0), 100: (0.2, 0.5)}
"""Of Java's rate with dispatch: what ours is to reach one by one, and together."""
POOL = 4096
TURN_MESSAGES = 64
TOGETHER = 32
QUEUES = 4
SEGMENT_BYTES = 1024 * 1024 * 1024
FILLED_BYTES = 16 * 1024 * 1024
SIZES_GIB = (2, 20)
MIB = 1024 * 1024


@dataclass
class Puts:
    """One run: messages a second while putting, and until dispatch had caught up; how far it was behind then.

    ``processor`` is the processor seconds a message of the whole process, with its start and the warm-up.
    """

    rate: float
    rate_with_dispatch: float
    behind_bytes: int
    catch_up_seconds: float
    processor: float


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
            queue_id=number % QUEUES,
            born_timestamp=int(time.time() * 1000),
            born_host=born_host,
            store_host=store_host,
        )
        number += 1


# -- puts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PutLoad:
    """Bytes of a body, messages before it is measured and then, how many a call puts."""

    body_bytes: int
    warm_up: int
    count: int
    together: int


@implementer(ITopicRooms)
class OneTopic:
    """Every topic takes messages, in four queues."""

    def room_of(self, topic: str) -> TopicRoom | None:
        return TopicRoom.of(topic, QUEUES)


def new_place() -> Place:
    """Where the sends of one client go, without a place in a log yet."""
    host = next(messages(1)).store_host
    answer = AnswerParts.of({"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}, host)
    cluster, most = "CLUSTER\1DefaultCluster", 4 * MIB
    return Place(OneTopic(), answer, cluster, most, most, born_host=host, store_host=host, most=TOGETHER)


def reads(body_bytes: int) -> Iterator[bytes]:
    """The same messages as requests of a producer, so many in each read."""
    frames = []
    for number, message in enumerate(islice(messages(body_bytes), POOL)):
        own = {name: text for name, text in message.properties.items() if name != "CLUSTER"}
        values = (
            "PG",
            message.topic,
            "TBW102",
            4,
            number % QUEUES,
            0,
            message.born_timestamp,
            0,
            format_properties(own),
        )
        fields = dict(zip("abcdefghi", map(str, values), strict=True))
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, ext_fields=fields, body=message.body)
        frames.append(encode_head(request) + message.body)
    return cycle([b"".join(frames[at : at + TOGETHER]) for at in range(0, POOL, TOGETHER)])


class Putting:
    """Puts into a store under the reactor of this process, and prints what ``Puts`` needs."""

    def __init__(self, store: MessageStore, load: "PutLoad", reactor: Any) -> None:
        self._store = store
        self._together = load.together
        self._messages = messages(load.body_bytes)
        self._reads = reads(load.body_bytes)
        self._place = new_place()
        self._warm_up = load.warm_up
        self._count = load.count
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
        put = self._put_one_by_one if self._together == 1 else self._put_together
        for _ in range(count // TURN_MESSAGES):
            put()
            await self._pause(0)

    def _put_one_by_one(self) -> None:
        put = self._store.put_message
        for message in islice(self._messages, TURN_MESSAGES):
            put(message).addCallback(lambda result: result.is_stored or sys.exit("refused"))

    def _put_together(self) -> None:
        puts, place = self._store.puts, self._place
        for _ in range(TURN_MESSAGES // TOGETHER):
            if not puts.begin_run(place):
                sys.exit("refused")
            read = next(self._reads)
            run = take(read, 0, place)
            if run.declined is Declined.SEGMENT:
                self._put_one_by_one()  # the next one begins a segment
            elif run.end != len(read) or puts.put_run(run) is not PutMessageStatus.PUT_OK:
                sys.exit("refused")

    async def _dispatched(self) -> None:
        while self._store.derived.dispatcher.behind_bytes > 0:
            await self._pause(0.001)

    def _pause(self, seconds: float) -> Deferred[None]:
        paused: Deferred[None] = Deferred()
        self._reactor.callLater(seconds, paused.callback, None)
        return paused


def put_ours(store_folder: str, load: PutLoad) -> None:
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
        report = Deferred.fromCoroutine(Putting(store, load, reactor).run())
        report.addCallback(lambda found: print(json.dumps(found), flush=True))
        report.addCallback(lambda _: store.close(flusher))
        report.addCallbacks(lambda _: reactor.stop(), failed)

    reactor.callWhenRunning(begin)
    reactor.run()


def run_puts(command: list[str], body_bytes: int) -> Puts:
    """What the last line that the command prints says."""
    done, used = run_and_time(command)
    count = COUNTS[body_bytes]
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    seconds, catch_up = found["put_seconds"], found["catch_up_seconds"]
    processor = used / (count + WARM_UPS[body_bytes])
    return Puts(count / seconds, count / (seconds + catch_up), found["behind_bytes"], catch_up, processor)


def run_ours(body_bytes: int, together: int) -> Puts:
    """A process of ours on a new store."""
    store = WORK / "ours"
    shutil.rmtree(store, ignore_errors=True)
    words = ("--put", store, body_bytes, WARM_UPS[body_bytes], COUNTS[body_bytes], together)
    puts = run_puts([sys.executable, "-m", "benchmarks.store", *map(str, words)], body_bytes)
    shutil.rmtree(store)
    return puts


def run_java(body_bytes: int) -> Puts:
    """A JVM with the Java store, on a new one."""
    work = WORK / "java"
    shutil.rmtree(work, ignore_errors=True)
    words = (work / "store", rocketmq.free_ports(), body_bytes, WARM_UPS[body_bytes], COUNTS[body_bytes])
    command = rocketmq.java_command(work, rocketmq.BENCHMARK, "rmqha.StoreBench", *words)
    puts = run_puts(command, body_bytes)
    shutil.rmtree(work)
    return puts


def bench_puts(rounds: int) -> dict[str, list[float]]:
    """The table of puts, a line for each size of message and each way. Returns all rounds, in seconds a message."""
    print(f"puts a second, ASYNC_FLUSH, best of {rounds} alternating rounds; behind: at the last put")
    print(f"{'body':>8} {'':>8} {'puts/s':>9} {'with dispatch':>14} {'µs':>6} {'behind MiB':>11} {'caught up in':>13}")
    figures: dict[str, list[float]] = {}
    for body_bytes in BODY_SIZES:
        runs: dict[str, list[Puts]] = {"ours": [], "together": [], "Java": []}
        for _ in range(rounds):
            runs["ours"].append(run_ours(body_bytes, 1))
            runs["together"].append(run_ours(body_bytes, TOGETHER))
            runs["Java"].append(run_java(body_bytes))
        best = {name: max(of_these, key=lambda run: run.rate_with_dispatch) for name, of_these in runs.items()}
        for name, one in best.items():
            print(
                f"{body_bytes:>6} B {name:>8} {one.rate:>9.0f} {one.rate_with_dispatch:>14.0f} "
                f"{min(run.processor for run in runs[name]) * 1e6:>6.1f} "
                f"{one.behind_bytes / MIB:>11.1f} {one.catch_up_seconds:>11.3f} s"
            )
            figures[f"{name} {body_bytes} B: a put with dispatch"] = [1 / run.rate_with_dispatch for run in runs[name]]
            figures[f"{name} {body_bytes} B: processor"] = [run.processor for run in runs[name]]
        for name, goal in zip(("ours", "together"), GOALS[body_bytes], strict=True):
            ratio = best[name].rate_with_dispatch / best["Java"].rate_with_dispatch
            missed = "" if ratio >= goal else "  missed"
            print(f"{'':>8} {name:>8} ratio with dispatch {ratio:.2f}, goal {goal}{missed}", flush=True)
    return figures


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
    parser.add_argument("--no-recovery", action="store_true", help="only puts")
    parser.add_argument("--json", type=Path, help=JSON_HELP)
    parser.add_argument("--put", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.put:
        put_ours(arguments.put[0], PutLoad(*map(int, arguments.put[1:])))
        return
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java store cannot run here: {problem}")
    WORK.mkdir(parents=True, exist_ok=True)
    figures = bench_puts(arguments.rounds)
    if arguments.json is not None:
        save(arguments.json, figures)
    if not arguments.no_recovery:
        bench_recovery()
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
