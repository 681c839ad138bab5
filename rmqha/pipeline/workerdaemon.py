"""Starts Spark's Python workers, as ``pyspark.daemon`` does, without a traceback if Spark has read enough.

For ``show()`` and ``limit`` Spark reads the first rows of a task and closes the worker's connection. The worker then
cannot send what is left, and ``pyspark.daemon`` prints its BrokenPipeError. ``session`` names this module in
``spark.python.daemon.module``.
"""

import socket

from pyspark import daemon

spark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one task; the status is 1 if Spark has closed the connection."""
    try:
        return spark_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
