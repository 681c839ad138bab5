"""Gives a process another wall clock, or another table of hosts: Python imports it at the start if it is on its path.

``RMQHA_SHIM_CLOCK`` names a file of two doubles, rate and offset, read anew at each look: the wall clock tells
``rate times the machine's + offset``. ``RMQHA_SHIM_HOSTS`` names a file with a line ``name address`` for each name.
"""

import datetime
import mmap
import os
import socket
import struct
import time
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


if "RMQHA_SHIM_CLOCK" in os.environ:
    shift_clock(os.environ["RMQHA_SHIM_CLOCK"])
if "RMQHA_SHIM_HOSTS" in os.environ:
    replace_hosts(os.environ["RMQHA_SHIM_HOSTS"])
