"""Records of the commit log (spec/store.md 3), and what may not pass for one."""

import base64
import hashlib
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from struct import pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.layout import BLANK_MAGIC_CODE, MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2
from rmqha.wire.record import (
    Blank,
    Host,
    IncompleteRecord,
    Record,
    RecordError,
    body_crc,
    check_record,
    decode_record,
    encode_blank,
    encode_record,
    format_msg_id,
    parse_msg_id,
    peek_size,
    record_as_json,
)
from tests import examples, fixtures, strategies

ROOM = 1 << 20
V4 = Host.parse("10.1.2.3", 40000)
V6 = Host.parse("2001:db8::1", 40000)

IPV6_RECORD = Record(
    topic="T",
    body=b"hi",
    queue_id=3,
    born_timestamp=1_600_000_000_000,
    born_host=V6,
    store_timestamp=0x1A1FA5B8723,
    store_host=Host.parse("2001:db8::2", 10911),
)
IPV6_BYTES = bytes.fromhex(
    "00000076 DAA320A7 58932AAC 00000003 00000000 0000000000000000 0000000000000000 00000030 000001 74876E8000"
    "20010DB8000000000000000000000001 00009C40 000001A1FA5B8723 20010DB8000000000000000000000002 00002A9F 00000000"
    "0000000000000000 00000002 6869 01 54 0000"
)
IPV4_RECORD = Record(
    topic="TopicA",
    body=bytes(range(10)),
    properties_stored="KEYS\x01k1 k2\x02UNIQ_KEY\x01ABC\x02TAGS\x01TagA",
    flag=7,
    physical_offset=0x76,
    born_timestamp=0x1A1FA5B873C,
    born_host=V4,
    store_timestamp=0x1A1FA5B873C,
    store_host=Host.parse("127.0.0.1", 10911),
)
IPV4_BYTES = bytes.fromhex(
    "0000008CDAA320A7456CD7460000000000000007000000000000000000000000000000760000000000 0001A1FA5B873C0A01020300009C40"
    "000001A1FA5B873C7F00000100002A9F0000000000000000000000000000000A0001020304050607080906546F70696341 0021"
    "4B455953016B31206B3202554E49515F4B45590141424302544147530154616741"
)


class GoldenVectorTests(SynchronousTestCase):
    """The records of store.md 3.13, as a Java broker wrote them."""

    def test_an_ipv6_record(self) -> None:
        self.assertEqual(len(IPV6_BYTES), 118)
        self.assertEqual(encode_record(IPV6_RECORD), IPV6_BYTES)
        self.assertEqual(decode_record(IPV6_BYTES), IPV6_RECORD)
        self.assertEqual(check_record(IPV6_BYTES, 0, 0, ROOM), IPV6_RECORD)
        self.assertEqual(IPV6_RECORD.sys_flag, 0x30)

    def test_an_ipv4_record_with_properties(self) -> None:
        self.assertEqual(len(IPV4_BYTES), 140)
        self.assertEqual(encode_record(IPV4_RECORD), IPV4_BYTES)
        self.assertEqual(check_record(IPV6_BYTES + IPV4_BYTES, 0x76, 0x76, ROOM), IPV4_RECORD)
        self.assertEqual(IPV4_RECORD.properties, {"KEYS": "k1 k2", "UNIQ_KEY": "ABC", "TAGS": "TagA"})

    def test_the_crc_has_no_sign_bit(self) -> None:
        self.assertEqual(body_crc(bytes(range(10))), 0x456CD746)
        self.assertEqual(body_crc(b""), 0)
        self.assertEqual(zlib.crc32(b"a"), 0xE8B7BE43)
        self.assertEqual(body_crc(b"a"), 0x68B7BE43)

    def test_a_blank_is_its_size_and_its_magic(self) -> None:
        self.assertEqual(encode_blank(0x1234), bytes.fromhex("00001234 CBD43194"))
        self.assertEqual(decode_record(bytes.fromhex("00001234 CBD43194")), Blank(0x1234))
        with self.assertRaises(RecordError):
            encode_blank(7)


class RecordTests(SynchronousTestCase):
    @pytest.mark.long
    @settings(deadline=None, max_examples=examples(300))
    @given(strategies.records(any_crc=True), st.binary(max_size=9), st.binary(max_size=9))
    def test_every_field_survives_encoding_and_decoding(self, record: Record, before: bytes, behind: bytes) -> None:
        encoded = encode_record(record)
        self.assertEqual(len(encoded), record.total_size)
        for view in (before + encoded + behind, memoryview(before + encoded + behind)):
            self.assertEqual(decode_record(view, len(before)), record)
        self.assertEqual(encode_record(record), encoded)

    def test_the_size_follows_from_its_parts(self) -> None:
        for born, store, extra in ((V4, V4, 0), (V6, V4, 12), (V4, V6, 12), (V6, V6, 24)):
            record = Record("Topic", b"body", "a\x01b", born_host=born, store_host=store)
            self.assertEqual(record.total_size, 91 + 5 + 4 + 3 + extra)
            self.assertEqual(replace(record, magic=MESSAGE_MAGIC_CODE_V2).total_size, 92 + 5 + 4 + 3 + extra)

    def test_ipv6_flags_follow_the_hosts_whatever_was_said(self) -> None:
        for born, store, flags in ((V4, V4, 0), (V6, V4, 0x10), (V4, V6, 0x20), (V6, V6, 0x30)):
            for said in (0, 0x30):
                record = Record("T", b"", sys_flag=0x1 | said, born_host=born, store_host=store)
                self.assertEqual(record.sys_flag, 0x1 | flags)

    def test_bytes_that_are_no_utf_8_are_kept(self) -> None:
        raw = b"\xff\xfe\x80T"
        encoded = bytearray(encode_record(Record("Topi", b"", "a\x01bc")))
        encoded[-10:-6] = raw
        encoded[-1:] = b"\xc3"
        decoded = decode_record(bytes(encoded))
        assert isinstance(decoded, Record)
        self.assertEqual(encode_record(decoded), bytes(encoded))
        self.assertEqual(record_as_json(decoded)["topic"], "\ufffd\ufffd\ufffdT")
        self.assertEqual(record_as_json(decoded)["properties"], {"a": "b\ufffd"})

    def test_both_writers_properties_are_kept_and_read(self) -> None:
        for stored in ("KEYS\x01k\x02TAGS\x01A", "KEYS\x01k\x02TAGS\x01A\x02"):
            decoded = decode_record(encode_record(Record("T", b"", stored)))
            assert isinstance(decoded, Record)
            self.assertEqual(decoded.properties_stored, stored)
            self.assertEqual(decoded.properties, {"KEYS": "k", "TAGS": "A"})

    def test_lengths_without_room_in_their_field_are_refused(self) -> None:
        for magic, longest in ((MESSAGE_MAGIC_CODE, 127), (MESSAGE_MAGIC_CODE_V2, 32767)):
            record = Record("t" * longest, b"", magic=magic)
            self.assertEqual(decode_record(encode_record(record)), record)
            with self.assertRaises(RecordError):
                encode_record(replace(record, topic="t" * (longest + 1)))
        self.assertEqual(len(encode_record(Record("T", b"", "p" * 32767))), 92 + 32767)
        with self.assertRaises(RecordError):
            encode_record(Record("T", b"", "p" * 32768))
        with self.assertRaises(RecordError):
            encode_record(Record("é" * 64, b""))


class HostTests(SynchronousTestCase):
    def test_hosts_are_told_as_java_tells_them(self) -> None:
        self.assertEqual(str(V4), "10.1.2.3:40000")
        self.assertEqual(str(Host.parse("::1", 80)), "[0:0:0:0:0:0:0:1]:80")
        self.assertEqual(str(V6), "[2001:db8:0:0:0:0:0:1]:40000")

    def test_a_mapped_address_is_ipv4(self) -> None:
        self.assertEqual(Host.parse("::ffff:10.1.2.3", 40000), V4)
        self.assertFalse(V4.is_ipv6)
        self.assertTrue(V6.is_ipv6)

    def test_text_that_is_no_address_is_refused(self) -> None:
        with self.assertRaises(ValueError):
            Host.parse("localhost", 1)


class MsgIdTests(SynchronousTestCase):
    def test_the_id_of_store_md_3_10(self) -> None:
        host = Host.parse("127.0.0.1", 10911)
        self.assertEqual(format_msg_id(host, 0), "7F00000100002A9F0000000000000000")
        self.assertEqual(
            Record("T", b"", store_host=host, physical_offset=255).msg_id, "7F00000100002A9F00000000000000FF"
        )

    @settings(deadline=None, max_examples=examples(100))
    @given(strategies.HOSTS, strategies.INT64)
    def test_an_id_tells_host_and_offset(self, host: Host, offset: int) -> None:
        msg_id = format_msg_id(host, offset)
        self.assertEqual(len(msg_id), 56 if host.is_ipv6 else 32)
        self.assertEqual(parse_msg_id(msg_id), (host, offset))
        self.assertEqual(parse_msg_id(msg_id.lower()), (host, offset))

    def test_text_that_is_no_id_is_refused(self) -> None:
        good = format_msg_id(V4, 5)
        for text in ("", good[:-1], good + "0", "G" + good[1:], "7F " * 10 + "7F", good[:-2] + "  ", "é" * 32):
            with self.assertRaises(ValueError, msg=repr(text)):
                parse_msg_id(text)


def changed(record: Record, at: int, kind: str, value: int) -> bytes:
    """The record's bytes with one integer field replaced, and zeros behind, as a segment has them."""
    content = bytearray(encode_record(record) + bytes(200))
    pack_into(f">{kind}", content, at, value)
    return bytes(content)


class CheckRecordTests(SynchronousTestCase):
    """Each field that can be wrong is found to be, by name."""

    offset = 262_144
    record = Record("Topic", b"some body", "KEYS\x01k", physical_offset=offset, born_host=V4, store_host=V4)
    size = record.total_size
    topic_length_at = 88 + len(record.body)
    properties_length_at = topic_length_at + 1 + len("Topic")

    def refusal(self, content: bytes, physical_offset: int = offset, room: int = ROOM) -> str:
        """Why it is no record; that it was not merely incomplete."""
        for padding in (0, 5):
            with self.assertRaises(RecordError) as caught:
                check_record(bytes(padding) + content, padding, physical_offset, room)
            self.assertNotIsInstance(caught.exception, IncompleteRecord)
        return str(caught.exception)

    def test_a_sound_record_passes(self) -> None:
        self.assertEqual(check_record(encode_record(self.record), 0, self.offset, ROOM), self.record)
        self.assertEqual(check_record(changed(self.record, 0, "i", self.size), 0, self.offset, ROOM), self.record)

    def test_a_wrong_field_is_refused(self) -> None:
        crc = self.record.body_crc
        assert crc is not None
        for name, at, kind, value, reason in (
            ("TOTALSIZE", 0, "i", -1, "a size of -1 bytes is too small"),
            ("TOTALSIZE", 0, "i", -(2**31), "too small"),
            ("TOTALSIZE", 0, "i", 0, "a size of 0 bytes is too small"),
            ("TOTALSIZE", 0, "i", 90, "a size of 90 bytes is too small"),
            ("TOTALSIZE", 0, "i", 91, "BODYLENGTH|TOPICLENGTH|PROPERTIESLENGTH"),
            ("TOTALSIZE", 0, "i", self.size - 1, "PROPERTIESLENGTH is 6, 5 bytes are left"),
            ("TOTALSIZE", 0, "i", self.size + 1, f"parts take {self.size} bytes, TOTALSIZE says {self.size + 1}"),
            ("TOTALSIZE", 0, "i", ROOM + 1, "before its segment's end"),
            ("TOTALSIZE", 0, "i", 2**31 - 1, "before its segment's end"),
            ("MAGICCODE", 4, "i", 0, "magic code 00000000"),
            ("MAGICCODE", 4, "i", MESSAGE_MAGIC_CODE + 1, "magic code DAA320A8"),
            ("MAGICCODE", 4, "i", MESSAGE_MAGIC_CODE_V2, "TOPICLENGTH"),
            ("MAGICCODE", 4, "i", BLANK_MAGIC_CODE, "a blank of"),
            ("BODYCRC", 8, "i", crc ^ 1, "CRC"),
            ("BODYCRC", 8, "i", crc - 2**31, "CRC"),
            ("BODYCRC", 8, "i", 0, "CRC"),
            ("PHYSICALOFFSET", 28, "q", self.offset + 1, f"says its offset is {self.offset + 1}"),
            ("PHYSICALOFFSET", 28, "q", 0, "says its offset is 0"),
            ("SYSFLAG", 36, "i", 0x10, "LENGTH"),
            ("SYSFLAG", 36, "i", 0x20, "LENGTH"),
            ("SYSFLAG", 36, "i", 0x30, "LENGTH|hosts"),
            ("BODYLENGTH", 84, "i", -1, "BODYLENGTH is -1"),
            ("BODYLENGTH", 84, "i", 0, "LENGTH|parts"),
            ("BODYLENGTH", 84, "i", len(self.record.body) - 1, "LENGTH|parts"),
            ("BODYLENGTH", 84, "i", len(self.record.body) + 1, "LENGTH|parts"),
            ("BODYLENGTH", 84, "i", 2**31 - 1, "BODYLENGTH is 2147483647"),
            ("TOPICLENGTH", self.topic_length_at, "b", -1, "TOPICLENGTH is -1"),
            ("TOPICLENGTH", self.topic_length_at, "b", 4, "LENGTH|parts"),
            ("TOPICLENGTH", self.topic_length_at, "b", 6, "LENGTH|parts"),
            ("TOPICLENGTH", self.topic_length_at, "b", 13, "no room is left for PROPERTIESLENGTH"),
            ("TOPICLENGTH", self.topic_length_at, "b", 127, "TOPICLENGTH is 127"),
            ("PROPERTIESLENGTH", self.properties_length_at, "h", -1, "PROPERTIESLENGTH is -1"),
            ("PROPERTIESLENGTH", self.properties_length_at, "h", 5, "parts take"),
            ("PROPERTIESLENGTH", self.properties_length_at, "h", 7, "PROPERTIESLENGTH is 7"),
            ("PROPERTIESLENGTH", self.properties_length_at, "h", 32767, "PROPERTIESLENGTH is 32767"),
        ):
            self.assertRegex(self.refusal(changed(self.record, at, kind, value)), reason, f"{name}={value}")

    def test_a_v2_topic_length_is_signed_and_two_bytes(self) -> None:
        record = replace(self.record, magic=MESSAGE_MAGIC_CODE_V2)
        for value in (-1, 4, 6, 127, 32767):
            content = changed(record, self.topic_length_at, "h", value)
            self.assertRegex(self.refusal(content), "LENGTH|parts", f"TOPICLENGTH={value}")

    def test_a_size_too_small_for_its_hosts_is_refused(self) -> None:
        for flags, size in ((0x10, 102), (0x20, 102), (0x30, 114)):
            content = bytearray(changed(Record("", b"", physical_offset=self.offset), 0, "i", size))
            pack_into(">i", content, 36, flags)
            self.assertRegex(self.refusal(bytes(content)), "too small for its hosts")

    def test_any_byte_of_the_body_matters(self) -> None:
        for i in range(len(self.record.body)):
            content = bytearray(encode_record(self.record))
            content[88 + i] ^= 0x80
            self.assertIn("CRC", self.refusal(bytes(content)))

    def test_the_crc_of_no_body_is_not_looked_at(self) -> None:
        """As in Java: store.md 3.8."""
        record = Record("T", b"", body_crc=77)
        self.assertEqual(check_record(encode_record(record), 0, 0, ROOM), record)

    def test_a_record_at_another_place_is_refused(self) -> None:
        reason = self.refusal(encode_record(self.record), self.offset + 1)
        self.assertEqual(reason, f"it says its offset is {self.offset}")

    def test_a_record_beyond_its_segment_is_refused(self) -> None:
        content = encode_record(self.record)
        for room in (self.size - 1, 8):
            self.assertIn("before its segment's end", self.refusal(content, room=room))
        self.assertEqual(check_record(content, 0, self.offset, self.size), self.record)

    def test_nothing_starts_in_a_segments_last_seven_bytes(self) -> None:
        """It could never become whole, so that waiting for the rest would be waiting for ever."""
        for room in range(8):
            for content in (encode_record(self.record)[:room], encode_record(self.record)):
                self.assertIn("too few", self.refusal(content, room=room))

    def test_a_blank_reaches_exactly_to_its_segments_end(self) -> None:
        for size in (8, 9, 500):
            content = encode_blank(size) + b"\x55" * (size - 8)
            self.assertEqual(check_record(content, 0, self.offset, size), Blank(size))
            self.assertIn("a blank of", self.refusal(content, room=size + 1))
            if size > 8:
                self.assertIn("a blank of", self.refusal(content, room=size - 1))
        for size in (7, 0, -1):
            content = size.to_bytes(4, "big", signed=True) + encode_blank(8)[4:] + bytes(20)
            self.assertIn("too small", self.refusal(content, room=8))

    def test_peek_size_tells_size_and_magic(self) -> None:
        self.assertEqual(peek_size(IPV6_BYTES, 0, 8), (118, MESSAGE_MAGIC_CODE))
        self.assertEqual(peek_size(b"x" + encode_blank(8), 1, 8), (8, BLANK_MAGIC_CODE))
        with self.assertRaises(IncompleteRecord):
            peek_size(IPV6_BYTES, 0, 7)


class IncompleteRecordTests(SynchronousTestCase):
    """A record of which the end has not come yet is that, at whatever byte it was cut, and nothing else."""

    def assert_incomplete(self, read: Callable[[], object], where: int) -> None:
        with self.assertRaises(RecordError, msg=f"cut at {where}") as caught:
            read()
        self.assertIs(type(caught.exception), IncompleteRecord, f"cut at {where}: {caught.exception}")

    def check_all_cuts(self, record: Record) -> None:
        encoded = encode_record(record)
        for length in range(len(encoded)):
            view = memoryview(b"before" + encoded)[: 6 + length]
            self.assert_incomplete(lambda v=view: check_record(v, 6, record.physical_offset, ROOM), length)  # type: ignore[misc]
            self.assert_incomplete(lambda v=view: decode_record(v, 6), length)  # type: ignore[misc]

    def test_a_record_cut_at_any_byte(self) -> None:
        for record in (IPV4_RECORD, IPV6_RECORD, replace(IPV4_RECORD, magic=MESSAGE_MAGIC_CODE_V2), Record("", b"")):
            self.check_all_cuts(record)

    @settings(deadline=None, max_examples=examples(60))
    @given(strategies.records())
    def test_any_record_cut_at_any_byte(self, record: Record) -> None:
        self.check_all_cuts(record)

    def test_a_blank_cut_at_any_byte(self) -> None:
        content = encode_blank(40) + bytes(32)
        for length in range(40):
            view = content[:length]
            self.assert_incomplete(lambda v=view: check_record(v, 0, 0, 40), length)  # type: ignore[misc]
        self.assertEqual(check_record(content, 0, 0, 40), Blank(40))

    def test_a_cut_record_that_could_not_fit_is_refused_at_once(self) -> None:
        with self.assertRaises(RecordError) as caught:
            check_record(IPV4_BYTES[:8], 0, 0x76, 139)
        self.assertNotIsInstance(caught.exception, IncompleteRecord)


class RecordAsJsonTests(SynchronousTestCase):
    """What Java's decoder reads in Java's logs, we read."""

    def check(self, log: bytes, lines: list[dict[str, object]], at: int) -> int:
        size = fixtures.segment_size()
        for line in lines:
            record = check_record(log, at, at, size - at % size)
            if isinstance(record, Blank):
                self.assertEqual({"blank": record.size, "offset": at, "magic": BLANK_MAGIC_CODE}, line)
                at += record.size
            else:
                found = record_as_json(record)
                self.assertEqual(found, line)
                self.assertEqual(list(found), list(line))
                self.assertEqual(list(found["properties"]), list(line["properties"]))  # type: ignore[call-overload]
                self.assertEqual(encode_record(record), log[at : at + record.total_size])
                self.assertEqual(parse_msg_id(found["msgId"]), (record.store_host, at))
                at += record.total_size
        return at

    def test_every_record_and_blank_of_a_java_log(self) -> None:
        log, lines = fixtures.log_bytes("master-crash"), fixtures.expected()
        self.assertEqual(self.check(log, lines, 0), fixtures.max_offset("master-crash"))
        blanks = [[line["offset"], line["blank"]] for line in lines if "blank" in line]
        self.assertEqual(blanks, fixtures.facts()["blankList"])
        self.assertEqual(len(lines) - len(blanks), fixtures.facts()["records"])

    def test_what_the_recovered_broker_added(self) -> None:
        log, start = fixtures.log_bytes("master-clean"), fixtures.max_offset("master-crash")
        self.assertEqual(log[:start], fixtures.log_bytes("master-crash"))
        end = self.check(log, fixtures.expected_clean_extra(), start)
        self.assertEqual(end, fixtures.max_offset("master-clean"))

    def test_only_zlib_is_inflated(self) -> None:
        body = zlib.compress(b"text")
        for sys_flag, keys in ((0x0, 0), (0x1, 2), (0x301, 2), (0x101, 0), (0x201, 0), (0x300, 0)):
            found = record_as_json(Record("T", body, sys_flag=sys_flag))
            self.assertEqual(len([key for key in found if key.startswith("inflated")]), keys, hex(sys_flag))
            self.assertEqual(base64.b64decode(found["body"]), body)
        self.assertEqual(record_as_json(Record("T", body, sys_flag=1))["inflatedLength"], 4)

    def test_a_body_that_cannot_be_inflated_is_told_as_such(self) -> None:
        found = record_as_json(Record("T", b"no zlib", sys_flag=1))
        self.assertIsNone(found["inflatedLength"])
        self.assertNotIn("inflatedSha256", found)
        self.assertIsNone(record_as_json(Record("T", zlib.compress(bytes(9999))[:-1], sys_flag=1))["inflatedLength"])

    @pytest.mark.long
    def test_a_small_body_that_stands_for_a_great_one_needs_little_memory(self) -> None:
        great = bytes(64 << 20)
        body = zlib.compress(great, 1)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        found = record_as_json(Record("T", body, sys_flag=1))
        self.assertLess(tracemalloc.get_traced_memory()[1], 8 << 20)
        self.assertEqual(found["inflatedLength"], len(great))
        self.assertEqual(found["inflatedSha256"], hashlib.sha256(great).hexdigest())
