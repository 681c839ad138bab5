"""What access control costs a put, and what bad signatures cost honest clients: ``make bench-acl``.

The cost of a put is a ratio, of one run. Short rounds take turns: unsigned puts at an open node, and signed puts at a
node with ``aclEnable``, one after the other on one connection, as a producer sends them. The fastest round of each side
counts: other processes can only make a round slower. Two processes of the same program differ by some percent for as
long as they run, so there are several pairs of nodes, and the median of the pairs counts. The goal is at most 10 % of
the node's processor time, and of the time that the producer waits.

The same is measured inside one process, without sockets: what the check itself takes, next to the least that a put can
take. This has no goal.

Then strangers send a master with ``aclEnable`` as many wrong signatures as it takes, from the address of an honest
producer, which signs well. Another node, which nobody attacks, shows what the machine costs. Exits 1 if a goal
is not met.
"""

import argparse
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from benchmarks.attacks import PROJECT, missed
from rmqha.acl.files import AclFiles
from rmqha.acl.gate import AclGate
from rmqha.acl.signing import Credentials, Signer
from rmqha.broker.brokerservice import BrokerService, Surroundings
from rmqha.remoting.protocol import Processors, RemotingProtocol
from rmqha.settings.settings import make_settings
from rmqha.store.messagestore import MessageStore
from rmqha.testing.nodes import TwistdNode
from rmqha.wire.command import OUR_VERSION, RemotingCommand, RequestCode, encode_head
from tests.attacks import strangers
from tests.attacks.probe import Figures, Probe
from tests.waiting import WAIT_SECONDS

GOAL_PERCENT = 10.0
PAIRS = 7
ROUNDS = 300
PUTS_A_ROUND = 20
BODY_SIZES = (100, 1024)
FIELDS = {
    "a": "PG",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x017F0000010BC218B4AAC2000000000000\x02WAIT\x01true\x02TAGS\x01TagA",
    "j": "0",
    "k": "false",
    "m": "false",
}
"""As Java's producer sends them."""
KEYS = Credentials("rocketmq-app", "a-long-random-text")
WRONG = Credentials(KEYS.access_key, "some-other-text")
PLAIN_ACL = f"""\
accounts:
- accessKey: {KEYS.access_key}
  secretKey: {KEYS.secret_key}
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - TopicTest=PUB|SUB
  - {strangers.SEND["b"]}=PUB|SUB
"""
WORK = PROJECT / ".bench" / "acl"
ATTACK_SECONDS = 10.0


class Side:
    """A client's connection to a broker, and its request."""

    def __init__(self, processors: Processors, keys: Credentials | None, body: bytes) -> None:
        self.transport = StringTransport()
        self.connection = RemotingProtocol(processors, Clock())
        self.connection.makeConnection(self.transport)
        self.connection.setTimeout(None)
        fields = FIELDS if keys is None else Signer(keys)(FIELDS, body, OUR_VERSION)
        self.request = encode_head(RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=fields, body=body)) + body
        self.cpu = self.wall = float("inf")

    def round(self) -> None:
        """Some puts. The times of the fastest round are kept."""
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(PUTS_A_ROUND):
            self.connection.dataReceived(self.request)
        self.cpu = min(self.cpu, time.process_time() - cpu)
        self.wall = min(self.wall, time.perf_counter() - wall)
        assert self.transport.value().count(b'"code":0') == PUTS_A_ROUND, self.transport.value()[:300]
        self.transport.clear()


class Producer:
    """Puts to a node, one after the other on one connection."""

    def __init__(self, node: TwistdNode, keys: Credentials | None, body: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", node.port("remoting")), WAIT_SECONDS)
        self._times = Path(f"/proc/{node.pid}/task/{node.pid}/schedstat")
        fields = FIELDS if keys is None else Signer(keys)(FIELDS, body, OUR_VERSION)
        self._request = (
            encode_head(RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=fields, body=body)) + body
        )
        self.cpu = self.wall = float("inf")
        self.walls: list[float] = []
        """Of each round, the seconds of one put."""

    def round(self) -> None:
        """Some puts. The times of the fastest round are kept."""
        cpu, wall = self._node_seconds(), time.perf_counter()
        for _ in range(PUTS_A_ROUND):
            self._socket.sendall(self._request)
            answer = self._socket.recv(65_536)
        took = time.perf_counter() - wall
        self.walls.append(took / PUTS_A_ROUND)
        self.wall = min(self.wall, took)
        self.cpu = min(self.cpu, self._node_seconds() - cpu)
        assert b'"code":0' in answer, answer

    def _node_seconds(self) -> float:
        """Processor time of the node's reactor."""
        return int(self._times.read_text().split()[0]) / 1e9

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def compare(what: str, plain: Side | Producer, other: Side | Producer, settle: Callable[[], None]) -> float:
    """Print what the other side's put costs more. Gives the larger of both percentages."""
    for number in range(ROUNDS):
        for side in (plain, other) if number % 2 else (other, plain):
            side.round()
            settle()
    cpu, wall = (100 * (slow / fast - 1) for slow, fast in ((other.cpu, plain.cpu), (other.wall, plain.wall)))
    times = [each / PUTS_A_ROUND * 1e6 for each in (plain.cpu, other.cpu, plain.wall, other.wall)]
    print(
        f"{what}: processor {times[0]:.1f} µs and {times[1]:.1f} µs, {cpu:+.1f} %; "
        f"wall {times[2]:.1f} µs and {times[3]:.1f} µs, {wall:+.1f} %",
        flush=True,
    )
    return max(cpu, wall)


def cost_of_a_put(work: Path) -> bool:
    """Compare signed and unsigned puts at pairs of nodes. Whether the goal is met."""
    costs: dict[int, list[float]] = {size: [] for size in BODY_SIZES}
    for number in range(PAIRS):
        folder = work / f"pair-{number}"
        folder.mkdir(parents=True)
        options = ["--role=async-master", "--port=0"]
        with (
            TwistdNode(folder, options, name="open") as plain,
            TwistdNode(folder, [*options, *acl_options(folder)]) as guarded,
        ):
            for size, found in costs.items():
                body = b"x" * size
                with closing(Producer(plain, None, body)) as one, closing(Producer(guarded, KEYS, body)) as other:
                    found.append(compare(f"a put of {size} bytes to a node", one, other, lambda: None))
    medians = {size: median(found) for size, found in costs.items()}
    told = ", ".join(f"{cost:.1f} % with {size} bytes" for size, cost in medians.items())
    met = max(medians.values()) <= GOAL_PERCENT
    print(f"access control costs a put {told} (goal: at most {GOAL_PERCENT:g} %){'' if met else '  MISSED'}")
    return met


def cost_of_the_check() -> None:
    """Compare signed and unsigned puts, in one process and store."""
    with tempfile.TemporaryDirectory(prefix="rmqha-bench-") as folder:
        conf = write_accounts(Path(folder))
        settings = make_settings({"brokerRole": "ASYNC_MASTER", "storePathRootDir": f"{folder}/store"})
        store, clock = MessageStore(settings), Clock()
        store.start_flushing(clock, execute, lambda failure: None)
        broker = BrokerService(settings, store, clock, execute, Surroundings("127.0.0.1"))
        gate = AclGate(AclFiles(conf), clock, execute)
        open_ones = broker.processors()
        guarded = gate.guard(open_ones)
        for size in BODY_SIZES:
            body = b"x" * size
            for what, processors in (("the signature's bytes", open_ones), ("the signature and its check", guarded)):
                sides = Side(open_ones, None, body), Side(processors, KEYS, body)
                for side in sides:
                    side.connection.turns = broker.turns
                compare(
                    f"a put of {size} bytes in one process, without and with {what}", *sides, lambda: clock.advance(0)
                )
        store.abandon()


def write_accounts(work: Path) -> Path:
    """A folder with the accounts."""
    conf = work / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "plain_acl.yml").write_text(PLAIN_ACL)
    return conf


def acl_options(work: Path) -> list[str]:
    """Of a node that checks."""
    return ["--set=aclEnable=true", f"--set=aclFolder={write_accounts(work)}"]


def bad_signatures(work: Path) -> bool:
    """Attack a node. Whether honest clients are well."""
    options = ["--role=async-master", "--port=0", *acl_options(work)]
    met = True
    with TwistdNode(work, options, name="master") as master, TwistdNode(work, options, name="control") as other:
        print(Figures.HEAD)
        with Probe(other, keys=KEYS) as control, Probe(master, control=control, keys=KEYS) as probe:
            port = master.port("remoting")
            for name, attack in {
                "nothing": lambda: "",
                "bad signatures, 1 connection": lambda: strangers.signatures(port, WRONG, 1, ATTACK_SECONDS),
                "bad signatures, 200 connections": lambda: strangers.signatures(port, WRONG, 200, ATTACK_SECONDS),
                "bad signatures, new connections": lambda: strangers.signatures(
                    port, WRONG, 50, ATTACK_SECONDS, reconnects=True
                ),
            }.items():
                figures = probe.watch(name, attack)
                told = missed(figures)
                print(f"{figures}{told}", flush=True)
                met = met and "MISSED" not in told
    return met


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-puts", action="store_true", help="measure the cost of a put only")
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        cost_of_the_check()
        met = cost_of_a_put(WORK)
        if not arguments.only_puts:
            met = bad_signatures(WORK) and met
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
