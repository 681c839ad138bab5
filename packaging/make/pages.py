"""Writes the man pages and the completions of bash, zsh and fish: ``python packaging/make/pages.py FOLDER``."""

import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class
from click_man.core import write_man_pages  # type: ignore[import-untyped]

from rmqha import __version__, namesrv_tap, tap
from rmqha.cli import main as rmqha
from rmqha.kit.exitcodes import table

COMPLETIONS = {"bash": "rmqha.bash", "zsh": "_rmqha", "fish": "rmqha.fish"}
"""The file of each shell, with the name that the shell looks for."""
VARIABLE = "_RMQHA_COMPLETE"
PLUGINS = {"rmqha-node": tap.Options, "rmqha-namesrv": namesrv_tap.Options}
"""The pages of the plugins of twistd, by their names."""


def escaped(text: str) -> str:
    """The text as roff shows it."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)


def page_of_plugin(name: str) -> str:
    """The man page of a plugin of twistd: its help."""
    options: Any = PLUGINS[name]()
    command = options.command
    return "\n".join(
        (
            f'.TH "{name.upper()}" "1" "" "{__version__}" "rmqha"',
            ".SH NAME",
            f"{escaped(name)} \\- twistd {escaped(command)}: {escaped(options.longdesc.partition('.')[0])}",
            ".SH SYNOPSIS",
            f".B twistd \\-n \\-\\-pidfile= {escaped(command)}\n[options]",
            ".SH OPTIONS",
            f".nf\n{escaped(options.getUsage())}\n.fi",
            ".SH EXIT STATUS",
            exit_status(),
            ".SH SEE ALSO",
            ".BR rmqha (1)",
            "",
        )
    )


def exit_status() -> str:
    """The table of exit codes."""
    return "\n".join(f".TP\n.B {number}\n{escaped(meaning)}" for number, meaning in table())


def write_pages(folder: Path) -> None:
    """Write ``man/*.1`` and ``completions/*`` below the folder."""
    man, completions = folder / "man", folder / "completions"
    for each in (man, completions):
        each.mkdir(parents=True, exist_ok=True)
    context = click.Context(rmqha)
    for name in rmqha.list_commands(context):
        rmqha.get_command(context, name)  # click-man knows only of commands that are loaded
    write_man_pages("rmqha", rmqha, version=__version__, target_dir=str(man))
    with (man / "rmqha.1").open("a") as page:
        page.write(
            f"\n.SH EXIT STATUS\n{exit_status()}\n.SH SEE ALSO\n.BR rmqha\\-node (1),\n.BR rmqha\\-namesrv (1)\n"
        )
    for name in PLUGINS:
        (man / f"{name}.1").write_text(page_of_plugin(name))
    for shell, name in COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None, "click knows these shells"
        (completions / name).write_text(kind(rmqha, {}, "rmqha", VARIABLE).source())


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
