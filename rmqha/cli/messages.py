"""``rmqha put`` and ``rmqha pull``: send messages to brokers and read them."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import click

from rmqha.cli.access import EXPRESSION, WAY, expression_of
from rmqha.cli.brokers import Printed, make_client, run_client
from rmqha.cli.running import Interrupted, the_reactor
from rmqha.cli.shared import JSON, parsed_time, print_json, with_options
from rmqha.client import Message, Producer, PullConsumer, SendResult, SendStatus
from rmqha.client.bulk import BulkPull, Edge, Selection, StoredSince, put_all
from rmqha.kit.exitcodes import ExitCode
from rmqha.kit.interrupts import pieces_of
from rmqha.store.offline.commands import Trouble, say

PIECE_BYTES = 1 << 16
IN_MEMORY_BYTES = 64 << 20
"""How much of a dump from standard input is kept in memory; the rest is kept in a temporary file."""


@click.command()
@click.argument("topic", required=False)
@click.argument("body", required=False)
@click.option("--tags", default="", help="The message's tag.")
@click.option("--keys", default="", help="Its keys, separated by spaces.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send each message this many times.")
@click.option("--group", default="rmqha-put", help="The producer group.")
@click.option(
    "--dump",
    "dumped",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Send the messages that rmqha dump --json has printed to FILE, or to standard input if it is -.",
)
@with_options(WAY)
@JSON
def put(
    topic: str | None,
    body: str | None,
    tags: str,
    keys: str,
    count: int,
    group: str,
    dumped: Path | None,
    as_json: bool,
    **way: Any,
) -> None:
    """Send BODY to TOPIC. Without BODY, send each line of standard input, after its end.

    With --dump the messages keep their topics, queues, bodies, tags, keys and user properties; rmqha replay --help says
    what is left out. Each line is checked before the first is sent.

    At the end it prints the counts by status. A retry may send a message twice. Exit code 2 if no broker has the topic
    or creates it; 6 if the master has stored a message, but its disk or slave did not in time; 7 if no broker answers;
    8 if a broker refuses the message.
    """
    if dumped is not None:
        if topic is not None or tags or keys or count != 1:
            raise Trouble(
                ExitCode.USAGE, "with --dump, the file says what is sent: give no TOPIC, BODY, tags, keys or count"
            )
        with _dump(dumped) as file:
            from rmqha.cli.replay import Lines, Sending, run_replay
            from rmqha.client.replay import Wanted

            sending = Sending(delayed="level", group=group)
            run_replay(Lines(str(dumped), file), Wanted(), sending, way, as_json)
        return
    if topic is None:
        raise Trouble(ExitCode.USAGE, "give a TOPIC, or --dump FILE")
    bodies = [body.encode()] if body is not None else b"".join(pieces_of(sys.stdin.fileno(), PIECE_BYTES)).splitlines()
    messages = [Message(topic, content, tags=tags, keys=keys) for content in bodies for _ in range(count)]
    reactor = the_reactor()
    client = make_client(reactor, way)
    statuses: Counter[SendStatus] = Counter()

    def sent(result: SendResult) -> None:
        statuses[result.status] += 1
        if as_json:
            print_json(_sent_as_json(result))

    try:
        run_client(reactor, client, put_all(Producer(client, group), messages, sent))
    except ValueError as error:
        raise Trouble(ExitCode.USAGE, str(error)) from error
    finally:
        if not as_json:
            for status, number in statuses.items():
                say(f"{status.name} {number}")
    if set(statuses) - {SendStatus.SEND_OK}:
        raise Trouble(ExitCode.STALLED, "not all messages were stored on disk and slaves in time")


@contextmanager
def _dump(path: Path) -> Iterator[IO[bytes]]:
    """The file, or a copy of standard input that can be read twice. Raises OSError."""
    if str(path) != "-":
        with path.open("rb") as file:
            yield file
        return
    with SpooledTemporaryFile(IN_MEMORY_BYTES) as copy:
        for piece in pieces_of(sys.stdin.fileno(), PIECE_BYTES):
            copy.write(piece)
        yield copy


def _sent_as_json(result: SendResult) -> dict[str, Any]:
    return {
        "status": result.status.name,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "topic": result.queue.topic,
        "brokerName": result.queue.broker_name,
        "queueId": result.queue.queue_id,
        "queueOffset": result.queue_offset,
    }


def _start_from(_: click.Context, __: click.Parameter, text: str) -> Edge | StoredSince | int:
    if text.isascii() and text.isdecimal():
        return int(text)
    if text in {edge.value for edge in Edge}:
        return Edge(text)
    return StoredSince(parsed_time(text, "min, nor max, nor an offset"))


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="min",
    callback=_start_from,
    metavar="min|max|OFFSET|TIME",
    help="An offset in each queue, or the time since when messages were stored: 2026-11-21T01:30:00Z.",
)
@click.option("--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@click.option("--max", "most", type=click.IntRange(min=1), default=None, help="End after this many messages.")
@with_options(EXPRESSION)
@click.option("--group", default="rmqha-pull", help="The consumer group; its offsets are neither used nor changed.")
@click.option("--body", "only_body", is_flag=True, help="Print only the bodies, decompressed, one on each line.")
@with_options(WAY)
@JSON
def pull(
    topic: str,
    start: Edge | StoredSince | int,
    follow: bool,
    most: int | None,
    tags: str | None,
    sql: str | None,
    group: str,
    only_body: bool,
    as_json: bool,
    **way: Any,
) -> None:
    """Print the messages of all queues of TOPIC, one on each line, as dump does. If a master is down, read its slave.

    Exit code 2 if no broker has the topic, 7 if no broker answers, 8 if a broker refuses.
    """
    expression = expression_of(tags, sql)
    reactor = the_reactor()
    client = make_client(reactor, way)
    printed = Printed(only_body, as_json)
    work = BulkPull(PullConsumer(client, group), reactor, printed.got, Selection(start, follow, expression, most))
    try:
        run_client(reactor, client, work.run(topic))
    except Interrupted:
        if not follow:
            raise
