"""``python -m benchmarks.secondprocess``: what could our master gain from a second process?

The loads of ASYNC of `make bench-broker`, put to masters of ours that differ in this:

- *one process*: as it is;
- *second process*: the master builds no queues and no index; another process maps its log, looks for what is new each
  2 ms, proves that, and builds them elsewhere;
- *slow second process*: the same each 20 ms, as a slave does: more at once costs less, and consumers wait longer;
- *no dispatch*: nobody builds them, which is the most that a second process could gain by that;
- *no slave*: nothing is sent to a slave, which is the most that a second process for slaves could gain.

Rounds alternate; of each figure the median counts. Processor times are in µs a message. They hold on a machine that
others use, too.
"""

import argparse
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from unittest.mock import patch

from benchmarks.broker import LOADS, QUEUES, ROUNDS, WORK, Pair
from rmqha.kit.events import Event
from rmqha.settings.settings import Settings
from rmqha.store.derived.derived import open_index
from rmqha.store.derived.dispatch import Dispatcher
from rmqha.store.derived.queuetable import open_queues
from rmqha.store.log.commitlog import CommitLog
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.wire.delay import DelayLevels
from tests.interop import rocketmq

WITHOUT_DISPATCH, FOLLOW = "--without-dispatch", "--follow"


class Way(Enum):
    """Who does the work on a put that is not the put's own."""

    ONE_PROCESS = "one process"
    SECOND_PROCESS = "second process"
    SLOW_SECOND_PROCESS = "slow second process"
    NO_DISPATCH = "no dispatch"
    NO_SLAVE = "no slave"


PAUSES_MS = {Way.SECOND_PROCESS: 2, Way.SLOW_SECOND_PROCESS: 20}
"""How long the second process waits between two looks at the log."""


def run_without_dispatch(command: Sequence[str]) -> None:
    """Run ``twistd`` with a dispatcher that takes everything for dispatched."""

    def skip(dispatcher: Dispatcher, deadline: float | None = None) -> None:
        dispatcher.reput_offset += dispatcher.behind_bytes

    sys.argv = list(command)
    with patch.object(Dispatcher, "run_slice", skip):
        runpy.run_path(command[0], run_name="__main__")


def follow(store: Path, work: Path, pause: float) -> None:
    """Prove and dispatch the log of a master that runs, with pauses of ``pause`` seconds, until it is killed."""
    while (segment := min((store / "commitlog").glob("[0-9]*"), default=None)) is None:
        time.sleep(pause)  # a process of its own, without a reactor
    log, settings = CommitLog(segment.parent, segment.stat().st_size, owned=False), Settings()
    index, _ = open_index(work, settings)
    dispatcher = Dispatcher(log, open_queues(work, settings), index, DelayLevels(), 0)
    while True:
        log.verify()
        dispatcher.catch_up()
        time.sleep(pause)  # no other process tells it that the log has grown


@contextmanager
def master(way: Way, namesrv: str) -> Iterator[Pair]:
    """An ASYNC_MASTER, with the other processes of this way."""
    name = f"ours-{way.name.lower().replace('_', '-')}"
    own = [f"--namesrv={namesrv}", f"--name={name}", f"--cluster={name}"]
    port, work = free_port(), WORK / name
    dispatches = way in (Way.ONE_PROCESS, Way.NO_SLAVE)
    prefix = () if dispatches else (sys.executable, "-m", "benchmarks.secondprocess", WITHOUT_DISPATCH)
    with ExitStack() as stack:
        options = ["--role=async-master", f"--port={port}", *own]
        leader = stack.enter_context(TwistdNode(work, options, name="master", prefix=prefix))
        leader.port()
        processes = {"master": [leader.pid]}
        if way is not Way.NO_SLAVE:
            options = ["--role=slave", f"--port={free_port()}", f"--master=127.0.0.1:{port + 1}", *own]
            slave = stack.enter_context(TwistdNode(work, options, name="slave"))
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            processes["slave"] = [slave.pid]
        if way in PAUSES_MS:
            follower = [sys.executable, "-m", "benchmarks.secondprocess", FOLLOW]
            follower += [str(leader.store), str(work / "second"), str(PAUSES_MS[way])]
            second = stack.enter_context(subprocess.Popen(follower))
            stack.callback(second.kill)
            processes["second"] = [second.pid]
        yield Pair(name, processes)


def compare(rounds: int) -> None:
    """Print a line for each load and way."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(rocketmq.NameServer(WORK / "namesrv"))
        masters = {way: stack.enter_context(master(way, namesrv.address)) for way in Way}
        driver = rocketmq.Driver(namesrv.address, WORK / "driver")
        for each in masters.values():
            driver.create_topic(each.name, each.topic, QUEUES)
        for load in LOADS:
            if load.role != "ASYNC":
                continue
            for _ in range(rounds):
                for each in masters.values():
                    each.put(namesrv.address, load)
            for way, each in masters.items():
                used = ", ".join(f"{role} {each.median_of(load, role):.1f}" for role in each.processes)
                tps, p99 = (each.median_of(load, figure) for figure in ("tps", "p99"))
                print(f"{load!s}  {way.value:>19}: tps {tps:.0f}, p99 {p99:.1f} ms, {used}", flush=True)


def main() -> None:
    """The table, or one of its processes."""
    if sys.argv[1:2] == [WITHOUT_DISPATCH]:
        run_without_dispatch(sys.argv[2:])
        return
    if sys.argv[1:2] == [FOLLOW]:
        follow(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]) / 1000)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each master")
    rounds = parser.parse_args().rounds
    problem = rocketmq.java_home_problem()
    if problem is not None:
        raise SystemExit(f"the Java producer cannot run here: {problem}")
    shutil.rmtree(WORK, ignore_errors=True)
    compare(rounds)
    shutil.rmtree(WORK, ignore_errors=True)


if __name__ == "__main__":
    main()
