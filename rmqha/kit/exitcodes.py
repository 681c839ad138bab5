"""The exit codes of commands and nodes. Scripts rely on these numbers, and this is the only table of them.

docs/commands.md and the help of the commands show the same table; a test keeps them equal.
"""

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
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.FINE: "fine",
    ExitCode.CORRUPT: "corruption or a difference found; doctor: a check failed",
    ExitCode.USAGE: "wrong usage: an option, a setting, an unknown topic, no store, an archive of another log",
    ExitCode.GAP: "GAP: the master has deleted what comes next",
    ExitCode.AHEAD: "AHEAD: the master's log is shorter than ours",
    ExitCode.DIVERGED: "DIVERGED: the master's log is another",
    ExitCode.STALLED: "STALLED or timed out; put: stored, but not on every disk or slave in time",
    ExitCode.CANNOT_CONNECT: "cannot connect",
    ExitCode.IO_ERROR: "input/output error, or refused by a broker",
    ExitCode.IN_USE: "store or archive in use",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}
"""The meaning of each code, for nodes and commands."""

NOT_MENDED_BY_RESTART = (
    ExitCode.CORRUPT,
    ExitCode.USAGE,
    ExitCode.GAP,
    ExitCode.AHEAD,
    ExitCode.DIVERGED,
    ExitCode.IN_USE,
)
"""After these codes a node that is started again would end again: systemd's units leave it stopped."""


def table(codes: "tuple[ExitCode, ...]" = tuple(ExitCode)) -> list[tuple[str, str]]:
    """The numbers and meanings of these codes as texts, for the help."""
    return [(str(int(code)), MEANINGS[code]) for code in codes]
