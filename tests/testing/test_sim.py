"""The simulator: many seeds, the same run from the same seed, and planted bugs that it must find."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
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
TRACES = """
import sys
from rmqha.testing.sim import runner
for story in sys.argv[1:]:
    sys.argv = ["sim", "--seeds", "3..6", "--trace", "--story", story]
    runner.main()
"""
"""One process for all stories: it imports as long as it runs."""


def run_python(*arguments: str, hash_seed: str = "0") -> "subprocess.CompletedProcess[str]":
    """In a process of its own, whose sets have this order."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def check_seeds(seeds: str, story: Story, jobs: int = 1) -> None:
    """No promise breaks. In a process of its own: it collects cycles as it likes, and coverage does not see it."""
    wanted = ("--seeds", seeds, "--story", story.value, "--jobs", str(jobs))
    ended = run_python("-m", "rmqha.testing.sim", *wanted)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no violation" in ended.stdout


Simulate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simulate:
    """Runs the command in this process, for a few seeds; gives its exit code and what it printed."""
    monkeypatch.setattr(runner, "_prepare", lambda: None)
    monkeypatch.setattr(gc, "disable", lambda: None)  # the tests that follow need cycles collected: they close files

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sim", *arguments])
        return runner.main(), *capsys.readouterr()

    return run


def test_no_seed_breaks_a_promise() -> None:
    """Puts, cuts, delays, crashes at any system call, restarts, disk errors, bogus peers: nothing confirmed is lost."""
    check_seeds(SEEDS, Story.REPLICATION)


def test_the_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    """In another process too, whatever the order of its sets."""
    ended = [run_python("-c", TRACES, *STORIES, hash_seed=hash_seed) for hash_seed in ("1", "2")]
    first, second = (
        [line for line in process.stdout.splitlines() if not line.endswith("no violation")] for process in ended
    )
    assert first == second
    assert sum("answers put" in line for line in first) > len(STORIES), ended
    assert all(process.stdout.count("4 seeds") == len(STORIES) for process in ended)


def test_no_failover_breaks_a_promise() -> None:
    """Promotions and rewinds, killed and without power at any system call: what was promised stays, cut bytes too."""
    check_seeds(FAILOVER_SEEDS, Story.FAILOVER)


def test_no_automatic_failover_breaks_a_promise() -> None:
    """Kills, SIGSTOP, cut lines, lost power, clocks, a coordinator that is gone or set back: no SEND_OK is lost.

    One node at most holds the right to lead, and after the faults a leader is found.
    """
    check_seeds(CLUSTER_SEEDS, Story.CLUSTER, jobs=2)


@pytest.mark.parametrize("story", STORIES)
def test_a_run_goes_on_from_its_progress(tmp_path: Path, simulate: Simulate, story: str) -> None:
    progress = tmp_path / "progress"
    for last, seeds in (("2", 3), ("4", 2), ("4", 0)):
        _, printed, error = simulate("--seeds", f"0..{last}", "--story", story, "--progress", str(progress))
        assert f"\n{seeds} seeds" in f"\n{printed}", printed + error
    progress.write_text("x")
    status, _, error = simulate("--seeds", "0..1", "--progress", str(progress))
    assert status == ExitCode.USAGE
    assert "does not tell a progress" in error


@pytest.mark.parametrize(("plant", "seed"), [*PLANTS.items(), *FAILOVER_PLANTS.items(), *CLUSTER_PLANTS.items()])
@pytest.mark.story
def test_a_planted_bug_is_found(plant: Patch, seed: int) -> None:
    """By the seed that is noted, or by one that follows; ``make proofs`` searches from seed 0."""
    found = first_seed(plant, range(seed, seed + SEEDS_UNTIL_FOUND))
    assert found is not None, f"none of {SEEDS_UNTIL_FOUND} seeds from {seed} on has found it"
    assert run_seed(found, story_of(plant)).violation is None, "without the bug nothing is wrong"


@pytest.mark.parametrize(
    ("story", "machines"),
    [(Story.REPLICATION, {"slave", "node", "dispatch"}), (Story.CLUSTER, {"slave", "failover", "node", "dispatch"})],
)
def test_what_met_which_state_is_counted_and_holes_are_named(
    story: Story, machines: set[str], simulate: Simulate
) -> None:
    _, printed, _ = simulate("--seeds", "0..4", "--story", story.value, "--coverage")
    *table, summary = printed.splitlines()
    assert "5 seeds" in summary
    assert {line.partition(":")[0] for line in table if " pairs of " in line} == machines
    assert any(line.startswith("  CONNECTING: ") and "connected" in line for line in table)
    assert any(line.startswith("    never: ") for line in table)
    assert run_seed(3, story).without_trace().coverage == {}


def test_a_failure_prints_its_seed_and_its_trace(monkeypatch: pytest.MonkeyPatch, simulate: Simulate) -> None:
    acknowledge_before_write(monkeypatch)
    status, printed, _ = simulate("--seeds", "0..")
    assert status == 1
    *trace, verdict = printed.splitlines()
    assert verdict.startswith("seed ")
    assert "reports" in verdict
    assert any("is connected to master" in line for line in trace)
