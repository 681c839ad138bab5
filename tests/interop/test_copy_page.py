"""docs/copy.md, typed from top to bottom, with a real Java broker as the reader's broker."""

from pathlib import Path

import pytest

from tests.interop.conftest import MasterFactory
from tests.interop.rocketmq import Driver
from tests.pages.pages import shell_blocks
from tests.pages.reader import Reader

pytestmark = pytest.mark.story


def test_a_copy_of_a_java_broker_as_the_page_says(java_master: MasterFactory, driver: Driver, tmp_path: Path) -> None:
    master = java_master()
    driver.create_topic(master.cluster, "TopicTest", 4)
    assert driver.send("TopicTest", 200, 100).statuses == {"SEND_OK": 200}
    (tmp_path / "reader").mkdir()
    reader = Reader(tmp_path / "reader")
    reader.master = master.listen_port
    try:
        for block in shell_blocks():
            if block.page == "copy":
                reader.types(block)
        reader.stops()
    finally:
        reader.kills()
