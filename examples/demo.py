"""`make demo`: a master over a store that a real RocketMQ 4.9.3 broker wrote, and a slave, as two twistd processes.

The slave copies and proves the log; the master is killed; the copy is proved identical. All is left in .demo.
"""

import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rmqha.store.reader import StoreReader
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.testing.records import write_log

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".demo"
FIXTURE = PROJECT / "tests" / "data" / "master-crash.tar.xz"
SYNTHETIC_BYTES = 256 * 1024 * 1024


def copy_by_slave(name: str, master_store: Path, console: Console) -> tuple[str, ...]:
    """Run the pair over ``master_store``; a row of the table."""
    work = WORK / name
    port = free_port()
    master = TwistdNode(work, ["--role=async-master", f"--port={port}"], store=master_store, name="master")
    slave = TwistdNode(work, ["--role=slave", f"--master=127.0.0.1:{port + 1}", "--port=0"], name="slave")
    with master, slave:
        master.port()
        end = master.wait_for_state(lambda state: state.state == "SERVING", "SERVING").offsets.verified
        state = slave.wait_for_state(
            lambda state: state.state == "IN_SYNC" and state.offsets.confirmed == end, "IN_SYNC with everything on disk"
        )
        seconds = slave.events("IN_SYNC")[0]["time"] - slave.events("begin at")[0]["time"]
        master.kill()
        slave.wait_for_event("slave is CONNECTING")
        status = slave.stop()
    for line in slave.events("slave is "):
        console.print(f"  {line['message']}", highlight=False)
    identical = subprocess.run(
        [sys.executable, "-m", "rmqha.cli", "verify", str(slave.store), "--against", str(master_store)], check=False
    )
    if status != 0 or identical.returncode != 0:
        raise SystemExit(f"{name}: the slave ended with status {status}, verify with {identical.returncode}")
    reader = StoreReader(slave.store)
    messages = reader.verify(lambda _: None).messages
    reader.close()
    rate = f"{end / seconds / 2**20:.0f}"
    return name, str(messages), f"{state.offsets.min} to {end}", state.state, rate, "identical"


def main() -> None:
    """Both stores, then the table."""
    console = Console()
    shutil.rmtree(WORK, ignore_errors=True)
    java_store = WORK / "java" / "master-store"
    java_store.mkdir(parents=True)
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(java_store, filter="data")
    made_store = WORK / "made" / "master-store"
    write_log(made_store / "commitlog", SYNTHETIC_BYTES, body_bytes=1024, segment_size=64 * 1024 * 1024)
    table = Table("store", "messages", "offsets", "slave was", "MiB/s, proved", "after kill -9 of the master")
    started = time.monotonic()
    for name, store in (("java", java_store), ("made", made_store)):
        console.print(f"[bold]{name}[/bold]: master over {store.relative_to(PROJECT)}, a fresh slave")
        table.add_row(*copy_by_slave(name, store, console))
    console.print(table)
    console.print(
        f"java: written by a real RocketMQ 4.9.3 broker (tests/data); made: {SYNTHETIC_BYTES >> 20} MiB of 1 KiB "
        f"messages. {time.monotonic() - started:.1f} s in all; try .venv/bin/rmqha status .demo/made/slave-store"
    )


if __name__ == "__main__":
    main()
