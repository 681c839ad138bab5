"""Timer messages of RocketMQ 5.x: the topic where they wait, and their properties (spec/store.md 15)."""

from collections.abc import Mapping

TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_QUEUE_ID = 0
TIMER_OUT_MS, REAL_TOPIC, REAL_QUEUE_ID = "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"
DELAY_SECONDS, DELAY_MS, DELIVER_MS = "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"
TIMES = (DELAY_SECONDS, DELAY_MS, DELIVER_MS)
"""What a client gives as the time. Java's broker takes the first of these that is there."""
TIMER_CANCELS = "TIMER_DEL_UNIQKEY"
"""A message with this property cancels another one: its value is the unique key of that, or its topic, "+" and key."""
ROLL_TIMES = "TIMER_ROLL_TIMES"
"""How often a message was put again while it waited, so that retention does not delete it."""
UNIQUE_KEY = "UNIQ_KEY"
TIMER_PROPERTIES = (
    *(*TIMES, TIMER_OUT_MS, TIMER_CANCELS, ROLL_TIMES),
    *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DELAY_LEVEL"),
)
"""All that clients and brokers give to a timer message, but its real topic and queue."""
TIMER_PRECISION_MS = 1000
"""Times of delivery are whole seconds."""
CANCELS = -1
"""The rolls of a message that cancels others."""
MAX_ROLLS_DIGITS = 9


def due_of(properties: Mapping[str, str]) -> int | None:
    """When a timer message is to be delivered, in ms. None for any other message."""
    try:
        return int(properties[TIMER_OUT_MS])
    except (KeyError, ValueError):
        return None


def cancelled_or_own_key(properties: Mapping[str, str]) -> str | None:
    """The topic, "+" and the unique key of a timer message, or of the one that it cancels. None if it has no key."""
    topic = properties.get(REAL_TOPIC, "")
    cancelled = properties.get(TIMER_CANCELS)
    if cancelled is not None:
        return cancelled if cancelled.startswith(f"{topic}+") else f"{topic}+{cancelled}"
    unique = properties.get(UNIQUE_KEY)
    return None if unique is None else f"{topic}+{unique}"


def rolls_of(properties: Mapping[str, str]) -> int:
    """How often the message was put again while it waited, or CANCELS."""
    if TIMER_CANCELS in properties:
        return CANCELS
    times = properties.get(ROLL_TIMES, "")
    return int(times) if times.isascii() and times.isdecimal() and len(times) <= MAX_ROLLS_DIGITS else 0
