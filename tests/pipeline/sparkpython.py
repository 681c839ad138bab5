"""The Python that Spark starts in tests: a fork of a process that has imported what Spark's workers need.

Spark starts a Python for each kind of work, and each forks workers that import Spark, Arrow and our source anew. That
was most of what tests with Spark cost. ``python_for_spark`` gives a program to start instead, which asks a server,
``python -m tests.pipeline.sparkpython FD``, for a fork that runs the same module. Tests of ``spark-submit`` have the
real one.
"""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

MAX_REQUEST_BYTES = 1 << 17
IMPORTED = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "rmqha.pipeline.sink",
    "rmqha.pipeline.source",
)
"""What the forks have: no module that Spark names after ``-m``, which must be run and not imported."""

RESTARTED = "jemalloc_bg_thd"
"""Arrow's thread, which each fork starts anew."""

CLIENT = """
import json, os, signal, socket, sys

if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
request = {{"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    pid = int(server.recv(16))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    server.recv(1)  # the fork has it, too: this ends with the fork
"""


@contextmanager
def python_for_spark(folder: Path) -> Iterator[Path]:
    """The path of a program for PYSPARK_PYTHON. It works until the end of the context."""
    address, client, program = folder / "socket", folder / "client.py", folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, address=str(address)))
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{client}" "$@"\n')
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen()
        command = [sys.executable, "-P", "-m", __name__, str(listening.fileno())]
        server = subprocess.Popen(
            command,
            pass_fds=[listening.fileno()],
            stdin=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a fork has none of the other threads
        )
    with server:
        yield program  # then its input ends, and so does the server


def serve(listening: socket.socket) -> socket.socket:
    """Fork for each client. Returns only in a fork: the connection. The server ends with its input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([sys.stdin, listening], [], [])
        if sys.stdin in ready:
            os._exit(0)
        client, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            listening.close()
            return client
        client.close()


def become(client: socket.socket) -> None:
    """Run a module as ``python -m`` would where the client is."""
    content, streams, _, _ = socket.recv_fds(client, MAX_REQUEST_BYTES, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    request = json.loads(content)
    client.send(str(os.getpid()).encode())
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [request["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = list(request["words"])
    module, *words = sys.argv
    Path("/proc/self/comm").write_text((words or [module])[0])  # see spark_workers
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import what workers need, and serve."""
    for name in IMPORTED:
        import_module(name)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert len(threads) - threads.count(RESTARTED) == 1, f"a fork would have only one of {threads}"
    gc.collect()
    gc.freeze()  # a look for garbage would copy all pages that forks share
    become(serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
