"""Runs the Java broker, name server and client of Apache RocketMQ as child processes.

    with NameServer(tmp / "namesrv") as namesrv:
        with Broker(tmp / "master", namesrv=namesrv.address) as master:
            Driver(namesrv.address).send("TPay", 100, 1024)
            print(master.commit_log_range())

Every call blocks: under a reactor, call from a thread. A child ends when this process does, however it
ends (one that is paused: once it is resumed).
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Any, ClassVar, Final, Self, TypedDict, Unpack

from rmqha.testing.nodes import PORTS, claim_port, pause_after
from tests.freezing import freeze
from tests.waiting import WAIT_SECONDS, wait_until

HERE: Final = Path(__file__).resolve().parent
PROJECT_ROOT: Final = HERE.parents[1]
CACHE: Final = PROJECT_ROOT / ".cache" / "interop"

VERSION: Final = os.environ.get("RMQHA_ROCKETMQ", "4.9.3")
"""The release of RocketMQ that is started, if a test names no other; ``make proofs`` tries others."""
V5: Final = "5.3.3"
"""The release of 5.x that tests name."""
CLIENT_VERSION: Final = VERSION if VERSION.startswith("4.") else "4.9.3"
"""The release of the Java client and of mqadmin: our classes are compiled for 4.9."""
SOURCES_FOR_5: Final = ("Acl.java", "Admin.java", "Client5.java", "Guard.java")
OLDEST_JAVA: Final = 17
LOCALHOST: Final = "127.0.0.1"

START_TIMEOUT_S: Final = WAIT_SECONDS
STOP_TIMEOUT_S: Final = WAIT_SECONDS
COMMAND_TIMEOUT_S: Final = WAIT_SECONDS
BUILD_TIMEOUT_S: Final = 900.0
POLL_INTERVAL_S: Final = 0.02
ERROR_TAIL_CHARACTERS: Final = 4_000

VIP_PORT_STEP: Final = -2  # from listenPort to the "fast" remoting port
HA_PORT_STEP: Final = 1  # from listenPort to haListenPort, whatever broker.conf says
BROKER_PORT_DISTANCE: Final = 10
PORT_RANGE: Final = PORTS[:: BROKER_PORT_DISTANCE // PORTS.step]

GET_BROKER_RUNTIME_INFO: Final = 28
MAX_RESPONSE_BYTES: Final = 16 << 20

UPSTREAM_SEGMENT_SIZE: Final = 1 << 30

FAST_START: Final = (
    *("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto"),
    *("-XX:TieredStopAtLevel=1", "-XX:CompileThresholdScaling=3"),
)
"""For tests: small, and sparing with the compiler, at the price of slower code later."""

BENCHMARK: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""For benchmarks: the optimising compiler, a heap that does not grow."""

SMALL_FILES: Final[Mapping[str, str | int | bool]] = {
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    # A new file each few hundred messages on a busy machine must not look like overload.
    "waitTimeMillsInSendQueue": 10_000,
    "osPageCacheBusyTimeOutMills": 10_000,
}
"""For tests: keys of broker.conf that keep a store small, to go with a small `segment_size`."""

QUIET_5: Final[Mapping[str, str | int | bool]] = {
    # It begins by looking at the clock, again and again, for so long: 3 s.
    "transactionMetricFlushInterval": 300,
    # It compares its wheel of 37 MB with the file each second.
    "timerFlushIntervalMs": 60_000,
}
"""A broker of 5.x with these takes a fifth of the processor time while it is idle."""

PATIENT: Final[Mapping[str, str | int | bool]] = {"slaveTimeout": 10_000, "haHousekeepingInterval": 120_000}
"""For a SYNC_MASTER whose slave answers some sends, however busy the machine, and is paused for others."""

_QUICK_CLIENTS: Final = (
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.lockInterval=1000",
)

_JAVA_17_OPENS: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)

_LOGBACK: Final = """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{file}</file>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %-5level %logger{{20}} [%thread] %msg%n</pattern></encoder>
  </appender>
  <logger name="RocketmqWaterMark" level="OFF"/>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""


class InteropError(Exception):
    """Java did not do what it was asked; the message ends with what it logged."""


# -- what this machine can do --------------------------------------------------------------------------------


def java_home_problem() -> str | None:
    """Why the Java release cannot run here, or None."""
    java, javac = _java_tool("java"), _java_tool("javac")
    if java is None or javac is None:
        return "no JDK: java and javac are neither in $JAVA_HOME/bin nor on the PATH"
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', answer)
    if version is None or int(version[1]) < OLDEST_JAVA:
        return f"java is older than {OLDEST_JAVA}: {answer.strip().splitlines()[:1]}"
    if shutil.which("mvn") is None:
        return "no Maven: mvn is not on the PATH"
    return None


def _java_tool(name: str) -> str | None:
    home = os.environ.get("JAVA_HOME")
    return (home and shutil.which(name, path=f"{home}/bin")) or shutil.which(name)


@cache
def class_path(version: str = CLIENT_VERSION) -> str:
    """The release's jars and our compiled classes; built at most once for a given pom.xml and sources.

    For 5.x only its own client is compiled, and what names no class that has moved.
    """
    pom, sources = HERE / "pom.xml", sorted((HERE / "java").glob("*.java"))
    is_4 = version.startswith("4.")
    sources = [each for each in sources if (each.name != "Client5.java" if is_4 else each.name in SOURCES_FOR_5)]
    return built_class_path(pom, sources, {"rocketmq.version": version})


def built_class_path(pom: Path, sources: Sequence[Path], properties: Mapping[str, str]) -> str:
    """The jars that a pom.xml names, and the compiled sources. Raises InteropError."""
    texts = [*(text.encode() for text in properties.values()), *(path.read_bytes() for path in (pom, *sources))]
    key = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
    built = CACHE / key
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Maven's own repository does not like two first downloads at once
        if not _is_whole(built):
            shutil.rmtree(built, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                _build(properties, pom, sources, Path(scratch) / "new")
                (Path(scratch) / "new").rename(built)
    return f"{built / 'classes'}:{(built / 'jars').read_text()}"


def _is_whole(built: Path) -> bool:
    try:
        jars = (built / "jars").read_text().split(":")
    except FileNotFoundError:
        return False
    return all(Path(jar).exists() for jar in jars)


def _build(properties: Mapping[str, str], pom: Path, sources: Sequence[Path], target: Path) -> None:
    target.mkdir()
    jars = target / "jars"
    goal = [
        *(f"-D{name}={text}" for name, text in properties.items()),
        "dependency:build-classpath",
        f"-Dmdep.outputFile={jars}",
    ]
    _run(["mvn", "-q", "-B", "-f", str(pom), *goal], BUILD_TIMEOUT_S)
    jars.write_text(jars.read_text().strip())
    javac = _java_tool("javac") or "javac"
    classes = ["-d", str(target / "classes"), "-cp", jars.read_text()]
    _run([javac, "-nowarn", *classes, *map(str, sources)], BUILD_TIMEOUT_S)


def _run(command: Sequence[str], timeout: float) -> None:
    pipe, null, out = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
    done = subprocess.run(command, stdin=null, stdout=pipe, stderr=out, timeout=timeout, text=True, check=False)
    if done.returncode != 0:
        said = done.stdout[-ERROR_TAIL_CHARACTERS:]
        raise InteropError(f"{' '.join(command[:4])} … ended with {done.returncode}\n{said}")


# -- ports ---------------------------------------------------------------------------------------------------


def free_ports() -> int:
    """A listenPort whose VIP port (-2) and HA port (+1) are free too; never given twice, to no process; ten apart."""
    for base in random.sample(PORT_RANGE, len(PORT_RANGE)):
        wanted = (base + VIP_PORT_STEP, base, base + HA_PORT_STEP)
        if claim_port(base) and all(map(_is_free, wanted)):
            return base
    raise InteropError(f"no three free ports in {PORT_RANGE}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: TIME_WAIT is free
        try:
            probe.bind(("", port))  # Java's brokers listen on all interfaces
        except OSError:
            return False
    return True


# -- one remoting request ------------------------------------------------------------------------------------


def runtime_info(address: str, timeout: float = WAIT_SECONDS) -> dict[str, str]:
    """GET_BROKER_RUNTIME_INFO of the broker at "host:port".

    A remoting frame: i32 length of what follows, i32 serialize type << 24 | header length, JSON header, body.
    """
    request = {"code": GET_BROKER_RUNTIME_INFO, "language": "PYTHON", "version": 399, "opaque": 1, "flag": 0}
    header = json.dumps(request | {"extFields": {}}).encode()
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout) as connection,
        connection.makefile("rb") as incoming,
    ):
        connection.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
        (length,) = struct.unpack(">i", _read_exactly(incoming, 4))
        if not 4 <= length <= MAX_RESPONSE_BYTES:
            raise InteropError(f"{address} does not speak remoting: frame of {length} bytes")
        frame = _read_exactly(incoming, length)
    body_at = 4 + (int.from_bytes(frame[:4], "big") & 0xFFFFFF)
    response = json.loads(frame[4:body_at])
    if response["code"] != 0:
        raise InteropError(f"{address} answered {response['code']}: {response.get('remark')}")
    table: dict[str, str] = json.loads(frame[body_at:])["table"]
    return table


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionError(f"connection ended after {len(data)} of {size} bytes")
    return data


# -- processes -----------------------------------------------------------------------------------------------


class JavaProcess:
    """A JVM with a working folder of its own: configuration, logs, and what it takes for its user's home.

    May be started again once it ended. As a context manager it is started (if it is not running) and stopped;
    after an exception it is killed instead.
    """

    MAIN_CLASS: ClassVar[str]
    READY: ClassVar[bytes]

    def __init__(self, work: Path, *, listen_port: int | None, jvm: Sequence[str], log_level: str) -> None:
        self.version = VERSION
        self.work = work.absolute()
        self.listen_port = free_ports() if listen_port is None else listen_port
        self.jvm = tuple(jvm)
        self.log_level = log_level
        self.output = self.work / "stdout"
        self.log = self.work / "logs" / "rocketmq.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._logged_before = 0

    @property
    def address(self) -> str:
        """Where it answers remoting requests, as host:port."""
        return f"{LOCALHOST}:{self.listen_port}"

    @property
    def is_running(self) -> bool:
        """Whether the process exists, be it paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the JVM itself."""
        return self._child().pid

    def start(self, timeout: float = START_TIMEOUT_S) -> Self:
        """Start it and wait until it does its work; if it does not, kill it and raise what it logged."""
        if self.is_running:
            raise InteropError(f"{self} is running already")
        self._write_files()
        self._logged_before = self.log.stat().st_size if self.log.exists() else 0
        with self.output.open("ab") as out:
            said_before = out.tell()
            command, pipe = self._command(), subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=out, stderr=out, process_group=0)
        try:
            self._wait_until_ready(said_before, time.monotonic() + timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Ask it to end (SIGTERM) and wait until it did; a paused process is resumed for that."""
        if not self.is_running:
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self._ended(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise InteropError(f"{self} ignored SIGTERM for {timeout} s\n{self.log_tail()}") from None

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        if self.is_running:
            self._signal(signal.SIGKILL)
            self._ended(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nobody answers."""
        freeze(self._child().pid)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def wait_for_log(self, text: str, count: int = 1, timeout: float = WAIT_SECONDS) -> None:
        """Wait until it logged `text` so many times since it was started."""
        deadline = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            seen = self.log.read_bytes()[self._logged_before :].count(text.encode())
            if seen >= count:
                return
            if not self.is_running or time.monotonic() > deadline:
                raise InteropError(f"{self} logged {text!r} {seen} times, not {count}\n{self.log_tail()}")
            pause_after(began)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines it printed and logged."""
        parts = [f"--- {path}\n{_tail(path, lines)}" for path in (self.output, self.log) if path.exists()]
        return "\n".join(parts)

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} in {self.work}>"

    def _configuration(self) -> Mapping[str, str | int | bool]:
        raise NotImplementedError

    def _check_ready(self) -> None:
        """Raise OSError or InteropError while it does not answer."""
        raise NotImplementedError

    def _child(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise InteropError(f"{self} was never started")
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        self._child().send_signal(number)

    def _ended(self, timeout: float) -> None:
        child = self._child()
        child.wait(timeout)
        if child.stdin is not None:
            child.stdin.close()

    def _write_files(self) -> None:
        conf = self.work / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(exist_ok=True)
        logback = _LOGBACK.format(file=self.log, level=self.log_level)
        logbacks = ("logback.xml", "logback_broker.xml", "logback_namesrv.xml", "rmq.broker.logback.xml")
        for name in logbacks:
            (conf / name).write_text(logback)
        lines = (f"{key}={_conf_value(value)}\n" for key, value in self._configuration().items())
        (conf / "main.conf").write_text("".join(lines))

    def _command(self) -> list[str]:
        return [
            *_java(self.work, self.jvm, self.version),
            # A rather full disk is no reason to refuse messages or to delete segments.
            "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
            "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
            "rmqha.Guard",
            self.MAIN_CLASS,
            "-c",
            str(self.work / "conf" / "main.conf"),
        ]

    def _wait_until_ready(self, said_before: int, deadline: float) -> None:
        trouble: Exception | str = f"it did not print {self.READY.decode()!r}"
        while time.monotonic() < deadline:
            if not self.is_running:
                status = self._child().returncode
                raise InteropError(f"{self} ended with status {status} at its start\n{self.log_tail()}")
            if self.READY in self.output.read_bytes()[said_before:]:
                try:
                    return self._check_ready()
                except (OSError, InteropError) as error:
                    trouble = error
            time.sleep(POLL_INTERVAL_S)
        raise InteropError(f"{self} did not start in time: {trouble}\n{self.log_tail()}")


class NameServer(JavaProcess):
    """The Java name server."""

    MAIN_CLASS = "org.apache.rocketmq.namesrv.NamesrvStartup"
    READY = b"The Name Server boot success"

    def __init__(
        self,
        work: Path,
        *,
        listen_port: int | None = None,
        jvm: Sequence[str] = FAST_START,
        log_level: str = "INFO",
        version: str = VERSION,
    ) -> None:
        super().__init__(work, listen_port=listen_port, jvm=jvm, log_level=log_level)
        self.version = version

    def _configuration(self) -> Mapping[str, str | int | bool]:
        return {
            "listenPort": self.listen_port,
            "kvConfigPath": str(self.work / "kvConfig.json"),
            "configStorePath": str(self.work / "namesrv.properties"),
        }

    def _check_ready(self) -> None:
        socket.create_connection((LOCALHOST, self.listen_port), 5.0).close()


class Broker(JavaProcess):
    """The Java broker; further keys of broker.conf are keyword arguments in their own spelling.

    Its HA port is always `listen_port` + 1 and its VIP port `listen_port` - 2. A broker of 4.9.3 listens on
    every interface; what it advertises, and where it is asked here, is 127.0.0.1.
    """

    MAIN_CLASS = "org.apache.rocketmq.broker.BrokerStartup"
    READY = b"boot success"

    def __init__(
        self,
        work: Path,
        *,
        role: str = "ASYNC_MASTER",
        broker_id: int | None = None,
        name: str = "broker-a",
        cluster: str = "interop",
        store: Path | None = None,
        namesrv: str | None = None,
        listen_port: int | None = None,
        ha_master: str | None = None,
        segment_size: int = UPSTREAM_SEGMENT_SIZE,
        jvm: Sequence[str] = FAST_START,
        log_level: str = "INFO",
        version: str = VERSION,
        **conf: str | int | bool,
    ) -> None:
        super().__init__(work, listen_port=listen_port, jvm=jvm, log_level=log_level)
        self.version = version
        self.role = role
        self.broker_id = (1 if role == "SLAVE" else 0) if broker_id is None else broker_id
        self.name = name
        self.cluster = cluster
        self.store = (self.work / "store" if store is None else store).absolute()
        self.namesrv = namesrv
        self.ha_master = ha_master
        self.segment_size = segment_size
        self.conf = dict(conf)

    @property
    def broker_name(self) -> str:
        """Its brokerName."""
        return self.name

    @property
    def ha_address(self) -> str:
        """Where its slaves connect: what to give them as `ha_master`."""
        return f"{LOCALHOST}:{self.listen_port + HA_PORT_STEP}"

    def runtime_info(self) -> dict[str, str]:
        """Its answer to GET_BROKER_RUNTIME_INFO."""
        return runtime_info(self.address)

    def commit_log_range(self) -> tuple[int, int]:
        """The min and max physical offset, asked of the running broker; (-1, 0) while it has no segment."""
        table = self.runtime_info()
        return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])

    def wait_for_offset(self, offset: int, timeout: float = WAIT_SECONDS) -> None:
        """Wait until its commit log reaches `offset`."""
        deadline = time.monotonic() + timeout
        while (reached := self.commit_log_range()[1]) < offset:
            if time.monotonic() > deadline:
                raise InteropError(f"{self} is at {reached}, not at {offset}\n{self.log_tail()}")
            time.sleep(POLL_INTERVAL_S)

    def wait_for_slave(self, count: int = 1, timeout: float = WAIT_SECONDS) -> None:
        """Wait until, since the start, so many HA connections reported where to begin.

        A Java slave does so haSendHeartbeatInterval (5 s) after connecting; an empty one gets the segment
        that is the master's last at that moment, and none before it.
        """
        self.wait_for_log("] request offset ", count, timeout)

    def _configuration(self) -> Mapping[str, str | int | bool]:
        return {
            "brokerClusterName": self.cluster,
            "brokerName": self.name,
            "brokerId": self.broker_id,
            "brokerRole": self.role,
            "brokerIP1": LOCALHOST,
            "brokerIP2": LOCALHOST,
            "listenPort": self.listen_port,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "mappedFileSizeCommitLog": self.segment_size,
            "fileReservedTime": 876_000,
            "diskMaxUsedSpaceRatio": 95,
            **(QUIET_5 if self.version.startswith("5.") else {}),
            **({} if self.namesrv is None else {"namesrvAddr": self.namesrv}),
            **({} if self.ha_master is None else {"haMasterAddress": self.ha_master}),
            **self.conf,
        }

    def _check_ready(self) -> None:
        self.runtime_info()


# -- the client ----------------------------------------------------------------------------------------------


class SendOptions(TypedDict, total=False):
    """How to send, for `Driver.send` and `Driver.start_send`."""

    threads: int
    """How many send at once: 1."""
    rate: float
    """Messages a second of all threads together: as many as possible."""
    seconds: float
    """Send no longer than this: no limit."""
    keys: bool
    """Whether message 7 has the KEYS "k7": True."""
    first: int
    """The first message's number: 0."""
    wait_stored: bool
    """False sets WAIT=false, so that a SYNC_MASTER waits for no slave: True."""
    send_timeout_ms: int
    """How long the client waits for an answer: 10,000."""
    log: Path | None
    """A file for a line a result, flushed one by one."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """One line of a send's log; of a failed send only `status` (what failed) and `key` mean anything."""

    msg_id: str
    offset_msg_id: str
    queue_id: int
    queue_offset: int
    status: str
    key: str

    @property
    def is_stored(self) -> bool:
        """Whether the broker said that it has the message, if perhaps not how safely."""
        return self.queue_id >= 0

    @property
    def physical_offset(self) -> int:
        """Where the message lies in the commit log: the last 16 digits of offsetMsgId."""
        return int(self.offset_msg_id[-16:], 16)


@dataclass(frozen=True, slots=True)
class SendReport:
    """What became of a run of sends: how many per SendStatus, how many per kind of exception."""

    statuses: Mapping[str, int]
    failures: Mapping[str, int]
    elapsed_seconds: float
    latency_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def stored(self) -> int:
        """How many the broker answered with any SendStatus."""
        return sum(self.statuses.values())


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """What was pulled; `sha256` is over the sorted messages, see `messages_sha256`."""

    count: int
    distinct: int
    sha256: str
    queues: int
    elapsed_seconds: float
    obstacle: str


class SendRun:
    """Sends going on in the background."""

    def __init__(self, process: subprocess.Popen[str], log: Path | None) -> None:
        self._process = process
        self._log = log

    @property
    def is_running(self) -> bool:
        """Whether it still sends."""
        return self._process.poll() is None

    def results(self) -> list[SendResult]:
        """Every result so far, in the order of answers; needs a log."""
        if self._log is None:
            raise InteropError("this run keeps no log")
        return read_send_log(self._log)

    def wait_for_results(self, count: int, timeout: float = COMMAND_TIMEOUT_S) -> None:
        """Wait until so many sends were answered or failed."""
        deadline = time.monotonic() + timeout
        while (seen := len(self.results())) < count:
            if not self.is_running or time.monotonic() > deadline:
                raise InteropError(f"{seen} sends instead of {count}; still running: {self.is_running}")
            time.sleep(POLL_INTERVAL_S)

    def wait(self, timeout: float = COMMAND_TIMEOUT_S) -> SendReport:
        """Wait until all is sent; if that takes too long the run is killed."""
        try:
            return SendReport(**_answer(self._process, timeout))
        except subprocess.TimeoutExpired:
            self.kill()
            raise InteropError(f"the sends were not done after {timeout} s") from None

    def stop(self, timeout: float = COMMAND_TIMEOUT_S) -> SendReport:
        """Send no more, and report what was."""
        _close_input(self._process)
        return self.wait(timeout)

    def kill(self) -> None:
        """End it at once, without a report."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill()


@dataclass(frozen=True, slots=True)
class ClientsReport:
    """What each client sent or received, in its order; messages are as Clients.java and Driver.java portray them."""

    sent: Mapping[str, list[dict[str, Any]]]
    received: Mapping[str, list[dict[str, Any]]]
    troubles: list[str]


class ClientsRun:
    """Producers and consumers at work in the background."""

    def __init__(self, process: subprocess.Popen[str], log: Path, ready: Path) -> None:
        self._process = process
        self._log = log
        self._ready = ready

    def wait_until_ready(self) -> None:
        """Wait until its consumers have the queues of the plan's "topics"."""

        def is_ready() -> bool:
            ended = self._process.poll() is not None  # check this before the look: what it did before its end counts
            if self._ready.exists():
                return True
            if ended:
                self.wait()  # it raises what the clients say
                raise InteropError("the clients ended before their consumers had their queues")
            return False

        wait_until(is_ready, "the consumers to have their queues")

    @property
    def log(self) -> Path:
        """The file to which the clients append a line for each message."""
        return self._log

    def consumed(self, *clients: str) -> list[str]:
        """The KEYS of all messages that these clients consumed so far, with repetitions; without names, all clients.

        For a producer: of those that it sent and that were answered SEND_OK.
        """
        return [keys for keys, _, _ in self.noted(*clients)]

    def noted(self, *clients: str) -> list[tuple[str, int, int]]:
        """As ``consumed``, with the queue id and the queue offset of each."""
        text = self._log.read_text() if self._log.exists() else ""
        lines = [line.split(" ", 3) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [
            (keys, int(queue_id), int(offset))
            for client, queue_id, offset, keys in lines
            if not clients or client in clients
        ]

    def wait(self, timeout: float = COMMAND_TIMEOUT_S) -> ClientsReport:
        """Wait until they are done."""
        return ClientsReport(**_answer(self._process, timeout))

    def stop(self, timeout: float = COMMAND_TIMEOUT_S) -> ClientsReport:
        """Have them end, and report."""
        _close_input(self._process)
        return self.wait(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class LastingDriver:
    """A process of the Java client that does one command after another: a JVM starts as long as most commands take.

    It ends with this process.
    """

    def __init__(self) -> None:
        self.is_free = Lock()
        """Who holds it may ask."""
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, words: Sequence[str | float], timeout: float) -> dict[str, Any]:
        """Do a command. Raises InteropError if it fails, or is not done in time."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it has ended: its output tells so
            process.stdin.write("\t".join(map(str, words)).encode() + b"\n")
            process.stdin.flush()
        ready = select.poll()
        ready.register(process.stdout, select.POLLIN)
        line = process.stdout.readline() if ready.poll(timeout * 1000) else b""
        if not line:
            self.end()
            raise InteropError(f"{words[0]} is not done after {timeout} s, or the Java client has ended")
        told: dict[str, Any] = json.loads(line)
        if "failure" in told:
            raise InteropError(f"the Java client failed\n{told['failure'][:ERROR_TAIL_CHARACTERS]}")
        answer: dict[str, Any] = told["answer"]
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.end()
        if self._process is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="rmqha-driver-", ignore_cleanup_errors=True)
            command = java_command(Path(self._scratch.name), FAST_START, "rmqha.Driver", "serve")
            with (Path(self._scratch.name) / "errors").open("wb") as errors:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0
                )
            atexit.register(self.end)
        return self._process

    def end(self) -> None:
        """The next command starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError), process:  # what was written and not taken is lost
                pass


_lasting: Final = LastingDriver()


class Driver:
    """The official Java client; `work` (by default a temporary folder) takes its logs.

    What goes on in the background, and `mqadmin`, is a process of its own; so is all with a `jvm` of its own.
    """

    def __init__(self, namesrv: str, work: Path | None = None, *, jvm: Sequence[str] = FAST_START) -> None:
        self.namesrv = namesrv
        self.jvm = tuple(jvm)
        self._scratch = tempfile.TemporaryDirectory(prefix="rmqha-driver-") if work is None else None
        self.work = (Path(self._scratch.name) if self._scratch else work or Path()).absolute()
        self._runs = 0

    def create_topic(self, cluster: str, topic: str, queues: int = 4) -> None:
        """Create the topic on every master of the cluster and wait until the name server routes it."""
        self.create_topics(cluster, {topic: queues})

    def create_topics(self, cluster: str, topics: Mapping[str, int]) -> None:
        """As `create_topic`, several at once, by their numbers of queues."""
        self._perform("create-topics", self.namesrv, cluster, *(f"{name}:{queues}" for name, queues in topics.items()))

    def send(
        self,
        topic: str,
        count: int,
        body_bytes: int,
        timeout: float = COMMAND_TIMEOUT_S,
        **options: Unpack[SendOptions],
    ) -> SendReport:
        """Send `count` messages, each once at most, and report; `count` 0 is for `seconds` to end."""
        options.setdefault("log", None)
        words = ("send", self.namesrv, topic, count, body_bytes, *_send_words(options))
        return SendReport(**self._perform(*words, timeout=timeout))

    def start_send(self, topic: str, count: int, body_bytes: int, **options: Unpack[SendOptions]) -> SendRun:
        """Send in the background, until stopped if `count` and `seconds` are 0; `log=None` keeps no log."""
        self._runs += 1
        log = options.setdefault("log", self.work / f"send-{self._runs}.log")
        words = ["send", self.namesrv, topic, count, body_bytes, *_send_words(options)]
        return SendRun(self._spawn(*words), log)

    def consume(
        self, topic: str, group: str, expected: int, seconds: float = WAIT_SECONDS, broker_id: int | None = None
    ) -> ConsumeReport:
        """Pull all queues from their start until `expected` messages came and no more follow, or time is up.

        `topic` may be several, separated by commas: they count and are digested together.
        `broker_id` asks that broker rather than the master; without it, a slave once the master is gone.
        """
        options = () if broker_id is None else ("--broker-id", broker_id)
        words = (self.namesrv, topic, group, expected, seconds, *options)
        return ConsumeReport(**self._perform("consume", *words, timeout=seconds + COMMAND_TIMEOUT_S))

    def runtime_info(self, address: str) -> dict[str, str]:
        """GET_BROKER_RUNTIME_INFO as the official client reads it."""
        table: dict[str, str] = self._perform("runtime-info", address)
        return table

    def queue_ends(self, *topics: str) -> dict[str, dict[int, tuple[int, int]]]:
        """Min and max offset of each queue of each topic, as the official client asks the master for them."""
        answer = self._perform("queue-ends", self.namesrv, *topics)
        return {topic: {int(queue): (low, high) for queue, (low, high) in answer[topic].items()} for topic in topics}

    def look_up(self, questions: Sequence[str]) -> list[list[dict[str, Any]]]:
        """What is found for each question, in order: "id OFFSET_MSG_ID", "key TOPIC KEY" or "uniq TOPIC UNIQ_KEY"."""
        asked = self._file("look-up")
        asked.write_text("".join(f"{question}\n" for question in questions))
        found: list[list[dict[str, Any]]] = self._perform("look-up", self.namesrv, str(asked))["found"]
        return found

    def start_clients(self, plan: Mapping[str, Any]) -> ClientsRun:
        """Have producers and consumers work together in the background, as Clients.java explains.

        They share queues out and look at routes each second: by default it is each 20 and 30.
        """
        log, ready = self._file("clients"), self._file("ready")
        written = self._file("plan")
        written.write_text(json.dumps({**plan, "log": str(log), "ready": str(ready)}))
        return ClientsRun(self._spawn("clients", self.namesrv, str(written), jvm=_QUICK_CLIENTS), log, ready)

    def clients(self, plan: Mapping[str, Any], timeout: float = COMMAND_TIMEOUT_S) -> ClientsReport:
        """As `start_clients`, until they are done."""
        with self.start_clients(plan) as run:
            return run.wait(timeout)

    def mqadmin(self, commands: Sequence[Sequence[str]], timeout: float = COMMAND_TIMEOUT_S) -> list[str]:
        """What mqadmin prints for each command, given as its words."""
        asked = self._file("mqadmin")
        asked.write_text("".join("\t".join(words) + "\n" for words in commands))
        printed: list[str] = self._perform_apart("mqadmin", self.namesrv, str(asked), timeout=timeout)["printed"]
        return printed

    def _file(self, name: str) -> Path:
        """A file of its own for a run."""
        self._runs += 1
        self.work.mkdir(parents=True, exist_ok=True)
        return self.work / f"{name}-{self._runs}"

    def _perform(self, *words: str | float, timeout: float = COMMAND_TIMEOUT_S) -> dict[str, Any]:
        if self.jvm == FAST_START and _lasting.is_free.acquire(blocking=False):
            try:
                return _lasting.ask(words, timeout)
            finally:
                _lasting.is_free.release()
        return self._perform_apart(*words, timeout=timeout)

    def _perform_apart(self, *words: str | float, timeout: float = COMMAND_TIMEOUT_S) -> dict[str, Any]:
        with _killed_at_the_end(self._spawn(*words)) as process:
            try:
                return _answer(process, timeout)
            except subprocess.TimeoutExpired:
                raise InteropError(f"{words[0]} is not done after {timeout} s") from None

    def _spawn(self, *words: str | float, jvm: Sequence[str] = ()) -> subprocess.Popen[str]:
        jvm = (*self.jvm, *jvm, "-Drmqha.watch.stdin=true")
        command = java_command(self.work, jvm, "rmqha.Driver", *words)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0)


def read_send_log(log: Path) -> list[SendResult]:
    """The results in a send's log; a line that is still being written is left out."""
    text = log.read_text() if log.exists() else ""
    complete = text[: text.rfind("\n") + 1]
    return [_send_result(*line.split(" ")) for line in complete.splitlines()]


def _send_result(
    msg_id: str, offset_msg_id: str, queue_id: str, queue_offset: str, status: str, key: str
) -> SendResult:
    return SendResult(msg_id, offset_msg_id, int(queue_id), int(queue_offset), status, key)


def message_body(number: int, size: int) -> bytes:
    """The body that the Driver gives message `number`."""
    unit = b"k%d|" % number
    return (unit * (size // len(unit) + 1))[:size]


def sha256_of_message(number: int, size: int) -> str:
    """The digest of `message_body`, as messages are portrayed with it."""
    return hashlib.sha256(message_body(number, size)).hexdigest()


def messages_sha256(numbers: Iterator[int] | range, body_bytes: int, *, keys: bool = True) -> str:
    """What `ConsumeReport.sha256` must be after messages of these numbers were sent, each once."""
    lines = sorted(f"{f'k{number}' if keys else ''} {sha256_of_message(number, body_bytes)}\n" for number in numbers)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _send_words(options: SendOptions) -> Iterator[str | float]:
    yield from ("--threads", options.get("threads", 1))
    yield from ("--rate", options.get("rate", 0))
    yield from ("--seconds", options.get("seconds", 0))
    yield from ("--first", options.get("first", 0))
    yield from ("--timeout", options.get("send_timeout_ms", 120_000))
    if options.get("keys", True):
        yield "--keys"
    if not options.get("wait_stored", True):
        yield "--no-wait"
    if (log := options.get("log")) is not None:
        yield from ("--log", str(log.absolute()))


def _close_input(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
        process.stdin = None


def _answer(process: subprocess.Popen[str], timeout: float) -> dict[str, Any]:
    # communicate() would close standard input first, which tells a send to stop.
    stdin, process.stdin = process.stdin, None
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        if stdin is not None:
            process.stdin = stdin
    if stdin is not None:
        stdin.close()
    if process.returncode != 0:
        said = errors[-ERROR_TAIL_CHARACTERS:]
        raise InteropError(f"the Java client ended with status {process.returncode}\n{said}")
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


@contextmanager
def _killed_at_the_end(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


# -- files ---------------------------------------------------------------------------------------------------


def commit_log_bytes(store: Path, start: int, end: int) -> bytes:
    """The bytes of a store's commit log from physical offset `start` up to `end`."""
    return b"".join(_commit_log_pieces(store, start, end))


def commit_log_sha256(store: Path, start: int, end: int) -> str:
    """The digest of `commit_log_bytes`, without holding them all."""
    digest = hashlib.sha256()
    for piece in _commit_log_pieces(store, start, end):
        digest.update(piece)
    return digest.hexdigest()


def commit_log_segments(store: Path) -> list[int]:
    """The first offsets of the segment files, in order; the last may be preallocated and empty."""
    return sorted(int(path.name) for path in (store / "commitlog").iterdir() if path.name.isdigit())


def _commit_log_pieces(store: Path, start: int, end: int, piece_bytes: int = 1 << 20) -> Iterator[bytes]:
    position = start
    for first in commit_log_segments(store):
        path = store / "commitlog" / f"{first:020d}"
        segment_end = min(first + path.stat().st_size, end)
        if not first <= position < segment_end:
            continue
        with path.open("rb") as segment:
            segment.seek(position - first)
            while position < segment_end:
                piece = _read_exactly(segment, min(piece_bytes, segment_end - position))
                position += len(piece)
                yield piece
    if position < end:
        raise InteropError(f"{store} has no byte {position} of the {start} to {end} asked for")


# -- small things --------------------------------------------------------------------------------------------


def java_command(
    work: Path, jvm: Sequence[str], main_class: str, *words: object, version: str = CLIENT_VERSION
) -> list[str]:
    """The command that runs a class of ours in a JVM whose working folder is `work`; it logs warnings only."""
    _write_client_logback(work)
    return [*_java(work, jvm, version), main_class, *map(str, words)]


def client_of_5(work: Path, *words: object) -> str:
    """The last line that ``Client5`` of 5.x prints."""
    work.mkdir(parents=True, exist_ok=True)
    _write_client_logback(work)
    command = [*_java(work, FAST_START, V5), "Client5", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise InteropError(f"{' '.join(map(str, words))}: {done.stderr[-ERROR_TAIL_CHARACTERS:]}")
    return (done.stdout.splitlines() or [""])[-1]


def _write_client_logback(work: Path) -> None:
    conf = work / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("logback.xml", "logback_tools.xml"):
        (conf / name).write_text(_LOGBACK.format(file=work / "client.log", level="WARN"))


def _java(work: Path, jvm: Sequence[str], version: str = CLIENT_VERSION) -> list[str]:
    return [
        _java_tool("java") or "java",
        *_JAVA_17_OPENS,
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={work}",
        f"-Djava.io.tmpdir={work}",
        "-Dtls.server.mode=disabled",  # by default each server makes a key and a certificate as it starts
        "-Drocketmq.client.logUseSlf4j=true",
        f"-Dlogback.configurationFile={work / 'conf' / 'logback.xml'}",
        f"-Drocketmq.home.dir={work}",
        *jvm,
        "-cp",
        class_path(version),
    ]


def _conf_value(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
