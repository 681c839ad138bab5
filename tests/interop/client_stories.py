"""What clients in other languages must show with a pair of ours, whatever their language. Needs no pytest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rmqha.wire.command import RequestCode
from tests.interop.nodes import ask
from tests.interop.otherclient import BODY_BYTES, ClientProgram, OurPair, Running, as_sent, message_of, our_pair
from tests.interop.requests import any_answer
from tests.interop.taken import most_are_taken
from tests.interop.test_acl import TOPIC as QUEUES
from tests.interop.test_failover import wait_for_topics
from tests.interop.test_promotion import promote
from tests.waiting import wait_until

COUNT: Final = 100
NUMBERS: Final = range(COUNT)
LATE_NUMBERS: Final = range(10**6, 10**6 + COUNT)
MORE: Final = 20
ORDINARY_MODES: Final = ("sync", "async", "oneway")
QUEUE_COUNT: Final = int(QUEUES["writeQueueNums"])
COMPRESSED_BYTES: Final = 5000
"""The clients compress bodies from 4 KiB on."""


@dataclass(frozen=True, slots=True)
class ClientStories:
    """A client, and our pair with a topic for it. ``work`` takes what its processes say."""

    program: ClientProgram
    pair: OurPair
    topic: str
    work: Path

    def produce(self, mode: str, numbers: range = NUMBERS, body_bytes: int = BODY_BYTES) -> list[dict[str, Any]]:
        """The answers to messages of these numbers. The broker takes many ordinary ones by its short way."""
        is_seen = mode in ORDINARY_MODES and len(numbers) >= COUNT
        with most_are_taken(self.pair.master, len(numbers)) if is_seen else nullcontext():
            return self.program.produce(self.pair.namesrv, self.topic, mode, numbers, body_bytes)

    def consumers(self, group: str, tags: str = "*", members: int | str = 1) -> Running:
        """Push consumers of one group."""
        return self.program.consumers(self.work, self.pair.namesrv, self.topic, group, tags, members)

    def steady_producer(self) -> Running:
        """A producer that goes on until it is killed."""
        return self.program.producer(self.work, self.pair.namesrv, self.topic, "steady", BODY_BYTES)

    # -- the stories -----------------------------------------------------------------------------------------

    def consume_all(self, numbers: range = NUMBERS, body_bytes: int = BODY_BYTES) -> list[dict[str, Any]]:
        """All messages are there, each once, at the first try and as it was."""
        with self.consumers("g-all") as consumers:
            messages = consumers.wait_for(len(numbers))
        assert sorted(map(as_sent, messages)) == sorted(message_of(number, body_bytes) for number in numbers)
        assert {message["reconsumed"] for message in messages} == {0}
        return messages

    def send_and_consume(
        self, mode: str, numbers: range = NUMBERS, body_bytes: int = BODY_BYTES, *, same_ids: bool = True
    ) -> list[dict[str, Any]]:
        """What it sends it gets once and as it was, with the ids that the producer was told."""
        answers = self.produce(mode, numbers, body_bytes)
        assert {answer["status"] for answer in answers} == {"SEND_OK"}
        messages = self.consume_all(numbers, body_bytes)
        if same_ids:
            assert sorted(answer["msg_id"] for answer in answers) == sorted(message["msg_id"] for message in messages)
        return messages

    def send_one_way(self, numbers: range = NUMBERS) -> None:
        """Nothing is lost that it sends without waiting for answers; the last is answered."""
        (last,) = self.produce("oneway", numbers)
        assert last["status"] == "SEND_OK"
        self.consume_all(numbers)

    def consume_some(self, tags: str, numbers: range = NUMBERS) -> None:
        """A consumer gets the messages of tags 1 and 3 that it asks for, and no others."""
        self.produce("sync", numbers)
        wanted = [number for number in numbers if number % 4 in (1, 3)]
        with self.consumers("g-tags", tags) as consumers:
            assert sorted(map(as_sent, consumers.wait_for(len(wanted)))) == sorted(map(message_of, wanted))

    def broadcast(self) -> None:
        """Two consumers that listen already both get all that comes then, each message once."""
        with self.consumers("g-broadcast", members="broadcast") as consumers:
            with self.steady_producer():
                consumers.wait_until(lambda found: _hears_all(found) == {0, 1}, "both to hear all")
            self.produce("sync", LATE_NUMBERS)
            wanted = {f"k{number}" for number in LATE_NUMBERS}

            def late(found: list[dict[str, Any]]) -> Counter[tuple[int, str]]:
                return Counter((each["member"], each["keys"]) for each in found if each["keys"] in wanted)

            consumers.wait_until(lambda found: len(late(found)) == 2 * COUNT, "all messages twice")
            assert set(late(consumers.received()).values()) == {1}

    def share(self) -> None:
        """Each member of a group has a share."""
        self.produce("sync")
        with self.consumers("g-members", members=2) as shares:
            shares.wait_for(COUNT)
            with self.steady_producer():
                shares.wait_until(
                    lambda found: len({each["member"] for each in found}) == 2, "both members to get some"
                )

    def try_again(self) -> None:
        """Each message that fails comes again, once."""
        self.produce("sync")
        with self.consumers("g-failing", members="failing") as consumers:
            messages = consumers.wait_for(COUNT)
        assert {as_sent(message) for message in messages} == {message_of(number) for number in NUMBERS}
        assert {message["reconsumed"] for message in messages} == {1}

    def read_from_slave(self) -> None:
        """Once the master is killed, a consumer that runs and one that starts now get all from the slave."""
        self.produce("sync", range(1))
        with self.consumers("g-running") as running:
            running.wait_for(1)
            self.produce("sync")
            self.pair.master.kill()
            with self.consumers("g-late") as late:
                for consumers in (running, late):
                    assert set(map(as_sent, consumers.wait_for(COUNT))) == set(map(message_of, NUMBERS))

    def go_on_with_promoted_slave(self) -> None:
        """Producer and consumer go on, and nothing that was sent with success is lost."""
        with self.steady_producer() as producer, self.consumers("g-failover") as consumer:
            producer.wait_until(lambda found: len(_accepted(found)) >= MORE, "messages to be sent")
            consumer.wait_for(MORE)
            self.pair.master.kill()
            promote(self.pair.slave, "async-master")
            before = len(_accepted(producer.received()))
            producer.wait_until(lambda found: len(_accepted(found)) >= before + MORE, "more messages to be sent")
            sent = _accepted(producer.received())
            consumer.wait_until(lambda found: sent <= {message["keys"] for message in found}, "all that was sent")


@contextmanager
def stories_with_new_topic(work: Path, program: ClientProgram, topic: str) -> Iterator[ClientStories]:
    """The stories with a topic that a send must create."""
    with our_pair(work) as pair:
        yield ClientStories(program, pair, topic, work)


@contextmanager
def stories_with_topic(work: Path, program: ClientProgram, topic: str) -> Iterator[ClientStories]:
    """The stories with a topic that both brokers have and the name server knows; retries take a second."""
    with our_pair(work, messageDelayLevel="1s 1s 1s 1s", enablePropertyFilter=True) as pair:
        ask(pair.master, RequestCode.UPDATE_AND_CREATE_TOPIC, QUEUES | {"topic": topic})
        wait_for_topics(pair.slave, [topic])
        wait_until(lambda: _has_route(pair.namesrv, topic), "the topic's route")
        yield ClientStories(program, pair, topic, work)


def _has_route(namesrv: str, topic: str) -> bool:
    """Whether the name server knows the topic."""
    return any_answer(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0


def _hears_all(found: list[dict[str, Any]]) -> set[int]:
    """The members that have got messages of all queues."""
    queues = {(each["member"], each["queue"]) for each in found}
    return {member for member, count in Counter(member for member, _ in queues).items() if count == QUEUE_COUNT}


def _accepted(found: list[dict[str, Any]]) -> set[str]:
    return {answer["keys"] for answer in found if answer["status"] == "SEND_OK"}
