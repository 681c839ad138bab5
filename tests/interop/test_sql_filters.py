"""SQL92 filters: the same messages come from our broker and from Java's, for generated expressions and properties. Ours
refuses an expression that another text follows, which Java ignores.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from rmqha.filter.expressions import SqlError, SqlFilter
from rmqha.filter.grammar import parse
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode, decode_command, encode_command
from rmqha.wire.properties import format_properties
from rmqha.wire.record import Blank, decode_record
from tests.interop.conftest import MasterFactory, OurBrokerFactory
from tests.interop.rocketmq import COMMAND_TIMEOUT_S, FAST_START, V5, Driver, NameServer, java_command
from tests.waiting import WAIT_SECONDS, wait_until

TOPIC: Final = "TSql"
EXPRESSIONS: Final = 1500
MESSAGES: Final = 60
VALUES: Final = (
    *("1", "2", "5", "-3", "0", "007", "+4", "2147483648", "9223372036854775807", "9223372036854775808"),
    *("1.5", "1.0", "-0.0", "0.0", "1e3", ".5", "5.", "1f", "2D", "0x1p3", "NaN", "-Infinity", " 7 ", "1_0"),
    *("true", "TRUE", "false", "abc", "x", "it's", "", "\u0661", "null"),
)
CONSTANTS: Final = (
    *("0", "1", "2", "5", "7l", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "007"),
    *(
        "1.5",
        "1.0",
        "0.0",
        "1e3",
        ".5",
        "5.",
        "1.E2",
        "1e400",
        "TRUE",
        "false",
        "NULL",
        "'1'",
        "'abc'",
        "'it''s'",
        "''",
    ),
    *("'true'", "' 7 '", "'1.5'"),
)
NAMES: Final = ("a", "b", "c", "d", "missing", "TAGS", "$x_1")
TEXTS: Final = ("''", "'a'", "'b'", "'1'", "'s'", "'abc'", "'.'", "'tru'", "'it''s'", "'5 '")
GARBAGE: Final = (
    "",
    "",
    "",
    "",
    "",
    "",
    " b",
    " ?",
    " NOT",
    " NOT b",
    " 5",
    ")",
    " -- x",
    " /* x */",
    "\n-- x\n",
    " LIMIT 5 ?",
    ";",
)
CURATED: Final = (
    *("a", "NOT a", "TRUE", "NULL", "5", "'x'", "a = NULL", "NULL IS NULL", "a IS NULL", "a IS NOT NULL", "5 IS NULL"),
    *("a = 1 OR TRUE", "TRUE OR a = 1", "a <> 1", "NOT (a = 1)", "a = b", "a = b = TRUE", "TRUE = 5", "5 = TRUE"),
    *("a > b", "a > 'x'", "a BETWEEN 1 AND 5", "a BETWEEN 5 AND 1", "a NOT BETWEEN 5 AND 1", "a BETWEEN b AND 5"),
    *("a BETWEEN -5 AND -10", "a BETWEEN 'a' AND 'b'", "a IN ('1', '2')", "a NOT IN ('1')", "5 IN ('5')", "a IN (1)"),
    *(
        "-a = 5",
        "-5 < a",
        "- -5 < a",
        "--5 < a",
        "+a = 5",
        "+5 = a",
        "a = -5",
        "(a) = (1)",
        "((a = 1))",
        "NOT NOT a = 1",
    ),
    *("a=1 AND b=2 OR c='abc'", "a = 1 = TRUE", "a > 1 > 2", "-(a > 1) = 5", "(a IS NULL) = (b IS NULL)", "a == 1"),
    *("a != 1", "a LIKE 'x'", 'a = "x"', "", " ", "()", "a = ", "NOT", "BETWEEN", "a IS", "a IS 5", "a IS NOT 5"),
    *(
        "a = true",
        "a = TRUE",
        "TRUE = a",
        "a <= true",
        "a >= 1.0",
        "a = 1.0",
        "1.0 = a",
        "1 = 1.0",
        "7l = 7",
        "a = '1'",
    ),
)


class Connected:
    """A connection to a broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), WAIT_SECONDS)
        self._incoming = self._socket.makefile("rb")

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, *_: object) -> None:
        self._incoming.close()
        self._socket.close()

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """The answer."""
        content = encode_command(request)
        self._socket.sendall(len(content).to_bytes(4, "big") + content)
        return decode_command(self._incoming.read(int.from_bytes(self._incoming.read(4), "big")))

    def put(self, number: int, properties: dict[str, str], topic: str = TOPIC) -> None:
        """Send a message whose body is a number."""
        fields = {
            "a": "PG",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
            "i": format_properties(properties),
        }
        answer = self.ask(RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=fields, body=b"%d" % number))
        assert answer.code == 0, answer.remark

    def pull(self, expression: str) -> tuple[int, list[int]]:
        """The first code that is no success, and the bodies of the messages before it."""
        found: list[int] = []
        offset = 0
        while True:
            fields = {
                "consumerGroup": "GSql",
                "topic": TOPIC,
                "queueId": "0",
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": expression,
                "subVersion": "1",
                "expressionType": "SQL92",
            }
            answer = self.ask(RemotingCommand(RequestCode.PULL_MESSAGE, 1, ext_fields=fields))
            if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
                return answer.code, found
            offset = int(answer.ext_fields["nextBeginOffset"])
            data = memoryview(answer.body)
            while data:
                record = decode_record(data)
                assert not isinstance(record, Blank)
                found.append(int(record.body))
                data = data[record.total_size :]

    def check(self, expression: str) -> int:
        """The code of the answer to a client that is going to subscribe."""
        subscription = {"topic": TOPIC, "subString": expression, "subVersion": 1, "expressionType": "SQL92"}
        body = {"clientId": "c", "group": "GSql", "subscriptionData": subscription}
        return self.ask(RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, 1, body=json.dumps(body).encode())).code


def some_properties(chance: random.Random) -> dict[str, str]:
    """Of a message."""
    names = [name for name in NAMES if name != "missing" and chance.random() < 0.7]
    found = {name: chance.choice(VALUES) for name in names}
    return {name: value for name, value in found.items() if value}


def an_expression(chance: random.Random, depth: int, is_5: bool) -> str:
    """By the grammar, now and then with a part that does not fit. ``is_5`` says whether it has words of RocketMQ 5."""
    if depth <= 0:
        return chance.choice(NAMES) if chance.random() < 0.5 else chance.choice(CONSTANTS)

    def part(least: int = 1) -> str:
        return an_expression(chance, depth - chance.randint(least, 3), is_5)

    kind = chance.randrange(14 if is_5 else 12)
    word = chance.choice(("CONTAINS", "contains", "StartsWith", "ENDSWITH"))
    texts = ", ".join(
        chance.choice([each for each in CONSTANTS if each[0] == "'"]) for _ in range(chance.randint(1, 7))
    )
    negated = chance.choice(("", "NOT ", "not "))
    return {
        0: lambda: f"{part()} AND {part()}",
        1: lambda: f"{part()} or {part()}",
        2: lambda: f"({part()})",
        3: lambda: f"NOT ({part()})",
        4: lambda: f"{chance.choice(NAMES)} {negated}IN ({texts})",
        5: lambda: f"{part(2)} {negated}BETWEEN {part(3)} AND {part(3)}",
        6: lambda: f"{part()} IS {negated}NULL",
        7: lambda: f"{chance.choice('+-')}{part()}",
        8: lambda: f"{part(2)} {chance.choice(('=', '<>'))} {part(2)}",
        12: lambda: f"{part(3)} {negated}{word} {chance.choice(TEXTS)}",
        13: lambda: f"{chance.choice(NAMES)} {negated}{word} {chance.choice(TEXTS)}",
    }.get(kind, lambda: f"{chance.choice(NAMES)} {chance.choice(('=', '<>', '<', '<=', '>', '>='))} {part(3)}")()


def expressions(chance: random.Random, count: int, is_5: bool) -> list[str]:
    """Curated and generated ones."""
    made = [an_expression(chance, chance.randint(1, 6), is_5) + chance.choice(GARBAGE) for _ in range(count)]
    return [*CURATED, *(text for text in made if len(text) < 2000)]


def has_all(side: Connected) -> bool:
    """Whether all messages are in the queue."""
    return len(side.pull("TRUE")[1]) == MESSAGES


def has_rest(expression: str) -> bool:
    """Whether a text follows an expression."""
    return parsed(expression) is None and any(parsed(expression[:end]) for end in range(len(expression)))


def parsed(expression: str) -> SqlFilter | None:
    """None if it is refused."""
    try:
        return parse(expression)
    except SqlError:
        return None


@pytest.mark.java
@pytest.mark.parametrize("is_5", [False, pytest.param(True, marks=pytest.mark.story)])
def test_the_same_messages_come(
    java_master: MasterFactory, our_broker: OurBrokerFactory, driver: Driver, is_5: bool
) -> None:
    """Java's broker gives all messages for a wrong expression in a pull; ours, and Java's for a client, refuse it."""
    chance = random.Random(92)
    java = java_master(enablePropertyFilter=True, **({"version": V5} if is_5 else {}))
    ours = our_broker("async-master", enablePropertyFilter=True)
    for broker in (java, ours):
        driver.create_topic(broker.cluster, TOPIC, 1)
    messages = [some_properties(chance) for _ in range(MESSAGES)]
    different: list[str] = []
    counts = {"refused": 0, "some": 0, "rest": 0}
    with Connected(java.address) as of_java, Connected(ours.address) as of_ours:
        for number, properties in enumerate(messages):
            of_java.put(number, properties)
            of_ours.put(number, properties)
        for side in (of_java, of_ours):
            wait_until(partial(has_all, side), "all messages to be in the queue")
        for expression in expressions(chance, EXPRESSIONS, is_5):
            verdicts = of_java.check(expression), of_ours.check(expression)
            if verdicts == (0, ResponseCode.SUBSCRIPTION_PARSE_FAILED) and has_rest(expression):
                counts["rest"] += 1
                continue
            if verdicts[0] != verdicts[1]:
                different.append(f"{expression!r}: Java answers a check with {verdicts[0]}, we with {verdicts[1]}")
                continue
            if verdicts[0] != 0:
                counts["refused"] += 1
                assert of_ours.pull(expression) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, [])
                continue
            one, other = of_java.pull(expression), of_ours.pull(expression)
            counts["some"] += 0 < len(one[1]) < MESSAGES
            if one != other:
                odd = [messages[number] for number in set(one[1]) ^ set(other[1])]
                different.append(
                    f"{expression!r}: Java gives {len(one[1])}, we {len(other[1])}, not of both: {odd[:2]}"
                )
    assert different == [], f"{len(different)} expressions"
    assert min(counts.values()) > EXPRESSIONS // 10, counts


def run_filter(work: Path, namesrv: str, group: str, expression: str, count: int) -> dict[str, Any]:
    """What the Java class Requests prints."""
    command = java_command(work, FAST_START, "rmqha.Requests", "filter", namesrv, "TSqlPush", group, expression, count)
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.java
@pytest.mark.story
def test_a_push_consumer_of_java_filters(
    our_broker: OurBrokerFactory, driver: Driver, namesrv: NameServer, tmp_path: Path
) -> None:
    """Its expression comes by heartbeats, and its pulls are held."""
    broker = our_broker("async-master", enablePropertyFilter=True)
    driver.create_topic(broker.cluster, "TSqlPush", 1)
    with Connected(broker.address) as side:
        for number in range(100):
            side.put(number, {"a": str(number % 10), "kind": "odd" if number % 2 else "even"}, "TSqlPush")
    answer = run_filter(tmp_path, namesrv.address, "GSqlPush", "a BETWEEN 3 AND 5 AND kind = 'odd'", 20)
    assert sorted(map(int, answer["bodies"])) == [number for number in range(100) if number % 10 in (3, 5)]
    refusal = run_filter(tmp_path, namesrv.address, "GSqlWrong", "a BETWEEN 3", 1)
    assert "the SQL92 expression is invalid: the expression ends too early" in refusal["error"]
