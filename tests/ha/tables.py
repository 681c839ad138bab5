"""Makes a test method for each row of a table of cases, named after the row."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from twisted.trial.unittest import SynchronousTestCase


class Row(Protocol):
    """A case with a name that fits into a method's."""

    @property
    def name(self) -> str: ...


Case = TypeVar("Case", bound=SynchronousTestCase)
R = TypeVar("R", bound=Row)


def one_test_a_row(rows: Sequence[R], run: Callable[[Case, R], None]) -> Callable[[type[Case]], type[Case]]:
    """Give the class a method ``test_<name>`` for each row, which is ``run`` with that row."""

    def add(cls: type[Case]) -> type[Case]:
        for row in rows:
            name = f"test_{row.name}"
            assert name not in vars(cls), f"{name} is there twice"
            setattr(cls, name, _method(run, row, name))
        return cls

    return add


def _method(run: Callable[[Case, R], None], row: R, name: str) -> Callable[[Case], None]:
    def test(self: Case) -> None:
        run(self, row)

    test.__name__ = name
    return test
