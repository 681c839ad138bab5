"""The ``rmqha`` command: looks at stores and nodes. Exit codes are those of ``exitcodes``."""

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from rmqha import __version__
from rmqha.endpoints import make_endpoint
from rmqha.exitcodes import ExitCode
from rmqha.ops.status import Status, status_of_broker, status_of_store
from rmqha.settings import Settings, SettingsError, make_settings
from rmqha.store.audit import Audit, audit
from rmqha.store.derived import open_queues
from rmqha.store.errors import StoreError, StoreInUse
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import NodeState
from rmqha.store.reader import Comparison, StoreReader, Verification
from rmqha.wire.record import BLANK_MAGIC_CODE, Blank, Record, record_as_json

STORE = click.argument("store", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable, one JSON object (dump: one a line).")


class Trouble(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Commands(click.Group):
    """Turns what can be wrong with a store into its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `rmqha dump … | head`: nobody reads on
            with suppress(OSError):
                sys.stdout.close()
            ctx.exit(ExitCode.FINE)
        except (Trouble, StoreError, SettingsError, OSError) as error:
            click.echo(f"rmqha: {error}", err=True)
            ctx.exit(_exit_code_of(error))


def _exit_code_of(error: Exception) -> ExitCode:
    if isinstance(error, Trouble):
        return error.code
    if isinstance(error, StoreInUse):
        return ExitCode.IN_USE
    if isinstance(error, StoreError):
        return ExitCode.CORRUPT
    return ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.IO_ERROR


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rmqha")
def main() -> None:
    """Look at RocketMQ stores and HA nodes: dump, verify, recover, status.

    STORE is a storePathRootDir, of a node of ours or of a Java broker. A node itself is run by twistd: see
    twistd rmqha --help. Exit codes: 0 fine, 1 corruption or difference found, 2 usage, 3 GAP, 4 AHEAD, 5 DIVERGED,
    6 STALLED or timed out, 7 cannot connect, 8 input/output error, 9 store in use.
    """


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
@JSON
def status(target: str, as_json: bool) -> None:
    """Show role, state, offsets and lag: of a store here, or of a broker, ours or Java's, by its remoting port."""
    if Path(target).is_dir():
        with _open(Path(target)) as store:
            found = status_of_store(store)
    else:
        found = _ask(target)
    if as_json:
        _print_json(found.as_json())
        return
    for name, value in found.as_json().items():
        if name != "peers" and value is not None:
            click.echo(f"{name:<10}  {value}")
    for peer in found.peers:
        facts = "  ".join(f"{name} {value}" for name, value in peer.items() if value is not None)
        click.echo(f"{'peer':<10}  {facts}")


def _ask(address: str) -> Status:
    from twisted.internet import reactor as global_reactor

    reactor: Any = global_reactor
    try:
        endpoint = make_endpoint(reactor, address)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{address}: there is no such store, and {error}") from error
    return _run(reactor, lambda: status_of_broker(endpoint, reactor), address)


def _run(reactor: Any, ask: Callable[[], Coroutine[Any, Any, Status]], address: str) -> Status:
    """Run the reactor until the answer is there."""
    answers: list[Status] = []
    failures: list[Failure] = []

    def begin() -> None:
        asking: Deferred[Status] = Deferred.fromCoroutine(ask())
        asking.addCallbacks(answers.append, failures.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run()
    if failures:
        _cannot_reach(address, failures[0])
    return answers[0]


def _cannot_reach(address: str, failure: Failure) -> NoReturn:
    reason = failure.getErrorMessage() or type(failure.value).__name__
    raise Trouble(ExitCode.CANNOT_CONNECT, f"{address} does not answer: {reason}")


if __name__ == "__main__":
    main()
