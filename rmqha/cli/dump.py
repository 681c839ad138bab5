"""``rmqha dump`` and ``rmqha queues``: show what is in a store."""

import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import click

from rmqha.cli.shared import JSON, STORE, blank_line, print_json, record_line
from rmqha.cli.stores import open_store
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.showing import progress
from rmqha.kit.times import parse_time
from rmqha.store.derived.queuetable import open_queues
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.store.offline.restore import KeptReader, kept_file
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Blank, Record

PREVIEW_BYTES = 60
UNPRINTABLE = "\ufffd"
Reader = StoreReader | KeptReader
Records = Iterator[tuple[int, Record | Blank]]


@dataclass(frozen=True, slots=True)
class DumpedSince:
    """Start at the first message stored at ``timestamp`` (ms since 1970) or later."""

    timestamp: int


def _offset_or_time(_: click.Context, __: click.Parameter, text: str) -> int | DumpedSince:
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return DumpedSince(parse_time(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither an offset nor a time: {error}") from None


@click.command()
@STORE
@click.option(
    "--from",
    "start",
    default="0",
    callback=_offset_or_time,
    metavar="OFFSET|TIME",
    help="Start at the first record from this offset on, or stored from this time on: 2026-11-21T01:30:00Z.",
)
@click.option("--to", "end", type=click.IntRange(min=0), default=None, help="End before this offset.")
@click.option("--topic", default=None, help="Only this topic's messages.")
@click.option("-n", "first", type=click.IntRange(min=0), default=None, metavar="N", help="The first N of them.")
@click.option("--tail", type=click.IntRange(min=0), default=None, metavar="N", help="The last N of them.")
@click.option("--body", "with_body", is_flag=True, help="Show the start of each body, as text.")
@SETTINGS
@JSON
def dump(
    store: Path,
    start: int | DumpedSince,
    end: int | None,
    topic: str | None,
    first: int | None,
    tail: int | None,
    with_body: bool,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the records of the commit log, one on each line. STORE may also be a file of STORE/rmqha/cut.

    --tail reads only as many of the log's last segments as it needs. Exit code 1 if bytes are not a valid record; the
    records before them are printed.
    """
    if first is not None and tail is not None:
        raise Trouble(ExitCode.USAGE, "-n and --tail exclude each other")
    with open_source(store, conf, sets) as reader:
        wanted = records_wanted(reader, start, end, topic)
        if tail is not None:
            wanted = iter(_last(reader, partial(records_wanted, reader, end=end, topic=topic), start, tail))
        with progress("dump", shown=_writes_file()) as bar:
            for offset, record in islice(wanted, first):
                bar.show(offset - reader.log.min_offset, reader.limit - reader.log.min_offset)
                if isinstance(record, Blank):
                    say(blank_line(offset, record, as_json))
                else:
                    say(record_line(offset, record, as_json) + ("" if as_json or not with_body else _preview(record)))


def _writes_file() -> bool:
    """Whether standard output is a file: then a bar on stderr disturbs nobody."""
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or a stand-in of a test
        return False


@contextmanager
def open_source(path: Path, conf: Path | None, sets: tuple[str, ...]) -> Iterator[Reader]:
    """A store, or bytes that were cut off one and kept."""
    kept = kept_file(path)
    if kept is not None:
        yield KeptReader(kept, settings_of(path.absolute().parent.parent.parent, conf, sets))
        return
    with open_store(path, settings_of(path, conf, sets)) as reader:
        yield reader


def records_wanted(reader: Reader, start: int | DumpedSince, end: int | None, topic: str | None) -> Records:
    """The requested records. Blanks are included only if all topics are."""
    offset = _segment_of_time(reader, start.timestamp) if isinstance(start, DumpedSince) else start
    is_reached = not isinstance(start, DumpedSince)
    for at, record in reader.records(offset, end):
        if isinstance(start, DumpedSince) and not is_reached:
            is_reached = isinstance(record, Record) and record.store_timestamp >= start.timestamp
        if is_reached and (topic is None or (isinstance(record, Record) and record.topic == topic)):
            yield at, record


def _segments(reader: Reader) -> list[int]:
    """The start offsets of the log's segments."""
    return list(range(reader.log.min_offset, max(reader.limit, reader.log.min_offset + 1), reader.log.segment_size))


def _segment_of_time(reader: Reader, timestamp: int) -> int:
    """The segment before the first one whose first message was stored at ``timestamp`` or later."""
    before = reader.log.min_offset
    for base in _segments(reader):
        first = next((record for _, record in reader.records(base, None) if isinstance(record, Record)), None)
        if first is None or first.store_timestamp >= timestamp:
            break
        before = base
    return before


def _last(
    reader: Reader, wanted: Callable[[int | DumpedSince], Records], start: int | DumpedSince, count: int
) -> Iterable[tuple[int, Record | Blank]]:
    """The last ``count`` of the records from ``start`` on, found from the log's end."""
    bases = [] if isinstance(start, DumpedSince) else [base for base in _segments(reader) if base > start]
    for base in reversed(bases):
        found = deque(wanted(base), maxlen=count)
        if len(found) == count:
            return found
    return deque(wanted(start), maxlen=count)


def _preview(record: Record) -> str:
    text = record.body[:PREVIEW_BYTES].decode("utf-8", "replace")
    shown = "".join(char if char.isprintable() else UNPRINTABLE for char in text)
    return f"  {shown}{'…' if len(record.body) > PREVIEW_BYTES else ''}"


@click.command()
@STORE
@SETTINGS
@JSON
def queues(store: Path, conf: Path | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Show the first and the next offset of every queue."""
    settings = settings_of(store, conf, sets)
    with open_store(store, settings) as reader:
        table = open_queues(reader.root, settings, owned=False)
        found: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, queue_id), queue in sorted(table.queues.items()):
            queue.find_end()
            queue.correct_min_offset(reader.log.min_offset)
            queue.release_files()
            found.setdefault(topic, {})[str(queue_id)] = {"min": queue.min_offset, "max": queue.max_offset}
        table.close()
    if as_json:
        print_json(found)
        return
    for topic, by_id in found.items():
        for number, offsets in by_id.items():
            say(f"{topic} {number}: {offsets['min']} to {offsets['max']}")
