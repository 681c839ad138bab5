"""The fuzzer as a developer runs it. What reads millions of bytes is a process of its own, out of coverage's sight."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz import planted
from tests.fuzz.engine import TARGETS
from tests.fuzz.target import Broken

ROOT = Path(__file__).parents[2]
BYTES_WANTED = 1.2e7
"""Of which 1e7 for the HA channel and records, by the targets' weights. ``make proofs`` tries ten times as many."""
SECONDS_AT_MOST = 2400.0
"""Far more than the proof takes (about 30 s), for machines that are slow and busy."""

GUIDED = """
import os, sys
from pathlib import Path
from tests.fuzz import guided
folder, runs, *names = sys.argv[1:]
guided.instrument()
for name in names:
    corpus = Path(folder) / name
    corpus.mkdir()
    print("==", name, flush=True)
    if not os.fork():
        guided.main(name, [f"-runs={runs}", "-reload=0", f"-artifact_prefix={folder}/", str(corpus)])
    _, status = os.wait()
    if status:
        sys.exit(f"{name} ended with {status}")
"""
"""One process imports for all targets, since that takes as long as two thousand runs.

libFuzzer would read the corpus again each second for what others wrote, and run beyond its number: here nobody writes.
"""
PLANTED_GUIDED = """
import pytest, sys, atheris
from tests.fuzz import guided
set_up = atheris.Setup
def plant_and_set_up(*arguments, **options):
    from tests.fuzz import planted
    planted.accept_an_offset_of_minus_one(pytest.MonkeyPatch())
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


def test_too_few_bytes_in_the_time_there_is_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--bytes", "1e12", "--seconds", "0.2", "--seed", "1"]) == fuzz.TOO_FEW
    assert "of 1000000000000 bytes" in capsys.readouterr().out


def test_a_finding_is_kept_and_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        planted.accept_an_offset_of_minus_one(patch)
        assert fuzz.main(["--target", "transfer", "--seed", "3", "--findings", str(tmp_path)]) == fuzz.FOUND
        (kept,) = tmp_path.iterdir()
        replay = ["--target", "transfer", "--replay", str(kept)]
        printed = capsys.readouterr().out
        assert "seed 3" in printed
        assert " ".join(replay) in printed
        with pytest.raises(Broken):
            fuzz.main(replay)
    sound = run_python("-m", "tests.fuzz", *replay)
    assert (sound.returncode, sound.stdout) == (0, f"transfer holds for {kept}\n")


@pytest.mark.parametrize("runs", [5000, pytest.param(20_000, marks=pytest.mark.proof)])
def test_coverage_leads_to_no_input_that_breaks_a_target(runs: int, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is there for CPython on Linux on x86-64 only")
    done = run_python("-c", GUIDED, str(tmp_path), str(runs), *TARGETS)
    assert done.returncode == 0, done.stdout
    for name, told in zip(TARGETS, done.stdout.split("== ")[1:], strict=True):
        assert told.startswith(f"{name}\n")
        assert " cov: " in told
        assert f"Done {runs} runs" in told


def test_coverage_leads_to_a_planted_bug(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is there for CPython on Linux on x86-64 only")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    done = run_python("-c", PLANTED_GUIDED, "-runs=100000", "-seed=1", f"-artifact_prefix={tmp_path}/", str(corpus))
    assert done.returncode != 0, done.stdout
    (kept,) = tmp_path.glob("crash-*")
    assert run_python("-m", "tests.fuzz", "--target", "transfer", "--replay", str(kept)).returncode == 0
