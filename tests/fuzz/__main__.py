"""``make fuzz``, or ``python -m tests.fuzz``: see the package."""

import argparse
import secrets
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz import guided
from tests.fuzz.engine import TARGETS, Finding, Fuzzer, replay
from tests.fuzz.target import Target

ROUND_BYTES = 20_000_000
FINDINGS = Path(".cache") / "fuzz"
FOUND, TOO_FEW = 1, 3
"""Exit codes: a target fails on an input; the time was over first."""


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--bytes", type=float, help="over all targets; fails if --seconds are over before")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    parser.add_argument("--seed", type=int, help="a random one by default")
    parser.add_argument("--target", action="append", choices=TARGETS, help="one of several; all by default")
    parser.add_argument(
        "--guided", action="store_true", help="led by coverage, where atheris is installed; without --bytes"
    )
    parser.add_argument("--replay", type=Path, help="check this one input of --target")
    parser.add_argument("--findings", type=Path, default=FINDINGS, help="folder for inputs on which a target failed")
    options = parser.parse_args(arguments)
    if options.replay and len(options.target or ()) != 1:
        parser.error("--replay wants one --target")
    if options.guided and options.bytes is not None:
        parser.error("--guided counts no bytes")
    return options


def main(arguments: list[str]) -> int:
    """The exit code."""
    options = parse_options(arguments)
    targets = [TARGETS[name] for name in options.target or TARGETS]
    if options.replay:
        replay(targets[0], options.replay.read_bytes())
        print(f"{targets[0].name} holds for {options.replay}")
        return 0
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    if options.guided and guided.is_available():
        return guided.run_rounds([target.name for target in targets], seed, options.seconds, options.findings)
    if options.guided:
        print("atheris is not installed: inputs are changed without regard to coverage", flush=True)
    return run(targets, seed, options)


def run(targets: list[Target], seed: int, options: argparse.Namespace) -> int:
    """Fuzzes each target by its weight, until the bytes are read, the time is over, or Ctrl-C. The exit code."""
    deadline = time.monotonic() + options.seconds
    fuzzers = [Fuzzer(target, seed) for target in targets]
    share = (options.bytes or ROUND_BYTES) / sum(target.weight for target in targets)
    rounds = 0
    try:
        while time.monotonic() < deadline and not (options.bytes and rounds):
            rounds += 1
            for fuzzer in fuzzers:
                fuzzer.run(rounds * share * fuzzer.target.weight, deadline)
    except Finding as finding:
        report(finding, options.findings)
        return FOUND
    except KeyboardInterrupt:
        print()
    return summary(fuzzers, options.bytes or 0)


def report(finding: Finding, folder: Path) -> None:
    """Tells the finding, keeps its input, and says how to see it again."""
    path = finding.save(folder)
    traceback.print_exception(finding.__cause__)
    print(f"{finding}\nagain: python -m tests.fuzz --target {finding.target.name} --replay {path}", flush=True)


def summary(fuzzers: list[Fuzzer], bytes_wanted: float) -> int:
    """The table, and the exit code."""
    for fuzzer in fuzzers:
        tally = fuzzer.tally
        print(
            f"{fuzzer.target.name:<11}{tally.bytes_read:>14} bytes{tally.executions:>10} inputs{tally.seconds:>8.1f} s"
        )
    bytes_read = sum(fuzzer.tally.bytes_read for fuzzer in fuzzers)
    print(f"{'all':<11}{bytes_read:>14} bytes")
    if bytes_read < bytes_wanted:
        print(f"the time was over after {bytes_read} of {bytes_wanted:.0f} bytes")
        return TOO_FEW
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
