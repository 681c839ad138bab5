"""How tests wait for what other processes do: they look again and again, with a limit that a busy machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_SECONDS = 300.0
POLL_SECONDS = 0.02


def wait_until(
    condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS, interval: float = POLL_SECONDS
) -> None:
    """Look every ``interval`` s until the condition holds. ``what`` completes "waited for" in the error.

    Raises AssertionError after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(interval)  # a condition of other processes tells nobody that it has come
