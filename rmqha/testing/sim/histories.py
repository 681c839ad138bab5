"""What clients asked for and were answered, as lines of JSON that checkers of other people can read.

A history is a list of lines in the order in which things happened, as Jepsen writes them. Each line has ``index``,
``time`` (ns), ``process``, ``type``, ``f`` and ``value``. Each operation is a process of its own. Its first line has
the type ``invoke``. Its second line has ``ok`` if it was done, ``fail`` if it was not, and ``info`` if nobody knows.

Of queues (``queue`` is ``topic/number``):

- ``append``: ``{"queue", "keys"}``; the answer adds ``offset``, the queue offset of the first of them.
- ``read``: messages that a consumer may have read, ``{"queue", "offset", "keys"}``.
- ``read-all``: everything that is in the queue.
- ``forgiven``: from here on messages may be missing, as all that held them have lost them.

Of a coordinator's keys (values are in base64):

- ``init``: ``{"revision", "keys"}``; ``keys`` is ``{key: [value, create revision, mod revision, lease]}``.
- ``grant``: ``{"ttl"}``, answer ``{"lease"}``. ``keep-alive``, ``revoke``: ``{"lease"}``. A lease may end at any time.
- ``range``: ``{"prefix"}``, answer as ``init``.
- ``transact``: ``{"compares": [[key, target, value]], "writes": [[key, value, lease] or [key]]}``, answer
  ``{"succeeded", "revision"}``. ``{"gone": true}`` is the answer if the lease has ended.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from rmqha.coordination.interface import (
    Change,
    Compare,
    CoordinatorError,
    CoordinatorUnavailable,
    Delete,
    ICoordinator,
    IWatch,
    KeyValue,
    LeaseGone,
    Put,
    Snapshot,
    TransactionResult,
)
from rmqha.store.message import Message, MessageBatch, PutMessageResult, PutMessageStatus
from rmqha.wire.record import Record

Line = dict[str, Any]
Answer = TypeVar("Answer")


class Operation:
    """Something that a client has asked for."""

    def __init__(self, recorder: "Recorder", process: int, f: str, value: Line) -> None:
        self._recorder = recorder
        self._process, self._f, self._value = process, f, value
        self._is_over = False

    def end(self, kind: str, **more: Any) -> None:
        """It is over: ``ok``, ``fail`` or ``info``. Only the first call counts."""
        if not self._is_over:
            self._is_over = True
            self._recorder.add(self._process, kind, self._f, {**self._value, **more})

    def answered(self, result: PutMessageResult) -> None:
        """A put has this answer. Only PUT_OK is a promise."""
        if result.status is PutMessageStatus.PUT_OK and result.append is not None:
            self.end("ok", offset=result.append.logics_offset)


class Recorder:
    """Takes down a history."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.lines: list[Line] = []
        self._open: list[Operation] = []
        self.is_over = False
        """Whether nothing more is taken down."""

    def add(self, process: int, kind: str, f: str, value: Line) -> None:
        """One more line."""
        if not self.is_over:
            time = round(self._clock.seconds() * 1e9)
            line = {"index": len(self.lines), "time": time, "process": process, "type": kind, "f": f, "value": value}
            self.lines.append(line)

    def invoke(self, f: str, **value: Any) -> Operation:
        """A client asks for something."""
        operation = Operation(self, len(self._open), f, value)
        self._open.append(operation)
        self.add(len(self._open) - 1, "invoke", f, value)
        return operation

    def note(self, f: str, **value: Any) -> None:
        """Something that was asked and answered at once."""
        self.invoke(f, **value).end("ok")

    def put(self, message: Message | MessageBatch) -> Operation:
        """A producer puts a message, or several into one queue."""
        several = message.messages if isinstance(message, MessageBatch) else [message]
        keys = [key_of(each.body, each.properties) for each in several]
        return self.invoke("append", queue=f"{message.topic}/{message.queue_id}", keys=keys)

    def read(self, records: Iterable[Record], f: str = "read") -> None:
        """Messages that may have been read, in their order."""
        for queue, offset, keys in _runs(records):
            self.note(f, queue=queue, offset=offset, keys=keys)

    def end(self) -> None:
        """Nothing more happens: what was not answered may have been done."""
        for operation in self._open:
            operation.end("info")
        self.is_over = True

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in self.lines))


@implementer(ICoordinator)
class RecordedCoordinator:
    """A client of a coordinator whose questions and answers are taken down."""

    def __init__(self, client: ICoordinator, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self.timeout = client.timeout

    @property
    def cluster_id(self) -> int | None:
        """That of the client."""
        return self._client.cluster_id

    def _asked(
        self, asked: Deferred[Answer], shown: Callable[[Answer], Line], f: str, **value: Any
    ) -> Deferred[Answer]:
        operation = self._recorder.invoke(f, **value)

        def done(answer: Answer) -> Answer:
            operation.end("ok", **shown(answer))
            return answer

        def failed(failure: Failure) -> Failure:
            if failure.check(LeaseGone):
                operation.end("ok", gone=True)
            elif failure.check(CoordinatorError) and not failure.check(CoordinatorUnavailable):
                operation.end("fail")
            return failure

        return asked.addCallbacks(done, failed)

    def grant(self, ttl: int) -> Deferred[int]:
        return self._asked(self._client.grant(ttl), lambda lease: {"lease": lease}, "grant", ttl=ttl)

    def keep_alive(self, lease: int) -> Deferred[int]:
        return self._asked(self._client.keep_alive(lease), lambda _: {}, "keep-alive", lease=lease)

    def time_to_live(self, lease: int) -> Deferred[int]:
        return self._client.time_to_live(lease)

    def revoke(self, lease: int) -> Deferred[None]:
        return self._asked(self._client.revoke(lease), lambda _: {}, "revoke", lease=lease)

    def range(self, prefix: str) -> Deferred[Snapshot]:
        def shown(found: Snapshot) -> Line:
            return {"revision": found.revision, "keys": keys_to_json(found.keys)}

        return self._asked(self._client.range(prefix), shown, "range", prefix=prefix)

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Deferred[TransactionResult]:
        def shown(done: TransactionResult) -> Line:
            return {"succeeded": done.succeeded, "revision": done.revision}

        asked = self._client.transact(compares, writes)
        return self._asked(asked, shown, "transact", **transaction_to_json(compares, writes))

    def watch(
        self,
        prefix: str,
        revision: int,
        changed: Callable[[int, Sequence[Change]], None],
        ended: Callable[[CoordinatorError], None],
    ) -> IWatch:
        return self._client.watch(prefix, revision, changed, ended)

    def close(self) -> Deferred[None]:
        return self._client.close()


def key_of(body: bytes, properties: Mapping[str, str]) -> str:
    """What tells a message from others. Two messages of a few bytes may have the same."""
    return properties.get("UNIQ_KEY") or hashlib.sha256(body).hexdigest()[:16]


def _runs(records: Iterable[Record]) -> Iterator[tuple[str, int, list[str]]]:
    """The queue, the first offset and the keys of messages that follow each other in a queue."""
    found: dict[str, tuple[int, list[str]]] = {}
    for record in records:
        queue, key = f"{record.topic}/{record.queue_id}", key_of(record.body, record.properties)
        first, keys = found.setdefault(queue, (record.queue_offset, []))
        if first + len(keys) != record.queue_offset:
            yield queue, first, keys
            first, keys = found[queue] = record.queue_offset, []
        keys.append(key)
    for queue, (first, keys) in found.items():
        yield queue, first, keys


def keys_to_json(keys: Mapping[str, KeyValue]) -> Line:
    """A coordinator's keys."""
    return {key: [_text(each.value), each.create_revision, each.mod_revision, each.lease] for key, each in keys.items()}


def transaction_to_json(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Line:
    """What a transaction asks for."""
    return {
        "compares": [
            [each.key, each.target.value, _text(each.value) if isinstance(each.value, bytes) else each.value]
            for each in compares
        ],
        "writes": [
            [each.key] if isinstance(each, Delete) else [each.key, _text(each.value), each.lease] for each in writes
        ],
    }


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")
