"""A bug that is planted into a copy of the tree."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A bug: in ``path`` the text ``old``, which is there once, becomes ``new``.

    ``finders`` are tried in this order until one finds it: files of unit tests, or names of stories of the simulator.
    """

    name: str
    path: str
    old: str
    new: str
    finders: tuple[str, ...]

    @property
    def edit(self) -> str:
        """Tells this edit from others."""
        return hashlib.sha256("\0".join((self.path, self.old, self.new)).encode()).hexdigest()[:12]

    def problem(self, root: Path = ROOT) -> str | None:
        """Why the edit does not fit the tree any more, None if it does."""
        path = root / self.path
        count = path.read_text().count(self.old) if path.exists() else 0
        return None if count == 1 else f"{self.name}: {self.path} has its text {count} times"

    def apply(self, root: Path) -> None:
        """Plant it. Raises ValueError if it does not fit."""
        problem = self.problem(root)
        if problem is not None:
            raise ValueError(problem)
        path = root / self.path
        path.write_text(path.read_text().replace(self.old, self.new))
