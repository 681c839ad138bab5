"""Shortens Spark's errors to one line: the useful part is at the end of a long traceback, or in its last cause."""

import re

SPARK_MODULES = ("pyspark", "py4j")
PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Archive|Store)): (.+)$", re.MULTILINE)
"""The last line of a Python traceback."""
CAUSE = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
MAX_CHARACTERS = 400


def is_of_spark(error: Exception) -> bool:
    """Whether Spark, or the connection to its JVM, has raised the error."""
    return any(kind.__module__.split(".")[0] in SPARK_MODULES for kind in type(error).__mro__)


def in_one_line(error: Exception) -> str:
    """The useful sentence: from the Python traceback inside, else from the last cause, else the first line."""
    text = str(error)
    found = [f"{kind}: {reason}" for kind, reason in PYTHON_ERROR.findall(text)] or CAUSE.findall(text)
    lines = [line for line in text.splitlines() if line.strip()]
    line = found[-1] if found else lines[0] if lines else type(error).__name__
    line = " ".join(line.split())
    short = line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}…"
    return f"Spark: {short} (RMQHA_DEBUG=1 shows the whole error)"
