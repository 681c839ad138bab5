"""Installs `ali-ons`, a client of RocketMQ for Node; `node/main.js` is what it does. Needs no pytest.

npm installs exactly what `node/package-lock.json` names, and runs no scripts of packages.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Final

from tests.interop.otherclient import ClientProgram, build_once, run_build
from tests.interop.rocketmq import CACHE, HERE

SOURCES: Final = HERE / "node"
WORK: Final = CACHE / "node"


def missing_tools() -> str | None:
    """What is not on the PATH; None if all is there."""
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)}" if missing else None


@cache
def node_client() -> ClientProgram:
    """The program; installed at most once for given sources. Raises InteropError."""
    folder = build_once(WORK, SOURCES, _install)
    return ClientProgram("node", str(folder / "main.js"))


def _install(target: Path) -> None:
    shutil.copytree(SOURCES, target)
    run_build(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], target, {"npm_config_cache": str(WORK / "npm")}
    )
