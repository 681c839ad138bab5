"""One read of the store for all held pulls that ask for the same messages, when a message wakes them."""

from rmqha.store.messagestore import MessageStore
from rmqha.store.reading import GetMessageResult, GetMessageStatus, PropertyFilter, TagFilter

Question = tuple[str, int, int, int, TagFilter | PropertyFilter | None]
"""The topic, queue id, queue offset and number of messages of a read, and which of them are wanted."""


class SharedReads:
    """Reads a store. From ``begin`` to ``end``, which are in one reactor turn, an equal read has the same result.

    It is shared only until the log grows, and if it filters by tags or not at all.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._log_end = -1
        self._found: dict[Question, GetMessageResult] | None = None
        """What was read in this turn, while reads are shared."""

    def begin(self) -> None:
        """Share the reads that follow in this turn."""
        self._found = {}

    def end(self) -> None:
        """Share no more: the next read looks at the store again."""
        self._found = None

    def get_message(self, *question: *Question) -> GetMessageResult:
        """``MessageReader.get_message``. Raises OSError."""
        shared, wanted = self._found, question[-1]
        if shared is None or not (wanted is None or callable(wanted)):
            return self._store.reader.get_message(*question)
        log_end = self._store.commit_log.verified_offset
        if log_end != self._log_end:
            shared.clear()
            self._log_end = log_end
        found = shared.get(question)
        if found is None:
            found = self._store.reader.get_message(*question)
            if found.status is GetMessageStatus.FOUND:
                shared[question] = found
        return found
