"""The time of day, which an operator or NTP may set. For periods use a reactor's clock."""

import time

from zope.interface import Interface, implementer


class IWallClock(Interface):
    """Tells the time of day of a machine."""

    def now_ms() -> int:
        """Milliseconds since 1970."""


@implementer(IWallClock)
class WallClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


WALL_CLOCK = WallClock()
