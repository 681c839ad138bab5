"""A watch of a cluster's keys that is made again after it has ended."""

from collections.abc import Callable, Sequence

from rmqha.coordination.interface import Change, CoordinatorError, ICoordinator, IWatch


class KeyWatch:
    """Calls ``changed`` with each revision that changes keys below ``prefix`` (``ICoordinator.watch``)."""

    def __init__(
        self, coordinator: ICoordinator, prefix: str, changed: Callable[[int, Sequence[Change]], None]
    ) -> None:
        self._coordinator = coordinator
        self._prefix = prefix
        self._changed = changed
        self._watch: IWatch | None = None

    def go_on_from(self, revision: int) -> None:
        """Watch from the keys of ``revision`` on, which the caller has read, if no watch goes on."""
        if self._watch is None:
            self._watch = self._coordinator.watch(self._prefix, revision, self._changed, self._ended)

    def _ended(self, error: CoordinatorError) -> None:
        self._watch = None

    def stop(self) -> None:
        """No more calls from now on."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
