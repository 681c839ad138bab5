"""The fuzzer as a developer runs it: a process of its own, which no coverage measurement slows down."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import FOUND, TOO_FEW
from tests.fuzz.engine import TARGETS

ROOT = Path(__file__).parents[2]
BYTES_WANTED = 1.2e7
"""Of which 1e7 for the HA channel and records, by the targets' weights. ``make proofs`` tries ten times as many."""
SECONDS_AT_MOST = 2400.0
"""Far more than the proof takes (about 30 s), for machines that are slow and busy."""
GUIDED_RUNS = 5000

PLANTED = """
import pytest
from tests.fuzz import planted
planted.accept_an_offset_of_minus_one(pytest.MonkeyPatch())
"""
PLANTED_RUN = PLANTED + "import sys, tests.fuzz.__main__ as fuzz; sys.exit(fuzz.main(sys.argv[1:]))"
PLANTED_GUIDED = f"""
import sys, atheris
from tests.fuzz import guided
set_up = atheris.Setup
def plant_and_set_up(*arguments, **options):
    exec({PLANTED!r})
    set_up(*arguments, **options)
atheris.Setup = plant_and_set_up
guided.main("transfer", sys.argv[1:])
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The finished process, with what it wrote to stdout and stderr."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=outside,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=2 * SECONDS_AT_MOST,
    )


def check_bytes(wanted: float) -> None:
    """With a new seed each time; a failure tells it, and keeps the input."""
    done = run_python("-m", "tests.fuzz", "--bytes", str(wanted), "--seconds", str(SECONDS_AT_MOST))
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    counts = {words[0]: int(words[1]) for line in done.stdout.splitlines() if (words := line.split())[2:3] == ["bytes"]}
    assert counts["all"] >= wanted
    assert counts["transfer"] + counts["report"] + counts["record"] >= wanted / 1.2


def test_ten_million_bytes_and_more_break_no_target() -> None:
    check_bytes(BYTES_WANTED)


@pytest.mark.proof
def test_a_hundred_million_bytes_and_more_break_no_target() -> None:
    check_bytes(10 * BYTES_WANTED)


def test_too_few_bytes_in_the_time_there_is_fail() -> None:
    done = run_python("-m", "tests.fuzz", "--bytes", "1e12", "--seconds", "1", "--seed", "1")
    assert done.returncode == TOO_FEW, done.stdout
    assert "of 1000000000000 bytes" in done.stdout


def test_a_finding_is_kept_and_can_be_replayed(tmp_path: Path) -> None:
    done = run_python("-c", PLANTED_RUN, "--target", "transfer", "--seed", "3", "--findings", str(tmp_path))
    assert done.returncode == FOUND, done.stdout
    (kept,) = tmp_path.iterdir()
    replay = ["--target", "transfer", "--replay", str(kept)]
    assert "seed 3" in done.stdout
    assert " ".join(replay) in done.stdout
    again = run_python("-c", PLANTED_RUN, *replay)
    assert again.returncode != 0, "the bug is still there"
    assert "Broken" in again.stdout
    sound = run_python("-m", "tests.fuzz", *replay)
    assert (sound.returncode, sound.stdout) == (0, f"transfer holds for {kept}\n")


@pytest.mark.parametrize("name", TARGETS)
def test_coverage_leads_to_no_input_that_breaks_a_target(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is there for CPython on Linux on x86-64 only")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    options = (f"-runs={GUIDED_RUNS}", f"-artifact_prefix={tmp_path}/", str(corpus))
    done = run_python("-m", "tests.fuzz.guided", name, *options)
    assert done.returncode == 0, done.stdout
    assert " cov: " in done.stdout
    assert f"Done {GUIDED_RUNS} runs" in done.stdout


def test_coverage_leads_to_a_planted_bug(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is there for CPython on Linux on x86-64 only")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    done = run_python("-c", PLANTED_GUIDED, "-runs=100000", "-seed=1", f"-artifact_prefix={tmp_path}/", str(corpus))
    assert done.returncode != 0, done.stdout
    (kept,) = tmp_path.glob("crash-*")
    assert run_python("-m", "tests.fuzz", "--target", "transfer", "--replay", str(kept)).returncode == 0
