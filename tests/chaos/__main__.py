"""Faults for a failover cluster under the load of Java clients: ``python -m tests.chaos --rounds 50``.

Each turn starts a new cluster, lets each fault happen once, in any order, and at its end compares the logs of all
nodes. Prints a line for each round, and at the end a table: for each fault how often it came, the longest time that
it lasted, the time to a new leader, the longest time from then until all name servers named it, the longest time
without a SEND_OK, and the rounds in which a promise was broken (see ``history``). Exit status 1 if there are any.

``--record FILE`` appends a line of JSON for each round, so that counts add up over many runs. ``--table FILE`` prints
the table of such a file, and runs nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.clients import TOPIC, Clients
from tests.chaos.cluster import COORDINATORS, NAME_SERVERS, OURS, ChaosCluster, Etcd, Setup
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.java import JavaCluster
from tests.chaos.parts import Cluster
from tests.chaos.results import Line, append, put_into, read, tables
from tests.chaos.rounds import TROUBLES, Outcome, Rounds
from tests.interop.rocketmq import PROJECT_ROOT
from tests.proofs.foreign import recorded

CAREFUL, DEFAULTS = "java-controller", "java-controller-defaults"
LOGS = "compare-logs"
"""What the comparison at the end of a turn is called among the faults."""


class Run:
    """Turn after turn, until all are done or the time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._end = time.monotonic() + 60 * options.minutes
        self._commit = _commit()
        self.lines: list[Line] = []

    def go(self) -> None:
        """All turns."""
        for turn in range(self._options.rounds):
            if time.monotonic() < self._end:
                with tempfile.TemporaryDirectory(prefix="rmqha-chaos-", ignore_cleanup_errors=True) as work:
                    self._turn(turn, Path(work))

    def _turn(self, turn: int, work: Path) -> None:
        faults = [FAULTS[name] for name in self._options.faults]
        if self._options.cluster != ChaosCluster.kind:
            faults = [fault for fault in faults if fault.is_for_java]
        self._random.shuffle(faults)
        with self._cluster(work) as cluster, Clients(";".join(cluster.name_servers), work) as clients:
            for outcome, fault in self._outcomes(cluster, clients, faults):
                load = os.getloadavg()[0]
                seconds = self._options.seconds if fault is not None and fault.lasts else 0.0
                self._note(cluster, outcome, seconds, load)
                if outcome.violations and self._options.keep is not None:
                    cluster.keep(self._options.keep / f"{self._options.seed}-{turn}-{outcome.fault}")
            if self._options.histories is not None:
                name = f"{self._options.seed}-{turn}-queues.jsonl"
                recorded(clients.history(), TOPIC).write(self._options.histories / name)

    def _cluster(self, work: Path) -> ChaosCluster | JavaCluster:
        options = self._options
        if options.cluster == ChaosCluster.kind:
            return ChaosCluster(work, Setup(options.nodes, options.coordinator, options.name_servers))
        return JavaCluster(work, options.nodes, is_careful=options.cluster == CAREFUL)

    def _outcomes(
        self, cluster: Cluster, clients: Clients, faults: Sequence[Fault]
    ) -> Iterator[tuple[Outcome, Fault | None]]:
        """Of each fault, and of the comparison of the logs. A round that breaks a promise is the last of its turn."""
        rounds = Rounds(cluster, clients, self._options.seconds)
        for fault in faults:
            if time.monotonic() > self._end:
                break
            try:
                outcome = rounds.run(fault)
            except TROUBLES as error:
                outcome = Outcome(fault.name, None, None, None, (f"no recovery: {error}",))
            yield outcome, fault
            if outcome.violations:
                return
        yield Outcome(LOGS, None, None, None, tuple(cluster.differences())), None

    def _note(self, cluster: Cluster, outcome: Outcome, seconds: float, load: float) -> None:
        line = Line(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=self._commit,
            **cluster.description,
            fault=outcome.fault,
            seconds=seconds,
            leader_seconds=_rounded(outcome.leader_seconds),
            names_seconds=_rounded(outcome.names_seconds),
            gap_seconds=_rounded(outcome.gap_seconds),
            violations=outcome.violations,
            load=load,
        )
        self.lines.append(line)
        if self._options.record is not None:
            append(self._options.record, line)
        print(outcome, flush=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _commit() -> str:
    """That of the working tree, with a + if files of git have changed since."""
    described = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(described, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """What the command does; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1, help="of each fault; default: 1")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round later than this")
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--seconds", type=float, default=60, help="how long freezes and cuts last; default: 60")
    parser.add_argument(
        "--cluster",
        choices=(ChaosCluster.kind, CAREFUL, DEFAULTS),
        default=ChaosCluster.kind,
        help="nodes of ours, or brokers of RocketMQ 5 with its controllers, as a careful operator would set them or "
        "with the defaults (for root only); default: ours",
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--coordinator", choices=list(COORDINATORS), default=Etcd.kind)
    parser.add_argument(
        "--name-servers",
        nargs="+",
        choices=NAME_SERVERS,
        default=[OURS],
        help="their kinds: ours, or a release of Java's; default: one of ours",
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, help="where to copy the logs of a round that fails")
    parser.add_argument(
        "--histories",
        type=Path,
        metavar="FOLDER",
        help="where to write what the clients noted, for tests.proofs.foreign",
    )
    parser.add_argument("--record", type=Path, help="append each round to this file")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of this file, and run nothing")
    parser.add_argument("--page", type=Path, help="with --table: put the table into this page, too")
    options = parser.parse_args(arguments)
    if options.table is not None:
        print(tables(read(options.table)))
        if options.page is not None:
            put_into(options.page, tables(read(options.table)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # nothing is left behind then, either
    print(f"seed {options.seed}", flush=True)
    run = Run(options)
    run.go()
    print(tables(run.lines))
    return 1 if any(line.violations for line in run.lines) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
