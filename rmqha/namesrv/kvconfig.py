"""The name server's key-value configuration, kept in kvConfig.json (spec/remoting.md 2.22)."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from twisted.internet.defer import Deferred, execute, succeed
from twisted.python.failure import Failure

from rmqha.kit.threads import RunInThread
from rmqha.store.errors import StoreError
from rmqha.store.log.mappedfile import DISK
from rmqha.wire.fastjson import dumps_pretty, loads_lenient

FILE_NAME = "kvConfig.json"


MAX_CHARACTERS = 4 * 1024 * 1024
"""The maximum length of all namespaces, keys and values together."""
MAX_TEXTS = 10_000


class TableFull(ValueError):
    """The table has no room for another text."""


class KVConfigManager:
    """Texts by namespace and key. With a folder they outlive the process.

    ``run_in_thread`` writes the file. One write runs at a time; changes in the meantime go into the next write.
    """

    def __init__(self, folder: Path | None, run_in_thread: RunInThread = execute) -> None:
        """Raises StoreError if kvConfig.json is not a valid table, OSError."""
        self._run_in_thread = run_in_thread
        self._is_writing = False
        self._waiting: list[Deferred[None]] = []
        self._texts = self._bytes = 0
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
            raise StoreError(f"{self._path} is not a valid table of a name server ({error!r}): move it away") from error
        self._count()

    def _count(self) -> None:
        texts = [(space, key, value) for space, held in self._table.items() for key, value in held.items()]
        self._texts = len(texts)
        self._bytes = sum(len(part) for text in texts for part in text)

    def get(self, namespace: str, key: str) -> str | None:
        """The text, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """The texts of a namespace by key."""
        return self._table.get(namespace, {})

    def put(self, namespace: str, key: str, value: str) -> Deferred[None]:
        """Store a text. Fires when it is written, and fails with OSError. Raises TableFull."""
        held = self.get(namespace, key)
        if held != value:
            size = len(value) - len(held) if held is not None else len(namespace) + len(key) + len(value)
            if size > 0 and self._bytes + size > MAX_CHARACTERS:
                raise TableFull(f"the texts would have more than {MAX_CHARACTERS} characters")
            if held is None and self._texts >= MAX_TEXTS:
                raise TableFull(f"there are {MAX_TEXTS} texts already")
            self._texts += held is None
            self._bytes += size
            self._table.setdefault(namespace, {})[key] = value
        return self._persist()

    def delete(self, namespace: str, key: str) -> Deferred[None]:
        """Delete a text, if it exists. Fires when that is written, and fails with OSError."""
        texts = self._table.get(namespace, {})
        value = texts.pop(key, None)
        if value is not None:
            self._texts -= 1
            self._bytes -= len(namespace) + len(key) + len(value)
            if not texts:
                del self._table[namespace]
        return self._persist()

    def finish(self) -> Deferred[None]:
        """Fires when all changes are written, or their write has failed."""
        return self._persist().addErrback(lambda _: None) if self._is_writing else succeed(None)

    def _persist(self) -> Deferred[None]:
        if self._path is None:
            return succeed(None)
        written: Deferred[None] = Deferred()
        self._waiting.append(written)
        if not self._is_writing:
            self._write(self._path)
        return written

    def _write(self, path: Path) -> None:
        """Write the current table, and then fire all waiting Deferreds. Later changes wait for the next write."""
        self._is_writing = True
        waiting, self._waiting = self._waiting, []
        copy = {space: dict(texts) for space, texts in self._table.items()}

        def done(result: Failure | None) -> None:
            self._is_writing = False
            if self._waiting:
                self._write(path)
            for waiter in waiting:
                waiter.callback(result)  # with a Failure, this is the errback

        self._run_in_thread(partial(_write_table, path, copy)).addBoth(done)


def _write_table(path: Path, table: Mapping[str, Mapping[str, str]]) -> None:
    DISK.replace(path, dumps_pretty({"configTable": table}))
