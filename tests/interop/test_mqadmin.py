"""mqadmin says the same of our broker, and through our name server, as of a Java broker that had the same store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from rmqha.store.metadata import ConsumerOffsetTable, topic_at_group
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient
from rmqha.wire.record import Host, format_msg_id
from tests.interop.conftest import SEGMENT_SIZE, start_our_broker
from tests.interop.nodes import OurBroker, ask
from tests.interop.our_clients import OurClients
from tests.interop.rocketmq import (
    SMALL_FILES,
    VERSION,
    Broker,
    Driver,
    NameServer,
    SendResult,
    free_ports,
    read_send_log,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.story

HAS_PRODUCER: Final = tuple(map(int, VERSION.split("."))) >= (4, 9, 4)
"""Whether this release has the commands producer and deleteExpiredCommitLog."""
TOPIC: Final = "TAdmin"
QUEUES: Final = 4
CONSUMED: Final = 20
AFTERWARDS: Final = 5
OFFLINE, ONLINE = "GOffline", "GOnline"

SAME_STATUS: Final = {
    *(("brokerVersion", "brokerVersionDesc") if VERSION == "4.9.3" else ()),
    *("commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes"),
    *("sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity"),
    *("startAcceptSendRequestTimeStamp", "remainTransientStoreBufferNumbs"),
    *("EndTransactionThreadPoolQueueCapacity", "pageCacheLockTimeMills", "putMessageFailedTimes"),
}
"""Names in brokerStatus whose values the store and the version decide."""
OUR_STATUS: Final = {"rmqha", "rmqhaReaders", "rmqhaVersion"}
EXPORTS: Final = {"exportConfigs": "configs.json", "exportMetrics": "metrics.json"}
LATER_STATUS: Final = {"putLatency99", "putLatency999", "getTransferredTps", "brokerActive"}
"""The first two came with 4.9.4, the others with 5.x."""
OTHER_SETTINGS: Final = {"fileReservedTime", "diskMaxUsedSpaceRatio"}
"""The harness gives these to Java's brokers alone."""
OUR_SETTINGS: Final = {
    *("haMaxConnections", "haMaxSilentConnections", "haMaxConnectionsPerAddress", "haConnectsAtOncePerAddress"),
    *("haConnectsPerSecondPerAddress", "haFlowControlEnable", "maxHaTransferByteInSecond"),
    *("serverConnectsAtOncePerAddress", "serverConnectsPerSecondPerAddress"),
    *("inSyncReplicas", "minInSyncReplicas", "serverMaxConnections", "serverMaxRequestsInProgress"),
    *("serverMaxRequestBytes", "serverMaxAnswerBytes", "maxGroups", "maxTopics", "unregisterUnfitSlave", "readUpTo"),
    *("timerMaxDelaySec", "recallMessageEnable"),
    *("updateBrokerConfigFrom", "aclStrict"),
    *(
        f"maxNew{what}{rate}{of}"
        for what in ("Groups", "Topics")
        for rate in ("AtOnce", "PerSecond")
        for of in ("", "PerConnection")
    ),
}
"""Those of 4.9.4 and later, and our own limits."""


@dataclass(frozen=True)
class Said:
    """What mqadmin printed by its words: of Java's broker, then of ours, at last with our name server in between."""

    of_java: Mapping[str, str]
    of_ours: Mapping[str, str]
    through_ours: Mapping[str, str]


def commands(address: str, sent: SendResult) -> list[list[str]]:
    """The first ones change what later ones tell."""
    place = ["-i", str(sent.queue_id), "-o", str(sent.queue_offset)]
    return [
        ["updateTopic", "-b", address, "-t", "TNew", "-r", "3", "-w", "2"],
        ["updateTopic", "-c", "mqadmin", "-t", "TNewInCluster"],
        ["clusterList"],
        ["clusterList", "-m"],
        ["brokerStatus", "-b", address],
        ["brokerStatus", "-c", "mqadmin"],
        ["topicList"],
        ["topicList", "-c"],
        ["topicStatus", "-t", TOPIC],
        ["topicRoute", "-t", TOPIC],
        ["topicRoute", "-t", "TNew"],
        ["consumerProgress"],
        ["consumerProgress", "-g", OFFLINE],
        ["consumerProgress", "-g", ONLINE],
        ["queryMsgById", "-i", sent.offset_msg_id],
        ["queryMsgByKey", "-t", TOPIC, "-k", sent.key],
        ["queryMsgByUniqueKey", "-t", TOPIC, "-i", sent.msg_id],
        ["queryMsgByOffset", "-t", TOPIC, "-b", "broker-mqadmin", *place],
        ["getBrokerConfig", "-b", address],
        ["brokerConsumeStats", "-b", address],
        ["brokerConsumeStats", "-b", address, "-o", "true"],
        ["queryCq", "-b", address, "-t", TOPIC, "-q", "1", "-i", "2", "-c", "3"],
        ["queryCq", "-b", address, "-t", TOPIC, "-q", "0", "-i", "0", "-g", ONLINE],
        ["queryCq", "-b", address, "-t", TOPIC, "-q", "0", "-i", "0", "-g", "GNobody"],
        ["cleanExpiredCQ", "-b", address],
        ["cleanUnusedTopic", "-b", address],
        *([["producer", "-b", address], ["deleteExpiredCommitLog", "-b", address]] if HAS_PRODUCER else []),
    ]


def consumer(group: str) -> dict[str, Any]:
    return {"name": group, "group": group, "topic": TOPIC, "kind": "concurrent"}


def progress_of(broker: Broker | OurBroker, group: str) -> int:
    """How many messages of the topic the group has consumed, as the broker knows."""
    table = ConsumerOffsetTable.from_json(loads_lenient(ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)))
    return sum(table.offset_table.get(topic_at_group(TOPIC, group), {}).values())


def prepare(driver: Driver, broker: Broker, log: Path) -> SendResult:
    """A group that has consumed a topic's first messages, and is gone. The first of those that came afterwards."""
    driver.create_topic(broker.cluster, TOPIC, QUEUES)
    driver.clients(
        {
            "topics": {TOPIC: QUEUES},
            "consumers": [consumer(OFFLINE)],
            "producers": [{"name": "sync", "topic": TOPIC, "kind": "sync", "count": CONSUMED}],
            "until": [[[OFFLINE], CONSUMED]],
            "seconds": 300,
        }
    )
    wait_until(lambda: progress_of(broker, OFFLINE) == CONSUMED, "the broker to know how far the group was")
    driver.send(TOPIC, AFTERWARDS, 100, log=log)
    return read_send_log(log)[0]


@contextmanager
def online(driver: Driver, broker: Broker | OurBroker) -> Iterator[None]:
    """A consumer that has consumed all is connected meanwhile."""
    plan = {
        "topics": {TOPIC: QUEUES},
        "consumers": [consumer(ONLINE)],
        "until": [[[ONLINE], 10**9]],
        "seconds": 10**6,
    }

    def has_consumed() -> bool:
        return progress_of(broker, ONLINE) == CONSUMED + AFTERWARDS

    def is_connected() -> bool:
        try:
            return b"@" in ask(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": ONLINE})
        except AssertionError:
            return False

    with driver.start_clients(plan) as run:
        wait_until(lambda: is_connected() and has_consumed(), f"the consumer to have all at {broker}")
        yield
        run.stop()


def asked(driver: Driver, words: Sequence[Sequence[str]]) -> dict[str, str]:
    return dict(zip(map(" ".join, words), driver.mqadmin(words), strict=True))


@pytest.fixture(scope="module")
def said(namesrv: NameServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Said]:
    work: Path = tmp_path_factory.mktemp("mqadmin")
    driver = Driver(namesrv.address, work / "driver")
    names = {"name": "broker-mqadmin", "cluster": "mqadmin"}
    with ExitStack() as stack:
        options: dict[str, Any] = {**SMALL_FILES, **names}
        java = Broker(work / "java", namesrv=namesrv.address, segment_size=SEGMENT_SIZE, **options)
        stack.callback(java.kill)
        java.start()
        words = commands(java.address, prepare(driver, java, work / "sent"))
        with online(driver, java):
            of_java = asked(driver, words)
        java.stop()
        embedded = free_ports()
        ours = start_our_broker(
            namesrv,
            stack,
            work,
            "async-master",
            store=java.store,
            listen_port=java.listen_port,
            options=[f"--embed-namesrv={embedded}"],
            **names,
        )
        with online(driver, ours):
            of_ours = asked(driver, words)
            through_ours = asked(Driver(f"127.0.0.1:{embedded}", work / "driver-2"), words)
        assert ours.stop() == 0
        yield Said(of_java, of_ours, through_ours)


def normal(text: str) -> list[str]:
    """The lines, sorted; without rates, times, widths of columns, and the topics that Java makes as it ends."""
    text = re.sub(r'("subVersion":|lastUpdateTimestamp=|remoteIP=/127\.0\.0\.1:)\d+', r"\1#", text)
    text = re.sub(r"\bV4_9_\d\b", "V4_9_#", text)  # ours is 4.9.3, whatever Java's is
    lines = (re.sub(r"\s+", " ", re.sub(r"\d+\.\d+(?![\d.])", "#", line)).strip() for line in text.splitlines())
    if text.startswith("#Group"):
        lines = (re.sub(r"\d+( \d+)$", r"#\1", line) for line in lines)
    if text.startswith("producer group"):  # mqadmin itself may be one by then
        lines = (line for line in lines if f"@{ONLINE}," in line)
    return sorted(line for line in lines if line and "RMQ_SYS_TRANS" not in line)


SAME = [
    "updateTopic -b",
    "updateTopic -c",
    "clusterList",
    "topicList",
    "topicList -c",
    "topicStatus",
    f"topicRoute -t {TOPIC}",
    "topicRoute -t TNew",
    "consumerProgress",
    f"consumerProgress -g {OFFLINE}",
    f"consumerProgress -g {ONLINE}",
    "queryMsgById",
    "queryMsgByKey",
    "queryMsgByUniqueKey",
    "queryMsgByOffset",
    "brokerConsumeStats",
    f"queryCq -b ADDRESS -t {TOPIC} -q 1",
    f"queryCq -b ADDRESS -t {TOPIC} -q 0 -i 0 -g {ONLINE}",
    f"queryCq -b ADDRESS -t {TOPIC} -q 0 -i 0 -g GNobody",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    *(["producer", "deleteExpiredCommitLog"] if HAS_PRODUCER else []),
]


def without_address(words: str) -> str:
    return re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", words)


@pytest.mark.parametrize("command", SAME)
def test_the_same_is_printed(said: Said, command: str) -> None:
    """Where the text in words is that of a command, or how the only one begins."""
    words = next((key for key in said.of_java if without_address(key) == command), None)
    words = words or next(key for key in said.of_java if without_address(key).startswith(command))
    java = normal(said.of_java[words])
    assert java
    assert "Exception" not in said.of_java[words].replace("exceptionDesc", "")
    assert normal(said.of_ours[words]) == java
    assert normal(said.through_ours[words]) == java


def fields(text: str, separator: str) -> dict[str, str]:
    """Names and values; lines of tables begin with an address, which is left out."""
    pairs = (line.partition(separator)[::2] for line in text.splitlines() if separator in line)
    return {name.split()[-1]: value.strip() for name, value in pairs if name.split()}


def test_the_broker_tells_its_status_in_the_same_fields(said: Said) -> None:
    for words in (words for words in said.of_java if words.startswith("brokerStatus")):
        java, ours = fields(said.of_java[words], ": "), fields(said.of_ours[words], ": ")
        assert ours.keys() - OUR_STATUS - LATER_STATUS == java.keys() - LATER_STATUS
        assert ours.keys() >= LATER_STATUS
        assert {name: ours[name] for name in SAME_STATUS} == {name: java[name] for name in SAME_STATUS}
        assert fields(said.through_ours[words], ": ").keys() == ours.keys()


def test_the_broker_tells_what_its_settings_are_by_the_same_names(said: Said) -> None:
    (words,) = (words for words in said.of_java if words.startswith("getBrokerConfig"))
    java, ours = fields(said.of_java[words], "="), fields(said.of_ours[words], "=")
    assert ours.keys() - java.keys() == OUR_SETTINGS
    both = ours.keys() - OUR_SETTINGS - OTHER_SETTINGS
    assert {name: ours[name] for name in both} == {name: java[name] for name in both}
    assert {"brokerIP1", "brokerId", "listenPort", "haListenPort", "storePathCommitLog", "brokerRole"} <= both


def test_messages_put_and_got_are_counted_in_the_same_columns(said: Said) -> None:
    java, ours = (re.sub(r"\b\d+\b", "N", said_of["clusterList -m"]) for said_of in (said.of_java, said.of_ours))
    assert normal(ours) == normal(java)


def test_settings_change_at_run_time(namesrv: NameServer, tmp_path: Path) -> None:
    """As with Java's broker: updateBrokerConfig changes a setting, getBrokerConfig shows it, also after a restart."""
    driver = Driver(namesrv.address, tmp_path / "driver")
    with ExitStack() as stack:
        broker = start_our_broker(
            namesrv, stack, tmp_path, "async-master", fileReservedTime=48, cluster="exported", name="broker-exported"
        )
        at = ["-b", broker.address]

        def change(key: str, value: str) -> str:
            (printed,) = driver.mqadmin([["updateBrokerConfig", *at, "-k", key, "-v", value]])
            return printed

        def shown(key: str) -> str:
            (printed,) = driver.mqadmin([["getBrokerConfig", *at]])
            return fields(printed, "=")[key]

        assert f"update broker config success, {broker.address}" in change("fileReservedTime", "720")
        assert shown("fileReservedTime") == "720"
        for key in ("storePathRootDir", "fileReservedTim", "configBlackList", "brokerRole"):
            assert "success" not in change(key, "7")
        assert shown("brokerRole") == "ASYNC_MASTER"
        for permission in ("4", "6"):
            assert "success" in change("brokerPermission", permission)
            assert shown("brokerPermission") == permission
        driver.mqadmin([[command, "-c", "exported", "-f", str(tmp_path)] for command in EXPORTS])
        configs, metrics = (loads_lenient((tmp_path / name).read_bytes()) for name in EXPORTS.values())
        assert configs["brokerConfigs"]["broker-exported"]["fileReservedTime"] == "720"
        assert metrics["evaluateReport"]
        assert broker.stop() == 0
        broker.start()
        assert shown("fileReservedTime") == "720"


RESETS: Final = "TReset"
MESSAGES: Final = 10
RESET_SECONDS: Final = 60.0
RESETS_AT_MOST: Final = 5
RUNNING, IDLE = "GRunning", "GIdle"


def reset_commands(client_id: str) -> list[list[str]]:
    """The first ones ask the consumer while it has its queue: for some seconds after a reset it has none."""
    running, idle = (["-g", group, "-t", RESETS] for group in (RUNNING, IDLE))
    return [
        ["consumerStatus", "-g", RUNNING, "-i", client_id],
        ["getConsumerStatus", "-g", RUNNING, "-t", RESETS],
        ["getConsumerStatus", "-g", RUNNING, "-t", RESETS, "-i", client_id],
        ["resetOffsetByTime", *running, "-s", "now", "-f", "false"],
        ["skipAccumulatedMessage", *running],
        ["resetOffsetByTime", *idle, "-s", "0"],
        ["resetOffsetByTime", *idle, "-s", "now"],
        ["skipAccumulatedMessage", *idle],
    ]


def of_resets(driver: Driver, broker: Broker | OurBroker, work: Path) -> dict[str, str]:
    """What mqadmin prints while consumers of a broker are reset. They must consume again what they are told."""
    groups = {"concurrent": RUNNING, "orderly": "GOrderly"}
    plan = {
        "topics": {RESETS: 1},
        "consumers": [{"name": group, "group": group, "topic": RESETS, "kind": kind} for kind, group in groups.items()],
        "until": [[[RUNNING], 10**9]],
        "seconds": 10**6,
    }
    driver.clients(
        {
            "topics": {RESETS: 1},
            "consumers": [{"name": IDLE, "group": IDLE, "topic": RESETS, "kind": "concurrent"}],
            "producers": [{"name": "sync", "topic": RESETS, "kind": "sync", "count": MESSAGES}],
            "until": [[[IDLE], MESSAGES]],
            "seconds": 300,
        }
    )
    ours = {"name": "ours", "group": "GOurs", "topic": RESETS, "kind": "concurrent"}
    with (
        driver.start_clients(plan) as run,
        OurClients(work / "our-clients", driver.namesrv, consumers=[ours]) as our_clients,
    ):

        def consumed(count: int) -> bool:
            return min(len(run.consumed(group)) for group in groups.values()) >= count

        wait_until(lambda: consumed(MESSAGES), f"the consumers to have all at {broker}")
        our_clients.wait_for_calls(MESSAGES, "ours")

        def has_committed(group: str) -> bool:
            answer = loads_lenient(ask(broker, RequestCode.GET_ALL_CONSUMER_OFFSET))
            offsets = ConsumerOffsetTable.from_json(answer).offset_table.get(topic_at_group(RESETS, group), {})
            return offsets.get(0) == MESSAGES

        for group in (IDLE, *groups.values(), "GOurs"):
            wait_until(partial(has_committed, group), f"the offset of {group} at the end")
        printed: dict[str, str] = {}

        def reset(*of: str) -> None:
            again = [["resetOffsetByTime", "-g", group, "-t", RESETS, "-s", "0"] for group in of]
            printed.update(asked(driver, again))

        reset("GOurs")
        # A Java consumer may read its former offset before the broker has stored its new one. It needs another reset.
        for _ in range(RESETS_AT_MOST):
            reset(*(group for group in groups.values() if len(run.consumed(group)) < 2 * MESSAGES))
            with suppress(AssertionError):
                wait_until(lambda: consumed(2 * MESSAGES), "the consumers to have all again", RESET_SECONDS)
                break
        else:
            pytest.fail(f"the consumers did not have all again at {broker}")
        our_clients.wait_for_calls(2 * MESSAGES, "ours")
        wait_until(partial(has_committed, RUNNING), f"the offset of {RUNNING} at the end again")  # -f false looks at it
        client_id = loads_lenient(ask(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": RUNNING}))[
            "consumerIdList"
        ][0]
        printed |= asked(driver, reset_commands(client_id))
        own_id = loads_lenient(ask(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "GOurs"}))[
            "consumerIdList"
        ][0]
        msg_id = first_msg_id(broker)
        printed |= asked(
            driver,
            [
                ["consumerStatus", "-g", "GOurs", "-i", own_id, "-s", "true"],
                ["queryMsgById", "-i", msg_id, "-g", "GOurs", "-d", own_id],
            ],
        )
        our_clients.wait_for_calls(2 * MESSAGES + 1, "ours")
        our_clients.stop()
        run.stop()
    names = {client_id: "CLIENT", own_id: "OURS", msg_id: "ID"}
    return {" ".join(names.get(word, word) for word in words.split()): text for words, text in printed.items()}


def first_msg_id(broker: Broker | OurBroker) -> str:
    """Of the topic's first message."""
    fields = {"topic": RESETS, "queueId": "0", "index": "0", "count": "1"}
    (unit,) = loads_lenient(ask(broker, RequestCode.QUERY_CONSUME_QUEUE, fields))["queueData"]
    host, _, port = broker.address.rpartition(":")
    return format_msg_id(Host.parse(host, int(port)), unit["physicOffset"])


@pytest.fixture(scope="module")
def said_of_resets(
    namesrv: NameServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    work: Path = tmp_path_factory.mktemp("resets")
    driver = Driver(namesrv.address, work / "driver")
    names: dict[str, Any] = {"name": "broker-resets", "cluster": "resets"}
    with ExitStack() as stack:
        java = Broker(work / "java", namesrv=namesrv.address, segment_size=SEGMENT_SIZE, **{**SMALL_FILES, **names})
        stack.callback(java.kill)
        java.start()
        driver.create_topic(java.cluster, RESETS, 1)
        of_java = of_resets(driver, java, work / "with-java")
        java.stop()
        ours = start_our_broker(namesrv, stack, work / "ours", "async-master", **names)
        driver.create_topic("resets", RESETS, 1)
        of_ours = of_resets(driver, ours, work / "with-ours")
        assert ours.stop() == 0
        yield of_java, of_ours


def without_clients(text: str) -> list[str]:
    """The lines, sorted; without the ids and addresses of clients and brokers, times and stack traces."""
    text = re.sub(r"\S+@\S+", "CLIENT", text)
    text = re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", text)
    text = re.sub(r"For more information.*|\[?BROKER: .*", "", text)
    return sorted({re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if not line.startswith("\tat ")})


@pytest.mark.parametrize("command", [" ".join(words) for words in reset_commands("CLIENT")[1:]])
def test_resets_print_the_same(said_of_resets: tuple[Mapping[str, str], Mapping[str, str]], command: str) -> None:
    of_java, of_ours = said_of_resets
    assert without_clients(of_java[command])
    assert without_clients(of_ours[command]) == without_clients(of_java[command])


def test_a_running_consumer_tells_about_itself(said_of_resets: tuple[Mapping[str, str], Mapping[str, str]]) -> None:
    of_java, of_ours = (printed[f"consumerStatus -g {RUNNING} -i CLIENT"] for printed in said_of_resets)
    java, ours = fields(of_java, ":"), fields(of_ours, ":")
    assert ours.keys() == java.keys()
    assert {"PROP_CONSUMER_START_TIMESTAMP", "maxReconsumeTimes"} & ours.keys()


def test_a_consumer_of_ours_tells_about_itself(said_of_resets: tuple[Mapping[str, str], Mapping[str, str]]) -> None:
    """Through Java's broker and through ours. What mqadmin shows of a Java consumer it shows of ours."""
    for printed in said_of_resets:
        java = fields(printed[f"consumerStatus -g {RUNNING} -i CLIENT"], ":")
        text = printed["consumerStatus -g GOurs -i OURS -s true"]
        ours = fields(text, ":")
        assert {name for name in java if name.startswith("PROP_")} - ours.keys() <= {"PROP_NAMESERVER_ADDR"}
        assert ours["PROP_CONSUMEORDERLY"] == "false"
        assert ours["PROP_CLIENT_VERSION"] == "V4_9_3"
        for heading in ("#Consumer Subscription#", "#Consumer Offset#", "#Consumer MQ Detail#", "#Consumer RT&TPS#"):
            assert heading in text
        assert re.search(rf"{RESETS}\s+\S+\s+0\s+{MESSAGES}\b", text)
        assert "MainThread" in text


def test_a_consumer_of_ours_handles_a_message_directly(
    said_of_resets: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    for printed in said_of_resets:
        assert "consumeResult=CR_SUCCESS" in printed["queryMsgById -i ID -g GOurs -d OURS"]
