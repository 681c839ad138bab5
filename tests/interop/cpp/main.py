"""What the interop tests ask of the official C++ client, one command a process. It needs PyPI's `rocketmq` beside it.

- ``produce NAMESRV TOPIC MODE FIRST COUNT BODY_BYTES``: MODE is sync, async, oneway (the last is sent as by sync),
  batch, delay (level 1), ordered (messages of a tag go to one queue) or steady (from FIRST on, until it is killed)
- ``consume NAMESRV TOPIC GROUP TAGS MEMBERS``: so many push consumers of one group, until standard input ends.
  "broadcast": two consumers, which both get all messages. "failing": one, which fails for each message at first.
  "orderly": one, which takes the messages of a queue one after another. "orderly-failing" is both

It prints a line of JSON for each answer or message. Message 7 has the body "k7|k7|…", the key "k7", one of four tags,
and the property "number". The library runs our callbacks in threads of its own.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage, SendStatus
from rocketmq.exceptions import RocketMQException, ffi_check
from rocketmq.ffi import MessageModel, _CConsumeStatus, dll

SEND_TIMEOUT_MS = 60_000
BATCH_SIZE = 16
STEADY_SECONDS = 0.02
TAGS = 4

_printing = threading.Lock()


def tell(**line: Any) -> None:
    with _printing:
        print(json.dumps(line), flush=True)


# -- a producer ----------------------------------------------------------------------------------------------


def message(topic: str, number: int, size: int) -> Any:
    unit = f"k{number}|"
    made = Message(topic)
    made.set_body((unit * (size // len(unit) + 1))[:size])
    made.set_tags(f"tag{number % TAGS}")
    made.set_keys(f"k{number}")
    made.set_property("number", str(number))
    return made


def answered(result: Any, number: int) -> None:
    tell(
        status="SEND_OK" if result.status is SendStatus.OK else result.status.name,
        msg_id=result.msg_id,
        keys=f"k{number}",
    )


def produce(namesrv: str, topic: str, mode: str, first: str, count: str, size: str) -> None:
    producer = Producer("PGCpp", timeout=SEND_TIMEOUT_MS)
    producer.set_namesrv_addr(namesrv)
    producer.start()
    if mode == "steady":
        send_for_ever(producer, topic, int(first), int(size))
    numbers = range(int(first), int(first) + int(count))
    MODES[mode](producer, [(number, message(topic, number, int(size))) for number in numbers])
    producer.shutdown()


Numbered = list[tuple[int, Any]]


def send_one_by_one(producer: Any, messages: Numbered) -> None:
    for number, each in messages:
        answered(producer.send_sync(each), number)


def send_delayed(producer: Any, messages: Numbered) -> None:
    for _, each in messages:
        each.set_delay_time_level(1)
    send_one_by_one(producer, messages)


def send_one_way(producer: Any, messages: Numbered) -> None:
    """All are sent over one connection: once the last is answered, the broker has all."""
    for _, each in messages[:-1]:
        producer.send_oneway(each)
    send_one_by_one(producer, messages[-1:])


def send_in_batches(producer: Any, messages: Numbered) -> None:
    for start in range(0, len(messages), BATCH_SIZE):
        part = messages[start : start + BATCH_SIZE]
        answered(producer.send_batch([each for _, each in part]), part[0][0])


def send_ordered(producer: Any, messages: Numbered) -> None:
    for number, each in messages:
        answered(producer.send_orderly(each, number % TAGS), number)


def send_all_at_once(producer: Any, messages: Numbered) -> None:
    waiting = threading.Semaphore(0)

    def send(number: int, each: Any) -> None:
        def sent(result: Any) -> None:
            answered(result, number)
            waiting.release()

        def failed(error: Exception) -> None:
            tell(status=str(error), keys=f"k{number}")
            waiting.release()

        producer.send_async(each, sent, failed)

    for number, each in messages:
        send(number, each)
    for _ in messages:
        waiting.acquire()


def send_for_ever(producer: Any, topic: str, number: int, size: int) -> None:
    while True:
        try:
            answered(producer.send_sync(message(topic, number, size)), number)
        except RocketMQException as error:
            tell(status=str(error), keys=f"k{number}")
        number += 1
        time.sleep(STEADY_SECONDS)


MODES: dict[str, Callable[[Any, Numbered], None]] = {
    "sync": send_one_by_one,
    "async": send_all_at_once,
    "oneway": send_one_way,
    "batch": send_in_batches,
    "delay": send_delayed,
    "ordered": send_ordered,
}


# -- consumers -----------------------------------------------------------------------------------------------


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def consume(namesrv: str, topic: str, group: str, tags: str, members: str) -> None:
    is_broadcast = members == "broadcast"
    count = int(members) if members.isdigit() else 1 + is_broadcast
    # The library stops a consumer that nothing names.
    consumers = [PushConsumer(group, orderly="orderly" in members) for _ in range(count)]
    for member, consumer in enumerate(consumers):
        consumer.set_message_model(MessageModel.BROADCASTING if is_broadcast else MessageModel.CLUSTERING)
        consumer.set_namesrv_addr(namesrv)
        consumer.set_instance_name(f"{os.getpid()}-{member}")
        ffi_check(dll.Subscribe(consumer._handle, topic.encode(), tags.encode()))
        consumer._register_callback(listener(member, members))
        consumer.start()
    sys.stdin.read()


def listener(member: int, members: str) -> Callable[[int, int], int]:
    """What takes a message. With the wrapper's own `subscribe` only an exception fails, and Python prints each."""
    failed: set[bytes] = set()

    def fails(found: Any) -> bool:
        """Where one message of a pull fails all come again, so all must fail. Orderly ones have no count of retries."""
        if members != "orderly-failing":
            return members == "failing" and found.reconsume_times == 0
        is_first = found.keys not in failed
        failed.add(found.keys)
        return is_first

    def take(_consumer: int, handle: int) -> int:
        found = RecvMessage(handle)
        if fails(found):
            return int(_CConsumeStatus.RECONSUME_LATER)
        tell(
            member=member,
            msg_id=found.id,
            body=base64.b64encode(found.body).decode(),
            tags=text(found.tags),
            keys=text(found.keys),
            properties={"number": text(found.get_property("number"))},
            reconsumed=found.reconsume_times,
            queue=found.queue_id,
            stored_bytes=found.store_size,
        )
        return int(_CConsumeStatus.CONSUME_SUCCESS)

    return take


def main(command: str, *words: str) -> None:
    commands: dict[str, Callable[..., None]] = {"produce": produce, "consume": consume}
    commands[command](*words)
    sys.stdout.flush()
    os._exit(0)  # threads of the library may still run


if __name__ == "__main__":
    main(*sys.argv[1:])
