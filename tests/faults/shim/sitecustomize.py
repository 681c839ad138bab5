"""Gives a process another wall clock, another table of hosts, or a full disk.

Python imports it at the start if it is on its path.

``RMQHA_SHIM_CLOCK`` names a file of two doubles, rate and offset, read anew at each look: the wall clock tells
``rate times the machine's + offset``. ``RMQHA_SHIM_HOSTS`` names a file with a line ``name address`` for each name.
``RMQHA_SHIM_FULL`` names a file: while it exists, nothing can be written to files by descriptors, as on a full disk.
"""

import datetime
import errno
import mmap
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RATE_AND_OFFSET = struct.Struct("dd")


def shift_clock(path: str) -> None:
    """Let time.time and datetime.now tell what the file says; monotonic clocks stay."""
    with Path(path).open("rb") as file:
        told = mmap.mmap(file.fileno(), RATE_AND_OFFSET.size, prot=mmap.PROT_READ)
    true_time = time.time

    def shifted_time() -> float:
        rate, offset = RATE_AND_OFFSET.unpack_from(told)
        return float(rate * true_time() + offset)

    class ShiftedDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "ShiftedDatetime":
            return cls.fromtimestamp(shifted_time(), tz)

    time.time = shifted_time
    datetime.datetime = ShiftedDatetime  # type: ignore[misc]


def replace_hosts(path: str) -> None:
    """Look names up in the file first."""
    true_getaddrinfo = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **more: Any) -> Any:
        table = dict(line.split() for line in Path(path).read_text().splitlines())
        return true_getaddrinfo(table.get(host, host), *arguments, **more)

    socket.getaddrinfo = getaddrinfo


def fill_disk(path: str) -> None:
    """Let writes to files fail with ENOSPC while there is such a file."""

    def guarded(true_call: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *arguments: Any, **more: Any) -> Any:
            if os.access(path, os.F_OK) and stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return true_call(descriptor, *arguments, **more)

        return call

    for name in ("write", "pwrite", "pwritev", "posix_fallocate"):
        setattr(os, name, guarded(getattr(os, name)))


if "RMQHA_SHIM_CLOCK" in os.environ:
    shift_clock(os.environ["RMQHA_SHIM_CLOCK"])
if "RMQHA_SHIM_HOSTS" in os.environ:
    replace_hosts(os.environ["RMQHA_SHIM_HOSTS"])
if "RMQHA_SHIM_FULL" in os.environ:
    fill_disk(os.environ["RMQHA_SHIM_FULL"])
