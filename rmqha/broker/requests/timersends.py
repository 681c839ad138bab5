"""What becomes of a timer message of RocketMQ 5.x that a client sends (setDelayTimeMs, setDeliverTimeMs).

It is put into the topic ``rmq_sys_wheel_timer``, where ``background.timermessages`` finds it. The rules are those of
Java's brokers, but for two: a transactional message cannot be a timer message, and a message that cancels another one
must say when that is due.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Self
from uuid import uuid4

from rmqha.kit.wallclock import IWallClock
from rmqha.settings.settings import Settings
from rmqha.store.message import Message
from rmqha.store.messagestore import MessageStore
from rmqha.wire.layout import FIXED_BYTES, IPV6_EXTRA_BYTES
from rmqha.wire.properties import format_properties
from rmqha.wire.record import MAX_PROPERTIES_BYTES
from rmqha.wire.timers import (
    DELAY_MS,
    DELAY_SECONDS,
    DELIVER_MS,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_CANCELS,
    TIMER_OUT_MS,
    TIMER_PRECISION_MS,
    TIMER_QUEUE_ID,
    TIMER_TOPIC,
    TIMES,
    UNIQUE_KEY,
)
from rmqha.wire.topics import RETRY_PREFIX

MOST_DIGITS = 18
TOPIC_AND_KEY = "+"
"""Stands between both where a message that cancels names another one."""
MAX_LEVEL_DIGITS = 10
ROOM_FOR_ROLLS = len("TIMER_ROLL_TIMES") + 12
NOT_TAKEN = (
    "this broker (rmqha) takes timer messages of RocketMQ 5 only if its log has some already, or with "
    "timerWheelEnable=true: a broker of RocketMQ 4.9 would never deliver them. Use a delay level (setDelayTimeLevel). "
    "Refused because of the property {name}"
)
SWITCHED_OFF = "this broker (rmqha) has timerWheelEnable=false. Refused because of the property {name}"


HANDLE_VERSION = "v1"


class RecallHandle(NamedTuple):
    """What a client of 5.x gets for a timer message, to take it back by: ``recallMessage(topic, handle)``.

    ``due_ms`` is a millisecond after the time of delivery. The client's text is the parts with spaces between them, in
    URL-safe base64.
    """

    topic: str
    broker_name: str
    due_ms: str
    unique_key: str

    @classmethod
    def of(cls, stored: Mapping[str, str], broker_name: str) -> Self | None:
        """For a message that waits, with these properties. None if it cannot be taken back."""
        topic, key = stored[REAL_TOPIC], stored.get(UNIQUE_KEY)
        if key is None or topic.startswith(RETRY_PREFIX) or TIMER_CANCELS in stored:
            return None
        return cls(topic, broker_name, str(int(stored[TIMER_OUT_MS]) + 1), key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a client's text. Raises ValueError."""
        version, *parts = urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
        if version != HANDLE_VERSION or len(parts) < len(cls._fields):
            raise ValueError(f"a handle of version {version[:10]!r} with {len(parts)} parts")
        return cls(*parts[: len(cls._fields)])

    def __str__(self) -> str:
        return urlsafe_b64encode(" ".join((HANDLE_VERSION, *self)).encode()).decode("ascii")


class TimerRefused(Exception):
    """The message cannot be sent. Its text is for the client."""


class TimerSends:
    """Decides what becomes of messages with properties of timers."""

    def __init__(self, store: MessageStore, wall: IWallClock) -> None:
        self._store = store
        self._now_ms = wall.now_ms

    def waiting(self, message: Message, properties: Mapping[str, str], settings: Settings) -> Message | None:
        """The message as it waits; None if it is not a timer message, or is due already. Raises TimerRefused."""
        delay_level = properties.get("DELAY", "0")
        is_level = delay_level.isdecimal() and len(delay_level) <= MAX_LEVEL_DIGITS and int(delay_level) > 0
        if TIMER_OUT_MS in properties or is_level:
            return None
        name = next((name for name in (*TIMES, TIMER_CANCELS) if name in properties), None)
        if name is None:
            return None
        self._check_taken(settings, name)
        if properties.get("TRAN_MSG", "").lower() == "true":
            raise TimerRefused(f"a transactional message cannot be a timer message (property {name})")
        if name == TIMER_CANCELS:
            raise TimerRefused(f"{TIMER_CANCELS} needs the time at which the other message is due: {', '.join(TIMES)}")
        cancelled = properties.get(TIMER_CANCELS, "")
        if TOPIC_AND_KEY in cancelled and not cancelled.startswith(f"{message.topic}{TOPIC_AND_KEY}"):
            raise TimerRefused(
                f"{TIMER_CANCELS}={cancelled[:200]!r} in a message for topic {message.topic} cancels nothing: "
                f"a message cancels others of its own topic, as {message.topic}+KEY"
            )
        now = self._now_ms()
        due = _time_of(properties, name, now)
        if due <= now:
            if TIMER_CANCELS in properties:
                raise TimerRefused("the message to cancel is due already")
            return None
        if due - now > settings.timer_max_delay_seconds * 1000:
            raise TimerRefused(
                f"the message is due in {(due - now) // 1000} s: the setting timerMaxDelaySec allows "
                f"{settings.timer_max_delay_seconds} s"
            )
        stored = {
            UNIQUE_KEY: uuid4().hex.upper(),  # if it has none: copies of one message must be known as such
            **properties,
            "CLUSTER": settings.broker_cluster_name,
            TIMER_OUT_MS: str((due - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS),
            REAL_TOPIC: message.topic,
            REAL_QUEUE_ID: str(message.queue_id),
        }
        waits = stored.pop("WAIT", "true")
        text = format_properties(stored)
        self._check_size(message, text, settings)
        return replace(
            message,
            topic=TIMER_TOPIC,
            queue_id=TIMER_QUEUE_ID,
            properties={"WAIT": waits},
            properties_stored=text,
        )

    @staticmethod
    def _check_size(message: Message, stored: str, settings: Settings) -> None:
        """It must still fit in its own topic, and when it is put again while it waits."""
        properties = len(_bytes(stored)) + ROOM_FOR_ROLLS
        topic = max(len(TIMER_TOPIC), len(_bytes(message.topic)))
        whole = FIXED_BYTES + 2 * IPV6_EXTRA_BYTES + len(message.body) + topic + properties
        if properties > MAX_PROPERTIES_BYTES or whole > settings.max_message_size_bytes:
            raise TimerRefused(
                f"the message is too long to wait: its properties have {properties} bytes with the broker's, at most "
                f"{MAX_PROPERTIES_BYTES} may be, and all of it {whole}, at most {settings.max_message_size_bytes}"
            )

    def _check_taken(self, settings: Settings, name: str) -> None:
        if settings.timer_wheel_enable is False:
            raise TimerRefused(SWITCHED_OFF.format(name=name))
        has_some = self._store.reader.max_offset(TIMER_TOPIC, TIMER_QUEUE_ID) > 0
        if settings.timer_wheel_enable is None and not has_some:
            raise TimerRefused(NOT_TAKEN.format(name=name))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _time_of(properties: Mapping[str, str], name: str, now_ms: int) -> int:
    """When a message is due, in ms. Raises TimerRefused."""
    text = properties[name]
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS):
        raise TimerRefused(f"the property {name} is {text[:40]!r}, which is not a time")
    number = int(text)
    return {DELAY_SECONDS: now_ms + number * 1000, DELAY_MS: now_ms + number, DELIVER_MS: number}[name]
