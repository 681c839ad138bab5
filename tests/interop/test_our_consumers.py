"""Our producers and consumers at a Java broker and at one of ours, with a Java consumer in one of their groups.

One broker starts for all checks, and the tests look at what came.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.commands import rmqha
from tests.interop.conftest import SEGMENT_SIZE, start_our_broker
from tests.interop.our_clients import OurClients
from tests.interop.rocketmq import SMALL_FILES, Broker, ClientsReport, Driver, NameServer
from tests.waiting import wait_until

pytestmark = pytest.mark.story

Message = Mapping[str, Any]

QUEUES: Final = 4
DELAYS_S: Final = (1, 2, 3, 4)
"""Of messageDelayLevel here. A first retry is delayed at level 3, the next one at level 4."""
EARLY_S: Final = 0.05
"""What a clock in milliseconds, and one that is set while a test runs, are allowed."""
QUICK: Final[dict[str, Any]] = {
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in DELAYS_S),
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
    "enablePropertyFilter": True,
}
TOPICS: Final = ("OShared", "ORetry", "OOrdered", "ODelay", "OTransaction")
CONSUMERS: Final = (
    {"name": "shared", "group": "GOShared", "topic": "OShared", "kind": "concurrent"},
    {"name": "tags", "group": "GOTags", "topic": "OShared", "kind": "concurrent", "expression": "tag1 || tag3"},
    {"name": "sql", "group": "GOSql", "topic": "OShared", "kind": "concurrent", "sql": "TAGS IN ('tag1', 'tag3')"},
    {"name": "broadcast-1", "group": "GOBroadcast", "topic": "OShared", "kind": "broadcasting"},
    {"name": "broadcast-2", "group": "GOBroadcast", "topic": "OShared", "kind": "broadcasting"},
    {"name": "retrying", "group": "GORetry", "topic": "ORetry", "kind": "concurrent", "max_reconsume": 2},
    {"name": "dead", "group": "GODead", "topic": "%DLQ%GORetry", "kind": "concurrent", "never_fails": True},
    {"name": "ordered-1", "group": "GOOrdered", "topic": "OOrdered", "kind": "orderly"},
    {"name": "ordered-2", "group": "GOOrdered", "topic": "OOrdered", "kind": "orderly"},
    {"name": "of-delay", "group": "GODelay", "topic": "ODelay", "kind": "concurrent"},
    {"name": "of-transaction", "group": "GOTransaction", "topic": "OTransaction", "kind": "concurrent"},
)
PRODUCERS: Final = (
    {"name": "sync", "topic": "OShared", "kind": "sync", "count": 40, "repeat": 300},
    {"name": "batch", "topic": "OShared", "kind": "batch", "count": 24},
    {"name": "well", "topic": "ORetry", "kind": "sync", "count": 6},
    {"name": "once", "topic": "ORetry", "kind": "sync", "count": 6, "fail": "once"},
    {"name": "always", "topic": "ORetry", "kind": "sync", "count": 4, "fail": "always"},
    {"name": "ordered", "topic": "OOrdered", "kind": "orderly", "count": 60},
    {"name": "ordered-once", "topic": "OOrdered", "kind": "orderly", "count": 8, "fail": "once"},
    {"name": "delay", "topic": "ODelay", "kind": "delay", "count": 6, "delays": [1, 2]},
    {"name": "transaction", "topic": "OTransaction", "kind": "transaction", "count": 15},
)
JAVA_SENDS: Final = 20
AFTER: Final = 24
"""How many messages are sent after the broker was killed and came back, and after the consumers were stopped."""
ALL_SHARED: Final = 40 + 24 + 2 * JAVA_SENDS
JAVA_CONSUMER: Final = {"name": "java", "group": "GOShared", "topic": "OShared", "kind": "concurrent"}
JAVA_PRODUCERS: Final = (
    {"name": "java-small", "topic": "OShared", "kind": "sync", "count": JAVA_SENDS},
    {"name": "java-compressed", "topic": "OShared", "kind": "sync", "count": JAVA_SENDS, "body_bytes": 6000},
)


@dataclass(frozen=True)
class Seen:
    """What all clients have sent and received."""

    received: Mapping[str, Sequence[Message]]
    sent: Mapping[str, Sequence[Message]]
    java: ClientsReport
    after_stop: Mapping[str, Sequence[Message]]
    """What the next consumers of the same groups have received."""
    killed_at: float

    def of(self, *consumers: str) -> list[Message]:
        return [message for consumer in consumers for message in self.received.get(consumer, ())]

    def before_the_kill(self, *consumers: str) -> list[Message]:
        return [message for message in self.of(*consumers) if message["at"] < self.killed_at]


@pytest.fixture(scope="module", params=["java", "ours"])
def seen(
    request: pytest.FixtureRequest, namesrv: NameServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    """Everything at work, at a broker of this kind."""
    work = tmp_path_factory.mktemp("our-consumers")
    names: dict[str, Any] = {"name": f"broker-of-{request.param}", "cluster": f"cluster-of-{request.param}"}
    with ExitStack() as stack:
        if request.param == "java":
            options: dict[str, Any] = {**names, **SMALL_FILES, **QUICK, "segment_size": SEGMENT_SIZE}
            broker: Any = Broker(work / "broker", namesrv=namesrv.address, **options)
            stack.callback(broker.kill)
            broker.start()
        else:
            broker = start_our_broker(namesrv, stack, work, "async-master", **names, **QUICK)
        driver = Driver(namesrv.address, work / "driver")
        driver.create_topics(broker.cluster, dict.fromkeys(TOPICS, QUEUES))
        yield run(stack, driver, namesrv.address, broker, work)


def run(stack: ExitStack, driver: Driver, name_server: str, broker: Any, work: Any) -> Seen:
    consumers = [{**spec, "folder": str(work / "offsets")} for spec in CONSUMERS]
    ours = stack.enter_context(OurClients(work / "consumers", name_server, consumers=consumers))
    share = {"OShared": QUEUES // 2}
    forever = {"until": [[["java"], 10**9]], "seconds": 10**6}
    java = stack.enter_context(driver.start_clients({"topics": share, "consumers": [JAVA_CONSUMER], **forever}))
    # Nobody sends before all have just their share: what a queue gets while it changes hands may come to both.
    java.wait_until_ready()
    ours.wait_for_queues(shared=2, **{"broadcast-1": 4, "broadcast-2": 4, "ordered-1": 2, "ordered-2": 2})
    java_producers = stack.enter_context(
        driver.start_clients({"topics": {}, "producers": JAVA_PRODUCERS, "until": [], "seconds": 10**6})
    )
    producers = stack.enter_context(OurClients(work / "producers", name_server, producers=PRODUCERS))
    producers.wait_for("produced")
    for consumer in ("broadcast-1", "broadcast-2"):
        ours.wait_for_count(ALL_SHARED, consumer)
    ours.wait_for_calls(6 + 2 * 6 + 3 * 4, "retrying")
    ours.wait_for_count(4, "dead")
    ours.wait_for_calls(60 + 2 * 8, "ordered-1", "ordered-2")
    ours.wait_for_count(6, "of-delay")
    ours.wait_for_count(9, "of-transaction")
    wait_until(lambda: len({*ours.keys_of("shared"), *java.consumed("java")}) >= ALL_SHARED, "what is shared")
    sent = producers.stop()["sent"]
    javas_sends = java_producers.wait()

    killed_at = time.time()
    broker.kill()
    broker.start()
    late = [{"name": "late", "topic": "OShared", "kind": "sync", "count": AFTER}]
    with OurClients(work / "late", name_server, producers=late) as sending:
        sending.wait_for("produced")
        sent["late"] = sending.stop()["sent"]["late"]
    ours.wait_for_count(ALL_SHARED + AFTER, "broadcast-1")
    ours.wait_for_count(ALL_SHARED + AFTER, "broadcast-2")
    for group in ("GOShared", "GOTags", "GOSql"):
        wait_for_no_lag(name_server, group)
    report = java.stop()
    ours.wait_for_queues(shared=QUEUES)
    wait_for_no_lag(name_server, "GOShared")
    received = ours.stop()["received"]
    javas = ClientsReport(javas_sends.sent, report.received, [*javas_sends.troubles, *report.troubles])

    last = [{"name": "last", "topic": "OShared", "kind": "sync", "count": AFTER}]
    with OurClients(work / "next", name_server, consumers=consumers[:4], producers=last) as following:
        for consumer in ("shared", "broadcast-1"):
            following.wait_for_count(AFTER, consumer)
        return Seen(received, sent, javas, following.stop()["received"], killed_at)


def wait_for_no_lag(name_server: str, group: str) -> None:
    """Wait until the broker has the group's offsets behind all messages of OShared."""

    def has_all() -> bool:
        done = rmqha("lag", group, "--topic=OShared", f"--namesrv={name_server}", "--json")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode == 0 and [row["diff"] for row in rows] == [0]

    wait_until(has_all, f"{group} to have all")


def keys(messages: Sequence[Message]) -> list[str]:
    return [message["keys"] for message in messages]


def expected(*names: str) -> set[str]:
    counts = {str(spec["name"]): int(str(spec["count"])) for spec in (*PRODUCERS, *JAVA_PRODUCERS)} | {"late": AFTER}
    return {f"{name}-{number}" for name in names for number in range(counts[name])}


def assert_no_place_twice(messages: Sequence[Message]) -> None:
    """Each place of a queue came once. A broker that was killed may deliver its last messages again, at new places."""
    places = Counter((*message["queue"], message["queue_offset"]) for message in messages)
    assert max(places.values()) == 1


ALL_OF_SHARED: Final = ("sync", "batch", "java-small", "java-compressed", "late")


def test_each_send_is_stored_and_no_java_client_had_trouble(seen: Seen) -> None:
    assert {message["status"] for messages in seen.sent.values() for message in messages} == {"SEND_OK"}
    assert seen.java.troubles == []


def test_java_and_we_share_the_queues_of_a_group(seen: Seen) -> None:
    """Before the broker was killed each message came to one of them, once. Each had its queues when it was sent."""
    own, javas = seen.of("shared"), seen.java.received["java"]
    assert set(keys(own)) | {message["properties"]["KEYS"] for message in javas} == expected(*ALL_OF_SHARED)
    ours = keys(seen.before_the_kill("shared"))
    theirs = [m["properties"]["KEYS"] for m in javas if m["received_at"] / 1000 < seen.killed_at]
    assert Counter(ours + theirs) == dict.fromkeys(expected(*ALL_OF_SHARED[:-1]), 1)
    assert ours
    assert theirs


@pytest.mark.parametrize("consumer", ["broadcast-1", "broadcast-2"])
def test_who_broadcasts_gets_every_message_once_also_after_the_broker_came_back(seen: Seen, consumer: str) -> None:
    assert Counter(keys(seen.of(consumer))) == dict.fromkeys(expected(*ALL_OF_SHARED), 1)


def test_bodies_come_as_they_were_sent_also_compressed_ones(seen: Seen) -> None:
    ours = {message["keys"]: message["body_sha256"] for name in seen.sent for message in seen.sent[name]}
    javas = {m["properties"]["KEYS"]: m["body_sha256"] for name in seen.java.sent for m in seen.java.sent[name]}
    bodies = {message["keys"]: message["body_sha256"] for message in seen.of("broadcast-1")}
    assert bodies == {key: body for key, body in (ours | javas).items() if key in bodies}
    assert len(bodies) == ALL_SHARED + AFTER
    of_java = {m["properties"]["KEYS"]: m["body_sha256"] for m in seen.java.received["java"]}
    assert of_java == {key: body for key, body in (ours | javas).items() if key in of_java}
    assert any(key.startswith("sync-") for key in of_java), "we compressed these"


def test_only_the_wanted_tags_come(seen: Seen) -> None:
    wanted = {message["keys"] for message in seen.of("broadcast-1") if message["tags"] in ("tag1", "tag3")}
    assert Counter(keys(seen.of("tags"))) == Counter(keys(seen.of("sql"))) == dict.fromkeys(wanted, 1)


def test_a_message_that_fails_comes_again_later_and_is_dead_after_the_last_try(seen: Seen) -> None:
    tries = defaultdict(list)
    for message in seen.of("retrying"):
        tries[message["keys"]].append(message)
    assert set(tries) == expected("well", "once", "always")
    for key, own in tries.items():
        count = {"well": 1, "once": 2, "always": 3}[key.partition("-")[0]]
        assert [one["reconsume_times"] for one in own[:count]] == list(range(count)), key
        assert {one["topic"] for one in own} == {"ORetry"}
        for before, after, delay_s in zip(own[:count], own[1:count], DELAYS_S[2:], strict=False):
            assert after["at"] - before["at"] >= delay_s - EARLY_S
    assert set(keys(seen.of("dead"))) == expected("always")
    for consumer in ("retrying", "dead"):
        assert_no_place_twice(seen.of(consumer))


def test_ordered_consumers_keep_the_order_of_each_queue_also_where_they_fail(seen: Seen) -> None:
    """Before the broker was killed: then it knows neither their locks nor, for some seconds, their last offsets."""
    for consumer in ("ordered-1", "ordered-2"):
        queues = defaultdict(list)
        for message in seen.before_the_kill(consumer):
            queues[message["queue_id"]].append((message["queue_offset"], not message["failed"]))
        assert queues
        for places in queues.values():
            assert places == sorted(places)
    done = [message for message in seen.before_the_kill("ordered-1", "ordered-2") if not message["failed"]]
    assert Counter(keys(done)) == dict.fromkeys(expected("ordered", "ordered-once"), 1)


def test_delayed_messages_come_when_they_are_due(seen: Seen) -> None:
    levels = {message["keys"]: message["delay_level"] for message in seen.sent["delay"]}
    messages = seen.of("of-delay")
    assert set(keys(messages)) == set(levels)
    assert_no_place_twice(messages)
    for message in messages:
        assert message["at"] - message["born_at"] >= DELAYS_S[levels[message["keys"]] - 1] - EARLY_S


def test_of_transactions_those_come_that_are_committed_at_once_or_when_checked(seen: Seen) -> None:
    wanted = {key for key in expected("transaction") if int(key.rpartition("-")[2]) % 5 in (0, 3, 4)}
    assert set(keys(seen.of("of-transaction"))) == wanted
    assert_no_place_twice(seen.of("of-transaction"))


def test_after_a_clean_stop_the_next_consumers_get_what_is_new_and_nothing_twice(seen: Seen) -> None:
    new = {f"last-{number}" for number in range(AFTER)}
    for consumer in ("shared", "broadcast-1"):
        assert Counter(keys(seen.after_stop[consumer])) == dict.fromkeys(new, 1)
