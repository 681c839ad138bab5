"""Small plots as SVG paths, made on the server: the page needs no scripts."""

from collections.abc import Sequence
from math import log1p

WIDTH, HEIGHT = 300, 48


def path_of(values: Sequence[float | None], top: float) -> str:
    """The path of a line through the values, from left to right; None leaves a gap. ``top`` is the largest value."""
    pieces: list[str] = []
    step = WIDTH / max(1, len(values) - 1)
    is_down = False
    for number, value in enumerate(values):
        if value is None:
            is_down = False
            continue
        height = HEIGHT - 1 - (HEIGHT - 2) * (min(value, top) / top if top > 0 else 0.0)
        pieces.append(f"{'L' if is_down else 'M'}{number * step:.0f},{height:.1f}")
        if not is_down:
            pieces.append("h-1" if number == len(values) - 1 else "h1")  # a single value between two gaps is a dot
        is_down = True
    return "".join(pieces)


def place_before_end(offset: int, first: int, end: int) -> float:
    """Where an offset is on a bar from ``first`` (0) to ``end`` (100). Its distance to the end is shown as a logarithm.

    Otherwise a megabyte that is not confirmed could not be seen in a log of a terabyte.
    """
    if end <= first:
        return 100.0
    behind = min(max(0, end - offset), end - first)
    return 100.0 * (1 - log1p(behind) / log1p(end - first))
