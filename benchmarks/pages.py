"""How long pages of nodes with automatic failover tell what is past: a part of ``make bench-failover``.

All pages of both nodes are asked again and again, while the leader is killed, stands still, or hands over. The time is
from a change, as the node's log has it, to the first answer that tells it. A process that is frozen answers nothing;
its first answer afterwards counts, from SIGCONT. Exits 1 if an answer came later than the goal.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from threading import Thread

from rmqha.kit.events import Event
from tests.failover.cluster import Cluster, ClusterMember, Surroundings, running_cluster
from tests.freezing import freeze, thaw
from tests.waiting import WAIT_SECONDS, wait_until

RUNS = 5
GOAL_SECONDS = 3.0
PAUSE_SECONDS = 0.05
ANSWER_SECONDS = 1.0
TTL_SECONDS = 15
PATHS = ("/primary", "/replica", "/cluster", "/status.json")


@dataclass(frozen=True)
class Told:
    """One answer: when it was asked for and when it came, in seconds since 1970."""

    asked: float
    came: float
    path: str
    code: int
    leader: str | None


class Pages(Thread):
    """Asks a node's pages until it is told to stop. A node that does not answer is asked again."""

    def __init__(self, member: ClusterMember, stop: Flag) -> None:
        super().__init__(daemon=True)
        self.answers: list[Told] = []
        self._member = member
        self._stopped = stop

    def run(self) -> None:
        while not self._stopped.wait(PAUSE_SECONDS):
            for path in PATHS:
                self._ask(path)

    def _ask(self, path: str) -> None:
        asked, url = time.time(), f"http://127.0.0.1:{self._member.http}{path}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                code, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            code, body = error.code, error.read()
        except OSError:
            return
        facts = json.loads(body) if path in ("/cluster", "/status.json") else {}
        leader = (facts.get("failover") or {} if path == "/status.json" else facts).get("leader")
        self.answers.append(Told(asked, time.time(), path, code, leader))

    def seconds_until(self, path: str, is_true: Callable[[Told], bool], since: float) -> float:
        """Seconds from a change to the first answer that tells it. Waits for that. Raises AssertionError."""

        def first() -> Told | None:
            return next(
                (each for each in self.answers if each.path == path and each.came >= since and is_true(each)), None
            )

        wait_until(lambda: first() is not None, f"{path} to tell the change", WAIT_SECONDS)
        found = first()
        assert found is not None, "it was waited for"
        return found.came - since


class Measurement:
    """The figures of all runs, by the change and what tells it."""

    def __init__(self, cluster: Cluster, pages: dict[str, Pages]) -> None:
        self._cluster = cluster
        self._pages = pages
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def _note(self, what: str, member: ClusterMember, path: str, is_true: Callable[[Told], bool], since: float) -> None:
        self.seconds[f"{what}: {path}"].append(self._pages[member.name].seconds_until(path, is_true, since))

    def _new_leader(self, what: str, new: ClusterMember, told: int) -> None:
        """The new leader's own pages, once it leads."""
        wait_until(lambda: len(new.events(Event.FAILOVER_LEADS)) > told, "a new leader")
        since = float(new.events(Event.FAILOVER_LEADS)[-1]["time"])
        self._note(f"{what}, the new leader", new, "/primary", lambda each: each.code == 200, since)
        for path in ("/cluster", "/status.json"):
            self._note(f"{what}, the new leader", new, path, lambda each: each.leader == new.name, since)

    def _old_leader(self, what: str, old: ClusterMember, new: ClusterMember, since: float) -> None:
        """The old leader's pages, from the moment that it leads no more."""
        self._note(f"{what}, the old leader", old, "/primary", lambda each: each.code == 503, since)
        leads = float(new.events(Event.FAILOVER_LEADS)[-1]["time"])
        for path in ("/cluster", "/status.json"):
            self._note(f"{what}, the old leader", old, path, lambda each: each.leader == new.name, max(since, leads))
        wait_until(lambda: _in_sync_since(old, leads) is not None, "the old leader to copy")
        self._note(
            f"{what}, the old leader",
            old,
            "/replica",
            lambda each: each.code == 200,
            _in_sync_since(old, leads) or leads,
        )

    def switchover(self) -> None:
        """The leader hands over."""
        self._cluster.mend()
        old, new = self._cluster.pair()
        told = len(new.events(Event.FAILOVER_LEADS))
        self._cluster.run("switchover")
        self._new_leader("switchover", new, told)
        self._old_leader("switchover", old, new, float(old.events(Event.FAILOVER_FENCED)[-1]["time"]))

    def kill(self) -> None:
        """The leader is killed."""
        self._cluster.mend()
        old, new = self._cluster.pair()
        told, since = len(new.events(Event.FAILOVER_LEADS)), time.time()
        old.kill()
        self._note("kill -9, the follower", new, "/replica", lambda each: each.code == 503, since)
        self._new_leader("kill -9", new, told)

    def stand_still(self) -> None:
        """The leader is frozen until the follower leads."""
        self._cluster.mend()
        old, new = self._cluster.pair()
        told = len(new.events(Event.FAILOVER_LEADS))
        freeze(old.pid)
        self._new_leader("frozen", new, told)
        since = time.time()
        thaw(old.pid)
        self._old_leader("frozen", old, new, since)


def _in_sync_since(member: ClusterMember, after: float) -> float | None:
    """When a node's log says that it was in sync with a new master."""
    times = (float(event["time"]) for event in member.events(Event.SLAVE_STATE, state="IN_SYNC"))
    return next((each for each in times if each >= after), None)


def measure(work: Path, runs: int) -> bool:
    """All figures. Whether the goal is met."""
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(work, surroundings=Surroundings(ttl=TTL_SECONDS)))
        stop = Flag()
        stack.callback(stop.set)
        pages = {name: Pages(member, stop) for name, member in cluster.members.items()}
        for each in pages.values():
            each.start()
        load = cluster.load()
        load.wait_for_more()
        measured = Measurement(cluster, pages)
        for _ in range(runs):
            measured.switchover()
            measured.stand_still()
            measured.kill()
        load.stop()
    worst = 0.0
    for what, seconds in measured.seconds.items():
        worst = max(worst, *seconds)
        print(f"{what}: p50 {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s", flush=True)
    met = worst <= GOAL_SECONDS
    print(
        f"pages tell a change: {runs} runs, worst {worst:.2f} s (goal: at most {GOAL_SECONDS:g} s)"
        f"{'' if met else '  MISSED'}"
    )
    return met


def main() -> int:
    """The figures; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=RUNS, help=f"switchovers, freezes and kills; default: {RUNS} of each"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rmqha-bench-") as work:
        return 0 if measure(Path(work), options.runs) else 1


if __name__ == "__main__":
    sys.exit(main())
