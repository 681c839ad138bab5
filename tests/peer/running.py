"""The tests' process, the brokers that they use, and what the brokers hold afterwards."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from rmqha.kit.events import Event
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port
from tests.commands import rmqha
from tests.interop.rocketmq import built_class_path
from tests.net.tls.authority import Authority
from tests.waiting import wait_until

HERE = Path(__file__).parent
VERSION = "4.9.7"
CLASS_SECONDS = 900.0
"""A class that has not ended by then hangs."""
BROKERS = 2
TLS = "tls"
QUEUE_FILE_UNITS = 1000
SETTINGS = {
    "brokerIP1": "127.0.0.1",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": str(1 << 26),
    "mappedFileSizeConsumeQueue": str(20 * QUEUE_FILE_UNITS),
}
"""Of every broker. SqlFilterIT wants the filter; small files of queues are counted quickly."""
SYSTEM_TOPIC = re.compile(r"%|RMQ_SYS|SCHEDULE|TBW|rmq_sys|CLUSTER|OFFSET|SELF_TEST|BenchmarkTest|TRANS_CHECK")
PERMISSIVE = "--set=tls.server.mode=permissive"
PREFIX = "org.apache.rocketmq.test."


class Result(NamedTuple):
    """What became of a test: ``outcome`` is PASS, FAIL, IGNORED or CLASSFAIL, ``why`` is empty for PASS."""

    name: str
    outcome: str
    seconds: float
    why: str


def read_result(line: str) -> Result | None:
    """A line of ``Suite``; None if it tells of no test."""
    if not line.startswith("@@R\t"):
        return None
    _, of_class, method, outcome, seconds, *why = line.rstrip("\n").split("\t")
    return Result(f"{of_class.removeprefix(PREFIX)}.{method}", outcome, float(seconds), " ".join(why))


def part_of(classes: Sequence[str], part: int, parts: int) -> list[str]:
    """Every ``parts``-th class, from the one with the number ``part`` on, which counts from 1."""
    return list(classes[part - 1 :: parts])


def classes_of(kind: str) -> list[str]:
    """The classes that want a cluster of this kind."""
    return (HERE / ("classes-tls.txt" if kind == TLS else "classes.txt")).read_text().split()


def class_path() -> str:
    """RocketMQ's tests, and our classes before them. Raises InteropError."""
    return built_class_path(HERE / "pom.xml", sorted((HERE / "java").glob("*.java")), {"rocketmq.version": VERSION})


def user_topics(store: Path) -> dict[str, int]:
    """How many messages each topic of users has, by the files of its queues."""
    folders = (store / "consumequeue").glob("*")
    return {folder.name: _units(folder) for folder in folders if not SYSTEM_TOPIC.match(folder.name)}


def _units(folder: Path) -> int:
    found = (np.frombuffer(path.read_bytes(), ">i4") for path in folder.glob("*/*"))
    return sum(int(np.count_nonzero(words[2::5] > 0)) for words in found)  # a unit: i64 offset, i32 size, i64 hash


class SuiteProcess:
    """The process that runs the tests, one class after the other. What they print is in ``log``."""

    def __init__(self, work: Path, name_server: str) -> None:
        self.log = work / "suite.log"
        command = [
            *("java", "-Xmx600m", f"-Dpeer.namesrv={name_server}", f"-Duser.home={work}"),
            *("-cp", class_path(), "Suite", str(self.log)),
        ]
        errors = (work / "suite.err").open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=work
        )
        errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def run(self, of_class: str) -> Iterator[Result]:
        """The results of a class, each as it comes. A process that ends or hangs is a result too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(CLASS_SECONDS, self._process.kill)
        watchdog.start()
        try:
            print(of_class, file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                if line.startswith("@@DONE"):
                    return
                result = read_result(line)
                if result is not None:
                    yield result
        except BrokenPipeError:
            pass
        finally:
            watchdog.cancel()
        yield Result(f"{of_class.removeprefix(PREFIX)}.-", "CLASSFAIL", 0.0, "the process of the tests has ended")


class OurCluster:
    """Two masters of ours, or two SYNC_MASTERs with a slave each, and a name server.

    With ``has_tls`` all of them take both TLS and plain connections, as Java's do by default.
    """

    def __init__(self, work: Path, stack: ExitStack, pairs: bool, has_tls: bool) -> None:
        tls = [f"--tls-cert={Authority(work / 'tls').issue('127.0.0.1')}", PERMISSIVE] if has_tls else []
        settings = [f"--set={name}={text}" for name, text in SETTINGS.items()]
        names = NameServerNode(work, ("--port=0", *tls))
        stack.enter_context(names)
        self.name_server = names.address
        self.masters: list[TwistdNode] = []
        self.slaves: list[TwistdNode] = []
        for number in range(BROKERS):
            own = [f"--name=TestBrokerName_{number}", f"--namesrv={self.name_server}", *settings, *tls]
            role = "sync-master" if pairs else "async-master"
            master = TwistdNode(work, [f"--role={role}", f"--port={free_port()}", *own], name=f"master{number}")
            stack.enter_context(master)
            self.masters.append(master)
            if pairs:
                address = f"--master=127.0.0.1:{master.port()}"
                options = ["--role=slave", "--broker-id=1", address, f"--port={free_port()}", *own]
                slave = TwistdNode(work, options, name=f"slave{number}")
                stack.enter_context(slave)
                self.slaves.append(slave)
        for node in (*self.masters, *self.slaves):
            node.wait_for_event(Event.REGISTERED)
        for slave in self.slaves:
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")

    @property
    def stores(self) -> list[Path]:
        """Of the masters."""
        return [master.store for master in self.masters]

    def stop(self) -> list[str]:
        """End all nodes, the slaves when they have all. What is wrong with the copies, in words."""
        problems = [f"{node.name} ended with another status than 0" for node in self.masters if node.stop() != 0]
        for master, slave in zip(self.masters, self.slaves, strict=False):
            end = _end_of(master)
            wait_until(lambda slave=slave, end=end: _end_of(slave) == end, f"{slave.name} to have all of {end} bytes")  # type: ignore[misc]
            if slave.stop() != 0:
                problems.append(f"{slave.name} ended with another status than 0")
            done = rmqha("verify", slave.store, "--against", master.store)
            print(done.stdout, end="")
            if done.returncode:
                problems.append(f"rmqha verify {slave.name} --against {master.name}: {done.stdout}{done.stderr}")
            if user_topics(slave.store) != user_topics(master.store):
                problems.append(f"{slave.name} has other messages in its queues than {master.name}")
        return problems


def _end_of(node: TwistdNode) -> int:
    state = node.state()
    return -1 if state is None else state.offsets.written


class JavaCluster:
    """RocketMQ's own name server and brokers, in one process."""

    def __init__(self, work: Path, stack: ExitStack) -> None:
        port = free_port()
        self.name_server = f"127.0.0.1:{port}"
        self.stores = [work / f"store{number}" for number in range(BROKERS)]
        command = [
            *("java", "-Xms700m", "-Xmx700m", f"-Drocketmq.home.dir={work}", f"-Duser.home={work}"),
            *("-cp", class_path(), "JavaCluster", str(work), str(port), str(BROKERS), "0"),
            *(f"{name}={text}" for name, text in SETTINGS.items()),
        ]
        log = stack.enter_context((work / "java.log").open("w+b"))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=work)
        stack.callback(self._end)
        wait_until(lambda: b"@@READY" in (work / "java.log").read_bytes(), "RocketMQ's brokers")

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> list[str]:
        """End them. They have no slaves that could be wrong."""
        self._end()
        return []


@contextmanager
def running(work: Path, kind: str) -> Iterator[OurCluster | JavaCluster]:
    """A cluster of this kind (masters, pairs, tls, java), until the end of the block."""
    with ExitStack() as stack:
        yield JavaCluster(work, stack) if kind == "java" else OurCluster(work, stack, kind == "pairs", kind == TLS)
