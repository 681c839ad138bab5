import re
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from twisted.trial.unittest import SynchronousTestCase

from rmqha.store.derived.dispatchrequest import DispatchRequest, read_dispatch_request
from rmqha.wire.columns import Bytes, Records
from rmqha.wire.layout import BODY_AT, FIELD_AT, FIXED_BYTES, HEADER_FIELDS, HEADS, hosts_extra
from rmqha.wire.record import Record, encode_record
from rmqha.wire.scan import scan_records
from tests.strategies import records

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "store.md"
ROW = re.compile(r"\| \d+ +\| ([A-Z]+) \| [^|]+ \| (\d+) \| (?:(i32|i64)|[^|]*port) \|")
CODES = {"i32": "i", "i64": "q", "": None}


class LayoutTests(SynchronousTestCase):
    def test_the_table_is_that_of_the_specification(self) -> None:
        section = SPEC.read_text().partition("### 3.1 ")[2].partition("### 3.2 ")[0]
        specified = [(name, int(at), CODES[kind]) for name, at, kind in ROW.findall(section)]
        renamed = {"magic": "MAGICCODE"}
        ours = [(renamed.get(f.name, f.name.upper()), FIELD_AT[f.name], f.code) for f in HEADER_FIELDS]
        self.assertEqual(ours, specified)

    def test_ipv6_hosts_add_twelve_bytes_each(self) -> None:
        self.assertEqual([hosts_extra(flag) for flag in (0, 0x10, 0x20, 0x30)], [0, 12, 12, 24])
        sizes = {key: head.size for key, head in HEADS.items()}
        self.assertEqual(sizes, {(4, 4): BODY_AT, (16, 4): 100, (4, 16): 100, (16, 16): 112})
        self.assertEqual(FIXED_BYTES, 91)

    @settings(deadline=None)
    @given(records())
    def test_all_readers_find_the_same_fields(self, record: Record) -> None:
        """One by one, as columns, proved in bulk, and for dispatch: all read what the encoder wrote."""
        raw = encode_record(record)
        columns = Records(_bytes(raw), 0, np.zeros(1, np.int64))
        header = {
            "totalSize": len(raw),
            "magic": record.magic,
            "bodyCRC": record.body_crc,
            "queueId": record.queue_id,
            "flag": record.flag,
            "queueOffset": record.queue_offset,
            "physicalOffset": record.physical_offset,
            "sysFlag": record.sys_flag,
            "bornTimestamp": record.born_timestamp,
            "storeTimestamp": record.store_timestamp,
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "bodyLength": len(record.body),
        }
        self.assertEqual({name: columns.ints(name).item() for name in header}, header)
        request = read_dispatch_request(memoryview(raw), 0)
        assert isinstance(request, DispatchRequest)
        self.assertEqual(
            request[:7],
            (
                record.topic,
                record.queue_id,
                record.queue_offset,
                record.physical_offset,
                len(raw),
                record.sys_flag,
                record.store_timestamp,
            ),
        )
        base = record.physical_offset
        if base >= 0:
            found = scan_records(raw, base, base, base + len(raw))
            self.assertEqual((found.problem, found.messages, found.store_timestamp), (None, 1, record.store_timestamp))


def _bytes(raw: bytes) -> Bytes:
    return np.frombuffer(raw, np.uint8)
