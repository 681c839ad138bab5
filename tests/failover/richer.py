"""A program whose ``rmqha.failover.keys`` has one line more: it prints where the fact of that line shows."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from click.testing import CliRunner
from twisted.internet.task import Clock

KEYS = "rmqha.failover.keys"
BEFORE = '    http: str = shown("http", default="")\n'
"""The line of ``ToldFacts`` after which the new fact stands."""
NEW = '    nap_bytes: int = shown("napBytes", default=0)\n'
NAP: dict[str, Any] = {"nap_bytes": 3 << 20}


def load_richer_keys() -> None:
    """Load the module with one line more, before anything has imported it as it is."""
    assert KEYS not in sys.modules
    plain = find_spec(KEYS)
    source = Path(str(plain and plain.origin)).read_text()
    assert source.count(BEFORE) == 1
    with NamedTemporaryFile("w", suffix=".py") as file:
        file.write(source.replace(BEFORE, BEFORE + NEW))
        file.flush()
        spec = spec_from_file_location(KEYS, file.name)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[KEYS] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[KEYS])


def tell() -> None:
    """Print the key of a member that has the fact, what the member shows, and what ``rmqha cluster`` shows."""
    from rmqha.cli import coordinator as coordinator_module
    from rmqha.cli import main
    from rmqha.failover.agent import FailoverAgent, Times
    from rmqha.failover.facts import facts_of
    from rmqha.failover.keys import MEMBERS
    from rmqha.failover.member import Identity, NodeFacts
    from tests.failover.clusters import BROKER, CLUSTER, Keys
    from tests.failover.test_agent_log import Node

    class Sleeper(Node):
        """Has slept."""

        def facts(self) -> NodeFacts:
            return replace(super().facts(), **NAP)

    clock = Clock()
    keys = Keys(clock)
    me, times = Identity(CLUSTER, BROKER, "b", b"s"), Times(clock, clock.seconds)
    agent = FailoverAgent(me, keys.store.client("b"), Sleeper(), times)
    agent.startService()
    clock.pump([0.1] * 20)
    patches: dict[str, Any] = {
        "the_reactor": lambda: clock,
        "run_reactor": lambda _, ask: keys.run(ask()),
        "make_coordinator": lambda *_: keys.store.client("cli"),
    }
    for name, value in patches.items():
        setattr(coordinator_module, name, value)
    command = ["cluster", "show", "--json", "--failover=etcd:http://127.0.0.1:2379"]
    shown = json.loads(CliRunner().invoke(main, command).stdout)
    key = (keys.raw(MEMBERS + "b") or b"").decode()
    print(json.dumps({"key": key, "node": facts_of(agent, 0)["members"], "command": shown["members"]}))


if __name__ == "__main__":
    load_richer_keys()
    tell()
