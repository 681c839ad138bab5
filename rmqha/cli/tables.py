"""Tables for a terminal: in a narrow one, less important columns are left out. Numbers are never cut."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rmqha.kit.printing import printable

WIDE = 10_000
GAP = 2
MIN_NAME = 12
"""A name is folded, but not into fewer columns than this."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Names are folded if necessary. The column with the lowest ``rank`` is left out first."""

    heading: str
    is_name: bool = False
    rank: int = 9


def terminal_width() -> int:
    """The width to print for: without a limit if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The numbers of the columns that fit into this width."""

    def least(number: int) -> int:
        widest = max(map(len, [columns[number].heading, *(row[number] for row in rows)]))
        return min(widest, MIN_NAME) if columns[number].is_name else widest

    chosen = list(range(len(columns)))
    while len(chosen) > 1 and sum(map(least, chosen)) + GAP * (len(chosen) - 1) > width:
        chosen.remove(min(chosen, key=lambda number: (columns[number].rank, number)))
    return chosen


def table_text(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> str:
    """The table, in at most ``width`` columns if its most important columns fit. Strange characters are escaped."""
    rows = [[printable(cell) for cell in row] for row in rows]
    chosen = fitting(columns, rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for number in chosen:
        column = columns[number]
        table.add_column(
            Text(column.heading),
            justify="left" if column.is_name else "right",
            no_wrap=not column.is_name,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(row[number]) for number in chosen))
    output = StringIO()
    Console(file=output, width=width, color_system=None, highlight=False).print(table, crop=False)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. If columns are left out, a line on stderr says how to see them."""
    width = terminal_width()
    click.echo(table_text(columns, rows, width))
    if len(fitting(columns, [[printable(cell) for cell in row] for row in rows], width)) < len(columns):
        click.echo("(a wider terminal, or --json, shows more columns)", err=True)
