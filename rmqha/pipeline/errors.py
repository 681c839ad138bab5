"""What can be wrong with a log that is read as data."""

from rmqha.store.errors import StoreError


def one_line(error: Exception) -> str:
    """The text of an error, which may have several lines, as one: a library's error becomes a part of a sentence."""
    return " ".join(str(error).split())


class OptionError(ValueError):
    """An option has an invalid value. The text names the valid ones."""


class BodyError(ValueError):
    """A body is not what its format and schema say. The text is the reason."""


class CorruptLogError(StoreError):
    """The bytes at ``offset`` of the log are not a record."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the bytes at {offset} are not a record: {reason} (onCorrupt=skip continues after them)")
        self.offset = offset
        self.reason = reason


class BoundaryError(StoreError):
    """A split did not end where the next one starts: the boundary between them lies inside a record."""

    def __init__(self, offset: int, boundary: int) -> None:
        super().__init__(
            f"the record at {offset} goes beyond the boundary of splits at {boundary}, which lies inside a body that "
            "looks like a record: read with boundaries=hop"
        )
        self.offset = offset


class DataLossError(StoreError):
    """Bytes that should be read do not exist any more."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} (failOnDataLoss=false continues without them)")
