"""Bugs planted into the parsers that the fuzzer must find.

Each is a change of what a parser does: a function is replaced, whatever its source says. ``BUGS`` has them by target.
Mutation tools (mutmut, cosmic-ray) change files and start a process for each change; here thousands of inputs a second
are tried in this process, and each bug is one that a reader can understand.
"""

import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from struct import error as StructError
from typing import Any

import numpy as np
import pytest

from rmqha.wire import command, fastjson, layout, properties, record, scan
from rmqha.wire.layout import INT16, INT32, INT64
from rmqha.wire.transfer import REPORT_HEADER, TRANSFER_HEADER, FrameError, ReportDecoder, TransferDecoder

Patch = Callable[[pytest.MonkeyPatch], None]
BLANK = INT32.pack(layout.BLANK_MAGIC_CODE)


def replace(patch: pytest.MonkeyPatch, function: Callable[..., Any], spoilt: Callable[..., Any]) -> None:
    """Put ``spoilt`` in the place of a module's function, also where other modules of ours have imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("rmqha.", "tests.fuzz.")) and name != __name__:
            for attribute, value in list(vars(module).items()):
                if value is function:
                    patch.setattr(module, attribute, spoilt)


def _also_when(cause: type[BaseException], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but an error of this type escapes as it is, although the function should have translated it."""

    def spoilt(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except ValueError as error:
            if isinstance(error.__cause__, cause):
                raise error.__cause__ from None
            raise

    return spoilt


# -- the decoder of transfers --------------------------------------------------------------------------------

_feed: Callable[..., Iterable[Any]] = TransferDecoder.feed
_finish_held: Callable[..., Any] = TransferDecoder._finish_held
_head: Callable[..., tuple[int, int]] = TransferDecoder._head


def lose_a_byte_after_a_frame_in_pieces(patch: pytest.MonkeyPatch) -> None:
    """The byte that follows a frame that came in pieces is lost."""

    def finish(decoder: Any, view: memoryview) -> Any:
        rest = yield from _finish_held(decoder, view)
        return rest[1:]

    patch.setattr(TransferDecoder, "_finish_held", finish)


def hold_a_whole_frame_back(patch: pytest.MonkeyPatch) -> None:
    """A frame that ends with the bytes that came is given only when more come."""

    def feed(decoder: Any, data: bytes) -> Any:
        frames = [*getattr(decoder, "late", ()), *_feed(decoder, data)]
        decoder.late = [frames.pop()] if frames and not decoder._held else []
        yield from frames

    patch.setattr(TransferDecoder, "feed", feed)


def forget_a_single_byte(patch: pytest.MonkeyPatch) -> None:
    """One byte of an unfinished frame is not kept."""

    def feed(decoder: Any, data: bytes) -> Any:
        if len(decoder._held) == 1:
            decoder._held = bytearray()
        yield from _feed(decoder, data)

    patch.setattr(TransferDecoder, "feed", feed)


def forget_what_is_still_unfinished(patch: pytest.MonkeyPatch) -> None:
    """A frame that more bytes do not complete is dropped."""

    def feed(decoder: Any, data: bytes) -> Any:
        held = len(decoder._held)
        yield from _feed(decoder, data)
        if held and len(decoder._held) == held + len(data):
            decoder._held = bytearray()

    patch.setattr(TransferDecoder, "feed", feed)


def _accept_frames(patch: pytest.MonkeyPatch, accepts: Callable[[int, int, int], bool]) -> None:
    """Frames are taken for which ``accepts`` holds: offset, size of the body, largest size."""

    def head(decoder: Any, view: Any) -> tuple[int, int]:
        offset, size = TRANSFER_HEADER.unpack_from(view)
        if accepts(offset, size, decoder._max_body_bytes):
            return offset, TRANSFER_HEADER.size + int(size)
        return _head(decoder, view)

    patch.setattr(TransferDecoder, "_head", head)


def accept_any_negative_size(patch: pytest.MonkeyPatch) -> None:
    _accept_frames(patch, lambda offset, size, most: size < 0 <= offset)


def accept_a_size_of_minus_one(patch: pytest.MonkeyPatch) -> None:
    _accept_frames(patch, lambda offset, size, most: size == -1 and offset >= 0)


def accept_one_byte_too_many(patch: pytest.MonkeyPatch) -> None:
    _accept_frames(patch, lambda offset, size, most: size == most + 1 and offset >= 0)


def accept_any_large_size(patch: pytest.MonkeyPatch) -> None:
    _accept_frames(patch, lambda offset, size, most: size > most and offset >= 0)


def accept_negative_offsets(patch: pytest.MonkeyPatch) -> None:
    _accept_frames(patch, lambda offset, size, most: offset < -1 and 0 <= size <= most)


def accept_an_offset_of_minus_one(patch: pytest.MonkeyPatch) -> None:
    _accept_frames(patch, lambda offset, size, most: offset == -1 and 0 <= size <= most)


def refuse_offsets_with_another_error(patch: pytest.MonkeyPatch) -> None:
    def head(decoder: Any, view: Any) -> tuple[int, int]:
        try:
            return _head(decoder, view)
        except FrameError as error:
            if "offset" in str(error):
                raise ValueError(str(error)) from error
            raise

    patch.setattr(TransferDecoder, "_head", head)


def keep_a_spare_body(patch: pytest.MonkeyPatch) -> None:
    """A decoder keeps room for a second body."""

    def head(decoder: Any, view: Any) -> tuple[int, int]:
        offset, size = _head(decoder, view)
        decoder.spare = bytearray(size)
        return offset, size

    patch.setattr(TransferDecoder, "_head", head)


def keep_all_that_came(patch: pytest.MonkeyPatch) -> None:
    def feed(decoder: Any, data: bytes) -> Any:
        decoder.log = [*getattr(decoder, "log", ()), data]
        yield from _feed(decoder, data)

    patch.setattr(TransferDecoder, "feed", feed)


def take_memory_for_claimed_bodies(patch: pytest.MonkeyPatch) -> None:
    def head(decoder: Any, view: Any) -> tuple[int, int]:
        offset, size = _head(decoder, view)
        return offset, len(bytes(size))

    patch.setattr(TransferDecoder, "_head", head)


def look_at_held_bytes_again_and_again(patch: pytest.MonkeyPatch) -> None:
    """Each piece costs time for all bytes before it."""

    def feed(decoder: Any, data: bytes) -> Any:
        for text in map(str, decoder._held):
            len(text)
        yield from _feed(decoder, data)

    patch.setattr(TransferDecoder, "feed", feed)


# -- the decoder of reports ----------------------------------------------------------------------------------

_feed_reports: Callable[..., list[int]] = ReportDecoder.feed


def _spoil_reports(patch: pytest.MonkeyPatch, spoilt: Callable[[Any, bytes], list[int]]) -> None:
    patch.setattr(ReportDecoder, "feed", spoilt)


def forget_part_of_a_report(patch: pytest.MonkeyPatch) -> None:
    def feed(decoder: Any, data: bytes) -> list[int]:
        decoder._held = b""
        return _feed_reports(decoder, data)

    _spoil_reports(patch, feed)


def lose_a_byte_after_seven(patch: pytest.MonkeyPatch) -> None:
    """After a report whose last byte came alone, a byte of the next one is lost."""

    def feed(decoder: Any, data: bytes) -> list[int]:
        had_seven = len(decoder._held) == 7
        found = _feed_reports(decoder, data)
        decoder._held = decoder._held[had_seven:]
        return found

    _spoil_reports(patch, feed)


def keep_the_last_reports(patch: pytest.MonkeyPatch) -> None:
    def feed(decoder: Any, data: bytes) -> list[int]:
        decoder.last = data
        return _feed_reports(decoder, data)

    _spoil_reports(patch, feed)


def drop_the_sign_of_reports(patch: pytest.MonkeyPatch) -> None:
    _spoil_reports(
        patch, lambda decoder, data: [offset & 0x7FFFFFFFFFFFFFFF for offset in _feed_reports(decoder, data)]
    )


def hold_a_whole_report_back(patch: pytest.MonkeyPatch) -> None:
    def feed(decoder: Any, data: bytes) -> list[int]:
        found = _feed_reports(decoder, data)
        if len(found) > 1 and not decoder._held:
            decoder._held = REPORT_HEADER.pack(found.pop())
        return found

    _spoil_reports(patch, feed)


# -- proving many records at once ----------------------------------------------------------------------------

_check_bodies, _check_lengths = scan._check_bodies, scan._check_lengths
_check_plainly, _hop, _plainly_sound = scan.check_records_plain, scan._hop, scan._is_plainly_sound


def believe_all_bodies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scan, "_check_bodies", lambda segment, body_at, body_length, stored_crc: len(body_at))


def believe_short_bodies(patch: pytest.MonkeyPatch) -> None:
    def check(segment: Any, body_at: Any, body_length: Any, stored_crc: Any) -> int:
        return _check_bodies(segment, body_at, np.where(body_length <= 4, 0, body_length), stored_crc)

    patch.setattr(scan, "_check_bodies", check)


def believe_the_place_of_many(patch: pytest.MonkeyPatch) -> None:
    """Of many records nobody looks at PHYSICALOFFSET."""

    def scan_plain(segment: Any, base: int, start: int, limit: int) -> Any:
        positions, _ = _hop(segment, start - base, limit - base)
        if len(positions) < scan.FEW_RECORDS:
            return _check_plainly(segment, base, start, limit)
        moved = bytearray(segment)
        for position in positions:
            INT64.pack_into(moved, position + layout.PHYSICAL_OFFSET_AT, base + position)
        return _check_plainly(bytes(moved), base, start, limit)

    patch.setattr(scan, "check_records_plain", scan_plain)


def _lengths(segment: Any, at: int, size: int, unchecked: str) -> tuple[int, int, bool]:
    """Position and length of a record's body, and whether magic code and lengths are sound but for one rule.

    Another notation of the rules in ``scan._check_lengths``: one record, one rule after another.
    """
    magic, sys_flag = INT32.unpack_from(segment, at + 4)[0], INT32.unpack_from(segment, at + layout.SYS_FLAG_AT)[0]
    is_v2 = magic == layout.MESSAGE_MAGIC_CODE_V2
    body_at = at + layout.BODY_AT + layout.hosts_extra(sys_flag)
    room = size - (body_at - at) - (layout.FIXED_BYTES - layout.BODY_AT) - is_v2
    body_length = topic_length = properties_length = 0
    sound = room >= 0
    if sound:
        (body_length,) = INT32.unpack_from(segment, body_at - 4)
        sound = body_length <= room
    if sound:
        topic_at = max(at, body_at + body_length)
        (topic_length,) = INT16.unpack_from(segment, topic_at) if is_v2 else layout.INT8.unpack_from(segment, topic_at)
        sound = topic_length <= room - body_length
    if sound:
        (properties_length,) = INT16.unpack_from(segment, max(at, topic_at + 1 + is_v2 + topic_length))
    most = room - body_length - topic_length
    broken = {
        "magic": magic not in (layout.MESSAGE_MAGIC_CODE, layout.MESSAGE_MAGIC_CODE_V2),
        "body": body_length < 0,
        "topic": topic_length < 0,
        "properties": properties_length != most,
    }
    del broken[unchecked]
    return body_at, body_length, sound and magic < 0 and 0 <= properties_length <= most and not any(broken.values())


def _believe_lengths(patch: pytest.MonkeyPatch, unchecked: str) -> None:
    def check(segment: Any, at: Any, total_size: Any) -> Any:
        found = []
        for position, size in zip(at.tolist(), total_size.tolist(), strict=True):
            try:
                found.append(_lengths(segment, position, size, unchecked))
            except StructError:
                found.append((position, 0, False))
        body_at, body_length, sound = zip(*found, strict=True)
        return np.array(body_at, dtype=np.int64), np.array(body_length, dtype=np.int64), np.array(sound, dtype=np.bool_)

    patch.setattr(scan, "_check_lengths", check)


def count_the_wrong_host(patch: pytest.MonkeyPatch) -> None:
    """The length of the store host is taken for that of the born host."""

    def extra(segment: Any, at: Any) -> Any:
        is_v6 = (scan._gather(segment, at + layout.SYS_FLAG_AT, ">i4") & layout.STOREHOSTADDRESS_V6_FLAG) != 0
        return np.where(is_v6, layout.IPV6_EXTRA_BYTES, 0)

    patch.setattr(scan, "_born_host_extra", extra)


def hop_over_the_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scan, "_hop", lambda segment, position, limit: _hop(segment, position, limit + 1))


def count_the_first_wrong_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scan, "_run_length", lambda sound: len(sound) if sound.all() else int(np.argmin(sound)) + 1)


# -- proving a few records -----------------------------------------------------------------------------------


def _believe_few(patch: pytest.MonkeyPatch, mend: Callable[[bytearray, int, int, int], None]) -> None:
    """Each record is mended by ``mend`` (bytes, base, begin, end) in a copy before it is looked at."""

    def plainly(view: memoryview, base: int, begin: int, end: int) -> bool:
        mended = bytearray(view[:end])
        with suppress(StructError, IndexError):
            mend(mended, base, begin, end)
        return _plainly_sound(memoryview(mended), base, begin, end)

    patch.setattr(scan, "_is_plainly_sound", plainly)


def _body_of(data: bytearray, begin: int) -> tuple[int, int]:
    """Where the body of a record with IPv4 hosts is, and its length."""
    body_at = begin + layout.BODY_AT
    return body_at, INT32.unpack_from(data, body_at - 4)[0]


def believe_the_place_of_few(patch: pytest.MonkeyPatch) -> None:
    _believe_few(
        patch,
        lambda data, base, begin, end: INT64.pack_into(data, begin + layout.PHYSICAL_OFFSET_AT, base + begin),
    )


def believe_that_properties_reach_the_end(patch: pytest.MonkeyPatch) -> None:
    def mend(data: bytearray, base: int, begin: int, end: int) -> None:
        body_at, length = _body_of(data, begin)
        properties_at = body_at + length + 1 + data[body_at + length] + INT16.size
        (stored,) = INT16.unpack_from(data, properties_at - INT16.size)
        if 0 <= stored < end - properties_at:
            INT16.pack_into(data, properties_at - INT16.size, end - properties_at)

    _believe_few(patch, mend)


def believe_negative_body_lengths(patch: pytest.MonkeyPatch) -> None:
    """A record whose body has less than nothing passes."""

    def plainly(view: memoryview, base: int, begin: int, end: int) -> bool:
        return _body_of(bytearray(view[begin:end]), 0)[1] < 0 or _plainly_sound(view, base, begin, end)

    patch.setattr(scan, "_is_plainly_sound", plainly)


def believe_the_bodies_of_few(patch: pytest.MonkeyPatch) -> None:
    def mend(data: bytearray, base: int, begin: int, end: int) -> None:
        body_at, length = _body_of(data, begin)
        if 0 < length <= end - body_at:
            INT32.pack_into(data, begin + layout.CRC_AT, record.body_crc(data[body_at : body_at + length]))

    _believe_few(patch, mend)


def take_long_hosts_for_short_ones(patch: pytest.MonkeyPatch) -> None:
    """The flags of IPv6 hosts are not looked at."""

    def mend(data: bytearray, base: int, begin: int, end: int) -> None:
        (flags,) = INT32.unpack_from(data, begin + layout.SYS_FLAG_AT)
        INT32.pack_into(data, begin + layout.SYS_FLAG_AT, flags & ~scan.IPV6_FLAGS)

    _believe_few(patch, mend)


# -- the reference for records -------------------------------------------------------------------------------

_check_record, _decode_record, _peek_size = record.check_record, record.decode_record, record.peek_size
_take_part, _inflated_facts = record._take, record._inflated_facts


def _spoil_check(patch: pytest.MonkeyPatch, spoilt: Callable[[Any, int, int, int], Any]) -> None:
    replace(patch, _check_record, spoilt)


def believe_any_place(patch: pytest.MonkeyPatch) -> None:
    def check(view: Any, position: int, physical_offset: int, room: int) -> Any:
        mended = bytearray(view)
        if len(mended) - position >= layout.PHYSICAL_OFFSET_AT + INT64.size:
            INT64.pack_into(mended, position + layout.PHYSICAL_OFFSET_AT, physical_offset)
        is_blank = mended[position + 4 : position + 8] == BLANK
        return _check_record(view if is_blank else mended, position, physical_offset, room)

    _spoil_check(patch, check)


def check_the_crc_of_nothing(patch: pytest.MonkeyPatch) -> None:
    def check(view: Any, position: int, physical_offset: int, room: int) -> Any:
        found = _check_record(view, position, physical_offset, room)
        if isinstance(found, record.Record) and not found.body and found.body_crc:
            raise record.RecordError("the CRC of an empty body")
        return found

    _spoil_check(patch, check)


def accept_short_blanks(patch: pytest.MonkeyPatch) -> None:
    def check(view: Any, position: int, physical_offset: int, room: int) -> Any:
        try:
            return _check_record(view, position, physical_offset, room)
        except record.RecordError as error:
            size = INT32.unpack_from(view, position)[0] if str(error).startswith("a blank of") else room
            if size < room:
                return record.Blank(size)
            raise

    _spoil_check(patch, check)


def accept_records_beyond_their_segment(patch: pytest.MonkeyPatch) -> None:
    def check(view: Any, position: int, physical_offset: int, room: int) -> Any:
        if len(view) - position >= 8 <= room and bytes(view[position + 4 : position + 8]) != BLANK:
            room = max(room, INT32.unpack_from(view, position)[0])
        return _check_record(view, position, physical_offset, room)

    _spoil_check(patch, check)


def wait_for_what_cannot_come(patch: pytest.MonkeyPatch) -> None:
    """A segment's last bytes, too few for anything, pass for a record that is on its way."""

    def check(view: Any, position: int, physical_offset: int, room: int) -> Any:
        if 0 <= room < record.END_FILE_MIN_BLANK_LENGTH:
            raise record.IncompleteRecord("more may come")
        return _check_record(view, position, physical_offset, room)

    _spoil_check(patch, check)


def look_at_all_bytes_for_each_record(patch: pytest.MonkeyPatch) -> None:
    def check(view: Any, position: int, physical_offset: int, room: int) -> Any:
        for byte in view:
            len(str(byte))
        return _check_record(view, position, physical_offset, room)

    _spoil_check(patch, check)


def forget_the_size_of_hosts(patch: pytest.MonkeyPatch) -> None:
    """Nobody checks that a record is large enough for its hosts."""

    decoding: list[bool] = []

    def decode(view: Any, position: int = 0) -> Any:
        decoding.append(True)
        try:
            return _decode_record(view, position)
        finally:
            decoding.pop()

    patch.setattr(record, "hosts_extra", lambda flags: 0 if decoding else layout.hosts_extra(flags))
    replace(patch, _decode_record, decode)


def accept_bytes_after_the_parts(patch: pytest.MonkeyPatch) -> None:
    def decode(view: Any, position: int = 0) -> Any:
        try:
            return _decode_record(view, position)
        except record.RecordError as error:
            if not str(error).startswith("the parts take"):
                raise
            shorter = bytearray(view)
            INT32.pack_into(shorter, position, int(str(error).split()[3]))
            return _decode_record(shorter, position)

    replace(patch, _decode_record, decode)


def take_negative_lengths(patch: pytest.MonkeyPatch) -> None:
    def take(view: Any, at: int, length: int, end: int, name: str) -> tuple[bytes, int]:
        return (bytes(view[at : at + length]), at + length) if length < 0 else _take_part(view, at, length, end, name)

    patch.setattr(record, "_take", take)


def replace_bytes_that_are_no_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(record, "_to_str", lambda raw: raw.decode("utf-8", "replace"))


def fail_at_bytes_that_are_no_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(record, "_to_str", lambda raw: raw.decode("utf-8"))


def fail_at_bodies_that_do_not_inflate(patch: pytest.MonkeyPatch) -> None:
    def facts(body: bytes) -> Any:
        zlib.decompressobj().decompress(body, 1)
        return _inflated_facts(body)

    patch.setattr(record, "_inflated_facts", facts)


def accept_sizes_that_are_too_small(patch: pytest.MonkeyPatch) -> None:
    def peek(view: Any, position: int, available: int) -> tuple[int, int]:
        try:
            return _peek_size(view, position, available)
        except record.RecordError as error:
            size, magic = layout.BLANK_HEADER.unpack_from(view, position) if "too small" in str(error) else (-1, 0)
            if size >= 0:
                return size, magic
            raise

    replace(patch, _peek_size, peek)


def take_memory_for_claimed_records(patch: pytest.MonkeyPatch) -> None:
    def peek(view: Any, position: int, available: int) -> tuple[int, int]:
        size, magic = _peek_size(view, position, available)
        return len(bytes(size)), magic

    replace(patch, _peek_size, peek)


# -- properties ----------------------------------------------------------------------------------------------

_parse = properties.parse_properties


def _pairs(stored: str) -> list[tuple[str, str, str]]:
    return [part.partition(properties.NAME_VALUE_SEPARATOR) for part in stored.split(properties.PROPERTY_SEPARATOR)]


def keep_empty_names(patch: pytest.MonkeyPatch) -> None:
    replace(patch, _parse, lambda stored: {name: value for name, mark, value in _pairs(stored) if mark and value})


def keep_empty_values_of_whole_texts(patch: pytest.MonkeyPatch) -> None:
    """Where each part has a name and a mark, empty values stay."""

    def parse(stored: str) -> dict[str, str]:
        pairs = _pairs(stored)
        whole = all(name and mark for name, mark, _ in pairs)
        return {name: value for name, _, value in pairs} if whole else _parse(stored)

    replace(patch, _parse, parse)


def keep_empty_values_of_torn_texts(patch: pytest.MonkeyPatch) -> None:
    """Where a part has no mark, empty values of the others stay."""

    def parse(stored: str) -> dict[str, str]:
        pairs = _pairs(stored)
        torn = not all(mark for _, mark, _ in pairs)
        return {name: value for name, mark, value in pairs if name and mark} if torn else _parse(stored)

    replace(patch, _parse, parse)


def end_names_at_the_last_mark(patch: pytest.MonkeyPatch) -> None:
    def parse(stored: str) -> dict[str, str]:
        mark, parts = properties.NAME_VALUE_SEPARATOR, stored.split(properties.PROPERTY_SEPARATOR)
        pairs = [part.rpartition(mark) for part in parts]
        return {name: value for name, found, value in pairs if found and name and value}

    replace(patch, _parse, parse)


# -- commands ------------------------------------------------------------------------------------------------

_decode_command, _decode_binary, _decode_json = command.decode_command, command._decode_binary, command._decode_json
_take_bytes, _decode_entries = command._take, command._decode_entries


def cut_headers_off_at_the_frame(patch: pytest.MonkeyPatch) -> None:
    """A header that claims more than the frame holds is taken as long as it is."""

    def decode(frame: bytes) -> Any:
        if len(frame) >= 4:
            (word,) = command.HEADER_LENGTH.unpack_from(frame)
            length = min(word & 0xFFFFFF, len(frame) - 4)
            frame = command.HEADER_LENGTH.pack(word & ~0xFFFFFF | length) + frame[4:]
        return _decode_command(frame)

    replace(patch, _decode_command, decode)


def fail_at_frames_without_a_header(patch: pytest.MonkeyPatch) -> None:
    def decode(frame: bytes) -> Any:
        if frame:
            command.HEADER_LENGTH.unpack_from(frame)
        return _decode_command(frame)

    replace(patch, _decode_command, decode)


def take_more_than_is_left(patch: pytest.MonkeyPatch) -> None:
    def take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
        return (data[at : at + length], at + length) if 0 <= length <= len(data) else _take_bytes(data, at, length)

    patch.setattr(command, "_take", take)


def take_less_than_nothing(patch: pytest.MonkeyPatch) -> None:
    def take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
        return (data[at : at + length], at + length) if length < 0 else _take_bytes(data, at, length)

    patch.setattr(command, "_take", take)


def read_an_empty_name_for_ever(patch: pytest.MonkeyPatch) -> None:
    def entries(data: bytes) -> dict[str, str]:
        while data.startswith(bytes(2)):
            pass
        return _decode_entries(data)

    patch.setattr(command, "_decode_entries", entries)


def accept_any_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(command, "_int32", int)


# -- fastjson ------------------------------------------------------------------------------------------------

_Reader = fastjson._Reader
_number, _unescaped = _Reader._number, _Reader._unescaped


def nest_without_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Reader, "_check_depth", lambda reader, depth: None)


def accept_infinity(patch: pytest.MonkeyPatch) -> None:
    def number(reader: Any, token: str) -> Any:
        try:
            return _number(reader, token)
        except fastjson.FastjsonError as error:
            if "too large" in str(error):
                return float(token)
            raise

    patch.setattr(_Reader, "_number", number)


def leave_surrogates_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Reader, "_string", lambda reader, token: fastjson._ESCAPE.sub(reader._unescaped, token[1:-1]))


def fail_at_unknown_escapes(patch: pytest.MonkeyPatch) -> None:
    def unescaped(reader: Any, match: Any) -> str:
        return _unescaped(reader, match) if match[1] or match[2] else fastjson._ESCAPED[match[3]]

    patch.setattr(_Reader, "_unescaped", unescaped)


def ignore_what_follows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Reader, "whole_text", lambda reader: reader._value(*reader._token(), depth=0))


def round_large_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fastjson, "_may_have_large_numbers", lambda text: False)


def escape_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fastjson, "_quote", lambda text: f'"{text}"')


def _escaping(owner: Any, name: str, cause: type[BaseException]) -> Patch:
    """A parser lets errors of this type escape."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        function = getattr(owner, name)
        spoilt = _also_when(cause, function)
        if isinstance(owner, type):
            patch.setattr(owner, name, spoilt)
        else:
            replace(patch, function, spoilt)

    plant.__name__ = f"{name} lets {cause.__name__} escape"
    return plant


def _not_looking_at(unchecked: str) -> Patch:
    plant = partial(_believe_lengths, unchecked=unchecked)
    plant.__name__ = f"lengths without {unchecked}"  # type: ignore[attr-defined]  # it has a __dict__
    return plant


BUGS: dict[str, list[Patch]] = {
    "transfer": [
        lose_a_byte_after_a_frame_in_pieces,
        hold_a_whole_frame_back,
        forget_a_single_byte,
        forget_what_is_still_unfinished,
        accept_any_negative_size,
        accept_a_size_of_minus_one,
        accept_one_byte_too_many,
        accept_any_large_size,
        accept_negative_offsets,
        accept_an_offset_of_minus_one,
        refuse_offsets_with_another_error,
        keep_a_spare_body,
        keep_all_that_came,
        take_memory_for_claimed_bodies,
        look_at_held_bytes_again_and_again,
    ],
    "report": [
        forget_part_of_a_report,
        lose_a_byte_after_seven,
        keep_the_last_reports,
        drop_the_sign_of_reports,
        hold_a_whole_report_back,
    ],
    "record": [
        believe_all_bodies,
        believe_short_bodies,
        believe_the_place_of_many,
        _not_looking_at("topic"),
        _not_looking_at("body"),
        _not_looking_at("magic"),
        _not_looking_at("properties"),
        count_the_wrong_host,
        hop_over_the_limit,
        count_the_first_wrong_one,
        believe_the_place_of_few,
        believe_that_properties_reach_the_end,
        believe_negative_body_lengths,
        believe_the_bodies_of_few,
        take_long_hosts_for_short_ones,
        believe_any_place,
        check_the_crc_of_nothing,
        accept_short_blanks,
        accept_records_beyond_their_segment,
        wait_for_what_cannot_come,
        look_at_all_bytes_for_each_record,
        forget_the_size_of_hosts,
        accept_bytes_after_the_parts,
        take_negative_lengths,
        replace_bytes_that_are_no_text,
        fail_at_bytes_that_are_no_text,
        fail_at_bodies_that_do_not_inflate,
        accept_sizes_that_are_too_small,
        take_memory_for_claimed_records,
    ],
    "properties": [
        keep_empty_names,
        keep_empty_values_of_whole_texts,
        keep_empty_values_of_torn_texts,
        end_names_at_the_last_mark,
    ],
    "command": [
        cut_headers_off_at_the_frame,
        fail_at_frames_without_a_header,
        take_more_than_is_left,
        take_less_than_nothing,
        accept_any_number,
        _escaping(command, "_decode_binary", UnicodeDecodeError),
        _escaping(command, "_decode_binary", StructError),
        _escaping(command, "_decode_json", KeyError),
        _escaping(command, "_decode_json", AttributeError),
    ],
    "fastjson": [
        nest_without_limit,
        accept_infinity,
        leave_surrogates_apart,
        fail_at_unknown_escapes,
        ignore_what_follows,
        round_large_numbers,
        escape_nothing,
        _escaping(_Reader, "_number", ValueError),
        _escaping(fastjson, "loads_lenient", UnicodeDecodeError),
    ],
}
"""By target. ``read_an_empty_name_for_ever`` is not here: it takes as long as a hang is let go on."""
SLOWLY_FOUND: frozenset[Patch] = frozenset(
    {
        accept_sizes_that_are_too_small,
        fail_at_bodies_that_do_not_inflate,
        forget_the_size_of_hosts,
        take_memory_for_claimed_records,
    }
)
"""Only ``make proofs`` looks for these."""
