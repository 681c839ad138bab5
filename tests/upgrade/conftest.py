"""What the tree of commit 8200a57 left: the files that it wrote, and its program."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqha.testing.archive import unpack
from tests.upgrade.freeze import NOTES, PACKAGE, STORES

FROZEN = Path(__file__).parents[1] / "data" / "frozen"


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """All of its stores, to be changed at will."""
    unpack(FROZEN / STORES, tmp_path)
    return tmp_path


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """What goes on later, to be changed at will."""
    unpack(FROZEN / NOTES, tmp_path / "notes")
    return tmp_path / "notes"


@pytest.fixture(scope="package")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """A command that executes the rest with the program of that tree."""
    folder = tmp_path_factory.mktemp("before")
    unpack(FROZEN / PACKAGE, folder)
    yield ("env", f"PYTHONPATH={folder}")
    shutil.rmtree(folder)
