"""Tables of queue offsets between brokers and clients."""

import contextlib
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.kit.steps import at_once
from rmqha.wire.fastjson import ObjectKey, dumps_compact
from rmqha.wire.offsettable import OFFSET_TABLE, ROWS_AT_ONCE, QueueName, reading_offsets
from tests import examples

names = st.text("abcXYZ019_-%|é漢😀", min_size=1, max_size=20)
queues = st.builds(QueueName, names, names, st.integers(0, 2**31 - 1))
tables = st.dictionaries(queues, st.integers(-1, 2**63 - 1), max_size=40)


def in_json(queue: QueueName) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def as_map(table: dict[QueueName, int]) -> bytes:
    return dumps_compact({OFFSET_TABLE: {ObjectKey(json.dumps(in_json(queue))): at for queue, at in table.items()}})


class OffsetTableTests(SynchronousTestCase):
    @given(tables)
    @settings(max_examples=examples(200), deadline=None)
    def test_each_row_is_read_as_it_was_written(self, table: dict[QueueName, int]) -> None:
        self.assertEqual(at_once(reading_offsets(as_map(table), OFFSET_TABLE)), table)

    @given(tables)
    @settings(max_examples=examples(100), deadline=None)
    def test_the_list_for_a_c_client_says_the_same(self, table: dict[QueueName, int]) -> None:
        rows = [{**in_json(queue), "offset": at} for queue, at in table.items()]
        self.assertEqual(at_once(reading_offsets(json.dumps({OFFSET_TABLE: rows}).encode(), OFFSET_TABLE)), table)

    def test_what_a_java_broker_sends(self) -> None:
        rows = b'{"brokerName":"b","queueId":1,"topic":"T"}:17,{"brokerName":"b","queueId":0,"topic":"T"}:5'
        body = b'{"offsetTable":{%s}}' % rows
        expected = {QueueName("T", "b", 1): 17, QueueName("T", "b", 0): 5}
        self.assertEqual(at_once(reading_offsets(body, OFFSET_TABLE)), expected)

    def test_a_large_table_is_read_in_steps(self) -> None:
        body = as_map({QueueName("T", "b", number): number for number in range(3 * ROWS_AT_ONCE)})
        self.assertEqual(len(list(reading_offsets(body, OFFSET_TABLE))), 3)

    def test_an_empty_body_has_no_offsets(self) -> None:
        self.assertEqual(at_once(reading_offsets(b"", OFFSET_TABLE)), {})

    def test_anything_else_is_an_error(self) -> None:
        for body in (
            b"x",
            b"[]",
            b'{"offsetTable":7}',
            b'{"offsetTable":{"a":1}}',
            b'{"offsetTable":{{"topic":"T"}:1}}',
            b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:17',
            b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:17}},',
            b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:x}}',
            b'{"offsetTable":[{"topic":"T"}]}',
        ):
            with self.assertRaises(ValueError, msg=str(body)):
                at_once(reading_offsets(body, OFFSET_TABLE))

    @given(st.binary(max_size=60))
    @settings(max_examples=examples(300), deadline=None)
    def test_garbage_is_an_error_or_no_table(self, garbage: bytes) -> None:
        for body in (garbage, b'{"offsetTable":{' + garbage):
            with contextlib.suppress(ValueError):
                at_once(reading_offsets(body, OFFSET_TABLE))
