"""mqadmin of 4.9.7 and of 5.3.3 at our broker and name server: each command works, or is refused in words.

``test_mqadmin.py`` compares what 4.9.3 prints with Java's broker. Here no command may meet a request that nobody knows.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from rmqha.testing.nodes import NameServerNode
from tests.interop.conftest import start_our_broker
from tests.interop.rocketmq import COMMAND_TIMEOUT_S, FAST_START, Driver, java_command

TOPIC, GROUP = "TVersions", "GVersions"
CLUSTER, BROKER = "cluster-versions", "broker-versions"
UNKNOWN: Final = re.compile(r"request type \d+ not supported")
REFUSED: Final = "(rmqha)"

NO_SETTINGS: Final = "updateNamesrvConfig"
REFUSALS: Final = {
    "4.9.7": {NO_SETTINGS, "clusterAclConfigVersion", "getAclConfig"},
    "5.3.3": {
        *(NO_SETTINGS, "setConsumeMode", "haStatus", "resetMasterFlushOffset", "setCommitLogReadAheadMode"),
        *("getSyncStateSet", "getBrokerEpoch", "getControllerMetaData"),
        *("getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig"),
        *("listUser", "createUser", "listAcl", "getAcl"),
    },
}
"""What is refused in words, without access control at the broker."""


def commands(namesrv: str, broker: str, work: Path) -> dict[str, list[str]]:
    """The words of each command, by name and number. Those that never end by themselves are left out."""
    at, cluster, topic, group = ["-b", broker], ["-c", CLUSTER], ["-t", TOPIC], ["-g", GROUP]
    key = ["-s", "ns", "-k", "key"]
    lines = [
        ["clusterList"],
        ["clusterList", "-m"],
        ["topicList"],
        ["topicList", "-c"],
        ["topicRoute", *topic],
        ["topicClusterList", *topic],
        ["topicStatus", *topic],
        ["updateTopic", *at, *topic],
        ["updateTopicPerm", *at, *topic, "-p", "6"],
        ["updateSubGroup", *at, *group],
        ["getConsumerConfig", *group],
        ["brokerStatus", *at],
        ["getBrokerConfig", *at],
        ["updateBrokerConfig", *at, "-k", "fileReservedTime", "-v", "70"],
        ["brokerConsumeStats", *at],
        ["consumerProgress"],
        ["consumerProgress", *group],
        ["cloneGroupOffset", "-s", GROUP, "-d", "GCloned", *topic],
        ["resetOffsetByTime", *group, *topic, "-s", "-1"],
        ["resetOffsetByTimeOld", *group, *topic, "-s", "0"],
        ["skipAccumulatedMessage", *group, *topic],
        ["getConsumerStatus", *group, *topic],
        ["consumerConnection", *group],
        ["producerConnection", *group, *topic],
        ["producer", *at],
        ["consumer", *group],
        ["consumerStatus", *group],
        ["queryCq", *topic, "-q", "0", "-i", "0", *at, "-c", "5"],
        ["queryMsgByKey", *topic, "-k", "key"],
        ["queryMsgByUniqueKey", *topic, "-i", "7F0000010BC218B4AAC2000000000000"],
        ["queryMsgByOffset", *topic, "-b", BROKER, "-i", "0", "-o", "0"],
        ["printMsg", *topic],
        ["printMsgByQueue", *topic, "-a", BROKER, "-i", "0"],
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
        ["updateSubGroupList", *at, "-f", str(work / "groups.json")],
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


@pytest.mark.java
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_each_command_works_or_is_refused_in_words(
    version: str, our_namesrv: NameServerNode, our_driver: Driver, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        broker = start_our_broker(our_namesrv, stack, tmp_path, "async-master", name=BROKER, cluster=CLUSTER)
        our_driver.create_topic(CLUSTER, TOPIC, 2)
        our_driver.clients(
            {
                "topics": {TOPIC: 2},
                "consumers": [{"name": GROUP, "group": GROUP, "topic": TOPIC, "kind": "concurrent"}],
                "producers": [{"name": "sync", "topic": TOPIC, "kind": "sync", "count": 20}],
                "until": [[[GROUP], 20]],
                "seconds": 60,
            }
        )
        for name in ("topics", "groups"):
            (tmp_path / f"{name}.json").write_text("[]")
        asked = commands(our_namesrv.address, broker.address, tmp_path)
        printed = dict(
            zip(asked, run(tmp_path / "tools", version, our_namesrv.address, list(asked.values())), strict=True)
        )
    (tmp_path / "all").write_text("\n".join(f"=== {name}\n{text}" for name, text in printed.items()))
    unknown = {name: UNKNOWN.search(text) for name, text in printed.items()}
    assert {name: found[0] for name, found in unknown.items() if found} == {}
    refused = {name for name, text in printed.items() if REFUSED in text}
    assert refused == REFUSALS[version]
