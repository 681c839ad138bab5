"""``rmqha job NAME …``, and the same for ``spark-submit``: see ``__main__``. Exit codes are those of ``exitcodes``."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.printing import printable_json
from rmqha.kit.progress import IBar, OffsetBar, Unit
from rmqha.kit.showing import progress
from rmqha.kit.times import iso_time, parse_time
from rmqha.pipeline.sparkerrors import in_one_line, is_of_spark
from rmqha.settings.confkeys import with_nearest
from rmqha.store.offline.commands import SETTINGS, CommandGroup, Trouble, exit_code_of, say, settings_of

if TYPE_CHECKING:  # pyarrow and pyspark are an extra: only a job that runs imports them
    from rmqha.pipeline.jobs.chart import Draw
    from rmqha.pipeline.jobs.compact import Compacted
    from rmqha.pipeline.jobs.engine import Engine
    from rmqha.pipeline.jobs.expire import Expired
    from rmqha.pipeline.jobs.reconcile import Reconciled
    from rmqha.pipeline.jobs.restore import Restored
    from rmqha.pipeline.jobs.stats import Stats
    from rmqha.pipeline.options import Options

LOCAL, SPARK = "local", "spark"

OPTIONS = {
    "startingOffset": "earliest (default), latest, or an offset in the log",
    "endingOffset": "latest (default: what the node has confirmed), or an offset to end before",
    "startingTimestamp": "start with messages stored at this time: 2026-11-21T01:30:00Z, or ms since 1970",
    "endingTimestamp": "end before messages stored at this time",
    "startingOffsetsByTimestampStrategy": "if no message is that recent: error (default) or latest",
    "topic": "only these topics: A,B",
    "topicPattern": "only topics whose whole name matches this regular expression",
    "queueId": "only these queues: 0,1",
    "tags": "only messages with these tags: A,B",
    "queueOffset": "only these offsets in their queues: 100..200, 100.. or ..200; the end is left out",
    "bornTimestamp": "only messages born in this time: FROM..BEFORE, as startingTimestamp",
    "storeTimestamp": "only messages stored in this time: FROM..BEFORE",
    "columns": "the columns, in order: topic,keys,body; default: all",
    "properties": "raw (default): as stored; map or none",
    "bodyFormat": "json, avro, protobuf or text: adds the columns value and bodyError",
    "bodySchema": "of json: id bigint, name string; of avro: its JSON; or a file with it: /path",
    "bodyDescriptor": "of protobuf: a file of protoc --descriptor_set_out --include_imports",
    "bodyMessage": "of protobuf: the full name of the message",
    "bodySchemas": "a JSON file with the format and schema of each topic, see docs/spark.md",
    "bodyMaxBytes": "longer bodies are not decoded: 4m",
    "decompress": "true: decompress bodies that a producer has compressed",
    "verifyBody": "true: check the CRC of each body",
    "onCorrupt": "what to do with bytes that are not records: fail (default) or skip",
    "readUpTo": "where the log of a node of ours ends: confirmed (default), flushed or written",
    "failOnDataLoss": "true (default), or false: continue if files are missing",
    "splitBytes": "bytes of log in a task, about; default: 32m to 256m, depending on the cores of this machine",
    "minPartitions": "the least number of tasks",
    "batchBytes": "bytes of log that a task holds in memory: 4m",
    "boundaries": "how the log is split: auto (default), or hop: by the sizes of all records",
    "compression": "compression of the Parquet files: zstd (default), snappy, lz4, gzip or none",
    "dropBehind": "true: remove pages from the page cache that only this job has loaded",
    "maxRate": "bytes a second that a task may read over the network; default: no limit",
    "nodeTimeout": "how long a node may send nothing before another one is asked: 30s",
    "tls": "true: the nodes use TLS",
    "tlsCa": "PEM file of trusted authorities; default: the platform's",
    "tlsCert": "PEM file of the certificate to show",
    "tlsKey": "PEM file of its key; default: the file of tlsCert",
    "aclFile": "credentials for brokers with access control, as RocketMQ's tools.yml has them",
}
"""The options of ``format("rmqha")`` that jobs take, and their help."""

RANGE = ("startingOffset", "endingOffset", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy")
CHOICE = ("topic", "topicPattern", "queueId", "tags", "queueOffset", "bornTimestamp", "storeTimestamp")
READING = ("readUpTo", "failOnDataLoss", "splitBytes", "minPartitions", "batchBytes")
RECORDS = ("verifyBody", "onCorrupt", "dropBehind")
BODIES = ("bodyFormat", "bodySchema", "bodyDescriptor", "bodyMessage", "bodySchemas", "bodyMaxBytes")
COLUMNS = ("columns", "properties", "decompress", *BODIES)
NETWORK = ("maxRate", "nodeTimeout", "tls", "tlsCa", "tlsCert", "tlsKey", "aclFile")
OVER_THE_NETWORK = ("stats", "archive", "reconcile")
COMPARED = ("topic", "topicPattern", "tags", "endingTimestamp")
RECONCILED = (*COMPARED, *READING, "boundaries", "onCorrupt", "dropBehind", *NETWORK)
LOG_COLUMNS = ("topic", "key", "msgId", "time")
FOLDER = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
BY_HELP = "What messages must share to be the same one. Default: id."
PROBLEMS = {"missing": "missing", "changed": "with another body", "notConsumed": "not consumed"}
FINDINGS_SHOWN = 20
WIDE = 200
"""Characters in a line if the output is not a terminal."""
MISSING = "{module} is not installed: pip install 'rmqha[spark]'"


class Jobs(CommandGroup):
    """The group of jobs. It also handles the errors of Spark."""

    def exit_code_of(self, error: Exception) -> ExitCode | None:
        """See ``CommandGroup``."""
        if isinstance(error, ModuleNotFoundError):
            return ExitCode.USAGE
        from rmqha.pipeline.brokers import NoAnswer
        from rmqha.pipeline.errors import OptionError
        from rmqha.pipeline.jobs.manifest import WrongArchive
        from rmqha.pipeline.network.lines import NodeFailed
        from rmqha.pipeline.network.segment import NoNodeLeft

        if isinstance(error, (OptionError, WrongArchive)):
            return ExitCode.USAGE
        if isinstance(error, (NoAnswer, NodeFailed, NoNodeLeft)):
            return ExitCode.CANNOT_CONNECT
        return ExitCode.IO_ERROR if is_of_spark(error) else exit_code_of(error)

    def reason_of(self, error: Exception) -> str:
        """See ``CommandGroup``."""
        if isinstance(error, ModuleNotFoundError):
            return MISSING.format(module=error.name)
        return in_one_line(error) if is_of_spark(error) else super().reason_of(error)


class Job(click.Command):
    """A command that lists, in its help, the options of the log that it takes. ``takes`` holds their names."""

    def __init__(self, *arguments: Any, takes: tuple[str, ...], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.takes = takes

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("NAME=VALUE of -o"):
            formatter.write_dl([(name, OPTIONS[name]) for name in self.takes])


@click.group(name="job", cls=Jobs, context_settings={"help_option_names": ["-h", "--help"]})
def job() -> None:
    """Run jobs over a whole log, up to what its node has confirmed. A node may use the store meanwhile.

    --engine=local works in this process. --engine=spark runs a task for each split, on the cores of this machine or on
    the cluster of --master. Each worker must see the store under the same path. The result is the same.

    -o NAME=VALUE selects which part of the log is read, and how. rmqha job COMMAND --help lists the names.
    """


@dataclass(frozen=True, slots=True)
class Asked:
    """The values of the options that all jobs have."""

    store: Path
    engine: str | None
    master: str | None
    texts: tuple[str, ...]
    conf: Path | None
    sets: tuple[str, ...]
    as_json: bool


def _with_log_options(command: Callable[..., None], source: str = "STORE") -> Callable[..., None]:
    """Add the options that all jobs have. The command gets them as its first argument, an ``Asked``."""

    @wraps(command)
    def run(**given: Any) -> None:
        command(Asked(**{field.name: given.pop(field.name) for field in fields(Asked)}), **given)

    for option in reversed(
        (
            click.argument("store", type=click.Path(path_type=Path), metavar=source),
            click.option(
                "--engine",
                type=click.Choice([LOCAL, SPARK]),
                help="Default: local; spark with --master, or under spark-submit.",
            ),
            click.option(
                "--master", help="Spark's master; default: that of spark-submit, or local[*], which is this machine."
            ),
            click.option(
                "--option",
                "-o",
                "texts",
                multiple=True,
                metavar="NAME=VALUE",
                help="Which part of the log to read, and how: see below. May be given several times.",
            ),
            SETTINGS,
            click.option("--json", "as_json", is_flag=True, help="Machine-readable, one JSON object."),
        )
    ):
        run = option(run)
    return run


def _options(asked: Asked, **paths: Path | None) -> "Options":
    from rmqha.pipeline.plan import log_folder

    options = _parsed(asked, **paths)
    if not options.is_remote:  # a missing store is reported before Spark starts
        log_folder(options.path, options.settings.store_path_commit_log)
    return options


def _parsed(asked: Asked, **paths: Path | None) -> "Options":
    """The options for ``asked.store``, which may also be an archive, or a broker for some commands."""
    from rmqha.pipeline.options import parse_options

    given = _texts(asked)
    paths["path"] = asked.store
    options = parse_options({**given, **{name: str(path) for name, path in paths.items() if path is not None}})
    if options.is_remote:
        command = str(click.get_current_context().command.name)
        if command not in OVER_THE_NETWORK:
            raise Trouble(ExitCode.USAGE, f"{command} needs a store; over the network: {', '.join(OVER_THE_NETWORK)}")
        return options
    return replace(options, settings=settings_of(asked.store, asked.conf, asked.sets))


def _texts(asked: Asked) -> dict[str, str]:
    """The values of -o by their names."""
    given = {}
    for text in asked.texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise Trouble(ExitCode.USAGE, f"--option {text} is not NAME=VALUE")
        given[name] = value
    _refuse_what_is_not_taken(given)
    return given


def _refuse_what_is_not_taken(names: Iterable[str]) -> None:
    command = click.get_current_context().command
    assert isinstance(command, Job), "every job is a Job"
    taken = {name.lower() for name in command.takes}
    strange = [name for name in names if name.lower() not in taken]
    if strange:
        there_are = ", ".join(command.takes)
        raise Trouble(
            ExitCode.USAGE,
            f"{command.name} has no option {with_nearest(strange, command.takes)}; the options are {there_are}",
        )


@contextmanager
def _engine(asked: Asked) -> Iterator["Engine"]:
    from rmqha.pipeline.jobs.engine import LocalEngine, SparkEngine
    from rmqha.pipeline.session import JavaError, session, was_submitted

    if asked.engine == LOCAL and asked.master is not None:
        raise Trouble(ExitCode.USAGE, "--master needs --engine spark")
    if asked.engine == LOCAL or (asked.engine is None and asked.master is None and not was_submitted()):
        yield LocalEngine()
        return
    try:
        spark = session(asked.master)
    except JavaError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
    try:
        yield SparkEngine(spark)
    finally:
        spark.stop()


def _progress(title: str) -> AbstractContextManager[IBar]:
    """Show on stderr how many splits are done."""
    return progress(title, Unit.PARTS)


def _print_json(content: dict[str, Any]) -> None:
    click.echo(printable_json(orjson.dumps(content).decode()))


@job.command(cls=Job, takes=(*RANGE, *(name for name in READING if name != "readUpTo"), "boundaries", "dropBehind"))
@_with_log_options
def verify(asked: Asked) -> None:
    """Prove every record of a log: its magic code, lengths, own offset, and the CRC of its body; then queues and index.

    It finds what rmqha verify finds, and judges as far: the whole log; of a running node, what it has verified. Queues
    and index are compared with the log in this process, with either engine, and only if no -o leaves out a part of the
    log. Exit code 1 if some bytes are not records, or if queues or index do not agree with the log.
    """
    from rmqha.pipeline.jobs.verify import is_of_whole_log, verify_queues
    from rmqha.pipeline.jobs.verify import verify as verify_log
    from rmqha.store.offline.audit import QueueFindings, audited_end
    from rmqha.store.offline.findings import log_problems, sound_line, stretch_lines, verification_as_json

    options = _options(asked)
    with _engine(asked) as running, _progress("verify") as shown:
        found = verify_log(options, running, shown)
    queues = QueueFindings()
    if is_of_whole_log(options):
        with progress("queues and index") as shown:
            bar = OffsetBar(shown, found.min_offset, audited_end(found))
            queues = verify_queues(options, found, bar)
    if asked.as_json:
        _print_json({**verification_as_json(found), **queues.as_json()})
    else:
        say(sound_line(found))
        for line in stretch_lines(asked.store, found):
            say(line)
        for line in queues.lines(asked.store):
            say(line)
    problems = [*log_problems(asked.store, found), *queues.problems(asked.store)]
    if problems:
        raise Trouble(ExitCode.CORRUPT, "; ".join(problems))


@job.command(cls=Job, takes=(*READING, "boundaries"))
@_with_log_options
@click.option("--against", type=click.Path(path_type=Path), required=True, help="The other store.")
@click.option("--exact", is_flag=True, help="Exit code 1 also if one log is the start of the other.")
def compare(asked: Asked, against: Path, exact: bool) -> None:
    """Compare two logs, byte by byte. Neither log is proved: rmqha verify --against does both.

    Exit code 1 if they differ. A log that is the start of the other one (a backup of a store that has grown since)
    counts as equal, unless --exact is given.
    """
    from rmqha.pipeline.jobs.compare import compare as compare_logs
    from rmqha.store.offline.findings import comparison_as_json, comparison_line, difference

    options = _options(asked, replica=against)
    with _engine(asked) as running, _progress("compare") as shown:
        found = compare_logs(options, running, shown)
    line = comparison_line(asked.store, against, found)
    if asked.as_json:
        _print_json(comparison_as_json(found))
    elif line is not None:
        say(line)
    problem = difference(found, exact)
    if problem is not None:
        raise Trouble(ExitCode.CORRUPT, problem)


@job.command(cls=Job, takes=(*RANGE, *CHOICE, *READING, "boundaries", *RECORDS, *NETWORK))
@_with_log_options
@click.option(
    "--chart",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also draw a chart: FILE must end with .png, .svg or .html.",
)
def stats(asked: Asked, chart: Path | None) -> None:
    """Count messages by topic. STORE may be a broker too: rmqha://HOST:PORT, its HA port.

    Shows messages, bytes, rates, queues, and quantiles of the latency from a message's birth to its store. A chart also
    shows them over time. An HTML page contains the table and the chart.
    """
    from rmqha.pipeline.address import address_text
    from rmqha.pipeline.jobs.stats import stats as stats_of_log

    options = _options(asked)
    with _chart(chart) as draw, _engine(asked) as running, _progress("stats") as shown:
        found = stats_of_log(options, running, shown)
        draw(found, f"Messages of {address_text(asked.store)}")
    if asked.as_json:
        _print_json({topic: one.as_json() for topic, one in found.items()})
    else:
        _print_table(found)


@contextmanager
def _chart(path: Path | None) -> Iterator["Draw"]:
    if path is None:
        yield lambda stats, title: None
        return
    from rmqha.pipeline.jobs.chart import chart_file

    with chart_file(path) as draw:
        yield draw


def _print_table(found: "Stats") -> None:
    """Print all columns, or as many as fit into a narrow terminal. Numbers are never cut; a long topic name is
    folded.
    """
    from rmqha.pipeline.jobs.table import HEADINGS, fitting_columns, table_rows

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE)
    rows = table_rows(found)
    columns = fitting_columns(rows, console.width)
    table = Table()
    for number in columns:
        is_name = HEADINGS[number] == "topic"
        table.add_column(HEADINGS[number], justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[number]) for number in columns))
    console.print(table)
    if len(columns) < len(HEADINGS):
        say("(a wider terminal, or --json, shows more columns)", err=True)


@job.command(cls=Job, takes=(*RANGE, *CHOICE, *READING, "boundaries", *RECORDS, *COLUMNS, "compression", *NETWORK))
@_with_log_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The archive's folder. It is created if it is missing.",
)
@click.option("--topic", metavar="A,B", help="Archive only these topics. No store can be made from such an archive.")
@click.option(
    "--table",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    help="Also make it a table of Delta or Iceberg. It stays one in later runs. Default: parquet, which is only files.",
)
def archive(asked: Asked, output: Path, topic: str | None, table: str) -> None:
    """Add new messages to an archive in Parquet.

    Each message is added exactly once. Run it as often as you like. An archive of some topics is always continued with
    the same topics. STORE may be a broker too: rmqha://HOST:PORT, its HA port. rmqha job restore then leaves topics,
    groups and offsets to you.
    """
    from rmqha.pipeline.jobs.archive import archive as archive_log
    from rmqha.pipeline.jobs.tablelog import TableFormat

    chosen = asked if topic is None else replace(asked, texts=(*asked.texts, f"topic={topic}"))
    options = _options(chosen, output=output)
    with _engine(asked) as running, _progress("archive") as shown:
        done = archive_log(options, running, shown, table=TableFormat(table))
    if asked.as_json:
        _print_json(done.as_json())
        return
    if done.proved is not None:
        start, end = done.proved
        say(f"{output} was the archive of another store: its log is the same from {start} to {end}")
    if not done.messages and done.log_end < done.end:
        say(f"nothing is new: {output} reaches to {done.end}, the log to {done.log_end}")
        return
    say(f"{done.messages} messages from {done.start} to {done.end} in {done.files} new files of {output}")
    if done.skipped:
        say(f"{done.skipped} stretches of the log are not records, and were skipped")


@job.command(cls=Job, takes=("compression",))
@partial(_with_log_options, source="ARCHIVE")
@click.option(
    "--target",
    default="128m",
    metavar="SIZE",
    help="Bytes of log in a large file: 128m. A task needs 300 MiB of memory, and twice this.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would become of how many files.")
def compact(asked: Asked, target: str, dry_run: bool) -> None:
    """Make large files of an archive's small ones, sorted by topic and time.

    Only files of one hour become one file. Each is read back and compared before the old ones are removed. Streams may
    archive meanwhile. A query that reads the archive meanwhile may miss its files, and must be repeated.
    """
    from rmqha.pipeline.jobs.compact import CompactChoices
    from rmqha.pipeline.jobs.compact import compact as compact_archive

    choices = CompactChoices(_size(target, "--target"), _parsed(asked).compression, dry_run)
    with _engine(asked) as running, _progress("compact") as shown:
        done = compact_archive(asked.store, running, choices, shown)
    if asked.as_json:
        _print_json(done.as_json())
        return
    if not done.files_before and done.manifests_before == done.manifests_after:
        say(f"nothing to compact in {asked.store}")
    else:
        for line in _compacted_lines(asked.store, done):
            say(line)
    if done.left:
        say(f"{done.left} files stay: they have no physicalOffset, or do not say the size of the log's segments")


def _compacted_lines(root: Path, done: "Compacted") -> Iterator[str]:
    verb = "became" if done.done else "would become"
    yield (
        f"{done.files_before} files of {root} {verb} {done.files_after}, and {done.manifests_before} manifests "
        f"{done.manifests_after}: {done.messages} messages, {done.log_bytes >> 20} MiB of log"
    )
    if not done.done:
        yield "nothing was changed"
    elif done.files_after:
        rate = done.log_bytes / 1e6 / max(done.seconds, 1e-9)
        yield (
            f"{done.bytes_before >> 20} MiB of Parquet became {done.bytes_after >> 20} MiB in {done.seconds:.1f} s: "
            f"{rate:.0f} MB/s of log, with {done.processor_seconds:.1f} s of processor time"
        )


@job.command()
@click.argument("archive", type=click.Path(path_type=Path), metavar="ARCHIVE")
@click.option(
    "--older-than",
    "age",
    required=True,
    metavar="AGE",
    help="An age with its unit (30d, 12h), or a time: 2026-10-01T00:00:00Z, or ms since 1970.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, one JSON object.")
def expire(archive: Path, age: str, dry_run: bool, as_json: bool) -> None:
    """Remove the oldest messages of an archive. Nothing brings them back.

    Files are removed from the begin of the archive on, as long as all messages of a file were stored before that time.
    A file is never removed in part. They are not archived again, even if the store still has them. Nothing else ever
    removes messages from an archive.
    """
    from rmqha.pipeline.jobs.expire import expire as expire_archive

    before = _time_before(age)
    with _progress("expire") as shown:
        done = expire_archive(archive, before, dry_run, shown)
    if as_json:
        _print_json(done.as_json())
        return
    for line in _expired_lines(archive, done):
        say(line)


def _expired_lines(root: Path, done: "Expired") -> Iterator[str]:
    if not done.files:
        yield f"nothing of {root} is that old"
    else:
        verb = "removed" if done.done else "would remove"
        yield (
            f"{verb} {done.files} files with {done.messages} messages, {done.bytes >> 20} MiB, from {done.start} to "
            f"{done.end}"
        )
    if done.oldest_left is None:
        yield "no message is left" if done.done else "no message would be left"
    else:
        yield f"the oldest message left was stored at {iso_time(done.oldest_left)}"
        if done.restorable is not None and done.restorable > done.end:
            yield f"a restore needs --whole-segments now, and starts at {done.restorable}"
        elif done.restorable is None:
            yield "no store can be made from what is left: it does not hold the begin of a segment"


def _time_before(age: str) -> int:
    """The time that is so long ago, in milliseconds."""
    from rmqha.pipeline.options import parse_duration

    try:
        with suppress(ValueError):
            if age.strip()[-1:].isalpha() and "T" not in age:
                return int((time.time() - parse_duration(age)) * 1000)
        return parse_time(age)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"--older-than {age}: it is neither an age such as 30d, nor a time") from error


def _size(text: str, option: str) -> int:
    from rmqha.pipeline.options import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, f"{option} {text}: {error}") from error


@job.command(cls=Job, takes=READING)
@_with_log_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    help="Write to this folder instead; a node may use the store meanwhile.",
)
def rebuild(asked: Asked, output: Path | None) -> None:
    """Build consume queues and index again from the log.

    They replace the old ones, and no node may use the store. With --output they are written to another folder, and a
    node may use the store.
    """
    from rmqha.pipeline.jobs.rebuild import rebuild as rebuild_store

    options = _options(asked, output=output)
    with _engine(asked) as running, _progress("rebuild") as shown:
        done = rebuild_store(options, running, shown)
    if asked.as_json:
        _print_json(done.as_json())
        return
    say(f"{done.queues} queues and {done.keys} keys of {done.messages} messages from {done.start} to {done.end}")
    if done.mended or done.refused:
        say(f"{done.mended} queues had offsets with gaps or out of order; {done.refused} messages fit no queue")


@job.command(cls=Job, takes=())
@partial(_with_log_options, source="ARCHIVE")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="STORE", help="The new store: a new folder."
)
@click.option(
    "--lossy", is_flag=True, help="Also take messages that the archive cannot prove, or does not keep exactly."
)
@click.option(
    "--whole-segments",
    is_flag=True,
    help="If the archive starts inside a segment, as after expire: leave out the messages before the next one.",
)
@click.option("--dry-run", is_flag=True, help="Read and prove the whole archive; write nothing.")
def restore(asked: Asked, output: Path, lossy: bool, whole_segments: bool, dry_run: bool) -> None:
    """Make a store from a whole archive: its log, queues and index, topics, groups and offsets.

    The log gets the offsets and the bytes that it had, and each record is proved by its CRC or by the SHA-256 of its
    range. The store has an id of its own, and a node or a Java broker can start on it. --set and --conf give the sizes
    of its queue and index files, and the delay levels.

    The archive must have no gap. A part of an archive cannot keep its offsets in a log: rmqha job replay sends the
    messages of a topic or of a time to a broker instead. Exit code 1 if the archive has a gap, is damaged, or does not
    prove its messages; nothing is written then.
    """
    from rmqha.pipeline.jobs.restore import RestoreChoices, plan_restore
    from rmqha.pipeline.jobs.restore import restore as restore_store

    if asked.texts:
        raise Trouble(
            ExitCode.USAGE,
            f"--option {asked.texts[0]}: a part of an archive cannot keep its offsets in a log, so restore takes all "
            "of it; 'rmqha job replay' sends the messages of a topic or of a time to a broker",
        )
    plan = plan_restore(asked.store, settings_of(asked.store, asked.conf, asked.sets), whole_segments)
    settings = settings_of(output, asked.conf, asked.sets)
    choices = RestoreChoices(lossy, dry_run)
    with _engine(asked) as running, _progress("restore") as progress:
        done = restore_store(plan, output, settings, running, choices, progress)
    if asked.as_json:
        _print_json(done.as_json())
        return
    for line in _restored_lines(done):
        say(line)


def _restored_lines(done: "Restored") -> Iterator[str]:
    would = "holds" if done.done else "would hold"
    exactly = "every byte is proved" if done.is_identical else "the fill bytes at ends of segments may be others"
    yield f"{done.output} {would} the log from {done.start} to {done.end}, {done.messages} messages: {exactly}"
    if done.unproved or done.changed:
        yield f"{done.unproved} messages are not proved, and {done.changed} are not what the log held"
    if done.tables:
        yield f"topics, groups and offsets are those of the archive: {', '.join(done.tables)}"
    else:
        yield "the archive has no topics, groups and offsets: topics are made from the queues, groups have no offsets"
    if done.done:
        yield f"{done.queues} queues; {done.clamped} offsets were set back to the end of their queues"
    else:
        yield "nothing was written"


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _log_columns(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    columns = {}
    for text in texts:
        name, separator, column = text.partition("=")
        if not separator or name not in LOG_COLUMNS:
            raise click.BadParameter(f"{text} is not NAME=COLUMN, with one of {', '.join(LOG_COLUMNS)}")
        columns[name] = column
    return columns


@job.command(cls=Job, takes=RECONCILED)
@partial(_with_log_options, source="SOURCE")
@click.option(
    "--also", "others", multiple=True, type=FOLDER, metavar="SOURCE", help="Another broker of the same cluster."
)
@click.option(
    "--against", multiple=True, type=FOLDER, metavar="SOURCE", help="The cluster that must have the messages."
)
@click.option(
    "--sends", multiple=True, type=FILE, metavar="FILE", help="What a producer sent: .csv, .jsonl or .parquet."
)
@click.option("--by", multiple=True, type=click.Choice(["id", "keys", "born", "body"]), help=BY_HELP)
@click.option("--group", "groups", multiple=True, help="With --sends: this group must have consumed all of them.")
@click.option("--topic", help="With --sends: the topic of rows that name none.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    callback=_log_columns,
    metavar="NAME=COLUMN",
    help="With --sends: the name of the column topic, key, msgId or time in FILE.",
)
@click.option("--from", "start", callback=_moment, metavar="TIME", help="Only messages born, or sent, from then on.")
@click.option("--to", "end", callback=_moment, metavar="TIME", help="Only messages born, or sent, before then.")
@click.option("--output", type=FILE, metavar="FILE", help="Write all findings to a file: .csv, .jsonl or .parquet.")
@click.option(
    "--scratch", type=FOLDER, metavar="FOLDER", help="For intermediate results. All workers must see it. Default: /tmp."
)
@click.option("--exact", is_flag=True, help="Exit code 1 also if --against has more messages.")
def reconcile(asked: Asked, **given: Any) -> None:
    """Find messages of SOURCE that --against does not have, or sends of --sends that SOURCE does not have.

    A SOURCE is a store, an archive, or an address: rmqha://HOST:PORT of a broker, namesrv://HOST:PORT?cluster=NAME of
    all brokers of a cluster. Otherwise name all of them: --also and --against may be given several times.
    Two messages are the same if they share topic and message id (UNIQ_KEY). A message without an id is known by its
    keys, its time of birth and the CRC of its body. With --by, messages are the same if they share these
    columns; without id, copies are counted. Not compared: messages of system topics, half messages of transactions, and
    messages that consumers have sent back.

    A row of --sends is found by its msgId if it has one, or else by its first key. If a key was sent more often than it
    is stored, the sends that are farthest in time from the stored messages are missing. With --group, the command also
    finds what is stored but not consumed, by the offsets in SOURCE. With -o endingTimestamp, these are the offsets of
    the last snapshot before that time.

    Memory: about 1 GiB, and the messages that share one key. The scratch folder needs about 100 bytes for each message.
    Exit code 1 if messages are missing or have other bodies; 6 if nothing is missing, but not all is consumed.
    """
    from rmqha.pipeline.jobs.entries import By
    from rmqha.pipeline.jobs.reconcile import ToReconcile
    from rmqha.pipeline.jobs.reconcile import reconcile as reconcile_sources
    from rmqha.pipeline.jobs.sendlog import SendLog

    if bool(given["against"]) == bool(given["sends"]):
        raise Trouble(ExitCode.USAGE, "give either --against, another cluster, or --sends, what a producer has sent")
    if given["groups"] and not given["sends"]:
        raise Trouble(ExitCode.USAGE, "--group needs --sends")
    ours = _sources(asked, (asked.store, *given["others"]))
    theirs = _sources(asked, given["against"])
    question = ToReconcile(
        found=theirs or ours,
        expected=ours if theirs else (),
        logs=given["sends"],
        by=tuple(map(By, given["by"])) or (By.ID,),
        log=SendLog(given["columns"], given["topic"]),
        groups=given["groups"],
        period=(given["start"], given["end"]),
        output=given["output"],
        scratch=given["scratch"],
    )
    with _engine(asked) as running, _progress("reconcile") as shown:
        done = reconcile_sources(question, running, shown)
    if asked.as_json:
        _print_json(done.as_json())
    else:
        for line in _reconciled_lines(done):
            say(line)
    _judge(done, given["exact"])


def _judge(done: "Reconciled", exact: bool) -> None:
    """Raises Trouble if something is missing, changed or late."""
    from rmqha.pipeline.jobs.reconcile import Problem

    missing, changed = done.count(Problem.MISSING), done.count(Problem.CHANGED)
    if missing or changed or (exact and done.more):
        more = f", {done.more} are there besides" if done.more else ""
        raise Trouble(ExitCode.CORRUPT, f"{missing} messages are missing, {changed} have other bodies{more}")
    if late := done.count(Problem.NOT_CONSUMED):
        raise Trouble(ExitCode.STALLED, f"nothing is missing, but {late} messages are not consumed")


def _sources(asked: Asked, paths: Iterable[Path]) -> "tuple[Options, ...]":
    """The options of sources. A store other than the first has no --conf: it may be made otherwise."""
    from rmqha.pipeline.jobs.messages import is_archive
    from rmqha.pipeline.jobs.origin import broker_folders

    found = []
    for path in paths:
        one = replace(asked, store=path, conf=asked.conf if path == asked.store else None)
        is_kept = is_archive(path) or bool(broker_folders(path))
        options = _parsed(one) if is_kept else _options(one)
        if is_kept and options.ending_timestamp is not None:
            raise Trouble(ExitCode.USAGE, f"{path} is an archive: endingTimestamp is for stores")
        found.append(options)
    return tuple(found)


def _reconciled_lines(done: "Reconciled") -> Iterator[str]:
    from rmqha.pipeline.jobs.reconcile import FIRST_FINDINGS, Problem, shown_time

    for topic, one in done.topics.items():
        problems = "".join(f", {one.problems[each]} {PROBLEMS[each.value]}" for each in Problem if one.problems[each])
        more = f", {one.more} besides" if one.more else ""
        yield f"{topic}: {one.found} of {one.expected} messages are there{problems}{more}"
    for row in done.first[:FINDINGS_SHOWN]:
        names = " ".join(f"{title} {row[name]}" for title, name in (("keys", "keys"), ("id", "msgId")) if row[name])
        late = f" by {row['groups']}" if row["groups"] else ""
        time = shown_time(row) or "at an unknown time"
        yield f"{PROBLEMS[row['problem']]}{late}: {row['topic']} {names} {time} ({row['source']} at {row['place']})"
    if len(done.first) > FINDINGS_SHOWN:
        yield f"… and more: --json shows {FIRST_FINDINGS}, --output FILE gets all"
