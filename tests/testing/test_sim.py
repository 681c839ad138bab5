"""The simulator: many seeds, the same run from the same seed, and planted bugs that it must find."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.sim import runner
from rmqha.testing.sim.walk import Story, run_seed
from tests.testing.planted import (
    CLUSTER_PLANTS,
    FAILOVER_PLANTS,
    PLANTS,
    SEEDS_UNTIL_FOUND,
    Patch,
    acknowledge_before_write,
    first_seed,
    story_of,
)

pytestmark = pytest.mark.fuzz

FAILOVER_SEEDS = os.environ.get("RMQHA_FAILOVER_SEEDS", "0..499")
CLUSTER_SEEDS = os.environ.get("RMQHA_CLUSTER_SEEDS", "0..1999")
SEEDS = os.environ.get("RMQHA_SIM_SEEDS", "0..2499")
STORIES = [story.value for story in Story]


def simulate(*arguments: str, hash_seed: str = "0") -> "subprocess.CompletedProcess[str]":
    """Run it as a process: coverage of thousands of runs would take longer than they do."""
    return subprocess.run(
        [sys.executable, "-m", "rmqha.testing.sim", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def test_no_seed_breaks_a_promise() -> None:
    """Puts, cuts, delays, crashes at any system call, restarts, disk errors, bogus peers: nothing confirmed is lost."""
    ended = simulate("--seeds", SEEDS, "--jobs", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no violation" in ended.stdout


@pytest.mark.parametrize("story", STORIES)
def test_the_same_seed_gives_the_same_trace_byte_for_byte(story: str) -> None:
    """In another process too, whatever the order of its sets."""
    wanted = ("--seeds", "3..6", "--trace", "--story", story)
    traces = [simulate(*wanted, hash_seed=hash_seed).stdout for hash_seed in ("1", "2")]
    first, second = ["\n".join(trace.splitlines()[:-1]) for trace in traces]  # the last line tells how long it took
    assert first == second
    assert "answers put" in first


def test_no_failover_breaks_a_promise() -> None:
    """Promotions and rewinds, killed and without power at any system call: what was promised stays, cut bytes too."""
    ended = simulate("--seeds", FAILOVER_SEEDS, "--story", "failover", "--jobs", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no violation" in ended.stdout


def test_no_automatic_failover_breaks_a_promise() -> None:
    """Kills, SIGSTOP, cut lines, lost power, clocks, a coordinator that is gone or set back: no SEND_OK is lost.

    One node at most holds the right to lead, and after the faults a leader is found.
    """
    ended = simulate("--seeds", CLUSTER_SEEDS, "--story", "cluster", "--jobs", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no violation" in ended.stdout


@pytest.mark.parametrize("story", STORIES)
def test_a_run_goes_on_from_its_progress(tmp_path: Path, story: str) -> None:
    progress = tmp_path / "progress"
    for last, seeds in (("2", 3), ("4", 2), ("4", 0)):
        ended = simulate("--seeds", f"0..{last}", "--story", story, "--progress", str(progress))
        assert f"\n{seeds} seeds" in f"\n{ended.stdout}", ended.stdout + ended.stderr
    progress.write_text("x")
    ended = simulate("--seeds", "0..1", "--progress", str(progress))
    assert ended.returncode == ExitCode.USAGE
    assert "does not tell a progress" in ended.stderr


@pytest.mark.parametrize(("plant", "seed"), [*PLANTS.items(), *FAILOVER_PLANTS.items(), *CLUSTER_PLANTS.items()])
@pytest.mark.story
def test_a_planted_bug_is_found(plant: Patch, seed: int) -> None:
    """By the seed that is noted, or by one that follows; ``make proofs`` searches from seed 0."""
    found = first_seed(plant, range(seed, seed + SEEDS_UNTIL_FOUND))
    assert found is not None, f"none of {SEEDS_UNTIL_FOUND} seeds from {seed} on has found it"
    assert run_seed(found, story_of(plant)).violation is None, "without the bug nothing is wrong"


def test_a_failure_prints_its_seed_and_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledge_before_write(monkeypatch)
    monkeypatch.setattr(runner, "_prepare", lambda: None)
    monkeypatch.setattr(gc, "disable", lambda: None)  # the tests that follow need cycles collected: they close files
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "0.."])
    assert runner.main() == 1
    *trace, verdict = capsys.readouterr().out.splitlines()
    assert verdict.startswith("seed ")
    assert "reports" in verdict
    assert any("is connected to master" in line for line in trace)
