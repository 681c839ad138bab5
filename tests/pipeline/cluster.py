"""A standalone Spark cluster from the package pyspark: a master and workers, each a process, on hosts of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyspark

from rmqha.testing.nodes import free_port
from tests.chaos.java import OUTSIDE_HOST, Network
from tests.chaos.parts import Running
from tests.pipeline.processes import FAST_JVM
from tests.waiting import wait_until

SPARK_CLASS = Path(sys.executable).with_name("spark-class")
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR = b"CoarseGrainedExecutorBackend"
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Host:
    """An address, and the words before a command that shall run there."""

    address: str = "127.0.0.1"
    prefix: Sequence[str] = ()


def namespaces(stack: ExitStack) -> tuple[str, list[Host]]:
    """The driver's address, and three hosts with networks of their own, until ``stack`` ends.

    Raises OSError and CalledProcessError if we may not make them.
    """
    with ExitStack() as making:
        network = Network(making)
        made = [Host(network.address(number), network.add(number)) for number in (1, 2, 3)]
        stack.push(making.pop_all())
    return network.address(OUTSIDE_HOST), made


def one_machine(_: ExitStack) -> tuple[str, list[Host]]:
    """The same on this machine."""
    return "127.0.0.1", [Host()] * 3


class SparkCluster(Running):
    """A context manager. ``hosts`` are those of the master and of each worker."""

    def __init__(self, folder: Path, hosts: Sequence[Host]) -> None:
        super().__init__()
        self.folder = folder
        self._hosts = hosts
        self._port = free_port()
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """What a session takes as its master."""
        return f"spark://{self._hosts[0].address}:{self._port}"

    def _start(self) -> None:
        master, *workers = self._hosts
        self._launch("master", master, MASTER, "--host", master.address, "--port", str(self._port))
        self._wait("master", b"New state: ALIVE")
        for number, host in enumerate(workers):
            name = f"worker-{number}"
            work = ("--work-dir", str(self.folder / name), "--cores", "1", "--memory", "1g")
            self.workers.append(self._launch(name, host, WORKER, self.url, "--host", host.address, *work))
        for number in range(len(workers)):
            self._wait(f"worker-{number}", b"Successfully registered with master")

    def _launch(self, name: str, host: Host, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_LOCAL_HOSTNAME": host.address,
            "SPARK_DAEMON_JAVA_OPTS": FAST_JVM,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        words = [*host.prefix, str(SPARK_CLASS), main_class, "--webui-port", str(free_port()), *arguments]
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(words, env=environ, cwd=self.folder, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)  # a worker ends its executors
        return process

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _wait(self, name: str, words: bytes) -> None:
        wait_until(lambda: words in self._log(name).read_bytes(), f"{name}: {words.decode()}", PATIENCE_SECONDS)

    def executors(self, worker: int) -> list[int]:
        """The processes of a worker's executors."""
        pid = self.workers[worker].pid
        children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
        return [int(child) for each in children for child in each if EXECUTOR in command_of(child)]

    def kill_executors(self, worker: int) -> list[int]:
        """SIGKILL for the executors of a worker; which they were."""
        found = self.executors(worker)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return found


def command_of(pid: str) -> bytes:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
