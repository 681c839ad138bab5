"""A Spark session that suits a log on this machine, and Java to run it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

OLDEST_JAVA = 17
JAVA_ANSWER_SECONDS = 30.0
REMEDY = (
    f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-{OLDEST_JAVA}-jre-headless), "
    "and set JAVA_HOME or PATH to it"
)

DEFAULT_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit has started this process."""


class JavaError(RuntimeError):
    """There is no Java that Spark can run on. The text says what to do."""


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The ``java`` that Spark will start: JAVA_HOME's, else PATH's. Raises JavaError if it is missing or too old."""
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(f"JAVA_HOME is {home}, which has no bin/java: {REMEDY}")
    else:
        found = shutil.which("java", path=environ.get("PATH", ""))
        if found is None:
            raise JavaError(f"Spark needs Java, and there is none: {REMEDY}")
        java = Path(found)
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise JavaError(f"{java} is Java {version}: {REMEDY}")
    return java


def java_version(java: Path) -> int:
    """Its major version: 8 for 1.8. Raises JavaError if it says none."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} does not run ({error}): {REMEDY}") from error
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if match is None:
        raise JavaError(f"{java} does not tell its version: {REMEDY}")
    return int(match[1])


def session(master: str | None = None, conf: Mapping[str, str] | None = None, app_name: str = "rmqha") -> SparkSession:
    """A Spark session, the running one if there is one, whose workers are this Python. Raises JavaError.

    Without ``master`` it is what ``spark-submit`` was told, else this machine: ``local[*]``.
    """
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None or SUBMITTED not in os.environ:
        builder = builder.master(master or "local[*]")
    for name, value in {**DEFAULT_CONF, **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
