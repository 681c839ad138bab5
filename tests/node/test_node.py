"""Nodes as their users run them: twistd processes, signals, exit statuses, and disks that refuse."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqha.kit.events import Event
from rmqha.store.examining import ABORT_FILE, LOCK_FILE
from rmqha.store.log.lockfile import is_locked
from rmqha.store.log.mappedfile import list_segments
from rmqha.store.offline.storereader import StoreReader
from rmqha.testing.nodes import PutNode, TwistdNode, free_port, logged_events
from rmqha.testing.records import write_log
from rmqha.wire.transfer import REPORT_HEADER, TRANSFER_HEADER
from tests.fixtures import copy_of, log_bytes, max_offset, segment_size, unpacked
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.process

END = max_offset("slave")
PATIENT_WITH_PEERS = "--set=haHousekeepingInterval=3600000"
"""A stop that waited for a silent peer would take an hour."""
TWISTD = str(Path(sys.executable).with_name("twistd"))
FREE_PORTS = ("--port=0",)
SMALL_INDEX = ("--set=maxHashSlotNum=1000", "--set=maxIndexNum=4000")
NO_ROOM_ADVICE = "The disk is full, and nothing is lost: make room, 4 MiB or more, then start the node again"


def slave_options(master: TwistdNode, *more: str) -> list[str]:
    return [
        "--role=slave",
        f"--master=127.0.0.1:{master.port()}",
        f"--master-remoting=127.0.0.1:{master.port('remoting')}",
        *FREE_PORTS,
        *more,
    ]


@pytest.fixture(scope="module", autouse=True)
def lonely_slave(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwistdNode]:
    """A slave without a master. It tries for a quarter of a minute: meanwhile other tests run."""
    options = ["--role=slave", f"--master=127.0.0.1:{free_port()}", "--once"]
    with TwistdNode(tmp_path_factory.mktemp("lonely"), options) as node:
        yield node


@pytest.fixture
def master(tmp_path: Path) -> Iterator[TwistdNode]:
    """A master that serves the fixture's log."""
    store = copy_of("slave", tmp_path / "master-store")
    with TwistdNode(tmp_path, ["--role=async-master", *FREE_PORTS], store, "master") as node:
        yield node


def log_of(store: Path) -> bytes:
    """All of the log's bytes up to its last whole record; the store is at rest, and sound."""
    log, problem = proved(store)
    assert problem is None
    return log


def proved(store: Path) -> tuple[bytes, str | None]:
    """The bytes of a store at rest up to its last whole record, and what is wrong with what follows."""
    reader = StoreReader(store)
    try:
        proof = reader.verify(lambda _: None)
        assert not proof.live
        log = b"".join((reader.log.folder / f"{base:020d}").read_bytes() for base in reader.log.segment_bases)
        return log[: proof.end - proof.min_offset], proof.problem
    finally:
        reader.close()


def assert_left_clean(node: TwistdNode, end: int) -> None:
    """All that was proved is flushed and told, and nothing tells of an accident."""
    state = node.state()
    assert state is not None
    assert (state.offsets.written, state.offsets.verified, state.offsets.flushed) == (end, end, end)
    assert not (node.store / ABORT_FILE).exists()
    assert not is_locked(node.store / LOCK_FILE)


class HalfwayMaster:
    """A master that sends the log's first ``end`` bytes and nothing more; slaves stay connected."""

    def __init__(self, log: bytes, end: int) -> None:
        self._log = log
        self._end = end
        self.reported = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            (at,) = REPORT_HEADER.unpack(connection.recv(REPORT_HEADER.size, socket.MSG_WAITALL))
            while at < self._end:
                size = min(32768, self._end - at, segment_size() - at % segment_size())
                connection.sendall(TRANSFER_HEADER.pack(at, size) + self._log[at : at + size])
                at += size
            while len(report := connection.recv(REPORT_HEADER.size, socket.MSG_WAITALL)) == REPORT_HEADER.size:
                self.reported = REPORT_HEADER.unpack(report)[0]

    def close(self) -> None:
        self._listener.close()


# Copies


def test_a_slave_copies_all_the_master_has_and_ends(tmp_path: Path, master: TwistdNode) -> None:
    with TwistdNode(tmp_path, slave_options(master, "--once"), name="slave") as slave:
        assert slave.wait() == 0
        assert slave.errors() == []
        assert_left_clean(slave, END)
        assert log_of(slave.store) == log_bytes("slave")
        again = slave.start()
        assert again.wait() == 0
    assert master.stop() == 0
    assert_left_clean(master, END)
    assert log_of(master.store) == log_bytes("slave")


def test_the_segments_are_as_the_masters_to_the_last_byte(tmp_path: Path, master: TwistdNode) -> None:
    with TwistdNode(tmp_path, slave_options(master, "--once"), name="slave") as slave:
        assert slave.wait() == 0
    for base, size in list_segments(master.store / "commitlog"):
        if base < END:
            name = f"{base:020d}"
            copied = (slave.store / "commitlog" / name).read_bytes()
            assert copied == (master.store / "commitlog" / name).read_bytes(), name
            assert len(copied) == size


def test_every_line_of_a_json_log_parses(tmp_path: Path, master: TwistdNode) -> None:
    with TwistdNode(tmp_path, slave_options(master, "--once", "--set=flushDiskType=SYNC_FLUSH"), name="slave") as slave:
        assert slave.wait() == 0
    assert master.stop() == 0
    for name in ("slave", "master"):
        lines = [json.loads(line) for line in (tmp_path / f"{name}.log").read_text().splitlines()]
        assert len(lines) > 5
        assert all({"time", "level", "namespace", "message"} <= line.keys() for line in lines)
        assert {line["level"] for line in lines} == {"info"}


# Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_slave_told_to_stop_while_it_copies_leaves_all_clean(
    tmp_path: Path, master: TwistdNode, number: signal.Signals
) -> None:
    records = [at for at, _ in _records(unpacked("slave"))]
    whole = next(at for at in records if at > END // 2)
    halfway = HalfwayMaster(log_bytes("slave"), whole + 50)
    options = ["--role=slave", f"--master={halfway.address}", "--master-remoting=none", *FREE_PORTS]
    options.append(PATIENT_WITH_PEERS)
    with TwistdNode(tmp_path, [*options, f"--set=mappedFileSizeCommitLog={segment_size()}"], name="slave") as slave:
        wait_until(lambda: halfway.reported == whole, "the slave to hold half of the log")
        assert (slave.store / ABORT_FILE).exists()
        os.kill(slave.pid, number)
        assert slave.wait() == 0
        assert slave.errors() == []
    halfway.close()
    assert_left_clean(slave, whole)
    assert log_of(slave.store) == log_bytes("slave")[:whole]
    with TwistdNode(tmp_path, slave_options(master, "--once"), slave.store, "again") as again:
        assert again.wait() == 0
    assert log_of(slave.store) == log_bytes("slave")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_master_told_to_stop_does_not_wait_for_a_slave_that_takes_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    store = tmp_path / "store"
    write_log(store / "commitlog", 24 << 20, 1000, 1 << 22)
    with (
        TwistdNode(tmp_path, ["--role=sync-master", PATIENT_WITH_PEERS, *FREE_PORTS], store, "master") as master,
        socket.create_connection(("127.0.0.1", master.port())) as slave,
    ):
        slave.sendall(REPORT_HEADER.pack(1))
        master.wait_for_event(Event.SLAVE_TRANSFER_STARTED, start=1)
        os.kill(master.pid, number)
        assert master.wait() == 0
        assert master.errors() == []
        assert not (store / ABORT_FILE).exists()


def test_a_second_signal_changes_nothing(tmp_path: Path, master: TwistdNode) -> None:
    master.port("fast remoting")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        with suppress(ProcessLookupError):
            os.kill(master.pid, number)
    assert master.wait() == 0
    assert_left_clean(master, END)


def test_sighup_reopens_the_log_file(tmp_path: Path) -> None:
    log = tmp_path / "node.log.json"
    port = free_port()
    options = ["--role=async-master", f"--port={port}"]
    with TwistdNode(tmp_path, options, twistd_options=["--pidfile=", f"--logfile={log}"]) as node:
        wait_until(lambda: bool(logged_events(log, Event.LISTENING, purpose="fast remoting")), "the node to listen")
        moved = log.rename(tmp_path / "node.log.json.1")
        with socket.create_connection(("127.0.0.1", port + 1)) as slave:
            slave.sendall(REPORT_HEADER.pack(0))
            wait_until(lambda: bool(logged_events(moved, Event.SLAVE_TRANSFER_STARTED)), "an event in the moved file")
            os.kill(node.pid, signal.SIGHUP)
            wait_until(lambda: bool(logged_events(log, Event.LOG_FILE_REOPENED)), "the new file")
            assert not logged_events(moved, Event.LOG_FILE_REOPENED)
            assert slave.send(REPORT_HEADER.pack(0)) == 8  # traffic goes on
        wait_until(lambda: bool(logged_events(log, Event.SLAVE_GONE, ack_offset=0)), "an event in the new file")
        assert node.is_running
        assert node.stop() == 0
        for line in [*moved.read_text().splitlines(), *log.read_text().splitlines()]:
            json.loads(line)


def test_sighup_without_a_log_file_does_no_harm(tmp_path: Path, master: TwistdNode) -> None:
    master.port("fast remoting")
    os.kill(master.pid, signal.SIGHUP)
    master.wait_for_event(Event.LOG_FILE_REOPENED)
    assert master.stop() == 0


# Starts that must not be


def refused(work: Path, options: Sequence[str], store: Path | None = None, **more: Any) -> tuple[int, str]:
    """How a node ends that cannot run, and the one line that it says."""
    with TwistdNode(work, [*options], store, "refused", **more) as node:
        status = node.wait()
        (line,) = node.errors()
    assert line.startswith("rmqha: ")
    return status, line


def test_a_second_node_on_one_store_is_refused(tmp_path: Path, master: TwistdNode) -> None:
    master.port("fast remoting")
    for options in (["--role=async-master"], ["--role=slave", "--master=127.0.0.1:9"]):
        status, line = refused(tmp_path, [*options, *FREE_PORTS], master.store)
        assert (status, line) == (9, f"rmqha: {master.store} is in use by another process: stop it first")
    assert master.stop() == 0
    assert_left_clean(master, END)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    port = free_port()
    for purpose, taken in (("remoting", port), ("ha", port + 1), ("fast remoting", port - 2)):
        with socket.create_server(("127.0.0.1", taken)):
            status, line = refused(tmp_path, ["--role=async-master", f"--port={port}"])
        assert status == 8
        assert f"cannot listen for {purpose}: " in line
        assert str(taken) in line
        assert "Address already in use" in line
    assert not (tmp_path / "refused-store" / ABORT_FILE).exists()


def test_wrong_usage_is_status_2(tmp_path: Path) -> None:
    status, line = refused(tmp_path, ["--role=primary"])
    assert status == 2
    assert "role is 'primary'" in line
    assert not (tmp_path / "refused-store").exists()


def test_once_with_nobody_listening(lonely_slave: TwistdNode) -> None:
    assert lonely_slave.wait() == 7
    (line,) = lonely_slave.errors()
    assert line.startswith("rmqha: cannot connect to the master, 5 times: Connection was refused by other side")


def test_segments_of_another_size_than_configured_are_refused(tmp_path: Path, master: TwistdNode) -> None:
    master.port("fast remoting")
    status, line = refused(tmp_path, slave_options(master, "--once", "--set=mappedFileSizeCommitLog=65536"))
    assert status == 5
    assert "mappedFileSizeCommitLog is 65536 here and 262144 at the master: they must be equal" in line
    assert log_of(tmp_path / "refused-store") == b""
    store = copy_of("slave", tmp_path / "other")
    options = ["--role=async-master", *FREE_PORTS, "--set=mappedFileSizeCommitLog=65536"]
    status, line = refused(tmp_path, options, store)
    assert status == 1
    assert f"segments of {store / 'commitlog'} have 262144 bytes; mappedFileSizeCommitLog says 65536" in line
    assert log_of(store) == log_bytes("slave")


def test_a_store_that_is_damaged_is_left_as_it_is(tmp_path: Path) -> None:
    store = copy_of("slave", tmp_path / "store")
    missing = store / "commitlog" / f"{segment_size():020d}"
    missing.unlink()
    status, line = refused(tmp_path, ["--role=async-master", *FREE_PORTS], store)
    assert status == 1
    assert f"{missing} is missing" in line
    assert not (store / ABORT_FILE).exists()


# Leftovers of the dead


def test_an_abort_file_of_a_dead_node_means_recovery(tmp_path: Path) -> None:
    store = copy_of("master-crash", tmp_path / "store")
    assert (store / ABORT_FILE).exists()
    with TwistdNode(tmp_path, ["--role=async-master", *FREE_PORTS], store) as node:
        assert node.wait_for_event(Event.LOG_RECOVERED)["clean_stop"] is False
        node.port("fast remoting")
        assert node.stop() == 0
        assert_left_clean(node, END)
        node.start()
        assert node.wait_for_event(Event.LOG_RECOVERED)["clean_stop"] is True
        node.port("fast remoting")
        assert node.stop() == 0
    assert log_of(store) == log_bytes("master-crash")


def test_a_pid_file_of_a_dead_node_does_not_matter(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    pidfile = tmp_path / "node.pid"
    pidfile.write_text(ended.stdout.strip())
    store = copy_of("slave", tmp_path / "store")
    options = ["--role=async-master", *FREE_PORTS]
    with TwistdNode(tmp_path, options, store, twistd_options=[f"--pidfile={pidfile}"]) as node:
        node.port("fast remoting")
        assert int(pidfile.read_text()) == node.pid
        assert node.stop() == 0
    assert not pidfile.exists()


def test_a_killed_node_starts_again(tmp_path: Path, master: TwistdNode) -> None:
    with TwistdNode(tmp_path, slave_options(master), name="slave") as slave:
        slave.wait_for_state(lambda state: state.offsets.verified == END, "the end")
        slave.kill()
        assert (slave.store / ABORT_FILE).exists()
        slave.start()
        assert slave.wait_for_event(Event.LOG_RECOVERED)["clean_stop"] is False
        slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
        assert slave.stop() == 0
        assert_left_clean(slave, END)
    assert log_of(slave.store) == log_bytes("slave")


def test_a_daemon_whose_standard_files_are_closed(tmp_path: Path) -> None:
    store, log, pidfile = copy_of("slave", tmp_path / "store"), tmp_path / "daemon.log", tmp_path / "daemon.pid"
    command = [TWISTD, f"--pidfile={pidfile}", f"--logfile={log}", "rmqha", "--role=async-master", "--bind=127.0.0.1"]
    command += [*FREE_PORTS, f"--store={store}", "--log-format=json"]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(shell, cwd=tmp_path, timeout=WAIT_SECONDS).returncode == 0
    wait_until(lambda: pidfile.exists() and pidfile.read_text().isdigit(), "the daemon's pid")
    pid = int(pidfile.read_text())
    try:
        wait_until(lambda: bool(logged_events(log, Event.LISTENING, purpose="fast remoting")), "the daemon to listen")
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not pidfile.exists() and not is_locked(store / LOCK_FILE), "the daemon's end")
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise
    assert not (store / ABORT_FILE).exists()
    assert all(json.loads(line) for line in log.read_text().splitlines())


# Limits, and disks that refuse


def test_64_open_files_are_enough_for_any_number_of_segments(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_log(store / "commitlog", 150 * 8192, 1000, 8192)
    limit = ["prlimit", "--nofile=64:64"]
    with TwistdNode(tmp_path, ["--role=async-master", *FREE_PORTS], store, "master", prefix=limit) as master:
        with TwistdNode(tmp_path, slave_options(master, "--once"), name="slave", prefix=limit) as slave:
            assert slave.wait() == 0
            assert slave.errors() == []
        assert master.stop() == 0
    assert len(list_segments(slave.store / "commitlog")) >= 150
    assert log_of(slave.store) == log_of(store)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """An ext4 file system of this size; skips where mounting is not allowed.

    A tmpfs would not do: there, reading a hole through a mapping takes room, and without any is a SIGBUS.
    """
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    folder.mkdir()
    for command in (["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", image], ["mount", "-o", "loop", image, folder]):
        try:
            subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"cannot mount a small disk here: {getattr(error, 'stderr', error)}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stops_the_slave_and_room_lets_it_go_on(tmp_path: Path, master: TwistdNode) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - (3 << 20)))
        options = slave_options(master, "--once", *SMALL_INDEX)
        with TwistdNode(tmp_path, options, disk / "store", "slave") as slave:
            assert slave.wait() == 8
            (line,) = slave.errors()
            assert os.strerror(errno.ENOSPC) in line
            assert line.startswith("rmqha: the disk failed, nothing more is acknowledged: ")
            held, _ = proved(slave.store)
            assert 0 < len(held) < END
            assert log_bytes("slave").startswith(held)
            assert slave.start().wait() == 8  # still full
            ballast.unlink()
            subprocess.run(["sync", "--file-system", str(disk)], check=True)  # until then ext4 keeps the blocks
            assert slave.start().wait() == 0
            assert_left_clean(slave, END)
        assert log_of(slave.store) == log_bytes("slave")


def fill(disk: Path) -> Path:
    """Leave no block free. Returns the file to delete for room."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return ballast


def make_room(disk: Path, ballast: Path) -> None:
    ballast.unlink()
    subprocess.run(["sync", "--file-system", str(disk)], check=True)  # until then ext4 keeps the blocks


def test_a_slave_waits_for_room_and_goes_on_by_itself(tmp_path: Path, master: TwistdNode) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - (3 << 20)))
        with TwistdNode(tmp_path, slave_options(master, *SMALL_INDEX), disk / "store", "slave") as slave:
            slave.wait_for_event(Event.WAITS_FOR_ROOM, what="copied bytes")
            make_room(disk, ballast)
            slave.wait_for_state(lambda state: state.offsets.verified == END, "all of the log")
            assert slave.is_running


def test_a_master_refuses_puts_on_a_full_disk_and_takes_them_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        options = ["--role=async-master", *FREE_PORTS, "--set=mappedFileSizeCommitLog=1048576", *SMALL_INDEX]
        with PutNode(tmp_path, options, disk / "store", "master") as node:
            assert node.put(10)["statuses"] == {"PUT_OK": 10}
            ballast = fill(disk)
            refused = {"CREATE_MAPEDFILE_FAILED", "SERVICE_NOT_AVAILABLE"}  # the second once retention has looked
            while not (statuses := set(node.put(100)["statuses"])) & refused:
                assert statuses == {"PUT_OK"}
            assert statuses <= {"PUT_OK", *refused}
            node.wait_for_event(Event.WAITS_FOR_ROOM, what="state.json")
            assert set(node.put(10)["statuses"]) <= refused
            make_room(disk, ballast)
            wait_until(lambda: node.put(1)["statuses"] == {"PUT_OK": 1}, "a put to be taken")
            end = node.put(10)["end"]
            node.wait_for_state(lambda state: state.offsets.verified == end, "state.json to be written again")


def test_a_disk_without_any_room_is_told_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(4096)):
                pass
        status, line = refused(tmp_path, ["--role=async-master", *FREE_PORTS], disk / "store")
    assert status == 8
    assert line.startswith(f"rmqha: cannot open {disk / 'store'}: ")
    assert os.strerror(errno.ENOSPC) in line
    assert line.endswith(f". {NO_ROOM_ADVICE}")


def test_a_full_disk_at_the_stop_and_at_the_start_loses_nothing(tmp_path: Path) -> None:
    """The store is not closed cleanly, and the next start with a little room checks its log."""
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        options = ["--role=async-master", *FREE_PORTS, "--set=mappedFileSizeCommitLog=1048576", *SMALL_INDEX]
        with PutNode(tmp_path, options, disk / "store", "master") as node:
            end = node.put(300)["end"]
            ballast = fill(disk)
            assert node.stop() == 8
            (line,) = node.errors()
            assert line.startswith("rmqha: the store could not be closed cleanly: ")
            assert line.endswith(NO_ROOM_ADVICE)
            assert str(disk / "store") in line
            assert (node.store / ABORT_FILE).exists()
            assert node.start().wait() == 8
            line = node.errors()[-1]
            assert line.startswith(f"rmqha: cannot open {node.store}: ")
            assert line.endswith(NO_ROOM_ADVICE)
            os.truncate(ballast, ballast.stat().st_size - (4 << 20))
            subprocess.run(["sync", "--file-system", str(disk)], check=True)
            assert node.start().put(1)["statuses"] == {"PUT_OK": 1}
            assert node.stop() == 0
            held, _ = proved(node.store)
            assert len(held) > end


def test_a_quota_on_the_size_of_files_stops_the_slave(tmp_path: Path, master: TwistdNode) -> None:
    limited = TwistdNode(tmp_path, slave_options(master, "--once"), name="slave", prefix=["prlimit", "--fsize=100000"])
    with limited as slave:
        assert slave.wait() == 8
        (line,) = slave.errors()
        assert os.strerror(errno.EFBIG) in line
    with TwistdNode(tmp_path, slave_options(master, "--once"), slave.store, "unlimited") as unlimited:
        assert unlimited.wait() == 0
    assert log_of(slave.store) == log_bytes("slave")


def test_a_read_only_disk_can_be_read_and_not_run_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        store = copy_of("slave", disk / "store")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        status, line = refused(tmp_path, ["--role=async-master", *FREE_PORTS], store)
        assert status == 8
        assert os.strerror(errno.EROFS) in line
        assert log_of(store) == log_bytes("slave")


def test_a_log_on_another_disk_behind_a_symbolic_link(tmp_path: Path, master: TwistdNode) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        store = tmp_path / "slave-store"
        store.mkdir()
        (disk / "log").mkdir()
        (store / "commitlog").symlink_to(disk / "log")
        with TwistdNode(tmp_path, slave_options(master, "--once"), store, "slave") as slave:
            assert slave.wait() == 0
        assert (store / "commitlog").is_symlink()
        assert len(list_segments(disk / "log")) == len(list_segments(master.store / "commitlog"))
        assert log_of(store) == log_bytes("slave")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    store = copy_of("slave", tmp_path / "store")
    store.chmod(0o555)
    try:
        status, line = refused(tmp_path, ["--role=async-master", *FREE_PORTS], store)
    finally:
        store.chmod(0o755)
    assert status == 8
    assert os.strerror(errno.EACCES) in line


def _records(store: Path) -> list[tuple[int, Any]]:
    reader = StoreReader(store)
    try:
        return list(reader.records(0, None))
    finally:
        reader.close()
