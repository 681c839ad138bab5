"""Starts the ``rmqha`` command. Its imports take a second or more, and Ctrl-C may come in this time."""

import os
import signal
import sys


def main() -> None:
    """Run the command line. At any time, Ctrl-C ends it with exit code 130 and one line."""
    signal.signal(signal.SIGINT, _quit)
    from rmqha.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _quit(*_: object) -> None:
    """End immediately: nothing was started, and after an interrupted import Python may not exit cleanly."""
    sys.stderr.write("rmqha: interrupted\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
