"""The ``rmqha`` command: inspects stores and nodes. ``exitcodes`` lists its exit codes.

In reading order:

- ``shared``: what commands use: options, a progress bar, JSON.
- ``stores``: opens a store.
- ``running``: runs the reactor.
- ``access``: options that say whom to ask, and how.
- ``brokers``: the client of commands that send or read messages.
- ``dump``: ``rmqha dump`` and ``rmqha queues``: show what a store contains.
- ``live``: shows something again and again.
- ``statusofbroker``: asks a broker for its status.
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
from typing import TYPE_CHECKING, Final

import click

from rmqha import __version__
from rmqha.kit.collecting import imports_are_kept
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.interrupts import interrupts_end_imports
from rmqha.store.offline.commands import CommandGroup

if TYPE_CHECKING:  # only a shell's completion needs it
    from click.shell_completion import CompletionItem

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
SUMMARIES: Final = {
    "backup": "Copy STORE as it is now to the new folder DEST.",
    "cluster": "Show the clusters with automatic failover, and give orders to their nodes.",
    "doctor": "Check brokers, ours or Java's, and stores on this machine, and say what to do.",
    "dump": "Print the records of the commit log, one on each line.",
    "job": "Run jobs over a whole log, up to what its node has confirmed.",
    "lag": "Show for each consumer group and topic how many messages are not consumed yet (diff).",
    "promote": "Make a slave the master, because its master is gone.",
    "pull": "Print the messages of all queues of TOPIC, one on each line, as dump does.",
    "put": "Send BODY to TOPIC.",
    "query": "Find messages by --key, --id, --time or --offset, in STORE or on brokers, and print them as dump does.",
    "queues": "Show the first and the next offset of every queue.",
    "rebuild": "Rebuild consume queues and index from the log, after recovery.",
    "recover": "Show what a node would find and cut when it starts; with --apply, do it.",
    "repair": "Replace bad stretches of the log with bytes from a replica: from another store, or from a running node.",
    "replay": "Send the messages of SOURCE to a broker again: a store, a file of STORE/rmqha/cut, or an archive.",
    "restore": "Make a new store that ends at an earlier place of SOURCE's log.",
    "restore-cut": "Put back bytes that recovery has cut off the log and kept in STORE/rmqha/cut.",
    "rewind": "Cut STORE back to the last record that it has in common with a master, so that it can follow that "
    "master.",
    "status": "Show role, state, offsets and lag: of a store here, or of a broker, ours or Java's, by its remoting "
    "port.",
    "tail": "Print the last messages of all queues of TOPIC, one on each line, as dump does.",
    "top": "Show brokers, ours or Java's, with their states, lag and rates, again and again until Ctrl-C.",
    "verify": "Check every record (size, magic, CRC, own offset), queues and index, and compare with another store.",
}
"""The first sentence of each command's help, for ``rmqha --help`` and for shells that complete words."""


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of all commands for ``--help``."""
        self._outline().format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """The commands and options that begin so."""
        outline = self._outline()
        return outline.shell_complete(click.Context(outline, help_option_names=ctx.help_option_names), incomplete)

    def _outline(self) -> click.Group:
        """This group with what the table says of its commands, so that no module has to be imported."""
        commands = [click.Command(name, help=summary) for name, summary in SUMMARIES.items()]
        return click.Group(self.name, commands, params=self.params)


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
