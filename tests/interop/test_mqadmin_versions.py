"""mqadmin of 4.9.7 and of 5.3.3: each command prints the same of our broker and name server as of Java's.

What differs is listed here with its reason, and in docs/mqadmin.md. What we refuse, we refuse in words.
"""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from rmqha.testing.nodes import NameServerNode
from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient
from tests.interop.conftest import (
    SEGMENT_SIZE,
    MasterFactory,
    OurBrokerFactory,
    SlaveFactory,
    start_our_broker,
)
from tests.interop.nodes import OurBroker, ask
from tests.interop.rocketmq import (
    COMMAND_TIMEOUT_S,
    FAST_START,
    SMALL_FILES,
    V5,
    Broker,
    Driver,
    NameServer,
    SendResult,
    java_command,
)
from tests.interop.test_mqadmin import OFFLINE, ONLINE, OTHER_SETTINGS, OUR_STATUS, TOPIC, fields, online, prepare
from tests.waiting import wait_until

pytestmark = pytest.mark.story

PAGE: Final = Path(__file__).parents[2] / "docs" / "mqadmin.md"
CLUSTER, BROKER = "cluster-versions", "broker-versions"
UNKNOWN: Final = re.compile(r"request type \d+ not supported")
REFUSED: Final = "(rmqha)"

NO_SETTINGS: Final = "updateNamesrvConfig"
REFUSALS: Final = {
    "4.9.7": {NO_SETTINGS, "clusterAclConfigVersion", "getAclConfig"},
    "5.3.3": {
        *(NO_SETTINGS, "setConsumeMode", "resetMasterFlushOffset", "setCommitLogReadAheadMode"),
        *("getSyncStateSet", "getBrokerEpoch", "getControllerMetaData"),
        *("getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig"),
        *("listUser", "createUser", "listAcl", "getAcl"),
    },
}
"""What is refused in words, without access control at the broker."""

POOL_FIGURES: Final = ("Capacity", "HeadWaitTimeMills", "Size")

CHANGING: Final = tuple(
    (re.compile(pattern, re.MULTILINE | re.DOTALL), put)
    for pattern, put in (
        (r"^\d\d:\d\d:\d\d,\d+ \|-[^\n]*$", ""),  # what logback of 5.x says of itself
        (r"MessageTrack \[", "\nMessageTrack ["),
        (rf"MessageTrack \[consumerGroup={TOPIC},.*?%RETRY%{TOPIC}\s.*?\.java:\d+\)\]", ""),
        (rf"^({CLUSTER}\s+)?{TOPIC}\s+{TOPIC}\b[^\n]*$", ""),
        (r"\|[\d.N]+,[\d.N]+ms\)", "|TIMER)"),
        (r"\b(V\d_\d+_\d+|MQVersion\d+)\b", "VERSION"),
        (r"(?<![\d.])\d+\.\d+(?![\d.])", "#"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"\b1\d{12}\b", "TIME"),
        (r"\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\b", "TIME"),
        (r"(consumeTimestamp\s*: |last(?:Lock|Pull|Consume)Timestamp=)\d+", r"\1TIME"),
        (r"(CLUSTERING\s+)\d+", r"\1TPS"),
        (r"(Lambda[$/\w]+)?@[0-9a-f]{5,8}\b", "@HASH"),
        (r"\brt=\d+ms", "rt=#"),
        (r"\b(msgId=|offsetMsgId=|MSGID: |SEND_OK\s+)[0-9A-F]{32}", r"\1ID"),
        (r"\d+(\s+SEND_OK)", r"QUEUE\1"),
        (r"MAX_OFFSET=\d+", "MAX_OFFSET=#"),
        (r"(#MasterCommitLogMaxOffset\s+)\d+", r"\1END"),
        (r"(See|For more information, please visit the url,) https?://rocketmq[^\s,]+( for further details\.)?", ""),
    )
)
"""What differs between two runs, and between the releases: a brokerVersion, a page of help.

mqadmin of 5.x shows how far timer messages are behind: we have none. A broker of 5.3.3 names a topic that has consumers
as one of its groups (its ``ConsumerManager`` adds the topic's name instead of the group's): we do not.
"""
COUNTING: Final = {"statsAll", "checkMsgSendRT", "clusterList"}
"""Commands that print how many and how long it was since some moment."""
STACK: Final = re.compile(r"\s+(at |\.\.\. \d+ more)")

AS_4_9: Final = "we answer as 4.9 does"
EXPLAINED: Final[Mapping[str, Mapping[str, str]]] = {
    "4.9.7": {
        "clusterAclConfigVersion": "Java's broker without access control does not answer at all",
        "getAclConfig": "Java's broker without access control does not answer at all",
    },
    V5: {
        "resetOffsetByTime": f"{AS_4_9}: a group that is not online is reset by mqadmin itself, which says more",
        "skipAccumulatedMessage": f"{AS_4_9}: a group that is not online is reset by mqadmin itself, which says more",
        "cloneGroupOffset 2": f"{AS_4_9}: the new group needs no settings",
    },
}
"""Why a command prints something else of ours, beside those that are refused."""
SETTINGS: Final = {"getBrokerConfig", "getNamesrvConfig", "brokerStatus"}
"""Commands that print names with values; what is compared of them has its own test."""
OTHER_NAMES: Final = {"getTransferedTps", "getTransferredTps", "brokerActive"}
"""The name up to 4.9.8, and those of 5.x: we have all."""
NO_STATUS: Final[Mapping[str, Set[str]]] = {
    "4.9.7": set(),
    V5: {
        *(f"{pool}ThreadPoolQueue{what}" for pool in ("ack", "litePull") for what in POOL_FIGURES),
        *(f"timer{what}" for what in ("CongestNum", "DequeueTps", "EnqueueTps", "OffsetBehind", "ReadBehind")),
    },
}
"""Names in brokerStatus of Java alone: of POP, of light pulls and of timer messages."""
OTHER_DEFAULTS: Final[Mapping[str, Set[str]]] = {"4.9.7": set(), V5: {"inSyncReplicas", "transactionCheckInterval"}}
"""Settings of which 5.x has another default than 4.9 or our node."""


def commands(namesrv: str, broker: str, work: Path, sent: SendResult, client: str, is_5: bool) -> dict[str, list[str]]:
    """The words of each command, by name and number. Those that never end by themselves are left out."""
    at, cluster, topic, group = ["-b", broker], ["-c", CLUSTER], ["-t", TOPIC], ["-g", OFFLINE]
    online, place = ["-g", ONLINE], ["-i", str(sent.queue_id), "-o", str(sent.queue_offset)]
    key, new = ["-s", "ns", "-k", "key"], ["-t", "TNew"]
    of_topic = topic if is_5 else []
    lines = [
        ["clusterList"],
        ["clusterList", "-m"],
        ["topicList"],
        ["topicList", "-c"],
        ["topicRoute", *topic],
        ["topicClusterList", *topic],
        ["topicStatus", *topic],
        ["updateTopic", *at, *new],
        ["updateTopicPerm", *at, *new, "-p", "4"],
        ["updateSubGroup", *at, *group],
        ["getConsumerConfig", *group],
        ["brokerStatus", *at],
        ["getBrokerConfig", *at],
        ["updateBrokerConfig", *at, "-k", "fileReservedTime", "-v", "70"],
        ["brokerConsumeStats", *at],
        ["consumerProgress"],
        ["consumerProgress", *group],
        ["updateSubGroup", *at, "-g", "GCloned"],
        ["cloneGroupOffset", "-s", OFFLINE, "-d", "GCloned", *topic],
        ["resetOffsetByTime", *group, *topic, "-s", "-1"],
        ["resetOffsetByTimeOld", *group, *topic, "-s", "0"],
        ["skipAccumulatedMessage", *group, *topic],
        ["getConsumerStatus", *group, *topic],
        ["consumerConnection", *group],
        ["consumerConnection", *online],
        ["producerConnection", *group, *topic],
        ["producer", *at],
        ["consumer", *group],
        ["consumer", *online],
        ["consumerStatus", *group],
        ["consumerStatus", *online],
        ["consumerStatus", *online, "-i", client],
        ["consumerProgress", *online],
        ["queryCq", *topic, "-q", "0", "-i", "0", *at, "-c", "5"],
        ["queryMsgById", "-i", sent.offset_msg_id, *of_topic],
        ["queryMsgByKey", *topic, "-k", sent.key],
        ["queryMsgByKey", *topic, "-k", "key"],
        ["queryMsgByUniqueKey", *topic, "-i", sent.msg_id],
        ["queryMsgByUniqueKey", *topic, "-i", "7F0000010BC218B4AAC2000000000000"],
        ["queryMsgByOffset", *topic, "-b", BROKER, *place],
        ["printMsg", *topic],
        ["printMsgByQueue", *topic, "-a", BROKER, "-i", "0", "-p", "true"],
        ["sendMessage", *topic, "-p", "hello"],
        ["consumeMessage", *topic, "-c", "1"],
        ["checkMsgSendRT", *topic, "-a", "2"],
        ["sendMsgStatus", "-b", BROKER, "-s", "10", "-c", "2"],
        ["statsAll", *topic],
        ["allocateMQ", *topic, "-i", "1.2.3.4,1.2.3.5"],
        ["cleanExpiredCQ", *at],
        ["cleanUnusedTopic", *at],
        ["deleteExpiredCommitLog", *at],
        ["exportMetadata", *cluster, "-f", str(work)],
        ["exportConfigs", *cluster, "-f", str(work)],
        ["exportMetrics", *cluster, "-f", str(work)],
        ["topicRoute", *new],  # long after the change: our broker answers before it has registered
        ["updateKvConfig", *key, "-v", "value"],
        ["deleteKvConfig", *key],
        ["updateOrderConf", *topic, "-m", "get"],
        ["wipeWritePerm", "-b", BROKER],
        ["addWritePerm", "-b", BROKER],
        ["getNamesrvConfig", "-n", namesrv],
        ["updateNamesrvConfig", "-n", namesrv, "-k", "a", "-v", "b"],
        ["clusterAclConfigVersion", *at],
        ["getAclConfig", *at],
        ["updateTopicList", *at, "-f", str(work / "topics.json")],
        ["topicRoute", "-t", "TListed"],
        ["updateSubGroupList", *at, "-f", str(work / "groups.json")],
        *(
            [["getConsumerConfig", "-g", "GListed"]] if is_5 else []
        ),  # mqadmin of 4.9 makes no lists, and prints nothing
        ["setConsumeMode", *at, *topic, *group, "-m", "POP", "-q", "1"],
        ["updateStaticTopic", *topic, "-qn", "2", *cluster],
        ["haStatus", *at],
        ["getSyncStateSet", "-a", broker, "-b", BROKER],
        ["getBrokerEpoch", "-n", namesrv, "-b", BROKER],
        ["getControllerMetaData", "-a", broker],
        ["resetMasterFlushOffset", *at, "-o", "0"],
        ["getColdDataFlowCtrInfo", *at],
        ["updateColdDataFlowCtrGroupConfig", *at, *group, "-v", "1"],
        ["removeColdDataFlowCtrGroupConfig", *at, *group],
        ["setCommitLogReadAheadMode", *at, "-m", "0"],
        ["listUser", *at],
        ["createUser", *at, "-u", "user", "-p", "password"],
        ["listAcl", *at],
        ["getAcl", *at, "-s", "User:user"],
        ["cloneGroupOffset", "-s", OFFLINE, "-d", "GNew", *topic],
        ["deleteSubGroup", *at, "-g", "GCloned"],
        ["deleteTopic", *cluster, *topic],
    ]
    seen: Counter[str] = Counter()
    named: dict[str, list[str]] = {}
    for words in lines:
        seen[words[0]] += 1
        named[words[0] if seen[words[0]] == 1 else f"{words[0]} {seen[words[0]]}"] = words
    return named


def run(work: Path, version: str, namesrv: str, lines: Sequence[Sequence[str]]) -> list[str]:
    """What mqadmin of a release prints for each command."""
    work.mkdir(parents=True, exist_ok=True)
    file, folder = work / "commands", work / "printed"
    folder.mkdir()
    file.write_text("".join("\t".join(words) + "\n" for words in lines))
    command = java_command(work, FAST_START, "rmqha.Admin", namesrv, file, folder, version=version)
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * COMMAND_TIMEOUT_S, check=False, cwd=work)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [(folder / str(number)).read_text() for number in range(len(lines))]


@dataclass(frozen=True)
class Said:
    """What mqadmin of a release printed by the names of commands: of Java's broker of this release, then of ours."""

    version: str
    of_java: Mapping[str, str]
    of_ours: Mapping[str, str]


@pytest.fixture(scope="module", params=["4.9.7", V5])
def said(request: pytest.FixtureRequest, java_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Each broker has a copy of the same store, the same port, and a name server of its kind at the same port."""
    version: str = request.param
    work: Path = tmp_path_factory.mktemp("versions")
    names = {"name": BROKER, "cluster": CLUSTER}
    with ExitStack() as stack:
        namesrv = NameServer(work / "namesrv", version=version)
        stack.callback(namesrv.kill)
        driver = Driver(namesrv.start().address, work / "driver")
        options: dict[str, Any] = {**SMALL_FILES, **names}
        java = Broker(work / "java", namesrv=namesrv.address, segment_size=SEGMENT_SIZE, version=version, **options)
        stack.callback(java.kill)
        sent = prepare(driver, java.start(), work / "sent")
        java.stop()
        copy = work / "copy"
        shutil.copytree(java.store, copy)
        java.start()
        of_java = asked(driver, java, version, work / "of-java", sent)
        java.stop()
        shutil.rmtree(java.store)
        copy.rename(java.store)  # the same paths are told
        namesrv.stop()
        our_namesrv = NameServerNode(work, [f"--port={namesrv.listen_port}"], name="our-namesrv")
        stack.enter_context(our_namesrv)
        our_namesrv.port("name server")
        port = java.listen_port
        ours = start_our_broker(our_namesrv, stack, work, "async-master", store=java.store, listen_port=port, **names)
        of_ours = asked(driver, ours, version, work / "of-ours", sent)
        assert ours.stop() == 0
    return Said(version, of_java, of_ours)


def asked(driver: Driver, broker: Broker | OurBroker, version: str, work: Path, sent: SendResult) -> dict[str, str]:
    """What mqadmin prints for each command, while a consumer is online."""
    work.mkdir()
    (work / "topics.json").write_text('[{"topicName":"TListed","readQueueNums":2,"writeQueueNums":2,"perm":6}]')
    (work / "groups.json").write_text('[{"groupName":"GListed"}]')
    driver.create_topics(broker.cluster, {"TNew": 8, "TListed": 2})  # as mqadmin will; routes are there from the start
    with online(driver, broker):
        consumers = ask(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": ONLINE})
        (client,) = loads_lenient(consumers)["consumerIdList"]
        named = commands(driver.namesrv, broker.address, work, sent, client, version == V5)
        printed = run(work / "tools", version, driver.namesrv, list(named.values()))
    (work / "all").write_text("\n".join(f"=== {name}\n{text}" for name, text in zip(named, printed, strict=True)))
    texts = (text.replace(client, "CLIENT").replace(str(work), "WORK") for text in printed)
    return dict(zip(named, texts, strict=True))


def test_each_command_works_or_is_refused_in_words(said: Said) -> None:
    unknown = {name: UNKNOWN.search(text) for name, text in said.of_ours.items()}
    assert {name: found[0] for name, found in unknown.items() if found} == {}
    refused = {name for name, text in said.of_ours.items() if REFUSED in text}
    assert refused == REFUSALS[said.version]


def normal(name: str, text: str) -> list[str]:
    """The lines, sorted; without what no two runs have in common, and the topic that Java makes as it ends."""
    for pattern, put in CHANGING:
        text = pattern.sub(put, text)
    if name.split()[0] in COUNTING:
        text = re.sub(r"\b\d+\b", "#", text)
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if not STACK.match(line))
    if name == "producer":  # mqadmin itself may be one by then
        lines = (line for line in lines if "=CLIENT," in line)
    return sorted(line for line in lines if line and "RMQ_SYS_TRANS" not in line)


def test_each_command_prints_the_same(said: Said) -> None:
    compared = [name for name in said.of_java if name not in SETTINGS]
    java, ours = ({name: normal(name, of[name]) for name in compared} for of in (said.of_java, said.of_ours))
    assert all(java.values())
    explained = EXPLAINED[said.version].keys() | REFUSALS[said.version]
    other = {name for name in compared if ours[name] != java[name]}
    differences = ["\n".join(difflib.ndiff(java[name], ours[name])) for name in sorted(other - explained)]
    assert not differences, "\n\n".join(differences)
    assert explained == other, "an explanation of what is the same"


def test_the_same_names_have_the_same_values(said: Said) -> None:
    java, ours = fields(said.of_java["getBrokerConfig"], "="), fields(said.of_ours["getBrokerConfig"], "=")
    other = {name for name in java.keys() & ours.keys() if java[name] != ours[name]}
    assert other == OTHER_SETTINGS | OTHER_DEFAULTS[said.version]
    assert len(java.keys() & ours.keys()) > 50


def test_the_broker_tells_its_status_in_the_same_fields(said: Said) -> None:
    java, ours = fields(said.of_java["brokerStatus"], ": "), fields(said.of_ours["brokerStatus"], ": ")
    assert java.keys() - ours.keys() == NO_STATUS[said.version]
    assert ours.keys() - java.keys() <= OUR_STATUS | OTHER_NAMES
    assert (java.get("brokerActive"), ours["brokerActive"]) in ((None, "true"), ("true", "true"))


def test_the_name_server_tells_its_settings_by_names_of_javas_and_its_own(said: Said) -> None:
    java, ours = (fields(of["getNamesrvConfig"], "=") for of in (said.of_java, said.of_ours))
    of_5 = {"bindAddress", "scanNotActiveBrokerInterval"}
    own = OUR_STATUS - {"rmqhaReaders"}  # only brokers have readers
    assert ours.keys() - java.keys() == own | (set() if said.version == V5 else of_5)
    assert ours["listenPort"] == java["listenPort"]


def test_the_page_tells_of_each_difference(said: Said) -> None:
    page = PAGE.read_text()
    told = EXPLAINED[said.version].keys() | REFUSALS[said.version] | SETTINGS
    assert [name for name in told if f"`{name.split()[0]}`" not in page] == []


def test_ha_status_of_a_pair_is_that_of_a_java_pair(
    java_master: MasterFactory,
    java_slave: SlaveFactory,
    our_broker: OurBrokerFactory,
    driver: Driver,
    tmp_path: Path,
) -> None:
    java, ours = java_master(version=V5), our_broker("async-master")
    pairs: list[tuple[Broker | OurBroker, Broker | OurBroker]] = [
        (java, java_slave(version=V5, name=java.name, cluster=java.cluster)),
        (ours, our_broker("slave", master=ours)),
    ]
    printed: list[list[list[str]]] = []
    for number, (master, slave) in enumerate(pairs):
        driver.create_topic(master.cluster, f"THa{number}", 1)
        assert driver.send(f"THa{number}", 10, 100).statuses == {"SEND_OK": 10}
        wait_until(partial(are_equal, master, slave), "the slave to have reported the end of the log")
        end = loads_lenient(ask(master, RequestCode.GET_BROKER_HA_STATUS))["masterCommitLogMaxOffset"]
        lines = [["haStatus", "-b", each.address] for each in (master, slave)]
        texts = run(tmp_path / f"tools-{number}", V5, driver.namesrv, lines)
        printed.append([normal("haStatus", re.sub(rf"\b{end}\b", "END", text)) for text in texts])
    assert printed[0] == printed[1]
    assert "ADDRESS END 0 # OK END" in printed[1][0]
    assert "#CommitLogMaxOffset END" in printed[1][1]


def are_equal(master: Broker | OurBroker, slave: Broker | OurBroker) -> bool:
    """Whether the master has messages, and its one slave has them all and has told so."""
    of_master, of_slave = (loads_lenient(ask(each, RequestCode.GET_BROKER_HA_STATUS)) for each in (master, slave))
    end = of_master["masterCommitLogMaxOffset"]
    reported = [each["slaveAckOffset"] for each in of_master["haConnectionInfo"]]
    return end > 0 and reported == [end] and of_slave["haClientRuntimeInfo"]["maxOffset"] == end
