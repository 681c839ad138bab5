"""`make bench-attacks`: what honest clients notice while strangers attack a master and a name server, in one run.

Each attack runs once against a master with ASYNC_FLUSH, beside an honest producer with a put every 20 ms. A turn is the
time of a request that costs next to nothing. The goals: honest puts have a p99 of at most 50 ms while an attack runs,
1,000 new groups in one heartbeat take at most 0.5 s, and memory grows by at most 256 MiB. Exits 1 if one is not met.

The control is another node that nobody attacks, asked the same at the same time: what a busy machine costs. Where the
control's p99 is over 50 ms, too, an attack misses the goal only if honest clients wait twice as long as the control's.
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from rmqha.testing.nodes import NameServerNode, TwistdNode
from rmqha.wire.command import FRAME_MAX_LENGTH, RequestCode
from tests.attacks import strangers
from tests.attacks.probe import Figures, Probe
from tests.attacks.strangers import MIB

PROJECT = Path(__file__).resolve().parent.parent
WORK = PROJECT / ".bench" / "attacks"
GOAL_P99_MS = 50.0
MAX_TIMES_THE_CONTROL = 2.0
"""On a machine too busy for the goal itself."""
GOAL_GROUPS_SECONDS = 0.5
GOAL_MEMORY_MIB = 256
NEW_GROUPS = "1,000 new groups in a heartbeat"

Attack = Callable[[int], str]
OF_A_MASTER: dict[str, Attack] = {
    "nothing": lambda _: "",
    NEW_GROUPS: lambda port: strangers.new_groups(port, "new", 1000),
    "500 pulls, each of a new group": lambda port: strangers.pulls_of_new_groups(port, "pull", 500),
    "names that no group may have": strangers.wrong_names,
    "14 MiB of slow JSON": strangers.slow_json,
    "1 MB of slow JSON": strangers.slow_json_within_limits,
    "320,000 subscriptions": lambda port: strangers.many_subscriptions(port, 320_000),
    "4,000 subscriptions": lambda port: strangers.many_subscriptions(port, 4000),
    "a pull of an 11 MiB expression": lambda port: strangers.long_subscription(port, 11 * MIB),
    "200 pulls of 16 kB expressions": lambda port: strangers.long_subscriptions(port, 200),
    "a batch of 180,000 messages": lambda port: strangers.batch(port, 180_000),
    "a batch of 30,000 messages": lambda port: strangers.batch(port, 30_000, b"x" * 10),
    "200 unfinished frames of 16 MiB": lambda port: strangers.unfinished_frames(port, 200, FRAME_MAX_LENGTH),
    "200 unfinished frames of 4 MiB": lambda port: strangers.unfinished_frames(port, 200, 4 * MIB - 2000),
    "queue statistics, 200 times": lambda port: strangers.asked_often(
        port, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "BenchmarkTest"}, 200
    ),
    "100 clients that read nothing": lambda port: strangers.deaf_readers(port, 100),
}
OF_A_NAME_SERVER: dict[str, Attack] = {
    "nothing": lambda _: "",
    "a broker with 1,000,000 topics": lambda port: strangers.registration(port, 1_000_000),
    "a broker with 100,000 topics": lambda port: strangers.registration(port, 100_000),
    "the same as Java sends it": lambda port: strangers.plain_registration(port, 100_000),
    "2,000 key-value texts": lambda port: strangers.kv_puts(port, 2000),
}


def missed(figures: Figures) -> str:
    """Which goals the figures miss, for the end of their line."""
    asked = figures.puts if figures.puts.count else figures.pings
    goal = max(GOAL_P99_MS, MAX_TIMES_THE_CONTROL * figures.control.p99)
    misses = [
        asked.p99 > goal and "p99",
        figures.name == NEW_GROUPS and figures.seconds > GOAL_GROUPS_SECONDS and "time",
        figures.memory_mib > GOAL_MEMORY_MIB and "memory",
    ]
    busy = "  (busy machine)" if figures.control.p99 > GOAL_P99_MS else ""
    return "".join([f"  MISSED: {miss}" for miss in misses if miss]) or busy


def run(attacks: dict[str, Attack], probe: Probe, port: int) -> bool:
    """Run and print them; whether all goals are met."""
    met = True
    for name, attack in attacks.items():
        figures = probe.watch(name, lambda attack=attack: attack(port))  # type: ignore[misc]  # bound at once
        told = missed(figures)
        print(f"{figures}{told}", flush=True)
        met = met and "MISSED" not in told
    return met


def main() -> int:
    """Print the tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        options = ["--role=async-master", "--port=0"]
        with TwistdNode(WORK, options, name="master") as master, TwistdNode(WORK, options, name="control") as other:
            print(f"master\n{Figures.HEAD}")
            with Probe(other) as control, Probe(master, control=control) as probe:
                met = run(OF_A_MASTER, probe, master.port("remoting"))
        with NameServerNode(WORK) as server, NameServerNode(WORK, name="control-namesrv") as other:
            print(f"name server\n{Figures.HEAD}")
            with (
                Probe(other, "name server", only_pings=True) as control,
                Probe(server, "name server", only_pings=True, control=control) as probe,
            ):
                met = run(OF_A_NAME_SERVER, probe, server.port("name server")) and met
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
