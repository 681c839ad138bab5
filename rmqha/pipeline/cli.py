"""``rmqha job NAME …``, and the same for ``spark-submit``: see ``__main__``. Exit codes are those of ``exitcodes``."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmqha.commands import SETTINGS, CommandGroup, Trouble, exit_code_of, say, settings_of
from rmqha.confkeys import with_nearest
from rmqha.exitcodes import ExitCode
from rmqha.pipeline.sparkerrors import in_one_line, is_of_spark
from rmqha.printing import printable_json
from rmqha.progress import Show, Unit, from_offset, progress

if TYPE_CHECKING:  # pyarrow and pyspark are an extra: only a job that runs imports them
    from rmqha.pipeline.jobs.chart import Draw
    from rmqha.pipeline.jobs.engine import Engine
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
    "columns": "the columns, in order: topic,keys,body; default: all",
    "properties": "raw (default), map or none",
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
}
"""The options of ``format("rmqha")`` that jobs take, and their help."""

RANGE = ("startingOffset", "endingOffset", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy")
CHOICE = ("topic", "topicPattern", "queueId", "tags")
READING = ("readUpTo", "failOnDataLoss", "splitBytes", "minPartitions", "batchBytes")
RECORDS = ("verifyBody", "onCorrupt", "dropBehind")
COLUMNS = ("columns", "properties", "decompress")
WIDE = 200
"""Characters in a line if the output is not a terminal."""
MISSING = "{module} is not installed: pip install 'rmqha[spark]'"


class Jobs(CommandGroup):
    """The group of jobs. It also handles the errors of Spark."""

    def exit_code_of(self, error: Exception) -> ExitCode | None:
        """See ``CommandGroup``."""
        if isinstance(error, ModuleNotFoundError):
            return ExitCode.USAGE
        from rmqha.pipeline.errors import OptionError
        from rmqha.pipeline.jobs.manifest import WrongArchive

        if isinstance(error, (OptionError, WrongArchive)):
            return ExitCode.USAGE
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
    from rmqha.pipeline.options import parse_options
    from rmqha.pipeline.plan import log_folder

    given = {}
    for text in asked.texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise Trouble(ExitCode.USAGE, f"--option {text} is not NAME=VALUE")
        given[name] = value
    _refuse_what_is_not_taken(given)
    paths["path"] = asked.store
    options = parse_options({**given, **{name: str(path) for name, path in paths.items() if path is not None}})
    settings = settings_of(asked.store, asked.conf, asked.sets)
    log_folder(options.path, settings.store_path_commit_log)  # a missing store is reported before Spark starts
    return replace(options, settings=settings)


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


def _progress(title: str) -> AbstractContextManager[Show]:
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
        with progress("queues and index") as show:
            queues = verify_queues(options, found, from_offset(show, found.min_offset, audited_end(found)))
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


@job.command(cls=Job, takes=(*RANGE, *CHOICE, *READING, "boundaries", *RECORDS))
@_with_log_options
@click.option(
    "--chart",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also draw a chart: FILE must end with .png, .svg or .html.",
)
def stats(asked: Asked, chart: Path | None) -> None:
    """Count messages by topic.

    Shows messages, bytes, rates, queues, and quantiles of the latency from a message's birth to its store. A chart also
    shows them over time. An HTML page contains the table and the chart.
    """
    from rmqha.pipeline.jobs.stats import stats as stats_of_log

    options = _options(asked)
    with _chart(chart) as draw, _engine(asked) as running, _progress("stats") as shown:
        found = stats_of_log(options, running, shown)
        draw(found, f"Messages of {asked.store}")
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


@job.command(cls=Job, takes=(*RANGE, *READING, "boundaries", *RECORDS, *COLUMNS, "compression"))
@_with_log_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The archive's folder. It is created if it is missing.",
)
def archive(asked: Asked, output: Path) -> None:
    """Add new messages to an archive in Parquet.

    Each message is added exactly once. Run it as often as you like.
    """
    from rmqha.pipeline.jobs.archive import archive as archive_log

    options = _options(asked, output=output)
    with _engine(asked) as running, _progress("archive") as shown:
        done = archive_log(options, running, shown)
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
@click.option("--dry-run", is_flag=True, help="Read and prove the whole archive; write nothing.")
def restore(asked: Asked, output: Path, lossy: bool, dry_run: bool) -> None:
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
    plan = plan_restore(asked.store, settings_of(asked.store, asked.conf, asked.sets))
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
