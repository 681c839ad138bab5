"""What is said about nodes that cannot be asked."""

import pytest
from pyspark.sql.types import StructType

from rmqha.exitcodes import ExitCode
from rmqha.pipeline.cli import Jobs
from rmqha.pipeline.errors import OptionError
from rmqha.pipeline.network import brokers
from rmqha.pipeline.network.address import Node, Place
from rmqha.pipeline.network.asking import NodeFacts
from rmqha.pipeline.network.brokers import Brokers, NoAnswer
from rmqha.pipeline.network.lines import NodeFailed
from rmqha.pipeline.network.segment import NoNodeLeft
from rmqha.pipeline.options import parse_options
from rmqha.pipeline.source import RmqhaDataSource


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
    def ask_node(remoting: Place, *_: object) -> NodeFacts:
        if remoting.port != 10911:
            raise NodeFailed(f"cannot connect to {remoting}")
        return NodeFacts(Node(Place("a", ha_port), 0), "broker-a", 0, 0, 1024, None)

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
