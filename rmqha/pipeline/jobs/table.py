"""The result of ``stats`` as a table of texts, for a terminal and for an HTML page."""

from collections.abc import Sequence

from rmqha.pipeline.jobs.stats import Stats, TopicStats

HEADINGS = ("topic", "messages", "bytes", "queues", "msg/s", "bytes/s", "p50 ms", "p99 ms", "max ms")
COLUMN_MARGIN = 3
"""The characters that border and padding of a table add to a column."""
MIN_TOPIC = 16
UNPRINTABLE = "\ufffd"


SHORT_HEADINGS = ("topic", "messages", "bytes", "p50 ms", "p99 ms", "max ms")
"""The most important of ``HEADINGS``, for a narrow terminal."""


def fitting_columns(rows: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """The columns of ``HEADINGS`` that fit into this many characters: all, or as many of the most important ones as
    fit.
    """
    widths = [max(len(row[number]) for row in (HEADINGS, *rows)) + COLUMN_MARGIN for number in range(len(HEADINGS))]
    widths[0] = min(widths[0], MIN_TOPIC + COLUMN_MARGIN)  # a longer name is folded
    chosen = list(range(len(HEADINGS)))
    if 1 + sum(widths) > width:
        chosen = [HEADINGS.index(heading) for heading in SHORT_HEADINGS]
    while len(chosen) > 2 and 1 + sum(widths[number] for number in chosen) > width:
        chosen.pop()
    return chosen


def table_rows(stats: Stats) -> list[tuple[str, ...]]:
    """One row of texts for each topic, under ``HEADINGS``."""
    return [_row(topic, one) for topic, one in stats.items()]


def _row(topic: str, one: TopicStats) -> tuple[str, ...]:
    return (
        printable(topic),
        f"{one.messages:,}",
        f"{one.bytes:,}",
        str(len(one.queues)),
        f"{one.messages / one.seconds:,.1f}",
        f"{one.bytes / one.seconds:,.0f}",
        f"{one.latency_ms(0.5):,}",
        f"{one.latency_ms(0.99):,}",
        f"{one.latency_max_ms:,}",
    )


def printable(text: str) -> str:
    """A text without characters that a terminal would obey or XML would refuse. Anyone may have named a topic."""
    return "".join(char if char.isprintable() else UNPRINTABLE for char in text)
