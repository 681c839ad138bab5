"""Java's own pair with automatic failover: brokers of 5.3.3 with a group of three controllers (DLedger).

Each broker has a network namespace of its own on a bridge, for its HA port cannot have a proxy before it: it tells its
peers the port at which it listens. A link is cut by a neighbour's address that nobody has: packets leave, and nobody
gets them. This needs root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

from rmqha.wire.command import RemotingCommand
from rmqha.wire.fastjson import loads_lenient
from tests.chaos.cluster import BROKER, CLUSTER, DISK_BYTES, compare
from tests.chaos.parts import (
    FROZEN_SECONDS,
    Running,
    a_follower,
    leader_of,
    mount,
    the_leader,
    void,
    wait_for_leader,
    wait_until_whole,
)
from tests.freezing import freeze, thaw
from tests.interop.requests import any_answer
from tests.interop.rocketmq import FAST_START, V5, Broker, JavaProcess, NameServer, free_ports
from tests.waiting import wait_until

CONTROLLERS: Final = 3
CONTROLLER_ELECT_MASTER: Final = 1002
CONTROLLER_GET_METADATA_INFO: Final = 1005
CONTROLLER_GET_SYNC_STATE_DATA: Final = 1006
SEGMENT_BYTES: Final = 262144
SMALL_STORE: Final[Mapping[str, int]] = {
    "mappedFileSizeConsumeQueue": 20000,
    "maxHashSlotNum": 10000,
    "maxIndexNum": 40000,
}
CAREFUL: Final[Mapping[str, bool | int]] = {"allAckInSyncStateSet": True, "minInSyncReplicas": 1}
"""What promises as much as our sync mode does: each put waits for all of the sync state set, which may be one node."""
NOBODY: Final = "02:00:00:00:00:99"
CHANGED: Final = re.compile(r"^(\S+) .*Change broker \[.* to (SYNC_MASTER|SLAVE), .*newMasterEpoch:(\d+)")
COORDINATOR_HOST, OUTSIDE_HOST = 100, 254
_numbers = count()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A bridge, and the namespaces of hosts on it. Addresses are 10.77.X.HOST; ours is 10.77.X.254."""

    def __init__(self, stack: ExitStack) -> None:
        """Raises CalledProcessError if we may not make networks."""
        self._stack = stack
        self._name = f"rc{os.getpid()}x{next(_numbers)}"
        self._third = os.getpid() % 250 + 1
        _ip("link", "add", self._name, "type", "bridge")
        stack.callback(lambda: void(subprocess.run(["ip", "link", "del", self._name], check=False)))
        _ip("addr", "add", f"{self.address(OUTSIDE_HOST)}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def address(self, host: int) -> str:
        """Of this host."""
        return f"10.77.{self._third}.{host}"

    def add(self, host: int) -> Sequence[str]:
        """A namespace for this host. Returns the words before a command that shall run in it."""
        space, outer = self._space(host), f"v{self._name}h{host}"[-15:]
        _ip("netns", "add", space)
        self._stack.callback(lambda: void(subprocess.run(["ip", "netns", "del", space], check=False)))
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outer, "master", self._name, "up")
        for words in (("addr", "add", f"{self.address(host)}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            _ip("-n", space, *words)
        _ip("-n", space, "link", "set", "lo", "up")
        return ("ip", "netns", "exec", space)

    def cut(self, one: int, other: int) -> None:
        """Nothing passes between these hosts from now on, and nobody notices an end."""
        for here, there in ((one, other), (other, one)):
            words = ("neigh", "replace", self.address(there), "lladdr", NOBODY, "nud", "permanent", "dev", "eth0")
            _ip("-n", self._space(here), *words)

    def heal(self, one: int, other: int) -> None:
        """What was cut works again."""
        for here, there in ((one, other), (other, one)):
            command = ["ip", "-n", self._space(here), "neigh", "del", self.address(there), "dev", "eth0"]
            subprocess.run(command, check=False, capture_output=True)

    def _space(self, host: int) -> str:
        return f"{self._name}-{host}"


class Controller(JavaProcess):
    """A controller by itself, one of a DLedger group."""

    MAIN_CLASS = "org.apache.rocketmq.controller.ControllerStartup"
    READY = b"The Controller Server boot success"

    def __init__(self, work: Path, peers: Sequence[str], number: int, prefix: Sequence[str]) -> None:
        """``peers`` are the addresses of the group. ``number`` says which of them is its own."""
        super().__init__(work, listen_port=int(peers[number].rpartition(":")[2]), jvm=FAST_START, log_level="INFO")
        self.version = V5
        self._number = number
        self._peers = peers
        self._prefix = prefix

    def _command(self) -> list[str]:
        return [*self._prefix, *super()._command()]

    def _configuration(self) -> Mapping[str, str | int | bool]:
        return {
            "controllerDLegerGroup": "chaos",
            "controllerDLegerPeers": ";".join(f"n{number}-{peer}" for number, peer in enumerate(self._peers)),
            "controllerDLegerSelfId": f"n{self._number}",
            "controllerStorePath": str(self.work / "store"),
            "mappedFileSize": 16 << 20,
        }

    def _check_ready(self) -> None:
        """It says by itself that it is; whether the group has a leader is another question."""


class Controllers:
    """The group, in a namespace of its own."""

    kind: Final = f"{CONTROLLERS} controllers"

    def __init__(self, work: Path, network: Network) -> None:
        prefix, host = network.add(COORDINATOR_HOST), network.address(COORDINATOR_HOST)
        self._peers = [f"{host}:{free_ports()}" for _ in range(CONTROLLERS)]
        self._all = [Controller(work / f"controller-{n}", self._peers, n, prefix) for n in range(CONTROLLERS)]

    def addresses(self) -> list[str]:
        return self._peers

    def start(self) -> None:
        with ThreadPoolExecutor(CONTROLLERS) as pool:
            for started in [pool.submit(each.start) for each in self._all if not each.is_running]:
                started.result()
        wait_until(lambda: self.leader() is not None, "the controllers to have a leader")

    def pause(self) -> None:
        freeze(*(each.pid for each in self._all))

    def go_on(self) -> None:
        thaw(*(each.pid for each in self._all))

    def kill(self) -> None:
        for each in self._all:
            each.kill()

    def leader(self) -> str | None:
        """The address of the controller that leads, as the others say."""
        for peer in self._peers:
            with suppress(OSError, struct.error):
                answer = any_answer(peer, CONTROLLER_GET_METADATA_INFO, seconds=FROZEN_SECONDS)
                if answer.code == 0 and answer.ext_fields.get("controllerLeaderAddress"):
                    return answer.ext_fields["controllerLeaderAddress"]
        return None

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand | None:
        """What the leader of the group answers; None if there is none."""
        leader = self.leader()
        if leader is None:
            return None
        with suppress(OSError, struct.error):
            return any_answer(leader, code, fields, body, seconds=FROZEN_SECONDS)
        return None

    def in_sync(self) -> set[str]:
        """The addresses of the brokers in the sync state set."""
        answer = self.ask(CONTROLLER_GET_SYNC_STATE_DATA, {}, json.dumps([BROKER]).encode())
        if answer is None or answer.code:
            return set()
        table = loads_lenient(answer.body)["replicasInfoTable"]
        return {each["brokerAddress"] for each in table.get(BROKER, {}).get("inSyncReplicas") or ()}


class NetworkBroker(Broker):
    """A broker in a namespace."""

    def __init__(self, work: Path, host: str, prefix: Sequence[str], **options: Any) -> None:
        self._host = host
        self._prefix = prefix
        jvm = (*FAST_START, f"-Drmq.logback.configurationFile={work / 'conf' / 'logback.xml'}")
        super().__init__(work, version=V5, jvm=jvm, brokerIP1=host, brokerIP2=host, **options)

    @property
    def address(self) -> str:
        return f"{self._host}:{self.listen_port}"

    def _command(self) -> list[str]:
        """The disk is its own: what Java thinks to be a full disk shall count."""
        words = super()._command()
        return [*self._prefix, *(word for word in words if not word.startswith("-Drocketmq.broker.diskSpace"))]


class JavaMember:
    """A broker, its network and its disk."""

    def __init__(self, number: int, broker: NetworkBroker, network: Network, cluster: JavaCluster) -> None:
        self.name = f"node-{number}"
        self.broker = broker
        self._host = number + 1
        self._network = network
        self._cluster = cluster
        self._log_start = 0

    @property
    def address(self) -> str:
        return self.broker.address

    @property
    def is_running(self) -> bool:
        return self.broker.is_running

    @property
    def store(self) -> Path:
        return self.broker.store

    @property
    def leads(self) -> bool:
        changes = self._changes()
        return self.is_running and bool(changes) and changes[-1][1] == "SYNC_MASTER"

    @property
    def epoch(self) -> int:
        return max((epoch for _, role, epoch in self._changes() if role == "SYNC_MASTER"), default=0)

    @property
    def led_at(self) -> float:
        return next(at for at, role, _ in reversed(self._changes()) if role == "SYNC_MASTER")

    @property
    def stopped_leading_at(self) -> float | None:
        return None

    def _changes(self) -> list[tuple[float, str, int]]:
        """When it got which role, in which epoch, since its last start."""
        if not self.broker.log.exists():
            return []
        with self.broker.log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        found = [match for match in map(CHANGED.match, lines) if match is not None]
        return [(_today_at(match[1]), match[2], int(match[3])) for match in found]

    def start(self) -> None:
        self._log_start = self.broker.log.stat().st_size if self.broker.log.exists() else 0
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()

    def kill(self) -> None:
        self.broker.kill()

    def freeze(self) -> None:
        self.broker.pause()

    def thaw(self) -> None:
        self.broker.resume()

    def cut_replication(self) -> None:
        for host in range(1, len(self._cluster.members) + 1):
            if host != self._host:
                self._network.cut(self._host, host)

    def cut_coordinator(self) -> None:
        self._network.cut(self._host, COORDINATOR_HOST)

    def heal(self) -> None:
        for host in (*range(1, len(self._cluster.members) + 1), COORDINATOR_HOST):
            if host != self._host:
                self._network.heal(self._host, host)

    def refuse_writes(self) -> None:
        raise NotImplementedError("the shim is for Python")  # no fault with is_for_java comes here

    def allow_writes(self) -> None:
        raise NotImplementedError("the shim is for Python")  # as above


class JavaCluster(Running):
    """Controllers, a name server and brokers, all of 5.3.3 (see ``parts.Cluster``)."""

    def __init__(self, work: Path, nodes: int, is_careful: bool) -> None:
        """Raises CalledProcessError if we may not make networks: only root may."""
        super().__init__()
        self.work = work
        self._is_careful = is_careful
        self._network = Network(self._stack)
        self.coordinator = Controllers(work, self._network)
        self._name_server = NameServer(work / "names", version=V5)
        self.members: list[JavaMember] = [self._member(number) for number in range(nodes)]

    def _start(self) -> None:
        self._stack.callback(self.coordinator.kill)
        self.coordinator.start()
        self._stack.callback(self._name_server.kill)
        self._name_server.start()
        self._start_members()
        wait_for_leader(self, 0)
        wait_until_whole(self)

    def _member(self, number: int) -> JavaMember:
        host = number + 1
        prefix, work = self._network.add(host), self.work / f"node-{number}"
        broker = NetworkBroker(
            work,
            self._network.address(host),
            prefix,
            name=BROKER,
            cluster=CLUSTER,
            namesrv=";".join(self.name_servers),
            segment_size=SEGMENT_BYTES,
            enableControllerMode=True,
            controllerAddr=";".join(self.coordinator.addresses()),
            **SMALL_STORE,
            **(CAREFUL if self._is_careful else {}),
        )
        unmount = mount(broker.store, DISK_BYTES)
        if unmount is not None:
            self._stack.callback(unmount)
        self._stack.callback(broker.kill)
        return JavaMember(number, broker, self._network, self)

    def _start_members(self) -> None:
        with ThreadPoolExecutor(len(self.members)) as pool:
            for started in [pool.submit(each.start) for each in self.members if not each.is_running]:
                started.result()

    @property
    def description(self) -> dict[str, Any]:
        return {
            "cluster": f"java-controller {V5}, {'careful' if self._is_careful else 'defaults'}",
            "nodes": len(self.members),
            "coordinator": self.coordinator.kind,
            "name_servers": [V5],
        }

    @property
    def name_servers(self) -> list[str]:
        return [f"{self._network.address(OUTSIDE_HOST)}:{self._name_server.listen_port}"]

    @property
    def keeps_its_leader(self) -> bool:
        return False

    def is_whole(self) -> bool:
        """Whether one leads, and all are in its sync state set, as the controllers say."""
        return (
            leader_of(self) is not None
            and all(member.is_running for member in self.members)
            and {member.address for member in self.members} <= self.coordinator.in_sync()
        )

    def switch_over(self) -> None:
        """As ``mqadmin electMaster`` does."""
        follower = a_follower(self)
        number = (follower.store / "brokerIdentity").read_text().rpartition("#")[2]
        fields = {"clusterName": CLUSTER, "brokerName": BROKER, "brokerId": number, "designateElect": "true"}
        answer = self.coordinator.ask(CONTROLLER_ELECT_MASTER, fields)
        assert answer is not None, "the controllers answer"
        assert answer.code == 0, answer.remark

    def differences(self) -> list[str]:
        leader = the_leader(self)
        for member in sorted(self.members, key=lambda member: member is leader):
            member.stop()
        return [found for one, other in pairwise(self.members) for found in compare(one.store, other.store)]

    def kill_all(self) -> None:
        for member in self.members:
            if member.is_running:
                member.freeze()
        self.coordinator.kill()
        self._name_server.kill()
        for member in self.members:
            member.kill()

    def start_all(self) -> None:
        self.coordinator.start()
        self._name_server.start()
        self._start_members()

    def keep(self, folder: Path) -> None:
        for log in self.work.glob("*/logs/rocketmq.log"):
            kept = folder / log.parts[-3]
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, kept)


def _today_at(clock: str) -> float:
    """The time of a line of the log, which has no date: the last one that it can be."""
    now = datetime.now()
    at = datetime.combine(now.date(), datetime.strptime(clock, "%H:%M:%S.%f").time())
    return (at if at <= now else at - timedelta(days=1)).timestamp()
