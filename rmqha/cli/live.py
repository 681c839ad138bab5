"""Shows something again and again: in place on a terminal, else one after another."""

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from twisted.internet.task import deferLater

from rmqha.cli.running import Interrupted, run_reactor

Found = TypeVar("Found")


@contextmanager
def screen(as_lines: bool) -> Iterator[Callable[[str], None]]:
    """What shows a text in place of the one before; ``as_lines``, or without a terminal, it prints it below."""
    if as_lines or not sys.stdout.isatty():
        yield click.echo
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        yield lambda text: live.update(Text(text), refresh=True)


def watch(
    reactor: Any,
    look: Callable[[], Coroutine[Any, Any, Found]],
    show: Callable[[Found], None],
    seconds: float,
    count: int | None,
) -> None:
    """Look and show every ``seconds``, ``count`` times or until Ctrl-C.

    Raises Interrupted after Ctrl-C only if there is a count.
    """

    async def again() -> bool:
        done = 0
        while True:
            show(await look())
            done += 1
            if done == count:
                return True
            await deferLater(reactor, seconds)

    try:
        run_reactor(reactor, again)
    except Interrupted:
        if count is not None:
            raise
