"""Clients of RocketMQ in other languages: programs of ours around them, built once, one command a process.

Each program takes these words. It prints a line of JSON for each answer or message. Needs no pytest.

- ``produce NAMESRV TOPIC MODE FIRST COUNT BODY_BYTES``
- ``consume NAMESRV TOPIC GROUP TAGS MEMBERS``: until standard input ends
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode
from tests.interop.nodes import OurBroker
from tests.interop.rocketmq import BUILD_TIMEOUT_S, CACHE, COMMAND_TIMEOUT_S, InteropError, message_body
from tests.interop.taken import HTTP_PORT
from tests.waiting import wait_until

BODY_BYTES: Final = 700


class OurPair(NamedTuple):
    """Our SYNC_MASTER and its slave, which is in sync, and the address of the name server that knows both."""

    namesrv: str
    master: OurBroker
    slave: OurBroker


@contextmanager
def our_pair(work: Path, **conf: Any) -> Iterator[OurPair]:
    """Start the three; both brokers have these settings."""
    with NameServerNode(work) as name_server:
        # A busy machine must not look like a slave that has gone.
        seen: dict[str, Any] = {"node_name": "master", "options": [HTTP_PORT]}
        master = OurBroker(work, "sync-master", name_server.address, slaveTimeout=60_000, **seen, **conf)
        with master:
            slave = OurBroker(work, "slave", name_server.address, master=master, node_name="slave", **conf)
            with slave:
                slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
                yield OurPair(name_server.address, master, slave)


def message_of(number: int, body_bytes: int = BODY_BYTES) -> tuple[bytes, str, str, str]:
    """Body, tags, keys and the property of message `number`."""
    return message_body(number, body_bytes), f"tag{number % 4}", f"k{number}", str(number)


def as_sent(message: dict[str, Any]) -> tuple[bytes, str, str, str]:
    """The same of a message that came."""
    return base64.b64decode(message["body"]), message["tags"], message["keys"], message["properties"]["number"]


def build_once(work: Path, sources: Path, build: Callable[[Path], None]) -> Path:
    """What ``build`` makes at the path that it is given; made at most once for given sources. Raises InteropError."""
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(sources.iterdir()))).hexdigest()[:16]
    built = work / f"client-{key}"
    work.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    with (work / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=work) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            new = Path(scratch) / "client"
            build(new)
            new.rename(built)
    return built


def run_build(words: Sequence[str], folder: Path, own: Mapping[str, str]) -> None:
    """Run a command in a folder, with these environment variables too. Raises InteropError, which says why."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise InteropError(f"{' '.join(words)} failed:\n{done.stderr}")


def with_home(folder: Path | str) -> dict[str, str]:
    """The environment, with this folder as the user's home: some clients keep logs and offsets there."""
    return {**os.environ, "HOME": str(folder)}


class Running:
    """A process of a client, running while this context is. ``work`` is its home, and takes what it says."""

    def __init__(self, work: Path, name: str, command: Sequence[str]) -> None:
        self._command, self._environment = command, with_home(work)
        self._output, self._errors = work / f"{name}.out", work / f"{name}.err"
        self._process: subprocess.Popen[bytes] | None = None

    def received(self) -> list[dict[str, Any]]:
        """The messages or answers so far, in the order in which they came."""
        text = self._output.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many different messages came; gives all there were, also those that came again."""
        self.wait_until(lambda found: len({message["keys"] for message in found}) >= count, f"{count} messages")
        return self.received()

    def wait_until(self, enough: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
        """Wait until what came is enough."""

        def look() -> bool:
            assert self._process is not None, "it was started"
            if self._process.poll() is not None:
                raise InteropError(f"{self._command[0]} ended\n{self._errors.read_text()}")
            return enough(self.received())

        wait_until(look, what)

    def __enter__(self) -> Self:
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=output, stderr=errors
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.communicate()


class ClientProgram:
    """The program of one language; ``command`` starts it."""

    def __init__(self, *command: str) -> None:
        self._command = command

    def produce(
        self,
        namesrv: str,
        topic: str,
        mode: str,
        numbers: range,
        body_bytes: int,
        timeout: float = COMMAND_TIMEOUT_S,
    ) -> list[dict[str, Any]]:
        """Send messages of these numbers, and give the answers in the order in which they came. Raises InteropError."""
        words = [*self._command, "produce", namesrv, topic, mode, numbers.start, len(numbers), body_bytes]
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(
                list(map(str, words)),
                env=with_home(home),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        if done.returncode != 0:
            raise InteropError(f"the producer ended with status {done.returncode}\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def consumers(
        self, work: Path, namesrv: str, topic: str, group: str, tags: str = "*", members: int | str = 1
    ) -> Running:
        """Push consumers of one group."""
        return Running(work, group, [*self._command, "consume", namesrv, topic, group, tags, str(members)])

    def producer(self, work: Path, namesrv: str, topic: str, mode: str, body_bytes: int) -> Running:
        """A producer of a mode that goes on until it is killed."""
        words = ["produce", namesrv, topic, mode, "0", "0", str(body_bytes)]
        return Running(work, f"producer-{mode}", [*self._command, *words])
