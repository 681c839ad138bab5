"""What automatic failover takes and costs, with two nodes and a coordinator: a part of ``make bench-failover``.

The time to a new leader after ``kill -9`` of the old one, and at a switchover: from the kill, or from the order as the
coordinator has it, until the new leader takes messages. What a put waits in a pair with and without failover, in turn.
What idle nodes use of a processor. Exits 1 if a goal is not met.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from benchmarks.acl import Producer
from rmqha.testing.nodes import TwistdNode, free_port
from tests.chaos.cluster import COORDINATORS, ChaosCluster, Etcd, OurMember, Setup
from tests.chaos.parts import the_leader, wait_for_leader, wait_until_whole

RUNS = 20
ROUNDS = 200
BODY = b"x" * 1024
IDLE_SECONDS = 60.0
CRASH_GOAL, SWITCHOVER_GOAL = 17.0, 2.0
PUT_GOAL_PERCENT, IDLE_GOAL_PERCENT = 5.0, 1.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def show(what: str, seconds: Sequence[float], goal: float) -> bool:
    """Print a time and its goal. Whether the worst one meets it."""
    met = max(seconds) <= goal
    print(
        f"{what}: {len(seconds)} runs, p50 {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s "
        f"(goal: at most {goal:g} s){'' if met else '  MISSED'}",
        flush=True,
    )
    return met


def crash(cluster: ChaosCluster) -> float:
    """Seconds from a kill to the next leader."""
    leader, begin = the_leader(cluster), time.time()
    leader.kill()
    seconds = wait_for_leader(cluster, begin).led_at - begin
    leader.start()
    wait_until_whole(cluster)
    return seconds


def switchover(cluster: ChaosCluster) -> float:
    """Seconds from the moment that the old leader stops leading to the next leader."""
    leader, begin = the_leader(cluster), time.time()
    cluster.switch_over()
    new, stopped_at = wait_for_leader(cluster, begin), leader.stopped_leading_at
    assert stopped_at is not None, "it was the leader"
    seconds = new.led_at - stopped_at
    wait_until_whole(cluster)
    return seconds


def idle_percent(cluster: ChaosCluster, seconds: float) -> dict[str, float]:
    """The share of a processor that each node uses while nothing happens."""

    def used(member: OurMember) -> float:
        fields = Path(f"/proc/{member.node.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND

    before = {member.name: used(member) for member in cluster.members}
    begin = time.monotonic()
    time.sleep(seconds)  # it is what is measured: nothing happens
    took = time.monotonic() - begin
    leader = the_leader(cluster)
    return {
        f"{member.name} ({'leader' if member is leader else 'follower'})": 100
        * (used(member) - before[member.name])
        / took
        for member in cluster.members
    }


def compare_puts(work: Path, cluster: ChaosCluster) -> bool:
    """What a put waits with failover and without, in turn."""
    with ExitStack() as stack:
        port = free_port()
        master = stack.enter_context(TwistdNode(work, ["--role=sync-master", f"--port={port}"], name="plain-master"))
        slave_options = ["--role=slave", f"--master=127.0.0.1:{master.port()}", "--port=0"]
        slave = stack.enter_context(TwistdNode(work, slave_options, name="plain-slave"))
        slave.wait_for_state(lambda state: state.state == "IN_SYNC", "IN_SYNC")
        one = stack.enter_context(closing(Producer(master, None, BODY)))
        other = stack.enter_context(
            closing(Producer(next(each.node for each in cluster.members if each.leads), None, BODY))
        )
        for number in range(ROUNDS):
            for side in (one, other) if number % 2 else (other, one):
                side.round()
    plain, with_failover = statistics.median(one.walls), statistics.median(other.walls)
    percent = 100 * (with_failover / plain - 1)
    met = percent <= PUT_GOAL_PERCENT
    print(
        f"a put of 1 KiB to a sync pair: p50 {plain * 1e6:.0f} µs without failover, {with_failover * 1e6:.0f} µs with "
        f"it, {percent:+.1f} % (goal: at most {PUT_GOAL_PERCENT:g} %){'' if met else '  MISSED'}",
        flush=True,
    )
    return met


def measure(work: Path, kind: str, runs: int, idle_seconds: float) -> bool:
    """All figures. Whether all goals are met."""
    with ChaosCluster(work, Setup(coordinator=kind, is_proxied=False)) as cluster:
        goals = [compare_puts(work, cluster)]
        for name, percent in idle_percent(cluster, idle_seconds).items():
            goals.append(percent <= IDLE_GOAL_PERCENT)
            missed = "" if goals[-1] else "  MISSED"
            print(f"idle {name}: {percent:.2f} % of a core (goal: at most {IDLE_GOAL_PERCENT:g} %){missed}", flush=True)
        goals.append(show("switchover", [switchover(cluster) for _ in range(runs)], SWITCHOVER_GOAL))
        goals.append(show("kill -9 of the leader", [crash(cluster) for _ in range(runs)], CRASH_GOAL))
    return all(goals)


def main() -> int:
    """The figures; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"kills and switchovers; default: {RUNS} of each")
    parser.add_argument("--coordinator", choices=list(COORDINATORS), default=Etcd.kind)
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rmqha-bench-") as work:
        return 0 if measure(Path(work), options.coordinator, options.runs, options.idle_seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
