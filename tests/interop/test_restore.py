"""Java starts on a store that ``rmqha restore`` made, serves what is in it, and goes on with the next offsets.

The clock of the source's broker was set back for a while.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from rmqha.store.offline.storereader import StoreReader
from rmqha.wire.layout import INT64, STORE_TIMESTAMP_AT
from rmqha.wire.record import Record
from tests.commands import output_of
from tests.interop.conftest import MasterFactory
from tests.interop.rocketmq import V5, Driver, messages_sha256
from tests.interop.test_namesrv import wait_for_brokers

pytestmark = pytest.mark.story

TOPIC, QUEUES, BODY_BYTES = "TRestore", 4, 600
SENT: Final = 400
SET_BACK: Final = 50
HOUR_MS: Final = 3_600_000


def records_of(store: Path) -> list[tuple[int, Record]]:
    reader = StoreReader(store)
    try:
        found = [(at, record) for at, record in reader.records(0, None) if isinstance(record, Record)]
        return [(at, record) for at, record in found if record.topic == TOPIC]
    finally:
        reader.close()


def set_back(store: Path, records: list[tuple[int, Record]]) -> None:
    """Let these messages of a stopped store be stored an hour earlier: the broker's clock was set back for a while."""
    segments = sorted((store / "commitlog").iterdir())
    size = segments[0].stat().st_size
    for at, record in records:
        with segments[at // size].open("r+b") as file:
            file.seek(at % size + STORE_TIMESTAMP_AT)
            file.write(INT64.pack(record.store_timestamp - HOUR_MS))


def test_java_goes_on_from_an_offset_a_time_and_a_message(
    java_master: MasterFactory, driver: Driver, tmp_path: Path
) -> None:
    assert_goes_on(java_master, driver, tmp_path)


def test_a_5_x_broker_goes_on_from_an_offset_a_time_and_a_message(
    java_master: MasterFactory, driver: Driver, tmp_path: Path
) -> None:
    assert_goes_on(partial(java_master, version=V5), driver, tmp_path)


def assert_goes_on(java_master: MasterFactory, driver: Driver, tmp_path: Path) -> None:
    """With each way of saying up to where the store is restored."""
    source = java_master()
    wait_for_brokers(driver.namesrv, source.name, (0, source))
    driver.create_topic(source.cluster, TOPIC, QUEUES)
    assert driver.send(TOPIC, SENT, BODY_BYTES).stored == SENT
    source.stop()
    records = records_of(source.store)
    assert len(records) == SENT
    set_back(source.store, records[20:50] + records[-SET_BACK:])
    middle = records[SENT // 2][1]
    places = {
        "--to-offset": str(records[SENT // 4][0]),
        "--to-time": str(middle.store_timestamp),
        "--to-message": f"{TOPIC}:{middle.queue_id}:{middle.queue_offset}",
    }
    for option, place in places.items():
        output = tmp_path / option.strip("-")
        told = json.loads(output_of("restore", source.store, "--output", output, option, place, "--json"))
        assert told["earlierAfter"] == (SET_BACK if option == "--to-time" else 0)
        left = [record for at, record in records if at < told["end"]]
        assert 0 < len(left) < SENT, option
        ends = Counter(record.queue_id for record in left)
        restored = java_master(store=output, name=source.name, cluster=source.cluster)
        wait_for_brokers(driver.namesrv, restored.name, (0, restored))
        assert driver.queue_ends(TOPIC)[TOPIC] == {queue: (0, ends[queue]) for queue in range(QUEUES)}
        found = driver.consume(TOPIC, f"G{option.strip('-')}", len(left))
        numbers = [int(record.properties["KEYS"].removeprefix("k")) for record in left]
        assert (found.count, found.sha256) == (len(left), messages_sha256(iter(numbers), BODY_BYTES))
        with driver.start_send(TOPIC, 2 * QUEUES, BODY_BYTES, first=10**6) as run:
            run.wait()
            sent = [(result.queue_id, result.queue_offset) for result in run.results()]
        assert sorted(sent) == sorted((queue, ends[queue] + more) for queue in range(QUEUES) for more in (0, 1)), option
        restored.stop()
        assert "queues agree" in output_of("verify", output)
