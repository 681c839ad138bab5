"""The same targets led by coverage: atheris, which is libFuzzer for Python.

libFuzzer takes a process over, so each target gets one of its own: ``python -m tests.fuzz.guided TARGET [libFuzzer's
options] [CORPUS]``. atheris is there for CPython on Linux on x86-64 only.
"""

import itertools
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from random import Random

ROUND_SECONDS = 60
CORPUS = Path(".cache") / "fuzz" / "corpus"
"""Grows from run to run; may be deleted."""


def is_available() -> bool:
    """Whether atheris is installed."""
    return find_spec("atheris") is not None


def run_rounds(names: list[str], seed: int, seconds: float, findings: Path) -> int:
    """Each target in turn, a minute at most, until the time is over or Ctrl-C. The exit code: 0 without a finding."""
    findings.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    turn_seconds = min(ROUND_SECONDS, seconds / len(names))
    for turn, name in enumerate(itertools.cycle(names)):
        if time.monotonic() >= deadline:
            break
        options = [f"-seed={(seed + turn) % 2**31 or 1}", f"-max_total_time={max(1, round(turn_seconds))}"]
        try:
            code = run_target(name, [*options, f"-artifact_prefix={findings}/{name}-"], CORPUS / name)
        except KeyboardInterrupt:
            break
        if code:
            print(f"again: python -m tests.fuzz --target {name} --replay FILE, where FILE is what is named above")
            return code
    return 0


def run_target(name: str, options: list[str], corpus: Path) -> int:
    """Runs libFuzzer on a target and a corpus, which is begun with the target's seeds. Its exit code."""
    corpus.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.fuzz.guided", name, *options, str(corpus)]
    return subprocess.run(command, check=False).returncode


def instrument() -> None:
    """Import what is tested so that its coverage is seen: before anything else imports it."""
    import atheris  # not everywhere

    with atheris.instrument_imports(include=["rmqha.wire"]):
        import tests.fuzz.engine  # noqa: F401 - it imports all that is tested


def main(name: str, options: list[str]) -> None:
    """Becomes libFuzzer: does not return. The last of the options is the corpus."""
    instrument()
    import atheris

    from tests.fuzz.engine import TARGETS
    from tests.fuzz.mutation import mutate

    target = TARGETS[name]
    seeds = target.seeds(Random(name))
    for number, data in enumerate(seeds):
        (Path(options[-1]) / f"seed-{number}").write_bytes(data)

    def change(data: bytes, max_bytes: int, seed: int) -> bytes:
        rng = Random(seed)
        changed = atheris.Mutate(data, max_bytes) if rng.random() < 0.5 else mutate(data, rng, target.shape, seeds)
        return bytes(changed[:max_bytes])

    def check(data: bytes) -> None:
        target.check(data)

    atheris.Setup([sys.argv[0], "-max_len=4096", *options], check, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
