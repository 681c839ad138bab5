"""What can be wrong with a log that is read as data."""

from rmqha.store.errors import StoreError


class OptionError(ValueError):
    """An option has a value that cannot be used. The text says which may be."""


class CorruptLogError(StoreError):
    """The bytes at ``offset`` of the log are no record."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the bytes at {offset} are no record: {reason} (onCorrupt=skip goes on behind them)")
        self.offset = offset
        self.reason = reason


class BoundaryError(StoreError):
    """A split did not end where the next one begins: that boundary, found by its looks, lies inside a record."""

    def __init__(self, offset: int, boundary: int) -> None:
        super().__init__(
            f"the record at {offset} goes beyond the boundary of splits at {boundary}, which lies inside a body that "
            "looks like a record: read with boundaries=hop"
        )
        self.offset = offset


class DataLossError(StoreError):
    """Bytes that should be read are not there any more."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} (failOnDataLoss=false goes on without them)")
