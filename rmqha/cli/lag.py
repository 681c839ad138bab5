"""``rmqha lag``: how far consumer groups are behind, on brokers or in a store."""

from pathlib import Path
from typing import Any

import click

from rmqha.cli.access import WAY
from rmqha.cli.brokers import make_client, run_client
from rmqha.cli.running import the_reactor
from rmqha.cli.shared import JSON, json_line, with_options
from rmqha.cli.tables import Column, print_table
from rmqha.client.lag import QueueLag, TopicLag, by_topic, lag_of_brokers
from rmqha.client.lookup import Brokers
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.times import iso_time
from rmqha.net.endpoints import split_addresses
from rmqha.store.offline.commands import SETTINGS, Trouble, settings_of

UNKNOWN = "-"
COLUMNS = (
    Column("group", is_name=True),
    Column("topic", is_name=True),
    Column("broker offset", rank=2),
    Column("consumer offset", rank=3),
    Column("diff"),
    Column("last consumed", rank=5),
)
QUEUE_COLUMNS = (*COLUMNS[:2], Column("broker", is_name=True, rank=4), Column("queue", rank=8), *COLUMNS[2:])


@click.command()
@click.argument("group", required=False)
@click.option("--store", type=click.Path(path_type=Path), default=None, help="A store on this machine instead.")
@click.option("--topic", default=None, help="Only this topic.")
@click.option("--queues", "each_queue", is_flag=True, help="A row for each queue.")
@with_options(WAY)
@SETTINGS
@JSON
def lag(
    group: str | None,
    store: Path | None,
    topic: str | None,
    each_queue: bool,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
    **way: Any,
) -> None:
    """Show for each consumer group and topic how many messages are not consumed yet (diff).

    Without GROUP it shows all groups that have offsets. "last consumed" is when the last consumed message was stored.
    Ask --namesrv, all brokers it lists; --broker, one broker; or --store. A store shows the offsets that its node wrote
    last, at most some seconds ago. --json prints a line for each row.

    Exit code 7 if a broker does not answer, 8 if a broker refuses.
    """
    rows, problems = _of_store(store, group, topic, conf, sets, way) if store is not None else _ask(group, topic, way)
    shown: list[QueueLag] | list[TopicLag] = rows if each_queue else by_topic(rows)
    if as_json:
        for row in shown:
            click.echo(json_line(_as_json(row)))
    elif shown:
        print_table(QUEUE_COLUMNS if each_queue else COLUMNS, [_cells(row) for row in shown])
    else:
        click.echo("no group has offsets here" if group is None else "this group has no offsets here", err=True)
    if problems:
        raise Trouble(ExitCode.CANNOT_CONNECT, f"not everything is shown: {'; '.join(problems)}")


def _ask(group: str | None, topic: str | None, way: dict[str, Any]) -> tuple[list[QueueLag], list[str]]:
    reactor = the_reactor()
    client = make_client(reactor, way)
    brokers = Brokers(client, split_addresses(way["namesrv"] or ""), way["broker"])
    rows: list[QueueLag] = []

    async def ask() -> None:
        rows.extend(await lag_of_brokers(brokers, group, topic))

    run_client(reactor, client, ask())
    return rows, brokers.problems


def _of_store(
    path: Path, group: str | None, topic: str | None, conf: Path | None, sets: tuple[str, ...], way: dict[str, Any]
) -> tuple[list[QueueLag], list[str]]:
    if way["namesrv"] is not None or way["broker"] is not None:
        raise Trouble(ExitCode.USAGE, "give one of --store, --namesrv and --broker")
    from rmqha.cli.stores import open_store  # who asks brokers is answered sooner
    from rmqha.store.offline.lookup import Lookup

    settings = settings_of(path, conf, sets)
    with open_store(path, settings) as store:
        found = Lookup(store, settings).lag(group, topic)
    return [QueueLag(*row[:2], UNKNOWN, *row[2:]) for row in found], []


def _cells(row: QueueLag | TopicLag) -> list[str]:
    place = [row.broker_name, str(row.queue_id)] if isinstance(row, QueueLag) else []
    time = iso_time(row.last_consumed) if row.last_consumed > 0 else UNKNOWN
    return [row.group, row.topic, *place, str(row.broker_offset), str(row.consumer_offset), str(row.difference), time]


def _as_json(row: QueueLag | TopicLag) -> dict[str, Any]:
    place: dict[str, Any] = {"queues": row.queues} if isinstance(row, TopicLag) else {}
    if isinstance(row, QueueLag):
        place = {"brokerName": None if row.broker_name == UNKNOWN else row.broker_name, "queueId": row.queue_id}
    return {
        "group": row.group,
        "topic": row.topic,
        **place,
        "brokerOffset": row.broker_offset,
        "consumerOffset": row.consumer_offset,
        "diff": row.difference,
        "lastConsumed": iso_time(row.last_consumed) if row.last_consumed > 0 else None,
    }
