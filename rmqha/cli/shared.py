"""What the commands share: options, a progress bar, JSON, the line of a record."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson

from rmqha.kit.printing import printable_json
from rmqha.kit.progress import OffsetBar
from rmqha.kit.showing import progress
from rmqha.kit.times import iso_time, parse_time
from rmqha.wire.layout import BLANK_MAGIC_CODE
from rmqha.wire.record import Blank, Record, record_as_json

STORE = click.argument("store", type=click.Path(path_type=Path))
DEFAULT_SECONDS = 2.0
INTERVAL = click.FloatRange(min=0.1, max=86_400)
"""How often a command shows something again, in seconds."""
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Machine-readable: one JSON object (dump: one on each line)."
)


Command = TypeVar("Command", bound=Callable[..., None])


def with_options(options: tuple[Callable[[Any], Any], ...]) -> Callable[[Command], Command]:
    """Add all these options to a command, in their order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@contextmanager
def progress_bar(title: str, start: int, end: int) -> Iterator[OffsetBar]:
    """Show progress on stderr. It yields what to tell each offset reached."""
    with progress(title) as shown:
        bar = OffsetBar(shown, start, end)
        bar.reached(start)
        yield bar


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
