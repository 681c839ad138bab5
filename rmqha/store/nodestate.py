"""``<store>/rmqha``: what a node of ours tells readers outside its process, and keeps beside the log.

``state.json`` is replaced as a whole. ``confirmed`` is what no failover can take back; readers outside go no further.
"""

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson

from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, Disk

NODE_FOLDER = "rmqha"
STOPPED = "STOPPED"
"""The state of a node that has stopped by itself."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets in the log: min and the ends of its written, proved, flushed and confirmed prefixes."""

    min: int = 0
    written: int = 0
    verified: int = 0
    flushed: int = 0
    confirmed: int = 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """The content of state.json.

    ``epoch`` grows whenever bytes that were confirmed are taken back: ``epoch_start`` is the offset from which on the
    log may differ from what an earlier epoch confirmed. The lag behind the master is a slave's, None where it is not
    known, and so are ``master``, its address, ``last_contact`` with it, and ``tables``: whether topics, groups and
    offsets are the master's too (``inSync``, with ``since`` and ``reason``). ``since`` and ``reason`` are the state's.
    Times are ISO 8601, UTC. ``contact_limit`` is the longest time in seconds between two contacts that a slave which
    copies notes: if more time has passed, its process hangs. ``warnings`` are what an operator should know, ``peers``
    the nodes connected, with what is known of each.
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

    @classmethod
    def new(cls) -> "NodeState":
        """The state of a store that has none yet."""
        return cls(store_id=uuid.uuid4().hex)

    @property
    def confirmed_offset(self) -> int:
        """What recovery must not cut below: what was confirmed.

        No node confirms more than it has written and proved. A number in the file that says more has rotted.
        """
        return max(0, min(self.offsets.confirmed, self.offsets.verified, self.offsets.written))

    @property
    def flushed_offset(self) -> int:
        """What certainly is on the disk, as far as the numbers agree with each other."""
        return max(0, min(self.offsets.flushed, self.offsets.written))

    def after_loss(self, offset: int) -> "NodeState":
        """The state after the log was cut to ``offset``: a new epoch if that takes confirmed bytes back."""
        if offset >= self.offsets.confirmed:
            return self
        return replace(self, epoch=self.epoch + 1, epoch_start=offset)

    def took_back(self, epoch: int, offset: int) -> bool:
        """Whether bytes before ``offset``, seen in ``epoch``, may be gone; where older epochs began is not known."""
        return self.epoch > epoch + 1 or (self.epoch == epoch + 1 and self.epoch_start < offset)

    @classmethod
    def read(cls, store: Path, disk: Disk = DISK) -> "NodeState | None":
        """The state beside the log of ``store``, None if no node of ours has written one.

        Raises StoreError for a file that is none of ours, OSError.
        """
        path = state_path(store)
        try:
            return cls.from_json(disk.read(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreError(
                f"{path} is no state of a node ({error}); the log itself is another matter. Do this: "
                f"1. 'mv {path} {path}.bad'; 2. 'rmqha verify {store}', for without this file nobody knows how far the "
                "log was confirmed; 3. start the node, which writes a new one"
            ) from error

    @classmethod
    def from_json(cls, text: bytes | str) -> "NodeState":
        """From what ``as_json`` gave. Raises ValueError."""
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
            raise ValueError(f"it lacks or misuses {error}") from error

    def as_json(self) -> dict[str, Any]:
        """The names and values as state.json has them."""
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
            "peers": [dict(peer) for peer in self.peers],
        }

    def write(self, store: Path, disk: Disk = DISK) -> None:
        """Replace the state beside the log of ``store``, durably. Raises OSError."""
        disk.replace(state_path(store), orjson.dumps(self.as_json(), option=orjson.OPT_INDENT_2) + b"\n")


def _int64(value: Any) -> int:
    """The number, if it is one that an offset can be. Raises ValueError, TypeError, OverflowError."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{value} is no offset")
    return number


def _later_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """What older nodes do not write; anything else in their place counts as nothing."""
    names = {"master": "master", "last_contact": "lastContact", "since": "since", "reason": "reason"}
    texts = {field: content.get(name) for field, name in names.items()}
    tables, warnings, limit = content.get("tables"), content.get("warnings"), content.get("contactLimitSeconds")
    return {
        **{field: text if isinstance(text, str) else None for field, text in texts.items()},
        "tables": tables if isinstance(tables, dict) else None,
        "contact_limit": float(limit) if isinstance(limit, int | float) and limit > 0 else None,
        "warnings": tuple(filter(lambda text: isinstance(text, str), warnings if isinstance(warnings, list) else ())),
    }


def state_path(store: Path) -> Path:
    """Where the state of a store's node is."""
    return store / NODE_FOLDER / "state.json"


def replace_file(path: Path, content: bytes) -> None:
    """Give the file this content, whole or not at all, durably: temporary file, fsync, rename, fsync of the folder."""
    DISK.replace(path, content)
