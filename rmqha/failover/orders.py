"""Orders of operators: a key in the coordinator that the cluster's nodes act on, and the answer that they write.

An order is on a lease of its own. It ends by itself if the command that gave it dies, and it cannot be written any more
once it was withdrawn: a late transaction finds no lease.
"""

import math
from collections.abc import Callable, Sequence

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from rmqha.coordination.interface import (
    Change,
    Compare,
    CompareTarget,
    CoordinatorError,
    CoordinatorUnavailable,
    ICoordinator,
    Put,
)
from rmqha.failover.keys import REQUEST, Answer, Request, encode
from rmqha.failover.view import ClusterView
from rmqha.failover.watching import KeyWatch

LOOK_SECONDS = 1.0
"""How often to look for the answer, also if the watch tells nothing."""
SPARE_SECONDS = 10
"""How long an order may outlive the wait for its answer, if the command dies."""


class OrderError(Exception):
    """An order was not done, or it is not known whether it was. The text is a sentence for people."""


class OrderPending(OrderError):
    """Another order is not answered yet."""


class OrderUnanswered(OrderError):
    """No node has answered in time. The text says whether the order is withdrawn."""


def situation(view: ClusterView) -> str:
    """Who leads; if no node does, what each member waits for."""
    if view.leader is not None:
        return f"{view.leader.node} leads, epoch {view.leader.epoch}"
    reasons = [f"{name}: {member.reason or member.state}" for name, member in sorted(view.members.items())]
    return f"no node leads. {'; '.join(reasons) or 'No node runs'}"


class Orders:
    """Gives orders to the nodes of the cluster whose keys start with ``prefix``."""

    def __init__(
        self, coordinator: ICoordinator, prefix: str, clock: IReactorTime, tell: Callable[[str], None]
    ) -> None:
        """``tell`` is called when the situation changes while an order waits for its answer."""
        self._coordinator = coordinator
        self._prefix = prefix
        self._clock = clock
        self._tell = tell
        self._watch = KeyWatch(coordinator, prefix, self._keys_changed)
        self._waiting: Deferred[None] | None = None

    async def read(self) -> ClusterView:
        """The cluster's keys. Raises CoordinatorError, InvalidKey."""
        return ClusterView.read(self._prefix, await self._coordinator.range(self._prefix))

    async def give(self, order: Request, seconds: float) -> Answer:
        """Give an order, and wait ``seconds`` for the answer.

        If it is cancelled, or fails, the order is withdrawn, and what is known then is told.

        Raises OrderPending, OrderUnanswered, OrderError, CoordinatorError, InvalidKey.
        """
        deadline = self._clock.seconds() + seconds
        lease = await self._coordinator.grant(math.ceil(seconds) + SPARE_SECONDS)
        try:
            await self._place(order, lease)
            answer = await self._wait_for(order, deadline)
        except CancelledError:
            is_withdrawn, answer = await self._withdraw(order, lease)
            if answer is not None:
                self._tell(f"the order was answered already: {answer.text}")
            elif is_withdrawn:
                self._tell("the order is withdrawn")
            raise
        except Exception:  # of any kind: nobody waits for the answer any more, and the caller sees it
            await self._withdraw(order, lease)
            raise
        finally:
            self._watch.stop()
        if answer is not None:
            return answer
        is_withdrawn, answer = await self._withdraw(order, lease)
        if answer is None:
            became = "and the order is withdrawn" if is_withdrawn else "and the order may still be there"
            raise OrderUnanswered(f"no node has answered within {seconds:g} s, {became}")
        return answer

    async def _place(self, order: Request, lease: int) -> None:
        key = self._prefix + REQUEST
        free = Compare(key, CompareTarget.CREATE, 0)
        try:
            done = await self._coordinator.transact([free], [Put(key, encode(order), lease)])
        except CoordinatorUnavailable:
            view = await self.read()  # whether it was written is not known
            if (view.request is None or view.request.id != order.id) and not _is_answered(view, order):
                raise
            return
        if not done.succeeded:
            raise OrderPending(_pending(await self.read()))

    async def _wait_for(self, order: Request, deadline: float) -> Answer | None:
        """The answer; None if there is none at the deadline."""
        told = ""
        while True:
            try:
                view = await self._look()
            except CoordinatorUnavailable as error:
                now = str(error)
            else:
                if _is_answered(view, order):
                    return view.answer
                if view.request is None or view.request.id != order.id:
                    raise OrderError("the order was removed, and no node has answered it")
                now = situation(view)
            if now != told:
                told = now
                self._tell(now)
            left = deadline - self._clock.seconds()
            if left <= 0:
                return None
            await self._sleep(min(left, LOOK_SECONDS))

    async def _look(self) -> ClusterView:
        view = await self.read()
        self._watch.go_on_from(view.snapshot.revision)
        return view

    def _keys_changed(self, revision: int, changes: Sequence[Change]) -> None:
        self._wake()

    async def _sleep(self, seconds: float) -> None:
        self._waiting = Deferred()
        timer = self._clock.callLater(seconds, self._wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer.active():
                timer.cancel()

    def _wake(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.callback(None)

    async def _withdraw(self, order: Request, lease: int) -> tuple[bool, Answer | None]:
        """End the order's lease, and the order with it. Whether that is sure, and the answer if a node was faster."""
        try:
            await self._coordinator.revoke(lease)
            view = await self.read()
        except CoordinatorError as error:
            self._tell(
                f"{error} The order may still be there. It ends by itself {SPARE_SECONDS} s after the given time"
            )
            return False, None
        return True, view.answer if _is_answered(view, order) else None


def _is_answered(view: ClusterView, order: Request) -> bool:
    return view.answer is not None and view.answer.id == order.id


def _pending(view: ClusterView) -> str:
    other = view.request
    if other is None:
        return "another order came first, and was answered meanwhile. Type the command again"
    to = f" to {other.to}" if other.to else ""
    return (
        f"another order is not answered yet: {other.order}{to}, given by {other.by or 'an unknown user'} at "
        f"{other.time or 'an unknown time'}. It ends with the command that gave it; then type this one again"
    )
