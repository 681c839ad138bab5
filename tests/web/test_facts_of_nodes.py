"""A fact of a node is described once, and is then in state.json, ``rmqha status``, the pages and the metrics."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import orjson

from rmqha.cli import status as status_command
from rmqha.ops.status import NodeStatus
from rmqha.store.nodefacts import Fact, InStatus, Kind, fact, facts_of
from rmqha.store.nodestate import NodeState, Offsets
from rmqha.web import catalogue, page
from tests.web.nodes import NodeWebTestCase
from tests.web.test_exposition import values_in

TEMPLATE = (Path(page.__file__).parent / "templates" / "node.html").read_text()
NOT_FOR_PEOPLE = {"storeId", "epochStart", "contactLimitSeconds", "verdict", "readLimit", "dispatched", "reads"} | {
    *("messageDelayLevel", "unprovedFrom")
}
"""The facts that status.json has, and the page does not show."""
IN_OTHER_WORDS = {"peers": "s.slaves", "offsets": "s.offsets"}
"""How the page names the facts that it reads elsewhere."""


@dataclass(frozen=True, slots=True)
class RicherState(NodeState):
    """A node that also knows how it sleeps."""

    nap_bytes: int | None = fact(
        "napBytes", Kind.BYTES, "What it read while it slept.", label="read asleep", metric="rmqha_nap_bytes"
    )


def shown(state: NodeState, running: bool = True) -> str:
    """What ``rmqha status`` prints for people."""
    return "\n".join(status_command._lines(NodeStatus.of_node(state, running)))


def where_missing(each: Fact) -> list[str]:
    """Where a fact does not show, although its description says so."""
    keys = [number.name for number in fields(Offsets)] if each.kind is Kind.NUMBERS else [each.key]
    found = []
    state = NodeState("id")
    if not set(keys) <= set(state.as_json()):
        found.append("state.json")
    if (set(keys) <= set(NodeStatus.of_node(state, True).as_json())) != (each.status is not InStatus.NEVER):
        found.append("rmqha status")
    place = IN_OTHER_WORDS.get(each.key, f"s.{each.key}")
    if not each.label and place not in TEMPLATE and each.key not in NOT_FOR_PEOPLE:
        found.append("the page")
    if each.metric and each.metric not in catalogue.BY_NAME:
        found.append("the catalogue")
    if each.metric and each.metric not in TEMPLATE and not each.label:
        found.append("the page's names of metrics")
    return found


class FactsTests(NodeWebTestCase):
    def test_each_fact_is_where_its_description_says(self) -> None:
        for each in facts_of(NodeState):
            with self.subTest(each.key):
                self.assertEqual(where_missing(each), [])

    def test_a_fact_that_shows_nowhere_is_found(self) -> None:
        odd = Fact("odd", Kind.TEXT, "Odd.", metric="rmqha_odd", name="odd")
        missing = ["state.json", "rmqha status", "the page", "the catalogue", "the page's names of metrics"]
        self.assertEqual(where_missing(odd), missing)

    def test_each_description_is_a_sentence_and_each_key_is_one_facts(self) -> None:
        facts = facts_of(NodeState)
        self.assertEqual(len({each.key for each in facts}), len(facts))
        self.assertEqual([each.name for each in facts], [each.name for each in fields(NodeState)])
        for each in facts:
            self.assertTrue(each.meaning.endswith("."), each.key)

    def test_a_new_field_is_in_state_json_status_pages_and_metrics(self) -> None:
        state = RicherState("id", role="SYNC_MASTER", state="SERVING", nap_bytes=3 << 20)
        self.assertEqual(state.as_json()["napBytes"], 3 << 20)
        self.assertEqual(RicherState.from_json(orjson.dumps(state.as_json())), state)
        older = orjson.dumps(NodeState("id", role="SYNC_MASTER", state="SERVING").as_json())
        self.assertEqual(RicherState.from_json(older), replace(state, nap_bytes=None))
        self.assertEqual(NodeState.from_json(orjson.dumps(state.as_json())), NodeState.from_json(older))

        self.assertEqual(NodeStatus.of_node(state, True).as_json()["napBytes"], 3 << 20)
        self.assertIn(f"napBytes     {3 << 20}", shown(state))
        self.assertNotIn("napBytes", shown(state, running=False))

        (gauge,) = set(catalogue.gauges_of(RicherState)) - set(catalogue.gauges_of(NodeState))
        self.assertEqual((gauge.name, gauge.help), ("rmqha_nap_bytes", "What it read while it slept."))
        self.patch(page, "NodeState", RicherState)
        catalogue.BY_NAME["rmqha_nap_bytes"] = gauge
        self.addCleanup(catalogue.BY_NAME.pop, "rmqha_nap_bytes")
        node = self.begin()
        self.patch(node, "state", lambda: replace(state, offsets=Offsets()))
        self.assertEqual(json.loads(self.get("/status.json").body)["napBytes"], 3 << 20)
        html = self.get("/").body.decode()
        self.assertIn("read asleep <code>rmqha_nap_bytes</code>", html)
        self.assertIn("3.0 MiB", html)
        self.assertEqual(values_in(self.get("/metrics").body)["rmqha_nap_bytes", "broker"], 3 << 20)
