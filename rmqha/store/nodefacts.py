"""How a fact of a node is written in state.json, and where else it shows. Each field of ``NodeState`` is a fact.

Files, commands, pages and metrics read this table: a new fact is one more field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any

from rmqha.kit.times import seconds_of


class OpeningPhase(Enum):
    """The steps of opening a store. state.json shows the names, the log the values."""

    RECOVERING = "verifying the log"
    DISPATCHING = "building queues and index"


class Kind(Enum):
    """What a fact's values are. A file without a NAME, a NUMBER or NUMBERS is not a state."""

    NAME = "a text"
    NUMBER = "a number, or an offset"
    NUMBERS = "several numbers, each with a key of its own"
    TEXT = "a text, or None"
    MOMENT = "a time in ISO 8601, or None"
    OFFSET = "an offset, or None"
    BYTES = "a number of bytes, or None"
    SECONDS = "a time in seconds, or None"
    DETAILS = "several values by name, or None"
    TEXTS = "lines for people"
    PEERS = "what is known of each peer, by name"

    @property
    def is_needed(self) -> bool:
        """Whether each file has such a fact. Facts of other kinds were added later."""
        return self in NEEDED

    def read(self, value: Any) -> Any:
        """The value in JSON as a fact. Where None may stand, a wrong one counts as missing. NUMBERS are read elsewhere.

        Raises ValueError, TypeError, OverflowError.
        """
        match self:
            case Kind.NAME:
                return str(value)
            case Kind.NUMBER | Kind.NUMBERS:
                return int64(value)
            case Kind.TEXT | Kind.MOMENT:
                return value if isinstance(value, str) else None
            case Kind.OFFSET | Kind.BYTES:
                return value if isinstance(value, int) and 0 <= value < 2**63 else None
            case Kind.SECONDS:
                return float(value) if isinstance(value, int | float) and value >= 0 else None
            case Kind.DETAILS:
                return value if isinstance(value, dict) else None
            case Kind.TEXTS:
                return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
            case Kind.PEERS:
                return tuple(dict(peer) for peer in value)

    def as_json(self, value: Any) -> Any:
        """The fact as JSON has it."""
        match self:
            case Kind.DETAILS:
                return None if value is None else dict(value)
            case Kind.TEXTS:
                return list(value)
            case Kind.PEERS:
                return [dict(peer) for peer in value]
            case Kind.NUMBERS:
                return asdict(value)
        return value


NEEDED = frozenset({Kind.NAME, Kind.NUMBER, Kind.NUMBERS})


class InStatus(Enum):
    """When ``rmqha status`` shows a fact."""

    ALWAYS = "also of a node that has stopped"
    WHILE_RUNNING = "of a node that runs: it is not true any more when it has stopped"
    NEVER = "it is only for other processes"


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact. ``name`` is the attribute, ``key`` the name in JSON: in state.json, status.json and ``rmqha status``.

    ``label`` begins its row on the status page, for facts that have no place of their own there. ``metric`` is its
    gauge, whose help is ``meaning``; of DETAILS it shows the value named ``detail``. Only a slave has facts
    ``of_slaves``.
    """

    key: str
    kind: Kind
    meaning: str
    default: Any = None
    status: InStatus = InStatus.WHILE_RUNNING
    of_slaves: bool = False
    label: str = ""
    metric: str = ""
    detail: str = ""
    name: str = ""

    def of(self, state: Any) -> Any:
        """What the state says."""
        return getattr(state, self.name)

    def number(self, state: Any) -> float | None:
        """The value of its gauge: a time is in seconds since 1970, yes is 1, no 0. None if it is not known."""
        value = self.of(state)
        if self.kind is Kind.DETAILS and value is not None:
            value = value.get(self.detail)
        if self.kind is Kind.MOMENT:
            return seconds_of(value)
        return float(value) if isinstance(value, bool) else value


def described(each: Fact) -> dict[str, Fact]:
    """The metadata of a field that is this fact."""
    return {"fact": each}


def fact(key: str, kind: Kind, meaning: str, default: Any = None, **more: Any) -> Any:
    """A field of ``NodeState`` that is a fact. For ``more`` see ``Fact``."""
    return field(default=default, metadata=described(Fact(key, kind, meaning, default, **more)))


def facts_of(kind: Any) -> tuple[Fact, ...]:
    """The facts of ``NodeState``, in the order of state.json."""
    return _facts_of(kind)


@cache
def _facts_of(kind: Any) -> tuple[Fact, ...]:
    return tuple(replace(each.metadata["fact"], name=each.name) for each in fields(kind))


def as_json(state: Any, facts: Iterable[Fact]) -> dict[str, Any]:
    """What the state says, by the keys of the facts."""
    found: dict[str, Any] = {}
    for each in facts:
        value = each.kind.as_json(each.of(state))
        found |= value if each.kind is Kind.NUMBERS else {each.key: value}
    return found


def read_facts(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in what ``as_json`` made, by attribute. Those that an older node did not write are left out.

    Raises KeyError, ValueError, TypeError, OverflowError.
    """
    return {
        each.name: _numbers(type(each.default), content)
        if each.kind is Kind.NUMBERS
        else each.kind.read(content[each.key])
        for each in facts_of(kind)
        if each.kind.is_needed or each.key in content
    }


def _numbers(kind: type, content: Mapping[str, Any]) -> Any:
    """Raises KeyError, ValueError, TypeError, OverflowError."""
    return kind(**{each.name: Kind.NUMBERS.read(content[each.name]) for each in fields(kind)})


def int64(value: Any) -> int:
    """The value as a number in the range of an offset. Raises ValueError, TypeError, OverflowError."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{value} is not an offset")
    return number
