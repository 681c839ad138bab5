"""A Java producer and Java consumers under faults, and the history of what they noted."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.chaos.cluster import CLUSTER
from tests.chaos.history import Change, History, Seen
from tests.interop.rocketmq import ClientsRun, Driver
from tests.waiting import WAIT_SECONDS, wait_until

TOPIC: Final = "TChaos"
QUEUES: Final = 4
ORDERLY, CONCURRENT = "orderly", "concurrent"
ROOMY: Final = ("-Xms256m", "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""A consumer remembers all that it has read."""
PAUSE_MS: Final = 20
POLL_SECONDS: Final = 0.1
FOREVER: Final = {"until": [[[], 1]], "seconds": 10**6}


def now() -> float:
    """The time of all notes."""
    return time.monotonic()


class Notes:
    """Reads the file that clients append to, and remembers when each line was there first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self.seen: dict[str, list[Seen]] = {}

    def read(self) -> None:
        """Read what is new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read()
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        at = now()
        for line in lines:
            client, queue, offset, key = line.decode().split(" ", 3)
            self.seen.setdefault(client, []).append(Seen(key, int(queue), int(offset), at))


class Clients:
    """A producer that starts and stops with each round, and two consumers that read all the time. A context manager."""

    def __init__(self, namesrv: str, work: Path) -> None:
        self._driver = Driver(namesrv, work / "clients", jvm=ROOMY)
        self._stack = ExitStack()
        self._notes: list[Notes] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read_on, daemon=True)
        self._consumers: ClientsRun | None = None
        self._producer: ClientsRun | None = None
        self._rounds = 0
        self.changes: list[Change] = []

    def __enter__(self) -> Self:
        try:
            self._driver.create_topic(CLUSTER, TOPIC, QUEUES)
            self._consumers = self._start(
                {"topics": {TOPIC: QUEUES}, "consumers": [self._consumer(ORDERLY), self._consumer(CONCURRENT)]}
            )
        except BaseException:  # of any kind: what has started must end
            self._stack.close()
            raise
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._reader.join()
        self._stack.close()

    @staticmethod
    def _consumer(kind: str) -> dict[str, Any]:
        return {"name": kind, "group": f"G-{kind}", "topic": TOPIC, "kind": kind}

    def _start(self, plan: dict[str, Any]) -> ClientsRun:
        run = self._stack.enter_context(self._driver.start_clients({**FOREVER, **plan}))
        with self._lock:
            self._notes.append(Notes(run.log))
        return run

    def _read_on(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            self._read()

    def _read(self) -> None:
        with self._lock:
            for notes in self._notes:
                notes.read()

    def start_producer(self) -> None:
        """Send without end: what fails is not sent again."""
        self._rounds += 1
        producer = {
            "name": f"P{self._rounds}",
            "topic": TOPIC,
            "kind": "orderly",
            "count": 0,
            "pause_ms": PAUSE_MS,
            "timeout_ms": 3000,
        }
        self._producer = self._start({"topics": {}, "producers": [producer]})

    def stop_producer(self) -> None:
        """Send no more."""
        assert self._producer is not None, "it was started"
        self._producer.stop()
        self._producer = None

    def promised(self) -> list[Seen]:
        """What was answered with SEND_OK, of all rounds."""
        return self._of(lambda client: client not in (ORDERLY, CONCURRENT))

    def _of(self, wanted: Callable[[str], bool]) -> list[Seen]:
        with self._lock:
            return [
                each for notes in self._notes for client, seen in notes.seen.items() if wanted(client) for each in seen
            ]

    def history(self) -> History:
        """All that was noted up to now."""
        self._read()
        read = {name: self._of(partial(operator.eq, name)) for name in (ORDERLY, CONCURRENT)}
        return History(self.promised(), read, tuple(self.changes), frozenset({CONCURRENT}))

    def wait_for_promises(self, count: int, since: float) -> None:
        """Wait until so many messages were answered with SEND_OK since then."""
        wait_until(
            lambda: sum(each.at >= since for each in self.promised()) >= count,
            f"{count} times SEND_OK",
            interval=2 * POLL_SECONDS,
        )

    def wait_until_read(self, seconds: float = WAIT_SECONDS) -> bool:
        """Wait until every consumer has read all that was promised. False if they do not within this time."""
        try:
            wait_until(lambda: not self.history().missing(), "all to be read", seconds, interval=0.5)
        except AssertionError:
            return False
        return True
