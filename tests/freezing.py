"""Processes that stand still for a while (SIGSTOP). Works on Linux."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import wait_until

STANDING: frozenset[str] = frozenset("TXZ")
"""States of a thread that runs no more: stopped, dead, zombie (proc(5))."""


def freeze(*pids: int) -> None:
    """Stop all threads of these processes, and wait until they stand still. Processes that are gone count as still.

    The kernel stops the threads one by one, after ``kill`` has returned: on a busy machine some run on for a while.
    """
    _signal_all(pids, signal.SIGSTOP)
    wait_until(
        lambda: all(_stands_still(pid) for pid in pids),
        f"{pids} to stand still",
        interval=0.002,
    )


def thaw(*pids: int) -> None:
    """Let them go on after ``freeze``."""
    _signal_all(pids, signal.SIGCONT)


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """They stand still until the end of the block."""
    freeze(*pids)
    try:
        yield
    finally:
        thaw(*pids)


def _signal_all(pids: tuple[int, ...], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    return all(_state_of(stat) in STANDING for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


def _state_of(stat: Path) -> str:
    """The letter after the name in brackets, which may hold anything. X for a thread that is gone."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
