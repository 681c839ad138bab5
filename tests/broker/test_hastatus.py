"""What mqadmin 5.x's haStatus is told."""

from typing import Any

import orjson
from twisted.trial.unittest import SynchronousTestCase

from rmqha.broker.hastatus import ha_runtime_info, ha_status_processors
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.wire.command import RequestCode
from tests.broker.brokerstore import BrokerStoreTestCase, TellingNode

NEAR_BYTES = 256


def slave(peer: str, acknowledged: int | None, sent: int | None) -> dict[str, Any]:
    """The facts of a slave's connection."""
    return {"peer": peer, "ackOffset": acknowledged, "sentOffset": sent}


class HaStatusTests(SynchronousTestCase):
    """Java's HARuntimeInfo of a node's state."""

    def test_a_master_tells_of_each_slave(self) -> None:
        peers = (slave("10.0.0.1:5", 1000, 1000), slave("10.0.0.2:5", 744, 900), slave("10.0.0.3:5", None, None))
        state = NodeState("s", offsets=Offsets(verified=1000), peers=peers)
        info = ha_runtime_info(state, is_slave=False, near_bytes=NEAR_BYTES)
        self.assertEqual((info["master"], info["masterCommitLogMaxOffset"], info["inSyncSlaveNums"]), (True, 1000, 1))
        names = ("addr", "slaveAckOffset", "diff", "inSync", "transferFromWhere")
        self.assertEqual(
            [tuple(each[name] for name in names) for each in info["haConnectionInfo"]],
            [
                ("10.0.0.1:5", 1000, 0, True, 1000),
                ("10.0.0.2:5", 744, 256, False, 900),
                ("10.0.0.3:5", -1, 1001, False, -1),
            ],
        )

    def test_a_slave_tells_of_its_master(self) -> None:
        state = NodeState(
            "s", offsets=Offsets(verified=700), master="10.0.0.9:10912", last_contact="2026-11-23T08:00:00.250Z"
        )
        info = ha_runtime_info(state, is_slave=True, near_bytes=NEAR_BYTES)
        client = info["haClientRuntimeInfo"]
        self.assertIs(info["master"], False)
        self.assertEqual((client["masterAddr"], client["maxOffset"]), ("10.0.0.9:10912", 700))
        self.assertEqual((client["lastReadTimestamp"], client["lastWriteTimestamp"]), (1795420800250,) * 2)
        unheard = ha_runtime_info(NodeState("s"), is_slave=True, near_bytes=NEAR_BYTES)["haClientRuntimeInfo"]
        self.assertEqual((unheard["masterAddr"], unheard["lastReadTimestamp"]), (None, 0))


class HaStatusProcessorTests(BrokerStoreTestCase):
    """Code 907."""

    def test_the_answer_is_what_it_is_now(self) -> None:
        self.open()
        found = {"master": True}
        peer = self.client(ha_status_processors(TellingNode(ha_status=found)))
        self.assertEqual(orjson.loads(peer.ask(RequestCode.GET_BROKER_HA_STATUS).body), {"master": True})
        found["master"] = False
        self.assertEqual(orjson.loads(peer.ask(RequestCode.GET_BROKER_HA_STATUS).body), {"master": False})
