"""``<store>/rmqha/settings.json``: settings that mqadmin has changed, for the next start of the node.

The operator's own file of settings is never written. A kept setting counts as long as that file, and the command line,
say what they said when it was changed. If they say something else later, that counts, and the kept setting is dropped.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from rmqha.store.log.mappedfile import DISK, Disk
from rmqha.store.nodestate import NODE_FOLDER
from rmqha.store.smallfiles import read_small, write_or_remove


@dataclass(frozen=True, slots=True)
class KeptSetting:
    """A changed setting: its text, what was configured when it was changed, when that was, and who changed it."""

    value: str
    configured: str
    at: str
    by: str


def kept_settings_path(root: Path) -> Path:
    """Where the kept settings of a store are."""
    return root / NODE_FOLDER / "settings.json"


def read_kept_settings(root: Path, disk: Disk = DISK) -> dict[str, KeptSetting]:
    """The kept settings of a store by their names. Raises StoreError if the file is invalid, OSError."""
    return read_small(kept_settings_path(root), _parsed, {}, "is not a valid file of changed settings", disk=disk)


def _parsed(raw: bytes) -> dict[str, KeptSetting]:
    return {str(key): _kept(fields) for key, fields in orjson.loads(raw).items()}


def _kept(fields: Mapping[str, Any]) -> KeptSetting:
    return KeptSetting(*(str(fields[name]) for name in ("value", "configured", "at", "by")))


def write_kept_settings(root: Path, kept: Mapping[str, KeptSetting], disk: Disk = DISK) -> None:
    """Replace the kept settings of a store, durably. Raises OSError."""
    content = {key: asdict(setting) for key, setting in sorted(kept.items())}
    write_or_remove(kept_settings_path(root), content, disk)
