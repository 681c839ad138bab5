"""Java's name servers, and a Java slave, beside a failover cluster of ours."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.failover.cluster import BROKER, CLUSTER, Surroundings, running_cluster
from tests.interop.rocketmq import V5, VERSION, Broker, NameServer, class_path, java_home_problem
from tests.needs import need
from tests.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.story]
SEGMENT_BYTES = 1048576


@pytest.fixture(autouse=True)
def java() -> None:
    """The release on this machine."""
    need(java_home_problem())
    class_path()


@pytest.fixture(params=[VERSION, V5])
def name_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a name server of Java's, of each release."""
    server = NameServer(tmp_path / "names", version=request.param)
    try:
        yield server.start().address
    finally:
        server.kill()


def test_clients_find_the_new_leader_by_javas_name_server(name_server: str, tmp_path: Path) -> None:
    with running_cluster(tmp_path, surroundings=Surroundings(name_server=name_server)) as cluster:
        load = cluster.load()
        load.wait_for_more()
        old, new = cluster.pair()
        cluster.change_leader(old, new, load)


def test_a_java_slave_follows_the_node_that_leads(tmp_path: Path) -> None:
    with ExitStack() as stack, running_cluster(tmp_path) as cluster:
        slave = Broker(
            tmp_path / "java",
            role="SLAVE",
            broker_id=9,
            name=BROKER,
            cluster=CLUSTER,
            namesrv=cluster.name_server,
            segment_size=SEGMENT_BYTES,
        )
        stack.callback(slave.kill)
        slave.start()
        load = cluster.load()
        load.wait_for_more()
        wait_until(lambda: slave.commit_log_range()[1] > 0, "the Java slave to copy the leader's log")
        old, new = cluster.pair()
        assert old.stop() == 0
        new.wait_until_it_leads()
        load.wait_for_more()
        load.stop()
        wait_until(lambda: new.failover["sync"] == [new.name], "the leader to say that no put waits for a Java slave")
        ours, theirs = new.store / "commitlog", slave.store / "commitlog"
        wait_until(lambda: _content(theirs) == _content(ours), "the Java slave to have the new leader's log")
        cluster.assert_nothing_is_lost(load)


def _content(log: Path) -> list[tuple[str, bytes]]:
    """The names of a log's files, and what they hold. A Java slave may have made the next file in advance."""
    found = [(file.name, file.read_bytes()) for file in sorted(log.iterdir())]
    return [each for each in found if any(each[1])]
