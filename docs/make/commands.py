"""Lists the commands of ``rmqha`` in docs/commands.md: ``make pages``."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from rmqha.cli import main
from rmqha.kit.exitcodes import table

PAGE = Path(__file__).parents[1] / "commands.md"
HEAD = """\
# The commands of rmqha

`docs/make/commands.py` makes this page from the help of the commands. A test keeps both equal. `rmqha COMMAND --help`
shows the same on a terminal.

A bar on stderr shows how far a long command has come. If stderr is not a terminal, it gets a line every ten seconds.
Ctrl-C ends every command with exit code 130; those that run until Ctrl-C end with 0. Text that strangers may have
chosen is escaped. A command whose reader ends (`| head`) ends quietly. With `RMQHA_DEBUG=1` in the environment, errors
come with their tracebacks.

| exit code | means |
|---:|---|
"""


def page() -> str:
    """The whole page, in Markdown."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in table())
    return HEAD + codes + "".join(_section(f"rmqha {name}", each) for name, each in _all(main))


def _all(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """All commands with their names; a group is followed by its own commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for inner, each in _all(command):
                yield f"{name} {inner}", each


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command)
    arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    words = [name, *(["[OPTIONS]"] if options else []), *arguments]
    words += ["COMMAND …"] if isinstance(command, click.Group) else []
    text = "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    rows = "".join(f"| {_cell(_names(each))} | {_cell(_meaning(each))} |\n" for each in options)
    shown = f"\n| option | meaning |\n|---|---|\n{rows}" if rows else ""
    return f"\n## {name}\n\n```text\n{' '.join(words)}\n```\n\n{text}\n{shown}"


def _names(option: click.Option) -> str:
    kind = "NUMBER" if option.type.name.startswith(("integer", "float")) else option.type.name.upper()
    value = "" if option.is_flag else " " + (option.metavar or kind)
    if isinstance(option.type, click.Choice) and option.metavar is None:
        value = " " + "|".join(map(str, option.type.choices))
    return f"`{', '.join(option.opts)}{value}`"


def _meaning(option: click.Option) -> str:
    default = f" Default: {option.default}." if option.show_default is True else ""
    several = " May be given several times." if option.multiple and "several" not in (option.help or "") else ""
    return f"{option.help or ''}{default}{several}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
