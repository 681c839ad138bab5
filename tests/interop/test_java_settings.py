"""The list of Java's keys is what the real jars say."""

import shutil

import pytest

from rmqha.confkeys import JAVA_SETTINGS
from tests.interop.java_settings import listing
from tests.interop.rocketmq import java_home_problem
from tests.needs import need

pytestmark = pytest.mark.java


@pytest.fixture(autouse=True)
def jdk() -> None:
    """A JDK with ``javap``, and Maven."""
    need(java_home_problem() or (None if shutil.which("javap") else "no javap on the PATH"))


@pytest.mark.story
def test_the_list_is_what_the_jars_say() -> None:
    assert JAVA_SETTINGS.read_text() == listing()
