"""What a push consumer tells operators about itself: GET_CONSUMER_RUNNING_INFO and CONSUME_MESSAGE_DIRECTLY.

``mqadmin consumerStatus`` and the Dashboard show it (spec/remoting.md 2.21).
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from traceback import format_stack
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from rmqha.client.consuming import ConsumerOptions, Handler, RetryLater
from rmqha.client.message import MessageQueue
from rmqha.client.reading import QueueReader
from rmqha.client.received import BodyError, ReceivedMessage
from rmqha.wire.fastjson import ObjectKey, dumps_strict
from rmqha.wire.heartbeat import ConsumeType
from rmqha.wire.record import Record
from rmqha.wire.subscription import SubscriptionData

WINDOW_SECONDS = 60
"""Rates and times are those of the last minute."""
MAX_STACKS_CHARACTERS = 64 * 1024
MAX_REMARK_CHARACTERS = 1000
MAX_DIRECTLY = 16
"""Messages that operators let a consumer handle at the same time."""


@dataclass(slots=True)
class _Second:
    """What happened in one second. Times are in seconds."""

    at: int = -1
    pulls: int = 0
    pulled: int = 0
    pull_seconds: float = 0.0
    done: int = 0
    failed: int = 0
    handler_seconds: float = 0.0


@dataclass(slots=True)
class _OfTopic:
    """The seconds of the last minute, and what failed since the start."""

    seconds: list[_Second] = field(default_factory=lambda: [_Second() for _ in range(WINDOW_SECONDS)])
    failed: int = 0

    def now(self, second: int) -> _Second:
        """This second."""
        found = self.seconds[second % WINDOW_SECONDS]
        if found.at != second:
            found = self.seconds[second % WINDOW_SECONDS] = _Second(second)
        return found

    def last_minute(self, second: int) -> list[_Second]:
        """What happened in it."""
        return [found for found in self.seconds if second - WINDOW_SECONDS < found.at <= second]


class Figures:
    """Counts pulls and handled messages by topic."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._topics: defaultdict[str, _OfTopic] = defaultdict(_OfTopic)

    def pulled(self, topic: str, count: int, seconds: float) -> None:
        """A pull brought messages."""
        found = self._topics[topic].now(int(self._clock.seconds()))
        found.pulls += 1
        found.pulled += count
        found.pull_seconds += seconds

    def measured(self, handler: Handler) -> Handler:
        """The same handler. What it does is counted."""

        def call(message: ReceivedMessage) -> Deferred[Any]:
            begun = self._clock.seconds()

            def over(result: Any) -> Any:
                self._handled(message.topic, self._clock.seconds() - begun, isinstance(result, Failure))
                return result

            return maybeDeferred(handler, message).addBoth(over)

        return call

    def _handled(self, topic: str, seconds: float, has_failed: bool) -> None:
        of_topic = self._topics[topic]
        found = of_topic.now(int(self._clock.seconds()))
        found.done += not has_failed
        found.failed += has_failed
        found.handler_seconds += seconds
        of_topic.failed += has_failed

    def status(self, topic: str) -> dict[str, Any]:
        """A ConsumeStatus in Java's form: times in ms, rates in messages a second."""
        of_topic = self._topics[topic] if topic in self._topics else _OfTopic()
        minute = of_topic.last_minute(int(self._clock.seconds()))
        pulls, calls = sum(each.pulls for each in minute), sum(each.done + each.failed for each in minute)
        return {
            "consumeFailedMsgs": of_topic.failed,
            "consumeFailedTPS": sum(each.failed for each in minute) / WINDOW_SECONDS,
            "consumeOKTPS": sum(each.done for each in minute) / WINDOW_SECONDS,
            "consumeRT": sum(each.handler_seconds for each in minute) * 1000 / calls if calls else 0.0,
            "pullRT": sum(each.pull_seconds for each in minute) * 1000 / pulls if pulls else 0.0,
            "pullTPS": sum(each.pulled for each in minute) / WINDOW_SECONDS,
        }


class RunningInfo:
    """Describes a push consumer, and lets its handler handle single messages for operators."""

    def __init__(
        self,
        group: str,
        options: ConsumerOptions,
        handler: Handler,
        clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:
        self._group = group
        self._options = options
        self._handler = handler
        self._clock = clock
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._directly = 0
        self.figures = Figures(clock)

    def describe(
        self,
        subscriptions: Iterable[SubscriptionData],
        readers: Mapping[MessageQueue, QueueReader],
        locked: Container[MessageQueue],
        with_stacks: bool,
    ) -> dict[str, Any]:
        """A ConsumerRunningInfo in Java's form."""
        wanted = sorted(subscriptions, key=lambda each: (each.topic, each.sub_string))
        queues = {_key(queue): self._of_queue(readers[queue], queue in locked) for queue in sorted(readers)}
        return {
            **({"jstack": stacks()} if with_stacks else {}),
            "mqTable": queues,
            "properties": self._properties(),
            "statusTable": {each.topic: self.figures.status(each.topic) for each in wanted},
            "subscriptionSet": [each.to_json() for each in wanted],
        }

    def _properties(self) -> dict[str, str]:
        """By Java's names, where it has one."""
        options = self._options
        tries = options.max_tries
        return {
            "PROP_CONSUMEORDERLY": str(options.is_ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.name,
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "consumeFromWhere": options.consume_from_where.name,
            "consumerGroup": self._group,
            "maxReconsumeTimes": "-1" if tries is None else str(tries),
            "messageModel": options.model.name,
            "persistConsumerOffsetInterval": str(int(options.persist_seconds * 1000)),
            "pullThresholdForQueue": str(options.cache.messages_of_queue),
        }

    def _of_queue(self, reader: QueueReader, is_locked: bool) -> dict[str, Any]:
        """A ProcessQueueInfo in Java's form. Offsets are -1 and 0 where nothing was read yet."""
        low, high, count, size = reader.cached
        return {
            "cachedMsgCount": count,
            "cachedMsgMaxOffset": high,
            "cachedMsgMinOffset": low,
            "cachedMsgSizeInMiB": size >> 20,
            "commitOffset": -1 if reader.commit_offset is None else reader.commit_offset,
            "droped": reader.is_dropped,
            "lastConsumeTimestamp": self._wall_ms(reader.finished_at),
            "lastLockTimestamp": 0,
            "lastPullTimestamp": self._wall_ms(reader.pulled_at),
            "locked": is_locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }

    def _wall_ms(self, at: float | None) -> int:
        """A time of the clock in ms since 1970; 0 if there is none."""
        return 0 if at is None else self._now_ms() - int((self._clock.seconds() - at) * 1000)

    async def handle_directly(self, record: Record, queue: MessageQueue) -> dict[str, Any]:
        """Let the handler handle a message now. Returns a ConsumeMessageDirectlyResult in Java's form.

        Its outcome changes no offset. If it fails, the message does not come again because of that.
        """
        begun = self._clock.seconds()
        result, remark = "CR_SUCCESS", None
        if self._directly >= MAX_DIRECTLY:
            result, remark = "CR_LATER", f"{MAX_DIRECTLY} messages are handled for operators already"
        else:
            self._directly += 1
            try:
                await maybeDeferred(self._handler, ReceivedMessage.of(record, queue))
            except RetryLater as later:
                result, remark = "CR_LATER", str(later)
            except (BodyError, Exception) as error:  # of any kind: the operator wants to see it
                result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
            finally:
                self._directly -= 1
        return {
            "autoCommit": True,
            "consumeResult": result,
            "order": self._options.is_ordered,
            **({} if remark is None else {"remark": remark[:MAX_REMARK_CHARACTERS]}),
            "spentTimeMills": int((self._clock.seconds() - begun) * 1000),
        }


def _key(queue: MessageQueue) -> ObjectKey:
    return ObjectKey(dumps_strict(queue.to_json()).decode())


def stacks() -> str:
    """Where each thread of the process is now."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    texts = [f"{names.get(ident, ident)}\n{''.join(format_stack(frame))}" for ident, frame in frames]
    return "\n".join(texts)[:MAX_STACKS_CHARACTERS]
