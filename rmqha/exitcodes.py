"""How a command or a node says how it ended (design contract: scripts rely on these numbers)."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The process's exit status."""

    FINE = 0
    CORRUPT = 1
    USAGE = 2
    GAP = 3
    AHEAD = 4
    DIVERGED = 5
    STALLED = 6
    CANNOT_CONNECT = 7
    IO_ERROR = 8
    IN_USE = 9
