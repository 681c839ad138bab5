"""``rmqha job NAME …``, and the same for ``spark-submit``: see ``__main__``. Exit codes are those of ``exitcodes``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rmqha.exitcodes import ExitCode
from rmqha.store.errors import StoreError, StoreInUse

if TYPE_CHECKING:  # pyarrow and pyspark are an extra: only a job that runs imports them
    from rmqha.pipeline.jobs.engine import Engine
    from rmqha.pipeline.jobs.stats import Stats
    from rmqha.pipeline.options import Options

Command = TypeVar("Command", bound=Callable[..., None])
LOCAL, SPARK = "local", "spark"
MISSING = "{module} is not installed: pip install 'rmqha[spark]'"


class Trouble(Exception):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Jobs(click.Group):
    """Turns what can be wrong with a job into its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            self._end(ctx, ExitCode.USAGE, MISSING.format(module=error.name))
        except (Trouble, StoreError, OSError, ValueError) as error:
            self._end(ctx, _exit_code_of(error), str(error))

    @staticmethod
    def _end(ctx: click.Context, code: ExitCode, message: str) -> None:
        click.echo(f"rmqha: {message}", err=True)
        ctx.exit(code)


def _exit_code_of(error: Exception) -> ExitCode:
    from rmqha.pipeline.errors import OptionError

    if isinstance(error, Trouble):
        return error.code
    if isinstance(error, StoreInUse):
        return ExitCode.IN_USE
    if isinstance(error, StoreError):
        return ExitCode.CORRUPT
    if isinstance(error, OptionError):
        return ExitCode.USAGE
    if isinstance(error, OSError):
        return ExitCode.IO_ERROR
    raise error


@click.group(name="job", cls=Jobs, context_settings={"help_option_names": ["-h", "--help"]})
def job() -> None:
    """Jobs over a whole log, up to what its node has confirmed; a store may be in use meanwhile.

    --engine=local works in this process; --engine=spark with a task for each split, in this machine's cores or wherever
    --master says: each worker must see the store by the same path. The result is the same.
    """


def _with_log_options(command: Command) -> Command:
    for option in reversed(
        (
            click.argument("store", type=click.Path(path_type=Path)),
            click.option("--engine", type=click.Choice([LOCAL, SPARK]), default=LOCAL, show_default=True),
            click.option(
                "--master", default=None, help="spark: its master; default: as spark-submit says, or local[*]."
            ),
            click.option(
                "--option",
                "-o",
                "texts",
                multiple=True,
                metavar="NAME=VALUE",
                help='An option of format("rmqha"), such as splitBytes=64m, readUpTo=flushed or onCorrupt=skip.',
            ),
            click.option("--json", "as_json", is_flag=True, help="Machine-readable, one JSON object."),
        )
    ):
        command = option(command)
    return command


def _options(store: Path, texts: tuple[str, ...], **more: Path | None) -> "Options":
    from rmqha.pipeline.options import parse_options

    given = {"path": str(store)}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise Trouble(ExitCode.USAGE, f"--option {text}: it is NAME=VALUE")
        given[name] = value
    return replace(parse_options(given), **more)  # type: ignore[arg-type]  # paths, by the names of fields


@contextmanager
def _engine(name: str, master: str | None) -> Iterator["Engine"]:
    from rmqha.pipeline.jobs.engine import LocalEngine, SparkEngine

    if name == LOCAL:
        yield LocalEngine()
        return
    from rmqha.pipeline.session import JavaError, session

    try:
        spark = session(master)
    except JavaError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
    try:
        yield SparkEngine(spark)
    finally:
        spark.stop()


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, of splits, if a person watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_json(content: dict[str, Any]) -> None:
    click.echo(orjson.dumps(content).decode())


@job.command()
@_with_log_options
def verify(store: Path, engine: str, master: str | None, texts: tuple[str, ...], as_json: bool) -> None:
    """Prove every record: magic, lengths, own offset, and the CRC of its body. Exit code 1 if some are none."""
    from rmqha.pipeline.jobs.verify import verify as verify_log

    options = _options(store, texts)
    with _engine(engine, master) as running, _progress("verify") as progress:
        found = verify_log(options, running, progress)
    if as_json:
        _print_json(found.as_json())
    else:
        click.echo(f"{found.messages} sound messages from {found.start} to {found.end}")
        for problem in found.problems:
            click.echo(f"{problem.offset} to {problem.end}: {problem.reason}")
    if found.problem_count:
        raise Trouble(ExitCode.CORRUPT, f"{found.problem_count} stretches of the log are no records")


@job.command()
@_with_log_options
@click.option("--against", type=click.Path(path_type=Path), required=True, help="The other store.")
def compare(store: Path, engine: str, master: str | None, texts: tuple[str, ...], as_json: bool, against: Path) -> None:
    """Compare the log with another store's, byte by byte. Exit code 1 if they differ, or end at different offsets."""
    from rmqha.pipeline.jobs.compare import compare as compare_logs

    options = _options(store, texts, replica=against)
    with _engine(engine, master) as running, _progress("compare") as progress:
        found = compare_logs(options, running, progress)
    common = found.common
    if as_json:
        _print_json(found.as_json())
    elif common.differs_at is None:
        click.echo(f"identical from {common.start} to {common.end}")
    if common.differs_at is not None:
        raise Trouble(
            ExitCode.CORRUPT, f"the logs differ at {common.differs_at}, in {common.different_bytes} bytes in all"
        )
    if not found.is_identical:
        raise Trouble(
            ExitCode.CORRUPT, f"the logs are equal up to the end of one: they end at {found.end} and {found.other_end}"
        )


@job.command()
@_with_log_options
@click.option("--chart", type=click.Path(path_type=Path), default=None, help="Write an HTML page with charts too.")
def stats(
    store: Path, engine: str, master: str | None, texts: tuple[str, ...], as_json: bool, chart: Path | None
) -> None:
    """Show messages, bytes, rates, latency from birth to store and queues of each topic."""
    from rmqha.pipeline.jobs.chart import chart as draw
    from rmqha.pipeline.jobs.stats import stats as stats_of_log

    options = _options(store, texts)
    with _engine(engine, master) as running, _progress("stats") as progress:
        found = stats_of_log(options, running, progress)
    if chart is not None:
        chart.write_text(draw(found, f"Messages of {store}"), "utf-8")
    if as_json:
        _print_json({topic: one.as_json() for topic, one in found.items()})
    else:
        _print_table(found)


def _print_table(found: "Stats") -> None:
    from rmqha.pipeline.jobs.chart import HEADINGS, table_rows

    table = Table(*HEADINGS)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in table_rows(found):
        table.add_row(*row)
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200).print(table)


@job.command()
@_with_log_options
@click.option("--output", type=click.Path(path_type=Path), required=True, help="The archive's folder; made if need be.")
def archive(store: Path, engine: str, master: str | None, texts: tuple[str, ...], as_json: bool, output: Path) -> None:
    """Write what is not archived yet as Parquet files, each message exactly once; run it as often as you like."""
    from rmqha.pipeline.jobs.archive import archive as archive_log

    options = _options(store, texts, output=output)
    with _engine(engine, master) as running, _progress("archive") as progress:
        done = archive_log(options, running, progress)
    if as_json:
        _print_json(done.as_json())
        return
    click.echo(f"{done.messages} messages from {done.start} to {done.end} in {done.files} new files of {output}")
    if done.skipped:
        click.echo(f"{done.skipped} stretches of the log are no records, and were skipped")


@job.command()
@_with_log_options
@click.option("--output", type=click.Path(path_type=Path), default=None, help="Build there, of a store that is in use.")
def rebuild(
    store: Path, engine: str, master: str | None, texts: tuple[str, ...], as_json: bool, output: Path | None
) -> None:
    """Build consume queues and index anew, in place of the old ones."""
    from rmqha.pipeline.jobs.rebuild import rebuild as rebuild_store

    options = _options(store, texts, output=output)
    with _engine(engine, master) as running, _progress("rebuild") as progress:
        done = rebuild_store(options, running, progress)
    if as_json:
        _print_json(done.as_json())
        return
    click.echo(f"{done.queues} queues and {done.keys} keys of {done.messages} messages from {done.start} to {done.end}")
    if done.mended or done.refused:
        click.echo(f"{done.mended} queues had offsets with gaps or out of order; {done.refused} messages fit no queue")
