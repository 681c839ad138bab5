"""A bar that notes what it is told."""

from zope.interface import implementer

from rmqha.kit.progress import IBar


@implementer(IBar)
class SeenBar:
    """``seen`` has what was done each time, and of how much."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def show(self, done: int, total: int | None = None, title: str | None = None) -> None:
        assert total is not None, "jobs know how many splits there are"
        self.seen.append((done, total))
