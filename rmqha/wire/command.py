"""A remoting command and its frame (spec/remoting.md 1).

::

    0 i32 totalLength of what follows   4 u8 serializeType   5 u24 headerLength   8 header, then the body

Both header encodings are read; JSON is written, which every peer reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Any

import orjson

FRAME_MAX_LENGTH = 16 * 1024 * 1024 - 4
"""The largest totalLength."""
JSON_SERIALIZE_TYPE = 0
ROCKETMQ_SERIALIZE_TYPE = 1
OUR_VERSION = 399
OUR_LANGUAGE = "PYTHON"
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS")

HEADER_LENGTH = Struct(">I")
BINARY_HEAD = Struct(">hBhiii")  # code, language, version, opaque, flag, remarkLength
INT32 = Struct(">i")
INT16 = Struct(">h")


class RequestCode(IntEnum):
    """Codes of the requests that we send or answer (spec/remoting.md 2)."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    SEND_MESSAGE_V2 = 310
    VIEW_BROKER_STATS_DATA = 315
    SEND_BATCH_MESSAGE = 320
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERM_OF_BROKER = 327
    LITE_PULL_MESSAGE = 361


class ResponseCode(IntEnum):
    """Codes of answers (spec/remoting.md 4.1)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    CONSUMER_NOT_ONLINE = 206


class CommandError(ValueError):
    """The bytes are no remoting command."""


@dataclass(frozen=True, slots=True)
class RemotingCommand:
    """A request or an answer. ``ext_fields`` is the custom header; ``body`` empty means none."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext_fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: int = OUR_VERSION
    language: str = OUR_LANGUAGE

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)


def encode_command(command: RemotingCommand, opaque: int | None = None, flag: int | None = None) -> bytes:
    """The frame without its leading totalLength; ``opaque`` and ``flag`` stand in for the command's own, if given.

    Raises CommandError if it would be too long.
    """
    header = orjson.dumps(
        {
            "code": int(command.code),
            "extFields": dict(command.ext_fields),
            "flag": command.flag if flag is None else flag,
            "language": command.language,
            "opaque": command.opaque if opaque is None else opaque,
            **({} if command.remark is None else {"remark": command.remark}),
            "serializeTypeCurrentRPC": "JSON",
            "version": command.version,
        }
    )
    frame = HEADER_LENGTH.pack(JSON_SERIALIZE_TYPE << 24 | len(header)) + header + command.body
    if len(frame) > FRAME_MAX_LENGTH:
        raise CommandError(f"a command of {len(frame)} bytes is longer than {FRAME_MAX_LENGTH}")
    return frame


def decode_command(frame: bytes) -> RemotingCommand:
    """From a frame without its leading totalLength. Raises CommandError."""
    if len(frame) < HEADER_LENGTH.size:
        raise CommandError(f"a frame of {len(frame)} bytes has no header")
    (word,) = HEADER_LENGTH.unpack_from(frame)
    serialize_type, header_length = word >> 24, word & 0xFFFFFF
    end = HEADER_LENGTH.size + header_length
    if end > len(frame):
        raise CommandError(f"a header of {header_length} bytes in a frame of {len(frame)}")
    header, body = frame[HEADER_LENGTH.size : end], frame[end:]
    if serialize_type == JSON_SERIALIZE_TYPE:
        return _decode_json(header, body)
    if serialize_type == ROCKETMQ_SERIALIZE_TYPE:
        return _decode_binary(header, body)
    raise CommandError(f"serialize type {serialize_type} is neither JSON nor ROCKETMQ")


def _decode_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        content = orjson.loads(header)
        ext_fields = content.get("extFields") or {}
        return RemotingCommand(
            code=_int32(content["code"]),
            opaque=_int32(content.get("opaque", 0)),
            flag=_int32(content.get("flag", 0)),
            remark=None if content.get("remark") is None else _scalar(content["remark"]),
            ext_fields={str(k): _scalar(v) for k, v in ext_fields.items() if v is not None},
            body=body,
            version=_int32(content.get("version", 0)),
            language=_language(content.get("language")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CommandError(f"the header is no JSON object of a command: {error!r}") from error


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_length = BINARY_HEAD.unpack_from(header)
        at = BINARY_HEAD.size
        remark, at = _take(header, at, remark_length)
        (ext_length,) = INT32.unpack_from(header, at)
        entries, _ = _take(header, at + INT32.size, ext_length)
        return RemotingCommand(
            code=code,
            opaque=opaque,
            flag=flag,
            remark=remark.decode("utf-8") or None,
            ext_fields=_decode_entries(entries),
            body=body,
            version=version,
            language=_language(language),
        )
    except (StructError, UnicodeDecodeError) as error:
        raise CommandError(f"the header is no ROCKETMQ header: {error}") from error


def _decode_entries(entries: bytes) -> dict[str, str]:
    fields, at = {}, 0
    while at < len(entries):
        key, at = _take(entries, at + INT16.size, INT16.unpack_from(entries, at)[0])
        value, at = _take(entries, at + INT32.size, INT32.unpack_from(entries, at)[0])
        fields[key.decode("utf-8")] = value.decode("utf-8")
    return fields


def _take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if not 0 <= length <= len(data) - at:
        raise CommandError(f"a length of {length} where {len(data) - at} bytes are left")
    return data[at : at + length], at + length


def _int32(value: Any) -> int:
    number = int(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is no signed 32-bit number")
    return number


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _language(value: Any) -> str:
    if isinstance(value, int):
        return LANGUAGES[value] if 0 <= value < len(LANGUAGES) else "OTHER"
    return str(value or "OTHER")
