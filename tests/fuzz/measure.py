"""Memory and work of a parser. Work is counted in calls, not in seconds: the count is the same on every machine."""

import sys
import tracemalloc
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


def calls_of(parse: Callable[[bytes], object], data: bytes) -> int:
    """How many Python and C functions this takes."""
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        parse(data)
    finally:
        sys.setprofile(before)
    return count


def peak_of(parse: Callable[[bytes], object], data: bytes) -> int:
    """The most bytes that were allocated at once, the result among them."""
    tracemalloc.start()
    try:
        parse(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def retained_bytes(holder: object) -> int:
    """Bytes that an object has room for in its attributes, in lists there too."""
    return sum(map(_room, vars(holder).values()))


def _room(value: object) -> int:
    if isinstance(value, bytearray):
        return value.__alloc__()
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, memoryview):
        return value.nbytes
    return sum(map(_room, value)) if isinstance(value, Collection) and not isinstance(value, str) else 0
