"""Ctrl-C while modules are imported."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_end_imports() -> Iterator[None]:
    """Let Ctrl-C end the process at once with exit code 130 and one line, while modules are imported.

    Nothing was started yet, and Python may not exit cleanly after an interrupted import. It does nothing if somebody
    else has decided what Ctrl-C does, or outside the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _quit(*_: object) -> None:
    sys.stderr.write("rmqha: interrupted\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGINT)
