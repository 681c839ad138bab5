"""The histories that the simulator takes down."""

from pathlib import Path

import orjson
from zope.interface.verify import verifyObject

from rmqha.coordination.interface import ICoordinator
from rmqha.testing.sim.clusterwalk import ClusterWalk
from rmqha.testing.sim.histories import RecordedCoordinator
from rmqha.testing.sim.walk import Story, run_seed


def test_what_takes_down_a_client_is_a_client() -> None:
    simulation = ClusterWalk(0).simulation
    simulation.record()
    with simulation.running():
        simulation.start()
        process = simulation.members[0].process
        assert process is not None
        client = simulation.coordinator.client(process)
        assert isinstance(client, RecordedCoordinator)
        verifyObject(ICoordinator, client)


def test_each_operation_is_asked_once_and_ends_once_and_the_walk_is_the_same(tmp_path: Path) -> None:
    taken_down = run_seed(8, Story.CLUSTER, tmp_path)
    assert taken_down == run_seed(8, Story.CLUSTER)
    for path in (tmp_path / "seed-8-queues.jsonl", tmp_path / "seed-8-keys.jsonl"):
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        assert [line["index"] for line in lines] == list(range(len(lines)))
        asked = [line["process"] for line in lines if line["type"] == "invoke"]
        ended = [line["process"] for line in lines if line["type"] != "invoke"]
        assert len(asked) == len(set(asked))
        assert sorted(asked) == sorted(ended)
        assert {"ok", "info"} <= {line["type"] for line in lines}
