"""Keeps a node's lease alive, and with it its key among the members and, if it leads, its right to lead."""

from collections.abc import Awaitable, Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmqha.coordination.interface import CoordinatorError, ICoordinator, LeaseGone
from rmqha.failover.keys import ClusterConfig


class LeaseKeeper:
    """One lease after another. It renews the current one every ``renew`` seconds.

    ``renewed`` is called with the time, in seconds of ``now``, at which a renewal that succeeded was *sent*: the
    coordinator counts the lease's time from its arrival, which is later. ``unanswered`` is awaited after each renewal
    without an answer, ``gone`` is called when the lease has ended.
    """

    def __init__(
        self,
        coordinator: ICoordinator,
        clock: IReactorTime,
        now: Callable[[], float],
        config: Callable[[], ClusterConfig],
    ) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._now = now
        self._config = config
        self.lease: int | None = None
        self.ttl = 0
        """The current lease's time, in seconds, as the coordinator has granted it."""
        self.renewed: Callable[[float], None] = lambda sent: None
        self.unanswered: Callable[[float], Awaitable[None]]
        self.gone: Callable[[], None] = lambda: None
        self.problem: str | None = None
        """Why the last renewal failed; None if it did not."""
        self._next: IDelayedCall | None = None
        self._renewing: Deferred[None] | None = None
        self._is_stopped = False

    async def grant(self) -> int:
        """The current lease, or a new one. Raises CoordinatorError."""
        if self.lease is None:
            sent = self._now()
            asked = self._config().ttl
            self.lease = await self._coordinator.grant(asked)
            self.ttl = asked
            self.renewed(sent)
            self._renew_later()
        return self.lease

    async def renew(self) -> float:
        """Renew the lease now. Returns when the renewal was sent. Raises CoordinatorError."""
        lease, sent = await self.grant(), self._now()
        await self._keep_alive(lease, sent)
        return sent

    async def _keep_alive(self, lease: int, sent: float) -> None:
        try:
            ttl = await self._coordinator.keep_alive(lease)
        except LeaseGone:
            if lease == self.lease:
                self.drop()
                self.gone()
            raise
        if lease == self.lease:
            self.problem, self.ttl = None, min(self.ttl, ttl)
            self.renewed(sent)

    def _renew_later(self) -> None:
        if self._next is None and not self._is_stopped:
            self._next = self._clock.callLater(self._config().renew, self._renew_now)

    def _renew_now(self) -> None:
        self._next = None
        if self.lease is not None and self._renewing is None:
            self._renewing = Deferred.fromCoroutine(self._renew_once(self.lease))

    async def _renew_once(self, lease: int) -> None:
        sent = self._now()
        try:
            await self._keep_alive(lease, sent)
        except CancelledError:
            return
        except LeaseGone:
            pass
        except CoordinatorError as error:
            self.problem = str(error)
            await self.unanswered(sent)
        finally:
            self._renewing = None
            if self.lease is not None:
                self._renew_later()

    def drop(self) -> None:
        """Forget the lease: the next call of ``grant`` makes a new one."""
        self.lease = None

    def stop(self) -> None:
        """Renew no more."""
        self._is_stopped = True
        if self._next is not None and self._next.active():
            self._next.cancel()
        self._next = None
        if self._renewing is not None:
            self._renewing.cancel()
