"""The ``rmqha`` command: looks at stores and nodes. Exit codes are those of ``exitcodes``.

``shared`` has what all commands use; each other module has the commands that it names.
"""

import click

from rmqha import __version__
from rmqha.cli.dump import dump, queues
from rmqha.cli.messages import pull, put
from rmqha.cli.recover import rebuild, recover
from rmqha.cli.repair import repair, restore_cut
from rmqha.cli.shared import Commands
from rmqha.cli.status import status
from rmqha.cli.verify import verify
from rmqha.pipeline.cli import job


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rmqha")
def main() -> None:
    """Look at RocketMQ stores and HA nodes: dump, verify, recover, status; put messages to brokers and pull them.

    STORE is a storePathRootDir, of a node of ours or of a Java broker. A node itself is run by twistd: see
    twistd rmqha --help. Errors are one line on stderr; RMQHA_DEBUG=1 in the environment adds their tracebacks.
    """


for _command in (dump, job, pull, put, queues, rebuild, recover, repair, restore_cut, status, verify):
    main.add_command(_command)
