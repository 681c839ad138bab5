"""Spark's processes from outside: frozen, looked at, killed and started again. Works on Linux."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from rmqha.pipeline.jobs.origin import archives_in, broker_folder
from tests.freezing import freeze, thaw
from tests.waiting import wait_until

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "stream_into_parquet.py"
FAST_JVM: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For a JVM that soon ends: it compiles quickly rather than well, and takes Spark's classes as they are."""
LOCAL_DRIVER: Final = {
    "spark.driver.extraJavaOptions": FAST_JVM,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Options of a driver that nobody else connects to."""
POLL_SECONDS: Final = 0.005
WORKER: Final = "pyspark.worker"
"""A word of the command that starts one, or the name of a fork that serves as one (``sparkpython``)."""
STEPS: Final = 200
"""Of workers, between two looks at which there are."""
WAIT_SECONDS: Final = 900.0
"""Spark may have to start several times: see TOO_SLOW_FOR_SPARK."""
TOO_SLOW_FOR_SPARK: Final = "Python worker failed to connect back"
"""What Spark says as it ends a query because a process of Python took more than 10 s to start; no option changes it."""


look_often_until = partial(wait_until, seconds=WAIT_SECONDS, interval=POLL_SECONDS)
"""A moment of work is short."""


def _text_of(path: Path) -> str:
    """A file's of a process that may be gone, and then has none."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stat_of(pid: int) -> list[str]:
    """State, parent, process group, session and so on, as proc(5) has them from the third field on; X if it is gone."""
    return _text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() or ["X", "0", "0", "0"]


def is_alive(pid: int) -> bool:
    """Whether it is there, and not only its exit status."""
    return stat_of(pid)[0] not in "XZ"


def open_files(pid: int) -> list[str]:
    """The paths of the files that it has open; none if it is gone."""
    paths = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                paths.append(os.readlink(entry))
    return paths


def descendants(pid: int) -> list[int]:
    """The processes that it started, and those that they did."""
    found = [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in _text_of(path).split()]
    return found + [one for child in found for one in descendants(child)]


def _is_worker(pid: int) -> bool:
    process = Path(f"/proc/{pid}")
    return WORKER in [*_text_of(process / "cmdline").split("\0"), _text_of(process / "comm").strip()]


def spark_workers(pid: int) -> list[int]:
    """The Python processes below this one that run Spark's tasks, and what forks them."""
    return [child for child in descendants(pid) if _is_worker(child)]


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """A signal for processes of which some may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Stage(Enum):
    """How far a batch of the archive has come: its end is noted; a file is being written, staged, in a manifest."""

    NOTED = "noted"
    WRITTEN = "written"
    STAGED = "staged"
    COMMITTED = "committed"


class StreamProcess:
    """``examples/stream_into_parquet.py --follow`` by spark-submit: the JVM, its driver and its workers.

    A context manager: leaving it kills what still runs.
    """

    def __init__(self, work: Path, store: Path | str, lake: Path, interval: str = "100 milliseconds") -> None:
        """``store`` may be an address of brokers."""
        self.lake = lake
        self._checkpoint = lake.with_name(f"{lake.name}.checkpoint")
        self._log_path = work / "stream.log"
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        conf = {
            **LOCAL_DRIVER,
            "spark.local.dir": str(work / "spark"),
            "spark.log.level": "ERROR",
        }
        self._command = [
            str(Path(sys.executable).with_name("spark-submit")),
            "--master=local[2,4]",  # a task is tried four times
            *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
            *(str(EXAMPLE), str(store), str(lake), "--follow", interval),
        ]

    def start(self) -> Self:
        """Start it, on its checkpoint if there is one."""
        with self._log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )
        return self

    @property
    def pid(self) -> int:
        """The JVM, which leads the session."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the JVM is there, which ends when the query fails."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        """What it printed last."""
        return self._log()[-5000:]

    def _log(self) -> str:
        """What it printed since its last start."""
        return self._log_path.read_bytes()[self._log_start :].decode("utf-8", "replace")

    def keep_running(self) -> None:
        """It must run. If it has ended because the machine was too slow for Spark, start it again, as after a kill."""
        if not self.is_running:
            assert TOO_SLOW_FOR_SPARK in self._log(), self.log_tail()
            self.kill()
            self.start()

    def kill(self) -> None:
        """SIGKILL for all its processes, and wait for their end."""
        if self._process is None:
            return
        look_often_until(self._are_all_dead, "all processes of the stream to end")
        self._process.wait()

    def _are_all_dead(self) -> bool:
        pids = self._pids()
        signal_all(pids, signal.SIGKILL)
        return not pids

    def _pids(self) -> list[int]:
        """Its processes; Spark's workers leave the process group, but not the session."""
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [pid for pid in pids if stat_of(pid)[3] == str(self.pid) and is_alive(pid)]

    def wait_for_batch(self) -> None:
        """Wait until Spark has noted as done what it has begun."""
        look_often_until(lambda: not self._batch_ends(), "the batch to be done")

    def kill_in_a_batch(self, stage: Stage) -> None:
        """The same when a batch has come to this stage, before it is done."""
        look_often_until(lambda: self._is_frozen_at(stage), f"a batch at the stage {stage.name}")
        self.kill()

    def _is_frozen_at(self, stage: Stage) -> bool:
        """Whether the processes are frozen now, because a batch has come so far and is not done."""
        self.keep_running()
        if not self._is_at(stage):
            return False
        pids = self._pids()
        freeze(*pids)
        if self._batch_ends():
            return True
        thaw(*pids)
        return False

    def _is_at(self, stage: Stage) -> bool:
        ends = self._batch_ends()
        if stage is Stage.WRITTEN:
            return bool(self._files("tmp")) and bool(ends)
        if stage is Stage.STAGED:
            return bool(self._files("staged")) and bool(ends)
        if stage is Stage.COMMITTED:
            covered = {one.root: one.covered() for one in archives_in(self.lake)}
            return any(found and end.get(root, 0) <= found[-1][1] for end in ends for root, found in covered.items())
        return bool(ends)

    def _batch_ends(self) -> list[dict[Path, int]]:
        """Up to where in the log of each archive batches reach that Spark has noted, but not yet as done."""
        noted = {path.name: path for path in (self._checkpoint / "offsets").glob("[0-9]*")}
        done = {path.name for path in (self._checkpoint / "commits").glob("[0-9]*")}
        last_lines = [noted[name].read_text().splitlines()[-1] for name in noted.keys() - done]
        return [self._ends_of(json.loads(line)) for line in last_lines]

    def _ends_of(self, offset: dict[str, Any]) -> dict[Path, int]:
        """The ends of one batch; over the network its offset has one for each broker."""
        if "offset" in offset:
            return {self.lake: offset["offset"]}
        return {broker_folder(self.lake, name): json.loads(text)["offset"] for name, text in offset.items()}

    def _files(self, kind: str) -> list[Path]:
        return list(self.lake.rglob(f".*.parquet.{kind}"))

    def kill_writing_worker(self) -> int:
        """SIGKILL a worker in the middle of a Parquet file, and nothing else; gives its process id.

        Workers run step by step meanwhile: a file is written in a few milliseconds.
        """
        killed: list[int] = []

        def has_killed() -> bool:
            self.keep_running()
            workers = spark_workers(self.pid)
            for _ in range(STEPS):
                if killed or not self._batch_ends():
                    break
                killed.extend(self._kill_one_that_writes(workers))
            return bool(killed)

        look_often_until(has_killed, "a worker that writes")
        look_often_until(lambda: not is_alive(killed[0]), "the worker to end")
        return killed[0]

    def _kill_one_that_writes(self, workers: list[int]) -> list[int]:
        """The worker that was killed, if one has a file begun."""
        freeze(*workers)
        killed = [pid for pid in workers if any(path.endswith(".parquet.tmp") for path in open_files(pid))][:1]
        signal_all(killed, signal.SIGKILL)
        thaw(*workers)
        return killed

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
