"""`make bench-start`: how long a node takes to start and to stop, in one run.

Starts: the processor time of nodes with an empty store until their ports are open, their memory beside their stores'
pages, and the processor time of commands that do nothing. Medians.
Queues: a store of many consume queues with one message each, opened and closed after a clean and an unclean stop, out
of a cold page cache; how much of its files is in the page cache afterwards. Dispatch: a log of small messages without
queues and index. Signals: from the signal to the process's end while that log is proved, and while it is dispatched.
"""

import argparse
import ctypes
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from benchmarks.catchup import memory_beside_store
from benchmarks.processor import processor_seconds, run_and_time
from rmqha.settings.settings import Settings, make_settings
from rmqha.store.derived.dispatch import SLICE_SECONDS
from rmqha.store.log.mappedfile import file_name
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodefacts import OpeningPhase
from rmqha.store.nodestate import NodeState
from rmqha.store.opening import Opening
from rmqha.store.retention import Retention
from rmqha.testing.nodes import NodeError, TwistdNode
from rmqha.testing.records import make_record
from rmqha.wire.record import END_FILE_MIN_BLANK_LENGTH, encode_blank, encode_record

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "start"
SEGMENT_BYTES = 1 << 30
MIB = 1 << 20
RECORDS_AT_ONCE = 1 << 16
FIRST_NUMBER = 10_000_000
BODY = b"b" * 100
SIGNALS = (signal.SIGTERM, signal.SIGINT)
NODES = {
    "a master": ["--role=sync-master", "--port=0"],
    "a slave": ["--role=slave", "--port=0", "--master=127.0.0.1:1"],
    "a member of a failover cluster": ["--failover=witness:127.0.0.1:1", "--port=0", "--name=broker-a"],
}
COMMANDS = ("--version", "--help", "status --help", "verify --help", "put --help", "doctor --help")


class Timed(Opening):
    """Notes when dispatch was first told of."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatching_since: float | None = None

    def reached(self, phase: OpeningPhase, offset: int, end: int) -> None:
        if phase is OpeningPhase.DISPATCHING and self.dispatching_since is None:
            self.dispatching_since = time.perf_counter()
        super().reached(phase, offset, end)


def settings_of(store: Path, role: str = "ASYNC_MASTER") -> Settings:
    return make_settings({"storePathRootDir": str(store), "brokerRole": role})


def write_queues(store: Path, queues: int) -> None:
    """A log with one message for each queue of a topic."""
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    content = bytearray()
    for queue_id in range(queues):
        record = replace(make_record(queue_id, b"b" * 100), queue_id=queue_id, queue_offset=0)
        content += encode_record(replace(record, physical_offset=len(content)))
    write_segment(folder / file_name(0), bytes(content))


def write_segment(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.truncate(SEGMENT_BYTES)


def write_messages(store: Path, total_bytes: int) -> int:
    """A log of about so many bytes of messages with bodies of 100 bytes, in four queues; gives how many there are."""
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    pattern = np.frombuffer(encode_record(make_record(FIRST_NUMBER, b"b" * 100)), np.uint8)
    size, number, base = len(pattern), 0, 0
    key_at = pattern.tobytes().index(str(FIRST_NUMBER).encode())
    while base < total_bytes:
        room = min(SEGMENT_BYTES, total_bytes - base)
        count = (room - END_FILE_MIN_BLANK_LENGTH) // size
        with (folder / file_name(base)).open("wb") as file:
            for first in range(0, count, RECORDS_AT_ONCE):
                rows = np.tile(pattern, (min(RECORDS_AT_ONCE, count - first), 1))
                numbers = number + first + np.arange(len(rows))
                put_field(rows, 12, (numbers % 4).astype(">i4"))
                put_field(rows, 20, (numbers // 4).astype(">i8"))
                put_field(rows, 28, (base + (first + np.arange(len(rows))) * size).astype(">i8"))
                rows[:, key_at : key_at + 8] = (FIRST_NUMBER + numbers).astype("S8").view(np.uint8).reshape(-1, 8)
                file.write(rows.tobytes())
            if base + SEGMENT_BYTES < total_bytes:
                file.write(encode_blank(SEGMENT_BYTES - count * size))
            file.truncate(SEGMENT_BYTES)
        number, base = number + count, base + SEGMENT_BYTES
    return number


def put_field(rows: npt.NDArray[np.uint8], at: int, values: npt.NDArray[Any]) -> None:
    width = values.dtype.itemsize
    rows[:, at : at + width] = values.view(np.uint8).reshape(-1, width)


def files_of(store: Path) -> Iterator[Path]:
    return (path for name in ("consumequeue", "index") for path in (store / name).rglob("*") if path.is_file())


def cool(store: Path) -> None:
    """Take queues and index out of the page cache."""
    os.sync()
    for path in files_of(store):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def cached_bytes(store: Path) -> int:
    """How much of queues and index the page cache has."""
    libc, pages = ctypes.CDLL(None, use_errno=True), 0
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    for path in files_of(store):
        size = path.stat().st_size
        if not size:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as view:
            seen = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
            begin = ctypes.c_char.from_buffer(view)
            libc.mincore(ctypes.addressof(begin), size, seen)
            pages += sum(byte & 1 for byte in seen.raw) if any(seen.raw) else 0
            del begin
    return pages * mmap.PAGESIZE


def child(command: str, store: Path) -> dict[str, float]:
    """Run one part in a process of its own: its numbers."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.start", command, str(store)], cwd=PROJECT, stdout=subprocess.PIPE, check=True
    )
    numbers: dict[str, float] = json.loads(ran.stdout)
    return numbers


def open_and_close(store: Path) -> dict[str, float]:
    """Seconds, of the wall's clock and the processor's, to open a master's store and to close it."""
    opening = Timed()
    wall, cpu = time.perf_counter(), time.process_time()
    opened = MessageStore(settings_of(store), opening)
    opened_wall, opened_cpu = time.perf_counter(), time.process_time()
    closed: Deferred[None] = opened.close()
    assert closed.called, "nothing is being flushed"
    since = opening.dispatching_since
    return {
        "open": opened_wall - wall,
        "open_cpu": opened_cpu - cpu,
        "close": time.perf_counter() - opened_wall,
        "close_cpu": time.process_time() - opened_cpu,
        "dispatch": opened_wall - since if since is not None else 0.0,
    }


def put_everywhere(store: Path) -> dict[str, float]:
    """The longest of each of the turns that a message to each of very many queues takes, in seconds."""
    opened = MessageStore(settings_of(store))
    dispatcher, keys = opened.derived.dispatcher, list(opened.derived.queues.queues)
    clock = Clock()
    opened.start_flushing(clock, lambda call: succeed(call()), lambda failure: failure.printTraceback())
    longest: dict[str, float] = {}

    def timed(name: str, call: Callable[[], object]) -> None:
        began = time.perf_counter()
        call()
        longest[name] = max(longest.get(name, 0.0), time.perf_counter() - began)

    for topic, queue_id in keys:
        message = Message(topic, BODY, queue_id=queue_id)
        timed("put", partial(opened.put_message, message))
    run_slice = dispatcher.run_slice
    dispatcher.run_slice = lambda deadline=None: timed("dispatch", partial(run_slice, deadline))  # type: ignore[method-assign]
    opened.start_dispatching(clock, lambda failure: failure.printTraceback())
    while dispatcher.behind_bytes:
        clock.advance(SLICE_SECONDS)
    timed("begin of a flush", opened.take_unflushed)
    log, derived = opened.commit_log, opened.derived
    timed("queues' share of retention", Retention(log, derived.queues, derived.index, opened.settings).delete_derived)
    timed("state file", lambda: opened.node_state.write(opened.root))
    opened.close()
    return longest


def follow(store: Path) -> dict[str, float]:
    """Seconds in which a slave's reactor dispatches all there is, and the longest of its turns."""
    from twisted.internet import reactor

    opened = MessageStore(settings_of(store, "SLAVE"))
    dispatcher = opened.derived.dispatcher
    wall, cpu, longest, longest_cpu = time.perf_counter(), time.process_time(), 0.0, 0.0
    run_slice = dispatcher.run_slice

    def run(deadline: float | None = None) -> None:
        nonlocal longest, longest_cpu
        began, began_cpu = time.perf_counter(), time.process_time()
        run_slice(deadline)
        longest = max(longest, time.perf_counter() - began)
        longest_cpu = max(longest_cpu, time.process_time() - began_cpu)
        if not dispatcher.behind_bytes:
            reactor.callLater(0, reactor.stop)

    dispatcher.run_slice = run  # type: ignore[method-assign]
    opened.start_dispatching(reactor, lambda failure: failure.printTraceback())
    reactor.run()
    done = {"dispatch": time.perf_counter() - wall, "dispatch_cpu": time.process_time() - cpu}
    done |= {"turn": longest, "turn_cpu": longest_cpu}
    opened.close()
    return done


def bench_starts(starts: int) -> None:
    for what, options in NODES.items():
        seconds, memory = [], []
        for _ in range(starts):
            with TwistdNode(WORK, options) as node:
                node.port("fast remoting")
                seconds.append(processor_seconds(node.pid))
                memory.append(memory_beside_store(node.pid, WORK))
            shutil.rmtree(node.store)
        print(f"{what} starts in {median(seconds):.2f} s of the processor, and has {median(memory):.1f} MiB")
    rmqha = str(Path(sys.executable).with_name("rmqha"))
    for words in COMMANDS:
        took = median(run_and_time([rmqha, *words.split()])[1] for _ in range(starts))
        print(f"rmqha {words}: {took:.2f} s of the processor")


def bench_queues(queues: int) -> None:
    store = WORK / "queues"
    write_queues(store, queues)
    child("open", store)
    for stop in ("clean", "unclean"):
        if stop == "unclean":
            (store / "abort").touch()
        cool(store)
        found = child("open", store)
        cached = cached_bytes(store) / MIB
        print(
            f"{queues} queues after a {stop} stop: open {found['open']:.2f} s (processor {found['open_cpu']:.2f}), "
            f"close {found['close']:.2f} s (processor {found['close_cpu']:.2f}), {cached:.0f} MiB in the page cache"
        )
    turns = child("put", store)
    print("  longest turns of the reactor:", ", ".join(f"{what} {1000 * took:.0f} ms" for what, took in turns.items()))
    shutil.rmtree(store)


def bench_dispatch(log_bytes: int) -> None:
    store = WORK / "log"
    count = write_messages(store, log_bytes)
    os.sync()
    print(f"{log_bytes / MIB:.0f} MiB of log, {count} messages with bodies of 100 bytes, no queues and no index:")
    found = child("open", store)
    print(
        f"  a master dispatches it in {found['dispatch']:.2f} s; open {found['open']:.2f} s (processor "
        f"{found['open_cpu']:.2f}), proving the log included"
    )
    forget_derived(store)
    found = child("follow", store)
    print(
        f"  a slave dispatches it in {found['dispatch']:.2f} s (processor {found['dispatch_cpu']:.2f}), "
        f"its longest turn of the reactor {1000 * found['turn']:.0f} ms (processor {1000 * found['turn_cpu']:.0f})"
    )
    for number in SIGNALS:
        for phase in OpeningPhase:
            forget_derived(store)
            state = NodeState.read(store) or NodeState.new()
            replace(state, state="STOPPED").write(store)  # else the last run's phase is taken for this one's
            print(f"  {number.name} while {phase.value}: {end_by(store, number, phase)}")
    shutil.rmtree(store)


def forget_derived(store: Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    os.sync()  # else the kernel holds up writers until it has written what the benchmark itself made


def end_by(store: Path, number: signal.Signals, phase: OpeningPhase) -> str:
    """How long a master takes to end, by a signal that comes in this phase of its start."""
    with TwistdNode(WORK, ["--role=async-master", "--port=0"], store=store, name=f"{number.name}-{phase.name}") as node:
        try:
            node.wait_for_state(lambda state: state.state == phase.name, phase.value, 20)
        except NodeError as error:
            return f"not seen: {str(error).splitlines()[0]}"
        sent = time.perf_counter()
        os.kill(node.pid, number)
        status = node.wait()
        return f"ended in {time.perf_counter() - sent:.2f} s with status {status}"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", choices=("open", "put", "follow"), help=argparse.SUPPRESS)
    parser.add_argument("store", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--starts", type=int, default=10, help="of each kind of node, with an empty store; 0 for none")
    parser.add_argument("--queues", type=int, default=10_000, help="consume queues, with a message each; 0 for none")
    parser.add_argument("--log-mib", type=int, default=1024, help="size of the log without queues; 0 for none")
    options = parser.parse_args()
    if options.command is not None:
        run = {"open": open_and_close, "put": put_everywhere, "follow": follow}[options.command]
        print(json.dumps(run(options.store)))
        return
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    try:
        if options.starts:
            bench_starts(options.starts)
        if options.queues:
            bench_queues(options.queues)
        if options.log_mib:
            bench_dispatch(options.log_mib * MIB)
    finally:
        shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
