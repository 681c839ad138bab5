"""An installed package, or an image, copies a Java master. ``make deb-proof`` and ``make image-proof`` run this.

RMQHA_ROOT names a folder with the root of a system, in which the package is installed. Its programs run in namespaces
of their own, with that root, as the user that the package has made. pytest collects this file only if it is named.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqha.store.nodestate import NodeState
from rmqha.testing.nodes import free_port
from tests.commands import rmqha
from tests.interop.conftest import MasterFactory
from tests.interop.rocketmq import Driver
from tests.waiting import wait_until

pytestmark = pytest.mark.java
ROOT = Path(os.environ["RMQHA_ROOT"])
MESSAGES = 500


DEVICES = f"""
mount -t tmpfs none {ROOT}/dev
for name in null zero full random urandom; do touch {ROOT}/dev/$name; mount --bind /dev/$name {ROOT}/dev/$name; done
exec "$@"
"""
"""What a container's runtime does before it starts the program."""


def inside(command: Sequence[str], user: str = "root:root", **environment: str) -> list[str]:
    """The command, with the package's root and namespaces of its own for processes and mounts."""
    variables = [f"{name}={value}" for name, value in {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environment}.items()]
    return [
        *("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", f"--mount-proc={ROOT}/proc"),
        *("sh", "-euc", DEVICES, "sh"),
        *("chroot", f"--userspec={user}", str(ROOT), "env", "-i", *variables, *command),
    ]


def said(command: Sequence[str], user: str = "root:root", **environment: str) -> str:
    """What the command prints, inside. It must succeed."""
    done = subprocess.run(inside(command, user, **environment), capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def running(command: Sequence[str], log: Path, user: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command runs inside meanwhile, and ends cleanly afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(inside(command, user, **environment), stdout=output, stderr=output)
    try:
        yield process
        (main,) = children_of(process.pid)  # the first process of the namespace: sh, then chroot, then the node
        os.kill(main, signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_equal(store: Path, master: Path) -> bool:
    return rmqha("verify", store, "--against", master).returncode == 0


def copies(
    master_store: Path, end: Callable[[], int], command: Sequence[str], user: str, store: Path, log: Path, **env: str
) -> None:
    """The node copies all of the master's log; both logs are equal then, and it ran as the right user."""
    with running(command, log, user, **env) as process:

        def has_all() -> bool:
            assert process.poll() is None, log.read_text()
            state = NodeState.read(store) if (store / "rmqha" / "state.json").exists() else None
            return state is not None and state.state == "IN_SYNC" and state.offsets.verified >= end()

        wait_until(has_all, "the copy to be complete")
        assert (store / "rmqha" / "state.json").stat().st_uid != 0
    assert is_equal(store, master_store)


@pytest.mark.skipif(not (ROOT / "etc/rmqha/slave.conf").exists(), reason="this root has no Debian package")
def test_the_debian_package_copies_a_java_master(java_master: MasterFactory, driver: Driver, tmp_path: Path) -> None:
    master = java_master()
    driver.create_topic(master.cluster, "TDeb", 4)
    assert driver.send("TDeb", MESSAGES, 1000).statuses == {"SEND_OK": MESSAGES}
    unit = (ROOT / "lib/systemd/system/rmqha@.service").read_text()
    (start,) = (line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart="))
    conf = ROOT / "etc/rmqha/slave.conf"
    changed = conf.read_text().replace("=127.0.0.1:10912", f"={master.ha_address}").replace("=10921", f"={free_port()}")
    conf.write_text(changed)
    command = shlex.split(start.replace("%i", "slave").replace("$RMQHA_OPTIONS", f"--http-port={free_port()}"))
    store = ROOT / "var/lib/rmqha/slave"
    copies(master.store, lambda: master.commit_log_range()[1], command, "rmqha:rmqha", store, tmp_path / "log")
    assert said(["rmqha", "verify", "/var/lib/rmqha/slave"])
    assert said(["rmqha", "--version"]).startswith("rmqha, version ")


@pytest.mark.skipif(not (ROOT / "usr/local/bin/rmqha-container").exists(), reason="this root is no image")
def test_the_image_copies_a_java_master(java_master: MasterFactory, driver: Driver, tmp_path: Path) -> None:
    master = java_master()
    driver.create_topic(master.cluster, "TImage", 4)
    assert driver.send("TImage", MESSAGES, 1000).statuses == {"SEND_OK": MESSAGES}
    entry, user = "/usr/local/bin/rmqha-container", "10911:10911"
    store = ROOT / "data/store"
    healths: list[int] = []

    def end() -> int:
        if not healths:
            healths.append(subprocess.run(inside([entry, "healthcheck"], user), check=False).returncode)
        return master.commit_log_range()[1]

    variables = {"RMQHA_MASTER": master.ha_address}
    copies(master.store, end, [entry], user, store, tmp_path / "log", **variables)
    assert healths == [0]
    stopped = subprocess.run(inside([entry, "healthcheck"], user), capture_output=True, check=False)
    assert stopped.returncode == 1
    nothing = subprocess.run(inside([entry], user), capture_output=True, text=True, check=False)
    assert (nothing.returncode, "RMQHA_MASTER=HOST:PORT" in nothing.stderr) == (2, True)
