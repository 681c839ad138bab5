"""A table of the config folder, as a broker holds it: read at its start, written when it changes."""

from pathlib import Path
from typing import Generic, TypeVar

from twisted.logger import Logger

from rmqha.store.metadata import ConfigTable

Table = TypeVar("Table", bound=ConfigTable)


class ConfigManager(Generic[Table]):
    """Holds ``table``. ``persist`` writes it; a disk that refuses is only logged, and the next change tries again."""

    _log = Logger()

    def __init__(self, folder: Path, kind: type[Table]) -> None:
        """Reads it from ``folder``. Raises StoreError, OSError."""
        self._folder = folder
        self.table = kind.read(folder)

    def persist(self) -> None:
        """Write the table, durably."""
        try:
            self.table.write(self._folder)
        except OSError as error:
            self._log.error("{file} is not written: {error}", file=self.table.FILE_NAME, error=str(error))
