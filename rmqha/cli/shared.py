"""What the commands share: options, the store opened, a bar, the reactor run until an answer is there."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure

from rmqha.client import MQBrokerError, MQClientError, TopicNotFound
from rmqha.commands import SETTINGS, CommandGroup, Trouble, exit_code_of, say, settings_of
from rmqha.exitcodes import ExitCode
from rmqha.printing import printable_json
from rmqha.settings import Settings
from rmqha.store.offline.storereader import StoreReader
from rmqha.times import iso_time
from rmqha.tls.certificates import TLSError
from rmqha.tls.endpoints import TLSFiles
from rmqha.wire.record import BLANK_MAGIC_CODE, Blank, Record, record_as_json

__all__ = ["SETTINGS", "Trouble", "say", "settings_of"]  # of ``rmqha.commands``, for the commands here

STORE = click.argument("store", type=click.Path(path_type=Path))
TLS = (
    click.option(
        "--tls-ca", default=None, help="tls:HOST:PORT: authorities trusted, a PEM file; default: the platform's."
    ),
    click.option("--tls-cert", default=None, help="tls:HOST:PORT: the certificate to show, a PEM file."),
    click.option("--tls-key", default=None, help="Its key, a PEM file; default: in that of --tls-cert."),
)
WAY = (
    click.option(
        "--namesrv", default=None, metavar="HOST:PORT;…", help="Name servers, which know the topic's brokers."
    ),
    click.option("--broker", default=None, metavar="HOST:PORT", help="One broker instead: its listenPort."),
    click.option("--tls", is_flag=True, help="Ask the brokers that name servers tell over TLS."),
    *TLS,
)
JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable, one JSON object (dump: one a line).")


Answer = TypeVar("Answer")
Command = TypeVar("Command", bound=Callable[..., None])


def with_options(options: tuple[Callable[[Any], Any], ...]) -> Callable[[Command], Command]:
    """All these options, in their order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class Interrupted(Trouble):
    """Somebody pressed Ctrl-C."""

    def __init__(self) -> None:
        super().__init__(ExitCode.INTERRUPTED, "interrupted")


class Commands(CommandGroup):
    """The commands, with the errors of clients too."""

    def exit_code_of(self, error: Exception) -> ExitCode | None:
        """As ``CommandGroup`` says."""
        if isinstance(error, TopicNotFound):
            return ExitCode.USAGE
        if isinstance(error, MQClientError):
            return ExitCode.CANNOT_CONNECT
        return ExitCode.IO_ERROR if isinstance(error, MQBrokerError) else exit_code_of(error)


@contextmanager
def open_store(path: Path, settings: Settings | None = None) -> Iterator[StoreReader]:
    """A store read from outside; the settings say where its log is, and how long segments are."""
    if not path.is_dir():
        raise Trouble(ExitCode.USAGE, f"{path}: there is no such store")
    store = StoreReader(path, settings)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def progress_bar(title: str, start: int, end: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while long work runs, if a person watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    console = Console(stderr=True)
    with Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=max(0, end - start))
        yield lambda offset: bar.update(task, completed=offset - start)


def print_json(content: dict[str, Any]) -> None:
    click.echo(json_line(content))


def json_line(content: dict[str, Any]) -> str:
    """JSON for machines, in one line; a terminal obeys nothing of it either."""
    return printable_json(orjson.dumps(content).decode())


def result_of(done: Deferred[None]) -> None:
    """What a Deferred that has fired gives. Raises what it failed with."""
    failures: list[Failure] = []
    done.addErrback(failures.append)
    if failures:
        failures[0].raiseException()


def the_reactor() -> Any:
    """Imported when it is needed: most commands run none."""
    from twisted.internet import reactor

    return reactor


def tls_files(certificate: str | None, key: str | None, authorities: str | None) -> TLSFiles:
    try:
        return TLSFiles.load(certificate, key, authorities)
    except TLSError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error


def run_reactor(reactor: Any, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run the reactor until the answer is there. Raises what asking raises, and Interrupted."""
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
        with suppress(ReactorNotRunning):  # it was interrupted
            reactor.stop()

    reactor.callWhenRunning(begin)
    reactor.run()
    if failures and failures[0].check(CancelledError) is None:
        failures[0].raiseException()
    if not answers:
        raise Interrupted
    return answers[0]


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
