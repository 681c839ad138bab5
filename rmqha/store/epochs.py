"""``<store>/rmqha/epochs.json`` and ``promoted.json``: which node wrote the log from where on, and that it may.

An epoch begins when a node takes over, or when confirmed bytes are taken back. Each is on the disk before the node acts
on it. The list is short: it grows only with promotions and rewinds.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.smallfiles import read_small, write_small

NAME_SERVERS = "nameServers"
MAX_EPOCHS = 1000
"""Older ones are dropped from the list."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch: its number, the log offset it starts at, when (ISO 8601, UTC) and why it began."""

    epoch: int
    start: int
    time: str
    cause: str


def epochs_path(store: Path) -> Path:
    """Where the list of a store's epochs is."""
    return store / NODE_FOLDER / "epochs.json"


def promoted_path(store: Path) -> Path:
    """Where a store notes that it was promoted: a node that is started as a slave then runs as that master."""
    return store / NODE_FOLDER / "promoted.json"


def read_epochs(store: Path, disk: Disk = DISK) -> list[Epoch]:
    """The epochs of a store, ascending; empty if it has never been promoted or rewound. Raises StoreError, OSError."""
    return read_small(epochs_path(store), _parsed, [], "is not a list of epochs", ": move it away and try again", disk)


def _parsed(raw: bytes) -> list[Epoch]:
    rows = orjson.loads(raw)
    return [Epoch(int(row["epoch"]), int(row["start"]), str(row["time"]), str(row["cause"])) for row in rows]


def add_epoch(store: Path, epoch: Epoch, disk: Disk = DISK) -> None:
    """Note an epoch durably, before the node acts on it. Raises StoreError if its number is not new, OSError."""
    known = read_epochs(store, disk)
    if known and epoch.epoch <= known[-1].epoch:
        raise StoreError(f"epoch {epoch.epoch} is not after {known[-1].epoch}, which {epochs_path(store)} has already")
    content = [asdict(each) for each in [*known, epoch][-MAX_EPOCHS:]]
    write_small(epochs_path(store), content, disk)


def next_epoch(store: Path, known: int, disk: Disk = DISK) -> int:
    """The number after ``known``, state.json's, and after all in the list. Raises StoreError, OSError."""
    return max([known, *(each.epoch for each in read_epochs(store, disk))]) + 1


def promoted_role(store: Path, disk: Disk = DISK) -> str | None:
    """The brokerRole that a promotion gave the store; None if it was not promoted, or was rewound since.

    Raises StoreError, OSError.
    """

    def role_in(raw: bytes) -> str | None:
        return str(orjson.loads(raw)["role"])

    remedy = ": move it away, and start the node"
    return read_small(promoted_path(store), role_in, None, "does not tell a role", remedy, disk)


def note_promotion(store: Path, role: str, epoch: int, time: str, disk: Disk = DISK) -> None:
    """Note durably that the store was promoted. Raises OSError."""
    disk.replace(promoted_path(store), orjson.dumps({"role": role, "epoch": epoch, "time": time}) + b"\n")


def promoted_name_servers(store: Path, disk: Disk = DISK) -> list[str]:
    """The name servers that a promotion gave the node of the store; empty if it gave none. Raises OSError."""
    try:
        found = _load(promoted_path(store), disk).get(NAME_SERVERS, [])
        return [str(address) for address in found]
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return []


def note_name_servers(store: Path, addresses: Sequence[str], disk: Disk = DISK) -> None:
    """Note durably that the node of a promoted store registers with these name servers. Raises OSError."""
    path = promoted_path(store)
    disk.replace(path, orjson.dumps({**_load(path, disk), NAME_SERVERS: list(addresses)}) + b"\n")


def forget_promotion(store: Path, disk: Disk = DISK) -> None:
    """The store is a slave's again. Raises OSError."""
    disk.remove_durably(promoted_path(store))


def _load(path: Path, disk: Disk) -> Any:
    return orjson.loads(disk.read(path))
