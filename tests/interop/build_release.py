"""Builds a broker that is not on Maven Central, from your own clone of apache/rocketmq. Needs no pytest.

    python -m tests.interop.build_release CLONE VERSION

Some releases have no broker on Maven Central: of 4.9.8 only the libraries are there. This exports the release's tag
into a temporary folder, builds the missing modules there, and installs them into Maven's local repository (`~/.m2`).
Tests then find them: ``RMQHA_ROCKETMQ=4.9.8`` starts that broker. The clone itself stays as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rmqha.testing.archive import unpack
from tests.interop.rocketmq import BUILD_TIMEOUT_S, ERROR_TAIL_CHARACTERS, InteropError

TAG: Final = "rocketmq-all-{version}"
MODULES: Final = ("filter", "broker", "namesrv")
"""The modules of 4.9.8 that are not on Maven Central. What they need is there."""
QUICK: Final = ("-Dmaven.test.skip=true", "-Dcheckstyle.skip", "-Drat.skip", "-Dmaven.source.skip")
"""The release has been tested and checked by those who made it."""


def build_release(clone: Path, version: str) -> None:
    """Build the release's missing modules and install them for Maven. Raises InteropError."""
    for tool in ("git", "mvn"):
        if shutil.which(tool) is None:
            raise InteropError(f"{tool} is not on the PATH")
    tag = TAG.format(version=version)
    _check(clone, tag)
    with tempfile.TemporaryDirectory(prefix="rocketmq-") as scratch:
        tree = Path(scratch) / "tree"
        _export(clone, tag, tree)
        _said(["mvn", "-q", "-B", "-pl", ",".join(MODULES), *QUICK, "install"], tree)


def _check(clone: Path, tag: str) -> None:
    if not clone.is_dir():
        raise InteropError(f"{clone} is no folder: name a clone of https://github.com/apache/rocketmq")
    try:
        _said(["git", "rev-parse", "--git-dir"], clone)
    except InteropError as error:
        raise InteropError(f"{clone} is no clone of apache/rocketmq\n{error}") from None
    if not _said(["git", "tag", "--list", tag], clone).strip():
        raise InteropError(f"{clone} has no tag {tag}: `git -C {clone} fetch --tags` may bring it")


def _export(clone: Path, tag: str, target: Path) -> None:
    """The tag's files, whatever the clone has checked out."""
    archive = target.with_suffix(".tar")
    _said(["git", "archive", f"--output={archive}", f"refs/tags/{tag}"], clone)
    unpack(archive, target)


def _said(words: Sequence[str], folder: Path) -> str:
    """What a command prints in a folder. Raises InteropError, which says why."""
    pipe = subprocess.PIPE
    done = subprocess.run(words, cwd=folder, stdout=pipe, stderr=pipe, timeout=BUILD_TIMEOUT_S, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-ERROR_TAIL_CHARACTERS:]
        raise InteropError(f"{' '.join(words)} ended with {done.returncode}\n{said}")
    return done.stdout


def main(words: Sequence[str] | None = None) -> int:
    """The command; its exit status is 1 if it cannot build."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.build_release", description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path, help="your clone of https://github.com/apache/rocketmq")
    parser.add_argument("version", help="such as 4.9.8")
    options = parser.parse_args(words)
    try:
        build_release(options.clone, options.version)
    except InteropError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Maven now has {', '.join(MODULES)} of {options.version}: run tests with RMQHA_ROCKETMQ={options.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
