"""Long work in steps, for whoever has other things to do meanwhile."""

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Work that yields wherever others may have their turn, and returns its result."""


def at_once(steps: Steps[Result]) -> Result:
    """The result of work that needs no turns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result
