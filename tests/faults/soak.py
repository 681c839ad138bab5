"""A growing master and its slave behind a faulty network, for as long as one likes: ``python -m tests.faults.soak``.

Prints memory (KiB that are no file's) and open files of both nodes over time, and at the end whether the copy is equal.
Both keep an hour of the log: until then, files become more. The faults are chosen by a seed. Exit status 1 if the copy
is not equal, or a node did what it should not.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rmqha.kit.events import Event
from rmqha.testing.nodes import NodeError, PutNode, TwistdNode
from rmqha.testing.proxy import FaultProxy, ProxyError
from tests.faults.pairs import FREE_PORTS, SHORT_TIMES, anonymous_kib, assert_sound, descriptors

FAULTS = ("cut rst", "cut fin", "both hold", "down hold", "up hold", "both delay 0.05 0.05", "down pace 1280 0.02")
MAX_FAULT_SECONDS = 4.0
PUTS_A_SECOND = 100
BODY_BYTES = 1000
ONE_HOUR = "--set=fileReservedTime=1"
AT_ANY_HOUR = "--set=deleteWhen=" + ";".join(map(str, range(24)))
SMALL_FILES = ("--set=mappedFileSizeCommitLog=4194304", "--set=maxHashSlotNum=10000", "--set=maxIndexNum=40000")


@dataclass(frozen=True, slots=True)
class Sample:
    """What two processes use at a time (seconds from the start): memory in KiB, and open files."""

    seconds: float
    master_kib: int
    slave_kib: int
    master_files: int
    slave_files: int
    connections: int

    @classmethod
    def take(cls, begun: float, master: TwistdNode, slave: TwistdNode, proxy: FaultProxy) -> "Sample":
        """Of now."""
        return cls(
            round(time.monotonic() - begun, 1),
            anonymous_kib(master.pid),
            anonymous_kib(slave.pid),
            descriptors(master.pid),
            descriptors(slave.pid),
            proxy.facts().accepted,
        )


def soak(
    work: Path, minutes: float, seed: int, interval: float, tell: Callable[[Sample], None], least_samples: int = 0
) -> list[Sample]:
    """Run so long, or longer until there are so many samples, sample every ``interval`` seconds, and check the copy.

    Raises AssertionError, NodeError, ProxyError, OSError.
    """
    rng, samples, begun = random.Random(seed), list[Sample](), time.monotonic()
    options = [FREE_PORTS, ONE_HOUR, AT_ANY_HOUR, *SHORT_TIMES, *SMALL_FILES]
    with (
        PutNode(work, ["--role=async-master", *options], name="master") as master,
        FaultProxy(f"127.0.0.1:{master.port()}", seed=seed) as proxy,
    ):
        remoting = f"127.0.0.1:{master.port('remoting')}"
        slave_options = ["--role=slave", f"--master={proxy.address}", f"--master-remoting={remoting}", *options]
        with TwistdNode(work, slave_options, name="slave") as slave:
            slave.wait_for_event(Event.SLAVE_STATE, state="IN_SYNC")
            next_sample = time.monotonic()
            while time.monotonic() < begun + minutes * 60 or len(samples) < least_samples:
                master.tell(PUTS_A_SECOND, body_bytes=BODY_BYTES, rate=PUTS_A_SECOND)
                proxy.command(rng.choice(FAULTS))
                time.sleep(rng.uniform(0, min(MAX_FAULT_SECONDS, interval)))
                proxy.command("both pass")
                answer = master.answer()
                assert answer is not None
                assert answer["statuses"] == {"PUT_OK": PUTS_A_SECOND}
                if time.monotonic() >= next_sample:
                    next_sample += interval
                    samples.append(Sample.take(begun, master, slave, proxy))
                    tell(samples[-1])
            end = master.put(1)["end"]
            proxy.wait_until(lambda facts: (facts.reported or 0) >= end, f"a report of {end}")
            samples.append(Sample.take(begun, master, slave, proxy))
            tell(samples[-1])
            assert slave.stop() == 0
            assert_sound(slave)
        assert master.stop() == 0
        assert_sound(master)
        assert_equal_segments(master.store / "commitlog", slave.store / "commitlog")
    return samples


def assert_equal_segments(one: Path, other: Path) -> None:
    """The segments that both folders have, the last one of each among them, hold the same bytes."""
    names, others = ({path.name for path in folder.iterdir()} for folder in (one, other))
    assert max(names) == max(others)
    for name in names & others:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def growth(samples: Sequence[Sample]) -> dict[str, tuple[int, int]]:
    """The most of each thing in the second third of the samples, and in the last; the first is for warming up."""
    third = len(samples) // 3
    parts = samples[third : 2 * third], samples[-third:]
    names = ("master_kib", "slave_kib", "master_files", "slave_files")
    return {name: tuple(max(getattr(sample, name) for sample in part) for part in parts) for name in names}


def main(arguments: Sequence[str]) -> int:
    """What the command does; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1440)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--interval", type=float, default=60, help="seconds between two lines")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    print(f"{'seconds':>9} {'master KiB':>11} {'slave KiB':>11} {'files':>7} {'files':>7} {'connections':>12}")

    def tell(sample: Sample) -> None:
        files = f"{sample.master_files:7} {sample.slave_files:7}"
        line = f"{sample.seconds:9} {sample.master_kib:11} {sample.slave_kib:11} {files} {sample.connections:12}"
        print(line, flush=True)

    with tempfile.TemporaryDirectory(prefix="rmqha-soak-") as work:
        try:
            samples = soak(Path(work), options.minutes, options.seed, options.interval, tell)
        except (AssertionError, NodeError, ProxyError, OSError) as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
    print("the copy is equal")
    for name, (before, after) in growth(samples).items() if len(samples) > 2 else ():
        print(f"{name}: at most {before} in the second third, {after} in the last")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
