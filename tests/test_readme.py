"""The commands of README and docs/ work as written, one after another in one folder, with other paths and ports."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rmqha.pipeline.session import JavaError, find_java
from rmqha.testing.nodes import free_port
from tests.needs import need
from tests.tls.authority import Authority

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TYPED = {
    "README: A five-minute tour",
    "operating: A broker pair",
    "operating: A copy of your broker",
    "repair: Commands",
    "runbook: All stores are lost, and an archive is left",
    "runbook: Backups",
    "runbook: Messages that were cut or lost",
    "runbook: Somebody deleted or sent something by mistake",
    "runbook: The master is gone",
    "runbook: The old master comes back",
    "spark: A store from an archive",
    "spark: Commands",
    "name-servers: Name servers",
    "tls: Encrypted and authenticated",
}
"""The sections whose commands the tests below type."""
PATIENCE_SECONDS = 300.0
NOT_RUN = ("pip install", "make ")
"""They would change the machine: the Makefile's targets and tests/check_wheel.py are about them."""


def commands() -> dict[str, list[str]]:
    """The shell commands of README and docs/, with their comments: in order, by ``page: heading``.

    They are the lines of the code blocks that name no language.
    """
    found: dict[str, list[str]] = {}
    for page in PAGES:
        heading, language = "", None
        for line in page.read_text().replace("\\\n", " ").splitlines():
            if line.startswith("```"):
                language = line[3:] if language is None else None
            elif language is None and line.startswith("#"):
                heading = line.lstrip("# ")
            elif language == "" and line.strip() and not line.startswith((*NOT_RUN, "#")):
                found.setdefault(f"{page.stem}: {heading}", []).append(line)
    return found


def commands_of(section: str) -> list[str]:
    """The shell commands of the section ``page: heading``."""
    assert section in TYPED
    return commands()[section]


def test_every_section_with_commands_is_typed() -> None:
    assert set(commands()) == TYPED


class Reader:
    """Somebody who types the documents' commands, all in one folder. ``data`` stands for their /data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master, self.slave, self.name_server = free_port(), free_port(), free_port()
        self.data = folder
        self.noted_time = ""
        self.kept = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def typed(self, command: str) -> str:
        """The command for this machine."""
        for words, others in (
            ("/data", str(self.data)),
            ("/lake", str(self.data / "lake")),
            ("/backup", str(self.data / "backup")),
            ("new-master:", "127.0.0.1:"),
            ("2026-11-22T09:30:00Z", self.noted_time),
            ("00000000000012345678", self.kept),
            ("ns-a:", "127.0.0.1:"),
            ("ns-b:", "127.0.0.1:"),
            ("broker-a.example.com:", "localhost:"),
            ("broker-a:", "127.0.0.1:"),
            ("10911", str(self.master)),
            ("10912", str(self.master + 1)),
            ("10921", str(self.slave)),
            ("9876", str(self.name_server)),
            ("local[*]", "local[2]"),
        ):
            command = command.replace(words, others)
        return command

    def starts(self, command: str, port: int) -> Path:
        """Start a node and wait for its port; returns its log. Adds ``--port`` if the command has none."""
        command = self.typed(command).partition(" #")[0]
        if "--port" not in command:
            command += f" --port={port}"
        log = self.folder / f"{len(self._processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self._environ, stdout=output, stderr=output
            )
        self._processes.append(process)
        self.waits(lambda: _answers(port), process, log)
        return log

    def waits(self, reached: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(0.05)

    def waits_for_line(self, log: Path, text: str) -> None:
        self.waits(lambda: text in log.read_text(), self._processes[-1], log)

    def waits_for_status(self, log: Path, store: str) -> None:
        """Until `rmqha status` finds nothing wrong with the store of the node that was started last."""
        command = ["bash", "-c", self.typed(f"rmqha status {store}")]

        def is_fine() -> bool:
            return subprocess.run(command, env=self._environ, capture_output=True, check=False).returncode == 0

        self.waits(is_fine, self._processes[-1], log)

    def runs(self, command: str) -> str:
        """A command that ends well; what it prints."""
        done = subprocess.run(
            ["bash", "-c", self.typed(command)],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def waits_until_it_runs(self, command: str) -> None:
        """Run a command again and again until it ends with 0."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while subprocess.run(
            ["bash", "-c", self.typed(command)], cwd=self.folder, env=self._environ, capture_output=True
        ).returncode:
            assert time.monotonic() < give_up, command
            time.sleep(0.5)

    def fails(self, command: str, code: int) -> str:
        """A command that ends with this exit code; what it prints."""
        done = subprocess.run(
            ["bash", "-c", self.typed(command)], cwd=self.folder, env=self._environ, capture_output=True, text=True
        )
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def stops_last(self) -> None:
        """Ctrl-C for the node that was started last: it ends well."""
        process = self._processes.pop()
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()

    def swaps_last_two(self) -> None:
        """Let ``stops_last`` stop the master, which was started before its slave."""
        self._processes[-2:] = reversed(self._processes[-2:])

    def stops(self) -> None:
        """Ctrl-C for all nodes, the last one first: each ends well."""
        while self._processes:
            self.stops_last()

    def moves(self, section: str) -> None:
        """All nodes stopped, and an empty /data for the next section; the folder is the same."""
        self.stops()
        self.data = self.folder / section
        self.data.mkdir()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    found = Reader(tmp_path_factory.mktemp("folder"))
    try:
        yield found
    finally:
        for process in found._processes:
            process.kill()


def put(reader: Reader) -> None:
    """As many as make it worth while."""
    reader.runs("rmqha put TopicTest hello --count=200 --broker=127.0.0.1:10911")


def test_five_minute_tour(reader: Reader) -> None:
    reader.moves("tour")
    master, slave, *looks, pull = commands_of("README: A five-minute tour")
    reader.starts(master, reader.master)
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")
    reader.swaps_last_two()
    put, status, dump, verify = map(reader.runs, looks)
    assert "SEND_OK 1000" in put
    assert "IN_SYNC" in status
    assert len(dump.splitlines()) == 3
    assert verify
    reader.waits_until_it_runs(pull)
    reader.stops_last()
    assert reader.runs(pull).splitlines() == ["hello"] * 3


def test_a_broker_pair(reader: Reader) -> None:
    reader.moves("pair")
    name_server, master, slave = commands_of("operating: A broker pair")
    reader.starts(name_server, reader.name_server)
    reader.starts(master, reader.master)
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")
    put(reader)
    assert "SEND_OK 3" in reader.runs("rmqha put TopicTest hello --count=3 --namesrv=127.0.0.1:9876")


def test_a_copy_of_your_broker(reader: Reader) -> None:
    reader.moves("copy")
    slave, *commands = commands_of("operating: A copy of your broker")
    reader.starts("twistd -n --pidfile= rmqha --role=async-master --store=/data/master", reader.master)
    put(reader)
    reader.waits_for_status(reader.starts(slave, reader.slave), "/data/replica")
    when_stopped = ("rebuild", "recover", "repair", "restore-cut")
    of_brokers = [command for command in commands if "--namesrv" in command]
    assert [command.split()[1] for command in of_brokers] == ["tail", "query", "lag", "top"]
    of_stores = [command for command in commands if command not in of_brokers]
    at_any_time = [command for command in of_stores if command.split()[1] not in when_stopped]
    assert len(at_any_time) == len(of_stores) - len(when_stopped) == 5
    for command in at_any_time:
        reader.runs(command)
    broker = f"127.0.0.1:{reader.master}"  # no name server runs here, and nothing ends the endless ones
    for command in of_brokers[:3]:
        reader.runs(command.replace("--namesrv ns-a:9876", f"--broker {broker}").replace(" -f", ""))
    assert broker in reader.runs(of_brokers[3].replace("--namesrv ns-a:9876", f"{broker} -n 1"))
    reader.stops_last()
    for command in of_stores:
        if command.split()[1] != "status":  # which ends with 7 where no node runs
            reader.runs(command)


def test_when_bytes_of_the_log_are_bad(reader: Reader) -> None:
    """Of the copy before, as a broken master's store: each command does what its page says of it."""
    reader.stops()
    store, replica = reader.data / "store", reader.data / "replica"
    shutil.copytree(replica, store)
    replica_port = free_port()
    verify, repair, recover, restore_cut = commands_of("repair: Commands")
    log = min((store / "commitlog").iterdir())
    good = log.read_bytes()
    at = good.index(b"hello", len(good.rstrip(b"\0")) // 2)
    log.write_bytes(good[:at] + b"HELLO" + good[at + 5 :])
    assert "rmqha repair" in reader.fails(verify, 1)
    assert reader.runs(f"{recover.partition('#')[0]} --json")
    (kept,) = json.loads(reader.runs("rmqha restore-cut /data/store --json"))["kept"]
    assert reader.runs(restore_cut.replace("72108410", str(kept["offset"])))
    node = f"twistd -n --pidfile= rmqha --role=async-master --store=/data/replica --port={replica_port}"
    reader.starts(node, replica_port)
    assert "repaired" in reader.runs(repair.replace("replica-host:10922", f"127.0.0.1:{replica_port + 1}"))
    reader.stops()
    assert log.read_bytes() == good
    assert reader.runs(verify)


def test_the_log_as_data(reader: Reader) -> None:
    """Of the copy that the section before has made."""
    try:
        find_java()
    except JavaError as error:
        need(str(error))
    for command in commands_of("spark: Commands"):
        assert reader.runs(command)
    assert list((reader.data / "lake" / "orders").rglob("*.parquet"))
    prove, restore, verify = commands_of("spark: A store from an archive")
    assert "nothing was written" in reader.runs(prove)
    assert "every byte is proved" in reader.runs(restore)
    assert "identical" in reader.runs(verify)


def test_the_day_the_master_dies(reader: Reader) -> None:
    """The whole story of the runbook: the master is lost, the slave takes over, the old master comes back."""
    reader.moves("lost-master")
    promote_dry, promote, new_master = commands_of("runbook: The master is gone")
    rewind_dry, rewind, old_master = commands_of("runbook: The old master comes back")
    reader.starts("twistd -n --pidfile= rmqha-namesrv", reader.name_server)
    reader.starts("twistd -n --pidfile= rmqha --role=async-master --store=/data/master --port=10911", reader.master)
    slave = "twistd -n --pidfile= rmqha --role=slave --master=127.0.0.1:10912 --store=/data/slave --port=10921"
    log = reader.starts(slave, reader.slave)
    put(reader)
    reader.waits_for_line(log, "slave is IN_SYNC")
    reader.waits_for_status(log, "/data/slave")
    reader.noted_time = datetime.now(UTC).isoformat()
    reader.stops_last()
    reader.runs("rmqha put TopicTest alone --count=20 --broker=127.0.0.1:10911")
    reader.stops_last()  # the master is gone, with 20 messages that nobody else has
    assert "nothing was changed" in reader.runs(promote_dry)
    assert "is now the ASYNC_MASTER" in reader.runs(promote)
    reader.starts(new_master, reader.master)
    reader.waits_until_it_runs("rmqha put TopicTest new --count=5 --namesrv=127.0.0.1:9876")
    assert "would cut" in reader.runs(rewind_dry)
    assert "20 messages" in reader.runs(rewind)
    reader.waits_for_line(reader.starts(old_master, reader.slave), "slave is IN_SYNC")
    reader.waits_until_it_runs("rmqha verify /data/master --against /data/slave")
    for command in commands_of("runbook: Backups"):
        assert reader.runs(command)
    restore_dry, restore = commands_of("runbook: Somebody deleted or sent something by mistake")
    assert "nothing was changed" in reader.runs(restore_dry)
    assert reader.runs(restore)
    assert "prefix" in reader.runs("rmqha verify /data/before --against /data/slave")
    reader.kept = next((reader.data / "master" / "rmqha" / "cut").glob("0*")).name
    reader.runs("rmqha job archive /data/slave --output /lake/orders")
    count, replay, replay_archived = commands_of("runbook: Messages that were cut or lost")
    assert "TopicTest: 20 messages" in reader.runs(count)
    assert "SEND_OK 20" in reader.runs(replay)
    assert "SEND_OK 5" in reader.runs(replay_archived)  # what was put after the time that was noted
    prove, restore, verify, start = commands_of("runbook: All stores are lost, and an archive is left")
    for command, said in ((prove, "nothing was written"), (restore, "proved"), (verify, "sound messages")):
        assert said in reader.runs(command)
    reader.stops()
    reader.starts("twistd -n --pidfile= rmqha-namesrv", reader.name_server)
    reader.starts(start, reader.master)
    reader.waits_until_it_runs("rmqha put TopicTest again --count=5 --namesrv=127.0.0.1:9876")


def test_name_servers(reader: Reader) -> None:
    reader.moves("name-servers")
    name_server, master, slave = commands_of("name-servers: Name servers")
    reader.starts(name_server, reader.name_server)
    reader.starts(master, reader.master)
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")


def test_encrypted_and_authenticated(reader: Reader) -> None:
    reader.moves("tls")
    ca = Authority(reader.folder / "certificates")
    shutil.copy(ca.path, reader.folder / "ca.pem")
    for name, host in (
        ("broker-a", "localhost"),
        ("slave-a.example.com", "slave-a.example.com"),
        ("operator", "operator"),
    ):
        shutil.copy(ca.issue(host), reader.folder / f"{name}.pem")
    master, slave, status = commands_of("tls: Encrypted and authenticated")
    reader.starts(master, reader.master)
    reader.waits_for_line(reader.starts(slave, reader.slave), "slave is IN_SYNC")
    assert "IN_SYNC" in reader.runs(status) or "peer" in reader.runs(status)
    reader.stops()
