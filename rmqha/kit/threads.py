"""Work in another thread."""

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred


class RunInThread(Protocol):
    """Runs functions in another thread, one after another, and returns their results."""

    def __call__(self, function: Callable[[], None], /) -> Deferred[None]: ...
