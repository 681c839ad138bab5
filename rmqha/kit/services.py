"""Twisted services that several packages share: services that stop in order, and periodic calls that survive errors."""

from collections.abc import Callable
from typing import Any

from twisted.application.internet import TimerService
from twisted.application.service import IService, MultiService, Service
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmqha.kit.events import Event


class OrderedServices(MultiService):
    """Starts its services in the order in which they were added, and stops them one by one in the reverse order.

    A service that fails to stop does not keep the others from stopping: the failure is logged, and ``problems`` names
    it. (Twisted's MultiService stops all its services at once.) A service that was not started is not stopped.
    """

    _log = Logger()

    def __init__(self) -> None:
        MultiService.__init__(self)
        self.problems: list[str] = []
        """One line for each service that did not stop cleanly, for operators."""

    def add(self, name: str, service: IService) -> None:
        """Add a service under its name. Raises RuntimeError if another service has this name."""
        service.setName(name)
        service.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """Fires when all services have stopped. It never fails."""
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        for service in reversed(list(self)):
            if service.running:
                await maybeDeferred(service.stopService).addErrback(self._not_stopped, service.name)

    def _not_stopped(self, failure: Failure, name: str | None) -> None:
        self._log.failure(
            "the service {name!r} did not stop cleanly", failure, event=Event.SERVICE_STOP_FAILED, name=name
        )
        self.problems.append(f"the service {name!r} did not stop cleanly: {failure.getErrorMessage()}")


class PeriodicService(TimerService):
    """Calls ``function`` every ``seconds`` while it runs, for the first time ``first_after`` seconds after its start.

    A plain TimerService makes no further calls after a call that failed. This one logs the failure and calls again when
    the next call is due. A failure that repeats is logged once. While a call waits for its Deferred, no other call is
    made. ``stopService`` fires when the running call has ended.
    """

    _log = Logger()

    def __init__(
        self,
        purpose: str,
        seconds: float,
        function: Callable[[], object],
        clock: IReactorTime,
        first_after: float = 0.0,
    ) -> None:
        """``purpose`` is the subject of log lines, such as "writing consumer offsets"."""
        TimerService.__init__(self, seconds, self._call_once)
        self.clock = self._time = clock
        self._purpose = purpose
        self._function = function
        self._first_after = first_after
        self._first_call: IDelayedCall | None = None
        self._is_looping = self._is_in_start = False
        self._problem: str | None = None

    def startService(self) -> None:
        if self._first_after > 0:
            Service.startService(self)
            self._first_call = self._time.callLater(self._first_after, self._start_loop)
        else:
            self._start_loop()

    def _start_loop(self) -> None:
        self._first_call = None
        self._is_looping = self._is_in_start = True
        try:
            TimerService.startService(self)
        finally:
            self._is_in_start = False

    def stopService(self) -> Deferred[None]:
        if self._first_call is not None:
            self._first_call.cancel()
            self._first_call = None
        if not self._is_looping or self._is_in_start:
            if self._is_in_start:  # the first call stops us: TimerService does not know its loop yet
                self._loop.stop()
            self._is_looping = False
            Service.stopService(self)
            return succeed(None)
        self._is_looping = False
        stopped: Deferred[None] = TimerService.stopService(self)
        return stopped

    @property
    def is_stopping(self) -> bool:
        """Whether the service was stopped: a call that still runs, in several reactor turns, should end."""
        return not self._is_looping and self._first_call is None

    def _call_once(self) -> Deferred[Any]:
        return maybeDeferred(self._function).addCallbacks(self._succeeded, self._call_failed)

    def _succeeded(self, _: object) -> None:
        if self._problem is not None:
            self._problem = None
            self._log.info("{purpose} works again", event=Event.PERIODIC_WORK_RECOVERED, purpose=self._purpose)

    def _call_failed(self, failure: Failure) -> None:
        problem = repr(failure.value)
        if problem != self._problem:
            self._problem = problem
            self._log.failure(
                "{purpose} failed; it is tried again every {seconds:g} s",
                failure,
                event=Event.PERIODIC_WORK_FAILED,
                purpose=self._purpose,
                seconds=self.step,
            )
