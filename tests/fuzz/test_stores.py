"""The fuzzer of whole stores as a developer runs it, and planted bugs that it must find."""

import os
import re
import subprocess
import sys

import pytest

from tests.fuzz.stores import FOUND, TOO_FEW
from tests.fuzz.test_run import ROOT

CASES = int(os.environ.get("RMQHA_STORE_CASES", "20000"))
"""About five minutes of two cores. ``make fuzz-stores`` goes on with new seeds until Ctrl-C."""
FIRST_CASE = "1"
SECONDS_AT_MOST = 2400.0
"""Far more than it should take, for machines that are slow and busy; also for each planted bug."""
CASES_FOR_A_BUG = 5000
"""The seeds are fixed, so each run tries the same cases."""

PLANTED = {
    "verify writes a byte": """
        import sys, rmqha.cli.verify
        verify = sys.modules["rmqha.cli.verify"]
        proof = verify._verify
        def spoilt(reader, path):
            (path / "touched").write_bytes(b"x")
            return proof(reader, path)
        verify._verify = spoilt
    """,
    "rebuild forgets a queue": """
        from shutil import rmtree
        from rmqha.store.derived import rebuild
        swap = rebuild.swap
        def spoilt(staged, *arguments):
            for queue in sorted(staged.glob("consumequeue/*/*"))[:1]:
                rmtree(queue)
            swap(staged, *arguments)
        rebuild.swap = spoilt
    """,
    "recovery cuts before sound records": """
        from rmqha.store import logopening
        logopening.check_may_cut = lambda *_: None
    """,
    "a command ends in a traceback": """
        from rmqha.store.log import checkpoint
        read = checkpoint.Checkpoint.read.__func__
        def spoilt(cls, *arguments):
            found = read(cls, *arguments)
            assert found.physic_msg_timestamp < 1 << 48, "a checkpoint does not rot"
            return found
        checkpoint.Checkpoint.read = classmethod(spoilt)
    """,
}
"""Programs that spoil the product, by what they plant."""


def run_stores(*arguments: str, planted: str = "") -> subprocess.CompletedProcess[str]:
    """The finished fuzzer, with what it wrote to stdout and stderr."""
    lines = [line.removeprefix("        ") for line in planted.splitlines()]
    program = "\n".join([*lines, "import sys, tests.fuzz.stores as fuzz", "sys.exit(fuzz.main(sys.argv[1:]))"])
    outside = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=outside,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=2 * SECONDS_AT_MOST,
    )


def test_thousands_of_damaged_stores_lose_nothing() -> None:
    """A failure tells its case, and how to see it again."""
    limits = ("--cases", str(CASES), "--seconds", str(SECONDS_AT_MOST), "--jobs", "2")
    done = run_stores(*limits, "--seed", FIRST_CASE)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert f"stores {CASES} cases" in done.stdout


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.story
def test_a_planted_bug_is_found(name: str) -> None:
    """Not in the first case, which a program that spoils too much would fail."""
    limits = ("--cases", str(CASES_FOR_A_BUG), "--seconds", str(SECONDS_AT_MOST), "--jobs", "2", "--seed", "1")
    done = run_stores(*limits, "--findings", "1", planted=PLANTED[name])
    assert done.returncode == FOUND, done.stdout
    assert re.search(r"again: python -m tests.fuzz.stores --replay (?!1$)\d+$", done.stdout, re.M), done.stdout


def test_too_few_cases_in_the_time_there_is_fail() -> None:
    done = run_stores("--cases", "1e9", "--seconds", "1", "--jobs", "1", "--seed", "1")
    assert done.returncode == TOO_FEW, done.stdout
