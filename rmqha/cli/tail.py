"""``rmqha tail``: the last messages of a topic, and the new ones."""

from typing import Any

import click

from rmqha.cli.access import EXPRESSION, WAY, expression_of
from rmqha.cli.brokers import Printed, make_client, run_client
from rmqha.cli.running import Interrupted, the_reactor
from rmqha.cli.shared import JSON, parsed_time, with_options
from rmqha.client import PullConsumer
from rmqha.client.bulk import Edge, StoredSince
from rmqha.client.follow import Follower, Wanted
from rmqha.kit.exitcodes import ExitCode
from rmqha.store.offline.commands import Trouble

DEFAULT_LAST = 10
EDGES = {"first": Edge.MIN, "last": Edge.MAX}


def _start(_: click.Context, __: click.Parameter, text: str | None) -> Edge | StoredSince | None:
    if text is None or text in EDGES:
        return None if text is None else EDGES[text]
    return StoredSince(parsed_time(text, "first, nor last, nor a time"))


@click.command()
@click.argument("topic")
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@click.option(
    "-n",
    "last",
    type=click.IntRange(min=0, max=100_000),
    default=None,
    metavar="N",
    help=f"The last N messages of all queues. Default: {DEFAULT_LAST}, or 0 with -f.",
)
@click.option(
    "--from",
    "start",
    default=None,
    callback=_start,
    metavar="TIME|first|last",
    help="With -f: start at this time (2026-11-21T01:30:00Z), at the first message, or at the end.",
)
@with_options(EXPRESSION)
@click.option("--body", "only_body", is_flag=True, help="Print only the bodies, decompressed, one on each line.")
@click.option("--group", default="rmqha-tail", help="The consumer group; its offsets are neither used nor changed.")
@with_options(WAY)
@JSON
def tail(
    topic: str,
    follow: bool,
    last: int | None,
    start: Edge | StoredSince | None,
    tags: str | None,
    sql: str | None,
    only_body: bool,
    group: str,
    as_json: bool,
    **way: Any,
) -> None:
    """Print the last messages of all queues of TOPIC, one on each line, as dump does. -f continues with new ones.

    With -f it goes on when a broker is down for a while, and reads its slave meanwhile; what happens is said on stderr.
    New queues and brokers of the topic are noticed within half a minute. Messages of one queue keep their order.

    Exit code 2 if no broker has the topic, 7 if no broker answers, 8 if a broker refuses. Ctrl-C ends -f with 0.
    """
    if start is not None and (last is not None or not follow):
        raise Trouble(ExitCode.USAGE, "--from needs -f" if not follow else "--from and -n exclude each other")
    expression = expression_of(tags, sql)
    reactor = the_reactor()
    client = make_client(reactor, way)

    count = last if last is not None else 0 if follow else DEFAULT_LAST
    wanted = Wanted(start or Edge.MAX, None if start is not None else count, expression)
    follower = Follower(PullConsumer(client, group), reactor, wanted, Printed(only_body, as_json))

    async def run() -> None:
        places = await follower.last(topic) if wanted.last is not None else None
        if follow:
            await follower.follow(topic, places)

    try:
        run_client(reactor, client, run())
    except Interrupted:
        if not follow:
            raise
