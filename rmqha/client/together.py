"""Runs several coroutines at the same time."""

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.python.failure import Failure

Result = TypeVar("Result")


def together(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> Deferred[list[Result]]:
    """Run them. Fires with all results in order, or fails like the first that fails. A cancel cancels all of them."""
    running = [Deferred.fromCoroutine(coroutine) for coroutine in coroutines]
    return gatherResults(running, consumeErrors=True).addErrback(_first)


def _first(failure: Failure) -> Failure:
    return failure.value.subFailure if isinstance(failure.value, FirstError) else failure
