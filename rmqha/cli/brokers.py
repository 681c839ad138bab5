"""The client of commands that send or read messages, or look at groups."""

import sys
from collections.abc import Coroutine, Mapping
from typing import Any

import click
from zope.interface import implementer

from rmqha.cli.access import client_tls
from rmqha.cli.running import run_reactor
from rmqha.cli.shared import record_line
from rmqha.client import MQBrokerError, MQClient, MQClientError, TopicNotFound
from rmqha.client.follow import IMessageView
from rmqha.client.received import BodyError, inflated_body
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.offline.commands import Trouble, say
from rmqha.wire.record import Record


def exit_code_of(error: Exception) -> ExitCode | None:
    """The exit code of an error of a client; None for other errors."""
    if isinstance(error, TopicNotFound):
        return ExitCode.USAGE
    if isinstance(error, MQClientError):
        return ExitCode.CANNOT_CONNECT
    return ExitCode.IO_ERROR if isinstance(error, MQBrokerError) else None


def make_client(reactor: Any, way: Mapping[str, Any]) -> MQClient:
    """Make a client from the values of the options of WAY, by their names. Raises Trouble with exit code 2."""
    namesrv, broker = way["namesrv"], way["broker"]
    files = client_tls(way["tls_cert"], way["tls_key"], way["tls_ca"], way["acl_file"])
    if (namesrv is None) == (broker is None):
        raise Trouble(ExitCode.USAGE, "give either --namesrv or --broker")
    try:
        if broker is not None:
            return MQClient.of_broker(reactor, broker, files)
        return MQClient.of_name_servers(reactor, namesrv, files, way["over_tls"])
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error


def run_client(reactor: Any, client: MQClient, work: Coroutine[Any, Any, None]) -> None:
    """Run the reactor until the work is over and the client is stopped. Raises what the work raises, Interrupted."""

    async def run() -> None:
        try:
            await work
        finally:
            await client.stop()

    run_reactor(reactor, run)


@implementer(IMessageView)
class Printed:
    """Prints messages, one on each line: all of them, or only their bodies. Troubles go to stderr."""

    def __init__(self, only_body: bool, as_json: bool) -> None:
        self._only_body = only_body
        self._as_json = as_json

    def got(self, record: Record) -> None:
        """See ``IMessageView``."""
        if self._only_body:
            print_body(record)
        else:
            say(record_line(record.physical_offset, record, self._as_json))

    def trouble(self, line: str) -> None:
        """See ``IMessageView``."""
        say(f"rmqha: {line}", err=True)


def print_body(record: Record) -> None:
    """Print a message's body, decompressed, and a line end. If it cannot be decompressed: as it is, with a warning.

    A terminal gets a text without control characters: anyone may have written the body. A file or a pipe gets the
    bytes.
    """
    try:
        body = inflated_body(record)
    except BodyError as error:
        say(f"printed as it is: {error}", err=True)
        body = record.body
    if sys.stdout.isatty():
        say(body.decode("utf-8", "surrogateescape"))
    else:
        click.echo(body)
