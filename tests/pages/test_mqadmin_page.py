"""docs/mqadmin.md lists each command of mqadmin 4.9.8, and its tests exist and run these commands."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mqadmin.md").read_text()
TESTS = ast.parse((ROOT / "tests" / "interop" / "test_mqadmin.py").read_text())
_NAMES = """
addWritePerm allocateMQ brokerConsumeStats brokerStatus checkMsgSendRT cleanExpiredCQ cleanUnusedTopic cloneGroupOffset
clusterAclConfigVersion clusterList clusterRT consumeMessage consumer consumerConnection consumerProgress
consumerStatus deleteAclConfig deleteExpiredCommitLog deleteKvConfig deleteSubGroup deleteTopic exportConfigs
exportMetadata exportMetrics getBrokerConfig getConsumerConfig getConsumerStatus getNamesrvConfig printMsg
printMsgByQueue producer producerConnection queryCq queryMsgById queryMsgByKey queryMsgByOffset queryMsgByUniqueKey
queryMsgTraceById resetOffsetByTime resetOffsetByTimeOld sendMessage sendMsgStatus skipAccumulatedMessage
startMonitoring statsAll topicClusterList topicList topicRoute topicStatus updateAclConfig updateBrokerConfig
updateGlobalWhiteAddr updateKvConfig updateNamesrvConfig updateOrderConf updateSubGroup updateTopic updateTopicPerm
wipeWritePerm
"""
"""The commands of mqadmin 4.9.8, by their names in the class MQAdminStartup."""


def rows() -> dict[str, str]:
    """The tests by command."""
    found = re.findall(r"^\| ([a-zA-Z]+) \| .* \| (test_\w+) \|$", PAGE, re.MULTILINE)
    return dict(found)


def untested() -> list[str]:
    """The commands below the table."""
    (_, rest) = PAGE.split("These commands have no such test:")
    return re.findall(r"\b[a-zA-Z]+\b", rest)


def test_each_command_is_on_the_page_once() -> None:
    assert sorted([*rows(), *untested()]) == sorted(_NAMES.split())


def test_each_test_exists_and_each_command_is_run() -> None:
    functions = {node.name for node in ast.walk(TESTS) if isinstance(node, ast.FunctionDef)}
    texts = {node.value for node in ast.walk(TESTS) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = {text.split()[0] for text in texts if text.split()}
    assert set(rows().values()) - functions == set()
    assert rows().keys() - words == set()
    assert set(untested()) & words == set()


def test_commands_that_print_the_same_are_compared() -> None:
    (same,) = (
        node.value
        for node in TESTS.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SAME"
    )
    compared = {
        text.value.split()[0]
        for text in ast.walk(same)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value.split()
    }
    wanted = {command for command, test in rows().items() if test == "test_the_same_is_printed"}
    assert wanted - compared == set()
