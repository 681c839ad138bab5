"""A log for all tests, and the scenarios that run while others are waited for."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.faults.pairs")

from tests.faults.pairs import MasterLog  # noqa: E402
from tests.faults.scenarios import Scenarios  # noqa: E402

LOG_BYTES = 2_600_000


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> MasterLog:
    """A log over three segments; its store is nobody's."""
    return MasterLog(tmp_path_factory.mktemp("log") / "master-store", LOG_BYTES)


@pytest.fixture(scope="module")
def scenarios(
    request: pytest.FixtureRequest, log: MasterLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scenarios]:
    """The scenarios of all tests of a module that are to be run: a worker of xdist runs whole modules."""
    items = [item for item in request.session.items if item.path == request.path]
    started = Scenarios(items, tmp_path_factory.mktemp("scenarios"), log)
    yield started
    started.end()
