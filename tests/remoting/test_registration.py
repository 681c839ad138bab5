"""The body of REGISTER_BROKER against the specification's vectors (spec/remoting.md 2.22)."""

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.remoting.registration import MAX_BODY_BYTES, body_crc32, decode_body, encode_body
from rmqha.store.metadata import DataVersion, TopicConfig, TopicConfigTable, TopicFilterType
from rmqha.wire.command import OUR_VERSION

INFLATED = bytes.fromhex(
    "0000001b 7b22636f756e746572223a302c2274696d657374616d70223a357d 00000001"
    "00000012 542034203420362053494e474c455f544147 00000002 5b5d"
)
"""Encoded by Java."""
TABLE = TopicConfigTable(DataVersion(0, 5), {"T": TopicConfig("T", 4, 4)})


def compressed(plain: bytes) -> bytes:
    return zlib.compress(plain, 9)


class PlainTests(SynchronousTestCase):
    def test_the_body_is_as_java_sends_it(self) -> None:
        self.assertEqual(
            encode_body(TABLE),
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,"timestamp":5},'
            b'"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
            b'"topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}}',
        )

    def test_what_is_encoded_is_decoded(self) -> None:
        table = TopicConfigTable(
            DataVersion(3, 9),
            {
                "T": TopicConfig("T", 4, 2, 7, TopicFilterType.MULTI_TAG, 3, order=True),
                "%RETRY%G": TopicConfig("%RETRY%G", 1, 1),
            },
        )
        self.assertEqual(decode_body(encode_body(table), False, OUR_VERSION), table)

    def test_no_body_is_no_topics(self) -> None:
        for is_compressed in (False, True):
            self.assertEqual(decode_body(b"", is_compressed, OUR_VERSION), TopicConfigTable())
        self.assertEqual(decode_body(b'{"filterServerList":[]}', False, OUR_VERSION), TopicConfigTable())

    def test_old_brokers_send_the_topics_alone(self) -> None:
        topic = b'{"T":{"readQueueNums":4,"writeQueueNums":4}}'
        body = b'{"dataVersion":{"counter":0,"timestamp":5},"topicConfigTable":%b}' % topic
        for version in (0, 36):
            self.assertEqual(decode_body(body, False, version), TABLE)
        self.assertEqual(decode_body(body, False, 37), TopicConfigTable())

    def test_the_checksum_is_never_negative(self) -> None:
        for body, crc in ((b"123456789", 0xCBF43926 & 0x7FFFFFFF), (b"", 0)):
            self.assertEqual(body_crc32(body), crc)


class CompressedTests(SynchronousTestCase):
    def test_javas_bytes(self) -> None:
        self.assertEqual(decode_body(compressed(INFLATED), True, OUR_VERSION), TABLE)

    def test_what_follows_the_topics_does_not_matter(self) -> None:
        self.assertEqual(decode_body(compressed(INFLATED + b"more of 5.x"), True, OUR_VERSION), TABLE)

    def test_an_unknown_kind_of_filter_is_the_usual_one(self) -> None:
        body = INFLATED.replace(b"SINGLE_TAG", b"NO_SUCH_AT")
        self.assertEqual(decode_body(compressed(body), True, OUR_VERSION), TABLE)

    def test_broken_bodies_are_refused(self) -> None:
        for what, body in (
            ("no zlib", b"T 4 4 6 SINGLE_TAG"),
            ("half a stream", compressed(INFLATED)[:20]),
            ("nothing in it", compressed(b"")),
            ("a length beyond the end", compressed(b"\0\0\0\x7f{}")),
            ("a negative length", compressed(b"\xff\xff\xff\xff{}")),
            ("more topics than there are", compressed(INFLATED.replace(b"}\0\0\0\1", b"}\x7f\0\0\1"))),
            ("a topic of too few fields", compressed(INFLATED.replace(b"T 4 4 6 ", b"T-4-4-6-"))),
            ("queues that are no number", compressed(INFLATED.replace(b"T 4 4", b"T x 4"))),
            ("a version that is none", compressed(INFLATED.replace(b'"counter":0', b'"counter":a'))),
            ("a name that is no text", compressed(INFLATED.replace(b"T 4", b"\xff 4"))),
        ):
            with self.subTest(what):
                self.assertRaises(ValueError, decode_body, body, True, OUR_VERSION)

    @pytest.mark.long
    def test_a_small_body_cannot_take_all_memory(self) -> None:
        bomb = compressed(INFLATED + bytes(4 * MAX_BODY_BYTES))
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertRaises(ValueError, decode_body, bomb, True, OUR_VERSION)
        self.assertLess(tracemalloc.get_traced_memory()[1], 2.5 * MAX_BODY_BYTES)

    @given(st.binary(max_size=80), st.booleans(), st.sampled_from([0, 36, 37, OUR_VERSION]))
    def test_any_bytes_are_topics_or_a_value_error(self, body: bytes, is_compressed: bool, version: int) -> None:
        for data in (body, compressed(body)):
            try:
                table = decode_body(data, is_compressed, version)
            except ValueError:
                continue
            self.assertIsInstance(table, TopicConfigTable)
