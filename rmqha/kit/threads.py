"""Work in another thread."""

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure


class RunInThread(Protocol):
    """Runs functions in another thread, one after another. Each Deferred fires when its function has ended."""

    def __call__(self, function: Callable[[], None], /) -> Deferred[None]: ...


CallInThread = Callable[[Callable[[], Any]], Deferred[Any]]
"""The same for functions with results."""

Failed = Callable[[Failure], None]
"""Called with the error of the disk that ends a work."""
