"""The ``rmqha`` command: inspects stores and nodes. ``exitcodes`` lists its exit codes.

In reading order:

- ``shared``: what commands use: options, a progress bar, JSON.
- ``stores``: opens a store.
- ``running``: runs the reactor.
- ``access``: options that say whom to ask, and how.
- ``brokers``: the client of commands that send or read messages.
- ``dump``: ``rmqha dump`` and ``rmqha queues``: show what a store contains.
- ``live``: shows something again and again.
- ``status``: ``rmqha status``: the state of a store or of a broker.
- ``top``: ``rmqha top``: a live view of brokers.
- ``doctor``: ``rmqha doctor``: checks brokers, stores and name servers, and says what to do.
- ``verify``: ``rmqha verify``: checks a store, alone or against another one.
- ``recover``: ``rmqha recover`` and ``rmqha rebuild``: recover a store and rebuild its queues while no node runs.
- ``repair``: ``rmqha repair`` and ``rmqha restore-cut``: bring bytes back into a log.
- ``restore``: ``rmqha restore`` and ``rmqha backup``: copy a store, up to a place in its log or as it is now.
- ``promote``: ``rmqha promote``: makes a slave a master.
- ``coordinator``: how commands reach the coordinator of automatic failover.
- ``cluster``: ``rmqha cluster``: clusters with automatic failover, and orders to their nodes.
- ``rewind``: ``rmqha rewind``: takes a store back to where its log parts from a master's.
- ``replaycondition``: its conditions in SQL.
- ``replaymemory``: what it remembers when it is killed.
- ``replay``: ``rmqha replay``: sends stored messages again.
- ``tables``: tables that fit into a narrow terminal.
- ``lag``: ``rmqha lag``: how far consumer groups are behind.
- ``query``: ``rmqha query``: finds messages.
- ``tail``: ``rmqha tail``: the last messages of a topic, and the new ones.
- ``messages``: ``rmqha put`` and ``rmqha pull``: send messages to brokers and read them.
- ``jobs``: ``rmqha job``: the jobs of ``pipeline.cli``, and one that needs a reactor.

Only the module of the command that runs is imported: all of them take most of a second.
"""

from importlib import import_module
from typing import Final

import click

from rmqha import __version__
from rmqha.kit.collecting import imports_are_kept
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.interrupts import interrupts_end_imports
from rmqha.store.offline.commands import CommandGroup

MODULES: Final = {
    "backup": "restore",
    "cluster": "cluster",
    "doctor": "doctor",
    "dump": "dump",
    "job": "jobs",
    "lag": "lag",
    "promote": "promote",
    "pull": "messages",
    "put": "messages",
    "query": "query",
    "queues": "dump",
    "rebuild": "recover",
    "recover": "recover",
    "repair": "repair",
    "replay": "replay",
    "restore": "restore",
    "restore-cut": "repair",
    "rewind": "rewind",
    "status": "status",
    "tail": "tail",
    "top": "top",
    "verify": "verify",
}
"""The module of each command. There the command has its own name, with ``_`` for ``-``."""


class LazyCommands(CommandGroup):
    """The group of all commands. It imports a command's module when somebody asks for the command."""

    def exit_code_of(self, error: Exception) -> ExitCode | None:
        """As in ``CommandGroup``, but also for errors of clients."""
        code = super().exit_code_of(error)
        if code is None:
            from rmqha.cli.brokers import exit_code_of

            return exit_code_of(error)
        return code

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*MODULES, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; None if there is none."""
        if cmd_name in MODULES and cmd_name not in self.commands:
            with interrupts_end_imports(), imports_are_kept():
                module = import_module(f"{__name__}.{MODULES[cmd_name]}")
            self.add_command(getattr(module, cmd_name.replace("-", "_")), cmd_name)
        return super().get_command(ctx, cmd_name)


def _version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Show the version, and which code runs: the compiled kernel or plain Python."""
    if not is_asked or ctx.resilient_parsing:
        return
    from rmqha.wire.compiled import implementation  # other commands' help does not need it

    click.echo(f"rmqha, version {__version__} ({implementation()})")
    ctx.exit()


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def main() -> None:
    """Inspect and repair RocketMQ stores and HA nodes; send messages to brokers and read them.

    STORE is the storePathRootDir of a node or of a Java broker. To run a node, use twistd: see twistd rmqha --help.
    Errors are one line on stderr; RMQHA_DEBUG=1 in the environment adds their tracebacks.
    """
