"""``rmqha dump`` and ``rmqha queues``: what is in a store."""

from pathlib import Path

import click

from rmqha.cli.shared import JSON, SETTINGS, STORE, blank_line, open_store, print_json, record_line, settings_of
from rmqha.store.derived import open_queues
from rmqha.wire.record import Blank


@click.command()
@STORE
@click.option("--from", "start", type=click.IntRange(min=0), default=0, help="First offset; the record at or after it.")
@click.option("--to", "end", type=click.IntRange(min=0), default=None, help="End before this offset.")
@click.option("--topic", default=None, help="Only this topic's messages.")
@SETTINGS
@JSON
def dump(
    store: Path,
    start: int,
    end: int | None,
    topic: str | None,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the records of the commit log, one a line."""
    with open_store(store, settings_of(store, conf, sets)) as reader:
        for offset, record in reader.records(start, end):
            if isinstance(record, Blank):
                if topic is None:
                    click.echo(blank_line(offset, record, as_json))
            elif topic is None or record.topic == topic:
                click.echo(record_line(offset, record, as_json))


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
            click.echo(f"{topic} {number}: {offsets['min']} to {offsets['max']}")
