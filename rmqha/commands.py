"""What all commands share that need no reactor: how they end, and the options that say how a store was made."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from rmqha.confkeys import parse_override, store_settings
from rmqha.exitcodes import ExitCode
from rmqha.settings import Settings, SettingsError, read_properties

Command = TypeVar("Command", bound=Callable[..., Any])


class Trouble(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


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
