"""What the commands share: options, opening a store, a progress bar, running the reactor until an answer arrives."""

import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson
from click.core import ParameterSource
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure

from rmqha.acl.credentials import make_signer
from rmqha.acl.yamlfile import AclFileError
from rmqha.client import MQBrokerError, MQClient, MQClientError, TopicNotFound
from rmqha.client.received import BodyError, inflated_body
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable_json
from rmqha.kit.progress import from_offset, progress
from rmqha.kit.times import iso_time, parse_time
from rmqha.net.tls.certificates import TLSError
from rmqha.net.tls.endpoints import ClientTLS, TLSFiles
from rmqha.settings.settings import Settings
from rmqha.store.offline.commands import CommandGroup, Trouble, exit_code_of, say
from rmqha.store.offline.storereader import StoreReader
from rmqha.store.opening import Opening
from rmqha.wire.layout import BLANK_MAGIC_CODE
from rmqha.wire.record import Blank, Record, record_as_json
from rmqha.wire.subscription import SUB_ALL, SqlExpression

STORE = click.argument("store", type=click.Path(path_type=Path))
TLS = (
    click.option(
        "--tls-ca", default=None, help="For tls:HOST:PORT: PEM file of trusted authorities; default: the platform's."
    ),
    click.option("--tls-cert", default=None, help="For tls:HOST:PORT: PEM file of the certificate to show."),
    click.option("--tls-key", default=None, help="PEM file of its key; default: the file of --tls-cert."),
)
ACL = click.option(
    "--acl-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Sign requests with the accessKey and secretKey of this tools.yml. Default: $RMQHA_ACCESS_KEY and "
    "$RMQHA_SECRET_KEY, if they are set.",
)
BROKERS_TLS = click.option(
    "--tls", "over_tls", is_flag=True, help="Use TLS for the brokers that the name servers return."
)
NAMESRV_VARIABLE = "RMQHA_NAMESRV"
OTHER_WAYS = ("broker", "store", "hosts", "targets")
"""Parameters that say whom to ask, in place of name servers."""


class NameServersOption(click.Option):
    """``--namesrv``. If the command line says of nobody whom to ask, the environment does."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """As click calls it: the value, and where it is from."""
        value, source = super().consume_value(ctx, opts)
        others = (opts.get(name) for name in OTHER_WAYS)  # what was not given is None, or a mark of click's
        is_said = any(each and isinstance(each, str | list | tuple) for each in others)
        if source is ParameterSource.COMMANDLINE or is_said:
            return value, source
        found = os.environ.get(NAMESRV_VARIABLE)
        return (found, ParameterSource.ENVIRONMENT) if found else (value, source)


def namesrv_option(words: str, default: str | None = None) -> Callable[[Any], Any]:
    """The option ``--namesrv``, with this help."""
    return click.option(
        "--namesrv",
        cls=NameServersOption,
        default=default,
        metavar="HOST:PORT;…",
        help=f"{words} Default: ${NAMESRV_VARIABLE}, if nothing else says whom to ask.",
    )


WAY = (
    namesrv_option("Name servers, which know the topic's brokers."),
    click.option("--broker", default=None, metavar="HOST:PORT", help="One broker instead: its listenPort."),
    BROKERS_TLS,
    *TLS,
    ACL,
)
EXPRESSION = (
    click.option("--tags", default=None, metavar="TAGS", help="Only these: TagA || TagB."),
    click.option(
        "--sql",
        default=None,
        metavar="SQL",
        help="Only those whose properties match: \"a > 5 AND b = 'x'\". The broker needs enablePropertyFilter=true.",
    ),
)
"""Which messages of a topic to read: see ``expression_of``."""
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Machine-readable: one JSON object (dump: one on each line)."
)


Answer = TypeVar("Answer")
Command = TypeVar("Command", bound=Callable[..., None])


def expression_of(tags: str | None, sql: str | None) -> str:
    """What the options of ``EXPRESSION`` select. Raises Trouble if both are given."""
    if sql is None:
        return SUB_ALL if tags is None else tags
    if tags is not None:
        raise Trouble(ExitCode.USAGE, "--tags and --sql exclude each other")
    return SqlExpression(sql)


def with_options(options: tuple[Callable[[Any], Any], ...]) -> Callable[[Command], Command]:
    """Add all these options to a command, in their order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def with_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options ``TLS`` and ``ACL`` to a command. It gets what they say as ``tls``, a ClientTLS."""

    @wraps(command)
    def run(
        tls_ca: str | None, tls_cert: str | None, tls_key: str | None, acl_file: Path | None, **others: Any
    ) -> None:
        command(tls=client_tls(tls_cert, tls_key, tls_ca, acl_file), **others)

    return with_options((*TLS, ACL))(run)


class Interrupted(Trouble):
    """The user pressed Ctrl-C."""

    def __init__(self) -> None:
        super().__init__(ExitCode.INTERRUPTED, "interrupted")


class Commands(CommandGroup):
    """The group of all commands. It also handles the errors of clients."""

    def exit_code_of(self, error: Exception) -> ExitCode | None:
        """As in ``CommandGroup``, but also for errors of clients."""
        if isinstance(error, TopicNotFound):
            return ExitCode.USAGE
        if isinstance(error, MQClientError):
            return ExitCode.CANNOT_CONNECT
        return ExitCode.IO_ERROR if isinstance(error, MQBrokerError) else exit_code_of(error)


@contextmanager
def open_store(path: Path, settings: Settings | None = None) -> Iterator[StoreReader]:
    """Open a store for reading. The settings give the place of its log and the size of its segments.

    Raises Trouble with exit code 2 if it does not exist, StoreError, OSError.
    """
    if not path.is_dir():
        raise Trouble(ExitCode.USAGE, f"{path}: there is no such store")
    store = StoreReader(path, settings)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def progress_bar(title: str, start: int, end: int) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr. It yields a function to call with each offset reached."""
    with progress(title) as show:
        reached = from_offset(show, start, end)
        reached(start)
        yield reached


@contextmanager
def opening_bar() -> Iterator[Opening]:
    """What to pass to a MessageStore that a command opens: it shows on stderr how far opening is."""
    with progress("opening the store") as show:
        yield Opening(of_node=False, reporting=lambda phase, done, total: show(done, total, phase.value))


def parsed_time(text: str, expected: str) -> int:
    """The time, in ms since 1970, that a user typed. Raises BadParameter, which says what was ``expected`` instead."""
    try:
        return parse_time(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither {expected}: {error}") from None


def print_json(content: dict[str, Any]) -> None:
    click.echo(json_line(content))


def json_line(content: dict[str, Any]) -> str:
    """JSON in one line, with unprintable characters escaped."""
    return printable_json(orjson.dumps(content).decode())


def result_of(done: Deferred[None]) -> None:
    """Raise the failure of a Deferred that has fired, if it failed."""
    failures: list[Failure] = []
    done.addErrback(failures.append)
    if failures:
        failures[0].raiseException()


def the_reactor() -> Any:
    """The reactor. It is imported only here, because most commands do not need it."""
    from twisted.internet import reactor

    return reactor


def tls_files(certificate: str | None, key: str | None, authorities: str | None) -> TLSFiles:
    try:
        return TLSFiles.load(certificate, key, authorities)
    except TLSError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error


def client_tls(certificate: str | None, key: str | None, authorities: str | None, acl_file: Path | None) -> ClientTLS:
    """How a command shows who it is: its certificate, and what signs its requests. Raises Trouble with exit code 2."""
    tls = tls_files(certificate, key, authorities).client()
    try:
        tls.sign = make_signer(acl_file)
    except AclFileError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
    return tls


def run_reactor(reactor: Any, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run the reactor until ``ask`` has an answer. Raises what ``ask`` raises, and Interrupted."""
    answers: list[Answer] = []
    failures: list[Failure] = []
    ended: Deferred[None] = Deferred()

    def begin() -> None:
        asking: Deferred[Answer] = Deferred.fromCoroutine(ask())

        def interrupt() -> Deferred[None]:
            asking.cancel()
            return ended

        reactor.addSystemEventTrigger("before", "shutdown", interrupt)
        asking.addCallbacks(answers.append, failures.append).addBoth(end)

    def end(_: object) -> None:
        ended.callback(None)
        with suppress(ReactorNotRunning):  # Ctrl-C has stopped it
            reactor.stop()

    reactor.callWhenRunning(begin)
    reactor.run()
    if failures and failures[0].check(CancelledError) is None:
        failures[0].raiseException()
    if not answers:
        raise Interrupted
    return answers[0]


def make_client(
    reactor: Any,
    namesrv: str | None,
    broker: str | None,
    over_tls: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    acl_file: Path | None = None,
) -> MQClient:
    """Make a client from the options of WAY. Raises Trouble with exit code 2."""
    files = client_tls(tls_cert, tls_key, tls_ca, acl_file)
    if (namesrv is None) == (broker is None):
        raise Trouble(ExitCode.USAGE, "give either --namesrv or --broker")
    try:
        if broker is not None:
            return MQClient.of_broker(reactor, broker, files)
        return MQClient.of_name_servers(reactor, namesrv or "", files, over_tls)
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


def blank_line(offset: int, blank: Blank, as_json: bool) -> str:
    if as_json:
        return json_line({"blank": blank.size, "offset": offset, "magic": BLANK_MAGIC_CODE})
    return f"{offset:>20}  blank of {blank.size} bytes"


def record_line(offset: int, record: Record, as_json: bool) -> str:
    fields = record_as_json(record)
    if as_json:
        return json_line(fields)
    keys = " ".join(f"{name}={fields['properties'][name]}" for name in ("TAGS", "KEYS") if name in fields["properties"])
    return (
        f"{offset:>20}  {fields['topic']} queue {record.queue_id} offset {record.queue_offset}  "
        f"{len(record.body)} bytes  {iso_time(record.store_timestamp)}  {keys}".rstrip()
    )
