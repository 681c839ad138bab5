"""``rmqha replay`` to a Java broker: killed on the way, continued, and repeated."""

import json
from pathlib import Path

import pytest

from rmqha.client.replay import MARK
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Record
from tests.cli.test_replay import SIZE, fine, kill_after_some_results
from tests.commands import RMQHA, output_of
from tests.interop.conftest import MasterFactory
from tests.interop.nodes import wait_until_dispatched
from tests.interop.rocketmq import Broker, Driver, NameServer
from tests.pipeline.stores import make_store
from tests.waiting import wait_until

pytestmark = pytest.mark.story

COUNT = 300
CLOSE_WAIT = "08"
"""The state in proc(5) of a connection whose other end is closed, with perhaps something left to read."""


def wait_until_done_with_the_dead(broker: Broker, driver: Driver) -> None:
    """Wait until the broker has stored and dispatched what a client had sent before it was killed."""

    def has_read_all() -> bool:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        return not any(row[1].endswith(f":{broker.listen_port:04X}") and row[3] == CLOSE_WAIT for row in rows)

    wait_until(has_read_all, f"{broker} to close the connections of a client that is dead")
    assert driver.send("After", 1, 100).stored == 1, "its one thread stores messages in their order"
    wait_until_dispatched(broker.address)


def test_a_java_broker_gets_each_message_once(
    java_master: MasterFactory, namesrv: NameServer, driver: Driver, tmp_path: Path
) -> None:
    store, file = tmp_path / "old", tmp_path / "progress"
    make_store(
        store,
        [
            Record(
                "Old",
                b"body %d" % number,
                format_properties({"KEYS": f"k{number}", "TAGS": "a", "UNIQ_KEY": f"7F0000010000{number:020d}"}),
                queue_id=number % 4,
                queue_offset=number // 4,
                store_timestamp=1_795_000_000_000 + number,
            )
            for number in range(COUNT)
        ],
    )
    broker = java_master(sendMessageThreadPoolNums=1)
    driver.create_topics(broker.cluster, {"New": 4, "After": 1})
    way = (f"--namesrv={namesrv.address}", "--to-topic=New", f"--where=queueOffset < {COUNT}")
    command = [RMQHA, "replay", str(store), f"--progress={file}", *SIZE, *way, "--rate=20"]
    for _ in range(2):
        kill_after_some_results(command, file)
        wait_until_done_with_the_dead(broker, driver)
    output_of(*command[1:-1])
    received = driver.consume("New", "GReplay", COUNT)
    assert received.count == COUNT
    again = json.loads(fine("replay", store, "--skip-sent", "--json", *SIZE, *way))
    assert (again["found"], again["statuses"]) == (COUNT, {})
    pulled = [json.loads(line) for line in fine("pull", "New", way[0], "--json").splitlines()]
    assert len({one["properties"][MARK] for one in pulled}) == len(pulled) == COUNT
    assert {one["properties"]["KEYS"] for one in pulled} == {f"k{number}" for number in range(COUNT)}
