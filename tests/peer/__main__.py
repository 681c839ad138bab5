"""RocketMQ's own integration tests against our brokers: ``python -m tests.peer --cluster pairs --part 1/3``.

Prints a line for each test, and how many messages each class has stored. Exit status 1 if a test fails, a class has
stored less than it must (a test whose sends all fail may pass), or a slave is not identical with its master.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.peer.running import PREFIX, TLS, Result, SuiteProcess, classes_of, part_of, running, user_topics

KINDS = ("masters", "pairs", TLS, "java")
STORE_NOTHING = frozenset(
    {
        "client.consumer.broadcast.order.OrderMsgBroadCastIT",
        "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
        "client.producer.oneway.OneWaySendExceptionIT",
    }
)
"""Classes that store no message, on Java's brokers either: they send what must be refused, or are ignored."""
IGNORED = "IGNORED"


def read_part(text: str) -> tuple[int, int]:
    """``1/3`` as numbers. Raises ValueError."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError
    return part, parts


class Run:
    """One run, on one cluster."""

    def __init__(self, kind: str, classes: Sequence[str], work: Path) -> None:
        self._kind, self._classes, self._work = kind, classes, work
        self.results: list[Result] = []
        self.problems: list[str] = []

    def go(self) -> None:
        """All classes, and then the copies."""
        with running(self._work, self._kind) as cluster, SuiteProcess(self._work, cluster.name_server) as suite:
            known = self._stored(cluster.stores)
            for of_class in self._classes:
                for result in suite.run(of_class):
                    self.results.append(result)
                    print(f"{result.outcome} {result.seconds:6.1f} s  {result.name}  {result.why}".rstrip(), flush=True)
                stored = self._stored(cluster.stores)
                self._check(of_class.removeprefix(PREFIX), stored - known)
                known = stored
            self.problems += cluster.stop()
        failed = [f"{each.name}: {each.outcome}" for each in self.results if each.outcome not in ("PASS", IGNORED)]
        ran = sum(each.outcome != IGNORED for each in self.results)
        self.problems += failed
        print(f"{self._kind}: {ran - len(failed)} of {ran} tests passed, {known} messages stored", flush=True)

    @staticmethod
    def _stored(stores: Sequence[Path]) -> int:
        return sum(sum(user_topics(store).values()) for store in stores)

    def _check(self, of_class: str, stored: int) -> None:
        print(f"     {stored} messages stored by {of_class}", flush=True)
        if not stored and of_class not in STORE_NOTHING:
            self.problems.append(f"{of_class} has stored no message")


def main(words: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.peer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cluster", action="append", choices=KINDS, help="may be repeated; default: masters, pairs, tls"
    )
    parser.add_argument("--part", type=read_part, default=(1, 1), help="1/3, 2/3 or 3/3: a third of the classes")
    parser.add_argument("--only", help="only classes whose name contains this")
    options = parser.parse_args(words)
    problems = []
    for kind in options.cluster or KINDS[:3]:
        named = [each for each in classes_of(kind) if (options.only or "") in each]
        classes = named if kind == TLS else part_of(named, *options.part)
        print(f"part {options.part[0]} of {options.part[1]}: {len(classes)} of {len(named)} classes")
        work = Path(tempfile.mkdtemp(prefix=f"rmqha-peer-{kind}-"))
        print(f"== {kind}, in {work}", flush=True)
        run = Run(kind, classes, work)
        run.go()
        problems += [f"{kind}: {problem}" for problem in run.problems]
        if not run.problems:
            shutil.rmtree(work)
    print(*(problems or ["all is well"]), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
