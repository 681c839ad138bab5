"""Draws the result of ``stats``: a PNG or SVG file, or an HTML page that needs no other file."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from html import escape
from io import BytesIO
from pathlib import Path
from typing import IO

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.jobs.stats import Stats, TopicStats
from rmqha.pipeline.jobs.table import HEADINGS, printable, table_rows
from rmqha.store.offline.newstore import check_place

FORMATS = (".png", ".svg", ".html")
MAX_TOPICS = 30
MAX_COLUMNS = 200
"""Columns of the timeline. If there are more minutes, a column covers several."""
MAX_NAME_CHARS = 48
MINUTES_A_DAY = 24 * 60
LAST_DAY = 2_932_896
"""31 December 9999, in days since 1970: the last date that can be drawn."""
WIDTH_INCHES, TIMELINE_INCHES, BAR_INCHES, FRAME_INCHES = 10.0, 3.0, 0.24, 0.8
DOTS_PER_INCH = 120
DRAWING = {"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
STYLE = """body{font:14px sans-serif;margin:2em;color:#222}table{border-collapse:collapse}td,th{padding:2px 10px;
border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}
svg{max-width:100%;height:auto}"""
Draw = Callable[[Stats, str], None]
"""Draws statistics under a title."""


@contextmanager
def chart_file(path: Path) -> Iterator[Draw]:
    """A function that draws into a file, whose suffix gives the format. The file is written as a whole, or not at all.

    Raises OptionError for another suffix, WrongPlace for a file in a store or an archive, and OSError if it cannot be
    created, before anything is drawn.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise OptionError(f"{path}: a chart is a file named {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    check_place(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        try:
            yield lambda stats, title: draw(stats, title, suffix, file)
            file.flush()
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)


def draw(stats: Stats, title: str, suffix: str, file: IO[bytes]) -> None:
    """Draw into a file, in one of ``FORMATS``. Raises OSError."""
    if suffix == ".html":
        file.write(_page(stats, title).encode())
        return
    with style.context(DRAWING, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a PNG: a box stands for it there
        undated = {"Date": None} if suffix == ".svg" else None  # of the drawing: the date of the log is what matters
        _figure(stats, title).savefig(file, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=undated)


def _page(stats: Stats, title: str) -> str:
    """The table as text, and the chart."""
    drawing = BytesIO()
    draw(stats, title, ".svg", drawing)
    svg = drawing.getvalue().decode()
    title = escape(printable(title))
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in table_rows(stats))
    return "\n".join(
        (
            f"<!DOCTYPE html><html><head><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style></head>",
            f"<body><h1>{title}</h1>",
            f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>",
            svg[svg.index("<svg") :],
            "</body></html>\n",
        )
    )


def _figure(stats: Stats, title: str) -> Figure:
    bars = BAR_INCHES * min(len(stats), MAX_TOPICS) + FRAME_INCHES
    heights = [TIMELINE_INCHES, bars, bars, bars] if stats else [TIMELINE_INCHES]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    figure.suptitle(_shown(title), parse_math=False)
    if not stats:
        figure.text(0.5, 0.5, "no messages", ha="center")
        return figure
    over_time, messages, size, latency = figure.subplots(4, height_ratios=heights)
    _draw_over_time(over_time, sum((one.minutes for one in stats.values()), Counter()))
    _draw_bars(messages, "Messages", stats, lambda one: one.messages)
    _draw_bars(size, "Bytes", stats, lambda one: one.bytes)
    _draw_latency(latency, stats)
    return figure


def _draw_over_time(axes: Axes, minutes: Counter[int]) -> None:
    first, last = min(minutes), max(minutes)
    width = (last - first) // MAX_COLUMNS + 1  # minutes in a column
    counts = [0] * ((last - first) // width + 1)
    for minute, count in minutes.items():
        counts[(minute - first) // width] += count
    days = [min(LAST_DAY, (first + width * column) / MINUTES_A_DAY) for column in range(len(counts) + 1)]
    axes.stairs(counts, days, fill=True)
    axes.set_title(f"Messages over time (UTC), in columns of {width:,} min")
    axes.set_xlim(days[0], days[-1])
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]  # matplotlib types most, not its dates
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]  # as above
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _draw_bars(axes: Axes, heading: str, stats: Stats, of: Callable[[TopicStats], int]) -> None:
    values = [of(stats[topic]) for topic in _topics(axes, heading, stats, of)]
    axes.bar_label(axes.barh(range(len(values)), values), [f"{value:,}" for value in values], padding=4)
    axes.xaxis.set_visible(False)


def _draw_latency(axes: Axes, stats: Stats) -> None:
    heading = "Latency from birth to store (ms, on a log scale: p50, p99, max)"
    topics = _topics(axes, heading, stats, lambda one: one.latency_ms(0.99))
    rows = range(len(topics))
    p50, p99 = ([stats[topic].latency_ms(quantile) for topic in topics] for quantile in (0.5, 0.99))
    most = [stats[topic].latency_max_ms for topic in topics]
    axes.hlines(rows, p50, most, color="lightgrey", zorder=1)
    for values, marker in ((most, ">"), (p99, "D"), (p50, "o")):
        axes.plot(values, rows, marker)
    for row, (low, high, end) in enumerate(zip(p50, p99, most, strict=True)):
        text = f"{low:,} / {high:,} / {end:,}"
        axes.annotate(text, (end, row), (8, 0), textcoords="offset points", va="center")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=0)
    axes.xaxis.set_visible(False)


def _topics(axes: Axes, heading: str, stats: Stats, of: Callable[[TopicStats], int]) -> list[str]:
    """The topics with the most messages, from top to bottom, named at the axis."""
    topics = sorted(stats, key=lambda topic: (-of(stats[topic]), topic))[:MAX_TOPICS]
    left_out = f": the first {MAX_TOPICS} of {len(stats):,}" if len(stats) > MAX_TOPICS else ""
    axes.set_title(f"{heading} by topic{left_out}")
    axes.set_yticks(range(len(topics)), [_shown(topic) for topic in topics], parse_math=False)
    axes.set_ylim(len(topics) - 0.5, -0.5)
    return topics


def _shown(name: str) -> str:
    """A name, shortened in the middle if it is too long."""
    name = printable(name)
    half = MAX_NAME_CHARS // 2
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:half]}…{name[-half:]}"
