"""Starts the ``rmqha`` command: importing all of it takes a second or more, and Ctrl-C may come meanwhile."""

import os
import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it with 130 and one line, at any time."""
    signal.signal(signal.SIGINT, _quit)
    from rmqha.cli import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _quit(*_: object) -> None:
    """End at once: nothing was started, and an import that is cut short leaves Python unable to end by itself."""
    sys.stderr.write("rmqha: interrupted\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
