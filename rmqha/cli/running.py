"""Commands that run the reactor until an answer arrives."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure

from rmqha.kit.exitcodes import ExitCode
from rmqha.store.offline.commands import Trouble

Answer = TypeVar("Answer")


class Interrupted(Trouble):
    """The user pressed Ctrl-C."""

    def __init__(self) -> None:
        super().__init__(ExitCode.INTERRUPTED, "interrupted")


def result_of(done: Deferred[None]) -> None:
    """Raise the failure of a Deferred that has fired, if it failed."""
    failures: list[Failure] = []
    done.addErrback(failures.append)
    if failures:
        failures[0].raiseException()


def the_reactor() -> Any:
    """The reactor. It is imported only here, because most commands do not need it."""
    from twisted.internet import reactor

    return reactor


def run_reactor(reactor: Any, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run the reactor until ``ask`` has an answer. Raises what ``ask`` raises, and Interrupted."""
    answers: list[Answer] = []
    failures: list[Failure] = []
    ended: Deferred[None] = Deferred()

    def begin() -> None:
        asking: Deferred[Answer] = Deferred.fromCoroutine(ask())

        def interrupt() -> Deferred[None]:
            asking.cancel()
            return ended

        reactor.addSystemEventTrigger("before", "shutdown", interrupt)
        asking.addCallbacks(answers.append, failures.append).addBoth(end)

    def end(_: object) -> None:
        ended.callback(None)
        with suppress(ReactorNotRunning):  # Ctrl-C has stopped it
            reactor.stop()

    reactor.callWhenRunning(begin)
    reactor.run()
    if failures and failures[0].check(CancelledError) is None:
        failures[0].raiseException()
    if not answers:
        raise Interrupted
    return answers[0]
