"""What faults and rounds need of a cluster, whoever made its nodes."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import run
from typing import Any, Protocol, Self

from rmqha.wire.command import RequestCode
from rmqha.wire.fastjson import loads_lenient
from tests.interop.requests import any_answer
from tests.waiting import wait_until

POLL_SECONDS = 0.1
"""Logs tell when a leader began: looking more often makes no time more exact."""
MASTER_ID = "0"
FILL_BYTES = 1 << 20
FROZEN_SECONDS = 5.0
"""How long an answer is waited for where a fault may have frozen who is asked."""


class Coordinator(Protocol):
    """What the nodes ask who leads."""

    def addresses(self) -> list[str]:
        """Its endpoints, HOST:PORT."""

    def start(self) -> None:
        """Start what does not run."""

    def pause(self) -> None:
        """Let it stand still: it accepts connections, and answers nothing."""

    def go_on(self) -> None:
        """Let it go on after ``pause``."""

    def kill(self) -> None:
        """End it at once."""


class Member(Protocol):
    """A node, and the links and the disk that it has of its own."""

    @property
    def name(self) -> str:
        """Its own name."""

    @property
    def address(self) -> str:
        """Where clients reach it, HOST:PORT."""

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""

    @property
    def leads(self) -> bool:
        """Whether its log says so. A process that stands still may be wrong."""

    @property
    def epoch(self) -> int:
        """The newest epoch in which this process has led; 0 if it never has."""

    @property
    def led_at(self) -> float:
        """The wall clock's time at which it last began to lead."""

    @property
    def stopped_leading_at(self) -> float | None:
        """The wall clock's time at which it last stopped; None if its log does not say so."""

    @property
    def store(self) -> Path:
        """Its folder."""

    def start(self) -> None:
        """Start its process."""

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""

    def freeze(self) -> None:
        """SIGSTOP."""

    def thaw(self) -> None:
        """SIGCONT."""

    def cut_replication(self) -> None:
        """Nothing passes to or from the nodes that copy its log, and nobody notices an end."""

    def cut_coordinator(self) -> None:
        """Nothing passes to or from the coordinator, and nobody notices an end."""

    def heal(self) -> None:
        """All links work again."""

    def refuse_writes(self) -> None:
        """Each write to a file fails from now on as on a full disk; the file system says that it has room."""

    def allow_writes(self) -> None:
        """Writes work again."""


class Cluster(Protocol):
    """Nodes, their coordinator and name servers."""

    @property
    def members(self) -> Sequence[Member]:
        """Its nodes."""

    @property
    def coordinator(self) -> Coordinator:
        """What they ask who leads."""

    @property
    def description(self) -> dict[str, Any]:
        """What a line of the results says about it: cluster, nodes, coordinator, name_servers."""

    @property
    def name_servers(self) -> list[str]:
        """Their addresses, HOST:PORT."""

    @property
    def keeps_its_leader(self) -> bool:
        """Whether it promises that the leader stays while only other parts fail."""

    def is_whole(self) -> bool:
        """Whether one leads, all others run, and all have all."""

    def switch_over(self) -> None:
        """Order another node to lead."""

    def kill_all(self) -> None:
        """As a power cut: everything ends at the same time."""

    def start_all(self) -> None:
        """After ``kill_all``."""

    def differences(self) -> list[str]:
        """Stop all nodes, and compare their logs: what differs. They do not run afterwards."""

    def keep(self, folder: Path) -> None:
        """Copy the logs of all processes, to look at after a violation."""


class Running(ABC):
    """A context manager that ``_start`` fills; whatever happens, its stack is closed at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    @abstractmethod
    def _start(self) -> None:
        """Start all, and put what ends it onto the stack."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # of any kind: what has started must end
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def leader_of(cluster: Cluster) -> Member | None:
    """The member that leads, as far as the logs tell: of two that believe it, the one with the newer epoch."""
    leading = [member for member in cluster.members if member.leads]
    return max(leading, key=lambda member: member.epoch, default=None)


def the_leader(cluster: Cluster) -> Member:
    """The member that leads. Raises AssertionError if there is none."""
    found = leader_of(cluster)
    assert found is not None, "a member leads"
    return found


def a_follower(cluster: Cluster) -> Member:
    """The first member that does not lead."""
    leader = the_leader(cluster)
    return next(member for member in cluster.members if member is not leader)


def epoch_of(cluster: Cluster) -> int:
    """The newest epoch of the processes that run."""
    return max(member.epoch for member in cluster.members)


def wait_for_leader(cluster: Cluster, since: float) -> Member:
    """The first leader that began after this time of the wall clock.

    Its epoch may be that of the leader before: a Java broker that was started again leads on in its epoch.
    """

    def leads() -> bool:
        leader = leader_of(cluster)
        return leader is not None and leader.led_at > since

    wait_until(leads, "a new leader", interval=POLL_SECONDS)
    return the_leader(cluster)


def wait_until_whole(cluster: Cluster) -> None:
    """Wait until all members are in the sync set of one that leads."""
    wait_until(cluster.is_whole, "all members to be in the sync set", interval=0.5)


def routed_leader(name_server: str, topic: str) -> str | None:
    """The address that this name server names as the topic's master; None if it names none."""
    try:
        answer = any_answer(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, seconds=FROZEN_SECONDS)
    except (OSError, struct.error):  # it has ended, or ends while it answers
        return None
    if answer.code:
        return None
    brokers = [broker["brokerAddrs"] for broker in loads_lenient(answer.body)["brokerDatas"]]
    masters = {str(number): address for addresses in brokers for number, address in addresses.items()}
    return masters.get(MASTER_ID)


class NameWatch:
    """Looks all the time whom each name server names as the topic's leader. A context manager."""

    def __init__(self, name_servers: Sequence[str], topic: str) -> None:
        self._topic = topic
        self._seen: dict[str, list[tuple[float, str | None]]] = {server: [] for server in name_servers}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._look, args=(server,), daemon=True) for server in name_servers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _look(self, server: str) -> None:
        seen = self._seen[server]
        while not self._ended.wait(POLL_SECONDS):
            named = routed_leader(server, self._topic)
            if not seen or seen[-1][1] != named:
                seen.append((time.time(), named))

    def named_at(self, leader: Member) -> float | None:
        """The wall clock's time at which the last of them began to name this leader; None if one does not yet."""
        last = [seen[-1] if seen else (0.0, None) for seen in list(self._seen.values())]
        return max(at for at, _ in last) if all(named == leader.address for _, named in last) else None

    def wait_until_named(self, leader: Member) -> None:
        """Wait until all of them name this leader."""
        wait_until(lambda: self.named_at(leader) is not None, f"all name servers to name {leader.name}")


def mount(folder: Path, size: int) -> Callable[[], None] | None:
    """Give the folder a file system of its own, in memory. Returns what takes it away; None if we may not."""
    folder.mkdir(parents=True, exist_ok=True)
    if run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True).returncode:
        return None
    return lambda: void(run(["umount", "--lazy", str(folder)], capture_output=True, check=False))


def void(_: object) -> None:
    """Forget a result."""


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """The file system of this folder has no room until the end of the block."""
    filler = folder / "filler"
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
    try:
        _fill(descriptor)
        yield
    finally:
        os.close(descriptor)
        filler.unlink()


def _fill(descriptor: int) -> None:
    at, size = 0, FILL_BYTES
    while size:
        try:
            os.posix_fallocate(descriptor, at, size)
            at += size
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size //= 2
