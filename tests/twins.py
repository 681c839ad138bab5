"""Tests of functions that have a compiled twin run on both: on plain Python, and once more on the kernel.

The tests of the plain function are a class as always, which is a ``PlainTests``. A subclass, which is also a
``KernelTests``, runs all of them on the kernel::

    class CountTests(PlainTests): ...
    class CountKernelTests(KernelTests, CountTests): ...

Without a kernel the tests of the subclass are skipped, with the reason; on CI they fail. `make twins` switches the
kernel off: there they are skipped on CI too, because `make test` has run them.
"""

from typing import Any, NamedTuple, cast

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.requests import ordinarysends
from rmqha.store.derived import dispatch, index
from rmqha.wire import logunits, scan
from rmqha.wire.compiled import KERNEL, SWITCHED_OFF, WHY_NOT
from rmqha.wire.sends import plain
from tests.needs import need


class Twin(NamedTuple):
    """A function with a compiled twin: ``module`` calls it by ``name``. ``plain`` is its specification.

    ``compiled`` is its name in the kernel.
    """

    module: Any
    name: str
    compiled: str
    plain: Any


TWINS = (
    Twin(scan, "check_records", "check_records", scan.check_records_plain),
    Twin(ordinarysends, "take", "take_sends", plain.take),
    Twin(index, "chain_keys", "chain_keys", index.chain_keys_plain),
    Twin(index, "link_keys", "link_keys", index.link_keys_plain),
    Twin(dispatch, "ordinary_units", "ordinary_units", logunits.ordinary_units_plain),
)
"""All of them."""


def need_kernel() -> None:
    """Skips the test if there is no kernel; on CI it fails, unless the kernel was switched off."""
    if WHY_NOT == SWITCHED_OFF:
        pytest.skip(f"kernel {SWITCHED_OFF}")
    need(None if KERNEL is not None else f"kernel {WHY_NOT}")


class PlainTests(SynchronousTestCase):
    """Its tests run on plain Python, whatever is installed."""

    def setUp(self) -> None:
        """Let each function be the plain one."""
        super().setUp()
        for twin in TWINS:
            self.patch(twin.module, twin.name, twin.plain)


class KernelTests(SynchronousTestCase):
    """Its tests run on the kernel, or not at all."""

    def setUp(self) -> None:
        """Let each function be the compiled one, after the others' setUp."""
        need_kernel()
        super().setUp()
        for twin in TWINS:
            self.patch(twin.module, twin.name, cast(Any, getattr(KERNEL, twin.compiled)))
