"""The name server's key-value configuration, kept in kvConfig.json (spec/remoting.md 2.22)."""

from pathlib import Path

from rmqha.store.errors import StoreError
from rmqha.store.nodestate import replace_file
from rmqha.wire.fastjson import dumps_pretty, loads_lenient

FILE_NAME = "kvConfig.json"


class KVConfigManager:
    """Texts by namespace and key. With a folder they outlive the process."""

    def __init__(self, folder: Path | None) -> None:
        """Raises StoreError for a file that is no such table, OSError."""
        self._path = None if folder is None else folder / FILE_NAME
        self._table: dict[str, dict[str, str]] = {}
        if self._path is None or not self._path.exists():
            return
        try:
            content = loads_lenient(self._path.read_bytes())["configTable"]
            self._table = {
                str(space): {str(key): str(value) for key, value in texts.items()} for space, texts in content.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{self._path} is no table of a name server ({error!r}): move it elsewhere") from error

    def get(self, namespace: str, key: str) -> str | None:
        """The text; None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """All keys of a namespace; empty if there are none."""
        return self._table.get(namespace, {})

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keep a text. Raises OSError."""
        self._table.setdefault(namespace, {})[key] = value
        self._persist()

    def delete(self, namespace: str, key: str) -> None:
        """Forget a text, if there is one. Raises OSError."""
        self._table.get(namespace, {}).pop(key, None)
        self._persist()

    def _persist(self) -> None:
        if self._path is not None:
            replace_file(self._path, dumps_pretty({"configTable": self._table}))
