"""What a scan of the log has found."""

from typing import NamedTuple


class Scan(NamedTuple):
    """The result of a scan. All positions are offsets in the log.

    ``end`` follows the last sound record or blank. ``last_message`` is the start of the last message, None if there is
    none; ``store_timestamp`` is its time. ``problem`` says why the bytes at ``end`` can never be a record; it is None
    if the bytes end there, or if the next record is incomplete.
    """

    end: int
    messages: int = 0
    last_message: int | None = None
    store_timestamp: int = 0
    problem: str | None = None

    def then(self, later: "Scan") -> "Scan":
        """Join this scan and one that continued from its end."""
        has_messages = later.last_message is not None
        return Scan(
            end=later.end,
            messages=self.messages + later.messages,
            last_message=later.last_message if has_messages else self.last_message,
            store_timestamp=later.store_timestamp if has_messages else self.store_timestamp,
            problem=later.problem,
        )
