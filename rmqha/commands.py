"""What all commands share that need no reactor: how they end, and the options that say how a store was made."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from rmqha.confkeys import parse_override, store_settings
from rmqha.exitcodes import ExitCode, table
from rmqha.printing import printable
from rmqha.settings import Settings, SettingsError, read_properties
from rmqha.store.errors import NoStore, StoreError, StoreInUse

DEBUG = "RMQHA_DEBUG"
"""Set in the environment, errors are shown with their tracebacks."""

Command = TypeVar("Command", bound=Callable[..., Any])


def say(line: str, err: bool = False) -> None:
    """Print one line for people. It may hold what strangers have written: no terminal obeys it."""
    click.echo(printable(line), err=err)


class CommandGroup(click.Group):
    """Ends each command with one line on stderr and an exit code, whatever went wrong; Ctrl-C with 130.

    A subclass knows the exit codes of its errors.
    """

    def exit_code_of(self, error: Exception) -> ExitCode | None:
        """None for an error that nobody expected: it is shown whole."""
        return exit_code_of(error)

    def reason_of(self, error: Exception) -> str:
        """The error in one line."""
        return str(error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `rmqha dump … | head`: nobody reads on
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
    """The exit code of what can be wrong with a store or with settings; None for other errors."""
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
    Trouble: ExitCode.CORRUPT,  # it has one of its own
    StoreInUse: ExitCode.IN_USE,
    NoStore: ExitCode.USAGE,
    StoreError: ExitCode.CORRUPT,
    SettingsError: ExitCode.USAGE,
    OSError: ExitCode.IO_ERROR,
}
"""By the first class that fits."""


def SETTINGS(command: Command) -> Command:
    """Add ``--conf`` and ``--set``. The command gets them as ``conf`` and ``sets``: see ``settings_of``."""
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


def settings_of(store: Path, conf: Path | None = None, sets: Iterable[str] = ()) -> Settings:
    """The settings with which a command looks at ``store``, from the options of ``SETTINGS``.

    Without options they are the defaults; where a setting has none, the files of the store decide. Raises Trouble
    with exit code 2 for a file or a setting that cannot be used.
    """
    try:
        properties = {} if conf is None else read_properties(conf)
        return store_settings(store, properties, dict(map(parse_override, sets)))
    except SettingsError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
