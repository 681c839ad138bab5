"""A Spark session for a log on this machine, and the Java that runs it. PySpark is imported only if a session is
made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
JAVA_ANSWER_SECONDS = 30.0
REMEDY = (
    f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-{OLDEST_JAVA}-jre-headless), "
    "and set JAVA_HOME or PATH to it"
)

DEBUG = "RMQHA_DEBUG"
"""If this is set in the environment, Spark also shows the tracebacks of its workers."""
HIDE_TRACEBACKS = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
DEFAULT_CONF = {
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.daemon.module": "rmqha.pipeline.workerdaemon",  # show() and limit without tracebacks
    "spark.python.unix.domain.socket.enabled": "false",  # PySpark 4.3's workers end with tracebacks if it is on
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    HIDE_TRACEBACKS: "true",  # an error of the log is one sentence
}

SUBMITTED = "PYSPARK_GATEWAY_PORT"


def was_submitted() -> bool:
    """Whether spark-submit has started this process."""
    return SUBMITTED in os.environ


class JavaError(RuntimeError):
    """Java is missing, or too old for Spark. The text says what to do."""


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The ``java`` that Spark will start: that of JAVA_HOME, else of PATH. Raises JavaError if it is missing or too
    old.
    """
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(f"JAVA_HOME is {home}, which has no bin/java: {REMEDY}")
    else:
        found = shutil.which("java", path=environ.get("PATH", ""))
        if found is None:
            raise JavaError(f"Spark needs Java, which is missing: {REMEDY}")
        java = Path(found)
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise JavaError(f"{java} is Java {version}: {REMEDY}")
    return java


def java_version(java: Path) -> int:
    """The major version of a Java: 8 for 1.8. Raises JavaError if it prints none."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} does not run ({error}): {REMEDY}") from error
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if match is None:
        raise JavaError(f"{java} does not print its version: {REMEDY}")
    return int(match[1])


def session(master: str | None = None, conf: Mapping[str, str] | None = None, app_name: str = "rmqha") -> SparkSession:
    """A Spark session whose workers run this Python: the running one if there is one. Raises JavaError.

    Without ``master`` it uses the master of ``spark-submit``, else this machine: ``local[*]``. A Spark that runs only
    on this machine listens only on the loopback interface, and does not look up this machine's name.
    """
    from pyspark.sql import SparkSession

    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not was_submitted():
        master = master or "local[*]"
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    debugging = {HIDE_TRACEBACKS: "false"} if DEBUG in os.environ else {}
    for name, value in {**DEFAULT_CONF, **debugging, **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
