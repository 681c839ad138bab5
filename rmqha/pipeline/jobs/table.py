"""What ``stats`` found as a table of texts, for a terminal and for a page."""

from rmqha.pipeline.jobs.stats import Stats, TopicStats

HEADINGS = ("topic", "messages", "bytes", "queues", "msg/s", "bytes/s", "p50 ms", "p99 ms", "max ms")
UNPRINTABLE = "\ufffd"


def table_rows(stats: Stats) -> list[tuple[str, ...]]:
    """A row of texts for each topic, under ``HEADINGS``."""
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
    """A text without what a terminal would obey, or XML refuse: anyone may have named a topic."""
    return "".join(char if char.isprintable() else UNPRINTABLE for char in text)
