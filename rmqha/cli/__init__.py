"""The ``rmqha`` command: inspects stores and nodes. ``exitcodes`` lists its exit codes.

In reading order:

- ``shared``: what all commands use: options, opening a store, a progress bar, running the reactor.
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
- ``rewind``: ``rmqha rewind``: takes a store back to where its log parts from a master's.
- ``replay``: ``rmqha replay``: sends stored messages again.
- ``tables``: tables that fit into a narrow terminal.
- ``lag``: ``rmqha lag``: how far consumer groups are behind.
- ``query``: ``rmqha query``: finds messages.
- ``tail``: ``rmqha tail``: the last messages of a topic, and the new ones.
- ``messages``: ``rmqha put`` and ``rmqha pull``: send messages to brokers and read them.

The jobs of ``rmqha job`` are in ``pipeline.cli``.
"""

import click

from rmqha import __version__
from rmqha.cli.doctor import doctor
from rmqha.cli.dump import dump, queues
from rmqha.cli.lag import lag
from rmqha.cli.messages import pull, put
from rmqha.cli.promote import promote
from rmqha.cli.query import query
from rmqha.cli.recover import rebuild, recover
from rmqha.cli.repair import repair, restore_cut
from rmqha.cli.replay import replay
from rmqha.cli.restore import backup, restore
from rmqha.cli.rewind import rewind
from rmqha.cli.shared import Commands
from rmqha.cli.status import status
from rmqha.cli.tail import tail
from rmqha.cli.top import top
from rmqha.cli.verify import verify
from rmqha.pipeline.cli import job


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rmqha")
def main() -> None:
    """Inspect and repair RocketMQ stores and HA nodes; send messages to brokers and read them.

    STORE is the storePathRootDir of a node or of a Java broker. To run a node, use twistd: see twistd rmqha --help.
    Errors are one line on stderr; RMQHA_DEBUG=1 in the environment adds their tracebacks.
    """


for _command in (
    backup,
    doctor,
    dump,
    job,
    lag,
    promote,
    pull,
    put,
    query,
    queues,
    rebuild,
    recover,
    repair,
    replay,
    restore,
    restore_cut,
    rewind,
    status,
    tail,
    top,
    verify,
):
    main.add_command(_command)
job.add_command(replay)  # for archives; it needs a reactor, which the other jobs must not have
