"""What honest clients and the machine notice of an attack: latencies, processor time, memory."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rmqha.acl.signing import Credentials
from rmqha.testing.nodes import TwistdNode
from tests.waiting import WAIT_SECONDS

MIB = 1024 * 1024
SAMPLE_SECONDS = 0.02
TICKS = os.sysconf("SC_CLK_TCK")
SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Latencies:
    """In milliseconds; 0 of nothing."""

    count: int
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Self:
        """Of these times in seconds."""
        ordered = sorted(seconds) or [0.0]
        at = [ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000 for part in (0.5, 0.99)]
        return cls(len(seconds), at[0], at[1], ordered[-1] * 1000)

    def __str__(self) -> str:
        return f"{self.p50:7.1f} {self.p99:7.1f} {self.longest:7.1f}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one attack: how long it and the node's processor took, what it answered, memory gained at the most."""

    name: str
    seconds: float
    cpu_seconds: float
    memory_mib: float
    puts: Latencies
    pings: Latencies
    control: Latencies
    """Of the same requests at the same time to a node that nobody attacks: what the machine costs."""
    outcome: str

    HEAD = (
        f"{'attack':34} {'s':>6} {'cpu s':>6} {'MiB':>6} | {'put p50':>7} {'p99':>7} {'max':>7} |"
        f" {'turn p50':>7} {'p99':>7} {'max':>7} | {'control p50':>7} {'p99':>7} {'max':>7} | outcome"
    )

    def __str__(self) -> str:
        return (
            f"{self.name:34} {self.seconds:6.2f} {self.cpu_seconds:6.2f} {self.memory_mib:6.0f} | {self.puts} |"
            f" {self.pings} |     {self.control} | {self.outcome}"
        )


Attack = Callable[[], str]
"""Attacks; gives what came of it, in a few words."""


class Probe:
    """Watches a node. A context manager: inside an honest producer is at work."""

    def __init__(
        self,
        node: TwistdNode,
        purpose: str = "remoting",
        only_pings: bool = False,
        control: Self | None = None,
        keys: Credentials | None = None,
        least_seconds: float = 1.0,
    ) -> None:
        """``control`` watches a node that is not attacked. ``keys`` sign the honest producer's requests. An attack is
        watched for ``least_seconds`` at least.
        """
        self._least_seconds = least_seconds
        self._environment = dict(os.environ)
        if keys is not None:
            self._environment |= {"RMQHA_ACCESS_KEY": keys.access_key, "RMQHA_SECRET_KEY": keys.secret_key}
        self._node = node
        self._control = control
        self._asks_for = "ping" if only_pings else "put"
        self._options = ["--only-pings"] if only_pings else []
        self._address = f"127.0.0.1:{node.port(purpose)}"
        self._answers: list[tuple[str, float, float]] = []
        self._errors: list[str] = []

    def __enter__(self) -> Self:
        self._honest = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.honest", self._address, *self._options],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        assert self._honest.stdout is not None
        line = self._honest.stdout.readline()
        assert line == "ready\n", f"the honest producer cannot work: {line}"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._honest.stdout is not None
        for line in self._honest.stdout:
            what, *numbers = line.split(maxsplit=2)
            if what == "failed":
                self._errors.append(line)
                return
            self._answers.append((what, float(numbers[0]), float(numbers[1])))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._honest.stdin is not None
        self._honest.stdin.close()
        self._honest.wait(timeout=WAIT_SECONDS)
        self._reader.join()
        if error is None:
            assert not self._errors, f"the honest producer was hurt: {self._errors}"

    def watch(self, name: str, attack: Attack) -> Figures:
        """The figures of an attack; what it costs after its end, too, for a moment."""
        begun, cpu, memory = time.monotonic(), self.cpu_seconds(), self.memory_mib()
        most = [memory]
        over = threading.Event()

        def sample() -> None:
            while not over.wait(SAMPLE_SECONDS):
                most[0] = max(most[0], self.memory_mib())

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        outcome = attack()
        seconds = time.monotonic() - begun
        time.sleep(max(SETTLE_SECONDS, self._least_seconds - seconds))  # what is left of the attack tells no end
        self._wait_for_answer_after(time.monotonic())
        over.set()
        sampler.join()
        ended = time.monotonic()
        return Figures(
            name,
            seconds,
            self.cpu_seconds() - cpu,
            most[0] - memory,
            self.latencies("put", begun, ended),
            self.latencies("ping", begun, ended),
            Latencies.of([]) if self._control is None else self._control.latencies(self._asks_for, begun, ended),
            outcome,
        )

    def latencies(self, kind: str, begun: float, ended: float) -> Latencies:
        """Of the puts or pings that were asked in that time, by the machine's monotonic clock in seconds."""
        return Latencies.of([took for what, at, took in list(self._answers) if what == kind and begun <= at <= ended])

    def _wait_for_answer_after(self, at: float) -> None:
        """Until the honest producer has an answer to something it asked after that."""
        while not self._errors and (not self._answers or self._answers[-1][1] < at):
            assert self._honest.poll() is None, "the honest producer is gone"
            time.sleep(0.01)

    def cpu_seconds(self) -> float:
        """Processor time of the node so far."""
        fields = Path(f"/proc/{self._node.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self) -> float:
        """Anonymous memory of the node."""
        status = Path(f"/proc/{self._node.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024
