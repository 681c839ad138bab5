"""``make test`` in fresh clones, in portions: ``python -m tests.clones --clones 5``.

Each clone is made anew from this checkout's commit, and has a ``.venv`` of its own. Its portions are the parts of
``make test`` and, of the unit tests, one folder or a few files each. Several clones run at the same time, so that each
has the others' work beside it. A line of JSON for each portion goes to ``--results``: what ran before on the same
commit is not run again, so a run that was stopped goes on. Ends with 1 if a portion has failed.

``--table`` prints what the file holds, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PARTS = ("lint", "types", "imports", "docs", "trial-smoke", "wheel")
FILES_OF_A_PORTION = 8
COUNTS = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")
_writing = threading.Lock()


def portions() -> list[tuple[str, list[str]]]:
    """The portions by name, each with the arguments of ``make``."""
    tests = ROOT / "tests"
    folders = sorted({path.relative_to(tests).parts[0] for path in tests.glob("*/**/test_*.py")})
    files = sorted(path.name for path in tests.glob("test_*.py"))
    groups = [files[at : at + FILES_OF_A_PORTION] for at in range(0, len(files), FILES_OF_A_PORTION)]
    named = [(folder, [folder]) for folder in folders] + [(f"{group[0]} to {group[-1]}", group) for group in groups]
    units = [(name, ["unit", "TESTS=" + " ".join(f"tests/{each}" for each in parts)]) for name, parts in named]
    return [(part, [part]) for part in PARTS] + units


def read(results: Path) -> Iterator[dict[str, Any]]:
    """The lines so far."""
    if results.exists():
        yield from map(json.loads, results.read_text().splitlines())


def run(commit: str, clone: int, results: Path, deadline: float) -> bool:
    """The portions of one clone that are not done yet, until the deadline. Whether all of them passed."""
    done = {line["portion"] for line in read(results) if (line["commit"], line["clone"]) == (commit, clone)}
    left = [(name, arguments) for name, arguments in portions() if name not in done]
    if not left:
        return True
    passed = True
    with tempfile.TemporaryDirectory(prefix=f"rmqha-clone-{clone}-", ignore_cleanup_errors=True) as folder:
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), folder], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=folder, check=True)
        subprocess.run(["make", "--silent", "install"], cwd=folder, check=True)
        for name, arguments in left:
            if time.monotonic() > deadline:
                break
            passed &= _run_portion(commit, clone, name, ["make", *arguments], Path(folder), results)
    return passed


def _run_portion(commit: str, clone: int, name: str, command: Sequence[str], folder: Path, results: Path) -> bool:
    start, before = time.monotonic(), os.getloadavg()[0]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    closing = ended.stdout.splitlines()[-1] if ended.stdout else ""
    for number, word in COUNTS.findall(closing):
        counts["failed" if word.startswith("error") else word] += int(number)
    is_without_tests = (
        "TESTS=" in command[-1] and ended.returncode == 2 and " deselected" in closing and not counts["failed"]
    )
    has_passed = ended.returncode == 0 or is_without_tests
    line = {
        "commit": commit,
        "clone": clone,
        "portion": name,
        "status": "passed" if has_passed else "failed",
        **counts,
        "seconds": round(time.monotonic() - start),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if not has_passed:
        line["output"] = (ended.stdout + ended.stderr)[-4000:]
    with _writing, results.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"clone {clone}: {name}: {line['status']}, {counts['passed']} tests, {line['seconds']} s", flush=True)
    return has_passed


def table(results: Path) -> Iterator[str]:
    """What each clone has done on the newest commit of the file."""
    lines = list(read(results))
    commit = lines[-1]["commit"] if lines else ""
    yield f"commit {commit[:12]}, {len(portions())} portions"
    for clone in sorted({line["clone"] for line in lines if line["commit"] == commit}):
        mine = [line for line in lines if (line["commit"], line["clone"]) == (commit, clone)]
        failed = [line["portion"] for line in mine if line["status"] != "passed"]
        loads = [load for line in mine for load in line["load"]]
        yield (
            f"clone {clone}: {len(mine)} portions, {sum(line['passed'] for line in mine)} tests passed, "
            f"{sum(line['failed'] for line in mine)} failed{': ' + ', '.join(failed) if failed else ''}; "
            f"load {min(loads)} to {max(loads)}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.clones", description=__doc__)
    parser.add_argument("--clones", type=int, default=5, help="how many clones (default: 5)")
    parser.add_argument("--at-once", type=int, default=2, help="how many run at the same time (default: 2)")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no portion after this time")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/clones.jsonl")
    parser.add_argument("--table", action="store_true", help="print what the file holds, and run nothing")
    options = parser.parse_args(arguments)
    if options.table:
        print("\n".join(table(options.results)))
        return 0
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    deadline = time.monotonic() + options.seconds
    numbers = iter(range(1, options.clones + 1))
    outcomes: list[bool] = []

    def work() -> None:
        outcomes.extend(run(commit, clone, options.results, deadline) for clone in numbers)

    threads = [threading.Thread(target=work) for _ in range(options.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(table(options.results)))
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
