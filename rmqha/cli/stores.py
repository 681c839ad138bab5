"""Commands that read a store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmqha.kit.exitcodes import ExitCode
from rmqha.settings.settings import Settings
from rmqha.store.offline.commands import Trouble
from rmqha.store.offline.storereader import StoreReader


@contextmanager
def open_store(path: Path, settings: Settings | None = None) -> Iterator[StoreReader]:
    """Open a store for reading. The settings give the place of its log and the size of its segments.

    Raises Trouble with exit code 2 if it does not exist, StoreError, OSError.
    """
    if not path.is_dir():
        raise Trouble(ExitCode.USAGE, f"{path}: there is no such store")
    store = StoreReader(path, settings)
    try:
        yield store
    finally:
        store.close()
