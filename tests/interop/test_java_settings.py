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


NOT_OF_BROKERS = {
    *("QUERY_BROKER_OFFSET", "GET_TOPIC_CONFIG_LIST", "GET_TOPIC_NAME_LIST", "TRIGGER_DELETE_FILES"),
    *("GET_CLIENT_CONFIG", "SUSPEND_CONSUMER", "RESUME_CONSUMER", "RESET_CONSUMER_OFFSET_IN_CONSUMER"),
    *("RESET_CONSUMER_OFFSET_IN_BROKER", "ADJUST_CONSUMER_THREAD_POOL", "WHO_CONSUME_THE_MESSAGE"),
    *("REGISTER_FILTER_SERVER", "REGISTER_MESSAGE_FILTER_CLASS"),
    *("GET_UNIT_TOPIC_LIST", "GET_HAS_UNIT_SUB_TOPIC_LIST", "GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST"),
}
"""Requests that no broker of RocketMQ answers either: nobody does, or name servers do."""


def test_each_request_of_the_newest_release_is_known() -> None:
    """What we know and do not serve is refused in words: tests/broker/test_service.py holds that."""
    codes = request_codes(RELEASES[-1])
    ours = {code.value for code in RequestCode}
    assert {name for name, code in codes.items() if code not in ours} == NOT_OF_BROKERS
