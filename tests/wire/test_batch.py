"""The body of a batch send (spec/remoting.md 6.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.batch import BatchEntry, BatchError, decode_batch, encode_batch

VECTOR = bytes.fromhex(
    "000000330000000000000000000000000000000568656c6c6f00184b455953016b3002574149540174727565025441475301" + "41"
)
ENTRY = BatchEntry(b"hello", "KEYS\x01k0\x02WAIT\x01true\x02TAGS\x01A")
ENTRIES = st.lists(
    st.builds(BatchEntry, st.binary(max_size=40), st.text(max_size=10), st.integers(-(2**31), 2**31 - 1)), max_size=4
)


class BatchTests(SynchronousTestCase):
    def test_an_entry_is_what_java_makes_of_it(self) -> None:
        self.assertEqual((encode_batch([ENTRY]), decode_batch(VECTOR)), (VECTOR, [ENTRY]))

    @pytest.mark.long
    @given(ENTRIES)
    def test_what_is_written_is_read(self, entries: list[BatchEntry]) -> None:
        self.assertEqual(decode_batch(encode_batch(entries)), entries)

    def test_a_body_that_ends_too_soon_is_refused(self) -> None:
        for end in range(1, 2 * len(VECTOR)):
            if end != len(VECTOR):
                self.assertRaises(BatchError, decode_batch, (VECTOR + VECTOR)[:end])

    def test_lengths_that_disagree_are_refused(self) -> None:
        for at in (*range(4), *range(16, 20), 25, 26):
            broken = bytearray(VECTOR)
            broken[at] ^= 0x81
            self.assertRaises(BatchError, decode_batch, bytes(broken))

    @given(st.binary(max_size=80))
    def test_garbage_is_read_or_refused(self, body: bytes) -> None:
        try:
            entries = decode_batch(body)
        except BatchError:
            return
        self.assertLessEqual(22 * len(entries), len(body))

    def test_what_has_no_room_is_refused(self) -> None:
        for entry in (BatchEntry(b"", "x" * 32768), BatchEntry(b"", "", 2**31)):
            self.assertRaises(BatchError, encode_batch, [entry])
