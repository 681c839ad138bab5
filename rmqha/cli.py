"""The ``rmqha`` command: looks at stores and nodes. Exit codes are those of ``exitcodes``."""

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure

from rmqha import __version__
from rmqha.client import (
    Message,
    MQBrokerError,
    MQClient,
    MQClientError,
    Producer,
    PullConsumer,
    SendResult,
    SendStatus,
)
from rmqha.client.bulk import BulkPull, Edge, put_all
from rmqha.endpoints import make_endpoint
from rmqha.exitcodes import ExitCode
from rmqha.ops.status import Status, status_of_broker, status_of_store
from rmqha.pipeline.cli import job
from rmqha.settings import Settings, SettingsError, make_settings
from rmqha.store.audit import Audit, audit
from rmqha.store.derived import open_queues
from rmqha.store.errors import StoreError, StoreInUse
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.reader import Comparison, StoreReader, Verification
from rmqha.tls import TLSError, TLSFiles
from rmqha.wire.record import BLANK_MAGIC_CODE, Blank, Record, record_as_json

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


def _with(options: tuple[Callable[[Any], Any], ...]) -> Callable[[Command], Command]:
    """All these options, in their order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class Trouble(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Interrupted(Trouble):
    """Somebody pressed Ctrl-C."""

    def __init__(self) -> None:
        super().__init__(ExitCode.STALLED, "interrupted")


class Commands(click.Group):
    """Turns what can be wrong with a store into its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `rmqha dump … | head`: nobody reads on
            with suppress(OSError):
                sys.stdout.close()
            ctx.exit(ExitCode.FINE)
        except (Trouble, StoreError, SettingsError, MQClientError, MQBrokerError, OSError) as error:
            click.echo(f"rmqha: {error}", err=True)
            ctx.exit(_exit_code_of(error))


def _exit_code_of(error: Exception) -> ExitCode:
    if isinstance(error, Trouble):
        return error.code
    if isinstance(error, MQClientError):
        return ExitCode.CANNOT_CONNECT
    if isinstance(error, StoreInUse):
        return ExitCode.IN_USE
    if isinstance(error, StoreError):
        return ExitCode.CORRUPT
    return ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.IO_ERROR


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rmqha")
def main() -> None:
    """Look at RocketMQ stores and HA nodes: dump, verify, recover, status; put messages to brokers and pull them.

    STORE is a storePathRootDir, of a node of ours or of a Java broker. A node itself is run by twistd: see
    twistd rmqha --help. Exit codes: 0 fine, 1 corruption or difference found, 2 usage, 3 GAP, 4 AHEAD, 5 DIVERGED,
    6 STALLED or timed out, 7 cannot connect, 8 input/output error or refused by a broker, 9 store in use.
    """


main.add_command(job)


@contextmanager
def _open(path: Path) -> Iterator[StoreReader]:
    if not path.is_dir():
        raise Trouble(ExitCode.USAGE, f"{path}: there is no such store")
    store = StoreReader(path)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _progress(title: str, start: int, end: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while long work runs, if a person watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    console = Console(stderr=True)
    with Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=max(0, end - start))
        yield lambda offset: bar.update(task, completed=offset - start)


def _print_json(content: dict[str, Any]) -> None:
    click.echo(orjson.dumps(content).decode())


@main.command()
@STORE
@click.option("--from", "start", type=click.IntRange(min=0), default=0, help="First offset; the record at or after it.")
@click.option("--to", "end", type=click.IntRange(min=0), default=None, help="End before this offset.")
@click.option("--topic", default=None, help="Only this topic's messages.")
@JSON
def dump(store: Path, start: int, end: int | None, topic: str | None, as_json: bool) -> None:
    """Print the records of the commit log, one a line."""
    with _open(store) as reader:
        for offset, record in reader.records(start, end):
            if isinstance(record, Blank):
                if topic is None:
                    click.echo(_blank_line(offset, record, as_json))
            elif topic is None or record.topic == topic:
                click.echo(_record_line(offset, record, as_json))


def _blank_line(offset: int, blank: Blank, as_json: bool) -> str:
    if as_json:
        return orjson.dumps({"blank": blank.size, "offset": offset, "magic": BLANK_MAGIC_CODE}).decode()
    return f"{offset:>20}  blank of {blank.size} bytes"


def _record_line(offset: int, record: Record, as_json: bool) -> str:
    fields = record_as_json(record)
    if as_json:
        return orjson.dumps(fields).decode()
    keys = " ".join(f"{name}={fields['properties'][name]}" for name in ("TAGS", "KEYS") if name in fields["properties"])
    return (
        f"{offset:>20}  {fields['topic']} queue {record.queue_id} offset {record.queue_offset}  "
        f"{len(record.body)} bytes  {record.store_timestamp} ms  {keys}".rstrip()
    )


@main.command()
@STORE
@click.option("--against", type=click.Path(path_type=Path), default=None, help="Another store, to compare with.")
@JSON
def verify(store: Path, against: Path | None, as_json: bool) -> None:
    """Prove every record (size, magic, CRC, own offset), queues and index by the log, and one store against another."""
    with _open(store) as reader:
        proof = _verify(reader, str(store))
        with _progress("queues and index", reader.log.min_offset, proof.end) as progress:
            audited = audit(reader, proof.end, _settings_of(store), progress)
        comparison: Comparison | None = None
        if against is not None:
            with _open(against) as other:
                other_proof = _verify(other, str(against))
                start = max(reader.log.min_offset, other.log.min_offset)
                with _progress("comparing", start, min(proof.end, other_proof.end)) as progress:
                    comparison = reader.compare(proof.end, other, other_proof.end, progress)
    difference = _difference(comparison)
    problems = [_told_by(store, proof), *audited.problems, difference]
    if against is not None:
        problems.insert(1, _told_by(against, other_proof))
    if as_json:
        _print_json({**_proof_as_json(proof), **_audit_as_json(audited), **_comparison_as_json(comparison, difference)})
    else:
        click.echo(f"{proof.messages} sound messages from {proof.min_offset} to {proof.end}")
        if not audited.problems:
            click.echo(_audit_line(audited))
        if comparison is not None and difference is None:
            click.echo(f"identical from {comparison.start} to {comparison.end}")
    found = [problem for problem in problems if problem is not None]
    if found:
        raise Trouble(ExitCode.CORRUPT, "; ".join(found))


def _verify(reader: StoreReader, title: str) -> Verification:
    with _progress(title, reader.log.min_offset, reader.limit) as progress:
        return reader.verify(progress)


def _settings_of(store: Path) -> Settings:
    return make_settings({"storePathRootDir": str(store)})


def _audit_line(audited: Audit) -> str:
    line = f"{audited.queues} queues agree with the log up to {audited.built_until}"
    return f"{line}; the index lacks {audited.missing_keys} keys" if audited.missing_keys else line


def _audit_as_json(audited: Audit) -> dict[str, Any]:
    return {
        "queues": audited.queues,
        "queuesBuiltUntil": audited.built_until,
        "queueProblems": audited.problem_count,
        "missingKeys": audited.missing_keys,
    }


def _told_by(path: Path, proof: Verification) -> str | None:
    if proof.problem is None:
        return None
    return f"{path} at {proof.end}: {proof.problem} (a torn end after a crash is cut by rmqha recover)"


def _difference(comparison: Comparison | None) -> str | None:
    if comparison is None:
        return None
    if comparison.differs_at is not None:
        return f"the logs differ at {comparison.differs_at}"
    if comparison.end != comparison.other_end:
        return f"the logs are equal up to the end of one: they end at {comparison.end} and {comparison.other_end}"
    return None


def _proof_as_json(proof: Verification) -> dict[str, Any]:
    return {
        "min": proof.min_offset,
        "end": proof.end,
        "messages": proof.messages,
        "problem": proof.problem,
        "live": proof.live,
    }


def _comparison_as_json(comparison: Comparison | None, difference: str | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "against": {
            "from": comparison.start,
            "otherEnd": comparison.other_end,
            "differsAt": comparison.differs_at,
            "identical": difference is None,
        }
    }


@main.command()
@STORE
@JSON
def recover(store: Path, as_json: bool) -> None:
    """Run recovery as a node's start would, and say what it found and cut. Nothing is lost: what is cut is kept."""
    if not (store / "commitlog").is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    opened = MessageStore(_settings_of(store))
    found, had_state = opened.recovery, NodeState.read(store) is not None
    confirmed = min(found.end, opened.node_state.offsets.confirmed)
    final_state = replace(opened.node_state, state="STOPPED", offsets=opened.offsets(confirmed))
    _result_of(opened.close(final_state=(lambda: final_state) if had_state else None))
    kept_in = str(found.kept_in) if found.kept_in is not None else None
    if as_json:
        _print_json(
            {
                "cleanStop": found.clean_stop,
                "min": found.min_offset,
                "checkedFrom": found.checked_from,
                "end": found.end,
                "messages": found.messages,
                "cutBytes": found.cut_bytes,
                "removedSegments": found.removed_segments,
                "problem": found.problem,
                "keptIn": kept_in,
            }
        )
        return
    click.echo(
        f"log is {found.min_offset} to {found.end}; {found.messages} messages checked from {found.checked_from} on, "
        f"after {'a clean' if found.clean_stop else 'an unclean'} stop"
    )
    if found.problem is not None:
        click.echo(f"cut {found.cut_bytes} bytes at {found.end}: {found.problem}; they are kept in {kept_in}")
    if found.removed_segments:
        click.echo(f"removed {found.removed_segments} segments behind the end")


@main.command()
@STORE
@JSON
def queues(store: Path, as_json: bool) -> None:
    """Show the first and the next offset of every queue."""
    with _open(store) as reader:
        table = open_queues(reader.root, _settings_of(store), owned=False)
        found: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, queue_id), queue in sorted(table.queues.items()):
            queue.find_end()
            queue.correct_min_offset(reader.log.min_offset)
            queue.release_files()
            found.setdefault(topic, {})[str(queue_id)] = {"min": queue.min_offset, "max": queue.max_offset}
        table.close()
    if as_json:
        _print_json(found)
        return
    for topic, by_id in found.items():
        for number, offsets in by_id.items():
            click.echo(f"{topic} {number}: {offsets['min']} to {offsets['max']}")


@main.command()
@STORE
def rebuild(store: Path) -> None:
    """Make consume queues and index anew from the log, after recovery."""
    if not (store / "commitlog").is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    opened = MessageStore(_settings_of(store))
    log = opened.commit_log
    with _progress("rebuilding", log.min_offset, log.verified_offset) as progress:
        opened.rebuild(progress)
    count, end = len(opened.derived.queues.queues), log.verified_offset
    _result_of(opened.close())
    click.echo(f"{count} queues and the index made anew from {log.min_offset} to {end}")


def _result_of(done: Deferred[None]) -> None:
    """What a Deferred that has fired gives. Raises what it failed with."""
    failures: list[Failure] = []
    done.addErrback(failures.append)
    if failures:
        failures[0].raiseException()


@main.command()
@click.argument("target", metavar="STORE|HOST:PORT")
@_with(TLS)
@JSON
def status(target: str, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, as_json: bool) -> None:
    """Show role, state, offsets and lag: of a store here, or of a broker, ours or Java's, by its remoting port.

    tls:HOST:PORT asks over TLS.
    """
    if Path(target).is_dir():
        with _open(Path(target)) as store:
            found = status_of_store(store)
    else:
        found = _ask(target, tls_cert, tls_key, tls_ca)
    if as_json:
        _print_json(found.as_json())
        return
    for name, value in found.as_json().items():
        if name != "peers" and value is not None:
            click.echo(f"{name:<10}  {value}")
    for peer in found.peers:
        facts = "  ".join(f"{name} {value}" for name, value in peer.items() if value is not None)
        click.echo(f"{'peer':<10}  {facts}")


def _reactor() -> Any:
    """Imported when it is needed: most commands run none."""
    from twisted.internet import reactor

    return reactor


def _tls_files(certificate: str | None, key: str | None, authorities: str | None) -> TLSFiles:
    try:
        return TLSFiles.load(certificate, key, authorities)
    except TLSError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error


def _ask(address: str, certificate: str | None, key: str | None, authorities: str | None) -> Status:
    reactor = _reactor()
    tls = _tls_files(certificate, key, authorities).client()
    try:
        endpoint = make_endpoint(reactor, address, tls)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{address}: there is no such store, and {error}") from error
    try:
        return _run(reactor, lambda: status_of_broker(endpoint, reactor))
    except Exception as error:  # whatever kept it from an answer, to the user it is one line
        raise Trouble(ExitCode.CANNOT_CONNECT, f"{address} does not answer: {error or type(error).__name__}") from error


def _run(reactor: Any, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
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


def _client(
    reactor: Any,
    namesrv: str | None,
    broker: str | None,
    tls: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> MQClient:
    """As the options of WAY say."""
    files = _tls_files(tls_cert, tls_key, tls_ca).client()
    if (namesrv is None) == (broker is None):
        raise Trouble(ExitCode.USAGE, "give --namesrv, or else --broker")
    try:
        if broker is not None:
            return MQClient.of_broker(reactor, broker, files)
        return MQClient.of_name_servers(reactor, namesrv or "", files, tls)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error


def _run_client(reactor: Any, client: MQClient, work: Coroutine[Any, Any, None]) -> None:
    async def run() -> None:
        try:
            await work
        finally:
            await client.stop()

    _run(reactor, run)


@main.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--tags", default="", help="The message's tag.")
@click.option("--keys", default="", help="Its keys, separated by blanks.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send it so many times.")
@click.option("--group", default="rmqha-put", help="The producer group.")
@_with(WAY)
@JSON
def put(topic: str, body: str | None, tags: str, keys: str, count: int, group: str, as_json: bool, **way: Any) -> None:
    """Send BODY to TOPIC; without BODY each line of standard input, when it has ended.

    Exit code 6 if a message is in its master's log and not where else it was to be (disk, slave) in time; the counts by
    status come last. Retries may send a message twice.
    """
    bodies = [body.encode()] if body is not None else sys.stdin.buffer.read().splitlines()
    messages = [Message(topic, content, tags=tags, keys=keys) for content in bodies for _ in range(count)]
    reactor = _reactor()
    client = _client(reactor, **way)
    statuses: Counter[SendStatus] = Counter()

    def sent(result: SendResult) -> None:
        statuses[result.status] += 1
        if as_json:
            _print_json(_sent_as_json(result))

    try:
        _run_client(reactor, client, put_all(Producer(client, group), messages, sent))
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
    finally:
        if not as_json:
            for status, number in statuses.items():
                click.echo(f"{status.name} {number}")
    if set(statuses) - {SendStatus.SEND_OK}:
        raise Trouble(ExitCode.STALLED, "not all messages are where they were to be")


def _sent_as_json(result: SendResult) -> dict[str, Any]:
    return {
        "status": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "topic": result.queue.topic,
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
    }


def _edge_or_offset(_: click.Context, __: click.Parameter, text: str) -> Edge | int:
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return Edge(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither min, nor max, nor an offset") from None


@main.command()
@click.argument("topic")
@click.option("--from", "start", default="min", callback=_edge_or_offset, help="min, max, or an offset in each queue.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--max", "most", type=click.IntRange(min=1), default=None, help="End after so many messages.")
@click.option("--tags", default="*", help="Only these: TagA || TagB.")
@click.option("--group", default="rmqha-pull", help="The consumer group; its offsets are neither used nor changed.")
@click.option("--body", "only_body", is_flag=True, help="Print the bodies as they are, one a line.")
@_with(WAY)
@JSON
def pull(
    topic: str,
    start: Edge | int,
    follow: bool,
    most: int | None,
    tags: str,
    group: str,
    only_body: bool,
    as_json: bool,
    **way: Any,
) -> None:
    """Print the messages of all queues of TOPIC, one a line as dump does; from a slave where its master is gone."""
    reactor = _reactor()
    client = _client(reactor, **way)

    def got(record: Record) -> None:
        if only_body:
            click.echo(record.body)
        else:
            click.echo(_record_line(record.physical_offset, record, as_json))

    work = BulkPull(PullConsumer(client, group), reactor, got, start, follow, tags, most)
    try:
        _run_client(reactor, client, work.run(topic))
    except Interrupted:
        if not follow:
            raise


if __name__ == "__main__":
    main()
