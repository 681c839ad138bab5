"""A fact that a node tells its cluster is one field. It is then in the coordinator's key, and wherever it is shown."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmqha.coordination.interface import Snapshot
from rmqha.failover.keys import InvalidKey, Member, ShownBy, decode, encode
from rmqha.failover.overview import ClusterName, Overview
from rmqha.failover.view import ClusterView
from tests.failover.richer import NAP
from tests.waiting import WAIT_SECONDS

KEY = (
    b'{"name":"b","session":"s","store":"t","boot":"m","ha":"b:2","remoting":"b:1","state":"IN_SYNC","end":5,'
    b'"is_candidate":false,"synced":true,"known_epoch":1,"log_epoch":2,"follows":"a","reason":"r","http":"b:3",'
    b'"priority":5,"no_failover":true,"version":"9","is_full":true,"doubts_below":4,"is_doubtful":true,"stamp":"x",'
    b'"number":6,"knows":["a"],"has_read":["s"],"has_no_room":true,"log_of":"y"}'
)
"""As a node wrote it before what it tells was one list."""
NEEDED = {"name": "b", "session": "s", "store": "t", "boot": "m", "ha": "b:2", "remoting": "b:1", "state": "IN_SYNC"}
OF_NODE = (
    '{"name":"b","leads":false,"state":"IN_SYNC","end":5,"ha":"b:2","remoting":"b:1","http":"b:3","priority":5,'
    '"noFailover":true,"reason":"r","version":"9"}'
)
OF_COMMAND = (
    '{"name":"b","role":"IN_SYNC","epoch":1,"logEpoch":2,"end":5,"lagBytes":null,"inSync":false,"follows":"a",'
    '"priority":5,"noFailover":true,"mayLeadNext":false,"whyNot":"r","ha":"b:2","remoting":"b:1","http":"b:3",'
    '"version":"9"}'
)


@pytest.mark.process
def test_a_fact_of_one_more_line_is_in_the_key_in_state_json_and_in_cluster_show() -> None:
    command = [sys.executable, "-m", "tests.failover.richer"]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, timeout=WAIT_SECONDS, check=True)
    told = json.loads(run.stdout)
    assert json.loads(told["key"])["nap_bytes"] == NAP["nap_bytes"]
    assert [each["napBytes"] for each in (*told["node"], *told["command"])] == [NAP["nap_bytes"]] * 2
    assert decode(Member, "b", told["key"].encode()).name == "b", "a node without that line reads the key"


class CompatibleTests(SynchronousTestCase):
    def test_a_key_has_what_it_always_had(self) -> None:
        member = decode(Member, "b", KEY)
        self.assertEqual(json.loads(encode(member)), {**json.loads(KEY), "doubters": {}})
        self.assertEqual(decode(Member, "b", encode(member)), member)

    def test_what_an_older_node_does_not_write_has_its_default_and_the_rest_is_needed(self) -> None:
        member = decode(Member, "b", json.dumps(NEEDED).encode())
        self.assertEqual(member, Member("b", "s", "m", store="t", ha="b:2", remoting="b:1", state="IN_SYNC"))
        for name in NEEDED:
            with self.assertRaises(InvalidKey, msg=name):
                decode(Member, "b", json.dumps({key: NEEDED[key] for key in NEEDED if key != name}).encode())

    def test_what_is_shown_has_what_it_always_had(self) -> None:
        member = decode(Member, "b", KEY)
        self.assertEqual({"name": "b", "leads": False, **member.in_json(ShownBy.NODE)}, json.loads(OF_NODE))
        view = ClusterView("", Snapshot(1, {}), members={"b": member})
        overview = Overview(ClusterName("C", "B"), view, datetime.now(UTC))
        self.assertEqual(overview.as_json()["members"], [json.loads(OF_COMMAND)])
