"""``<store>/rmqha/restarts.json``: of which topics a slave does not know yet whether its master has deleted them.

A Java master does not say that it has deleted a topic. Its slave finds a queue that starts again from 0 in the log, and
asks the master (spec/store.md 13.5). Until the master answers, this note keeps the question. It is on the disk before a
checkpoint, or a clean stop, counts the message as dispatched. After a death before that the next start dispatches the
message again, and finds it again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from rmqha.store.derived.dispatchrequest import DispatchRequest
from rmqha.store.log.mappedfile import DISK, Disk, Syncable
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.smallfiles import read_small, write_or_remove
from rmqha.wire.beans import LONG_BITS, read_integer

MAX_RESTARTS = 1000
"""How many topics wait for an answer at most."""


class Restart(NamedTuple):
    """A message with queue offset 0 at the offset ``at`` of the log. Our queue has messages before it."""

    queue_id: int
    at: int


def restarts_path(root: Path) -> Path:
    """Where a store keeps them."""
    return root / NODE_FOLDER / "restarts.json"


def read_restarts(root: Path, disk: Disk = DISK) -> dict[str, Restart]:
    """The restarts without an answer, by topic. Raises StoreError if the file is invalid, OSError."""
    found: dict[str, Restart] = read_small(
        restarts_path(root),
        _parsed,
        {},
        "does not say of which topics the master is still to be asked",
        ". The log is not affected. Move the file away and start the node: if the master had deleted one of these "
        "topics, its old messages stay in our queues",
        disk,
    )
    return dict(list(found.items())[:MAX_RESTARTS])


def _parsed(raw: bytes) -> dict[str, Restart]:
    rows = orjson.loads(raw).items()
    return {topic: Restart(_number(row["queueId"]), _number(row["at"])) for topic, row in rows}


def _number(value: object) -> int:
    number = read_integer(value, LONG_BITS)
    if number < 0:
        raise ValueError(f"{number} is less than 0")
    return number


def write_restarts(root: Path, found: Mapping[str, Restart], disk: Disk = DISK) -> None:
    """Replace the note, durably. Without restarts there is none. Raises OSError."""
    content = {topic: {"queueId": restart.queue_id, "at": restart.at} for topic, restart in found.items()}
    write_or_remove(restarts_path(root), content, disk)


class Restarts:
    """The restarts that the log shows, and of which the master has said nothing yet.

    The first one of each topic counts: after it messages of the new topic may have come into old queues. If it was
    deleted, dispatch comes to the later ones again.
    """

    def __init__(self, root: Path, found: Mapping[str, Restart], disk: Disk = DISK) -> None:
        """``found`` is what the disk has."""
        self._root = root
        self._disk = disk
        self._found = dict(found)
        self._written = dict(found)

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def found(self) -> Mapping[str, Restart]:
        """By topic, as they are now."""
        return dict(self._found)

    def add(self, request: DispatchRequest) -> None:
        """This message has queue offset 0, where our queue has another one."""
        if request.topic not in self._found and len(self._found) < MAX_RESTARTS:
            self._found[request.topic] = Restart(request.queue_id, request.physical_offset)

    def clear(self) -> None:
        """Forget them: nobody has to be asked, or dispatch finds them again."""
        self._found.clear()

    def drop(self, judged: Iterable[str]) -> None:
        """Forget those that were judged."""
        for topic in judged:
            self._found.pop(topic, None)

    def log_ends_at(self, end: int) -> None:
        """Forget those that are not in the log any more: other messages may come there."""
        self.drop([topic for topic, restart in self._found.items() if restart.at >= end])

    def take_notes(self) -> list[Syncable]:
        """What must be written before a checkpoint, if anything has changed."""
        return [] if self._found == self._written else [_Note(self, dict(self._found))]

    def write(self, found: dict[str, Restart]) -> None:
        """Write these. It may run in a thread, one after another. Raises OSError."""
        write_restarts(self._root, found, self._disk)
        self._written = found


@dataclass(frozen=True, slots=True)
class _Note:
    """The restarts of one moment, which are to be written."""

    restarts: Restarts
    found: dict[str, Restart]

    def sync(self) -> None:
        """Write them. Raises OSError."""
        self.restarts.write(self.found)
