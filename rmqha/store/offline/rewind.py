"""Takes a store back to the place where its log parts from a master's, so that it can follow that master.

What is cut is kept below ``rmqha/cut`` first: ``rmqha dump`` reads it, ``rmqha restore-cut`` puts it back. The order on
the disk is: a promotion is forgotten, what points into the tail is set back, the kept bytes, the new epoch in
state.json, the cut. A power failure between any two of them leaves a store that opens as a slave's, and rewinding can
be done again.
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rmqha.kit.times import iso_time
from rmqha.settings.settings import BrokerRole, Settings
from rmqha.store.epochs import forget_promotion, promoted_role
from rmqha.store.log.commitlog import CommitLog
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.log.provedrecords import proved_records
from rmqha.store.log.stretches import Progress
from rmqha.store.messagestore import MessageStore
from rmqha.store.nodestate import STOPPED
from rmqha.store.offline.fork import Fork
from rmqha.store.offline.newstore import NoRoom
from rmqha.wire.record import Blank, Record, decode_record

MAX_TOPICS_COUNTED = 10_000
ROOM_LEFT_BYTES = 4 << 20
"""What a rewind leaves free, for the state file and for queues."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What a rewind cuts: the bytes of our log from ``start`` to ``end``.

    ``messages`` counts the messages by topic; of very many topics the rest are counted under "…". ``confirmed_bytes``
    of the tail were confirmed. ``first`` is the first message that is cut, None if it has none.
    """

    start: int
    end: int
    messages: Counter[str]
    confirmed_bytes: int
    first: Record | None


@dataclass(frozen=True, slots=True)
class Rewound:
    """What a rewind did. ``kept_in`` is the file with the bytes that were cut, None if there were none."""

    end: int
    epoch: int
    kept_in: Path | None


def check_room(store: Path, fork: Fork) -> None:
    """Raises NoRoom if the disk has no room for what a rewind keeps, OSError."""
    needed, free = fork.our_end - fork.offset, DISK.free_bytes(store)
    if needed and needed + ROOM_LEFT_BYTES > free:
        raise NoRoom(
            f"the {needed} bytes that are cut off are kept in a file, but the disk of {store} has only {free} free "
            "bytes: make room first. Nothing was changed"
        )


def tail_of(log: CommitLog, fork: Fork, confirmed: int, progress: Progress = lambda _: None) -> Tail:
    """What follows the fork in our log. Raises StoreError, OSError."""
    messages: Counter[str] = Counter()
    for records in proved_records(log, fork.offset, fork.our_end, progress):
        begins, lengths = records.topic
        for at, length in zip(begins.tolist(), lengths.tolist(), strict=True):
            topic = np.asarray(records.buffer[at : at + length]).tobytes().decode("utf-8", "replace")
            messages[topic if topic in messages or len(messages) < MAX_TOPICS_COUNTED else "…"] += 1
    return Tail(fork.offset, fork.our_end, messages, max(0, confirmed - fork.offset), record_at(log, fork))


def record_at(log: CommitLog, fork: Fork) -> Record | None:
    """Our first message after the fork, None if our log ends there. Raises OSError."""
    at = fork.offset
    while at < fork.our_end:
        data = log.get_data(at, log.segment_size)
        assert data is not None, "it lies in the log"
        found = decode_record(data)
        if not isinstance(found, Blank):
            return found
        at += found.size
    return None


def needs_rewind(store: Path, fork: Fork, disk: Disk = DISK) -> bool:
    """Whether there is something to cut, or a promotion to forget: a node would still run as a master.

    Raises StoreError, OSError.
    """
    return fork.offset < fork.our_end or promoted_role(store, disk) is not None


def fork_line(fork: Fork, first: Record | None) -> str:
    """A line for people: where two logs part, and the first message that only ours has."""
    after = fork.our_end - fork.offset
    if first is None:
        return f"both logs are the same up to {fork.offset}, and ours has {after} more bytes without a message"
    what = (
        "the master's log ends there. Ours goes on with" if fork.is_theirs_shorter else "then a record differs. Ours is"
    )
    return (
        f"both logs are the same up to {fork.offset}; {what} offset {first.queue_offset} of queue {first.queue_id} of "
        f"{first.topic}, stored {iso_time(first.store_timestamp)}. {after} bytes of our log follow {fork.offset}: "
        "'rmqha rewind' cuts and keeps them"
    )


def rewind(settings: Settings, offset: int, disk: Disk = DISK) -> Rewound:
    """Take the store back to ``offset``, the end of a record of its log, and close it.

    Raises StoreInUse, StoreError, OSError.
    """
    opened = MessageStore(replace(settings, broker_role=BrokerRole.SLAVE), disk=disk)
    try:
        forget_promotion(opened.root, disk)  # first: a node must never run as a master on a log that was cut back
        kept_in = opened.cut_back(offset)
    except BaseException:  # of any kind: release the store first
        opened.abandon()
        raise
    offsets = opened.offsets(opened.confirmed_without_node())
    state = replace(opened.node_state, state=STOPPED, verdict=None, peers=(), offsets=offsets)
    opened.close_now(lambda: state)
    return Rewound(offset, state.epoch, kept_in)
