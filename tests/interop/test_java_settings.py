"""The lists of Java's keys and requests are what the real jars say."""

import shutil

import pytest

from rmqha.settings.confkeys import JAVA_SETTINGS
from rmqha.wire.command import RequestCode
from tests.interop.java_settings import RELEASES, listing, request_codes
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


OUR_OWN = {RequestCode.GET_CONFIRMED_OFFSET, RequestCode.PROMISE_TO_FOLLOW, RequestCode.AWAIT_TABLE_CHANGES}


def test_each_request_is_known_by_javas_name() -> None:
    """Who answers it, and who may ask, is in tests/permissions.py."""
    javas = request_codes(RELEASES[0]) | request_codes(RELEASES[-1])
    assert {code.name: code.value for code in RequestCode if code not in OUR_OWN} == javas
