"""Starts the ``rmqha`` command."""

import signal

from rmqha.kit.collecting import imports_are_kept
from rmqha.kit.interrupts import interrupts_end_imports


def main() -> None:
    """Run the command line. At any time, Ctrl-C ends it with exit code 130 and one line, in the background too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with interrupts_end_imports(), imports_are_kept():
        from rmqha.cli import main as run
    run()


if __name__ == "__main__":
    main()
