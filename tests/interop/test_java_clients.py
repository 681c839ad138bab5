"""Java clients of each kind at a pair of ours: all is received as it was sent, and as often as is promised."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.interop.conftest import start_our_broker
from tests.interop.rocketmq import ClientsReport, Driver, NameServer

Message = Mapping[str, Any]

QUEUES: Final = 4
DELAYS_S: Final = (1, 2, 3, 4)
"""Of messageDelayLevel here. A first retry is delayed at level 3, the next at level 4."""
EARLY_S: Final = 0.05
"""What a clock in milliseconds, and one that is set while a test runs, are allowed."""

PRODUCERS: Final[Sequence[Mapping[str, Any]]] = (
    {"name": "sync", "topic": "TSync", "kind": "sync", "count": 60},
    {"name": "large", "topic": "TSync", "kind": "sync", "count": 12, "body_bytes": 60_000},
    {"name": "async", "topic": "TAsync", "kind": "async", "count": 200},
    {"name": "one-way", "topic": "TOneWay", "kind": "one-way", "count": 60},
    {"name": "batch", "topic": "TBatch", "kind": "batch", "count": 60},
    {"name": "delay", "topic": "TDelay", "kind": "delay", "count": 12, "delays": [1, 2, 3]},
    {"name": "transaction", "topic": "TTransaction", "kind": "transaction", "count": 20},
    {"name": "ordered", "topic": "TOrdered", "kind": "orderly", "count": 80},
    {"name": "ordered-once", "topic": "TOrdered", "kind": "orderly", "count": 12, "properties": {"fail": "once"}},
    {"name": "well", "topic": "TRetry", "kind": "sync", "count": 8},
    {"name": "once", "topic": "TRetry", "kind": "sync", "count": 8, "properties": {"fail": "once"}},
    {"name": "always", "topic": "TRetry", "kind": "sync", "count": 8, "properties": {"fail": "always"}},
)
SENT_TO_SYNC: Final = 72
TAGS_1_AND_3: Final = 36

CONSUMERS: Final = (
    {"name": "cluster-1", "group": "GCluster", "topic": "TSync", "kind": "concurrent"},
    {"name": "cluster-2", "group": "GCluster", "topic": "TSync", "kind": "concurrent"},
    {"name": "broadcast-1", "group": "GBroadcast", "topic": "TSync", "kind": "broadcasting"},
    {"name": "broadcast-2", "group": "GBroadcast", "topic": "TSync", "kind": "broadcasting"},
    {"name": "tags", "group": "GTags", "topic": "TSync", "kind": "concurrent", "expression": "tag1 || tag3"},
    {"name": "lite-pull", "group": "GLite", "topic": "TSync", "kind": "lite-pull"},
    {"name": "lite-assign", "group": "GAssign", "topic": "TSync", "kind": "lite-assign"},
    {"name": "of-async", "group": "GAsync", "topic": "TAsync", "kind": "concurrent"},
    {"name": "of-one-way", "group": "GOneWay", "topic": "TOneWay", "kind": "concurrent"},
    {"name": "of-batch", "group": "GBatch", "topic": "TBatch", "kind": "concurrent"},
    {"name": "of-delay", "group": "GDelay", "topic": "TDelay", "kind": "concurrent"},
    {"name": "of-transaction", "group": "GTransaction", "topic": "TTransaction", "kind": "concurrent"},
    {"name": "orderly-1", "group": "GOrderly", "topic": "TOrdered", "kind": "orderly"},
    {"name": "orderly-2", "group": "GOrderly", "topic": "TOrdered", "kind": "orderly"},
    {"name": "retrying", "group": "GRetry", "topic": "TRetry", "kind": "concurrent", "max_reconsume": 2},
    {"name": "of-dead", "group": "GDead", "topic": "%DLQ%GRetry", "kind": "lite-pull"},
)
UNTIL: Final = (
    (("cluster-1", "cluster-2"), SENT_TO_SYNC),
    (("broadcast-1",), SENT_TO_SYNC),
    (("broadcast-2",), SENT_TO_SYNC),
    (("tags",), TAGS_1_AND_3),
    (("lite-pull",), SENT_TO_SYNC),
    (("lite-assign",), SENT_TO_SYNC),
    (("of-async",), 200),
    (("of-one-way",), 60),
    (("of-batch",), 60),
    (("of-delay",), 12),
    (("of-transaction",), 12),
    (("orderly-1", "orderly-2"), 80 + 2 * 12),
    (("retrying",), 8 + 2 * 8 + 3 * 8),
    (("of-dead",), 8),
)


ADDED_PROPERTIES: Final = {
    *("UNIQ_KEY", "WAIT", "CLUSTER", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "DELAY", "REAL_TOPIC"),
    *("REAL_QID", "TRAN_MSG", "PGROUP", "__transactionId__", "TRANSACTION_CHECK_TIMES", "ORIGIN_MESSAGE_ID"),
    *("RETRY_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
}
"""What clients and brokers add."""


@pytest.fixture(scope="module")
def clients(namesrv: NameServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientsReport]:
    """What all of them sent and received, at work at the same time."""
    work = tmp_path_factory.mktemp("java-clients")
    with ExitStack() as stack:
        master = start_our_broker(
            namesrv,
            stack,
            work,
            "sync-master",
            messageDelayLevel=" ".join(f"{seconds}s" for seconds in DELAYS_S),
            transactionCheckInterval=1000,
            transactionTimeOut=10_000,  # else a check overtakes a slow producer, and both commit
        )
        start_our_broker(namesrv, stack, work, "slave", master=master)
        driver = Driver(namesrv.address, work / "driver")
        topics = dict.fromkeys(sorted({producer["topic"] for producer in PRODUCERS}), QUEUES)
        driver.create_topics(master.cluster, topics)
        yield driver.clients(
            {"topics": topics, "producers": PRODUCERS, "consumers": CONSUMERS, "until": UNTIL, "seconds": 300}
        )
        assert master.stop() == 0
        assert master.errors() == []


def sent(clients: ClientsReport, *producers: str) -> Sequence[Message]:
    """What these have sent; each send that is answered at all was answered SEND_OK, for a slave is there."""
    messages = [message for producer in producers for message in clients.sent[producer]]
    assert {message.get("status", "SEND_OK") for message in messages} == {"SEND_OK"}
    wanted = sum(spec["count"] for spec in PRODUCERS if spec["name"] in producers)
    assert len({message["uniq_key"] for message in messages}) == wanted
    return messages


def content(message: Message) -> tuple[Any, ...]:
    """What an application gave a message."""
    properties = {name: value for name, value in message["properties"].items() if name not in ADDED_PROPERTIES}
    return message["topic"], message["flag"], message["body_sha256"], tuple(sorted(properties.items()))


def uniq_key(message: Message) -> str:
    key: str = message.get("uniq_key") or message["properties"]["UNIQ_KEY"]
    return key


def received(clients: ClientsReport, *consumers: str) -> list[Message]:
    return [message for consumer in consumers for message in clients.received[consumer]]


def assert_same(got: Sequence[Message], wanted: Sequence[Message]) -> None:
    """Each message once, as it was sent."""
    assert Counter(map(uniq_key, got)) == Counter(map(uniq_key, wanted))
    assert {uniq_key(message): content(message) for message in got} == {
        uniq_key(message): content(message) for message in wanted
    }


def test_no_client_had_trouble(clients: ClientsReport) -> None:
    assert clients.troubles == []


def test_consumers_of_a_group_share_what_was_sent(clients: ClientsReport) -> None:
    assert clients.received["cluster-1"]
    assert clients.received["cluster-2"]
    assert_same(received(clients, "cluster-1", "cluster-2"), sent(clients, "sync", "large"))


@pytest.mark.parametrize("consumer", ["broadcast-1", "broadcast-2", "lite-pull", "lite-assign"])
def test_who_broadcasts_or_pulls_alone_receives_all(clients: ClientsReport, consumer: str) -> None:
    assert_same(received(clients, consumer), sent(clients, "sync", "large"))


def test_an_expression_of_tags_selects(clients: ClientsReport) -> None:
    wanted = [
        message for message in sent(clients, "sync", "large") if message["properties"]["TAGS"] in ("tag1", "tag3")
    ]
    assert len(wanted) == TAGS_1_AND_3
    assert_same(received(clients, "tags"), wanted)


@pytest.mark.parametrize("how", ["async", "one-way", "batch"])
def test_what_is_sent_otherwise_arrives(clients: ClientsReport, how: str) -> None:
    assert_same(received(clients, f"of-{how}"), sent(clients, how))


def test_the_answers_name_the_places_where_messages_are(clients: ClientsReport) -> None:
    places = {uniq_key(message): (message["queue_id"], message["queue_offset"]) for message in sent(clients, "sync")}
    found = {uniq_key(one): (one["queue_id"], one["queue_offset"]) for one in received(clients, "lite-pull")}
    assert {key: found[key] for key in places} == places


def test_delayed_messages_come_when_they_are_due(clients: ClientsReport) -> None:
    messages = {uniq_key(message): message for message in sent(clients, "delay")}
    assert_same(received(clients, "of-delay"), list(messages.values()))
    for message in received(clients, "of-delay"):
        of_producer = messages[uniq_key(message)]
        delay_s = DELAYS_S[int(of_producer["properties"]["DELAY"]) - 1]
        assert message["received_at"] - message["born_timestamp"] >= (delay_s - EARLY_S) * 1000
        assert message["queue_id"] == of_producer["queue_id"]


def test_of_transactions_those_arrive_that_are_committed_at_once_or_when_checked(clients: ClientsReport) -> None:
    committed = [m for m in sent(clients, "transaction") if int(m["properties"]["number"]) % 5 in (0, 3, 4)]
    assert_same(received(clients, "of-transaction"), committed)


def test_orderly_consumers_see_each_queue_in_order_also_where_they_fail(clients: ClientsReport) -> None:
    messages = received(clients, "orderly-1", "orderly-2")
    assert clients.received["orderly-1"]
    assert clients.received["orderly-2"]
    done = [message for message in messages if not message["failed"]]
    assert_same(done, sent(clients, "ordered", "ordered-once"))
    for consumer in ("orderly-1", "orderly-2"):
        queues = defaultdict(list)
        for message in clients.received[consumer]:
            queues[message["queue_id"]].append((message["queue_offset"], message["failed"]))
        for offsets in queues.values():
            assert offsets == sorted(offsets, key=lambda pair: (pair[0], not pair[1]))


def test_a_message_that_fails_is_tried_again_later_and_is_dead_after_the_last_try(clients: ClientsReport) -> None:
    tries = defaultdict(list)
    for message in received(clients, "retrying"):
        tries[uniq_key(message)].append(message)
    for producer, times in (("well", 1), ("once", 2), ("always", 3)):
        for message in sent(clients, producer):
            own = tries.pop(uniq_key(message))
            assert [one["reconsume_times"] for one in own] == list(range(times))
            assert {content(one) for one in own} == {content(message)}
            for before, after, delay_s in zip(own, own[1:], DELAYS_S[2:], strict=False):
                assert after["received_at"] - before["received_at"] >= (delay_s - EARLY_S) * 1000
    assert not tries
    dead = received(clients, "of-dead")
    assert {message["topic"] for message in dead} == {"%DLQ%GRetry"}
    assert_same([{**message, "topic": "TRetry"} for message in dead], sent(clients, "always"))
