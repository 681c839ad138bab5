"""The seeded loop: seeds are changed, targets checked, a sample measured."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz import channel, records, texts
from tests.fuzz.measure import calls_of, peak_of
from tests.fuzz.mutation import mutate
from tests.fuzz.target import Broken, Target, require

TARGETS = {
    target.name: target
    for target in (
        channel.TRANSFER,
        channel.REPORT,
        records.RECORD,
        texts.PROPERTIES,
        texts.COMMAND,
        texts.FASTJSON,
    )
}
REGRESSIONS = Path(__file__).parent / "regressions"

SMALL_BYTES = 4096
LARGE_ONE_IN = 16
"""How often a seed larger than that is chosen: most inputs are small, most bytes are large inputs'."""

MEASURED_ONE_IN = 16
CALLS_AT_MOST = 2000
CALLS_PER_BYTE_AT_MOST = 4
PEAK_AT_MOST_BYTES = 128 * 1024
PEAK_PER_BYTE_AT_MOST = 40
HANGS_AFTER_SECONDS = 60.0
"""Far beyond what any input takes, also on a busy machine."""


class Finding(Exception):
    """A target failed on an input; the cause tells how."""

    def __init__(self, target: Target, data: bytes, seed: int) -> None:
        super().__init__(f"{target.name} fails on an input of {len(data)} bytes, seed {seed}")
        self.target = target
        self.data = data

    def save(self, folder: Path) -> Path:
        """Writes the input to a file of its own. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target.name}-{sha256(self.data).hexdigest()[:12]}.bin"
        path.write_bytes(self.data)
        return path


@dataclass
class Tally:
    """What has been done to a target: bytes that its parser read, inputs, seconds."""

    bytes_read: int = 0
    executions: int = 0
    seconds: float = 0.0


class Fuzzer:
    """One target's inputs, one after another: the same for the same seed."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.tally = Tally()
        self._seed = seed
        self._rng = Random(f"{seed} {target.name}")
        self._seeds = target.seeds(self._rng)
        self._small = [data for data in self._seeds if len(data) <= SMALL_BYTES]

    def run(self, bytes_wanted: float, deadline: float = float("inf")) -> None:
        """Goes on until so many bytes have been read in all, or the deadline (of ``time.monotonic``).

        The seeds come first, as they are. Raises Finding.
        """
        start = time.monotonic()
        try:
            with _no_hanging():
                while self.tally.bytes_read < bytes_wanted and time.monotonic() < deadline:
                    self._execute(self._next_input())
        finally:
            self.tally.seconds += time.monotonic() - start

    def _next_input(self) -> bytes:
        if self.tally.executions < len(self._seeds):
            return self._seeds[self.tally.executions]
        seeds = self._seeds if self._rng.randrange(LARGE_ONE_IN) == 0 else self._small
        return mutate(self._rng.choice(seeds), self._rng, self.target.shape, self._seeds)

    def _execute(self, data: bytes) -> None:
        signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_SECONDS)
        try:
            self.tally.bytes_read += self.target.check(data)
            if self.tally.executions % MEASURED_ONE_IN == 0:
                check_measure(self.target, data)
        except Exception as error:  # anything at all is what is looked for
            raise Finding(self.target, data, self._seed) from error
        self.tally.executions += 1


def replay(target: Target, data: bytes) -> None:
    """All that must hold for this input. Raises what the check raises."""
    with _no_hanging():
        target.check(data)
        check_measure(target, data)


def check_measure(target: Target, data: bytes) -> None:
    """Memory and work grow with the bytes that are there, not with what they claim. Raises Broken."""
    peak = peak_of(target.parse, data)
    most = PEAK_AT_MOST_BYTES + PEAK_PER_BYTE_AT_MOST * len(data)
    require(peak <= most, "memory is bounded by the input", peak, most)
    calls = calls_of(target.parse, data)
    most = CALLS_AT_MOST + CALLS_PER_BYTE_AT_MOST * len(data)
    require(calls <= most, "work is bounded by the input", calls, most)


@contextmanager
def _no_hanging() -> Iterator[None]:
    """An input that takes for ever is Broken."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Broken(f"an input takes no longer than {HANGS_AFTER_SECONDS} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
