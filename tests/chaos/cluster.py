"""A failover cluster as real processes: coordinator, name servers, nodes of ours, and proxies on their links."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

from rmqha.kit.events import Event
from rmqha.kit.exitcodes import ExitCode
from rmqha.testing.etcd import EtcdCluster
from rmqha.testing.nodes import NameServerNode, TwistdNode, free_port
from rmqha.testing.proxy import FaultProxy
from rmqha.testing.witness import WitnessNode
from tests.chaos.parts import Coordinator, Running, leader_of, mount, the_leader, wait_for_leader, wait_until_whole
from tests.commands import TRIES, rmqha
from tests.faults.pairs import shim
from tests.freezing import freeze, thaw
from tests.interop.rocketmq import V5, NameServer

CLUSTER, BROKER = "ChaosCluster", "broker-chaos"
LOCALHOST: Final = "127.0.0.1"
ETCD_MEMBERS: Final = 3
OURS, JAVA_4 = "ours", "4.9.3"
NAME_SERVERS: Final = (OURS, JAVA_4, V5)
"""Kinds of name servers: ours, or a release of Java's."""
SMALL_FILES: Final = (
    "--set=mappedFileSizeCommitLog=262144",  # a full disk is felt with the next segment
    "--set=mappedFileSizeConsumeQueue=20000",
    "--set=maxHashSlotNum=10000",
    "--set=maxIndexNum=40000",
)
DISK_BYTES: Final = 512 << 20


class AnyNameServer(Protocol):
    """A name server's process."""

    @property
    def address(self) -> str:
        """Where it listens, HOST:PORT."""

    def start(self) -> object:
        """Start it."""

    def kill(self) -> None:
        """SIGKILL."""


def make_name_server(work: Path, kind: str) -> AnyNameServer:
    """One of ``NAME_SERVERS``, not started yet. It keeps its port."""
    if kind == OURS:
        return NameServerNode(work, (f"--port={free_port()}",), name="names")
    return NameServer(work / f"names-{kind}", version=kind)


def compare(one: Path, other: Path) -> list[str]:
    """What ``rmqha verify`` has against two stores: it checks both, and their logs must be equal."""
    done = rmqha("verify", one, f"--against={other}", "--exact", *SMALL_FILES)
    return [f"{one.name} and {other.name} differ: {done.stdout} {done.stderr}"] if done.returncode else []


@dataclass(frozen=True, slots=True)
class Setup:
    """Of what a cluster is made. Without proxies no link can be cut, and none costs time."""

    nodes: int = 2
    coordinator: str = "etcd"
    name_servers: Sequence[str] = (OURS,)
    is_proxied: bool = True


class Etcd:
    """Three members."""

    kind: Final = "etcd"

    def __init__(self, work: Path) -> None:
        self._cluster = EtcdCluster(work / "etcd", ETCD_MEMBERS)

    def addresses(self) -> list[str]:
        return [member.address for member in self._cluster.members]

    def start(self) -> None:
        self._cluster.start()
        self._cluster.control("endpoint", "health")

    def pause(self) -> None:
        for member in self._cluster.members:
            member.pause()

    def go_on(self) -> None:
        for member in self._cluster.members:
            member.go_on()

    def kill(self) -> None:
        self._cluster.kill()


class Witness:
    """One, in a name server that no client knows."""

    kind: Final = "witness"

    def __init__(self, work: Path) -> None:
        self._node = WitnessNode(work)

    def addresses(self) -> list[str]:
        return [self._node.witness_address]

    def start(self) -> None:
        if not self._node.is_running:
            self._node.start()
            self._node.port("name server")

    def pause(self) -> None:
        freeze(self._node.pid)

    def go_on(self) -> None:
        thaw(self._node.pid)

    def kill(self) -> None:
        self._node.kill()


COORDINATORS: Final[Mapping[str, Callable[[Path], Coordinator]]] = {Etcd.kind: Etcd, Witness.kind: Witness}


@dataclass
class OurMember:
    """A node, the proxy before its HA port if there is one, and those on its way to the coordinator."""

    name: str
    address: str
    node: TwistdNode
    replication: Sequence[FaultProxy]
    to_coordinator: Sequence[FaultProxy]
    full_disk: Path
    """While this file exists, the node's disk is full."""

    @property
    def is_running(self) -> bool:
        return self.node.is_running

    @property
    def store(self) -> Path:
        return self.node.store

    @property
    def epoch(self) -> int:
        return max((int(event["epoch"]) for event in self.node.events(Event.FAILOVER_LEADS)), default=0)

    @property
    def leads(self) -> bool:
        states = self.node.events(Event.FAILOVER_STATE)
        return self.node.is_running and bool(states) and states[-1]["new"] == "LEADER"

    @property
    def led_at(self) -> float:
        return float(self.node.events(Event.FAILOVER_LEADS)[-1]["time"])

    @property
    def stopped_leading_at(self) -> float | None:
        fenced = self.node.events(Event.FAILOVER_FENCED)
        return float(fenced[-1]["time"]) if fenced else None

    @property
    def has_all(self) -> bool:
        """Whether its log says that it is a slave which has all."""
        states = self.node.events(Event.SLAVE_STATE)
        return bool(states) and states[-1]["state"] == "IN_SYNC"

    def start(self) -> None:
        self.node.start()

    def stop(self) -> None:
        self.node.stop()

    def kill(self) -> None:
        self.node.kill()

    def freeze(self) -> None:
        freeze(self.node.pid)

    def thaw(self) -> None:
        thaw(self.node.pid)

    def cut_replication(self) -> None:
        for proxy in self.replication:
            proxy.command("both hold")

    def cut_coordinator(self) -> None:
        for proxy in self.to_coordinator:
            proxy.command("both hold")

    def heal(self) -> None:
        for proxy in (*self.replication, *self.to_coordinator):
            proxy.command("both pass")

    def refuse_writes(self) -> None:
        self.full_disk.touch()

    def allow_writes(self) -> None:
        self.full_disk.unlink()


class ChaosCluster(Running):
    """A coordinator, name servers, and nodes of ours (see ``parts.Cluster``)."""

    kind: Final = "rmqha"

    def __init__(self, work: Path, setup: Setup) -> None:
        super().__init__()
        self.work = work
        self.coordinator: Coordinator = COORDINATORS[setup.coordinator](work)
        self._name_servers = [make_name_server(work, kind) for kind in setup.name_servers]
        self._setup = setup
        self.members: list[OurMember] = []

    def _start(self) -> None:
        self._stack.callback(self.coordinator.kill)
        self.coordinator.start()
        for server in self._name_servers:
            self._stack.callback(server.kill)
            server.start()
        for number in range(self._setup.nodes):
            self.members.append(self._member(number))
            self.members[-1].node.start()
        wait_for_leader(self, 0)
        self.command("config", "set", "failover_pause=0")
        wait_until_whole(self)

    def _member(self, number: int) -> OurMember:
        port, name, host = free_port(), f"node-{number}", LOCALHOST
        replication: list[FaultProxy] = []
        ways: list[FaultProxy] = []
        if self._setup.is_proxied:
            host = f"127.0.0.{number + 2}"
            replication = [FaultProxy(f"{LOCALHOST}:{port + 1}", f"{host}:{port + 1}")]
            ways = [FaultProxy(address) for address in self.coordinator.addresses()]
        for proxy in (*replication, *ways):
            self._stack.enter_context(proxy)
        endpoints = [proxy.address for proxy in ways] or self.coordinator.addresses()
        full_disk = self.work / f"{name}-disk-is-full"
        options = [
            f"--role={'slave' if number else 'sync-master'}",
            f"--port={port}",
            f"--name={BROKER}",
            f"--cluster={CLUSTER}",
            f"--namesrv={';'.join(self.name_servers)}",
            f"--failover={self._setup.coordinator}:{','.join(endpoints)}",
            f"--member={name}",
            f"--set=brokerIP1={LOCALHOST}",
            f"--set=brokerIP2={host}",
            *SMALL_FILES,
        ]
        node = TwistdNode(self.work, options, name=name, prefix=shim("FULL", full_disk))
        unmount = mount(node.store, DISK_BYTES)
        if unmount is not None:
            self._stack.callback(unmount)
        self._stack.callback(node.kill)
        return OurMember(name, f"{LOCALHOST}:{port}", node, replication, ways, full_disk)

    @property
    def description(self) -> dict[str, Any]:
        return {
            "cluster": self.kind,
            "nodes": self._setup.nodes,
            "coordinator": self._setup.coordinator,
            "name_servers": list(self._setup.name_servers),
        }

    @property
    def name_servers(self) -> list[str]:
        return [server.address for server in self._name_servers]

    @property
    def address(self) -> str:
        """The coordinator's, for commands: not through the proxies."""
        return f"{self._setup.coordinator}:{','.join(self.coordinator.addresses())}"

    @property
    def keeps_its_leader(self) -> bool:
        return True

    def is_whole(self) -> bool:
        """Whether one leads, all are in its sync set, and all that follow have all."""
        leading = [member for member in self.members if member.leads]
        if not leading or not all(member.is_running for member in self.members):
            return False
        leader = max(leading, key=lambda member: member.epoch)
        state = leader.node.state()
        in_sync = [] if state is None or state.failover is None else state.failover["sync"]
        return {member.name for member in self.members} <= set(in_sync) and all(
            member.has_all for member in self.members if member is not leader
        )

    def command(self, *words: str, is_done: Callable[[], bool] = lambda: False) -> str:
        """Run ``rmqha cluster``. Returns its output; raises AssertionError if it fails.

        On a busy machine it may not reach the coordinator in its 2 seconds: then it runs again, unless it ``is_done``.
        """
        for _ in range(TRIES):
            done = rmqha("cluster", *words, f"--failover={self.address}")
            if done.returncode != ExitCode.CANNOT_CONNECT:
                break
            if is_done():
                return done.stdout
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def switch_over(self) -> None:
        """Order another node to lead."""
        leader = the_leader(self)
        self.command("switchover", is_done=lambda: leader_of(self) is not leader)

    def differences(self) -> list[str]:
        """Stop all nodes, the leader last, so that all have all, and ``rmqha verify`` each log against the next."""
        leader = the_leader(self)
        for member in sorted(self.members, key=lambda member: member is leader):
            member.stop()
        return [found for one, other in pairwise(self.members) for found in compare(one.store, other.store)]

    def kill_all(self) -> None:
        """As a power cut: everything ends at the same time."""
        freeze(*(member.node.pid for member in self.members if member.is_running))  # none goes on while others end
        self.coordinator.kill()
        for server in self._name_servers:
            server.kill()
        for member in self.members:
            member.kill()

    def start_all(self) -> None:
        """After ``kill_all``."""
        self.coordinator.start()
        for server in self._name_servers:
            server.start()
        for member in self.members:
            member.start()

    def keep(self, folder: Path) -> None:
        """Copy the logs of all processes, to look at after a violation."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self.work.glob("*.log"):
            shutil.copy(log, folder)
