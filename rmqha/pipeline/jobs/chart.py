"""What ``stats`` found as one HTML page that needs nothing else: bars by topic, and messages a minute over time."""

from collections import Counter
from datetime import UTC, datetime
from html import escape

from rmqha.pipeline.jobs.stats import MINUTE_MS, Stats, TopicStats

WIDTH, BAR_HEIGHT, LABEL_WIDTH, TIMELINE_HEIGHT = 900, 18, 260, 160
MOST_COLUMNS = 120
"""Columns of the timeline: more minutes than these share one."""
MOST_BARS = 40
HEADINGS = ("topic", "messages", "bytes", "queues", "msg/s", "bytes/s", "p50 ms", "p99 ms", "max ms")
STYLE = """body{font:14px sans-serif;margin:2em;color:#222}table{border-collapse:collapse}td,th{padding:2px 10px;
border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}rect{fill:#3b78b5}
text{font:12px sans-serif;fill:#222}"""


def chart(stats: Stats, title: str) -> str:
    """The page."""
    parts = [
        f"<!DOCTYPE html><html><head><meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE}</style></head>",
        f"<body><h1>{escape(title)}</h1>",
        _table(stats),
        "<h2>Messages by topic</h2>",
        _bars({topic: one.messages for topic, one in stats.items()}),
        "<h2>Bytes by topic</h2>",
        _bars({topic: one.bytes for topic, one in stats.items()}),
        "<h2>Messages over time</h2>",
        _timeline(sum((one.minutes for one in stats.values()), Counter())),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def table_rows(stats: Stats) -> list[tuple[str, ...]]:
    """A row of texts for each topic, under ``HEADINGS``."""
    return [_row(topic, one) for topic, one in stats.items()]


def _row(topic: str, one: TopicStats) -> tuple[str, ...]:
    return (
        topic,
        f"{one.messages:,}",
        f"{one.bytes:,}",
        str(len(one.queues)),
        f"{one.messages / one.seconds:,.1f}",
        f"{one.bytes / one.seconds:,.0f}",
        f"{one.latency_ms(0.5):,}",
        f"{one.latency_ms(0.99):,}",
        f"{one.latency_max_ms:,}",
    )


def _table(stats: Stats) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in table_rows(stats))
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _bars(values: dict[str, int]) -> str:
    longest = sorted(values.items(), key=lambda item: -item[1])[:MOST_BARS]
    scale = (WIDTH - LABEL_WIDTH - 120) / max(1, max((value for _, value in longest), default=1))
    bars = [
        f"<text x='{LABEL_WIDTH - 8}' y='{y + 13}' text-anchor='end'>{escape(topic)}</text>"
        f"<rect x='{LABEL_WIDTH}' y='{y + 1}' width='{value * scale:.1f}' height='{BAR_HEIGHT - 3}'/>"
        f"<text x='{LABEL_WIDTH + value * scale + 6:.1f}' y='{y + 13}'>{value:,}</text>"
        for y, (topic, value) in zip(range(0, BAR_HEIGHT * len(longest), BAR_HEIGHT), longest, strict=True)
    ]
    return _svg(BAR_HEIGHT * len(longest), bars)


def _timeline(minutes: Counter[int]) -> str:
    if not minutes:
        return "<p>no messages</p>"
    first, last = min(minutes), max(minutes)
    width = (last - first) // MOST_COLUMNS + 1  # minutes in a column
    columns: Counter[int] = Counter()
    for minute, count in minutes.items():
        columns[(minute - first) // width] += count
    step = WIDTH / ((last - first) // width + 1)
    scale = TIMELINE_HEIGHT / max(columns.values())
    bars = [
        f"<rect x='{column * step:.1f}' y='{TIMELINE_HEIGHT - count * scale:.1f}' width='{max(1.0, step - 1):.1f}' "
        f"height='{count * scale:.1f}'><title>{_time(first + column * width)}: {count:,}</title></rect>"
        for column, count in sorted(columns.items())
    ]
    ends = f"<p>{_time(first)} to {_time(last)} UTC, columns of {width} min, highest {max(columns.values()):,}</p>"
    return _svg(TIMELINE_HEIGHT, bars) + ends


def _time(minute: int) -> str:
    return datetime.fromtimestamp(minute * MINUTE_MS / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _svg(height: int, parts: list[str]) -> str:
    return f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}'>{''.join(parts)}</svg>"
