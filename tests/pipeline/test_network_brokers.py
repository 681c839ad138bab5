"""What is said about nodes that cannot be asked, and about topics that no broker has."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from rmqha.kit.exitcodes import ExitCode
from rmqha.pipeline import brokers
from rmqha.pipeline.address import Place, ServingNode
from rmqha.pipeline.brokers import Brokers, NoAnswer
from rmqha.pipeline.cli import Jobs
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.network import asking
from rmqha.pipeline.network.asking import NodeRefuses, ServedLog, ask_unknown_topics
from rmqha.pipeline.network.lines import NodeFailed
from rmqha.pipeline.network.segment import NoNodeLeft
from rmqha.pipeline.options import parse_options
from rmqha.pipeline.source import RmqhaDataSource
from rmqha.wire.command import RemotingCommand, ResponseCode, encode_head
from tests.pipeline.fakecluster import ADDRESS, FakeCluster


@pytest.mark.parametrize(
    ("ha_port", "told"),
    [
        (10912, r"a:10911 is a remoting port: give the HA port, rmqha://a:10912 \("),
        (7, r"a:10911 is a remoting port: give the HA port, rmqha://a:7\?remoting=10911 \("),
    ],
)
def test_a_remoting_port_in_place_of_a_ha_port_is_recognised(
    monkeypatch: pytest.MonkeyPatch, ha_port: int, told: str
) -> None:
    def ask_node(remoting: Place, *_: object) -> ServedLog:
        if remoting.port != 10911:
            raise NodeFailed(f"cannot connect to {remoting}")
        return ServedLog(ServingNode(Place("a", ha_port), 0), "broker-a", 0, 0, 1024, None)

    monkeypatch.setattr(brokers, "ask_node", ask_node)
    with pytest.raises(NoAnswer) as raised:
        Brokers(parse_options({"path": "rmqha://a:10911"})).plans({})
    assert raised.match("cannot connect to a:10910; ")
    assert raised.match(told)


@pytest.mark.parametrize("kind", [NoAnswer, NodeFailed, NoNodeLeft])
def test_a_job_that_reaches_nobody_says_so_by_its_exit_code(kind: type[Exception]) -> None:
    assert Jobs().exit_code_of(kind("gone")) is ExitCode.CANNOT_CONNECT


def test_the_source_says_what_to_use_instead_of_a_sink() -> None:
    source = RmqhaDataSource({"path": "/s"})
    for sink in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match=r"only reads.*rmqha_archive.*job replay"):
            sink(StructType(), False)


def test_a_topic_that_no_broker_has_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ask_unknown_topics(remoting: Place, topics: list[str], *_: object) -> frozenset[str]:
        return frozenset(topics) - {("One", "Other")[remoting.port]}

    with FakeCluster(tmp_path, monkeypatch) as cluster:
        monkeypatch.setattr(brokers, "ask_unknown_topics", ask_unknown_topics)
        for name in ("broker-a", "broker-b"):
            cluster.add(name)
        for topics in ("One,Other", "Other,nosuch,neither"):
            several = Brokers(parse_options({"path": ADDRESS, "topic": topics}))
            for _ in range(2):
                several.plans({})
    assert [record.getMessage() for record in caplog.records] == [
        f"{ADDRESS} has no topic neither, nosuch: no message may be of it"
    ]


def test_nothing_is_told_of_topics_while_a_broker_is_away_or_refuses_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ask_unknown_topics(*_: object) -> frozenset[str]:
        raise NodeRefuses("a refuses GET_TOPIC_STATS_INFO", ResponseCode.NO_PERMISSION)

    with FakeCluster(tmp_path, monkeypatch) as cluster:
        for name in ("broker-a", "broker-b"):
            cluster.add(name)
        cluster.answering.remove("broker-b")
        several = Brokers(parse_options({"path": ADDRESS, "topic": "nosuch"}))
        several.plans({}, away={})
        monkeypatch.setattr(brokers, "ask_unknown_topics", ask_unknown_topics)
        cluster.answering.add("broker-b")
        several.plans({}, away={})
    assert not [record for record in caplog.records if "topic" in record.getMessage()]


def test_a_broker_says_which_topics_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(place: Place, tls: object) -> socket.socket:
        ours, theirs = socket.socketpair()
        open_ends.enter_context(theirs)
        for code in answers:
            theirs.sendall(encode_head(RemotingCommand(code, remark="so")))
        return ours

    answers = [ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUCCESS]
    monkeypatch.setattr(asking, "connect", connect)
    with ExitStack() as open_ends:
        assert ask_unknown_topics(Place("a", 1), ["nosuch", "T"], None, None) == {"nosuch"}
        answers = [ResponseCode.NO_PERMISSION]
        with pytest.raises(NodeRefuses, match="refuses GET_TOPIC_STATS_INFO: so"):
            ask_unknown_topics(Place("a", 1), ["T"], None, None)
