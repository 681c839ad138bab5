"""Java is found, or its lack is told with the remedy; Spark finds us by our module's name."""

import subprocess
import sys
from pathlib import Path

import pytest

from rmqha.pipeline.session import JavaError, find_java, java_version

pytestmark = pytest.mark.process


def fake_java(folder: Path, answer: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09', 25),
    ],
)
def test_javas_version_is_read_from_its_answer(tmp_path: Path, answer: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, answer)) == version


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}) == home
    assert find_java({"PATH": str(on_path.parent)}) == on_path


def test_a_missing_an_old_and_a_mute_java_are_told_with_the_remedy(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    fake_java(tmp_path / "mute", "hello")
    (tmp_path / "empty").mkdir()
    for environ, told in (
        ({"PATH": str(tmp_path / "empty")}, "which is missing"),
        ({"JAVA_HOME": str(tmp_path / "empty")}, "has no bin/java"),
        ({"JAVA_HOME": str(tmp_path / "old")}, "is Java 8"),
        ({"JAVA_HOME": str(tmp_path / "mute")}, "does not print its version"),
    ):
        with pytest.raises(JavaError, match=f"{told}.*install Java 17 or newer"):
            find_java(environ)


def python(code: str, folder: Path) -> str:
    """What the code prints, run by this Python elsewhere."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_module_that_spark_looks_for_has_our_source(tmp_path: Path) -> None:
    assert python("import pyspark_rmqha; print(pyspark_rmqha.DefaultSource.name())", tmp_path) == "rmqha\n"


def test_the_module_that_spark_looks_for_never_raises(tmp_path: Path) -> None:
    """One that raises would hide all other sources of this kind."""
    code = "import sys; sys.modules['pyarrow'] = None; import pyspark_rmqha; print(dir(pyspark_rmqha))"
    assert "DefaultSource" not in python(code, tmp_path)


def test_reading_a_log_imports_no_reactor(tmp_path: Path) -> None:
    code = "import rmqha.pipeline.source, sys; print('twisted' in sys.modules)"
    assert python(code, tmp_path) == "False\n"
