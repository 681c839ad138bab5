"""``rmqha query``: finds messages by key, by id, by time or by offset, on brokers or in a store."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from rmqha.cli.access import WAY
from rmqha.cli.brokers import make_client, run_client
from rmqha.cli.dump import DumpedSince, records_wanted
from rmqha.cli.running import the_reactor
from rmqha.cli.shared import JSON, progress_bar, record_line, with_options
from rmqha.cli.stores import open_store
from rmqha.client import PullConsumer
from rmqha.client.bulk import BulkPull, Selection, StoredSince
from rmqha.client.lookup import ALWAYS, MAX_TIME, Brokers, Period, Place
from rmqha.client.message import MessageQueue
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.progress import OffsetBar
from rmqha.kit.times import parse_time
from rmqha.net.endpoints import split_addresses
from rmqha.store.offline.commands import SETTINGS, Trouble, say, settings_of
from rmqha.store.offline.lookup import Lookup
from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.record import Record, parse_msg_id

DEFAULT_MOST = 32


@dataclass(frozen=True, slots=True)
class Question:
    """What to look for: just one of ``key``, ``msg_id``, ``time`` and ``offset``."""

    key: str | None
    msg_id: str | None
    time: int | None
    offset: str | None
    topic: str | None
    period: Period
    most: int
    scan: bool

    def needed_topic(self, option: str) -> str:
        """The topic. Raises Trouble if it is missing."""
        if self.topic is None:
            raise Trouble(ExitCode.USAGE, f"{option} needs --topic here")
        return self.topic

    def place(self) -> tuple[int | None, int]:
        """The queue id, None for the log itself, and the offset. Raises Trouble."""
        queue_id, _, offset = (self.offset or "").rpartition(":")
        if not offset.isascii() or not offset.isdecimal() or not (queue_id or "0").isascii():
            raise Trouble(ExitCode.USAGE, f"--offset {self.offset} is neither OFFSET nor QUEUE:OFFSET")
        if queue_id and not queue_id.isdecimal():
            raise Trouble(ExitCode.USAGE, f"--offset {self.offset} is neither OFFSET nor QUEUE:OFFSET")
        return (int(queue_id) if queue_id else None), int(offset)


def _time(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _time_option(name: str, meaning: str) -> Callable[[Any], Any]:
    return click.option(name, callback=_time, default=None, metavar="TIME", help=meaning)


@click.command()
@click.argument("store", required=False, type=click.Path(path_type=Path))
@click.option("--key", default=None, help="Messages with this key, or with this unique key of their producer.")
@click.option(
    "--id", "msg_id", default=None, help="The message with this id: a broker's or, with --topic, a producer's"
)
@_time_option("--time", "Messages stored from this time on: 2026-11-21T01:30:00Z.")
@click.option(
    "--offset", default=None, metavar="[QUEUE:]OFFSET", help="The message at this offset of the log, or a queue"
)
@click.option("--topic", default=None, help="The topic. Brokers need it for all but --offset OFFSET and a broker's id.")
@_time_option("--since", "With --key: stored at this time or later.")
@_time_option("--until", "With --key: stored at this time or earlier.")
@click.option("-n", "most", type=click.IntRange(1, 100_000), default=DEFAULT_MOST, show_default=True, help="At most N.")
@click.option("--scan", is_flag=True, help="In a store: read the log itself, because the index may be incomplete.")
@with_options(WAY)
@SETTINGS
@JSON
def query(
    store: Path | None,
    key: str | None,
    msg_id: str | None,
    time: int | None,
    offset: str | None,
    topic: str | None,
    since: int | None,
    until: int | None,
    most: int,
    scan: bool,
    conf: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
    **way: Any,
) -> None:
    """Find messages by --key, --id, --time or --offset, in STORE or on brokers, and print them as dump does.

    Brokers (--namesrv or --broker) use their index. In a STORE, --key with --topic uses the index and then reads what
    is after its end; without --topic, or with --scan, it reads the whole log. A node may use the store meanwhile.

    Exit code 0, also if nothing is found, which is said on stderr. 2 if no broker has the topic, 7 if a broker does not
    answer, 1 if bytes of a store are not records.
    """
    if [key, msg_id, time, offset].count(None) != 3 or key == "" or msg_id == "":
        raise Trouble(ExitCode.USAGE, "give one of --key, --id, --time and --offset")
    ways = [store, way["namesrv"], way["broker"]]
    if ways.count(None) != 2:
        raise Trouble(ExitCode.USAGE, "give one of STORE, --namesrv and --broker")
    if key is None and (since is not None or until is not None or scan):
        raise Trouble(ExitCode.USAGE, "--since, --until and --scan go with --key")
    period = ALWAYS if since is None and until is None else Period(since or 0, MAX_TIME if until is None else until)
    question = Question(key, msg_id, time, offset, topic, period, most, scan)
    printed = PrintedMatches(as_json)
    if store is not None:
        problems = _in_store(store, question, conf, sets, printed)
    else:
        problems = _on_brokers(question, way, printed)
    if not printed.count:
        say("nothing is found", err=True)
    if problems:
        raise Trouble(ExitCode.CANNOT_CONNECT if store is None else ExitCode.CORRUPT, "; ".join(problems))


class PrintedMatches:
    """Prints messages, and counts them."""

    def __init__(self, as_json: bool) -> None:
        self.count = 0
        self._as_json = as_json

    def show(self, record: Record) -> None:
        self.count += 1
        say(record_line(record.physical_offset, record, self._as_json))


def _in_store(
    path: Path, asked: Question, conf: Path | None, sets: tuple[str, ...], printed: PrintedMatches
) -> list[str]:
    settings = settings_of(path, conf, sets)
    with open_store(path, settings) as store:
        lookup = Lookup(store, settings)
        with progress_bar("searching", store.log.min_offset, store.limit) as bar:
            for record in islice(_search(store, lookup, asked, bar), asked.most):
                printed.show(record)
    return lookup.problems


def _search(store: StoreReader, lookup: Lookup, asked: Question, bar: OffsetBar) -> Iterator[Record]:
    if asked.key is not None:
        yield from _by_key(lookup, asked, asked.key, bar)
    elif asked.msg_id is not None:
        yield from _by_id(lookup, asked, asked.msg_id, bar)
    elif asked.time is not None:
        for at, record in records_wanted(store, DumpedSince(asked.time), None, asked.topic):
            bar.reached(at)
            if isinstance(record, Record):
                yield record
    else:
        queue_id, offset = asked.place()
        found = lookup.at(offset) if queue_id is None else None
        if queue_id is not None:
            found = lookup.in_queue(asked.needed_topic("--offset QUEUE:OFFSET"), queue_id, offset)
        if found is not None:
            yield found


def _by_key(lookup: Lookup, asked: Question, key: str, bar: OffsetBar) -> Iterator[Record]:
    topic = asked.topic
    if topic is not None and not asked.scan:
        return lookup.by_key(topic, key, bar.reached, asked.period.has)
    return lookup.scan(key, bar.reached, lambda record: topic in (None, record.topic) and asked.period.has(record))


def _by_id(lookup: Lookup, asked: Question, msg_id: str, bar: OffsetBar) -> Iterator[Record]:
    """A broker's id says where the message is; a producer's id is one of its keys."""
    try:
        host, offset = parse_msg_id(msg_id)
        record = lookup.at(offset)
    except ValueError:
        record = None
    if record is not None and record.store_host == host:
        return iter([record])
    return _by_key(lookup, asked, msg_id, bar)


def _on_brokers(asked: Question, way: dict[str, Any], printed: PrintedMatches) -> list[str]:
    reactor = the_reactor()
    client = make_client(reactor, way)
    brokers = Brokers(client, split_addresses(way["namesrv"] or ""), way["broker"])

    async def ask() -> None:
        if asked.time is not None:
            selection = Selection(StoredSince(asked.time), most=asked.most)
            consumer = PullConsumer(client, "rmqha-query")
            await BulkPull(consumer, reactor, printed.show, selection).run(asked.needed_topic("--time"))
            return
        for record in await _question(brokers, asked, way["broker"]):
            printed.show(record)

    if asked.key is not None:
        asked.needed_topic("--key")
    run_client(reactor, client, ask())
    return brokers.problems


def _question(brokers: Brokers, asked: Question, broker: str | None) -> Coroutine[Any, Any, list[Record]]:
    if asked.key is not None:
        return brokers.by_key(asked.needed_topic("--key"), asked.key, asked.most, asked.period)
    if asked.msg_id is not None:
        return _id_on_brokers(brokers, asked, asked.msg_id)
    queue_id, offset = asked.place()
    if queue_id is not None:
        return _at_queue_offset(brokers, asked.needed_topic("--offset QUEUE:OFFSET"), queue_id, offset)
    if broker is None:
        raise Trouble(ExitCode.USAGE, "an offset of the log needs --broker or a STORE: each broker has its own log")
    return brokers.at(Place(broker, {0: broker}), offset)


async def _id_on_brokers(brokers: Brokers, asked: Question, msg_id: str) -> list[Record]:
    try:
        found = await brokers.by_id(msg_id)
    except ValueError as error:
        if asked.topic is None:
            raise Trouble(ExitCode.USAGE, f"{error}; the id of a producer needs --topic") from error
        found = []
    if found or asked.topic is None:
        return found
    return await brokers.by_key(asked.topic, msg_id, asked.most, unique=True)


async def _at_queue_offset(brokers: Brokers, topic: str, queue_id: int, offset: int) -> list[Record]:
    """The messages at this offset of the queue, one of each brokerName."""
    consumer = PullConsumer(brokers.client, "rmqha-query")
    queues = [queue for queue in await consumer.fetch_queues(topic) if queue.queue_id == queue_id]
    names = {queue.broker_name for queue in queues}

    async def pull(place: Place) -> list[Record]:
        result = await consumer.pull(MessageQueue(topic, place.broker_name, queue_id), offset, 1)
        return [record for record in result.messages if record.queue_offset == offset][:1]

    places = [place for place in await brokers.places_of(topic) if place.broker_name in names]
    return await brokers.from_each(places, pull)
