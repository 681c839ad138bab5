"""What clients sent and read, and the promises that it must keep: nothing lost, nothing twice without reason, in order.

The promises of a failover cluster in mode sync:

- ``lost``: each message that was answered with SEND_OK is read.
- ``repeated``: no message is read twice, but for those that were read shortly before a change of the leader. A new
  leader has the groups' offsets as they were up to ``REPEAT_SECONDS`` before (docs/failover.md).
- ``order``: within a queue, messages are read in the order of their queue offsets, and so in the order of sending.
- ``moved``: a message is read where SEND_OK said that it is.
- ``replaced``: no two messages are read at one place. Then one of them was read, and cut afterwards.
- ``gap``: between the first and the last queue offset that were read, no one is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

REPEAT_SECONDS = 30.0
"""How long before a change of the leader a message may have been read that is read again after it: a table is at most
10 s old, a consumer tells its offsets each second, and messages that it has at hand are not told yet."""
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as a client has noted it: where the broker said that it is, and when we saw the note (monotonic)."""

    key: str
    queue: int
    offset: int
    at: float


@dataclass(frozen=True, slots=True)
class Change:
    """The time in which a fault may have changed the leader."""

    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and the messages with which it was not."""

    promise: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.keys) - MAX_SHOWN
        return f"{self.promise}: {', '.join(self.keys[:MAX_SHOWN])}{f' and {more} more' if more > 0 else ''}"


@dataclass
class History:
    """Everything so far. ``promised`` are the messages that were answered with SEND_OK, in the order of answers.

    ``read`` has, for each consumer, what it read, in its order. ``unordered`` names consumers with several threads.
    """

    promised: Sequence[Seen]
    read: Mapping[str, Sequence[Seen]]
    changes: Sequence[Change] = ()
    unordered: frozenset[str] = frozenset()

    def missing(self) -> set[str]:
        """What was promised, and not read by each consumer yet."""
        keys = {each.key for each in self.promised}
        return set().union(*(keys - {each.key for each in seen} for seen in self.read.values()))

    def violations(self) -> list[Violation]:
        """All promises that were not kept, at a time when each consumer should have read everything."""
        found = [("lost", sorted(self.missing()))]
        for name, seen in self.read.items():
            first = _first(seen)
            found += [
                (f"{name} repeated", self._repeated(seen)),
                (f"{name} order", [] if name in self.unordered else _disordered(first.values())),
                (f"{name} moved", self._moved(first)),
                (f"{name} replaced", _replaced(first.values())),
                (f"{name} gap", _gaps(first.values())),
            ]
        return [Violation(promise, tuple(keys)) for promise, keys in found if keys]

    def _repeated(self, seen: Iterable[Seen]) -> list[str]:
        first: dict[str, Seen] = {}
        found = []
        for each in seen:
            before = first.setdefault(each.key, each)
            if before is not each and not self._may_repeat(before, each):
                found.append(each.key)
        return found

    def _may_repeat(self, before: Seen, again: Seen) -> bool:
        """Whether a change of the leader came between them, or shortly after the first one."""
        return any(
            change.begin - REPEAT_SECONDS <= before.at <= change.end + REPEAT_SECONDS and again.at >= change.begin
            for change in self.changes
        )

    def _moved(self, first: dict[str, Seen]) -> list[str]:
        places = {each.key: (each.queue, each.offset) for each in first.values()}
        return [
            each.key for each in self.promised if each.key in places and places[each.key] != (each.queue, each.offset)
        ]


def _first(seen: Iterable[Seen]) -> dict[str, Seen]:
    """Each message as it was read first, in that order."""
    found: dict[str, Seen] = {}
    for each in seen:
        found.setdefault(each.key, each)
    return found


def _disordered(seen: Iterable[Seen]) -> list[str]:
    """The messages that were read after a later one of their queue."""
    last: dict[int, int] = defaultdict(lambda: -1)
    found = []
    for each in seen:
        if each.offset < last[each.queue]:
            found.append(each.key)
        last[each.queue] = max(last[each.queue], each.offset)
    return found


def _replaced(seen: Iterable[Seen]) -> list[str]:
    at: dict[tuple[int, int], str] = {}
    found = []
    for each in seen:
        other = at.setdefault((each.queue, each.offset), each.key)
        if other != each.key:
            found += [other, each.key]
    return found


def _gaps(seen: Iterable[Seen]) -> list[str]:
    offsets: dict[int, set[int]] = defaultdict(set)
    for each in seen:
        offsets[each.queue].add(each.offset)
    return [
        f"queue {queue} offset {offset}"
        for queue, there in sorted(offsets.items())
        for offset in sorted(set(range(min(there), max(there))) - there)
    ]
