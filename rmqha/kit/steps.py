"""Long work in steps, so that other work can run between them."""

from collections.abc import Callable, Generator
from time import perf_counter
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


SLICE_SECONDS = 0.005
STEPS_OF_A_SLICE = 50


def in_slices(
    steps: Steps[Result], seconds: float = SLICE_SECONDS, now: Callable[[], float] = perf_counter
) -> Steps[Result]:
    """The same work in fewer steps: one step does up to 50 of them, unless ``seconds`` have passed before."""
    until, count = now() + seconds, 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: Result = done.value
            return result
        count += 1
        if count >= STEPS_OF_A_SLICE or now() >= until:
            yield
            until, count = now() + seconds, 0
