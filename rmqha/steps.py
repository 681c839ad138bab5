"""Long work in steps, so that other work can run between them."""

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Work that yields where other work may run, and returns its result."""


def at_once(steps: Steps[Result]) -> Result:
    """Run all steps without a pause, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result
