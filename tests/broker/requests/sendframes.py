"""Frames as clients send them, and odd ones: ordinary sends with a twist or two, and other requests among them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from hypothesis import strategies as st

from rmqha.acl.signing import Credentials, Signer
from rmqha.wire.batch import BatchEntry, encode_batch
from rmqha.wire.command import FRAME_HEAD, OUR_VERSION, RemotingCommand, RequestCode
from rmqha.wire.requestfields import SUSPEND_FLAG, V1_FIELDS, V2_FIELDS, SendFields
from tests.broker.brokerstore import NOW_MS
from tests.remoting.test_protocol import frame

APP, GUESS, STRANGER = (
    Credentials("rocketmq-app", "app-secret"),
    Credentials("rocketmq-app", "a-guess"),
    Credentials("rocketmq-new", "new-secret"),
)
TOPICS = ("T", "U", "é漢")
"""Topics that take ordinary messages."""
ODD_TOPICS = (
    "New",
    "Several",
    "%RETRY%G",
    "%DLQ%G",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRACE_TOPIC",
    "TBW102",
    "rmq_sys_wheel_timer",
    "a/b",
    "..",
    "",
    "x" * 127,
    "x" * 128,
    "x" * 256,
    "é" * 64,
)
ODD_VALUES = (
    *('"+1"', '" 1"', '"1e3"', '"1.0"', '"01"', '"-1"', '"5"', '"1_0"', '"\u0661"', f'"{"9" * 40}"', '"99"', '"4"'),
    *('"2147483648"', '"-2147483649"', '"9223372036854775807"', '"9223372036854775808"', '"8"', '"12"', '"32"'),
    *('""', '"false"', '"true"', '"TRUE"', '"x"', '"a\\u0002b"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"'),
    *("null", "true", "false", "0", "1", "-1", "1.5", "1e3", "[]", "{}", '["T"]', '{"a":"T"}', "[[[[]]]]"),
    *("9" * 30, "-0", '"T"', '"New"', '"%RETRY%G"'),
)
SEGMENTS = (
    *("TAGS\1TagA", "TAGS\1TagB||x", "TAGS\1", "TAGS\1é", "KEYS\1k", "KEYS\1k l", "KEYS\1 k  l ", "KEYS\1 ", "KEYS\1"),
    *("KEYS\1é漢", "UNIQ_KEY\1C0A80001", "UNIQ_KEY\1C0A80002", "UNIQ_KEY\1", 'UNIQ_KEY\1odd"\\%s', "UNIQ_KEY\1a\1b"),
    *("UNIQ_KEY\1ключ", "WAIT\1true", "WAIT\1false", "WAIT\1TRUE", "WAIT\1", "WAIT", "DELAY\0013", "DELAY\0010"),
    *("TRAN_MSG\1true", "TRAN_MSG\1false", "PGROUP\1PG", "CLUSTER\1elsewhere", "CLUSTERS\1x", "TIMER_DELAY_MS\0015000"),
    *("TIMER_DELAY_SEC\0010", "TIMER_DELIVER_MS\1soon", "TIMER_DEL_UNIQKEY\1k", "TIMER", "own\1value", "own\1", "\1v"),
    *("", "x", "own\1a\1b", "own\1\t\n\0", "own\1😀", "AWAIT\1true", "own\1" + "x" * 300, "MSG_REGION\1r", "é\1é"),
)
USUAL_SEGMENTS = ("TAGS\1TagA", "KEYS\1k l", "KEYS\1order7", "UNIQ_KEY\1C0A80001", "WAIT\1true", "own\1value")
HEADS = {
    "java": ("code", "extFields", "flag", "language", "opaque", "serializeTypeCurrentRPC", "version"),
    "go": ("code", "language", "version", "opaque", "flag", "remark", "extFields"),
    "cpp": ("code", "extFields", "flag", "language", "opaque", "version"),
}
SYS_FLAGS = (0, 1, 2, 4, 8, 12, 16, 32, 48, 0x80, 0x700, -1)
GARBAGE = (
    b"\0\0\0\0",
    b"\0\0\0\x04\0\0\0\0",
    b"\0\0\0\x05\0\0\0\x09{",
    b"\xff\xff\xff\xff\0\0\0\0",
    b"\0\0\0\x06\0\0\0\x02{}",
    b"\0\0\0\x06\2\0\0\x02{}",
)
NAMES = ("producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag")
MORE_NAMES = ("born_timestamp", "flag", "properties", "reconsume_times", "unit_mode", "max_reconsume_times", "batch")


class Twist(NamedTuple):
    """What is odd in a header. ``where`` is the header, its fields, or its end."""

    where: str
    how: str
    name: str
    value: str


HEAD_NAMES = (*HEADS["java"], "remark", "own")
HEAD_VALUES = (
    "310",
    "10",
    "320",
    '"310"',
    "2",
    "1",
    "3",
    "4294967296",
    "null",
    "true",
    "1.5",
    "[]",
    '"x"',
    '"\\ud800"',
)
ODD_HEADS = tuple((name, value) for name in HEAD_NAMES for value in HEAD_VALUES)
ODD_ENDS = (" ", "\n", "\0", "{}", ",", "\ufeff", "\udcff")
FIELD_TWISTS = st.builds(
    Twist,
    st.just("fields"),
    st.sampled_from(["set", "set", "again", "drop"]),
    st.sampled_from([*NAMES, *MORE_NAMES, "own", "Signature", "AccessKey"]),
    st.sampled_from(ODD_VALUES),
)
HEAD_TWISTS = st.builds(
    Twist,
    st.just("head"),
    st.sampled_from(["set", "again", "drop"]),
    st.sampled_from(HEAD_NAMES),
    st.sampled_from(HEAD_VALUES),
)
END_TWISTS = st.builds(
    Twist,
    st.just("end"),
    st.just("add"),
    st.just(""),
    st.sampled_from(ODD_ENDS),
)
NO_TWISTS = st.nothing()
ALL_TWISTS = FIELD_TWISTS | HEAD_TWISTS | HEAD_TWISTS | END_TWISTS
"""Those of the header often close the connection."""


def _twisted(items: list[tuple[str, str]], twist: Twist) -> list[tuple[str, str]]:
    """Names with their values in JSON, after a twist."""
    if twist.how == "again":
        return [*items, (twist.name, twist.value)]
    if twist.how == "set" and twist.name not in dict(items):
        return [*items, (twist.name, twist.value)]
    changed = [(name, twist.value if name == twist.name else value) for name, value in items]
    return changed if twist.how == "set" else [item for item in changed if item[0] != twist.name]


def _json(items: Sequence[tuple[str, str]], colon: str = ":") -> str:
    return "{" + ",".join(f'"{name}"{colon}{value}' for name, value in items) + "}"


def _quoted(text: str, escapes: bool) -> str:
    """A text in JSON."""
    quoted = orjson.dumps(text).decode()
    if not escapes:
        return quoted
    units = (part for char in quoted for part in ([char] if char.isascii() else _utf16(char)))
    return "".join(units)


def _utf16(char: str) -> list[str]:
    encoded = char.encode("utf-16-be")
    return [f"\\u{int.from_bytes(encoded[at : at + 2], 'big'):04x}" for at in range(0, len(encoded), 2)]


class Send(NamedTuple):
    """A send in JSON: the values of its fields by their names in SendFields, and those of the header in JSON."""

    values: Mapping[str, str]
    head: Mapping[str, str] = MappingProxyType({})
    body: bytes = b"body"
    code: int = RequestCode.SEND_MESSAGE_V2
    names: SendFields = V2_FIELDS
    style: str = "java"
    escapes: bool = False
    colon: str = ":"
    twists: Sequence[Twist] = ()
    keys: Credentials | None = None

    @property
    def frame(self) -> bytes:
        """Its bytes on the wire, signed with its keys, if there are any."""
        fields = [(getattr(self.names, name), _quoted(value, self.escapes)) for name, value in self.values.items()]
        of_fields = [twist for twist in self.twists if twist.where == "fields"]
        for twist in of_fields:
            fields = _twisted(fields, twist._replace(name=getattr(self.names, twist.name, twist.name)))
        if self.keys is not None:
            fields = _signed(fields, self.keys, self.body)
            for twist in of_fields:
                if twist.name in ("Signature", "AccessKey"):
                    fields = _twisted(fields, twist)
        head = {**HEAD, "code": str(int(self.code)), **self.head, "extFields": _json(fields)}
        items = [(name, head[name]) for name in HEADS[self.style]]
        for twist in self.twists:
            if twist.where == "head":
                items = _twisted(items, twist)
        text = _json(items, self.colon) + "".join(twist.value for twist in self.twists if twist.where == "end")
        header = text.encode("utf-8", "surrogateescape")
        return FRAME_HEAD.pack(4 + len(header) + len(self.body), len(header)) + header + self.body


HEAD = {
    "flag": "0",
    "language": '"JAVA"',
    "opaque": "7",
    "remark": '""',
    "serializeTypeCurrentRPC": '"JSON"',
    "version": "399",
}
USUAL = {
    "producer_group": "PG",
    "topic": "T",
    "default_topic": "TBW102",
    "default_topic_queue_nums": "4",
    "queue_id": "1",
    "sys_flag": "0",
    "born_timestamp": str(NOW_MS - 7),
    "flag": "0",
    "properties": "UNIQ_KEY\1C0A80001\2KEYS\1k l\2TAGS\1TagA\2WAIT\1true",
    "reconsume_times": "0",
    "unit_mode": "false",
    "batch": "false",
}
"""An ordinary send as Java's client makes it."""


@st.composite
def sends(draw: st.DrawFn, keys: Credentials | None, may_twist: st.SearchStrategy[Twist]) -> bytes:
    """A send. Without twists it is ordinary. Nearly all are signed with these keys, if there are any."""
    is_plain = may_twist is NO_TWISTS
    names, code = draw(st.sampled_from([(V2_FIELDS, 310), (V1_FIELDS, 10)]))
    segments = draw(st.lists(st.sampled_from(USUAL_SEGMENTS if is_plain else SEGMENTS), max_size=4, unique=is_plain))
    ends = ("", "\2") if is_plain else ("", "\2", "\2\2")
    values = {
        **USUAL,
        "topic": draw(st.sampled_from(TOPICS if is_plain else (*TOPICS, *ODD_TOPICS))),
        "queue_id": str(draw(st.integers(0, 3) if is_plain else st.integers(-2, 9))),
        "sys_flag": str(draw(st.sampled_from([0, 0, 1] if is_plain else SYS_FLAGS))),
        "flag": str(draw(st.sampled_from([0, 7, -1]))),
        "properties": draw(st.sampled_from(ends)) + "\2".join(segments) + draw(st.sampled_from(ends)),
        "reconsume_times": str(draw(st.sampled_from([0, 0, 3, 17]))),
    }
    if draw(st.booleans()) and not (is_plain and keys):  # an account signs the same fields in each of its sends
        del values["reconsume_times"], values["unit_mode"], values["batch"]
    head = {
        "code": str(code if is_plain or draw(st.booleans()) else draw(st.sampled_from([310, 10, 320, 11, 9999]))),
        "flag": draw(st.sampled_from(["0", "0", "0", "2"])),
        "language": draw(st.sampled_from(['"JAVA"', '"GO"', "7"])),
        "opaque": str(draw(st.integers(0, 99) | st.sampled_from([2**31 - 1, -(2**31)]))),
        "remark": draw(st.sampled_from(['""', "null", '"r"'])),
        "version": draw(st.sampled_from(["399", "0", "500"])),
    }
    return Send(
        values,
        head,
        bytes(draw(st.sampled_from([0, 1, 10, 100, 700, 700] if is_plain else [0, 10, 700, 2900, 3000, 3100, 5000]))),
        code,
        names,
        draw(st.sampled_from(sorted(HEADS))),
        draw(st.booleans()),
        ": " if not is_plain and draw(st.booleans()) else ":",
        () if is_plain else draw(st.lists(may_twist, max_size=2)),
        keys if is_plain or keys is None else draw(st.sampled_from([keys, keys, GUESS, STRANGER, None])),
    ).frame


def _signed(fields: list[tuple[str, str]], keys: Credentials, body: bytes) -> list[tuple[str, str]]:
    """Fields with a signature, if they are texts."""
    try:
        texts: dict[str, Any] = orjson.loads(_json(fields))
    except orjson.JSONDecodeError:
        return fields
    if any(not isinstance(value, str) for value in texts.values()):
        return fields
    signed = Signer(keys)(texts, body, OUR_VERSION)
    return fields + [(name, _quoted(signed[name], False)) for name in signed if name not in texts]


SEND = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": str(NOW_MS), "h": "0"}


def pull(topic: str, offset: int) -> dict[str, str]:
    """The fields of a pull that waits for a message."""
    return {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": "1",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(SUSPEND_FLAG),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def others(keys: Credentials | None) -> st.SearchStrategy[bytes]:
    """Requests that no pass takes."""
    batch = encode_batch([BatchEntry(b"one", "TAGS\1A"), BatchEntry(b"two")])
    commands = [
        RemotingCommand(RequestCode.SEND_MESSAGE_V2, 101, ext_fields=SEND, body=b"binary", serialize_type=1),
        RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, 102, ext_fields={**SEND, "m": "true"}, body=batch),
        RemotingCommand(RequestCode.SEND_MESSAGE_V2, 103, ext_fields={**SEND, "m": "true"}, body=batch),
        RemotingCommand(RequestCode.SEND_MESSAGE_V2, 104, 1, ext_fields=SEND),
        RemotingCommand(RequestCode.GET_MAX_OFFSET, 105, ext_fields={"topic": "T", "queueId": "1"}),
        RemotingCommand(RequestCode.HEART_BEAT, 106, body=b'{"clientID":"c","producerDataSet":[{"groupName":"PG"}]}'),
        RemotingCommand(9999, 107),
        RemotingCommand(RequestCode.PULL_MESSAGE, 108, ext_fields=pull("T", 0)),
        RemotingCommand(RequestCode.PULL_MESSAGE, 109, ext_fields=pull("U", 1)),
        RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, 110, ext_fields={"topic": "U"}),
        RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, 111, body=b"brokerPermission=4"),
        RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, 112, body=b"brokerPermission=6"),
    ]
    if keys is not None:
        commands = [
            each._replace(ext_fields=Signer(keys)(each.ext_fields, each.body, OUR_VERSION))
            if each.serialize_type == 0
            else each
            for each in commands
        ]
    return st.sampled_from([frame(each) for each in commands])


ENDINGS = st.sampled_from(GARBAGE) | st.binary(max_size=12)
"""What is no request, and closes its connection."""
