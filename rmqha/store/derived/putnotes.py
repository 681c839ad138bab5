"""What puts know of the messages that they appended, so that dispatch need not read them in the log again.

The notes are a short cut. They have a limit, and are lost when the node stops. What is not noted is read in the log.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Self

from rmqha.wire.sends.run import IndexKeys, Queue, QueueUnits, SendRun

MOST_MESSAGES = 4096
MOST_KEYS = 16_384
"""Beyond these limits nothing is noted until dispatch has taken some."""


class PutNote(NamedTuple):
    """Messages that are in the log from ``offset`` to ``end``, with their units and keys. All have ``timestamp``."""

    offset: int
    end: int
    timestamp: int
    messages: int
    queues: Mapping[Queue, QueueUnits]
    keys: IndexKeys
    key_count: int

    @classmethod
    def of(cls, run: SendRun) -> Self:
        """Of sends that a pass took."""
        end = run.offset + len(run.records)
        return cls(run.offset, end, run.timestamp, run.count, run.queues, run.keys, run.key_count)


class PutNotes:
    """Notes in the order of the log."""

    def __init__(self) -> None:
        self._notes: deque[PutNote] = deque()
        self._messages = 0
        self._keys = 0

    def add(self, note: PutNote) -> None:
        """Note messages that are in the log now."""
        if self._messages < MOST_MESSAGES and self._keys < MOST_KEYS:
            self._notes.append(note)
            self._messages += note.messages
            self._keys += note.key_count

    def take(self, offset: int, most_messages: int, most_keys: int) -> list[PutNote]:
        """Notes from ``offset`` of the log on, one after another without a gap; empty if there is none.

        None after the first that has more than the most messages or keys together with those before it.
        """
        notes = self._notes
        while notes and notes[0].offset < offset:
            self._take_first()
        found: list[PutNote] = []
        while notes and notes[0].offset == offset:
            most_messages -= notes[0].messages
            most_keys -= notes[0].key_count
            if found and (most_messages < 0 or most_keys < 0):
                break
            found.append(self._take_first())
            offset = found[-1].end
        return found

    def _take_first(self) -> PutNote:
        note = self._notes.popleft()
        self._messages -= note.messages
        self._keys -= note.key_count
        return note
