"""What load balancers are answered in each role, state and phase."""

import json
from types import SimpleNamespace

from rmqha.ha.slave.states import ReplicaState
from rmqha.store.storeputs import PutPhase
from tests.web.nodes import NodeWebTestCase

CHECKS = ("/liveness", "/readiness", "/primary", "/replica", "/sync")


class HealthTests(NodeWebTestCase):
    def codes(self) -> dict[str, int]:
        return {path.removeprefix("/"): self.get(path).code for path in CHECKS}

    def test_a_master_that_accepts_messages(self) -> None:
        self.begin()
        self.assertEqual(self.codes(), {"liveness": 200, "readiness": 200, "primary": 200, "replica": 503, "sync": 503})

    def test_a_master_with_a_full_disk_lives_and_is_not_ready(self) -> None:
        self.begin()
        self.store.puts.disk_full = True
        self.assertEqual(self.codes(), {"liveness": 200, "readiness": 503, "primary": 503, "replica": 503, "sync": 503})
        self.assertEqual(self.verdict("/primary"), (503, "the disk is too full to accept messages"))

    def test_a_slave_in_each_state(self) -> None:
        node = self.begin("SLAVE", brokerId="1")
        for state in ReplicaState:
            node.state_facts = {"state": state.name, "reason": "because"}
            is_copying = state in (ReplicaState.IN_SYNC, ReplicaState.CATCHING_UP)
            self.assertEqual(
                self.codes(),
                {
                    "liveness": 200,
                    "readiness": 200 if is_copying else 503,
                    "primary": 503,
                    "replica": 200 if is_copying else 503,
                    "sync": 200 if state is ReplicaState.IN_SYNC else 503,
                },
                state,
            )
        node.state_facts = {"state": "GAP", "reason": "bytes are gone"}
        self.assertEqual(self.verdict("/replica"), (503, "the slave is GAP: bytes are gone"))

    def test_the_lag_of_a_slave(self) -> None:
        node = self.begin("SLAVE", brokerId="1")
        node.state_facts = {"state": "CATCHING_UP", "lag_bytes": 10 * 2**20, "lag_seconds": 31.0}
        self.assertEqual(self.verdict("/replica", lag="10m")[0], 200)
        self.assertEqual(self.verdict("/replica", lag="9m")[0], 503)
        self.assertEqual(self.verdict("/replica", lag="31s")[0], 200)
        self.assertEqual(self.verdict("/replica", lag="30s"), (503, "the slave's lag is 31 s, more than 30"))
        self.assertEqual(self.verdict("/readiness", lag="30s")[0], 503)
        self.assertEqual(self.verdict("/replica", lag="much")[0], 400)
        node.state_facts = {"state": "CATCHING_UP", "lag_bytes": None}
        self.assertEqual(self.verdict("/replica", lag="10m"), (503, "the slave's lag is not known"))

    def test_an_observer_is_never_a_sync_replica(self) -> None:
        node = self.begin("SLAVE", "IN_SYNC", brokerId="1")
        node.slave = SimpleNamespace(is_observer=True, refusals={})
        self.assertEqual(self.get("/sync").code, 503)
        self.assertEqual(self.get("/replica").code, 200)

    def test_before_the_store_is_open_and_while_the_node_stops(self) -> None:
        node = self.begin()
        for phase in ("OPENING", "CHANGING", "STOPPING"):
            self.phase = phase
            self.node = None if phase == "OPENING" else node
            self.assertEqual(
                self.codes(), {"liveness": 200, "readiness": 503, "primary": 503, "replica": 503, "sync": 503}
            )
            self.assertEqual(self.verdict("/readiness"), (503, f"the node is {phase}"))
        self.phase, self.node = "RUNNING", node

    def test_a_node_whose_disk_has_failed_does_not_live(self) -> None:
        node = self.begin()
        self.patch(self.store.puts, "phase", PutPhase.BROKEN)
        self.assertEqual(self.get("/liveness").code, 503)
        self.assertEqual(self.get("/primary").code, 503)
        self.patch(self.store.puts, "phase", PutPhase.TAKEN)
        self.assertIs(self.node, node)

    def test_json_for_machines(self) -> None:
        self.begin()
        page = self.get("/primary", accept="application/json")
        self.assertEqual(json.loads(page.body), {"ok": True, "reason": "the node is the ASYNC_MASTER"})
