"""`make bench-timers`: what timer messages of RocketMQ 5 cost a master, in one run.

A store gets so many of them, due within a day in any order. Then the service starts, as after a start of the node: how
long it reads until it knows what waits, the longest turn of the reactor, memory, and the index on the disk. At last all
become due: how many it delivers a second.
"""

import argparse
import os
import random
import resource
import shutil
import time
from pathlib import Path

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.broker.background.timerindex import TimerIndex
from rmqha.broker.background.timermessages import TimerMessageService
from rmqha.kit.wallclock import IWallClock
from rmqha.remoting.turns import Turns
from rmqha.settings.settings import make_settings
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.wire.timers import TIMER_TOPIC

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "timers"
BODY = b"b" * 100
DAY_MS = 24 * 3600 * 1000
MIB = 1 << 20
AT_ONCE = 64


@implementer(IWallClock)
class TurnClock(Clock):
    """A clock whose ``advance`` is one turn of a reactor: what is called for now meanwhile waits for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.start_ms = time.time_ns() // 1_000_000
        self.longest = 0.0

    def now_ms(self) -> int:
        return self.start_ms + int(self.seconds() * 1000)

    def advance(self, amount: float = 0.0) -> None:
        begun = time.perf_counter()
        self.rightNow += amount
        for call in [call for call in self.calls if call.getTime() <= self.seconds()]:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)
        self.longest = max(self.longest, time.perf_counter() - begun)


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fill(store: MessageStore, clock: TurnClock, count: int) -> None:
    chance = random.Random(1)
    for first in range(0, count, AT_ONCE):
        for number in range(first, min(first + AT_ONCE, count)):
            due = clock.now_ms() + 10_000 + chance.randrange(DAY_MS)
            properties = {
                "UNIQ_KEY": f"{number:032X}",
                "TIMER_OUT_MS": str(due // 1000 * 1000),
                "REAL_TOPIC": "T",
                "REAL_QID": str(number % 4),
            }
            store.put_message(Message(TIMER_TOPIC, BODY, properties, born_timestamp=clock.now_ms()))
        clock.advance(0.01)
    while store.derived.dispatcher.behind_bytes:
        clock.advance(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    asked = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    clock = TurnClock()
    failures: list[Failure] = []
    for name in ("fsync", "fdatasync"):  # a node flushes in threads, and here they would count as a turn's time
        setattr(os, name, lambda fd: None)
    settings = make_settings({"storePathRootDir": str(WORK), "brokerRole": "ASYNC_MASTER"})
    store = MessageStore(settings)
    flusher = store.start_flushing(clock, execute, failures.append)
    store.start_dispatching(clock, failures.append)
    fill(store, clock, asked.messages)
    before = rss_mib()

    service = TimerMessageService(store, settings, clock, clock, Turns(clock))
    service.startService()
    clock.advance(1.0)
    clock.longest = 0.0
    begun, used = time.perf_counter(), time.process_time()
    while service.waiting < asked.messages:
        clock.advance()
    wall, processor = time.perf_counter() - begun, time.process_time() - used
    print(
        f"read {asked.messages:,} timer messages: {wall:.2f} s, {processor / asked.messages * 1e6:.1f} us of processor "
        f"each, longest turn {clock.longest * 1000:.1f} ms"
    )
    index = index_bytes(service) / MIB
    print(f"memory {before:.0f} MiB before, {rss_mib():.0f} MiB at most; index {index:.1f} MiB on the disk")

    clock.longest = 0.0
    begun, used = time.perf_counter(), time.process_time()
    clock.advance(DAY_MS / 1000 + 20)
    while service.waiting:
        clock.advance(0.001)
    wall, processor = time.perf_counter() - begun, time.process_time() - used
    print(
        f"delivered {asked.messages:,}: {asked.messages / wall:,.0f} a second, "
        f"{processor / asked.messages * 1e6:.1f} us of processor each, longest turn {clock.longest * 1000:.1f} ms; "
        f"memory {rss_mib():.0f} MiB at most"
    )
    service.stopService()
    clock.advance(1.0)
    store.close(flusher)
    clock.advance(1.0)
    assert not failures, failures
    shutil.rmtree(WORK, ignore_errors=True)


def index_bytes(service: TimerMessageService) -> int:
    index = service.index
    assert isinstance(index, TimerIndex), "it has read"
    return index.size_bytes


if __name__ == "__main__":
    main()
