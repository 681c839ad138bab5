"""What puts know of the messages that they appended, so that dispatch need not read them in the log again.

The notes are a short cut. They have a limit, and are lost when the node stops. What is not noted is read in the log.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.wire.properties import parse_properties

MOST_NOTES = 4096
MOST_PROPERTIES_BYTES = 1024 * 1024
"""Beyond these limits nothing is noted until dispatch has taken some."""


KEY_SEPARATOR = b" "
"""Between two keys in the property KEYS."""


class PutNote(NamedTuple):
    """The fields of a message's record (spec/store.md 3.1), with the bytes of its properties."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    sys_flag: int
    store_timestamp: int
    properties: bytes

    def request(self) -> DispatchRequest:
        """The same as ``read_dispatch_request`` reads from the record."""
        return DispatchRequest(*self[:-1], parse_properties(str(self.properties, "utf-8", "surrogateescape")))


class PutNotes:
    """Notes in the order of the log."""

    def __init__(self) -> None:
        self._notes: deque[PutNote] = deque()
        self._properties_bytes = 0

    def add(self, notes: Sequence[PutNote]) -> None:
        """Note messages that are in the log now."""
        if len(self._notes) < MOST_NOTES and self._properties_bytes < MOST_PROPERTIES_BYTES:
            self._notes.extend(notes)
            self._properties_bytes += sum(len(note.properties) for note in notes)

    def take(self, offset: int, most: int, most_keys: int) -> list[DispatchRequest]:
        """Messages from ``offset`` of the log on, one after another without a gap; empty if none is noted there.

        At most ``most``, and none after the first that could bring the spaces between their keys above ``most_keys``.
        """
        notes = self._notes
        while notes and notes[0].physical_offset < offset:
            self._properties_bytes -= len(notes.popleft().properties)
        found: list[DispatchRequest] = []
        spaces = 0
        while notes and notes[0].physical_offset == offset and len(found) < most:
            spaces += notes[0].properties.count(KEY_SEPARATOR)
            if spaces > most_keys and found:
                break
            note = notes.popleft()
            self._properties_bytes -= len(note.properties)
            found.append(note.request())
            offset += note.size
        return found
