"""What all commands share: how they end, and the options ``--conf`` and ``--set``. It needs no reactor."""

import errno
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from rmqha.kit.exitcodes import ExitCode, table
from rmqha.kit.printing import printable
from rmqha.settings.confkeys import nearest, parse_override, store_settings
from rmqha.settings.settings import Settings, SettingsError, read_properties
from rmqha.store.errors import NoStore, StoreError, StoreInUse
from rmqha.store.nodestate import NodeState
from rmqha.wire.delay import DelayLevels

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, an exhausted quota, a limit on file sizes: after these, every command can be run again."""
DEBUG = "RMQHA_DEBUG"
"""If this is set in the environment, errors are shown with their tracebacks."""

Command = TypeVar("Command", bound=Callable[..., Any])


def say(line: str, err: bool = False) -> None:
    """Print one line for people. Unprintable characters are escaped, because the text may come from strangers."""
    click.echo(printable(line), err=err)


class HelpfulGroup(click.Group):
    """Names the most similar command if there is none of a name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names. If there is none, the error names the most similar one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = nearest(name, self.list_commands(ctx))
            hint = "" if close is None else f" Did you mean {close}?"
            raise click.UsageError(f"No such command {printable(name)!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class CommandGroup(HelpfulGroup):
    """Ends each failed command with one line on stderr and an exit code; Ctrl-C ends it with 130.

    A subclass defines the exit codes of further errors.
    """

    def exit_code_of(self, error: Exception) -> ExitCode | None:
        """The exit code of an error; None for an unexpected error, which is shown with its traceback."""
        return exit_code_of(error)

    def reason_of(self, error: Exception) -> str:
        """The error in one line."""
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return f"{error}: nothing is lost: make room, then run the same command again"
        return str(error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # as in `rmqha dump … | head`, where the reader ends first
            with suppress(OSError):
                sys.stdout.close()
            ctx.exit(ExitCode.FINE)
        except (KeyboardInterrupt, click.Abort):
            self._end(ctx, ExitCode.INTERRUPTED, "interrupted")
        except (click.exceptions.Exit, click.ClickException):
            raise
        except Exception as error:
            code = None if DEBUG in os.environ and not isinstance(error, Trouble) else self.exit_code_of(error)
            if code is None:
                raise
            self._end(ctx, code, self.reason_of(error))

    @staticmethod
    def _end(ctx: click.Context, code: ExitCode, reason: str) -> NoReturn:
        say(f"rmqha: {reason}", err=True)
        ctx.exit(code)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl(table())


def exit_code_of(error: Exception) -> ExitCode | None:
    """The exit code of an error of a store or of settings; None for other errors."""
    for kind, code in EXIT_CODES.items():
        if isinstance(error, kind):
            return error.code if isinstance(error, Trouble) else code
    return None


class Trouble(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


EXIT_CODES: dict[type[Exception], ExitCode] = {
    Trouble: ExitCode.CORRUPT,  # not used: a Trouble has its own code
    StoreInUse: ExitCode.IN_USE,
    NoStore: ExitCode.USAGE,
    StoreError: ExitCode.CORRUPT,
    SettingsError: ExitCode.USAGE,
    OSError: ExitCode.IO_ERROR,
}
"""The first class that matches decides."""


def SETTINGS(command: Command) -> Command:
    """Add ``--conf`` and ``--set`` to a command. It gets them as ``conf`` and ``sets``: see ``settings_of``."""
    conf = click.option(
        "--conf",
        type=click.Path(path_type=Path),
        default=None,
        metavar="FILE",
        help="The broker.conf of the store's node, ours or Java's: file sizes, folders and delay levels.",
    )
    sets = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="KEY=VALUE",
        help="One setting of broker.conf, which wins over --conf. May be given several times.",
    )
    return conf(sets(command))


def _delay_levels_of(store: Path) -> dict[str, str]:
    """The delay levels that the store's node noted, as a setting; empty if it has noted none that are valid."""
    try:
        state = NodeState.read(store)
        if state is None or state.delay_levels is None:
            return {}
        return {"messageDelayLevel": str(DelayLevels(state.delay_levels))}
    except (StoreError, OSError, ValueError):  # what reads the state next says so
        return {}


def settings_of(store: Path, conf: Path | None = None, sets: Iterable[str] = ()) -> Settings:
    """The settings for ``store``, from the options of ``SETTINGS``.

    Without options, the defaults apply; if a setting has no default, the files of the store decide. The delay levels
    are those of the last node of ours that ran on the store. Raises Trouble with exit code 2 for an invalid file or
    setting.
    """
    try:
        properties = _delay_levels_of(store) if conf is None else {**_delay_levels_of(store), **read_properties(conf)}
        return store_settings(store, properties, dict(map(parse_override, sets)))
    except SettingsError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
