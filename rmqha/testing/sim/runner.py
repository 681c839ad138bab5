"""Runs seeds: ``python -m rmqha.testing.sim --seeds A..B [--story NAME] [--jobs N]``, or from A on until ctrl-C.

Ends with 1 at the first seed that fails, with the seed and its trace; with 0 and a summary otherwise, after ctrl-C too.
With ``--progress FILE`` it notes there how far it is, and goes on from there when it is started again with the same
seeds and story on the same commit.
"""

import argparse
import gc
import multiprocessing
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from twisted.logger import globalLogBeginner

from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.sim.coverage import Counts, table
from rmqha.testing.sim.walk import Outcome, Story, run_seed

SEEDS_AT_ONCE = 25
SEEDS_PER_COLLECTION = 50
"""Cycles are collected only so often: that takes a tenth of the time."""
SECONDS_BETWEEN_LINES = 60.0


class Seeds(NamedTuple):
    """The seeds from ``first`` to ``last``; None for no end."""

    first: int
    last: int | None

    @classmethod
    def parse(cls, text: str) -> "Seeds":
        """From A, A..B or A... Raises ValueError."""
        first, dots, last = text.partition("..")
        return cls(int(first), int(last) if last else None if dots else int(first))

    def after(self, done: int | None) -> Iterable[int]:
        """Those that are not done yet, one after another."""
        first = self.first if done is None else done + 1
        return count(first) if self.last is None else range(first, self.last + 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rmqha.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=Seeds.parse, default="0..1999", help="A, A..B (both run), or A.. for no end")
    parser.add_argument("--story", type=Story, choices=list(Story), default=Story.REPLICATION, help="what is simulated")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument(
        "--progress", type=Path, metavar="FILE", help="goes on from what this file says, and notes more"
    )
    parser.add_argument("--trace", action="store_true", help="show what happened, of every seed")
    parser.add_argument(
        "--histories", type=Path, metavar="FOLDER", help="of the story cluster: what clients asked and were answered"
    )
    parser.add_argument(
        "--coverage",
        action="store_true",
        help="show at the end what happened to nodes in which state, and what did not",
    )
    return parser.parse_args()


class Progress:
    """A file with a line of JSON for each report of how far the seeds have run."""

    def __init__(self, path: Path | None, seeds: Seeds, story: Story) -> None:
        """Raises OSError, ValueError if the file has something else."""
        self._path = path
        self._key = {"commit": commit() if path else "", "story": story.value, "first": seeds.first}
        self._began = time.monotonic()
        self._started_after = self.done = self._read()

    def _read(self) -> int | None:
        if self._path is None or not self._path.exists():
            return None
        lines = [orjson.loads(line) for line in self._path.read_bytes().splitlines()]
        found = [line["last"] for line in lines if self._key.items() <= line.items()]
        return max(found, default=None)

    def note(self, last: int) -> None:
        """All seeds up to this one have run."""
        self.done = last
        if self._path is not None:
            seconds = round(time.monotonic() - self._began)
            line: dict[str, Any] = {**self._key, "last": last, "after": self._started_after, "seconds": seconds}
            with self._path.open("ab") as file:
                file.write(orjson.dumps(line) + b"\n")


def commit() -> str:
    """The commit of the tree that runs, with ``+`` if it was changed since; "unknown" outside a repository."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _prepare() -> None:
    """Log nothing, and leave ctrl-C to the first process."""
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(story: Story, keeps_trace: bool, histories: Path | None, counts: bool, seed: int) -> Outcome:
    gc.disable()
    outcome = run_seed(seed, story, histories, counts)
    if seed % SEEDS_PER_COLLECTION == 0:
        gc.collect()
    return outcome if keeps_trace or outcome.violation else outcome.without_trace()


@contextmanager
def _outcomes(run: "partial[Outcome]", seeds: Iterable[int], jobs: int) -> Iterator[Iterator[Outcome]]:
    if jobs == 1:
        _prepare()
        yield map(run, seeds)
        return
    with multiprocessing.Pool(jobs, _prepare) as pool:
        yield (outcome for several in _batches(seeds, jobs) for outcome in pool.imap(run, several, SEEDS_AT_ONCE))


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
        self._began = self._last_line_at = time.monotonic()
        self._seeds = self._steps = self._puts = self._put_ok = 0
        self.coverage: Counts = Counter()

    def add(self, outcome: Outcome) -> bool:
        """One more; once a minute it prints a line, and returns true."""
        self._seeds += 1
        self._steps += outcome.steps
        self._puts += outcome.puts
        self._put_ok += outcome.put_ok
        self.coverage += outcome.coverage
        is_due = time.monotonic() - self._last_line_at >= SECONDS_BETWEEN_LINES
        if is_due:
            self._last_line_at = time.monotonic()
            print(self.line(), flush=True)
        return is_due

    def print_end(self) -> None:
        """The coverage, if it was counted, and the summary."""
        if self.coverage:
            print(table(self.coverage))
        print(self.line())

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
    last: int | None = None
    try:
        progress = Progress(arguments.progress, arguments.seeds, arguments.story)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        print(f"{arguments.progress} does not tell a progress: {error}", file=sys.stderr)
        return ExitCode.USAGE
    if progress.done is not None:
        print(f"goes on after seed {progress.done}", flush=True)
    if arguments.histories is not None:
        arguments.histories.mkdir(parents=True, exist_ok=True)
    run = partial(_run, arguments.story, arguments.trace, arguments.histories, arguments.coverage)
    try:
        with _outcomes(run, arguments.seeds.after(progress.done), arguments.jobs) as outcomes:
            for outcome in outcomes:
                if arguments.trace or outcome.violation:
                    print("\n".join(outcome.trace))
                if outcome.violation:
                    print(f"seed {outcome.seed}: {outcome.violation}")
                    return ExitCode.CORRUPT
                last = outcome.seed
                if tally.add(outcome):
                    progress.note(last)
    except KeyboardInterrupt:
        pass
    if last is not None:
        progress.note(last)
    tally.print_end()
    return ExitCode.FINE
