"""How far a long work of a node has come, for a bar and for the status page."""

from typing import NamedTuple, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from zope.interface import Interface

from rmqha.kit.services import PeriodicService

LOOK_SECONDS = 0.25


class Place(NamedTuple):
    """How far a long work has come: at ``at`` of ``end``, in bytes. ``start`` None: where it was first seen."""

    title: str
    at: int
    end: int
    start: int | None = None


class MovableBar(Protocol):
    """A bar that can be moved and taken away."""

    def show(self, title: str, done: int, total: int) -> None: ...

    def hide(self) -> None: ...


class IWorker(Interface):
    """What does long works: a node."""

    def how_far() -> Place | None:
        """How far the opening of the store, or a slave's copy of the log, has come; None while nothing takes long."""


class ProgressBarService(PeriodicService):
    """Moves a bar while a long work is under way. It shows nothing of what is over after one look."""

    def __init__(self, bar: MovableBar, worker: IWorker, clock: IReactorTime) -> None:
        PeriodicService.__init__(self, "the progress bar", LOOK_SECONDS, self._look, clock, first_after=LOOK_SECONDS)
        self._bar = bar
        self._worker = worker
        self._title: str | None = None
        self._first = 0

    def _look(self) -> None:
        place = self._worker.how_far()
        if place is None:
            self._title = None
            self._bar.hide()
        elif place.title != self._title:
            self._title, self._first = place.title, place.at if place.start is None else place.start
        else:
            self._bar.show(place.title, place.at - self._first, place.end - self._first)

    def stopService(self) -> Deferred[None]:
        self._bar.hide()
        return PeriodicService.stopService(self)
