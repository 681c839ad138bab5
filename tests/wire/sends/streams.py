"""Reads of connections with sends, ordinary and odd ones, and what the two passes make of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from struct import pack
from typing import Any

import numpy as np
import orjson
from zope.interface import implementer

from rmqha.store.derived.index import HASHED_KEY_DTYPE, IndexedKey, hashed
from rmqha.wire.record import Host
from rmqha.wire.sends import plain
from rmqha.wire.sends.run import AnswerParts, ISendAccess, ITopicRooms, Place, SendRun, TopicRoom

V4, V6 = Host.parse("10.1.2.3", 10911), Host.parse("2001:db8::7", 51000)
HEADER_FIELDS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
ROOMS = {"Orders": 4, "Events": 16, "a": 1, "x" * 127: 2, "No%room": 0}
TAGS = ("TagA", "TagB", "t", "日本", "a||b")
KEYS = ("k1", "order-1 order-2", " k ", "a  b", "k" * 200, "ü")


@implementer(ITopicRooms, ISendAccess)
class Broker:
    """The topics of ``ROOMS``, and an account that may not send bodies that begin with ``no``."""

    def room_of(self, topic: str) -> TopicRoom | None:
        count = ROOMS.get(topic)
        return None if count is None else TopicRoom.of(topic, count)

    def may_send(self, code: int, fields: Mapping[str, str], body: bytes) -> bool:
        return code in (10, 310) and "b" in fields and not body.startswith(b"no")


def a_place(rng: Random) -> Place:
    """Where messages may go."""
    broker, store = Broker(), rng.choice((V4, V6))
    offset = rng.choice((0, 1 << 30, (1 << 62) + 7))
    return Place(
        broker,
        AnswerParts.of(HEADER_FIELDS, store),
        "CLUSTER\1DefaultCluster",
        max_body_bytes=1 << 22,
        max_record_bytes=rng.choice((1 << 22, 600)),
        queue_ends={("Orders", 1): 7, ("Events", 3): 1 << 40, ("a", 0): 0},
        access=rng.choice((None, broker)),
        born_host=rng.choice((V4, V6)),
        store_host=store,
        offset=offset,
        limit=offset + rng.choice((1 << 30, 3000, 0)),
        timestamp=1_700_000_000_123,
        most=rng.choice((1, 3, 1000)),
    )


def frame(header: bytes, body: bytes) -> bytes:
    """A frame with a JSON header."""
    return pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


def properties(rng: Random) -> str:
    """Those of an ordinary message, mostly."""
    found = [("UNIQ_KEY", f"7F0000010001{rng.getrandbits(80):020X}")] if rng.random() < 0.9 else []
    found += [("WAIT", "true")] if rng.random() < 0.6 else []
    found += [("TAGS", rng.choice(TAGS))] if rng.random() < 0.6 else []
    found += [("KEYS", rng.choice(KEYS))] if rng.random() < 0.4 else []
    found += [(f"p{n}", 'v\t"\\/\x07' * n) for n in range(rng.choice((0, 0, 1, 3)))]
    rng.shuffle(found)
    if rng.random() < 0.06:
        odd = [
            ("DELAY", "3"),
            ("CLUSTER", "x"),
            ("WAIT", "false"),
            ("TAGS", ""),
            ("KEYS", ""),
            ("UNIQ_KEY", "ü"),
            ("", ""),
        ]
        odd += [("TIMER_DELAY_MS", "5"), ("TRAN_MSG", "true"), ("WAIT", "true"), ("TAGS", "last"), ("KEYS", "last")]
        found.insert(rng.randrange(len(found) + 1), rng.choice(odd))
    return "\2".join(f"{name}\1{value}" for name, value in found) + rng.choice(("", "", "\2", "\2\2"))


ODD_VALUES = (
    "",
    "0",
    "-1",
    "+1",
    " 1",
    "1_0",
    "01",
    "-0",
    "99999999999",
    "9" * 30,
    "1e3",
    "\u0661",
    "true",
    "ü",
    "a\nb",
)


def fields(rng: Random) -> dict[str, Any]:
    """The header fields of a send: sometimes one of them is odd."""
    found: dict[str, Any] = {
        "a": "ProducerGroup",
        "b": rng.choice(("Orders", "Orders", "Events", "Events", "a", "x" * 127)),
        "c": "TBW102",
        "d": "4",
        "e": str(rng.randrange(4)),
        "f": rng.choice(("0", "0", "0", "1", "2", "48", "256")),
        "g": str(1_700_000_000_000 + rng.randrange(1000)),
        "h": rng.choice(("0", "0", "7", "-5")),
        "i": properties(rng),
        "j": "0",
        "k": "false",
        "l": "16",
        "m": "false",
    }
    if rng.random() < 0.1:
        found |= {"n": "broker-a", "AccessKey": "me", "Signature": "x/+="}
    chance = rng.random()
    if chance < 0.05:
        found[rng.choice("abcdefghijklm")] = rng.choice(ODD_VALUES)
    elif chance < 0.07:
        del found[rng.choice("abcdefghijklm")]
    elif chance < 0.08:
        found[rng.choice(("a", "b", "e", "i", "z"))] = rng.choice((None, 1, 1.5, [], {}, True))
    return found


V1_NAMES = dict(
    zip(
        "abcdefghijklm",
        (
            *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp"),
            *("flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch"),
        ),
        strict=True,
    )
)


def a_send(rng: Random) -> bytes:
    """A frame: mostly of an ordinary send."""
    command: dict[str, Any] = {
        "code": 310,
        "extFields": fields(rng),
        "flag": rng.choice((0, 0, 0, 2)),
        "language": "JAVA",
        "opaque": rng.randrange(-5, 1 << 31),
        "serializeTypeCurrentRPC": "JSON",
        "version": 399,
    }
    chance = rng.random()
    if chance < 0.02:
        command |= {
            "code": 10,
            "extFields": {V1_NAMES.get(name, name): text for name, text in command["extFields"].items()},
        }
    elif chance < 0.03:
        command[rng.choice(("code", "flag", "opaque", "version", "remark", "x"))] = rng.choice(
            (None, 1, -1, 1 << 31, 1.0, "310", 310, 10, True, 1 << 62)
        )
    elif chance < 0.04:
        del command[rng.choice(("code", "flag", "opaque", "version", "extFields", "language"))]
    names = list(command)
    if rng.random() < 0.3:
        rng.shuffle(names)
    header = orjson.dumps({name: command[name] for name in names})
    if rng.random() < 0.02:
        header = rng.choice((header + b"\n", b" " + header, header.replace(b":", b": "), header[:-1], header + b"}"))
    if rng.random() < 0.03:
        header = header.replace(b'"b":"', b'"b":"\\u0041', 1) if rng.random() < 0.3 else doubled(rng, header)
    return frame(header, rng.randbytes(rng.choice((0, 1, 7, 100, 100, 1024))) if rng.random() < 0.95 else b"no")


def doubled(rng: Random, header: bytes) -> bytes:
    """A name that comes twice."""
    more = rng.choice((b'"code":310,', b'"code":10,', b'"opaque":1,', b'"flag":0,', b'"extFields":{},'))
    return b"{" + more + header[1:] if rng.random() < 0.5 else header[:-1] + b"," + more[:-1] + b"}"


def a_read(rng: Random) -> bytes:
    """What one read of a connection brings."""
    data = bytearray(b"".join(a_send(rng) for _ in range(rng.choice((1, 2, 8, 30)))))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        at = rng.randrange(len(data))
        if rng.random() < 0.7:
            data[at] = rng.choice(
                (0, 1, 0x22, 0x5C, 0x7B, 0x7D, 0x2C, 0x3A, 0x30, 0x39, 0x2D, 0x80, 0xFF, rng.randrange(256))
            )
        elif rng.random() < 0.5:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 5))
        if not data:
            break
    return bytes(data)


def packed(run: SendRun) -> bytes:
    """The keys of a run with the hashes of their texts."""
    if isinstance(run.keys, bytes):
        return run.keys
    return hashed([IndexedKey(*key) for key in run.keys]).tobytes()


@dataclass
class Compared:
    """How much was compared."""

    reads: int = 0
    bytes: int = 0
    taken_by_kernel: int = 0
    taken_by_plain: int = 0


def differences(kernel: SendRun, expected: SendRun) -> list[str]:
    """The parts in which a run differs from that of the specification."""
    parts = ("offset", "timestamp", "end", "count", "records", "last_at", "answers", "queues", "key_count")
    found = [part for part in parts if getattr(kernel, part) != getattr(expected, part)]
    found += [] if list(kernel.queues) == list(expected.queues) else ["the order of queues"]
    return found + ([] if packed(kernel) == packed(expected) else ["keys"])


def compare(kernel: Any, data: bytes, place: Place, compared: Compared) -> None:
    """Walk through a read: what the kernel takes at each place is what the plain pass takes there.

    Raises AssertionError with the read.
    """
    at = 0
    compared.reads += 1
    compared.bytes += len(data)
    while True:
        run = kernel.try_sends(data, at, place)
        if run is None:
            spec = plain.take(data, at, replace(place, most=1))
            compared.taken_by_plain += spec.count
            if not spec.count:
                at = _after(data, at)
                if at < 0:
                    return
                continue
            at = spec.end
            continue
        spec = plain.take(data, at, replace(place, most=run.count))
        wrong = differences(run, spec)
        assert not wrong, f"{wrong} differ from {at} on in {data!r}, {place}"
        assert run.end > at, "a run takes something"
        compared.taken_by_kernel += run.count
        at = run.end


def _after(data: bytes, at: int) -> int:
    """Where the next frame begins; -1 if there is none."""
    if len(data) - at < 8:
        return -1
    length = int.from_bytes(data[at : at + 4], "big", signed=True)
    return -1 if length < 4 or at + 4 + length > len(data) else at + 4 + length


assert np.dtype(HASHED_KEY_DTYPE).itemsize == 20
