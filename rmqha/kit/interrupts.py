"""Ctrl-C while modules are imported, and while a command reads its input."""

import os
import select
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


def pieces_of(source: int, size: int) -> Iterator[bytes]:
    """What comes from a file descriptor until its end, in pieces of at most ``size`` bytes. Ctrl-C ends each wait.

    A read by itself may miss Ctrl-C: a signal that comes after Python has looked for signals, and before the system
    waits for bytes, does not end this wait. So the wait is also for what Python writes when a signal comes. It needs
    the main thread. Raises OSError.
    """
    signalled, tells = os.pipe()
    try:
        os.set_blocking(tells, False)
        before = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
        try:
            waits = select.poll()
            waits.register(signalled, select.POLLIN)
            waits.register(source, select.POLLIN)
            while True:
                ready = [file for file, _ in waits.poll()]
                if signalled in ready:
                    os.read(signalled, size)  # a handler that raises has done so by now
                if source in ready:
                    piece = os.read(source, size)
                    if not piece:
                        return
                    yield piece
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(signalled)
        os.close(tells)
