"""What pytest does as trial does it."""

import itertools
import signal
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

import tests  # noqa: F401 - hypothesis's profile


@pytest.fixture(autouse=True)
def mktemp_outside_of_the_checkout(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``mktemp`` of a trial test makes folders in the current one, which trial, but not pytest, has changed before."""
    if isinstance(request.instance, SynchronousTestCase):
        numbers, folders = itertools.count(), list[Path]()

        def mktemp() -> str:
            if not folders:
                folders.append(tmp_path_factory.mktemp("trial"))
            return str(folders[0] / str(next(numbers)))

        monkeypatch.setattr(request.instance, "mktemp", mktemp)


def pytest_configure() -> None:
    """Let SIGINT be what it usually is: a run in the background ignores it, and so would the processes of the tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
