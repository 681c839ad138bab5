"""Runs seeds: ``python -m rmqha.testing.sim --seeds A..B [--jobs N] [--trace]``, or from A on until ctrl-C.

Ends with 1 at the first seed that fails, with the seed and its trace; with 0 and a summary otherwise, after ctrl-C too.
"""

import argparse
import multiprocessing
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from twisted.logger import globalLogBeginner

from rmqha.exitcodes import ExitCode
from rmqha.testing.sim.walk import Outcome, run_seed

SEEDS_AT_ONCE = 25
SECONDS_BETWEEN_LINES = 60.0


def _seeds(text: str) -> Iterable[int]:
    first, dots, end = text.partition("..")
    if not dots:
        return range(int(first), int(first) + 1)
    return range(int(first), int(end) + 1) if end else count(int(first))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rmqha.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default="0..1999", help="A, A..B (both run), or A.. for no end")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--trace", action="store_true", help="show what happened, of every seed")
    return parser.parse_args()


def _prepare() -> None:
    """Log nothing, and leave ctrl-C to the first process."""
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Iterator[Outcome]]:
    if jobs == 1:
        _prepare()
        yield map(run_seed, seeds)
        return
    with multiprocessing.Pool(jobs, _prepare) as pool:
        yield (outcome for several in _batches(seeds, jobs) for outcome in pool.map(run_seed, several, SEEDS_AT_ONCE))


def _batches(seeds: Iterable[int], jobs: int) -> Iterator[list[int]]:
    """Not all at once: the seeds may have no end."""
    batch: list[int] = []
    for seed in seeds:
        batch.append(seed)
        if len(batch) == 8 * jobs * SEEDS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


class Tally:
    """How many seeds have run, and what they did."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._seeds = self._steps = self._puts = self._put_ok = 0

    def add(self, outcome: Outcome) -> None:
        """One more; once a minute it prints a line."""
        self._seeds += 1
        self._steps += len(outcome.trace)
        self._puts += outcome.puts
        self._put_ok += outcome.put_ok
        if time.monotonic() - self._told >= SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            print(self.line(), flush=True)

    def line(self) -> str:
        """The summary."""
        seconds = time.monotonic() - self._began
        return (
            f"{self._seeds} seeds, {self._steps} steps, {self._puts} puts, {self._put_ok} PUT_OK, in {seconds:.1f} s: "
            "no violation"
        )


def main() -> int:
    """Gives the exit code."""
    arguments = _arguments()
    tally = Tally()
    try:
        with _outcomes(arguments.seeds, arguments.jobs) as outcomes:
            for outcome in outcomes:
                if arguments.trace or outcome.violation:
                    print("\n".join(outcome.trace))
                if outcome.violation:
                    print(f"seed {outcome.seed}: {outcome.violation}")
                    return ExitCode.CORRUPT
                tally.add(outcome)
    except KeyboardInterrupt:
        pass
    print(tally.line())
    return ExitCode.FINE
