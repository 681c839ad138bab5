"""The files of the rules: ``plain_acl.yml`` and ``acl/**/*.yml`` in one folder, read again when they change."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rmqha.acl.addresses import Matches
from rmqha.acl.rules import MAX_ACCOUNTS, Account, AclRules, parse_rules
from rmqha.acl.yamlfile import AclFileError, read_yaml

PLAIN_FILE = "plain_acl.yml"
MORE_FILES = "acl"
TOOLS_FILE = "tools.yml"
SUFFIXES = (".yml", ".yaml")
MAX_FILES = 1000
MAX_FOLDERS = 1000

Stamp = tuple[int, int, int, int]
"""Size, times of change and inode of a file."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the files say: the rules, what to warn of, and the file of each account."""

    rules: AclRules
    warnings: tuple[str, ...]
    file_of: MappingProxyType[str, Path]
    stamps: dict[Path, Stamp]


class AclFiles:
    """The files in ``folder``. All methods read the disk: call them in a thread while a node runs."""

    def __init__(self, folder: Path, strict: bool = True) -> None:
        self.folder = folder.absolute()
        self.strict = strict

    def paths(self) -> list[Path]:
        """The files that there are: those in ``acl/`` first, as in Java. Raises AclFileError for too many."""
        found = sorted(self._in_folder())
        plain = self.folder / PLAIN_FILE
        return [*found, plain] if plain.is_file() else found

    def _in_folder(self) -> Iterator[Path]:
        count = 0
        for folders, (folder, _, names) in enumerate(os.walk(self.folder / MORE_FILES), 1):
            for name in names:
                if name.endswith(SUFFIXES) and name != TOOLS_FILE:
                    count += 1
                    yield Path(folder) / name
            if count > MAX_FILES or folders > MAX_FOLDERS:
                raise AclFileError(f"{self.folder / MORE_FILES}: more than {MAX_FILES} files or {MAX_FOLDERS} folders")

    def stamps(self) -> dict[Path, Stamp]:
        """What changes when a file changes. Raises AclFileError."""
        found: dict[Path, Stamp] = {}
        for path in self.paths():
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise AclFileError(f"{path}: {error.strerror}") from None
            found[path] = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
        return found

    def read(self) -> Found:
        """Read all files. Raises AclFileError, which names the file and the reason."""
        stamps = self.stamps()
        if not stamps:
            raise AclFileError(f"{self.folder}: there is neither {PLAIN_FILE} nor {MORE_FILES}/*.yml")
        accounts: dict[str, Account] = {}
        file_of: dict[str, Path] = {}
        warnings: list[str] = []
        patterns: list[Matches] = []
        for path in stamps:
            try:
                rules = parse_rules(read_yaml(path))
            except AclFileError:
                raise
            except ValueError as error:
                raise AclFileError(f"{path}: {error}") from None
            patterns += rules.white
            for account in rules.accounts:
                key = account.credentials.access_key
                if key in accounts:
                    warnings.append(f"accessKey {key} is in {file_of[key]} and again in {path}: only the first counts")
                    continue
                accounts[key], file_of[key] = account, path
            if len(accounts) > MAX_ACCOUNTS:
                raise AclFileError(f"{self.folder}: more than {MAX_ACCOUNTS} accounts")
        rules_of_all = AclRules(MappingProxyType(accounts), tuple(patterns), self.strict)
        return Found(rules_of_all, tuple(warnings), MappingProxyType(file_of), stamps)
