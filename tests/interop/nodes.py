"""Our nodes beside Java brokers.

Needs no pytest. Every call blocks, and every wait has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.events import Event
from rmqha.store.nodestate import Offsets
from rmqha.testing.nodes import TwistdNode
from rmqha.wire.command import RemotingCommand, RequestCode
from tests.freezing import freeze, thaw
from tests.interop import requests
from tests.interop.rocketmq import (
    HA_PORT_STEP,
    LOCALHOST,
    SMALL_FILES,
    Broker,
    commit_log_sha256,
    free_ports,
    runtime_info,
)
from tests.waiting import WAIT_SECONDS, wait_until

WAIT_S: Final = WAIT_SECONDS


def assert_equal_logs(one: Path, other: Path, start: int, end: int) -> None:
    """The commit logs of two stores hold the same bytes from `start` up to `end`."""
    same = commit_log_sha256(one, start, end) == commit_log_sha256(other, start, end)
    assert same, f"{one} and {other} differ between {start} and {end}"


def ask(broker: Broker | OurBroker, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """The body of the broker's answer, which must be a success."""
    return requests.ask(broker.address, code, fields, body).body


def wait_until_dispatched(address: str, answer: Callable[[str, int], RemotingCommand] = requests.any_answer) -> None:
    """Wait until the queues and the index of this broker have all messages of its log: a send is answered before.

    ``answer`` asks it. In its first second a Java broker answers with an error.
    """

    def is_done() -> bool:
        told = answer(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return told.code == 0 and b'"dispatchBehindBytes":"0"' in told.body

    wait_until(is_done, f"the broker at {address} to dispatch its log")


def log_end_of(address: str) -> int:
    """Where the log of this broker ends now: state.json may be older."""
    return int(runtime_info(address)["commitLogMaxOffset"])


@dataclass(frozen=True, slots=True)
class Ended:
    """How a node ended: its exit status, and the lines that it said on stderr."""

    status: int
    complaints: tuple[str, ...] = ()


class RmqhaNode(TwistdNode):
    """A node of ours beside Java brokers. It may be started again once it ended."""

    def ended(self) -> Ended:
        """Wait until it ended by itself."""
        return Ended(self.wait(WAIT_S), tuple(self.errors()))

    def stop_cleanly(self) -> None:
        """SIGTERM must end it with status 0 and without a word on stderr."""
        self.stop(WAIT_S)
        assert self.ended() == Ended(0)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nobody answers."""
        freeze(self.pid)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        thaw(self.pid)

    @property
    def offsets(self) -> Offsets:
        """The offsets that state.json tells."""
        state = self.state()
        assert state is not None, "a node writes state.json as it starts"
        return state.offsets

    def wait_for(self, wanted: ReplicaState) -> None:
        """Wait until state.json names this state."""
        self.wait_for_state(lambda state: state.state == wanted.name, f"the state {wanted.name}", WAIT_S)

    def wait_for_offset(self, offset: int) -> None:
        """Wait until its proved log reaches `offset`, as it tells on its remoting port."""
        address = f"{LOCALHOST}:{self.port('remoting')}"

        def reached() -> bool:
            assert self.is_running, self.events()[-10:]
            return log_end_of(address) >= offset

        wait_until(reached, f"our node to reach {offset}")


SMALL_FILE_SETTINGS: Final = ("mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")


class OurBroker(RmqhaNode):
    """A node of ours that clients know through a name server; named, placed and reached as a Java `Broker` is."""

    def __init__(
        self,
        work: Path,
        role: str,
        namesrv: str,
        *,
        name: str = "broker-a",
        cluster: str = "interop",
        master: Broker | OurBroker | None = None,
        store: Path | None = None,
        listen_port: int | None = None,
        node_name: str = "our-broker",
        options: Sequence[str] = (),
        **conf: str | int | bool,
    ) -> None:
        """``role`` and ``options`` are as ``twistd rmqha`` has them; a slave takes its names from its ``master``."""
        self.broker_name: str = name if master is None else master.broker_name
        self.cluster: str = cluster if master is None else master.cluster
        self.listen_port = free_ports() if listen_port is None else listen_port
        own = [
            f"--role={role}",
            f"--port={self.listen_port}",
            f"--name={self.broker_name}",
            f"--cluster={self.cluster}",
            f"--namesrv={namesrv}",
            *([] if master is None else [f"--master={master.ha_address}"]),
            *(f"--set={key}={value}" for key, value in _settings(conf).items()),
        ]
        super().__init__(work, [*own, *options], store, node_name)

    @property
    def address(self) -> str:
        """Where it answers remoting requests, as host:port."""
        return f"{LOCALHOST}:{self.listen_port}"

    @property
    def ha_address(self) -> str:
        """Where its slaves connect."""
        return f"{LOCALHOST}:{self.listen_port + HA_PORT_STEP}"

    def start(self) -> Self:
        """Start it, and wait until the name server knows it."""
        super().start()
        self.wait_for_event(Event.REGISTERED)
        return self


def _settings(conf: Mapping[str, str | int | bool]) -> dict[str, str | int | bool]:
    return {**{key: SMALL_FILES[key] for key in SMALL_FILE_SETTINGS}, **conf}
