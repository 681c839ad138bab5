"""Bugs planted into a copy of the tree, and the tests that must find them: ``python -m tests.proofs.mutants [NAME…]``.

Each is a change of the source that tests must notice (``MUTANTS`` in ``mutantlist.py``). All are tried one after
another, or those of these names; each has a line of JSON in the file of results. One that has a line already, with the
same edit, is not tried again, so that a run can stop and go on; ``--again`` tries it anyway. ``--table`` prints the
file, and tries nothing. Exit status 1 if one was not found. A test that does not end in time counts as hung, not as
found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.proofs.mutant import ROOT, Mutant
from tests.proofs.mutantlist import MUTANTS

RESULTS = ROOT / "benchmarks/results/mutants.jsonl"
COPIED = ("rmqha", "tests", "twisted", "docs", "benchmarks", "examples", "ops", "pyproject.toml", "Makefile")
SECONDS = 600.0
"""The longest time for one command."""
NO_TESTS = 5
"""What pytest ends with if a folder has no unit tests."""
SEEDS = {"replication": "0..199", "failover": "0..99", "cluster": "0..99"}


class Result(NamedTuple):
    """What came of it: ``found``, ``missed`` or ``hung``; by which finder, after how many seconds, and what it said."""

    outcome: str
    finder: str
    seconds: float
    words: str


def try_mutant(mutant: Mutant, seconds: float = SECONDS, with_seeds: bool = True) -> Result:
    """Plant it in a copy of the tree, and let its finders look; the simulator too, if ``with_seeds``."""
    began = time.monotonic()
    hung = ""
    with tempfile.TemporaryDirectory(prefix="rmqha-mutant-") as folder:
        root = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", ".cache"))
            else:
                shutil.copy(source, root / name)
        mutant.apply(root)
        for finder in mutant.finders:
            if finder in SEEDS and not with_seeds:
                continue
            status, words = _run(command_of(finder), root, seconds)
            if status is None:
                hung = finder
            elif status not in (0, NO_TESTS):
                return Result("found", finder, time.monotonic() - began, words)
    return Result("hung" if hung else "missed", hung, time.monotonic() - began, "")


def command_of(finder: str) -> list[str]:
    """What is run, in the copy."""
    if finder in SEEDS:
        return [sys.executable, "-m", "rmqha.testing.sim", "--story", finder, "--seeds", SEEDS[finder]]
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "unit", finder]


def _run(command: Sequence[str], root: Path, seconds: float) -> tuple[int | None, str]:
    """The exit status, None if it took too long, and the line that says what was found."""
    environment = {**os.environ, "PYTHONPATH": str(root), "RMQHA_EXAMPLES": "quick", "RMQHA_PURE_PYTHON": "1"}
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "seed "))]
    if process.returncode not in (0, 1, NO_TESTS) and not lines:
        raise RuntimeError(f"{' '.join(command)} ends with {process.returncode}: {output[-2000:]}")
    return process.returncode, (lines or output.splitlines()[-1:] or [""])[0][:300]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The last line of each mutant."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["name"]: line for line in lines}


def write(path: Path, known: dict[str, dict[str, Any]]) -> None:
    """The lines of the present mutants, in their order. Those of others are dropped."""
    lines = [known[mutant.name] for mutant in MUTANTS if mutant.name in known]
    new = path.with_suffix(".new")
    new.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    new.replace(path)


def table(lines: Iterable[dict[str, Any]]) -> str:
    """A row for each."""
    head = f"{'bug':<64} {'outcome':<7} {'seconds':>7}  found by"
    rows = [
        f"{line['name']:<64} {line['outcome']:<7} {line['seconds']:>7.0f}  {line['words'] or line['finder']}"
        for line in lines
    ]
    return "\n".join([head, *rows])


def main(arguments: Sequence[str]) -> int:
    """What the command does; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--units", action="store_true", help="without the simulator: what is not found is not noted")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    wanted = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    known = read(options.results)
    if not options.table:
        for mutant in wanted:
            if not options.again and known.get(mutant.name, {}).get("edit") == mutant.edit:
                continue
            result = try_mutant(mutant, with_seeds=not options.units)
            if options.units and result.outcome != "found":
                continue
            line = {"name": mutant.name, "edit": mutant.edit, **result._asdict(), "seconds": round(result.seconds, 1)}
            known[mutant.name] = line
            write(options.results, known)
            print(f"{mutant.name}: {result.outcome} {result.words}", flush=True)
    tried = [known[mutant.name] for mutant in wanted if mutant.name in known]
    print(table(tried))
    print(f"{sum(line['outcome'] == 'found' for line in tried)} of {len(wanted)} found")
    return 0 if all(line["outcome"] == "found" for line in tried) and len(tried) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
