"""Lists all fields of ``Settings`` in docs/settings.md: ``make pages``."""

from dataclasses import Field
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

from rmqha.settings.confkeys import JAVA_SETTINGS
from rmqha.settings.settings import SETTINGS
from rmqha.wire.delay import DelayLevels

PAGE = Path(__file__).parents[1] / "settings.md"
HEAD = """\
# Settings

`docs/make/settings.py` makes this page from `Settings` in `rmqha/settings/settings.py`. A test keeps both equal.

A node reads these keys from the file of `--conf` (RocketMQ's `broker.conf`) and from `--set KEY=VALUE`. Options of the
command line win over both. If nobody knows a key, the node ends with exit code 2 and names the nearest right one. The
column *Java* says whether Java's brokers know the key too; the others are rmqha's own. The column *at run time* says
whether SIGHUP and mqadmin's `updateBrokerConfig` can change the setting while the node runs
([operating.md](operating.md#settings-that-change-at-run-time)).

| key | type | unit | default | Java | at run time | meaning |
|---|---|---|---|---|---|---|
"""
UNITS = {"_ms": "milliseconds", "_bytes": "bytes", "_hours": "hours", "_bytes_in_second": "bytes a second"}
BYTE_COUNTS = frozenset({"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "haMaxBytesInFlight"})


def page() -> str:
    """The whole page, in Markdown."""
    java = _java_keys()
    return HEAD + "".join(_row(key, setting, key in java) for key, setting in SETTINGS.items())


def _java_keys() -> frozenset[str]:
    lines = JAVA_SETTINGS.read_text().splitlines()
    return frozenset(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))


def _row(key: str, setting: Field[Any], is_java: bool) -> str:
    cells = (key, _kind(setting), _unit(key, setting), _default(setting), "yes" if is_java else "")
    return f"| {' | '.join(cells)} | {setting.metadata['run_time'].value} | {setting.metadata['meaning']} |\n"


def _kind(setting: Field[Any]) -> str:
    kinds = [kind for kind in get_args(setting.type) if kind is not NoneType]
    if setting.name.endswith("_file"):
        return "file"
    kind = kinds[0] if isinstance(setting.type, UnionType) else setting.type
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(str(member.value) for member in kind)
    names: dict[Any, str] = {int: "number", str: "text", bool: "true or false", Path: "folder", DelayLevels: "delays"}
    return names.get(kind, "hours of the day")


def _unit(key: str, setting: Field[Any]) -> str:
    if key in BYTE_COUNTS:
        return "bytes"
    ends = [end for end in UNITS if setting.name.endswith(end)]
    return UNITS[max(ends, key=len)] if ends else ""


def _default(setting: Field[Any]) -> str:
    value = setting.default
    if value is None or value == "":
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ";".join(f"{hour:02d}" for hour in value)
    return "~/store" if isinstance(value, Path) else str(value)
