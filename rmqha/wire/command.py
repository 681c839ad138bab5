"""A remoting command and its frame (spec/remoting.md 1).

::

    0 i32 totalLength of what follows   4 u8 serializeType   5 u24 headerLength   8 header, then the body

This module reads and writes both header encodings. An answer has the encoding of its request. A broker encodes and
decodes commands for each message, so the common case is fast: all fields are strings, all numbers are numbers.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

FRAME_MAX_LENGTH = 16 * 1024 * 1024 - 4
"""The largest totalLength."""
MAX_EXT_FIELDS = 1024
JSON_SERIALIZE_TYPE = 0
ROCKETMQ_SERIALIZE_TYPE = 1
OUR_VERSION = 399
OUR_LANGUAGE = "PYTHON"
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS")

LANGUAGE_CODES = {name: code for code, name in enumerate(LANGUAGES)}
MARK_OPAQUE = -2_000_000_001
"""Stands for the opaque in the text of an ``AnswerForm``."""
NO_FIELDS: Mapping[str, str] = MappingProxyType({})
ONLY_TEXTS = {str}

FRAME_HEAD = Struct(">iI")  # totalLength; serializeType and headerLength
TOTAL_LENGTH_BYTES = 4
HEADER_LENGTH = Struct(">I")
FOUR_INT32 = Struct(">iiii")
BINARY_HEAD = Struct(">hBhiii")  # code, language, version, opaque, flag, remarkLength
INT32 = Struct(">i")
INT16 = Struct(">h")


Sign = Callable[[Mapping[str, str], bytes, int], Mapping[str, str]]
"""Signs a request: from its header fields, body and version to the header fields that are sent (``rmqha.acl``)."""


class RequestCode(IntEnum):
    """Codes of all requests of RocketMQ, by Java's names, and our own (spec/remoting.md 2)."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
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
    GET_CLIENT_CONFIG = 47
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
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
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    ADD_BROKER = 902
    REMOVE_BROKER = 903
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    BROKER_CLOSE_CHANNEL_REQUEST = 1014
    CHECK_NOT_ACTIVE_BROKER_REQUEST = 1015
    GET_BROKER_LIVE_INFO_REQUEST = 1016
    GET_SYNC_STATE_DATA_REQUEST = 1017
    RAFT_BROKER_HEART_BEAT_EVENT_REQUEST = 1018
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    SWITCH_TIMER_ENGINE = 5001
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    PEEK_MESSAGE = 200_052
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    POLLING_INFO = 200_055
    POP_ROLLBACK = 200_056
    POP_LITE_MESSAGE = 200_070
    LITE_SUBSCRIPTION_CTL = 200_071
    ACK_LITE_MESSAGE = 200_072
    NOTIFY_UNSUBSCRIBE_LITE = 200_073
    GET_BROKER_LITE_INFO = 200_074
    GET_PARENT_TOPIC_INFO = 200_075
    GET_LITE_TOPIC_INFO = 200_076
    GET_LITE_CLIENT_INFO = 200_077
    GET_LITE_GROUP_INFO = 200_078
    TRIGGER_LITE_DISPATCH = 200_079
    BATCH_ACK_MESSAGE = 200_151
    GET_CONFIRMED_OFFSET = 47_001
    """Our own: what a master's slaves hold (spec/remoting.md 2.23)."""
    PROMISE_TO_FOLLOW = 47_002
    """Our own: a failover cluster's leader asks a member not to try for the lead (spec/remoting.md 2.24)."""
    AWAIT_TABLE_CHANGES = 47_010
    """Our own: a slave asks whether topics, groups or deletions have changed (spec/remoting.md 2.25)."""


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
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    ILLEGAL_OPERATION = 604


class CommandError(ValueError):
    """The bytes are not a remoting command, or a command cannot be encoded."""


class RemotingCommand(NamedTuple):
    """A request or an answer. ``ext_fields`` is the custom header. An empty ``body`` means no body.

    ``serialize_type`` is the encoding in which the command arrived or will be sent.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    ext_fields: Mapping[str, str] = NO_FIELDS
    body: bytes = b""
    version: int = OUR_VERSION
    language: str = OUR_LANGUAGE
    serialize_type: int = JSON_SERIALIZE_TYPE

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)


def answer_to(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
    """The answer as it is sent: with the request's opaque, and in the request's encoding."""
    code, _, _, remark, ext_fields, body, version, language, _ = answer
    return RemotingCommand(
        code, request.opaque, RESPONSE_FLAG, remark, ext_fields, body, version, language, request.serialize_type
    )


def encode_command(command: RemotingCommand) -> bytes:
    """Encode the frame without its leading totalLength. Raises CommandError if a value does not fit into its field."""
    return encode_head(command)[TOTAL_LENGTH_BYTES:] + command.body


def encode_head(command: RemotingCommand) -> bytes:
    """Encode the frame up to its body, which must follow. Raises CommandError if a value does not fit into its
    field.
    """
    try:
        header = ENCODERS[command.serialize_type](command)
    except (StructError, TypeError, UnicodeEncodeError) as error:
        raise CommandError(f"a command cannot be encoded: {error}") from error
    total_length = HEADER_LENGTH.size + len(header) + len(command.body)
    if total_length > FRAME_MAX_LENGTH:
        raise CommandError(f"a command of {total_length} bytes is longer than {FRAME_MAX_LENGTH}")
    return FRAME_HEAD.pack(total_length, command.serialize_type << 24 | len(header)) + header


def encode_json(command: RemotingCommand) -> bytes:
    code, opaque, flag, remark, ext_fields, _, version, language, _ = command
    header: dict[str, object] = {
        "code": int(code),
        "extFields": ext_fields if type(ext_fields) is dict else dict(ext_fields),
        "flag": flag,
        "language": language,
        "opaque": opaque,
    }
    if remark is not None:
        header["remark"] = remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = version
    return orjson.dumps(header)


def _encode_binary(command: RemotingCommand) -> bytes:
    code, opaque, flag, remark, ext_fields, _, version, language, _ = command
    remark_bytes = b"" if remark is None else remark.encode()
    parts: list[bytes] = []
    for key, value in ext_fields.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        parts += INT16.pack(len(key_bytes)), key_bytes, INT32.pack(len(value_bytes)), value_bytes
    entries = b"".join(parts)
    language_code = LANGUAGE_CODES.get(language, LANGUAGE_CODES["OTHER"])
    head = BINARY_HEAD.pack(code, language_code, version, opaque, flag, len(remark_bytes))
    return b"".join((head, remark_bytes, INT32.pack(len(entries)), entries))


ENCODERS = {JSON_SERIALIZE_TYPE: encode_json, ROCKETMQ_SERIALIZE_TYPE: _encode_binary}


def decode_command(frame: bytes) -> RemotingCommand:
    """Decode a frame without its leading totalLength. Raises CommandError."""
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
        get = content.get
        numbers = content["code"], get("opaque", 0), get("flag", 0), get("version", 0)
        try:
            code, opaque, flag, version = FOUR_INT32.unpack(FOUR_INT32.pack(*numbers))
        except StructError:
            code, opaque, flag, version = map(_int32, numbers)
        ext_fields = get("extFields") or {}
        if len(ext_fields) > MAX_EXT_FIELDS:
            raise ValueError(f"more than {MAX_EXT_FIELDS} fields")
        if not set(map(type, ext_fields.values())) <= ONLY_TEXTS:
            ext_fields = texts_of(ext_fields)
        remark = get("remark")
        return RemotingCommand(
            code,
            opaque,
            flag,
            None if remark is None else _scalar(remark),
            ext_fields,
            body,
            version,
            _language(get("language")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CommandError(f"the header is not a JSON object of a command: {error!r}") from error


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
            serialize_type=ROCKETMQ_SERIALIZE_TYPE,
        )
    except (StructError, UnicodeDecodeError) as error:
        raise CommandError(f"the header is not a ROCKETMQ header: {error}") from error


def _decode_entries(entries: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    at, end = 0, len(entries)
    while at < end:
        if len(fields) >= MAX_EXT_FIELDS:
            raise CommandError(f"more than {MAX_EXT_FIELDS} fields")
        (key_length,) = INT16.unpack_from(entries, at)
        key_end = at + INT16.size + key_length
        (value_length,) = INT32.unpack_from(entries, key_end)
        value_at = key_end + INT32.size
        value_end = value_at + value_length
        if key_length < 0 or not value_at <= value_end <= end:
            raise CommandError(f"the lengths are {key_length} and {value_length}, but only {end - at} bytes are left")
        fields[entries[at + INT16.size : key_end].decode()] = entries[value_at:value_end].decode()
        at = value_end
    return fields


def _take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if not 0 <= length <= len(data) - at:
        raise CommandError(f"a length is {length}, but only {len(data) - at} bytes are left")
    return data[at : at + length], at + length


def _int32(value: Any) -> int:
    number = int(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is not a signed 32-bit number")
    return number


def texts_of(fields: Mapping[str, Any]) -> dict[str, str]:
    """Header fields of a JSON header as texts. Clients in C++ and JavaScript send numbers as such; null is no value."""
    return {key: _scalar(value) for key, value in fields.items() if value is not None}


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _language(value: Any) -> str:
    if isinstance(value, int):
        return LANGUAGES[value] if 0 <= value < len(LANGUAGES) else "OTHER"
    return str(value or "OTHER")
