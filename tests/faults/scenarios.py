"""Scenarios that mostly wait, several at a time: a test waits for the scenario of its name, which began long before.

A scenario is a function that gets a ``Pair`` of its own, and the case, if it has several. It runs in a thread. If it
raises ``Disturbed``, it is tried again with longer times.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faults.pairs import Disturbed, MasterLog, start_pair

AT_ONCE = 6
SCALES = (1, 4, 16)
"""The times of each attempt. To disturb the last one a machine must stand still for half a minute."""
Scenario = Callable[..., None]


def scenario(*cases: Any, master_options: Iterable[str] = ()) -> Callable[[Scenario], Scenario]:
    """Makes a test of a scenario, one for each case; the master of its pair gets these options."""

    def decorate(function: Scenario) -> Scenario:
        def test(case: Any, scenarios: "Scenarios") -> None:
            scenarios.result(function, case)

        def test_without_cases(scenarios: "Scenarios") -> None:
            scenarios.result(function, None)

        function.__dict__["master_options"] = tuple(master_options)
        named = test if cases else test_without_cases
        named.__name__, named.__module__, named.__doc__ = function.__name__, function.__module__, function.__doc__
        named.__dict__["scenario"] = function
        named.__dict__["pytestmark"] = [*function.__dict__.get("pytestmark", ())]
        return pytest.mark.parametrize("case", cases, ids=_name_of)(named) if cases else named

    return decorate


def proofs(*cases: Any) -> list[Any]:
    """Cases that only ``make proofs`` tries."""
    return [pytest.param(case, marks=pytest.mark.proof) for case in cases]


def _name_of(case: Any) -> str:
    return "-".join(map(str, case)) if isinstance(case, tuple) else str(case)


class Scenarios:
    """The scenarios of the tests to be run, a few of them at a time, in the order of the tests."""

    def __init__(self, items: Iterable[pytest.Item], work: Path, log: MasterLog) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, "scenario")
        self._log = log
        self._results: dict[tuple[Scenario, Any], Future[None]] = {}
        numbers = count()
        for item in items:
            function = getattr(getattr(item, "obj", None), "scenario", None)
            if function is not None:
                case = item.callspec.params["case"] if hasattr(item, "callspec") else None
                run = self._pool.submit(self._run, function, case, work / f"{next(numbers):03d}")
                self._results[function, case] = run

    def _run(self, function: Scenario, case: Any, work: Path) -> None:
        for scale in SCALES:
            attempt = work / str(scale)
            log = self._log.copied_to(attempt / "master-store")
            try:
                with start_pair(attempt, log, *function.__dict__["master_options"], scale=scale) as pair:
                    return function(pair, *([] if case is None else [case]))
            except Disturbed as error:
                if scale == SCALES[-1]:
                    raise
                print(f"{function.__name__}, again with longer times: {error}")

    def result(self, function: Scenario, case: Any) -> None:
        """Wait for one scenario; what it raised is raised."""
        self._results[function, case].result()

    def end(self) -> None:
        """No more of them."""
        self._pool.shutdown(cancel_futures=True)
