"""How tests wait for what other processes do: they look again and again, with a limit that a busy machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable

from rmqha.testing.nodes import POLL_SECONDS, pause_after

WAIT_SECONDS = 300.0


def wait_until(
    condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS, interval: float = POLL_SECONDS
) -> None:
    """Look every ``interval`` s, less often if a look takes long, until the condition holds.

    ``what`` completes "waited for" in the error. Raises AssertionError after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        pause_after(began, interval)
