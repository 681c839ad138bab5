"""A failover cluster of real nodes, with a coordinator and a name server, and somebody who sends messages to it."""

import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmqha.coordination.gateway import range_of
from rmqha.testing.etcd import EtcdCluster
from rmqha.testing.forkserver import start_with_pipes
from rmqha.testing.nodes import TwistdNode, free_port
from rmqha.testing.witness import WitnessNode
from tests.commands import rmqha, rmqha_bytes, until_connected
from tests.waiting import WAIT_SECONDS, wait_until

BROKER, CLUSTER, TOPIC = "broker-f", "FailoverCluster", "Failover"
PREFIX = f"/rmqha/{CLUSTER}/{BROKER}/"
FAST: dict[str, Any] = {
    "ttl": 10,
    "renew": 1.0,
    "timeout": 1.0,
    "margin": 1.0,
    "member_timeout": 3.0,
    "failover_pause": 0.0,
}
"""A leader is replaced after ten seconds. A busy machine may need more: a test waits for what happens."""
PATIENT = 20
"""The ttl of a cluster whose leader must not lose the lead while the machine is busy."""
SMALL_FILES = ("--set=mappedFileSizeCommitLog=1048576", "--set=maxHashSlotNum=1000")


@dataclass(frozen=True)
class Surroundings:
    """What a cluster is started with.

    ``options`` are further ones of each node, ``client`` those of who sends and reads, and ``command`` those of
    ``rmqha cluster``. ``prefix`` is a command that executes the nodes and the witness. ``etcd`` is the coordinator in
    place of a witness. By default the name server is the witness's. ``ttl`` is that of leases, in seconds.
    """

    options: Sequence[str] = ()
    client: Sequence[str] = ()
    command: Sequence[str] = ()
    prefix: Sequence[str] = ()
    etcd: EtcdCluster | None = None
    name_server: str | None = None
    ttl: int = FAST["ttl"]


class ClusterMember(TwistdNode):
    """A node of the cluster, which keeps its ports when it is started again."""

    def __init__(self, work: Path, name: str, coordinator: str, name_server: str, options: Sequence[str] = ()) -> None:
        self.remoting = free_port()
        self.http = free_port()
        fixed = (
            f"--name={BROKER}",
            f"--cluster={CLUSTER}",
            f"--port={self.remoting}",
            f"--http-port={self.http}",
            f"--failover={coordinator}",
            f"--member={name}",
            f"--namesrv={name_server}",
        )
        super().__init__(work, (*fixed, *SMALL_FILES, *options), name=name)

    @property
    def failover(self) -> dict[str, Any]:
        """What its state.json says about the cluster; empty before the first."""
        state = self.state()
        return {} if state is None or state.failover is None else dict(state.failover)

    @property
    def leads(self) -> bool:
        """Whether it runs, and says that it leads."""
        return self.is_running and self.failover.get("state") == "LEADER"

    @property
    def log(self) -> bytes:
        """The bytes of its log's files."""
        return b"".join(path.read_bytes() for path in sorted((self.store / "commitlog").iterdir()))

    def damage(self, topic: str) -> None:
        """Change the last byte of the body of the topic's first message, as a bad disk does."""
        segments = ((path, path.read_bytes()) for path in sorted((self.store / "commitlog").iterdir()))
        path, content = next((path, content) for path, content in segments if topic.encode() in content)
        place = content.index(topic.encode()) - 1 - 1  # before the topic is its length, one byte
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([content[place] ^ 1]))

    def wait_until_it_leads(self) -> None:
        """Raises NodeError."""
        self.wait_until_found(lambda: self.leads or None, "lead", WAIT_SECONDS)

    def ask(self, path: str) -> tuple[int, bytes]:
        """Status and body of an answer of its HTTP port."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


class Load:
    """Somebody who sends messages to a topic of its own, one after the other."""

    def __init__(self, name_server: str, topic: str, log: Path, options: Sequence[str]) -> None:
        self.topic = topic
        self._log = log
        with log.open("wb") as lines:
            self._process = start_with_pipes("tests.failover.load", [name_server, topic, *options], lines, lines)

    @property
    def outcomes(self) -> list[str]:
        """What became of each message, in words."""
        found = []
        for number, line in enumerate(self._log.read_text().splitlines()):
            head, _, outcome = line.partition(" ")
            assert head == str(number), line
            found.append(outcome)
        return found

    @property
    def ok(self) -> set[int]:
        """The numbers of the messages that were answered with SEND_OK."""
        return {number for number, outcome in enumerate(self.outcomes) if outcome == "SEND_OK"}

    def wait_for_more(self, count: int = 50) -> None:
        """Wait until so many more are answered with SEND_OK."""
        known = len(self.ok)
        wait_until(lambda: len(self.ok) >= known + count, f"{count} more SEND_OK after {known}", interval=0.2)

    def stop(self) -> None:
        """Send no more."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


class Cluster:
    """``members`` by name, of which the first may begin the cluster, a coordinator, and a name server."""

    def __init__(self, work: Path, stack: ExitStack, names: str, surroundings: Surroundings) -> None:
        self._work, self._stack, self._surroundings = work, stack, surroundings
        self.witness = WitnessNode(work)
        self.witness.prefix = surroundings.prefix
        if surroundings.etcd is None or surroundings.name_server is None:
            stack.enter_context(self.witness)
        etcd = surroundings.etcd
        self.coordinator = f"witness:{self.witness.witness_address}" if etcd is None else etcd.address
        self.name_server = surroundings.name_server or f"127.0.0.1:{self.witness.port('name server')}"
        self.configure({**FAST, "ttl": surroundings.ttl})
        self.members = {
            name: ClusterMember(
                work,
                name,
                self.coordinator,
                self.name_server,
                [f"--role={'slave' if number else 'sync-master'}", *surroundings.options],
            )
            for number, name in enumerate(names)
        }
        for member in self.members.values():
            member.prefix = surroundings.prefix
            stack.enter_context(member)
        self._loads: list[Load] = []

    def configure(self, settings: dict[str, Any]) -> None:
        """Write the cluster's settings, also if it never had a leader."""
        if self._surroundings.etcd is not None:
            self._surroundings.etcd.control("put", f"{PREFIX}config", json.dumps(settings))
            return
        self.witness.port("witness")
        put = {"key": _text64(f"{PREFIX}config"), "value": _text64(json.dumps(settings)), "lease": "0"}
        self._ask_witness("txn", {"compare": [], "success": [{"request_put": put}]})

    def read_key(self, name: str) -> bytes:
        """The value of a key of the cluster in the witness."""
        (found,) = self._ask_witness("range", range_of(PREFIX + name))["kvs"]
        return base64.b64decode(found["value"])

    def _ask_witness(self, call: str, content: dict[str, Any]) -> dict[str, Any]:
        url = f"http://{self.witness.witness_address}/v3/kv/{call}"
        with urllib.request.urlopen(url, json.dumps(content).encode()) as answer:
            return dict(json.load(answer))

    def command(self, *words: str, shown: Sequence[str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run ``rmqha cluster``. ``shown`` are options that say who asks; by default one that may."""
        options = [f"--failover={self.coordinator}", *(self._surroundings.command if shown is None else shown)]
        return rmqha("cluster", *words, *options)

    def order(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """As ``command``; again if it could not reach the coordinator."""
        return until_connected(lambda: self.command(*words))

    def run(self, *words: str) -> str:
        """As ``order``; it must succeed. Returns what it prints."""
        done = self.order(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def change_leader(self, old: ClusterMember, new: ClusterMember, load: Load) -> None:
        """Kill the leader, let the other one lead and the old one follow, while messages are sent. None is lost."""
        old.kill()
        new.wait_until_it_leads()
        load.wait_for_more()
        old.start()
        self.wait_for_sync(new.name, old.name)
        load.wait_for_more()
        load.stop()
        self.assert_nothing_is_lost(load)

    def load(self, *options: str) -> Load:
        """Send messages from now on. ``options`` are further ones of ``tests.failover.load``."""
        topic = f"{TOPIC}{len(self._loads)}"
        load = Load(self.name_server, topic, self._work / f"{topic}.log", [*self._surroundings.client, *options])
        self._loads.append(load)
        self._stack.callback(load.stop)
        return load

    @property
    def leader(self) -> ClusterMember:
        """The member that leads. Of two that believe it, the one with the newer epoch. Raises ValueError."""
        leading = (member for member in self.members.values() if member.leads)
        return max(leading, key=lambda member: int(member.failover["epoch"]))

    def pair(self) -> tuple[ClusterMember, ClusterMember]:
        """The leader and the follower of a cluster of two."""
        leader = self.leader
        (follower,) = (member for member in self.members.values() if member is not leader)
        return leader, follower

    def mend(self) -> None:
        """Start the members that do not run, and wait until one leads, all are in sync, and all know it."""
        for member in self.members.values():
            if not member.is_running:
                member.start()
        names = sorted(self.members)

        def is_whole() -> bool:
            assert all(member.is_running for member in self.members.values()), "a member has ended"
            found = [member.failover for member in self.members.values()]
            states = sorted(str(each.get("state")) for each in found)
            leaders = {(each.get("leader"), each.get("epoch")) for each in found}
            in_sync = all(each.get("sync") == names for each in found)
            return states == ["FOLLOWER"] * (len(names) - 1) + ["LEADER"] and len(leaders) == 1 and in_sync

        wait_until(is_whole, "one member to lead, and all to be in sync", interval=0.1)

    def wait_for_sync(self, leader: str, *members: str) -> None:
        """Wait until a node leads, and says that these hold every message."""
        expected = sorted((leader, *members))

        def is_so() -> bool:
            dead = [name for name in expected if not self.members[name].is_running]
            assert not dead, f"{dead} have ended"
            found = self.members[leader].failover
            return found.get("state") == "LEADER" and found.get("sync") == expected

        wait_until(is_so, f"{leader} to lead, with {expected} in sync", interval=0.1)

    def wait_for_new_leader(self, *names: str) -> str:
        """Wait until one of these leads. Returns its name."""
        wait_until(lambda: any(self.members[name].leads for name in names), f"one of {names} to lead", interval=0.1)
        return next(name for name in names if self.members[name].leads)

    def pull(self, topic: str, options: Sequence[str] | None = None) -> "subprocess.CompletedProcess[bytes]":
        """Read all messages of a topic as a client with these options; by default as one that may."""
        shown = self._surroundings.client if options is None else options
        return rmqha_bytes("pull", topic, f"--namesrv={self.name_server}", "--body", *shown)

    def bodies(self, topic: str) -> set[int]:
        """All messages of a topic, as numbers."""
        done = self.pull(topic)
        assert done.returncode == 0, done.stderr
        return set(map(int, done.stdout.split()))

    def assert_nothing_is_lost(self, load: Load) -> None:
        """Each message that was answered with SEND_OK can be read, as soon as it is confirmed."""
        wait_until(lambda: load.ok <= self.bodies(load.topic), f"all of {len(load.ok)} messages", interval=1.0)


def _text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextmanager
def running_cluster(work: Path, names: str = "ab", surroundings: Surroundings = Surroundings()) -> Iterator[Cluster]:
    """Start it, and wait until one leads and all are in sync. It is the first, unless the machine stood still."""
    with ExitStack() as stack:
        cluster = Cluster(work, stack, names, surroundings)
        cluster.mend()
        yield cluster
