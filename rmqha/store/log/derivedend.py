"""How far the queues and the index of a log are on the disk. The log after that is needed to build them again."""


class DerivedEnd:
    """All units and keys of messages before ``flushed`` are on the disk. A dispatcher and the flusher move it."""

    def __init__(self, offset: int) -> None:
        self.flushed = self._taken = offset

    def take(self, written_until: int) -> None:
        """A flush begins: its files have the units and keys of all messages before this offset of the log."""
        self._taken = written_until

    def taken_is_flushed(self) -> None:
        """The flush that began last has ended, and a checkpoint vouches for it."""
        self.flushed = self._taken

    def go_back_to(self, offset: int) -> None:
        """Units and keys from this offset on are built again."""
        self.flushed, self._taken = min(self.flushed, offset), min(self._taken, offset)
