"""Lists commands, options and exit codes in docs/commands.md: ``make pages``."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from rmqha.cli import main
from rmqha.kit.exitcodes import table
from rmqha.namesrv_tap import Options as NameServerOptions
from rmqha.tap import Options as NodeOptions

PAGE = Path(__file__).parents[1] / "commands.md"
HEAD = """\
# The commands of rmqha

`docs/make/commands.py` makes this page from the help of the commands. A test keeps both equal. `rmqha COMMAND --help`
and `twistd rmqha --help` show the same on a terminal.

A bar on stderr shows how far a long command has come. If stderr is not a terminal, it gets a line every ten seconds.
Ctrl-C ends every command with exit code 130; those that run until Ctrl-C end with 0. Text that strangers may have
chosen is escaped. A command whose reader ends (`| head`) ends quietly.
"""
CODES_HEAD = """
## Exit codes

`rmqha`, `twistd rmqha` and `twistd rmqha-namesrv` end with one of these. The [runbook](runbook.md#exit-codes) says what
to type after each.

| exit code | meaning |
|---:|---|
"""
ENVIRONMENT = {
    "RMQHA_NAMESRV": "Name servers for commands, unless their options say whom to ask.",
    "RMQHA_FAILOVER": "The coordinator for `rmqha cluster`, as the nodes have it in `--failover`.",
    "RMQHA_ACCESS_KEY": "The name of the account that signs requests of commands and nodes, if no file is given.",
    "RMQHA_SECRET_KEY": "Its secret key. Both must be set.",
    "RMQHA_SECURITY_TOKEN": "A token that is sent with these two, if the broker wants one.",
    "RMQHA_COORDINATOR_USER": "The user at the coordinator, for commands and nodes, if no file is given.",
    "RMQHA_COORDINATOR_PASSWORD": "The password of this user. Both must be set.",
    "RMQHA_DEBUG": "`1`: errors of `rmqha` come with their tracebacks.",
    "RMQHA_PURE_PYTHON": "`1`: never [the compiled kernel](install.md#the-compiled-kernel). `0`: it must be there.",
    "ROCKETMQ_HOME": "If there is neither aclFolder nor `--conf`, `conf` in this folder has the files with accounts.",
    "RMQHA_OPTIONS": "The units of systemd: options for the node or the name server. A file in `/etc/rmqha` sets it.",
    "RMQHA_MASTER": "The image, without arguments: the HA port of the master to copy.",
    "RMQHA_HTTP_PORT": "The image's health check: the HTTP port that it asks. Default: 5557.",
}
"""What users may set, and what it does."""
ENVIRONMENT_HEAD = """
## Environment variables

| variable | meaning |
|---|---|
"""
PLUGINS: dict[str, type[NodeOptions] | type[NameServerOptions]] = {
    "twistd rmqha": NodeOptions,
    "twistd rmqha-namesrv": NameServerOptions,
}
OPTIONS_HEAD = "\n| option | meaning |\n|---|---|\n"


def page() -> str:
    """The whole page, in Markdown."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in table())
    variables = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in ENVIRONMENT.items())
    plugins = "".join(_plugin(name, kind()) for name, kind in PLUGINS.items())
    commands = "".join(_section(f"rmqha {name}", each) for name, each in _all(main))
    return HEAD + _contents() + CODES_HEAD + codes + ENVIRONMENT_HEAD + variables + plugins + commands


def _contents() -> str:
    """Links to all sections: one line for each command, and for each group with its commands."""
    shown = [f"- {_link(name.capitalize(), name)}" for name in ("exit codes", "environment variables")]
    shown += [f"- {_link(name, name)}" for name in PLUGINS]
    for name, _ in _all(main):
        group, _, inner = name.partition(" ")
        if not inner:
            shown.append(f"- {_link(f'rmqha {group}', f'rmqha {group}')}")
        else:
            shown[-1] += f"{', ' if ': ' in shown[-1] else ': '}{_link(inner, f'rmqha {name}')}"
    return "\n" + "\n".join(shown) + "\n"


def _link(text: str, heading: str) -> str:
    return f"[{text}](#{heading.replace(' ', '-')})"


def _plugin(name: str, options: NodeOptions | NameServerOptions) -> str:
    """A plugin of twistd, with its options in the order of the alphabet."""
    rows = {}
    for key in sorted(option.rstrip("=") for option in options.longOpt):
        value = "=VALUE" if f"{key}=" in options.longOpt else ""
        meaning, default = options.docs[key], options.defaults.get(key)
        if default and "default" not in meaning:
            meaning += f"; default: {default}"
        rows[key] = f"| `--{key}{value}` | {_cell(meaning)} |\n"
    text = " ".join(options.longdesc.split())
    return f"\n## {name}\n\n```text\n{name} [OPTIONS]\n```\n\n{text}\n{OPTIONS_HEAD}{''.join(rows.values())}"


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
    shown = f"{OPTIONS_HEAD}{rows}" if rows else ""
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
