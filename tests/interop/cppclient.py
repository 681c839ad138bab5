"""Installs the official C++ client of Apache RocketMQ; `cpp/main.py` is what it does. Needs no pytest.

PyPI's `rocketmq` has the library, built for Linux on x86_64, and a wrapper for Python. pip installs exactly what
`cpp/requirements.txt` names.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Final

from tests.interop.otherclient import ClientProgram, build_once, run_build
from tests.interop.rocketmq import CACHE, HERE

SOURCES: Final = HERE / "cpp"
WORK: Final = CACHE / "cpp"
PLATFORM: Final = ("Linux", "x86_64", "glibc")


def cpp_problem() -> str | None:
    """Why the client cannot run here, or None."""
    here = (platform.system(), platform.machine(), platform.libc_ver()[0])
    if here != PLATFORM:
        return f"no C++ client for {here}: its library is for {PLATFORM}"
    return None if importlib.util.find_spec("pip") else "no pip beside our Python"


@cache
def cpp_client() -> ClientProgram:
    """The program; installed at most once for given sources. Raises InteropError."""
    return ClientProgram(sys.executable, str(build_once(WORK, SOURCES, _install) / "main.py"))


def _install(target: Path) -> None:
    shutil.copytree(SOURCES, target)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    only = ["--no-deps", "--require-hashes", "--only-binary=:all:"]
    run_build([*pip, *only, "--target", str(target), "--requirement", "requirements.txt"], target, {})
