"""``rmqha restore`` and ``rmqha backup``: copies of a store, up to a place in its log or as it is now."""

import time
from pathlib import Path
from typing import Any

import click

from rmqha.cli.shared import JSON, STORE, print_json, progress_bar
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import iso_time, parse_time
from rmqha.settings.settings import Settings
from rmqha.store.examining import open_log
from rmqha.store.nodestate import NodeState
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.store.offline.newstore import NoRoom
from rmqha.store.offline.prefix import CopyDone, CopyKind, CopyPlan, SourceLog, copy_store, examine_source, plan_copy
from rmqha.store.offline.target import Cut, NoSuchTarget, Target, find_cut

DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")


def _time(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _message(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, int, int] | None:
    if text is None:
        return None
    topic, _, rest = text.partition(":")
    queue_id, _, queue_offset = rest.partition(":")
    try:
        return topic, int(queue_id), int(queue_offset)
    except ValueError:
        raise click.BadParameter("it is TOPIC:QUEUE:OFFSET, such as Orders:3:1500") from None


@click.command()
@click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path))
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), metavar="STORE", help="The new store: a new folder."
)
@click.option(
    "--to-time",
    default=None,
    metavar="TIME",
    callback=_time,
    help="Before the first message stored at or after it: ISO 8601 with a zone, or milliseconds since 1970.",
)
@click.option("--to-offset", type=int, default=None, metavar="N", help="Before the record that holds this log offset.")
@click.option(
    "--to-message", default=None, metavar="TOPIC:QUEUE:OFFSET", callback=_message, help="Before this message."
)
@click.option(
    "--outside", is_flag=True, help="Also if the place leaves out every message, or --to-time is in the future."
)
@click.option("--inclusive", is_flag=True, help="Keep the record, or the messages of that millisecond, too.")
@DRY_RUN
@SETTINGS
@JSON
def restore(
    source: Path,
    output: Path,
    to_time: int | None,
    to_offset: int | None,
    to_message: tuple[str, int, int] | None,
    inclusive: bool,
    outside: bool,
    dry_run: bool,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a new store that ends at an earlier place of SOURCE's log. SOURCE is not changed; a node may run on it.

    The new log is equal to SOURCE's, byte by byte, up to that place. Topics, groups and offsets are those of the last
    snapshot before it, if SOURCE has one (STORE/rmqha/tables); consumers then read some messages again and miss none.
    Topics that are younger than the snapshot are there too, and so are those that were deleted at that place or later.
    The new store has an id of its own: no slave of SOURCE follows it by mistake.
    """
    given = [option for option in (to_time, to_offset, to_message) if option is not None]
    if len(given) != 1:
        raise Trouble(ExitCode.USAGE, "give one of --to-time, --to-offset and --to-message")
    settings = _settings(source, conf, sets)
    target = Target(to_time, to_offset, to_message, inclusive)
    if to_time is not None and to_time > time.time() * 1000 and not outside:
        raise Trouble(
            ExitCode.USAGE, f"--to-time {iso_time(to_time)} is in the future: name another time, or give --outside"
        )
    log = examine_source(settings, NodeState.read(source))
    cut = _find(settings, log.end, target)
    if log.end and cut.last_timestamp is None and to_time is not None and not outside:
        raise Trouble(
            ExitCode.USAGE,
            f"no message of {source} was stored before {iso_time(to_time)}: the new store would be empty. Name another "
            "time, or give --outside",
        )
    plan = plan_copy(settings, output, CopyKind.RESTORE, log, cut.end, target.before_ms)
    _run(settings, plan, log, cut, dry_run, as_json)


@click.command()
@STORE
@click.argument("dest", metavar="DEST", type=click.Path(path_type=Path))
@DRY_RUN
@SETTINGS
@JSON
def backup(store: Path, dest: Path, dry_run: bool, conf: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Copy STORE as it is now to the new folder DEST. A node may run on STORE, and goes on meanwhile.

    The copy ends where a running node's log is confirmed. It is a whole store: rmqha verify DEST proves it, rmqha
    verify DEST --against STORE says that it is a prefix, and a node can start on it.
    """
    settings = _settings(store, conf, sets)
    log = examine_source(settings, NodeState.read(store))
    plan = plan_copy(settings, dest, CopyKind.BACKUP, log, log.end)
    _run(settings, plan, log, Cut(log.end), dry_run, as_json)


def _settings(store: Path, conf: Path | None, sets: tuple[str, ...]) -> Settings:
    settings = settings_of(store, conf, sets)
    if not settings.commit_log_folder.is_dir():
        raise Trouble(ExitCode.USAGE, f"{store}: there is no such store")
    return settings


def _find(settings: Settings, end: int, target: Target) -> Cut:
    log = open_log(settings, owned=False)
    try:
        with progress_bar("looking for the place", log.min_offset, end) as bar:
            return find_cut(log, end, target, settings, bar.reached)
    except NoSuchTarget as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
    finally:
        log.close()


def _run(settings: Settings, plan: CopyPlan, log: SourceLog, cut: Cut, dry_run: bool, as_json: bool) -> None:
    done = None
    if not dry_run:
        try:
            with progress_bar("copying", 0, plan.bytes) as bar:
                done = copy_store(plan, settings, bar.reached)
        except NoRoom as error:
            raise Trouble(ExitCode.IO_ERROR, str(error)) from error
    if as_json:
        print_json(_as_json(plan, cut, log.end, done))
    else:
        _tell(plan, cut, log.end, done)


def _tell(plan: CopyPlan, cut: Cut, source_end: int, done: CopyDone | None) -> None:
    would = "" if done is not None else "would "
    last = "" if cut.last_timestamp is None else f", the last message is of {iso_time(cut.last_timestamp)}"
    say(f"{plan.output} {would}hold{'s' if done else ''} the log from {plan.min_offset} to {plan.end}{last}")
    if plan.end < source_end:
        say(f"{source_end - plan.end} bytes of the log follow that place in {plan.source}")
    elif plan.kind is CopyKind.RESTORE:
        say(f"nothing is left out: no message of {plan.source} follows that place")
    if cut.earlier_after:
        say(
            f"{cut.earlier_after} messages after that place were stored at earlier times: the clock was set back. They "
            "are left out"
        )
    if plan.kind is CopyKind.RESTORE:
        say(_tables_line(plan))
    if plan.left_out:
        say(f"not copied: {', '.join(plan.left_out)}")
    if done is None:
        say(f"{plan.bytes} bytes would be copied or shared; nothing was changed")
    else:
        say(
            f"{done.copied.copied} bytes copied, {done.copied.shared} shared; {done.queues} queues; "
            f"{done.clamped} consumer offsets were set back to the end of their queues"
        )


def _tables_line(plan: CopyPlan) -> str:
    if plan.tables_from is None:
        return (
            "topics, groups and offsets are those of now, for there is no snapshot from before that place: consumers "
            "do not read again what they have read since"
        )
    return f"topics, groups and offsets are those of the snapshot at {plan.tables_from}"


def _as_json(plan: CopyPlan, cut: Cut, source_end: int, done: CopyDone | None) -> dict[str, Any]:
    return {
        "output": str(plan.output),
        "kind": plan.kind.value,
        "min": plan.min_offset,
        "end": plan.end,
        "sourceEnd": source_end,
        "lastStoreTimestamp": cut.last_timestamp,
        "earlierAfter": cut.earlier_after,
        "tablesFrom": plan.tables_from,
        "leftOut": list(plan.left_out),
        "bytes": plan.bytes,
        "done": None
        if done is None
        else {
            "copiedBytes": done.copied.copied,
            "sharedBytes": done.copied.shared,
            "queues": done.queues,
            "clampedOffsets": done.clamped,
        },
    }
