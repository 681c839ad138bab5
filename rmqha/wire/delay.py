"""Delay levels: how long a delayed message waits, by its level (spec/store.md 12)."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_MS = 1000


class DelayLevels:
    """The parsed setting ``messageDelayLevel``."""

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        """Raises ValueError if ``text`` contains anything but numbers with the units s, m, h or d."""
        self._text = text
        self._delays_ms: list[int] = []
        for word in text.split():
            number, unit = word[:-1], word[-1:]
            if unit not in UNIT_MS or not number.isdecimal():
                raise ValueError(f"has {word!r}, which is not a time such as 10s, 5m, 1h or 1d")
            self._delays_ms.append(int(number) * UNIT_MS[unit])

    def __str__(self) -> str:
        return self._text

    @property
    def max_level(self) -> int:
        """The highest level, from 1."""
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """How long a message of this level waits, in milliseconds."""
        return self._delays_ms[level - 1] if 1 <= level <= self.max_level else UNKNOWN_LEVEL_MS

    def delivery_time(self, level: int, store_timestamp: int) -> int:
        """When a message stored at that time is due, in milliseconds. The sum wraps around like a Java long."""
        return (store_timestamp + self.delay_ms(level) + (1 << 63)) % (1 << 64) - (1 << 63)

    def tags_code(self, delay: str, store_timestamp: int) -> int | None:
        """The tagsCode in the consume queue of the schedule topic for this DELAY property; None if it is not a
        level.
        """
        try:
            level = min(int(delay), self.max_level)
        except ValueError:
            return None
        return self.delivery_time(level, store_timestamp) if level > 0 else None
