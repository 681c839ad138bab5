"""A store of ours with all kinds of messages: ``python -m tests.interop.our_store STORE SEED COUNT STORE_PORT``.

As a program it puts COUNT times, dispatches, and puts COUNT times more that are not dispatched; then it tells in lines
of JSON what became of each put, and waits to be killed.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from rmqha.settings.settings import make_settings
from rmqha.store.message import Message, MessageBatch, PutMessageResult, PutMessageStatus
from rmqha.store.messagestore import MessageStore
from rmqha.store.metadata import CONFIG_FOLDER, DataVersion, TopicConfig, TopicConfigTable
from rmqha.store.reading import GetMessageStatus
from rmqha.wire.delay import SCHEDULE_TOPIC
from rmqha.wire.layout import BORNHOST_V6_FLAG, FIXED_BYTES
from rmqha.wire.record import (
    END_FILE_MIN_BLANK_LENGTH,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_PREPARED_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
    Host,
    Record,
    decode_record,
    format_msg_id,
)

SEGMENT_SIZE = 256 << 10
SMALL: dict[str, int | str] = {
    "mappedFileSizeConsumeQueue": 50 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "messageDelayLevel": "1s 2s 3s",
}
"""For broker.conf: queue files of 50 units and index files of 399 keys, so that there are several of each."""

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
PLAIN, TAGGED, BATCHED, DELAYED, RETRIED, COMMITTED = "TPlain", "TTagged", "TBatched", "TDelayed", "%RETRY%GOurs", "TTx"
QUEUES = {PLAIN: 4, TAGGED: 2, BATCHED: 3, DELAYED: 2, RETRIED: 1, COMMITTED: 2, HALF_TOPIC: 1, SCHEDULE_TOPIC: 18}
QUEUED_TYPES = (0, TRANSACTION_COMMIT_TYPE)
TRANSACTION_TYPE_MASK = TRANSACTION_ROLLBACK_TYPE
LARGEST_BODY = 100 * 1024
IPV4_HOST, IPV6_HOST = Host.parse("10.1.2.3", 40_000), Host.parse("2001:db8::1:2", 40_001)
TEXTS = ("plain", "Überraß", "键值对", "🐇🚀", "a=b&c#d", "tab\tand space")


@dataclass
class Stored:
    """One message of ours in the log. ``portrait`` is what Driver.look_up must say of it."""

    portrait: dict[str, Any]

    @property
    def topic(self) -> str:
        return str(self.portrait["topic"])

    @property
    def msg_id(self) -> str:
        address, port = self.portrait["store_host"].split(":")
        return format_msg_id(Host(bytes.fromhex(address), int(port)), self.portrait["physical_offset"])

    @property
    def keys(self) -> str:
        return str(self.portrait["properties"].get("KEYS", ""))

    @property
    def is_queued(self) -> bool:
        return bool(self.portrait["sys_flag"] & TRANSACTION_TYPE_MASK in QUEUED_TYPES)

    @property
    def is_indexed(self) -> bool:
        return bool(self.portrait["sys_flag"] & TRANSACTION_TYPE_MASK != TRANSACTION_ROLLBACK_TYPE)

    @property
    def line(self) -> str:
        """What Driver.consume digests of it."""
        return f"{self.keys} {self.portrait['body_sha256']}\n"


def lines_sha256(messages: Sequence[Stored]) -> str:
    """What ConsumeReport.sha256 must be of these messages."""
    return hashlib.sha256("".join(sorted(message.line for message in messages)).encode()).hexdigest()


def write_topics(store: Path) -> None:
    """``topics.json`` of all our topics."""
    topics = {name: TopicConfig(name, count, count) for name, count in QUEUES.items()}
    TopicConfigTable(DataVersion(1, int(time.time() * 1000)), topics).write(store / CONFIG_FOLDER)


class Mixture:
    """All kinds of messages, by a seed."""

    def __init__(self, seed: int, store_port: int) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self._number = 0
        self._store_host = Host.parse("127.0.0.1", store_port)

    def next(self) -> Message | MessageBatch:
        """One more to put."""
        kinds = (
            self._plain,
            self._tagged,
            self._batch,
            self._delayed,
            self._half,
            self._old_transaction,
            self._retried,
        )
        return self._rng.choices(kinds, weights=(6, 6, 2, 2, 1, 2, 1))[0]()

    def fit(self, message: Message, size: int) -> Message:
        """The message with a body that makes its record this long."""
        stored = "\2".join(f"{name}\1{value}" for name, value in message.properties.items()).encode()
        message.born_host = IPV4_HOST
        message.body = self._rng.randbytes(size - FIXED_BYTES - len(message.topic) - len(stored))
        return message

    def plain(self) -> Message:
        """A plain one."""
        return self._plain()

    def _message(self, topic: str, queue_id: int | None = None, body_bytes: int | None = None) -> Message:
        rng = self._rng
        self._number += 1
        queues = QUEUES[topic]
        sizes = (0, 1, rng.randrange(2, 200), rng.randrange(200, 5_000), rng.randrange(5_000, LARGEST_BODY + 1))
        if body_bytes is None:
            body_bytes = rng.choices(sizes, weights=(1, 1, 12, 8, 1))[0]
        return Message(
            topic=topic,
            body=rng.randbytes(body_bytes),
            queue_id=rng.randrange(queues) if queue_id is None else queue_id,
            properties={
                "KEYS": f"s{self._seed}n{self._number}",
                "UNIQ_KEY": self._unique_key(),
                "CLUSTER": "cluster",
            },
            flag=rng.choice((0, 7, -1)),
            born_timestamp=int(time.time() * 1000) - rng.randrange(10_000),
            born_host=rng.choice((IPV4_HOST, IPV6_HOST)),
            store_host=self._store_host,
            reconsume_times=rng.choice((0, 0, 3)),
        )

    def _unique_key(self) -> str:
        """As a client makes it; Java looks for nothing that is older than it says."""
        now = datetime.now()
        since_month_began = now - now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        milliseconds = int(since_month_began.total_seconds() * 1000)
        return f"7F000001{self._seed & 0xFFFF:04X}12345678{milliseconds:08X}{self._number & 0xFFFF:04X}"

    def _plain(self) -> Message:
        return self._message(PLAIN)

    def _tagged(self) -> Message:
        message, rng = self._message(TAGGED), self._rng
        message.properties["TAGS"] = rng.choice(("TagA", "TagB", "标签", "🐇"))
        message.properties["KEYS"] += f" also{self._seed}n{self._number} schlüssel{self._seed}n{self._number}"
        message.properties["text"] = rng.choice(TEXTS)
        message.properties[rng.choice(TEXTS)] = "x" * rng.choice((1, 100, 5_000))
        return message

    def _batch(self) -> MessageBatch:
        queue_id = self._rng.randrange(QUEUES[BATCHED])
        messages = [self._message(BATCHED, queue_id) for _ in range(self._rng.randrange(1, 9))]
        for message in messages:
            del message.properties["CLUSTER"]
            message.body = message.body[:20_000]
        first = messages[0]
        return MessageBatch(
            topic=BATCHED,
            messages=messages,
            properties={"CLUSTER": "cluster"},
            queue_id=queue_id,
            born_timestamp=first.born_timestamp,
            born_host=first.born_host,
            store_host=first.store_host,
        )

    def _delayed(self) -> Message:
        message = self._message(DELAYED)
        message.properties |= {"DELAY": str(self._rng.randrange(1, 4)), "WAIT": "true"}
        return message

    def _half(self) -> Message:
        """As a 4.9 broker stores what a transaction has not decided yet."""
        message = self._message(HALF_TOPIC)
        message.properties |= {"TRAN_MSG": "true", "PGROUP": "GOurs", "REAL_TOPIC": COMMITTED, "REAL_QID": "1"}
        return message

    def _old_transaction(self) -> Message:
        """With the bits that very old brokers wrote, and those of a commit."""
        message = self._message(COMMITTED)
        kinds = (TRANSACTION_PREPARED_TYPE, TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE)
        message.sys_flag = self._rng.choice(kinds)
        message.prepared_transaction_offset = self._rng.randrange(10_000)
        return message

    def _retried(self) -> Message:
        message = self._message(RETRIED)
        message.properties |= {
            "RETRY_TOPIC": PLAIN,
            "ORIGIN_MESSAGE_ID": message.properties["UNIQ_KEY"],
            "WAIT": "false",
        }
        return message


def _portrait(message: Message, result: PutMessageResult, number: int = 0) -> dict[str, Any]:
    """Of message ``number`` of a put; all but its place in the log is what was asked for."""
    append = result.append
    assert append is not None
    topic, queue_id, properties = message.topic, message.queue_id, dict(message.properties)
    if "DELAY" in properties:
        properties |= {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        topic, queue_id = SCHEDULE_TOPIC, int(properties["DELAY"]) - 1
    offset = append.message_offsets[number]
    ends = (*append.message_offsets[1:], append.wrote_offset + append.wrote_bytes)
    counted = message.sys_flag & TRANSACTION_TYPE_MASK in QUEUED_TYPES
    return {
        "topic": topic,
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
        "properties": properties,
        "queue_id": queue_id,
        "queue_offset": append.logics_offset + number if counted else 0,
        "physical_offset": offset,
        "size": ends[number] - offset,
        "flag": message.flag,
        "sys_flag": message.sys_flag | (BORNHOST_V6_FLAG if message.born_host.is_ipv6 else 0),
        "born_timestamp": message.born_timestamp,
        "born_host": _address(message.born_host),
        "store_timestamp": append.store_timestamp,
        "store_host": _address(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
    }


def portrait_of(record: Record) -> dict[str, Any]:
    """What Driver.look_up must say of a record that we read."""
    return {
        "topic": record.topic,
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
        "properties": record.properties,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.total_size,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "born_host": _address(record.born_host),
        "store_timestamp": record.store_timestamp,
        "store_host": _address(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
    }


def _address(host: Host) -> str:
    return f"{host.address.hex()}:{host.port}"


@dataclass
class OurStore:
    """A store of ours while it is open, and what was put into it."""

    folder: Path
    seed: int
    store_port: int
    stored: list[Stored] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = Clock()
        self._mixture = Mixture(self.seed, self.store_port)
        texts = {name: str(value) for name, value in SMALL.items()}
        own = {"storePathRootDir": str(self.folder), "mappedFileSizeCommitLog": str(SEGMENT_SIZE)}
        self.store = MessageStore(make_settings(texts | own))
        self._flusher = self.store.start_flushing(self._clock, execute, Failure.raiseException)
        self.store.start_dispatching(self._clock, Failure.raiseException)

    def put(self, times: int) -> None:
        """Put so many times; once so that a record leaves just eight bytes of its segment.

        The last one is in a queue: Java 4.9.3 starts to dispatch behind the last message that is, and to a last message
        that is in no queue, but in the index, it would give its keys once more (spec/store.md 7.3, 8.4).
        """
        for turn in range(times):
            if turn == times // 2:
                self._put_up_to(END_FILE_MIN_BLANK_LENGTH)
            self._put(self._mixture.next())
        self._put(self._mixture.plain())

    def _put_up_to(self, left: int) -> None:
        log = self.store.commit_log
        while (room := SEGMENT_SIZE - log.max_offset % SEGMENT_SIZE) > LARGEST_BODY or room < 1000:
            self._put(self._mixture.plain())
        self._put(self._mixture.fit(self._mixture.plain(), room - left))
        assert log.max_offset % SEGMENT_SIZE == SEGMENT_SIZE - left

    def _put(self, wanted: Message | MessageBatch) -> None:
        batch = isinstance(wanted, MessageBatch)
        done = self.store.put_messages(wanted) if isinstance(wanted, MessageBatch) else self.store.put_message(wanted)
        results: list[PutMessageResult] = []
        done.addCallback(results.append)
        (result,) = results
        assert result.status is PutMessageStatus.PUT_OK
        for number, message in enumerate(wanted.messages if isinstance(wanted, MessageBatch) else [wanted]):
            portrait = _portrait(message, result, number)
            if batch:
                portrait |= {
                    "properties": portrait["properties"] | {"CLUSTER": "cluster"},
                    "born_timestamp": wanted.born_timestamp,
                    "born_host": _address(wanted.born_host),
                    "sys_flag": BORNHOST_V6_FLAG if wanted.born_host.is_ipv6 else 0,
                    "reconsume_times": 0,
                }
            self.stored.append(Stored(portrait))

    def dispatch(self) -> None:
        """Let queues and index catch up."""
        for _ in range(10_000):
            if not self.store.derived.dispatcher.behind_bytes:
                return
            self._clock.advance(0.01)
        raise AssertionError("dispatch does not catch up")

    def queue_ends(self, topics: Sequence[str]) -> dict[str, dict[int, tuple[int, int]]]:
        """Min and max offset of all queues, in the form of Driver.queue_ends."""
        reader = self.store.reader
        return {
            topic: {
                queue: (max(0, reader.min_offset(topic, queue)), reader.max_offset(topic, queue))
                for queue in range(QUEUES[topic])
            }
            for topic in topics
        }

    def messages(self, topic: str) -> Iterator[Stored]:
        """All that the queues of a topic have, in their order."""
        for queue in range(QUEUES[topic]):
            offset, status = 0, GetMessageStatus.FOUND
            while status is GetMessageStatus.FOUND:
                found = self.store.reader.get_message(topic, queue, offset, 32)
                for data in found.records:
                    record = decode_record(data)
                    assert isinstance(record, Record)
                    yield Stored(portrait_of(record))
                offset, status = found.next_begin_offset, found.status
            assert offset == self.store.reader.max_offset(topic, queue)

    def close(self) -> None:
        """Close it cleanly."""
        self.dispatch()
        failures: list[Failure] = []
        self.store.close(self._flusher).addErrback(failures.append)
        assert not failures


def main(folder: str, seed: str, count: str, store_port: str) -> None:
    """Put, tell, and wait."""
    write_topics(Path(folder))
    ours = OurStore(Path(folder), int(seed), int(store_port))
    ours.put(int(count))
    ours.dispatch()
    ours.put(int(count))
    for message in ours.stored:
        print(json.dumps(message.portrait))
    print(json.dumps({"behind": ours.store.derived.dispatcher.behind_bytes}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
