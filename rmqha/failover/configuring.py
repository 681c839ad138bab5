"""Reads and changes the cluster's settings, as an operator types them: ``ttl=20 mode=async``."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import orjson

from rmqha.coordination.interface import Compare, CompareTarget, ICoordinator, KeyValue, Put
from rmqha.failover.keys import CONFIG, ClusterConfig, decode, encode

_TYPES: dict[str, type] = {field.name: type(field.default) for field in fields(ClusterConfig)}
_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}
_BOOLS = {"true": True, "false": False}


class ConfigError(ValueError):
    """The settings cannot be used: nothing was written. The text is a sentence for people."""


class ConfigRace(Exception):
    """Somebody else has written the settings meanwhile: nothing was written."""


def parse_setting(text: str) -> tuple[str, Any]:
    """The name and the value of ``name=value``. Raises ConfigError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"{text!r} is not a setting: write NAME=VALUE, like ttl=20")
    if name not in _TYPES:
        raise ConfigError(f"there is no setting {name!r}; there are {', '.join(_TYPES)}")
    try:
        return name, _value(_TYPES[name], value)
    except (ValueError, KeyError):
        raise ConfigError(f"{name}={value}: expected {_EXPECTED[_TYPES[name]]}") from None


def _value(kind: type, text: str) -> Any:
    if kind is bool:
        return _BOOLS[text.lower()]
    value = kind(text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(text)
    return value


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """The settings as the coordinator holds them: ``held`` is None if the defaults apply because nobody set any."""

    key: str
    held: KeyValue | None

    @classmethod
    async def read(cls, coordinator: ICoordinator, prefix: str) -> "StoredConfig":
        """Read the key. Raises CoordinatorError."""
        key = prefix + CONFIG
        return cls(key, (await coordinator.range(key)).keys.get(key))

    @property
    def config(self) -> ClusterConfig:
        """The settings. Raises InvalidKey."""
        return ClusterConfig() if self.held is None else decode(ClusterConfig, self.key, self.held.value)

    async def change(
        self, coordinator: ICoordinator, changes: Mapping[str, Any], from_defaults: bool = False
    ) -> ClusterConfig:
        """Write the settings with these changes, unless somebody has written them since. Returns all of them.

        Fields that only a newer version knows are kept. ``from_defaults`` starts from the defaults instead.

        Raises ConfigError, ConfigRace, CoordinatorError, InvalidKey.
        """
        new = replace(ClusterConfig() if from_defaults else self.config, **changes)
        problem = new.problem()
        if problem is not None:
            raise ConfigError(f"these settings cannot be used together, and nothing was written: {problem}")
        others = {} if from_defaults else self._fields()
        unchanged = Compare(self.key, CompareTarget.MOD, 0 if self.held is None else self.held.mod_revision)
        done = await coordinator.transact([unchanged], [Put(self.key, encode({**others, **asdict(new)}))])
        if not done.succeeded:
            raise ConfigRace("somebody else has just changed the settings, and nothing was written")
        return new

    def _fields(self) -> dict[str, Any]:
        found: Any = {}
        if self.held is not None:
            with suppress(orjson.JSONDecodeError):
                found = orjson.loads(self.held.value)
        return found if isinstance(found, dict) else {}
