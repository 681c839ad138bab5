"""Producers and consumers of ours at work together in a process, as a JSON object says.

``python -m tests.interop.our_clients PLAN`` runs the plan until its stdin closes::

    name_server   its address
    log           a file with a line for each message that a handler has got or whose send was answered SEND_OK: the
                  client's name, the queue id and offset, and the keys
    consumers     a list of {name, group, topic, kind: concurrent|orderly|broadcasting, [expression], [sql],
                  [max_reconsume], [folder], [pause], [never_fails]}
    producers     a list of {name, topic, kind: sync|batch|delay|transaction|orderly, count, [fail], [delays],
                  [repeat]}

It prints ``{"queues": {NAME: COUNT}}`` whenever a consumer has other queues, and at its end what was received and sent.
The property "fail" of a message makes its consumer fail with it: "once", or "always". The transactions of messages are
as in Clients.java.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rmqha.client import (
    ConsumerOptions,
    Edge,
    Message,
    MessageModel,
    ReceivedMessage,
    RetryLater,
    SendResult,
    SendStatus,
    SqlExpression,
    TransactionOutcome,
    by_key,
)
from rmqha.client.aio import Client, Producer, PushConsumer
from rmqha.testing.forkserver import ForkedProcess, start_with_pipes
from tests.waiting import WAIT_SECONDS, wait_until

POLL_SECONDS = 0.05
BATCH = 8
ENDS = (TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, *[TransactionOutcome.UNKNOWN] * 3)


class Worker:
    """Runs a plan."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.plan = plan
        self.log: TextIO = Path(plan["log"]).open("w")  # noqa: SIM115  # open for as long as the process runs
        self.received: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.sent: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.seen: set[tuple[str, str]] = set()
        self.running: dict[str, int] = defaultdict(int)

    async def run(self) -> None:
        stopped = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        clients = [Client(self.plan["name_server"]) for _ in self.plan["consumers"]]
        consumers: dict[str, PushConsumer] = {}
        async with Client(self.plan["name_server"]) as client:
            for own, spec in zip(clients, self.plan["consumers"], strict=True):
                await own.__aenter__()  # one for each: two of them are in one group
                consumers[spec["name"]] = self.consumer(own, spec)
            await asyncio.gather(*(consumer.start() for consumer in consumers.values()))
            telling = asyncio.ensure_future(self.tell_queues(consumers))
            await asyncio.gather(*(self.produce(client, spec) for spec in self.plan["producers"]))
            self.tell(produced=True)
            await stopped
            telling.cancel()
            await asyncio.gather(*(consumer.stop() for consumer in consumers.values()))
            for own in clients:
                await own.__aexit__(None, None, None)
        self.tell(received=self.received, sent=self.sent)

    @staticmethod
    def tell(**fields: Any) -> None:
        print(json.dumps(fields), flush=True)

    async def tell_queues(self, consumers: Mapping[str, PushConsumer]) -> None:
        known: dict[str, int] = {}
        topics = {spec["name"]: spec["topic"] for spec in self.plan["consumers"]}
        while True:
            counts = {
                name: sum(queue.topic == topics[name] for queue in consumer.queues)
                for name, consumer in consumers.items()
            }
            if counts != known:
                known = counts
                self.tell(queues=counts)
            await asyncio.sleep(POLL_SECONDS)

    def consumer(self, client: Client, spec: Mapping[str, Any]) -> PushConsumer:
        name = spec["name"]

        async def handle(message: ReceivedMessage) -> None:
            self.running[name] += 1
            try:
                await asyncio.sleep(spec.get("pause", 0))
            finally:
                self.running[name] -= 1
            fail = message.properties.get("fail")
            fails = fail == "always" or (fail == "once" and (name, message.keys) not in self.seen)
            fails &= not spec.get("never_fails", False)
            self.seen.add((name, message.keys))
            self.received[name].append(
                {
                    "topic": message.topic,
                    "body_sha256": sha256(message.body).hexdigest(),
                    "keys": message.keys,
                    "tags": message.tags,
                    "queue": message.queue,
                    "queue_id": message.queue.queue_id,
                    "queue_offset": message.queue_offset,
                    "reconsume_times": message.reconsume_times,
                    "failed": fails,
                    "at": time.time(),
                    "born_at": message.born_timestamp / 1000,
                }
            )
            self.note(name, message.queue.queue_id, message.queue_offset, message.keys)
            if fails:
                raise RetryLater

        options = ConsumerOptions(
            model=MessageModel.BROADCASTING if spec["kind"] == "broadcasting" else MessageModel.CLUSTERING,
            is_ordered=spec["kind"] == "orderly",
            start=Edge.MIN,
            max_reconsume_times=spec.get("max_reconsume"),
            persist_seconds=1.0,
            retry_pause_seconds=0.2,
            offset_folder=Path(spec["folder"]) if "folder" in spec else None,
            instance=name,
        )
        expression = SqlExpression(spec["sql"]) if "sql" in spec else spec.get("expression", "*")
        return client.push_consumer(spec["group"], handle, {spec["topic"]: expression}, options)

    def note(self, name: str, queue_id: int, queue_offset: int, keys: str) -> None:
        self.log.write(f"{name} {queue_id} {queue_offset} {keys}\n")
        self.log.flush()

    async def produce(self, client: Client, spec: Mapping[str, Any]) -> None:
        messages = [self.message(spec, number) for number in range(spec["count"])]
        producer = client.producer(spec["name"], timeout=60.0)
        if spec["kind"] == "transaction":
            await self.produce_transactions(client, spec, messages)
        elif spec["kind"] == "batch":
            for at in range(0, len(messages), BATCH):
                result = await producer.send_batch(messages[at : at + BATCH])
                for message in messages[at : at + BATCH]:
                    self.note_sent(spec, message, result)
        else:
            for number, message in enumerate(messages):
                self.note_sent(spec, message, await self.send(producer, spec, message, number))

    async def send(self, producer: Producer, spec: Mapping[str, Any], message: Message, number: int) -> SendResult:
        if spec["kind"] == "orderly":
            return await producer.send_ordered(message, by_key(str(number % 7)))
        return await producer.send(message.compressed())

    async def produce_transactions(self, client: Client, spec: Mapping[str, Any], messages: Sequence[Message]) -> None:
        checked: set[str] = set()

        async def check(message: ReceivedMessage) -> TransactionOutcome:
            number = int(message.keys.rpartition("-")[2]) % 5
            if number in (1, 2):
                return TransactionOutcome.ROLLBACK
            again = number == 4 and message.keys not in checked
            checked.add(message.keys)
            return TransactionOutcome.UNKNOWN if again else TransactionOutcome.COMMIT

        async def execute(message: Message) -> TransactionOutcome:
            return ENDS[int(message.keys.rpartition("-")[2]) % 5]

        producer = client.transaction_producer(spec["name"], check)
        await producer.__aenter__()  # it answers checks until the client ends
        for message in messages:
            self.note_sent(spec, message, (await producer.send(message, execute)).sent)

    @staticmethod
    def message(spec: Mapping[str, Any], number: int) -> Message:
        delays = spec.get("delays")
        return Message(
            spec["topic"],
            f"{spec['name']} {number} größe 消息 😀".encode() * spec.get("repeat", 1),
            f"tag{number % 4}",
            f"{spec['name']}-{number}",
            {"fail": spec["fail"]} if "fail" in spec else {},
            delay_level=delays[number % len(delays)] if delays else 0,
        )

    def note_sent(self, spec: Mapping[str, Any], message: Message, result: SendResult) -> None:
        self.sent[spec["name"]].append(
            {
                "keys": message.keys,
                "status": result.status.name,
                "delay_level": message.delay_level,
                "body_sha256": sha256(message.body).hexdigest(),
            }
        )
        if result.status is SendStatus.SEND_OK:
            self.note(spec["name"], result.queue.queue_id, result.queue_offset, message.keys)


class OurClients:
    """A process that runs a plan, for a test: wait for what it does, then ``stop`` it. A context manager."""

    def __init__(self, work: Path, name_server: str, **plan: Any) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.log = work / "log"
        self.output = work / "output"
        self._errors = work / "errors"
        whole = {"name_server": name_server, "log": str(self.log), "consumers": [], "producers": [], **plan}
        (work / "plan.json").write_text(json.dumps(whole))
        self._plan = work / "plan.json"
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def __enter__(self) -> Self:
        with self.output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = start_with_pipes("tests.interop.our_clients", [str(self._plan)], errors, output)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    def told(self, field: str) -> list[Any]:
        """What it has told about this."""
        lines = self.output.read_text().splitlines()
        return [json.loads(line)[field] for line in lines if line.endswith("}") and f'"{field}"' in line[:20]]

    def wait_for(self, field: str) -> None:
        """Wait until it has told this."""
        self._wait(lambda: bool(self.told(field)), field)

    def wait_for_queues(self, **counts: int) -> None:
        """Wait until these consumers have so many queues."""
        self._wait(lambda: counts.items() <= (self.told("queues") or [{}])[-1].items(), f"queues {counts}")

    def noted(self, *clients: str) -> list[tuple[str, int, int]]:
        """Keys, queue ids and offsets of what these have received or sent."""
        rows = [line.split(" ") for line in self.log.read_text().split("\n")[:-1]] if self.log.exists() else []
        return [(keys, int(queue_id), int(offset)) for name, queue_id, offset, keys in rows if name in clients]

    def keys_of(self, *clients: str) -> set[str]:
        """The keys of all messages that these have received or sent."""
        return {key for key, _, _ in self.noted(*clients)}

    def wait_for_count(self, count: int, *clients: str) -> None:
        """Wait until these have received or sent so many different messages."""
        self._wait(lambda: len(self.keys_of(*clients)) >= count, f"{count} of {clients}")

    def wait_for_calls(self, count: int, *clients: str) -> None:
        """Wait until handlers of these were called so often."""
        self._wait(lambda: len(self.noted(*clients)) >= count, f"{count} calls of {clients}")

    def _wait(self, condition: Any, what: str) -> None:
        def reached() -> bool:
            assert self._process is not None, "it was started"
            assert self._process.poll() is None, self._errors.read_text()[-3000:]
            return bool(condition())

        wait_until(reached, f"our clients: {what}")

    def stop(self) -> dict[str, Any]:
        """Stop its consumers cleanly. Returns what was received and sent, by the names of clients."""
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        assert self._process.wait(WAIT_SECONDS) == 0, self._errors.read_text()[-3000:]
        assert self._errors.read_text() == ""
        report: dict[str, Any] = json.loads(self.output.read_text().splitlines()[-1])
        return report


if __name__ == "__main__":
    asyncio.run(Worker(json.loads(Path(sys.argv[1]).read_text())).run())
