"""The file of results: a line of JSON for each round that was ever run, and the tables of what it holds."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

_BLOCK: Final = re.compile(r"(?<=```text\n)rmqha: \d+ rounds.*?(?=\n```\n)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """A round: what it was done to, and what came of it.

    ``seconds`` is how long a fault lasted that ends by itself; 0 for others. ``load`` is the machine's load average
    at its beginning. The other times are those of ``rounds.Outcome``.
    """

    time: str
    commit: str
    cluster: str
    nodes: int
    coordinator: str
    name_servers: Sequence[str]
    fault: str
    seconds: float
    leader_seconds: float | None
    names_seconds: float | None
    gap_seconds: float | None
    violations: Sequence[str]
    load: float


def append(path: Path, line: Line) -> None:
    """Add a line to the file."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(line), ensure_ascii=False) + "\n")


def read(path: Path) -> list[Line]:
    """All lines. Raises ValueError, TypeError if one is of another kind."""
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


def put_into(page: Path, text: str) -> None:
    """Replace the block of the page that has the tables."""
    page.write_text(_BLOCK.sub(lambda _: text, page.read_text()))


def tables(lines: Sequence[Line]) -> str:
    """For each kind of cluster: what was tried how often, and a row for each fault."""
    return "\n\n".join(
        _table(kind, [line for line in lines if line.cluster == kind])
        for kind in sorted({line.cluster for line in lines}, reverse=True)
    )


def _table(kind: str, lines: Sequence[Line]) -> str:
    loads = [line.load for line in lines]
    rows = [
        f"{kind}: {len(lines)} rounds ({_counts(f'with {line.nodes} nodes' for line in lines)}; "
        f"{_counts(f'with {line.coordinator}' for line in lines)})",
        f"name servers: {_counts(' and '.join(line.name_servers) for line in lines)}; "
        f"load: median {statistics.median(loads):.0f}, highest {max(loads):.0f}",
        f"{'fault':<29} {'rounds':>6} {'longest':>7} {'leader p50':>10} {'worst':>7} {'named':>7} "
        f"{'gap p50':>8} {'worst':>7} {'broken':>7}",
    ]
    for fault in sorted({line.fault for line in lines}):
        found = [line for line in lines if line.fault == fault]
        leader = [line.leader_seconds for line in found if line.leader_seconds is not None]
        names = [line.names_seconds for line in found if line.names_seconds is not None]
        gaps = [line.gap_seconds for line in found if line.gap_seconds is not None]
        longest = max(line.seconds for line in found)
        rows.append(
            f"{fault:<29} {len(found):>6} {f'{longest:.0f}' if longest else '-':>7} {_median(leader, 10)} "
            f"{_worst(leader, 7)} {_worst(names, 7)} {_median(gaps, 8)} {_worst(gaps, 7)} "
            f"{sum(bool(line.violations) for line in found):>7}"
        )
    return "\n".join(rows)


def _counts(values: Iterable[object]) -> str:
    return ", ".join(f"{count} {value}" for value, count in sorted(Counter(map(str, values)).items()))


def _median(values: Sequence[float], width: int) -> str:
    return _shown(statistics.median(values) if values else None, width)


def _worst(values: Sequence[float], width: int) -> str:
    return _shown(max(values, default=None), width)


def _shown(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.2f}"
