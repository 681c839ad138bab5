"""Remoting commands in both header encodings (spec/remoting.md 1)."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmqha.wire.command import (
    BINARY_HEAD,
    FRAME_MAX_LENGTH,
    HEADER_LENGTH,
    LANGUAGES,
    CommandError,
    RemotingCommand,
    answer_to,
    decode_command,
    encode_command,
    encode_head,
)
from tests import examples

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

GET_MAX_OFFSET = RemotingCommand(30, opaque=7, remark="hi", ext_fields={"queueId": "3", "topic": "T"})
JSON_HEADER = (
    b'{"code":30,"extFields":{"queueId":"3","topic":"T"},"flag":0,"language":"PYTHON","opaque":7,"remark":"hi",'
    b'"serializeTypeCurrentRPC":"JSON","version":399}'
)
JSON_FRAME = bytes.fromhex("00000098") + JSON_HEADER
BINARY_HEADER = bytes.fromhex(
    "001e 03 018f 00000007 00000000 00000002 6869 0000001a0007 71756575654964 00000001 33 0005 746f706963 00000001 54"
)
BINARY_FRAME = bytes.fromhex("01000031") + BINARY_HEADER


def json_frame(header: object, body: bytes = b"") -> bytes:
    """A frame with this header, as JSON unless it is bytes already."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return HEADER_LENGTH.pack(len(raw)) + raw + body


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return HEADER_LENGTH.pack(1 << 24 | len(header)) + header + body


class JsonHeaderTests(SynchronousTestCase):
    def test_the_frame_of_remoting_md_1_2(self) -> None:
        self.assertEqual(len(JSON_FRAME), 0x9C)
        self.assertEqual(encode_command(GET_MAX_OFFSET), JSON_FRAME)
        self.assertEqual(decode_command(JSON_FRAME), GET_MAX_OFFSET)

    @settings(deadline=None, max_examples=examples(200))
    @given(
        st.builds(
            RemotingCommand,
            code=INT32,
            opaque=INT32,
            flag=INT32,
            remark=st.none() | TEXT,
            ext_fields=st.dictionaries(TEXT, TEXT, max_size=4),
            body=st.binary(max_size=40),
            version=INT32,
            language=st.sampled_from(("JAVA", "GO", "CPP")),
            serialize_type=st.just(0),
        )
    )
    def test_a_command_is_read_as_it_was_written(self, command: RemotingCommand) -> None:
        self.assertEqual(decode_command(encode_command(command)), command)

    def test_all_values_are_written_as_strings_and_no_remark_is_no_key(self) -> None:
        """Go and C++ clients understand nothing else."""
        header = json.loads(encode_command(RemotingCommand(0, ext_fields={"offset": "5"}))[4:])
        self.assertEqual(header["extFields"], {"offset": "5"})
        self.assertNotIn("remark", header)
        self.assertEqual(json.loads(encode_command(RemotingCommand(0))[4:])["extFields"], {})

    def test_scalars_of_the_cpp_client_become_strings(self) -> None:
        fields = {"queueId": 3, "big": 2**40, "yes": True, "no": False, "gone": None, "text": "x", "empty": ""}
        found = decode_command(json_frame({"code": 11, "extFields": fields}))
        expected = {"queueId": "3", "big": str(2**40), "yes": "true", "no": "false", "text": "x", "empty": ""}
        self.assertEqual(found.ext_fields, expected)

    def test_the_cpp_clients_newline_after_the_header_is_read(self) -> None:
        self.assertEqual(decode_command(json_frame(JSON_HEADER + b"\n")), GET_MAX_OFFSET)

    def test_what_may_be_absent_has_its_default(self) -> None:
        for header in ({"code": 28}, {"code": 28, "remark": None, "extFields": None, "unknown": [1]}):
            found = decode_command(json_frame(header))
            self.assertEqual(found, RemotingCommand(28, version=0, language="OTHER"))

    def test_a_language_may_be_a_number(self) -> None:
        for number, name in ((0, "JAVA"), (3, "PYTHON"), (9, "GO"), (11, "OMS"), (12, "OTHER"), (-1, "OTHER")):
            self.assertEqual(decode_command(json_frame({"code": 1, "language": number})).language, name)

    def test_a_remark_is_text_whatever_was_sent(self) -> None:
        self.assertEqual(decode_command(json_frame({"code": 1, "remark": 5})).remark, "5")

    def test_the_body_is_what_follows_the_header(self) -> None:
        self.assertEqual(decode_command(json_frame({"code": 1}, b"\x00body")).body, b"\x00body")
        self.assertEqual(decode_command(json_frame({"code": 1})).body, b"")

    def test_numbers_beyond_32_bits_are_refused(self) -> None:
        """We would have to send them back."""
        for key in ("code", "opaque", "flag", "version"):
            for number in (2**31, -(2**31) - 1, 10**30):
                with self.assertRaises(CommandError, msg=f"{key}={number}"):
                    decode_command(json_frame({"code": 1, key: number}))
            self.assertEqual(encode_command(decode_command(json_frame({"code": 1, key: 2**31 - 1})))[:1], b"\0")

    def test_a_header_that_is_no_command_is_refused(self) -> None:
        bad: tuple[object, ...] = (
            b"",
            b"{",
            b"\xff\xfe",
            b"null",
            b"5",
            b'"code"',
            [],
            [{"code": 1}],
            {},
            {"opaque": 1},
            {"code": None},
            {"code": "x"},
            {"code": [1]},
            {"code": {}},
            b'{"code": 1e999}',
            {"code": 1, "extFields": "queueId"},
            {"code": 1, "extFields": [1]},
        )
        for header in bad:
            with self.assertRaises(CommandError, msg=repr(header)):
                decode_command(json_frame(header))


class BinaryHeaderTests(SynchronousTestCase):
    def test_the_frame_of_remoting_md_1_3(self) -> None:
        self.assertEqual(len(BINARY_FRAME), 0x35)
        self.assertEqual(decode_command(BINARY_FRAME), GET_MAX_OFFSET._replace(serialize_type=1))
        self.assertEqual(decode_command(BINARY_FRAME + b"body").body, b"body")

    def test_the_frame_of_remoting_md_1_3_is_written(self) -> None:
        self.assertEqual(encode_command(GET_MAX_OFFSET._replace(serialize_type=1)), BINARY_FRAME)

    @settings(deadline=None, max_examples=examples(200))
    @given(
        st.builds(
            RemotingCommand,
            code=INT16,
            opaque=INT32,
            flag=INT32,
            remark=st.none() | TEXT.filter(bool),
            ext_fields=st.dictionaries(TEXT, TEXT, max_size=4),
            body=st.binary(max_size=40),
            version=INT16,
            language=st.sampled_from(LANGUAGES),
            serialize_type=st.just(1),
        )
    )
    def test_a_command_is_read_as_it_was_written(self, command: RemotingCommand) -> None:
        self.assertEqual(decode_command(encode_command(command)), command)

    def test_an_empty_remark_is_none(self) -> None:
        command = RemotingCommand(0, remark="", serialize_type=1)
        self.assertIsNone(decode_command(encode_command(command)).remark)

    def test_a_language_without_a_number_is_written_as_another(self) -> None:
        command = RemotingCommand(0, language="NODE_JS", serialize_type=1)
        self.assertEqual(decode_command(encode_command(command)).language, "OTHER")

    def test_what_has_no_room_is_refused(self) -> None:
        long_key = {"k" * 2**15: ""}
        for bad in (RemotingCommand(2**15), RemotingCommand(0, version=2**15), RemotingCommand(0, ext_fields=long_key)):
            with self.assertRaises(CommandError):
                encode_command(bad._replace(serialize_type=1))
            encode_command(bad)

    def test_no_remark_and_no_fields(self) -> None:
        header = BINARY_HEAD.pack(28, 0, 399, 5, 1, 0) + bytes(4)
        self.assertEqual(
            decode_command(binary_frame(header)), RemotingCommand(28, 5, 1, language="JAVA", serialize_type=1)
        )

    def test_the_later_of_two_equal_keys_wins(self) -> None:
        entries = bytes.fromhex("0001 61 00000001 31  0001 61 00000001 32  0001 62 00000000")
        header = BINARY_HEAD.pack(1, 200, 0, 0, 0, 0) + len(entries).to_bytes(4, "big") + entries
        found = decode_command(binary_frame(header))
        self.assertEqual(found.ext_fields, {"a": "2", "b": ""})
        self.assertEqual(found.language, "OTHER")

    def test_a_header_that_ends_early_is_refused_at_every_byte(self) -> None:
        for length in range(len(BINARY_HEADER)):
            with self.assertRaises(CommandError, msg=f"{length} bytes"):
                decode_command(binary_frame(BINARY_HEADER[:length]))

    def test_lengths_that_reach_beyond_the_header_are_refused(self) -> None:
        remark_length_at, ext_length_at, key_length_at, value_length_at = 13, 19, 23, 32
        for at, width in ((remark_length_at, 4), (ext_length_at, 4), (key_length_at, 2), (value_length_at, 4)):
            for value in (-1, 60, 2 ** (8 * width - 1) - 1):
                header = bytearray(BINARY_HEADER)
                header[at : at + width] = value.to_bytes(width, "big", signed=True)
                with self.assertRaises(CommandError, msg=f"{value} at {at}"):
                    decode_command(binary_frame(bytes(header), bytes(100)))

    def test_text_that_is_no_utf_8_is_refused(self) -> None:
        for text in (b"hi", b"queueId", b"topic"):
            with self.assertRaises(CommandError):
                decode_command(BINARY_FRAME.replace(text, b"\xff" * len(text)))


class FrameTests(SynchronousTestCase):
    def test_a_frame_without_a_header_length_is_refused(self) -> None:
        for length in range(4):
            with self.assertRaises(CommandError):
                decode_command(bytes(length))

    def test_a_header_longer_than_its_frame_is_refused(self) -> None:
        for frame in (JSON_FRAME, BINARY_FRAME):
            with self.assertRaises(CommandError):
                decode_command(frame[:-1])

    def test_a_header_length_beyond_the_frame_is_refused_even_where_the_header_is_whole(self) -> None:
        for serialize_type, header in ((0, JSON_HEADER), (1, BINARY_HEADER)):
            for more in (1, 2, 1000):
                with self.assertRaises(CommandError, msg=f"{serialize_type=} {more=}"):
                    decode_command(HEADER_LENGTH.pack(serialize_type << 24 | len(header) + more) + header)

    def test_an_unknown_serialize_type_is_refused(self) -> None:
        for serialize_type in (2, 0x7F, 0xFF):
            with self.assertRaises(CommandError):
                decode_command(bytes([serialize_type]) + JSON_FRAME[1:])

    def test_the_longest_frame_is_java_s(self) -> None:
        overhead = len(encode_command(RemotingCommand(1)))
        self.assertEqual(FRAME_MAX_LENGTH, 16_777_212)
        longest = encode_command(RemotingCommand(1, body=bytes(FRAME_MAX_LENGTH - overhead)))
        self.assertEqual(len(longest), FRAME_MAX_LENGTH)
        with self.assertRaises(CommandError):
            encode_command(RemotingCommand(1, body=bytes(FRAME_MAX_LENGTH - overhead + 1)))

    def test_an_answer_goes_under_the_request_s_opaque_in_the_request_s_encoding(self) -> None:
        said = RemotingCommand(0, remark="hi", ext_fields={"a": "1"}, body=b"body")
        for serialize_type in (0, 1):
            request = RemotingCommand(310, opaque=-7, flag=0, language="GO", serialize_type=serialize_type)
            frame = encode_command(answer_to(request, said))
            self.assertEqual(frame[0], serialize_type)
            expected = said._replace(opaque=-7, flag=1, serialize_type=serialize_type)
            self.assertEqual(decode_command(frame), expected)

    def test_the_head_of_a_frame_says_how_long_the_whole_is(self) -> None:
        command = RemotingCommand(0, ext_fields={"a": "1"}, body=bytes(1000))
        frame = encode_command(command)
        self.assertEqual(encode_head(command) + command.body, len(frame).to_bytes(4, "big") + frame)

    def test_text_that_is_no_utf_8_is_not_written(self) -> None:
        """Names in a store may hold such bytes."""
        for serialize_type in (0, 1):
            for odd in ({"remark": "\udcff"}, {"ext_fields": {"a": "\udcff"}}, {"ext_fields": {"\udcff": "a"}}):
                with self.assertRaises(CommandError):
                    encode_command(RemotingCommand(0, serialize_type=serialize_type, **odd))

    @settings(deadline=None, max_examples=examples(300))
    @given(st.binary(max_size=60), st.sampled_from((b"", JSON_FRAME[:4], BINARY_FRAME[:9], b"\x01\0\0\x20")))
    def test_any_bytes_are_a_command_or_a_command_error(self, frame: bytes, start: bytes) -> None:
        try:
            found = decode_command(start + frame)
        except CommandError:
            return
        self.assertIsInstance(found.ext_fields, dict)

    def test_flags_tell_answers_and_one_way_requests(self) -> None:
        told = [(c.is_response, c.is_oneway) for c in (RemotingCommand(0, flag=flag) for flag in range(4))]
        self.assertEqual(told, [(False, False), (True, False), (False, True), (True, True)])
