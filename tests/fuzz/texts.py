"""The small formats: a message's properties, remoting commands, fastjson's JSON."""

import json
import math
import re
from random import Random
from typing import Any

from rmqha.wire import command, fastjson, properties
from rmqha.wire.command import (
    BINARY_HEAD,
    HEADER_LENGTH,
    INT16,
    INT32,
    ROCKETMQ_SERIALIZE_TYPE,
    CommandError,
    RemotingCommand,
)
from rmqha.wire.fastjson import MAX_DEPTH, FastjsonError
from tests.fuzz.target import Field, Shape, Target, require
from tests.wire.test_properties import parse_as_java

JSON_SIGN = re.compile(rb"""[{}\[\],:"']""")
JSON_TOKENS = (
    *(bytes([sign]) for sign in b"{}[],:\"'\\-$."),
    *(
        b"null",
        b"true",
        b"NaN",
        b"0",
        b"-0",
        b"1e999",
        b"1.5E-3",
        b"9" * 20,
        b"9" * 5000,
        b"1_0",
        b"\\u",
        b"\\ud800",
        b"\\x4",
    ),
    *(
        b"\xff",
        b"\xe2\x80\xa8",
        b"\xef\xbc\x91",
        b"\0",
        b"\f",
        b"{0:5}",
        b"[" * 90,
        b'{"a":' * 1000,
        b"[" * 1010 + b"]" * 1010,
    ),
)


def check_properties(data: bytes) -> int:
    """Any string is read as Java reads it, and what was read is written and read back the same."""
    stored = data.decode("utf-8", "surrogateescape")
    found = properties.parse_properties(stored)
    require(found == parse_as_java(stored), "properties are read as Java reads them", found)
    again = properties.parse_properties(properties.format_properties(found))
    require(list(again.items()) == list(found.items()), "what is written is read back", found, again)
    return len(data)


def parse_stored(data: bytes) -> object:
    """The parser alone."""
    return properties.parse_properties(data.decode("utf-8", "surrogateescape"))


def properties_seeds(rng: Random) -> list[bytes]:
    """Properties of both writers' styles, few and many."""
    usual = b"KEYS\x01k1 k2\x02UNIQ_KEY\x017F000001\x02TAGS\x01A"
    many = b"\x02".join(b"n%d\x01%s" % (rng.randrange(50), b"v" * rng.randrange(100)) for _ in range(400))
    return [b"", usual, usual + b"\x02", b"a\x01b\x02a\x01c", b"a\x01\x02\x01b\x02\x02c", b"a\x01b\x01c", many]


def separators(data: bytes) -> list[int]:
    return [0, *(at for at, byte in enumerate(data) if byte in b"\x01\x02")]


def check_command(data: bytes) -> int:
    """A frame is a command or a CommandError, and the command survives its own encoding."""
    try:
        found = command.decode_command(data)
    except CommandError:
        return len(data)
    require(_fits(found), "numbers fit their fields", found)
    body_at = HEADER_LENGTH.size + int.from_bytes(data[1:4], "big")
    require(body_at <= len(data) and found.body == data[body_at:], "the body follows the header", found)
    if data[0] == ROCKETMQ_SERIALIZE_TYPE:
        stored = binary_header_by_the_book(data[HEADER_LENGTH.size : body_at])
        require(stored == (found.remark or "", found.ext_fields), "the header is what the frame holds", found, stored)
    again = command.decode_command(command.encode_command(found))
    require(again == found, "what is encoded is decoded again", found, again)
    return len(data)


def binary_header_by_the_book(header: bytes) -> tuple[str, dict[str, str]] | None:
    """Remark and fields, as the format's table reads; None where a length is wrong."""
    try:
        remark, rest = _counted(header[BINARY_HEAD.size - 4 :], 4)
        entries, _ = _counted(rest, 4)
        fields = {}
        while entries:
            key, entries = _counted(entries, 2)
            value, entries = _counted(entries, 4)
            fields[key.decode()] = value.decode()
    except ValueError:
        return None
    return remark.decode(), fields


def _counted(data: bytes, width: int) -> tuple[bytes, bytes]:
    """As many bytes as the number before them says, and what follows. Raises ValueError."""
    length = int.from_bytes(data[:width], "big", signed=True)
    if not 0 <= length <= len(data) - width:
        raise ValueError(length)
    return data[width : width + length], data[width + length :]


def _fits(found: RemotingCommand) -> bool:
    return all(-(2**31) <= number < 2**31 for number in (found.code, found.opaque, found.flag, found.version))


def parse_command(data: bytes) -> object:
    """The decoder alone."""
    try:
        return command.decode_command(data)
    except CommandError:
        return None


def command_seeds(rng: Random) -> list[bytes]:
    """Frames in both header encodings."""
    fields = {f"key{number}": "v" * rng.randrange(50) for number in range(100)}
    commands = [
        RemotingCommand(30, 7, 0, "hi", {"queueId": "3", "topic": "T"}, b"body"),
        RemotingCommand(28),
        RemotingCommand(0, -1, 1, "", {"": "é漢😀"}, b"{0:5}"),
        RemotingCommand(26, 1, 2, "r" * 300, fields, bytes(3000)),
    ]
    as_json = [command.encode_command(one) for one in commands]
    odd = b'{"code":"3","flag":1.0,"extFields":{"a":null,"b":[1,{}],"c":true,"d":1e9},"language":5,"version":null}'
    small = (b'{"code":1,"extFields":{"a":1}}', b'{"code":1,"remark":2,"language":3}')
    return [*as_json, *map(_binary_frame, commands), *(HEADER_LENGTH.pack(len(raw)) + raw for raw in (odd, *small))]


def _binary_frame(one: RemotingCommand) -> bytes:
    remark = (one.remark or "").encode()
    header = BINARY_HEAD.pack(one.code, 3, one.version, one.opaque, one.flag, len(remark)) + remark
    entries = b"".join(
        INT16.pack(len(key.encode())) + key.encode() + INT32.pack(len(value.encode())) + value.encode()
        for key, value in one.ext_fields.items()
    )
    header += INT32.pack(len(entries)) + entries
    return HEADER_LENGTH.pack(1 << 24 | len(header)) + header + one.body


def command_signs(data: bytes) -> list[int]:
    """The header and, for JSON, each sign in it."""
    return [0, *json_signs(data)] if data[:1] == b"\0" else [0]


def command_fields(data: bytes, start: int) -> list[Field]:
    """The lengths of a frame in the binary encoding; of a JSON frame only the first two are."""
    length = Field(1, 3)
    remark_at = HEADER_LENGTH.size + BINARY_HEAD.size
    remark_length = int.from_bytes(data[remark_at - 4 : remark_at], "big")
    entries_at = remark_at + remark_length + INT32.size
    key_length = int.from_bytes(data[entries_at : entries_at + 2], "big")
    return [
        Field(0, 1),
        length,
        Field(remark_at - 4, 4),
        Field(entries_at - 4, 4),
        Field(entries_at, 2),
        Field(entries_at + 2 + key_length, 4),
    ]


def _repair_header_length(data: bytearray) -> None:
    """A JSON header ends with its last brace."""
    if data[:1] == b"\0":
        data[1:4] = max(0, data.rfind(b"}") + 1 - HEADER_LENGTH.size).to_bytes(3, "big")


def check_fastjson(data: bytes) -> int:
    """Any text is a value or a FastjsonError; JSON is read as JSON; a value survives its own writing."""
    strict = _strict_json(data)
    is_json = strict is not _NO_JSON and _depth(strict) <= MAX_DEPTH and not _holds_infinity(strict)
    try:
        found = fastjson.loads_lenient(data)
    except FastjsonError as error:
        require(0 <= error.position <= len(data), "an error's position lies in the text", error)
        require(not is_json, "JSON is never refused", strict)
        return len(data)
    if is_json:
        require(strict == found, "JSON is read as JSON", found, strict)
        lenient = fastjson.loads_lenient(b"\f" + data)  # a blank to fastjson only: our own reader reads the rest
        require(lenient == strict, "JSON is read as JSON by our own reader", lenient, strict)
    _check_refused(data + b" ]")
    if _depth(found) < MAX_DEPTH:
        for written in (fastjson.dumps_compact(found), fastjson.dumps_pretty(found)):
            again = fastjson.loads_lenient(written)
            require(again == _as_written(found), "what is written is read back", found, again)
    return len(data)


def _check_refused(data: bytes) -> None:
    try:
        found = fastjson.loads_lenient(data)
    except FastjsonError:
        return
    require(False, "nothing may follow a value", found)


_NO_JSON = object()


def _strict_json(data: bytes) -> Any:
    """What Python's own reader makes of it."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _NO_JSON


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _inner(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        level = [inner for outer in level for inner in _inner(outer)]
        depth += 1
    return depth


def _holds_infinity(value: Any) -> bool:
    level = [value]
    while level:
        if any(isinstance(one, float) and math.isinf(one) for one in level):
            return True
        level = [inner for outer in level for inner in _inner(outer)]
    return False


def _as_written(value: Any) -> Any:
    """The value as it can be written: entries without a value are left out, half a surrogate pair is a "?"."""
    if isinstance(value, dict):
        return {_as_written(key): _as_written(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_as_written(inner) for inner in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def parse_fastjson(data: bytes) -> object:
    """The reader alone."""
    try:
        return fastjson.loads_lenient(data)
    except FastjsonError:
        return None


def fastjson_seeds(rng: Random) -> list[bytes]:
    """What brokers keep in their files, and every liberty that fastjson takes."""
    offsets = {f"Topic{number}@group": dict.fromkeys(range(8), rng.randrange(2**40)) for number in range(100)}
    table = {"offsetTable": offsets, "dataVersion": {"counter": 3, "timestamp": 1795000000000}}
    small: dict[str, Any] = {"a": [1.5, None, {"b": "é漢😀"}], "c": True}
    liberties = (
        """{0:5,'a':"it's",b:[1,2.50,-3e2,null,true,],{"queueId":0}:'\\x41\\u00e9\\'',"""
        """\f$c:{}, "d":"\\ud83d\\ude00",}"""
    )
    return [
        *(fastjson.dumps_compact(value) for value in (table, small)),
        *(fastjson.dumps_pretty(value) for value in (table, small)),
        liberties.encode(),
        b'{"a":[1,{"b":null}],"c":"\\n\\"","d":-1.5e3}',
        *(b'{"a":1,"b":[2,3]}', b"[1,2,3]", b'"\\ud83d\\ude00"', b"0"),
        b"[" * 99 + b"]" * 99,
    ]


def json_signs(data: bytes) -> list[int]:
    return [0, *(match.start() for match in JSON_SIGN.finditer(data))]


PROPERTIES = Target(
    name="properties",
    seeds=properties_seeds,
    shape=Shape(separators, tokens=(b"\x01", b"\x02", b"\x01\x02", b"\x02\x02", b"KEYS\x01", b"\xc3\xa9", b"\xff")),
    check=check_properties,
    parse=parse_stored,
    weight=2,
)
COMMAND = Target(
    name="command",
    seeds=command_seeds,
    shape=Shape(
        command_signs, command_fields, _repair_header_length, tokens=(*JSON_TOKENS, b'"code":', b'"extFields":{"a":')
    ),
    check=check_command,
    parse=parse_command,
    weight=2,
)
FASTJSON = Target(
    name="fastjson",
    seeds=fastjson_seeds,
    shape=Shape(json_signs, tokens=JSON_TOKENS),
    check=check_fastjson,
    parse=parse_fastjson,
    weight=2,
)
