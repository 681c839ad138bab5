"""Ctrl-C ends the wait for a command's input, also if the system does not end it."""

import os
import signal
import subprocess
import sys
from threading import Thread

import pytest

from rmqha.kit.interrupts import pieces_of
from tests.waiting import WAIT_SECONDS

READER = """
import os, signal, threading
from rmqha.kit.interrupts import pieces_of

def interrupt():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # the signal comes in this thread
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # so it ends no wait of the main thread
pieces = pieces_of(0, 100)
print(next(pieces), flush=True)
threading.Timer(0.1, interrupt).start()  # a read by itself waits by then, and would not end
try:
    next(pieces)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.process
def test_a_signal_that_ends_no_wait_of_the_system_ends_the_wait_for_input() -> None:
    command = [sys.executable, "-c", READER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        try:
            reader.stdin.write(b"first")
            reader.stdin.flush()
            assert reader.wait(WAIT_SECONDS) == 0
            assert reader.stdout.read() == b"b'first'\ninterrupted\n"
        finally:
            reader.kill()


def write_and_close(file: int, data: bytes) -> None:
    os.write(file, data)
    os.close(file)


def test_pieces_come_until_the_end_whatever_other_signals_come() -> None:
    source, writer = os.pipe()
    heard: list[int] = []
    wakes = signal.set_wakeup_fd(-1)
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        os.write(writer, b"12345")
        pieces = pieces_of(source, 3)
        assert [next(pieces), next(pieces)] == [b"123", b"45"]
        signal.raise_signal(signal.SIGUSR1)
        end = Thread(target=write_and_close, args=(writer, b"6"))
        end.start()
        assert list(pieces) == [b"6"]
        end.join()
        assert heard == [signal.SIGUSR1]
        assert signal.set_wakeup_fd(wakes) == -1, "it leaves what was set before"
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.close(source)
