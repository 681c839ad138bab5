"""Kills a process at its n-th call that changes the disk: what is on the disk then is what a crash would leave.

The child is forked, so that nothing is imported again, and dies by SIGKILL just before the call.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

DISK_CALLS = (
    *("open", "write", "pwrite", "pwritev", "ftruncate", "posix_fallocate", "copy_file_range"),
    *("fsync", "fdatasync", "rename", "replace", "link", "unlink", "remove", "mkdir", "rmdir"),
)
"""The functions of ``os`` that change the disk, or make a change durable. ``open`` counts if it may create a file."""


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child, which is killed before its disk call number ``step``, from 0. False if it made fewer.

    Raises AssertionError if it ends in another way.
    """
    pid = os.fork()
    if not pid:
        try:
            _count_down(step)
            work()
            os._exit(0)
        except BaseException:  # of any kind: the parent must learn of it, and no test may run on in the child
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return True
    assert os.WEXITSTATUS(status) == 0, f"it failed at step {step}"
    return False


def places(calls: int, at_least: int) -> Iterator[int]:
    """At least so many of ``calls`` places, spread evenly, with the first and the last; all if there are not more."""
    wanted = min(calls, at_least)
    last = -1
    for number in range(wanted):
        place = number * (calls - 1) // max(1, wanted - 1)
        if place != last:
            last = place
            yield place


def count_calls(work: Callable[[], object]) -> int:
    """How many disk calls ``work`` makes, in a child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            left = _count_down(1 << 40)
            work()
            os.write(writing, b"%d" % ((1 << 40) - left[0]))
            os._exit(0)
        except BaseException:  # as above
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    found = os.read(reading, 100)
    os.close(reading)
    assert status == 0, status
    return int(found)


def _count_down(step: int) -> list[int]:
    left = [step]

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
            return real(*arguments, **named)

        setattr(os, name, call)

    for name in DISK_CALLS:
        watch(name)
    return left
