"""What a broker stamps on each message that it puts."""

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.wire.record import Host


@dataclass(frozen=True, slots=True)
class Stamps:
    """The broker's address, known when its port listens, and the time in ms since 1970."""

    store_host: Callable[[], Host]
    now_ms: Callable[[], int]
