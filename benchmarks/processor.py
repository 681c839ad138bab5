"""Processor time of processes, beside wall time: it holds on a machine that others use, too."""

import os
import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path

CLOCK_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """User and system time of a running process, with all its threads. Raises OSError if there is none."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * CLOCK_TICK_SECONDS


def tree_seconds(root: int) -> float:
    """User and system time of a process and of all that it has started, also of those that have ended since."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total * CLOCK_TICK_SECONDS


def run_and_time(command: Sequence[str]) -> tuple["subprocess.CompletedProcess[str]", float]:
    """Run a program, keep what it prints, and say how much processor time it took, with its start and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
