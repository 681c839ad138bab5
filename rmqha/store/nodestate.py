"""``<store>/rmqha``: our own files of a store, and state.json, which tells other processes about the node.

``state.json`` is always replaced as a whole. A failover cannot lose bytes before ``confirmed``, so other processes
read the log only up to there.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodefacts import Fact, InStatus, Kind, as_json, described, fact, facts_of, read_facts
from rmqha.store.smallfiles import read_small, write_small

NODE_FOLDER = "rmqha"
STOPPED = "STOPPED"
"""The state of a node that has stopped cleanly."""


TOPICS_UP_TO = "upTo"
"""Of ``tables``: see ``NodeState.topics_up_to``."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets in the log: its start, and the ends of its written, verified, flushed and confirmed parts."""

    min: int = 0
    written: int = 0
    verified: int = 0
    flushed: int = 0
    confirmed: int = 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """The content of state.json: what a node says of itself. A fact that is not known is None.

    Each field is a fact: what it means, its name in files, and where commands, pages and metrics show it. They read
    this table, so a new fact is a new field.
    """

    store_id: str = field(metadata=described(Fact("storeId", Kind.NAME, "Which store it is.", status=InStatus.NEVER)))
    epoch: int = fact(
        "epoch",
        Kind.NUMBER,
        "Grows whenever confirmed bytes of the log are removed, and at a promotion.",
        1,
        status=InStatus.NEVER,
        metric="rmqha_epoch",
    )
    epoch_start: int = fact(
        "epochStart",
        Kind.NUMBER,
        "From here on the log may differ from what an earlier epoch confirmed.",
        0,
        status=InStatus.NEVER,
    )
    role: str = fact("role", Kind.NAME, "The node's role.", "", status=InStatus.ALWAYS)
    state: str = fact("state", Kind.NAME, "What the node does.", "", status=InStatus.ALWAYS)
    offsets: Offsets = fact("offsets", Kind.NUMBERS, "Offsets in the log.", Offsets(), status=InStatus.ALWAYS)
    lag_bytes: int | None = fact(
        "lagBytes",
        Kind.BYTES,
        "Slave: bytes from its end to its master's last known end. Missing while unknown.",
        of_slaves=True,
        label="lag",
        metric="rmqha_lag_bytes",
    )
    lag_seconds: float | None = fact(
        "lagSeconds",
        Kind.SECONDS,
        "Slave: for how long it has not held its master's whole log. Missing if it never held it.",
        of_slaves=True,
        label="lag in time",
        metric="rmqha_lag_seconds",
    )
    master: str | None = fact(
        "master", Kind.TEXT, "Slave: its master's address.", status=InStatus.ALWAYS, of_slaves=True
    )
    last_contact: str | None = fact(
        "lastContact",
        Kind.MOMENT,
        "Slave: when its master last sent something. Missing if never.",
        status=InStatus.ALWAYS,
        of_slaves=True,
        metric="rmqha_master_last_seen_timestamp_seconds",
    )
    contact_limit: float | None = fact(
        "contactLimitSeconds",
        Kind.SECONDS,
        "Slave: the longest time between two contacts while it copies. If more has passed, its process hangs.",
        status=InStatus.NEVER,
        of_slaves=True,
    )
    since: str | None = fact("since", Kind.MOMENT, "Since when it is in its state.", status=InStatus.ALWAYS)
    reason: str | None = fact(
        "reason", Kind.TEXT, "Slave: why it is in its state.", status=InStatus.ALWAYS, of_slaves=True
    )
    tables: Mapping[str, Any] | None = fact(
        "tables",
        Kind.DETAILS,
        "Slave: 1 if topics, groups and offsets are its master's, else 0.",
        of_slaves=True,
        metric="rmqha_tables_in_sync",
        detail="inSync",
    )
    """``inSync``, with ``since`` and ``reason``; ``upTo``: see ``topics_up_to``."""
    verdict: str | None = fact(
        "verdict",
        Kind.TEXT,
        "Slave: GAP, AHEAD or DIVERGED, if it was in that state when its node stopped.",
        status=InStatus.NEVER,
        of_slaves=True,
    )
    read_limit: int | None = fact(
        "readLimit",
        Kind.OFFSET,
        "With readUpTo=confirmed: where reads end. Missing if they end at the log's end.",
        status=InStatus.ALWAYS,
    )
    dispatched: int | None = fact(
        "dispatched", Kind.OFFSET, "Queues and index have everything of the log before it.", status=InStatus.NEVER
    )
    reads: Mapping[str, Any] | None = fact(
        "reads", Kind.DETAILS, "With readUpTo=confirmed: what waits for the limit of reads."
    )
    delay_levels: str | None = fact(
        "messageDelayLevel",
        Kind.TEXT,
        "The node's messageDelayLevel, for commands that build queues.",
        status=InStatus.NEVER,
    )
    unproved_from: int | None = fact(
        "unprovedFrom",
        Kind.OFFSET,
        "From here on a slave's log may hold other bytes than its master's: they were not on the disk at an unclean "
        "stop, or not confirmed when another leader was followed. Missing if all is proved.",
        status=InStatus.NEVER,
    )
    failover: Mapping[str, Any] | None = fact(
        "failover", Kind.DETAILS, "Failover cluster: what its member knows of it."
    )
    warnings: tuple[str, ...] = fact("warnings", Kind.TEXTS, "What an operator should know.", ())
    peers: tuple[Mapping[str, Any], ...] = fact("peers", Kind.PEERS, "The connected nodes.", ())

    @classmethod
    def new(cls) -> "NodeState":
        """The first state of a new store."""
        return cls(store_id=uuid.uuid4().hex)

    @property
    def confirmed_offset(self) -> int:
        """The confirmed offset, below which recovery must not cut.

        A node never confirms more than it has written and verified, so a higher number in the file is damaged.
        """
        return max(0, min(self.offsets.confirmed, self.offsets.verified, self.offsets.written))

    @property
    def flushed_offset(self) -> int:
        """The end of what is certainly on the disk. A number in the file beyond the written end is not believed."""
        return max(0, min(self.offsets.flushed, self.offsets.written))

    @property
    def topics_up_to(self) -> int | None:
        """A slave's table of topics has those of all messages before this offset; None if that is not known."""
        found = None if self.tables is None else self.tables.get(TOPICS_UP_TO)
        return found if isinstance(found, int) else None

    def doubted_from(self, clean_stop: bool, checked_from: int) -> int | None:
        """From where on a log that was opened again is not proved to equal its master's; None if all is proved.

        After an unclean stop that is all that was not flushed. Without power any page of it may be missing, and a CRC
        covers only a record's body: a record without its properties passes for sound. ``checked_from`` is where
        recovery began to check the log, and counts if nothing is known of flushes.
        """
        if clean_stop:
            return self.unproved_from
        flushed = self.flushed_offset or checked_from
        return flushed if self.unproved_from is None else min(self.unproved_from, flushed)

    def after_loss(self, offset: int) -> "NodeState":
        """The state after the log was cut to ``offset``: a new epoch if this removed confirmed bytes."""
        if offset >= self.offsets.confirmed:
            return self
        return replace(self, epoch=self.epoch + 1, epoch_start=offset)

    def took_back(self, epoch: int, offset: int) -> bool:
        """Whether bytes before ``offset``, seen in ``epoch``, may be gone. Of older epochs the start is not known."""
        return self.epoch > epoch + 1 or (self.epoch == epoch + 1 and self.epoch_start < offset)

    @classmethod
    def read(cls, store: Path, disk: Disk = DISK) -> "NodeState | None":
        """Read the state of ``store``; None if no node of ours has written one.

        Raises StoreError if the file is not a valid state, OSError.
        """
        path = state_path(store)
        remedy = (
            f"; the log is not affected. Do this: 1. 'mv {path} {path}.bad'; 2. 'rmqha verify {store}', because "
            "without this file the confirmed offset is not known; 3. start the node, which writes a new file"
        )
        return read_small(path, cls.from_json, None, "is not a valid state file", remedy, disk)

    @classmethod
    def from_json(cls, text: bytes | str) -> "NodeState":
        """Parse what ``as_json`` returned. Raises ValueError."""
        try:
            content = orjson.loads(text)
            return cls(**read_facts(cls, content))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"missing or invalid: {error}") from error

    def as_json(self) -> dict[str, Any]:
        """The names and values in state.json."""
        return as_json(self, facts_of(type(self)))

    def write(self, store: Path, disk: Disk = DISK) -> None:
        """Replace the state file of ``store``, durably. Raises OSError."""
        write_small(state_path(store), self.as_json(), disk)


def state_path(store: Path) -> Path:
    """The path of a store's state.json."""
    return store / NODE_FOLDER / "state.json"
