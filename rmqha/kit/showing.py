"""Shows on stderr how far a long work has come: a bar on a terminal, else a line every ten seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rmqha.kit.printing import printable
from rmqha.kit.progress import NO_BAR, IBar, Lines, Unit


@contextmanager
def progress(title: str, unit: Unit = Unit.BYTES, shown: bool = True) -> Iterator[IBar]:
    """Show progress on stderr. It yields what to tell each place reached; not ``shown``, it shows nothing."""
    if not shown:
        yield NO_BAR
        return
    if not sys.stderr.isatty():
        yield Lines(title, unit, _say)
        return
    from rmqha.kit.bar import bar_on_terminal  # what draws it takes longer to import than most commands to work

    with bar_on_terminal(title, unit is Unit.BYTES) as bar:
        yield Lines(title, unit, _say) if bar is None else bar


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
