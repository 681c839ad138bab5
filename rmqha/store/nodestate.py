"""``<store>/rmqha``: our own files of a store, and state.json, which tells other processes about the node.

``state.json`` is always replaced as a whole. A failover cannot lose bytes before ``confirmed``, so other processes
read the log only up to there.
"""

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson

from rmqha.store.log.mappedfile import DISK, Disk
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
    """The content of state.json.

    ``epoch`` grows whenever confirmed bytes are removed. From ``epoch_start`` on the log may differ from what an
    earlier epoch confirmed. Only a slave has a lag, ``master`` (its master's address), ``last_contact`` with it, and
    ``tables``: whether topics, groups and offsets match the master's (``inSync``, with ``since`` and ``reason``), and
    up to which offset the table of topics has those of all messages (``upTo``). All
    of these are None if they are not known. ``since`` and ``reason`` belong to ``state``. Times are ISO 8601 in UTC.
    ``warnings`` are for the operator. ``peers`` are the connected nodes, with what is known about each.
    ``contact_limit`` is the longest time in seconds between two contacts of a slave that copies: if more has passed,
    its process hangs.
    ``verdict`` is GAP, AHEAD or DIVERGED for a slave that was in that state when its node stopped. ``read_limit`` is
    the offset in the log where reads end with ``readUpTo=confirmed``, and ``reads`` says what waits for it; both are
    None if reads end at the log's end. ``unproved_from`` is the offset from which a slave's log may hold other bytes
    than its master's, because they were not on the disk at an unclean stop; None if all is proved. ``delay_levels`` is
    the node's messageDelayLevel, for commands that build queues. ``failover`` is what a member of a failover cluster
    knows of it; None for other nodes. Queues and index have everything of the log before ``dispatched``; None if that
    is not known.
    """

    store_id: str
    epoch: int = 1
    epoch_start: int = 0
    role: str = ""
    state: str = ""
    offsets: Offsets = Offsets()
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    peers: tuple[Mapping[str, Any], ...] = ()
    master: str | None = None
    last_contact: str | None = None
    since: str | None = None
    reason: str | None = None
    tables: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    contact_limit: float | None = None
    verdict: str | None = None
    read_limit: int | None = None
    reads: Mapping[str, Any] | None = None
    delay_levels: str | None = None
    unproved_from: int | None = None
    failover: Mapping[str, Any] | None = None
    dispatched: int | None = None

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
            return cls(
                store_id=str(content["storeId"]),
                epoch=_int64(content["epoch"]),
                epoch_start=_int64(content["epochStart"]),
                role=str(content["role"]),
                state=str(content["state"]),
                offsets=Offsets(**{name.name: _int64(content[name.name]) for name in fields(Offsets)}),
                lag_bytes=content.get("lagBytes"),
                lag_seconds=content.get("lagSeconds"),
                peers=tuple(dict(peer) for peer in content.get("peers", ())),
                **_later_fields(content),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"missing or invalid: {error}") from error

    def as_json(self) -> dict[str, Any]:
        """The names and values in state.json."""
        return {
            "storeId": self.store_id,
            "epoch": self.epoch,
            "epochStart": self.epoch_start,
            "role": self.role,
            "state": self.state,
            **asdict(self.offsets),
            "lagBytes": self.lag_bytes,
            "lagSeconds": self.lag_seconds,
            "master": self.master,
            "lastContact": self.last_contact,
            "contactLimitSeconds": self.contact_limit,
            "since": self.since,
            "reason": self.reason,
            "tables": None if self.tables is None else dict(self.tables),
            "warnings": list(self.warnings),
            "verdict": self.verdict,
            "readLimit": self.read_limit,
            "dispatched": self.dispatched,
            "reads": None if self.reads is None else dict(self.reads),
            "messageDelayLevel": self.delay_levels,
            "unprovedFrom": self.unproved_from,
            "failover": None if self.failover is None else dict(self.failover),
            "peers": [dict(peer) for peer in self.peers],
        }

    def write(self, store: Path, disk: Disk = DISK) -> None:
        """Replace the state file of ``store``, durably. Raises OSError."""
        write_small(state_path(store), self.as_json(), disk)


def _int64(value: Any) -> int:
    """The value as a number in the range of an offset. Raises ValueError, TypeError, OverflowError."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{value} is not an offset")
    return number


def _later_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that older nodes do not write. A value of the wrong type counts as missing."""
    names = {"master": "master", "last_contact": "lastContact", "delay_levels": "messageDelayLevel"}
    names |= {name: name for name in ("since", "reason", "verdict")}
    texts = {field: content.get(name) for field, name in names.items()}
    tables, warnings, limit = content.get("tables"), content.get("warnings"), content.get("contactLimitSeconds")
    reads, read_limit, unproved = content.get("reads"), content.get("readLimit"), content.get("unprovedFrom")
    failover, dispatched = content.get("failover"), content.get("dispatched")
    return {
        **{field: text if isinstance(text, str) else None for field, text in texts.items()},
        "tables": tables if isinstance(tables, dict) else None,
        "reads": reads if isinstance(reads, dict) else None,
        "failover": failover if isinstance(failover, dict) else None,
        "read_limit": read_limit if isinstance(read_limit, int) and 0 <= read_limit < 2**63 else None,
        "dispatched": dispatched if isinstance(dispatched, int) and 0 <= dispatched < 2**63 else None,
        "unproved_from": unproved if isinstance(unproved, int) and 0 <= unproved < 2**63 else None,
        "contact_limit": float(limit) if isinstance(limit, int | float) and limit > 0 else None,
        "warnings": tuple(filter(lambda text: isinstance(text, str), warnings if isinstance(warnings, list) else ())),
    }


def state_path(store: Path) -> Path:
    """The path of a store's state.json."""
    return store / NODE_FOLDER / "state.json"
