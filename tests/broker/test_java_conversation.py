"""What Java clients said to a Java broker (``tests.interop.record_conversation``) is said to ours."""

import base64
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from twisted.internet.defer import execute

from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.remoting.protocol import RemotingProtocol
from rmqha.store.metadata import TopicConfig
from rmqha.wire.command import RemotingCommand, RequestCode, decode_command
from rmqha.wire.properties import parse_properties
from rmqha.wire.record import Blank, decode_record
from tests.broker.brokerstore import BrokerStoreTestCase, WallClockOf
from tests.ha.doubles import LineTransport
from tests.remoting.test_protocol import commands_in

RECORDED = Path(__file__).parents[1] / "data" / "java-conversation.jsonl.gz"
TICK_SECONDS = 0.005
AFTERWARDS_SECONDS = 1.0


class Said(NamedTuple):
    """A frame of the record."""

    at: float
    connection: int
    to_broker: bool
    frame: bytes


ADDED_BY_5 = ("transactionId", "totalTopicNum", "totalGroupNum")
"""Fields of answers that the recorded broker of 4.9.3 does not send, and that clients of 4.9 do not read."""


def read_conversation() -> tuple[Mapping[str, Any], list[Said]]:
    """Facts of the broker, and all frames."""
    with gzip.open(RECORDED) as file:
        facts, *lines = map(json.loads, file)
    return facts, [
        Said(line["at"], line["connection"], line["to"] == "broker", base64.b85decode(line["frame"])) for line in lines
    ]


def messages_in(data: bytes) -> list[tuple[object, ...]]:
    """Of records what does not depend on time and place."""
    messages: list[tuple[object, ...]] = []
    while data:
        record = decode_record(memoryview(data))
        assert not isinstance(record, Blank)
        place = (record.topic, record.queue_id, record.queue_offset, record.physical_offset, record.total_size)
        content = (record.body, parse_properties(record.properties_stored), record.flag, record.sys_flag)
        messages.append((*place, *content, record.reconsume_times))
        data = data[record.total_size :]
    return messages


def content(request: RemotingCommand, answer: RemotingCommand) -> tuple[object, ...]:
    """What a client makes of an answer."""
    pulled = request.code == RequestCode.PULL_MESSAGE
    body = messages_in(answer.body) if pulled else answer.body
    fields = {name: value for name, value in answer.ext_fields.items() if name not in ADDED_BY_5}
    return RequestCode(request.code).name, answer.code, fields, answer.remark if pulled else None, body


class JavaConversationTests(BrokerStoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        facts, self.conversation = read_conversation()
        self.open(**facts["settings"])
        self.broker = BrokerService(
            self.settings,
            self.store,
            self.clock,
            execute,
            Surroundings("127.0.0.1"),
            wall=WallClockOf(self.clock),
        )
        self.broker.addresses.listening(facts["port"])
        self.broker.topics.update(TopicConfig("TRecorded", 2, 2))
        self.broker.startService()
        self.addCleanup(lambda: self.successResultOf(self.broker.stopService()))
        self.lines: dict[int, LineTransport] = {}

    def line(self, connection: int) -> LineTransport:
        if connection not in self.lines:
            line = self.lines[connection] = LineTransport(self.clock)
            line.attach(RemotingProtocol(self.broker.processors(), self.clock))
            self.addCleanup(line.lose)
        return self.lines[connection]

    def let_pass(self, until: float) -> None:
        """Time goes on to then."""
        while self.clock.seconds() < until:
            self.clock.advance(TICK_SECONDS)

    def replay(self) -> dict[int, list[RemotingCommand]]:
        """Say all that clients said, when they did; what was said to them, by connection."""
        for said in self.conversation:
            self.let_pass(said.at)
            if said.to_broker:
                self.line(said.connection).deliver(len(said.frame).to_bytes(4, "big") + said.frame)
        self.let_pass(self.conversation[-1].at + AFTERWARDS_SECONDS)
        return {connection: commands_in(line.take()) for connection, line in self.lines.items()}

    def test_our_broker_answers_and_pushes_what_javas_did(self) -> None:
        recorded: dict[int, list[RemotingCommand]] = defaultdict(list)
        requests: dict[tuple[int, int], RemotingCommand] = {}
        for said in self.conversation:
            command = decode_command(said.frame)
            if said.to_broker:
                requests[said.connection, command.opaque] = command
            else:
                recorded[said.connection].append(command)
        found = self.replay()
        for connection in found.keys() | recorded.keys():
            ours, javas = (
                {command.opaque: command for command in commands if command.is_response}
                for commands in (found[connection], recorded[connection])
            )
            for opaque, answer in javas.items():
                request = requests[connection, opaque]
                self.assertIn(opaque, ours, request)
                self.assertEqual(content(request, ours[opaque]), content(request, answer))
            pushes, javas_pushes = (
                Counter((command.code, *command.ext_fields.items()) for command in commands if not command.is_response)
                for commands in (found[connection], recorded[connection])
            )
            self.assertEqual(pushes, javas_pushes)
