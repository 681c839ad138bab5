"""What a producer sends, and the result."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Self
from uuid import uuid4

from rmqha.wire.beans import read_bean
from rmqha.wire.command import ResponseCode
from rmqha.wire.properties import format_properties
from rmqha.wire.record import COMPRESSED_FLAG

UNIQ_KEY = "UNIQ_KEY"
COMPRESS_OVER_BYTES, COMPRESS_LEVEL = 4096, 5
"""As Java's producer compresses (compressMsgBodyOverHowmuch)."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. ``keys`` are separated by spaces. ``delay_level`` 0 means no delay. ``properties`` holds
    further properties. If UNIQ_KEY is one of them, the message keeps that id.

    ``sys_flag`` says whether the body is compressed, and how. ``reconsume_times`` counts the retries of a group,
    and ``max_reconsume_times`` limits them; the group's limit holds if it is None.

    With ``wait_store_msg_ok`` the answer waits for the disk and the slaves as the broker is configured. Without it, the
    answer waits only for the broker's log.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    wait_store_msg_ok: bool = True
    sys_flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    @property
    def unique_key(self) -> str:
        """The id that the message has already, or a new one."""
        return self.properties.get(UNIQ_KEY) or make_unique_key()

    def compressed(self, over: int = COMPRESS_OVER_BYTES) -> Self:
        """The message with its body compressed by zlib; itself if the body has at most ``over`` bytes, is compressed
        already, or would not become smaller.

        Consumers decompress it. This takes up to 50 ms for each MiB: compress large bodies in a thread.
        """
        if len(self.body) <= over or self.sys_flag & COMPRESSED_FLAG:
            return self
        body = zlib.compress(self.body, COMPRESS_LEVEL)
        if len(body) >= len(self.body):
            return self
        return replace(self, body=body, sys_flag=self.sys_flag | COMPRESSED_FLAG)

    def stored_properties(self, unique_key: str) -> str:
        """All properties as they are stored. Raises ValueError if they could not be read back."""
        own = {
            "KEYS": self.keys,
            UNIQ_KEY: unique_key,
            "WAIT": str(self.wait_store_msg_ok).lower(),
            "DELAY": str(self.delay_level) if self.delay_level else "",
            "TAGS": self.tags,
        }
        return format_properties({**self.properties, **{name: value for name, value in own.items() if value}})


def make_unique_key() -> str:
    """32 hex digits that no other message has: the id that applications see."""
    return uuid4().hex.upper()


class MessageQueue(NamedTuple):
    """A queue of a topic, on a master and its slaves."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} at {self.broker_name}"

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """From Java's form. Raises ValueError."""
        return read_bean(cls, content)

    def to_json(self) -> dict[str, Any]:
        """In Java's form and order."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


class SendStatus(Enum):
    """How a message was stored. In all cases it is in the master's log."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


class SendResult(NamedTuple):
    """Where a message is stored. For a batch, both ids list all messages, joined by commas, and the offset is that of
    the first.

    ``msg_id`` is the client's own id (UNIQ_KEY). ``offset_msg_id`` contains the broker's address and the offset in its
    log.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
