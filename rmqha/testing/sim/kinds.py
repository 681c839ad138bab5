"""The kinds of messages that a simulation puts."""

from enum import Enum
from random import Random

from rmqha.store.message import Message, MessageBatch
from rmqha.testing.sim.audit import DELAY_SECONDS, TRANSACTION_TYPES
from rmqha.testing.sim.oracle import Put


class Kind(Enum):
    """What is put."""

    PLAIN = "one message of a topic with one queue"
    TAGGED = "a message with tags and keys"
    DELAYED = "a message that is delivered later"
    BATCH = "several messages at once"
    TRANSACTION = "half of a transaction, or the end of one that was rolled back: no queue has it"


def make_message(put: Put, body_bytes: int, kind: Kind, random: Random) -> Message | MessageBatch:
    """A message of this kind, or a batch, with a body at random."""
    body = random.randbytes(body_bytes)
    properties = {} if put.waits else {"WAIT": "false"}
    if kind is Kind.PLAIN:
        return Message("T", body, properties)
    queue_id = random.randrange(3)
    properties |= {"UNIQ_KEY": f"U{put.number}", "KEYS": f"k{put.number} k{put.number % 7}"}
    if kind is Kind.BATCH:
        parts = [
            Message("TBatch", body[at : at + 100], {"UNIQ_KEY": f"U{put.number}-{at}"}, queue_id)
            for at in range(0, len(body) + 1, 100)
        ]
        return MessageBatch("TBatch", parts, queue_id=queue_id, is_wait_store_msg_ok=put.waits)
    if kind is Kind.DELAYED:
        properties["DELAY"] = str(random.randrange(1, len(DELAY_SECONDS) + 1))
    if kind is Kind.TAGGED:
        properties["TAGS"] = random.choice(("A", "TagB"))
    sys_flag = random.choice(TRANSACTION_TYPES) if kind is Kind.TRANSACTION else 0
    return Message("TKinds", body, properties, queue_id, sys_flag=sys_flag)
