"""Times as people read and write them: ISO 8601 with a zone. In the log they are milliseconds since 1970."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def iso_time(milliseconds: int) -> str:
    """The time in UTC, such as 2026-11-21T01:30:00.248Z. A time outside the calendar is shown in milliseconds."""
    try:
        return (EPOCH + milliseconds * MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{milliseconds} ms"


def parse_time(text: str) -> int:
    """Parse a time in ISO 8601 with its zone, or milliseconds since 1970. Returns milliseconds. Raises ValueError."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time is written like 2026-11-21T01:30:00Z, or as milliseconds since 1970") from None
    if time.tzinfo is None:
        raise ValueError(f"it has no zone: {text}Z is UTC, {text}+02:00 two hours east") from None
    if time < EPOCH:
        raise ValueError("it is before 1970")
    return (time - EPOCH) // MILLISECOND


def seconds_of(text: str | None) -> float | None:
    """Parse a time in ISO 8601. Returns seconds since 1970; None for None, and for a text that is not a time."""
    try:
        return None if text is None else parse_time(text) / 1000
    except ValueError:
        return None
