"""What consumers say about themselves in heartbeats (spec/remoting.md 2.7)."""

from enum import Enum


class ConsumeType(Enum):
    """Whether a consumer pulls, or is served as messages arrive. In the order of Java's ordinals."""

    CONSUME_ACTIVELY = "pull"
    CONSUME_PASSIVELY = "push"


class MessageModel(Enum):
    """Whether each client of a group gets all messages, or the clients share them. In the order of Java's ordinals."""

    BROADCASTING = "all"
    CLUSTERING = "shared"


class ConsumeFromWhere(Enum):
    """Where a group without an offset starts to read. In the order of Java's ordinals."""

    CONSUME_FROM_LAST_OFFSET = "at the end"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "at the end, but the first time at the start"
    CONSUME_FROM_MIN_OFFSET = "at the smallest offset"
    CONSUME_FROM_MAX_OFFSET = "at the largest offset"
    CONSUME_FROM_FIRST_OFFSET = "at the start"
    CONSUME_FROM_TIMESTAMP = "at a time"
