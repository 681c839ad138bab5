"""Every request that a broker and a name server answer, at its worst, counted: none holds the reactor.

Work is counted in Python and C calls of one reactor step, not in seconds, so that a busy machine cannot fail this. A
code without a worst request in the tables below fails, so whoever adds a request thinks of its worst one. A worst
request does some ten times the work of one step: more of it shows no more, and each call that is counted costs time.
"""

import json
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from types import FrameType
from typing import Any, NamedTuple

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.brokerservice import BrokerService, Surroundings, broker_limits
from rmqha.broker.hastatus import ha_runtime_info, ha_status_processors
from rmqha.broker.interfaces import NoNode
from rmqha.broker.requests.later import LATER
from rmqha.broker.requests.pop import POP_CODES
from rmqha.broker.runtimeinfo import runtime_processors
from rmqha.namesrv.nameserver import NameServerService, name_server_limits
from rmqha.node.promising import PromiseProcessor
from rmqha.remoting import turns
from rmqha.remoting.protocol import Processors, RemotingLimits, RemotingProtocol
from rmqha.store.derived.index import IndexedKey
from rmqha.store.metadata import SubscriptionGroupConfig, TopicConfig
from rmqha.store.nodestate import NodeState
from rmqha.wire.command import RemotingCommand, RequestCode, ResponseCode
from tests.broker.brokerstore import NOW_MS, BrokerStoreTestCase, WallClockOf
from tests.ha.doubles import LineTransport
from tests.node.doubles import Promising
from tests.remoting.test_protocol import commands_in, frame

MAX_CALLS = 20_000
"""Of one reactor step: some 10 ms."""
COMMIT, ROLLBACK = 8, 12
MAX_STEPS = 50_000
TOPICS = 5_000
GROUPS = 5_000
CLIENTS = 100
MESSAGES = 2_000
ENTRIES = 60_000
"""Of one key in the index."""
LONG_TEXT = "x" * 250_000
HUGE = str(2**63 - 1)
KEY = "K"


class CrowdedNode(NoNode):
    """The node of a broker, in this state."""

    def __init__(self, broker: BrokerService, state: NodeState) -> None:
        self._broker = broker
        self._state = state

    def runtime_info(self) -> Mapping[str, str]:
        return self._broker.runtime_info.table()

    def ha_status(self) -> Mapping[str, Any]:
        return ha_runtime_info(self._state, False, 256 << 20)


class Worst(NamedTuple):
    """A request: its fields, its body, and the code of its answer where that tells whether the work was done."""

    fields: Mapping[str, object] = {}
    body: bytes = b""
    answer: int | None = None


class CountingClock(Clock):
    """Counts the calls of each step of the reactor: of each delayed call."""

    def __init__(self) -> None:
        super().__init__()
        self.most_calls = 0
        self._is_counting = False

    def counted(self, step: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Run a step and count its calls; a step within another one is part of that one.

        Another profiler sees nothing of the step, and goes on after it. Coverage is none: it traces lines.
        """
        if self._is_counting:
            return step(*args, **kw)
        count = 0

        def count_one(_: FrameType, event: str, __: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        other = sys.getprofile()
        if other is not None and not callable(other):
            raise RuntimeError(f"{other!r} cannot go on after a step: run this test without it")
        self._is_counting = True
        sys.setprofile(count_one)
        try:
            return step(*args, **kw)
        finally:
            was_counting = sys.getprofile() is count_one
            sys.setprofile(other)
            self._is_counting = False
            self.most_calls = max(self.most_calls, count)
            if not was_counting:
                raise RuntimeError("another profiler took over, and the step's calls were not all counted")

    def callLater(self, delay: float, callable: Callable[..., Any], *args: Any, **kw: Any) -> IDelayedCall:
        return super().callLater(delay, self.counted, callable, *args, **kw)


class CountingTests(SynchronousTestCase):
    """The measure itself: a step that does too much cannot go unnoticed."""

    def setUp(self) -> None:
        self.clock = CountingClock()

    def test_the_largest_step_is_counted(self) -> None:
        self.clock.callLater(1, lambda: [len("") for _ in range(100)])
        self.clock.callLater(2, lambda: None)
        self.clock.advance(1)
        self.assertGreater(self.clock.most_calls, 99)
        self.assertLess(self.clock.most_calls, 110)
        self.clock.advance(1)
        self.assertGreater(self.clock.most_calls, 99)

    def test_another_profiler_does_not_stop_the_counting(self) -> None:
        seen: list[str] = []

        def other(_: FrameType, event: str, __: Any) -> None:
            seen.append(event)

        before = sys.getprofile()
        sys.setprofile(other)
        try:
            self.clock.counted(lambda: [len("") for _ in range(100)])
            restored = sys.getprofile()
        finally:
            sys.setprofile(before)
        self.assertGreater(self.clock.most_calls, 99)
        self.assertIs(restored, other)

    def test_what_takes_the_profile_away_is_noticed(self) -> None:
        with self.assertRaises(RuntimeError):
            self.clock.counted(lambda: sys.setprofile(None))


class EveryCodeTestCase(BrokerStoreTestCase):
    """Asks each code's worst request of what is served, and counts."""

    def setUp(self) -> None:
        super().setUp()
        self.clock: CountingClock = CountingClock()
        self.patch(turns, "TURN_SECONDS", 0.0)  # one slice a step, however fast the machine is

    def connect(self, processors: Processors, limits: RemotingLimits) -> LineTransport:
        line = LineTransport(self.clock)
        line.attach(RemotingProtocol(processors, self.clock, limits))
        self.addCleanup(line.lose)
        return line

    def ask(self, line: LineTransport, code: int, worst: Worst) -> list[RemotingCommand]:
        """Ask; gives the answers, after as many steps as it takes."""
        fields = {name: str(value) for name, value in worst.fields.items()}
        data = frame(RemotingCommand(code, 1, ext_fields=fields, body=worst.body))
        for at in range(0, len(data), 65_536):  # as much as a socket gives at once
            self.clock.counted(line.deliver, data[at : at + 65_536])
        for _ in range(MAX_STEPS):
            answers = [command for command in commands_in(line.take()) if command.is_response]
            if answers:
                return answers
            self.clock.advance(0)
            self.clock.advance(0.001)
        return []

    def check(self, processors: Processors, limits: RemotingLimits, table: Mapping[int, Worst | list[Worst]]) -> None:
        """No step of any request takes too many calls; each code is in the table."""
        self.assertEqual(processors.keys() ^ table.keys(), set())  # tests/rules/test_recipes.py says it in words
        too_many: list[str] = []
        for code, worsts in table.items():
            for worst in worsts if isinstance(worsts, list) else [worsts]:
                line = self.connect(processors, limits)
                self.clock.most_calls = 0
                answers = self.ask(line, code, worst)
                self.assertEqual(len(answers), 1, RequestCode(code).name)
                if worst.answer is not None:
                    self.assertEqual(answers[0].code, worst.answer, (RequestCode(code).name, answers[0].remark))
                self.assertGreater(self.clock.most_calls, 0, "nothing was counted")
                self.clock.counted(line.lose)
                while any(call.getTime() <= self.clock.seconds() for call in self.clock.getDelayedCalls()):
                    self.clock.advance(0)
                if self.clock.most_calls > MAX_CALLS:
                    too_many.append(f"{RequestCode(code).name}: {self.clock.most_calls}")
        self.assertEqual(too_many, [])


def as_json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def heartbeat(groups: int, subscriptions: int, tags: int = 1) -> bytes:
    """A heartbeat of a consumer and producer in many groups."""
    expression = "||".join(f"t{tag}" for tag in range(tags))
    wanted = [{"topic": f"topic-{at}", "subString": expression, "subVersion": 1} for at in range(subscriptions)]
    consumers = [{"groupName": f"group-{at}", "subscriptionDataSet": wanted} for at in range(groups)]
    producers = [{"groupName": f"group-{at}"} for at in range(groups)]
    return as_json({"clientID": "c", "consumerDataSet": consumers, "producerDataSet": producers})


def locks(count: int) -> bytes:
    queues = [{"topic": "T", "brokerName": "b", "queueId": at} for at in range(count)]
    return as_json({"consumerGroup": "G", "clientId": "c", "mqSet": queues})


STORED = ResponseCode.SUCCESS
LARGE_BODY = bytes(4_000_000)
SEND = {"a": "PG", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": NOW_MS, "h": 0}
LONG_SEND = {
    "producerGroup": "PG",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": NOW_MS,
    "flag": 0,
}
PROPERTIES = "\x02".join(f"k{at}\x01v" for at in range(5_000))
KEYS = "KEYS\x01" + " ".join(f"k{at}" for at in range(6_000))
BATCH = (struct.pack(">iiiii", 32, 0, 0, 0, 10) + bytes(10) + b"\0\0") * 130_000
PULL = {
    "consumerGroup": "group-1",
    "topic": "many",
    "queueId": 0,
    "queueOffset": 0,
    "maxMsgNums": 2**31 - 1,
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subVersion": 0,
}
QUEUE = {"topic": "many", "queueId": 0}
QUERY = {"topic": "many", "key": KEY, "maxNum": 2**31 - 1, "beginTimestamp": 0}
TAGS = "||".join(f"t{at}" for at in range(3_000))[:16_000]

WORST_SQL = (
    " OR ".join(["KEYS=1"] * 400),
    " AND ".join(["NOT KEYS IS NULL"] * 200),
    "KEYS BETWEEN 1 AND 2",
    "KEYS IN (" + ",".join(["'x'"] * 1000) + ")",
    "KEYS = 'nothing'",
)
OF_A_BROKER: dict[int, Worst | list[Worst]] = {
    RequestCode.SEND_MESSAGE: Worst({**LONG_SEND, "properties": PROPERTIES[:32_000]}, LARGE_BODY, STORED),
    RequestCode.SEND_MESSAGE_V2: [
        Worst({**SEND, "i": PROPERTIES[:32_000]}, LARGE_BODY, STORED),
        Worst({**SEND, "i": KEYS[:32_000]}),
        Worst({**SEND, "i": LONG_TEXT}),
        Worst({**SEND, "m": "true"}, BATCH[: 32 * 3_000], STORED),  # SEND_BATCH_MESSAGE has larger ones
    ],
    RequestCode.SEND_BATCH_MESSAGE: [
        Worst({**SEND, "m": "true"}, BATCH[: 4 * 1024 * 1024]),
        Worst({**SEND, "m": "true"}, BATCH[: 32 * 10_000], STORED),
    ],
    RequestCode.SEND_REPLY_MESSAGE: Worst(
        {**LONG_SEND, "properties": f"REPLY_TO_CLIENT\x01{LONG_TEXT}"}, LARGE_BODY, ResponseCode.SYSTEM_ERROR
    ),
    RequestCode.SEND_REPLY_MESSAGE_V2: [
        Worst({**SEND, "i": f"REPLY_TO_CLIENT\x01c\x02{PROPERTIES[:31_000]}"}, LARGE_BODY, ResponseCode.SYSTEM_ERROR),
        Worst({**SEND, "i": LONG_TEXT}, LARGE_BODY),
    ],
    RequestCode.RECALL_MESSAGE: [
        Worst({"topic": "T", "recallHandle": LONG_TEXT[:240_000]}, b"", ResponseCode.ILLEGAL_OPERATION),
        Worst({"topic": LONG_TEXT[:120_000], "recallHandle": LONG_TEXT[:120_000]}),
    ],
    RequestCode.CONSUMER_SEND_MSG_BACK: Worst(
        {"offset": 0, "group": "group-1", "delayLevel": 3, "maxReconsumeTimes": 16, "originMsgId": LONG_TEXT}
    ),
    RequestCode.PULL_MESSAGE: [
        Worst({**PULL, "subscription": "*"}),
        Worst({**PULL, "subscription": TAGS}),
        Worst({**PULL, "subscription": "nothing"}),
        *(Worst({**PULL, "subscription": sql, "expressionType": "SQL92"}) for sql in WORST_SQL),
        Worst({**PULL, "subscription": "(" * 4096, "expressionType": "SQL92"}, b"", 23),
    ],
    RequestCode.LITE_PULL_MESSAGE: Worst({**PULL, "subscription": "nothing"}),
    RequestCode.QUERY_CONSUMER_OFFSET: Worst({**QUEUE, "consumerGroup": LONG_TEXT[:200_000]}),
    RequestCode.UPDATE_CONSUMER_OFFSET: Worst({**QUEUE, "consumerGroup": "G", "commitOffset": HUGE}),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Worst({**QUEUE, "timestamp": HUGE}),
    RequestCode.GET_MAX_OFFSET: Worst(QUEUE),
    RequestCode.GET_MIN_OFFSET: Worst(QUEUE),
    RequestCode.GET_CONFIRMED_OFFSET: Worst({"after": HUGE}),
    RequestCode.AWAIT_TABLE_CHANGES: Worst({"topics": LONG_TEXT[:200_000], "holdMs": HUGE}),
    RequestCode.PROMISE_TO_FOLLOW: Worst(
        {"leader": LONG_TEXT[:200_000], "epoch": HUGE, "session": "", "ms": HUGE}, b"", 16
    ),
    **dict.fromkeys(POP_CODES, Worst({"topic": HUGE})),
    **dict.fromkeys(LATER, Worst({"topic": LONG_TEXT[:200_000]}, b"{" * 60_000, 3)),
    RequestCode.GET_TOPIC_CONFIG: [Worst({"topic": "wide", "lo": "true"}, b"", STORED), Worst({"topic": LONG_TEXT})],
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: [Worst({"group": "reader"}, b"", STORED), Worst({"group": LONG_TEXT})],
    RequestCode.GET_EARLIEST_MSG_STORETIME: Worst(QUEUE),
    RequestCode.QUERY_MESSAGE: [
        Worst({**QUERY, "endTimestamp": HUGE}),
        Worst({**QUERY, "endTimestamp": NOW_MS + 1}),
        Worst({**QUERY, "topic": "T", "endTimestamp": HUGE}),
        Worst({**QUERY, "key": LONG_TEXT[:200_000], "endTimestamp": HUGE}),
    ],
    RequestCode.VIEW_MESSAGE_BY_ID: [Worst({"offset": 0}), Worst({"offset": HUGE})],
    RequestCode.HEART_BEAT: [
        Worst(body=heartbeat(1_500, 1)),
        Worst(body=heartbeat(1, 4_000)),
        Worst(body=heartbeat(2, 60, 1_500)),
    ],
    RequestCode.UNREGISTER_CLIENT: Worst({"clientID": "c", "producerGroup": "group-1", "consumerGroup": "crowded"}),
    RequestCode.CHECK_CLIENT_CONFIG: [
        Worst(
            body=as_json({"subscriptionData": {"topic": "T", "subString": "||".join("t" * 15_000), "subVersion": 1}})
        ),
        *(
            Worst(body=as_json({"subscriptionData": {"topic": "T", "subString": sql, "expressionType": "SQL92"}}))
            for sql in (*WORST_SQL, "a=1 OR " * 500 + "a", "(" * 4096, "-" * 4096, "-- " * 1365, "NOT " * 1024)
        ),
    ],
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Worst({"consumerGroup": "crowded"}),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Worst({"consumerGroup": "crowded"}),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Worst({"producerGroup": "crowded"}),
    RequestCode.LOCK_BATCH_MQ: Worst(body=locks(4_096)),
    RequestCode.UNLOCK_BATCH_MQ: Worst(body=locks(4_096)),
    RequestCode.END_TRANSACTION: Worst(
        {
            "commitOrRollback": 8,
            "commitLogOffset": 0,
            "tranStateTableOffset": 0,
            "producerGroup": "PG",
            "fromTransactionCheck": "false",
            "msgId": LONG_TEXT[:100_000],
            "transactionId": LONG_TEXT[:100_000],
        }
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC: Worst(
        {
            "topic": "new",
            "defaultTopic": "TBW102",
            "readQueueNums": 65_536,
            "writeQueueNums": 65_536,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: [
        Worst(body=as_json({"topicConfigList": [{"topicName": f"listed-{at}"} for at in range(1_000)]}), answer=STORED),
        Worst(body=as_json({"topicConfigList": [{"topicName": "odd", "x": [{}] * 20_000}]})),
        Worst(body=as_json({"topicConfigList": [{"topicName": "odd", "x": ["y"] * 3_000}] * 40})),
        Worst(body=as_json({"topicConfigList": [[]] * 30_000})),
        Worst(body=as_json({"topicConfigList": [1] * 500_000})),
    ],
    RequestCode.DELETE_TOPIC_IN_BROKER: Worst({"topic": "topic-77"}),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: [
        Worst(body=as_json({"groupName": "new", **{f"field{at}": at for at in range(4_000)}})),
        Worst(body=as_json({"groupName": "new", "x": [{}] * 20_000})),
        Worst(body=as_json({"groupName": "new", "x": [{}] * 2_000}), answer=STORED),
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: [
        Worst(body=as_json({"groupConfigList": [{"groupName": f"listed-{at}"} for at in range(500)]}), answer=STORED),
        Worst(body=as_json({"groupConfigList": [{"groupName": "odd", f"field{at}": at} for at in range(2_000)]})),
    ],
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Worst({"groupName": "traveller", "removeOffset": "true"}),
    RequestCode.GET_ALL_TOPIC_CONFIG: Worst(),
    RequestCode.GET_ALL_CONSUMER_OFFSET: Worst(),
    RequestCode.GET_ALL_DELAY_OFFSET: Worst(),
    RequestCode.GET_TIMER_CHECK_POINT: Worst(answer=3),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Worst(),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Worst(),
    RequestCode.GET_TOPIC_STATS_INFO: Worst({"topic": "wide"}),
    RequestCode.GET_CONSUME_STATS: [
        Worst({"consumerGroup": "reader"}),
        Worst({"consumerGroup": "reader", "topic": "wide"}),
    ],
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Worst({"topic": "popular"}),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Worst({"topic": "wide", "group": "reader"}),
    RequestCode.VIEW_BROKER_STATS_DATA: Worst({"statsName": "TOPIC_PUT_NUMS", "statsKey": "many"}),
    RequestCode.UPDATE_BROKER_CONFIG: [
        Worst(body=b"a=1\n" * 512),
        Worst(body=b"\\u0041" * 341),
        Worst(body=b"\\\n" * 1024),
        Worst(body=b"deleteWhen=" + b"04;" * 670),
        Worst(body=b"".join(b"fileReserved%x=1\n" % number for number in range(100))),
        Worst(body=b"fileReservedTime" * 120 + b"=1"),
    ],
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: [
        Worst({"topic": "wide", "group": "crowded", "timestamp": NOW_MS, "isForce": "true"}, b"", STORED),
        Worst({"topic": "wide", "group": LONG_TEXT[:200_000], "timestamp": HUGE, "isForce": "true"}),
    ],
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Worst({"topic": "T", "group": "crowded"}, b"", STORED),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Worst(
        {"consumerGroup": "crowded", "clientId": "c"}, b"", ResponseCode.CONSUME_MSG_TIMEOUT
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Worst(
        {"consumerGroup": "crowded", "clientId": "c", "msgId": "7F00000100002A9F" + "0" * 16},
        b"",
        ResponseCode.CONSUME_MSG_TIMEOUT,
    ),
    RequestCode.GET_BROKER_CONSUME_STATS: [Worst({"isOrder": "false"}, b"", STORED), Worst({"isOrder": "true"})],
    RequestCode.GET_ALL_PRODUCER_INFO: Worst(answer=STORED),
    RequestCode.QUERY_CONSUME_QUEUE: Worst({**QUEUE, "index": 0, "count": 2**31 - 1}, b"", STORED),
    RequestCode.CLONE_GROUP_OFFSET: Worst({"srcGroup": "reader", "destGroup": "copied"}, b"", STORED),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: [
        Worst({"msgId": "7F00000100002A9F" + "0" * 16}),
        Worst({"msgId": LONG_TEXT}),
    ],
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Worst(),
    RequestCode.CLEAN_UNUSED_TOPIC: Worst(),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Worst(),
    RequestCode.GET_BROKER_RUNTIME_INFO: Worst(),
    RequestCode.GET_BROKER_CONFIG: Worst(),
    RequestCode.GET_BROKER_HA_STATUS: Worst(answer=STORED),
}


class BrokerTests(EveryCodeTestCase):
    """A broker's requests."""

    @pytest.mark.long
    def test_no_request_holds_the_reactor(self) -> None:
        self.open(
            enablePropertyFilter="true",
            recallMessageEnable="true",
            maxIndexNum="100000",
            maxHashSlotNum="1000",
            mappedFileSizeCommitLog=str(64 * 1024 * 1024),
        )
        broker = BrokerService(
            self.settings,
            self.store,
            self.clock,
            lambda _: succeed(None),  # a thread writes tables: that is no step of the reactor
            Surroundings("127.0.0.1"),
            wall=WallClockOf(self.clock),
        )
        self.fill(broker)
        processors = {
            **broker.processors(),
            **runtime_processors(CrowdedNode(broker, self.crowded_state()), broker),
            **ha_status_processors(CrowdedNode(broker, self.crowded_state())),
            **PromiseProcessor(Promising(is_given=False)).processors(),
        }
        limits = broker_limits(self.settings, 10_000)
        self.crowd(processors, limits)
        unknown = OF_A_BROKER[RequestCode.END_TRANSACTION]
        assert isinstance(unknown, Worst)
        ends = [unknown, *self.ends_of_large_transactions(processors, limits)]
        self.check(processors, limits, {**OF_A_BROKER, RequestCode.END_TRANSACTION: ends})

    def crowded_state(self) -> NodeState:
        """The state of a node with many slaves."""
        peer = {"peer": "10.0.0.1:50000", "ackOffset": 1, "sentOffset": 1}
        return replace(self.store.node_state, peers=(peer,) * CLIENTS)

    def ends_of_large_transactions(self, processors: Processors, limits: RemotingLimits) -> list[Worst]:
        """A commit and a rollback of half messages as large as may be."""
        line = self.connect(processors, limits)
        ends: list[Worst] = []
        for at, kind in enumerate((COMMIT, ROLLBACK)):
            properties = f"TRAN_MSG\x01true\x02PGROUP\x01PG\x02{PROPERTIES}"[:32_000]
            (answer,) = self.ask(line, RequestCode.SEND_MESSAGE_V2, Worst({**SEND, "i": properties}, LARGE_BODY))
            self.assertEqual(answer.code, ResponseCode.SUCCESS, answer.remark)
            half = {"commitLogOffset": int(answer.ext_fields["msgId"][-16:], 16), "tranStateTableOffset": at}
            ends.append(Worst({"commitOrRollback": kind, "producerGroup": "PG", **half}, answer=STORED))
        self.dispatch()
        return ends

    def fill(self, broker: BrokerService) -> None:
        """Full tables, and messages that all have one key."""
        for _ in range(MESSAGES // 100):
            self.put(*[b"x" * 100] * 100, topic="many", KEYS=KEY)
            self.clock.advance(1)
        index = self.store.derived.index
        assert index is not None
        index.put([IndexedKey(f"many#{KEY}", 0, NOW_MS + 10_000)] * ENTRIES, datetime.now())
        topics, groups, offsets = broker.topics.table, broker.groups.table, broker.consumer_offsets
        for at in range(TOPICS):
            topics.topic_config_table[f"topic-{at}"] = TopicConfig(f"topic-{at}", 2, 2)
            offsets.commit("reader", f"topic-{at}", 0, 1, "test")
            offsets.commit("traveller", f"topic-{at}", 0, 1, "test")
        for name, queues in (("many", 8), ("wide", 4_096), ("T", 4)):
            topics.topic_config_table[name] = TopicConfig(name, queues, queues)
        groups.subscription_group_table["reader"] = SubscriptionGroupConfig("reader")
        for queue_id in range(4_096):
            offsets.commit("crowded", "wide", queue_id, 1, "test")
        for at in range(GROUPS):
            groups.subscription_group_table[f"group-{at}"] = SubscriptionGroupConfig(f"group-{at}")
            offsets.commit(f"group-{at}", "popular", 0, 1, "test")

    def crowd(self, processors: Processors, limits: RemotingLimits) -> None:
        """Many clients of one group."""
        body = as_json(
            {
                "clientID": "c",
                "consumerDataSet": [{"groupName": "crowded", "subscriptionDataSet": [{"topic": "T"}]}],
                "producerDataSet": [{"groupName": "crowded"}],
            }
        )
        for _ in range(CLIENTS):
            self.ask(self.connect(processors, limits), RequestCode.HEART_BEAT, Worst(body=body))


def registration(topics: int) -> bytes:
    rows = (f"{f'topic-{at}' if at else 'shared'} 8 8 6 SINGLE_TAG".encode() for at in range(topics))
    table = b"".join(struct.pack(">i", len(row)) + row for row in rows)
    version = b'{"counter":1,"timestamp":1}'
    plain = struct.pack(">i", len(version)) + version + struct.pack(">i", topics) + table + struct.pack(">i", 2) + b"[]"
    return zlib.compress(plain)


def broker_fields(name: str, address: str, compressed: str = "true") -> dict[str, object]:
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "c",
        "haServerAddr": "127.0.0.1:2",
        "brokerId": 0,
        "compressed": compressed,
        "bodyCrc32": 0,
    }


OF_A_NAME_SERVER: dict[int, Worst | list[Worst]] = {
    RequestCode.REGISTER_BROKER: Worst(broker_fields("hostile", "127.0.0.1:9"), registration(20_000)),
    RequestCode.QUERY_DATA_VERSION: Worst(
        broker_fields("b", "127.0.0.1:1"), as_json({"counter": 1, "timestamp": 1, "x": list(range(10_000))})
    ),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: [Worst({"topic": "shared"}), Worst({"topic": LONG_TEXT})],
    RequestCode.GET_BROKER_CLUSTER_INFO: Worst(),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Worst(),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Worst(),
    RequestCode.GET_TOPICS_BY_CLUSTER: Worst({"cluster": "c"}),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Worst({"topic": "shared"}),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: Worst({"topic": "t"}, as_json({"queueDatas": [{}] * 15_000})),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Worst({"brokerName": "b0"}),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Worst({"brokerName": "b0"}),
    RequestCode.PUT_KV_CONFIG: Worst({"namespace": "n", "key": "k", "value": LONG_TEXT[:200_000]}),
    RequestCode.GET_KV_CONFIG: Worst({"namespace": "n", "key": "k1"}),
    RequestCode.DELETE_KV_CONFIG: Worst({"namespace": "n", "key": "k1"}),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Worst({"namespace": "n"}),
    RequestCode.GET_NAMESRV_CONFIG: Worst(answer=STORED),
    RequestCode.UPDATE_NAMESRV_CONFIG: Worst(body=b"a=b\n" * 15_000),
    RequestCode.UNREGISTER_BROKER: Worst(broker_fields("b0", "127.0.0.1:10000")),
}
BROKERS = 500


class NameServerTests(EveryCodeTestCase):
    """A name server's requests, with 500 brokers and 20,000 topics, from a machine that may administer."""

    def connect(self, processors: Processors, limits: RemotingLimits) -> LineTransport:
        line = super().connect(processors, limits)
        line.peerAddr = IPv4Address("TCP", "127.0.0.1", 4711)
        return line

    @pytest.mark.long
    def test_no_request_holds_the_reactor(self) -> None:
        service = NameServerService(self.clock)
        processors, limits = service.processors(), name_server_limits()
        line = self.connect(processors, limits)
        for at in range(BROKERS):
            fields = broker_fields(f"b{at}", f"127.0.0.1:{10_000 + at}")
            body = registration(20_000 if at == 0 else 1)
            self.ask(line, RequestCode.REGISTER_BROKER, Worst(fields, body))
        for at in range(1_000):
            self.ask(line, RequestCode.PUT_KV_CONFIG, Worst({"namespace": "n", "key": f"k{at}", "value": "v"}))
        self.check(processors, limits, OF_A_NAME_SERVER)
